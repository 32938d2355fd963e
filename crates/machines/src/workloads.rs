//! Workloads as members of a Release: how far each has come, and what is done to it. Pure.
//!
//! A workload is moved by one write that changes its pods' template and notes in an annotation which version of which Release that is
//! ([`ReleaseMark`]). Its own controller replaces its pods. The template that it had before is kept in another annotation
//! ([`TemplateHistory`]), so that going back restores it as it was, whatever the Release says by then.
//!
//! A workload has arrived when all of its pods are of the new template and available. Since when that is so cannot be seen in every kind
//! of workload; so it is noted in the mark, once, when it is first observed, and again when it is no longer so.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use mainstay_api::release::{UNRELEASED, VERSION_VARIABLE, WorkloadChange};
use mainstay_waves::{Health, Member, Position};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Templates of so many versions are kept.
const HISTORY_LENGTH: usize = 3;
/// Annotations of an object may have 256 KiB in all; others need some.
const HISTORY_BYTES: usize = 160 * 1024;

/// What a Release last did to a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseMark {
    pub release: String,
    pub version: String,
    /// The change that was applied, by its fingerprint.
    pub change: String,
    pub since: Time,
    /// When all pods were first observed to be of the new template and available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrived: Option<Time>,
    /// Since when that is no longer so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unready: Option<Time>,
    /// Why the change was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ReleaseMark {
    /// Nothing if it cannot be read: the workload is then one that no Release has changed.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }
}

/// Templates that a workload had, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TemplateHistory(Vec<RecordedTemplate>);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedTemplate {
    pub version: String,
    pub template: Value,
}

impl TemplateHistory {
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// The template of a version; if it is not known, the newest that there is.
    pub fn before(&self, version: &str) -> Option<&RecordedTemplate> {
        self.find(version).or_else(|| self.0.last())
    }

    pub fn find(&self, version: &str) -> Option<&RecordedTemplate> {
        self.0.iter().find(|own| own.version == version)
    }

    /// With the template that a workload is about to lose.
    pub fn with(mut self, version: &str, template: Value) -> Self {
        self.0.retain(|own| own.version != version);
        self.0.push(RecordedTemplate { version: version.to_owned(), template });
        let size = |history: &Self| serde_json::to_string(history).map_or(0, |text| text.len());
        while self.0.len() > HISTORY_LENGTH || (self.0.len() > 1 && size(&self) > HISTORY_BYTES) {
            self.0.remove(0);
        }
        self
    }
}

/// Whether a workload's pods are as its template says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadProgress {
    /// All are of the newest template and available.
    Settled,
    Rolling,
    /// Its own controller gave up.
    Failed {
        why: String,
    },
}

/// A workload as the planner sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadView {
    /// As [`mainstay_api::release::workload_name`] writes it.
    pub name: String,
    pub mark: Option<ReleaseMark>,
    pub history: TemplateHistory,
    pub progress: WorkloadProgress,
    /// The fingerprint of the change that the Release wants.
    pub change: String,
}

/// What is done to a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadMove {
    /// Its template is changed as the Release says.
    Change { workload: String, version: String },
    /// It gets the template of this recorded version back.
    Restore { workload: String, version: String, recorded: String },
    /// Only its mark changes.
    Note { workload: String, mark: ReleaseMark },
}

/// Where workloads are to go.
pub struct WorkloadCourse<'a> {
    pub target: &'a str,
    pub began: Timestamp,
    pub is_rollback: bool,
}

impl WorkloadView {
    /// Whether the last thing that was done to it is what is wanted now.
    fn is_asked(&self, course: &WorkloadCourse<'_>) -> bool {
        self.mark
            .as_ref()
            .is_some_and(|mark| mark.version == course.target && (course.is_rollback || mark.change == self.change))
    }

    /// What a rollback restores; nothing if no Release has changed the workload, or none remembers what it was.
    fn restores(&self, course: &WorkloadCourse<'_>) -> Option<&RecordedTemplate> {
        self.mark.as_ref().filter(|mark| mark.version != course.target)?;
        self.history.before(course.target)
    }

    pub fn member(&self, course: &WorkloadCourse<'_>, now: Timestamp) -> Member {
        let settled = self.progress == WorkloadProgress::Settled;
        let mark = self.mark.as_ref().filter(|_| self.is_asked(course));
        let (position, health) = match (mark, course.is_rollback && self.restores(course).is_none()) {
            (Some(mark), _) => Self::asked(mark, &self.progress, now),
            // It was never moved: there is nothing to go back from.
            (None, true) => (Position::AtTarget { since: course.began }, Health::Healthy { since: course.began }),
            (None, false) if settled => (Position::Old, Health::Healthy { since: course.began }),
            (None, false) => (Position::Old, Health::Unhealthy { since: course.began }),
        };
        Member { name: self.name.clone(), position, health }
    }

    fn asked(mark: &ReleaseMark, progress: &WorkloadProgress, now: Timestamp) -> (Position, Health) {
        let failed = match (&mark.error, progress) {
            (Some(error), _) => Some(error.clone()),
            (None, WorkloadProgress::Failed { why }) => Some(why.clone()),
            (None, WorkloadProgress::Settled | WorkloadProgress::Rolling) => None,
        };
        let arrived = mark.arrived.as_ref().map(|time| time.0);
        let is_settled = *progress == WorkloadProgress::Settled;
        let position = match (arrived, is_settled && failed.is_none()) {
            (Some(since), _) => Position::AtTarget { since },
            (None, true) => Position::AtTarget { since: now },
            (None, false) => Position::Moving { since: mark.since.0 },
        };
        let unready = mark.unready.as_ref().map(|time| time.0);
        let health = match (failed, is_settled) {
            (Some(why), _) => Health::Failed { since: mark.since.0, why },
            (None, true) => Health::Healthy { since: if unready.is_some() { now } else { arrived.unwrap_or(now) } },
            (None, false) => Health::Unhealthy { since: unready.unwrap_or(now) },
        };
        (position, health)
    }

    /// What is to be noted about a workload that was asked before: that it arrived, is no longer ready, or is ready again.
    pub fn note(&self, course: &WorkloadCourse<'_>, now: Timestamp) -> Option<WorkloadMove> {
        let mark = self.mark.as_ref().filter(|mark| self.is_asked(course) && mark.error.is_none())?;
        let (arrived, unready) = match (&self.progress, &mark.arrived, &mark.unready) {
            (WorkloadProgress::Settled, None, _) | (WorkloadProgress::Settled, Some(_), Some(_)) => {
                (Some(Time(now)), None)
            }
            (WorkloadProgress::Rolling | WorkloadProgress::Failed { .. }, Some(arrived), None) => {
                (Some(arrived.clone()), Some(Time(now)))
            }
            _ => return None,
        };
        let mark = ReleaseMark { arrived, unready, ..mark.clone() };
        Some(WorkloadMove::Note { workload: self.name.clone(), mark })
    }

    /// How the workload is brought to the target.
    pub fn start(&self, course: &WorkloadCourse<'_>) -> WorkloadMove {
        let (workload, version) = (self.name.clone(), course.target.to_owned());
        if course.is_rollback {
            let recorded = self.restores(course).map(|own| own.version.clone()).unwrap_or_default();
            return WorkloadMove::Restore { workload, version, recorded };
        }
        // The Release says what it said when another version was applied: this one is an earlier version, not a new change.
        let is_unedited = self.mark.as_ref().is_some_and(|mark| mark.change == self.change && mark.version != version);
        match self.history.find(&version).filter(|_| is_unedited) {
            Some(recorded) => WorkloadMove::Restore { workload, version, recorded: recorded.version.clone() },
            None => WorkloadMove::Change { workload, version },
        }
    }

    /// The version that it has now, under which its template is recorded.
    pub fn version(&self) -> &str {
        self.mark.as_ref().map_or(UNRELEASED, |mark| &mark.version)
    }
}

/// The strategic merge patch of a template that a change means, or why it does not apply to it.
pub fn template_patch(change: &WorkloadChange, template: &Value, version: &str) -> Result<Value, String> {
    if let Some(patch) = &change.patch {
        return Ok(expand(patch.clone(), version));
    }
    let mut patch = json!({});
    for (name, image) in &change.images {
        let lists = ["containers", "initContainers"];
        let has = |list: &&str| {
            let containers = template["spec"][*list].as_array().into_iter().flatten();
            containers.into_iter().any(|container| container["name"] == **name)
        };
        let list = lists.into_iter().find(|list| has(list)).ok_or_else(|| format!("has no container {name:?}"))?;
        let image = image.replace(VERSION_VARIABLE, version);
        let containers = patch["spec"][list].take();
        let mut containers = containers.as_array().cloned().unwrap_or_default();
        containers.push(json!({"name": name, "image": image}));
        patch["spec"][list] = containers.into();
    }
    Ok(patch)
}

/// With the version in place of its variable, in all texts.
fn expand(value: Value, version: &str) -> Value {
    match value {
        Value::String(text) => Value::String(text.replace(VERSION_VARIABLE, version)),
        Value::Array(items) => items.into_iter().map(|item| expand(item, version)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, expand(value, version))).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn mark(version: &str, change: &str) -> ReleaseMark {
        ReleaseMark {
            release: "all".into(),
            version: version.into(),
            change: change.into(),
            since: Time(time(0)),
            arrived: None,
            unready: None,
            error: None,
        }
    }

    fn view(mark: Option<ReleaseMark>, progress: WorkloadProgress) -> WorkloadView {
        let history = TemplateHistory::default().with(UNRELEASED, json!({"spec": 0}));
        WorkloadView { name: "deployment/shop/web".into(), mark, history, progress, change: "c".into() }
    }

    fn to(target: &str) -> WorkloadCourse<'_> {
        WorkloadCourse { target, began: time(0), is_rollback: false }
    }

    #[test]
    fn a_workload_moves_arrives_degrades_and_recovers() {
        use WorkloadProgress::{Rolling, Settled};
        let course = to("v2");
        let old = view(None, Settled);
        assert!(matches!(old.member(&course, time(9)).position, Position::Old));
        let change = WorkloadMove::Change { workload: "deployment/shop/web".into(), version: "v2".into() };
        assert_eq!((old.start(&course), old.note(&course, time(9))), (change, None));
        let edited = view(Some(mark("v2", "other")), Settled);
        assert!(
            matches!(edited.member(&course, time(9)).position, Position::Old),
            "the Release says something else now"
        );

        let moving = view(Some(mark("v2", "c")), Rolling).member(&course, time(9));
        assert_eq!(moving.position, Position::Moving { since: time(0) });
        let here = view(Some(mark("v2", "c")), Settled);
        let noted = ReleaseMark { arrived: Some(Time(time(9))), ..mark("v2", "c") };
        assert_eq!(here.member(&course, time(9)).position, Position::AtTarget { since: time(9) });
        let note = |mark: ReleaseMark| Some(WorkloadMove::Note { workload: "deployment/shop/web".into(), mark });
        assert_eq!(here.note(&course, time(9)), note(noted.clone()));
        let known = view(Some(noted.clone()), Settled);
        assert_eq!(known.note(&course, time(99)), None, "once");
        assert_eq!(known.member(&course, time(99)).health, Health::Healthy { since: time(9) });

        let degraded = view(Some(noted.clone()), Rolling);
        let unready = ReleaseMark { unready: Some(Time(time(50))), ..noted.clone() };
        assert_eq!(degraded.note(&course, time(50)), note(unready.clone()));
        let known = view(Some(unready.clone()), Rolling);
        assert_eq!(
            (known.note(&course, time(60)), known.member(&course, time(60)).health),
            (None, Health::Unhealthy { since: time(50) })
        );
        let again = view(Some(unready), Settled);
        assert_eq!(again.note(&course, time(70)), note(ReleaseMark { arrived: Some(Time(time(70))), ..noted }));
    }

    #[test]
    fn a_change_that_is_refused_or_given_up_has_failed() {
        let refused = ReleaseMark { error: Some("spec.x: Invalid".into()), ..mark("v2", "c") };
        let failed = |view: &WorkloadView| match view.member(&to("v2"), time(9)).health {
            Health::Failed { why, .. } => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(&view(Some(refused), WorkloadProgress::Settled)), "spec.x: Invalid");
        let gave_up = WorkloadProgress::Failed { why: "ProgressDeadlineExceeded".into() };
        assert_eq!(failed(&view(Some(mark("v2", "c")), gave_up.clone())), "ProgressDeadlineExceeded");
        let other = view(Some(mark("v1", "c")), gave_up).member(&to("v2"), time(9));
        assert!(matches!(other.health, Health::Unhealthy { .. }), "of another version");
    }

    #[test]
    fn going_back_restores_what_was_and_leaves_alone_what_was_never_moved() {
        let course = WorkloadCourse { is_rollback: true, ..to("v1") };
        let never = view(None, WorkloadProgress::Settled).member(&course, time(9));
        assert_eq!(never.position, Position::AtTarget { since: time(0) });
        let mut moved = view(Some(mark("v2", "c")), WorkloadProgress::Rolling);
        assert_eq!(moved.member(&course, time(9)).position, Position::Old);
        let restore = |recorded: &str| WorkloadMove::Restore {
            workload: "deployment/shop/web".into(),
            version: "v1".into(),
            recorded: recorded.into(),
        };
        assert_eq!(moved.start(&course), restore(UNRELEASED), "it came after v1 was everywhere");
        moved.history = moved.history.with("v1", json!({"spec": 1}));
        assert_eq!(moved.start(&course), restore("v1"));
        assert_eq!(moved.start(&to("v1")), restore("v1"), "undo");
        moved.change = "edited".into();
        let change = WorkloadMove::Change { workload: "deployment/shop/web".into(), version: "v1".into() };
        assert_eq!(moved.start(&to("v1")), change, "a new change that is called v1");
        let back = view(Some(mark("v1", "c")), WorkloadProgress::Settled);
        assert!(matches!(back.member(&course, time(9)).position, Position::AtTarget { .. }));
    }

    #[test]
    fn a_history_is_short_and_never_too_large_for_an_annotation() {
        let mut history = TemplateHistory::default();
        for version in ["v1", "v2", "v2", "v3", "v4"] {
            history = history.with(version, json!(version));
        }
        let kept: Vec<&str> = history.0.iter().map(|own| own.version.as_str()).collect();
        assert_eq!(kept, ["v2", "v3", "v4"]);
        let large = history.with("v5", json!("x".repeat(HISTORY_BYTES)));
        assert_eq!(large.0.len(), 1);
        assert_eq!(TemplateHistory::parse(&serde_json::to_string(&large).unwrap()), large);
        assert_eq!(TemplateHistory::parse("odd"), TemplateHistory::default());
    }

    #[test]
    fn a_change_names_containers_that_the_template_has() {
        let template = json!({"spec": {"containers": [{"name": "web"}], "initContainers": [{"name": "init"}]}});
        let change = |fields: Value| -> WorkloadChange { serde_json::from_value(fields).unwrap() };
        let images = change(json!({"images": {"web": "web:$(VERSION)", "init": "init:1"}}));
        let expected = json!({"spec": {
            "containers": [{"name": "web", "image": "web:v2"}], "initContainers": [{"name": "init", "image": "init:1"}],
        }});
        assert_eq!(template_patch(&images, &template, "v2"), Ok(expected));
        let odd = change(json!({"images": {"db": "x"}}));
        assert_eq!(template_patch(&odd, &template, "v2"), Err("has no container \"db\"".to_owned()));
        let patch = change(
            json!({"patch": {"metadata": {"labels": {"version": "$(VERSION)"}}, "spec": {"x": [1, "$(VERSION)"]}}}),
        );
        let expected = json!({"metadata": {"labels": {"version": "v2"}}, "spec": {"x": [1, "v2"]}});
        assert_eq!(template_patch(&patch, &template, "v2"), Ok(expected));
    }
}
