//! The status of a template: what was planned, and then what became of it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mainstay_api::config_template::{
    CURRENT, ConfigTemplate, ConfigTemplateStatus, HISTORY_LIMIT, HistoryEntry, PROGRESSING, RENDERED, RejectedVersion,
    TargetVersion, result,
};
use mainstay_events::EventNote;

use super::{
    inputs::last_manager,
    plan::{Outcome, RenderFailure, World},
};
use crate::runtime::ApiError;

/// Why consumers have what they have.
#[derive(Clone, Debug, PartialEq)]
pub enum Situation {
    Settled,
    Progressing(String),
    Validating,
    Paused,
    /// What is rendered was rejected; the last good version stays.
    Rejected,
    PinnedUnknown(String),
    /// The version is good, and machines get their file.
    Placing(String),
    /// The version is good, but too many machines cannot have it.
    MachinesFailed(String),
}

pub struct Rejection {
    pub version: String,
    pub reason: &'static str,
    pub message: String,
}

/// The status as planned, with what depends on the outcome of actions.
pub struct Report {
    pub status: ConfigTemplateStatus,
    pub situation: Situation,
    /// Becomes the last good version once the output has it: the version, and how the rollout ended.
    pub accept: Option<(String, String)>,
    /// Machines get their file once it is.
    pub is_placing: bool,
    /// If all goes well the next look, at once, has more to say.
    pub is_interim: bool,
    failure: Option<RenderFailure>,
    has_rendered: bool,
    rejection: Option<Rejection>,
    limit: usize,
    generation: i64,
    begun: Option<String>,
    /// What could not be done for now, and will be tried again.
    failed_call: Option<String>,
}

impl Report {
    pub fn begin(world: &World) -> Self {
        let template = &world.template;
        let mut status = template.status.clone().unwrap_or_default();
        let generation = template.metadata.generation.unwrap_or_default();
        if status.observed_generation != generation {
            status.rejected = None; // whoever changes the template has it tried again
        }
        let (mut failure, mut has_rendered) = (None, false);
        if let Some(rendered) = &world.rendered {
            has_rendered = true;
            failure = rendered.result.as_ref().err().cloned();
            if failure.is_none() {
                status.inputs = rendered.digests.clone();
            }
        }
        let limit = template.spec.history_limit.unwrap_or(HISTORY_LIMIT);
        let limit = usize::try_from(limit).unwrap_or(1).max(1);
        let situation = Situation::Settled;
        let (accept, is_placing, rejection, begun) = (None, false, None, None);
        let failed_call = None;
        Self {
            status,
            situation,
            accept,
            is_placing,
            is_interim: false,
            failure,
            has_rendered,
            rejection,
            limit,
            generation,
            begun,
            failed_call,
        }
    }

    /// What changed since the template was last rendered, and who wrote that where known.
    pub fn changes(&self, world: &World) -> (Vec<String>, Option<String>) {
        let template = &world.template;
        let Some(rendered) = &world.rendered else { return Default::default() };
        let Some(before) = &template.status else {
            return (vec!["template".to_owned()], last_manager(&template.metadata));
        };
        let is_other = |(name, digest): &(&String, &String)| before.inputs.get(*name) != Some(*digest);
        let mut changed: Vec<String> = rendered.digests.iter().filter(is_other).map(|(name, _)| name.clone()).collect();
        let manager = changed.iter().find_map(|name| rendered.managers.get(name).cloned());
        if before.observed_generation != self.generation {
            changed.insert(0, "template".to_owned());
            return (changed, last_manager(&template.metadata));
        }
        (changed, manager)
    }

    /// A version is on its way from now on; what was on its way before is not.
    pub fn begin_target(
        &mut self,
        target: TargetVersion,
        changed: Vec<String>,
        manager: Option<String>,
        now: Timestamp,
    ) {
        self.abandon_target();
        let (version, result) = (target.version.clone(), result::PROGRESSING.to_owned());
        let entry = HistoryEntry { version, time: Time(now), changed, manager, result, message: String::new() };
        self.status.history.insert(0, entry);
        self.status.history.truncate(self.limit);
        self.begun = Some(target.version.clone());
        self.status.target = Some(target);
    }

    /// What was on its way is not wanted any longer.
    pub fn abandon_target(&mut self) {
        if let Some(target) = self.status.target.take() {
            self.conclude(&target.version, result::SUPERSEDED, String::new());
        }
    }

    fn conclude(&mut self, version: &str, result: &str, message: String) {
        let is_open = |entry: &&mut HistoryEntry| entry.version == version && entry.result == result::PROGRESSING;
        if let Some(entry) = self.status.history.iter_mut().find(is_open) {
            (entry.result, entry.message) = (result.to_owned(), message);
        }
    }

    /// Consumers that read the version return to the last good one.
    pub fn reject(&mut self, rejection: Rejection, now: Timestamp) {
        let Rejection { version, reason, message } = &rejection;
        let result = if *reason == "ValidationFailed" { result::INVALID } else { result::ROLLED_BACK };
        self.conclude(version, result, message.clone());
        self.status.target = None;
        self.status.rejected = Some(RejectedVersion {
            version: version.clone(),
            time: Time(now),
            reason: (*reason).to_owned(),
            message: message.clone(),
        });
        self.situation = Situation::Rejected;
        self.rejection = Some(rejection);
    }

    /// The status once the actions were tried, and events about what is new in it.
    pub fn finish(
        mut self,
        template: &ConfigTemplate,
        outcomes: &[Result<Outcome, ApiError>],
        now: Timestamp,
    ) -> (ConfigTemplateStatus, Vec<EventNote>) {
        let mut events = Vec::new();
        let mut refused = None;
        self.failed_call = outcomes.iter().find_map(|outcome| outcome.as_ref().err()).map(ApiError::chain);
        for outcome in outcomes.iter().flatten() {
            match outcome {
                Outcome::Valid => {
                    self.status.target.iter_mut().for_each(|target| target.validated = true);
                }
                Outcome::Invalid(message) => {
                    if let Some(target) = &self.status.target {
                        let version = target.version.clone();
                        let rejection = Rejection { version, reason: "ValidationFailed", message: message.clone() };
                        self.reject(rejection, now);
                    }
                }
                Outcome::Refused(message) => refused = Some(message.clone()),
                Outcome::Done | Outcome::Written | Outcome::Blocked => {}
            }
        }
        let written = outcomes.iter().flatten().any(|outcome| *outcome == Outcome::Written);
        if let Some((version, message)) = self.accept.take().filter(|_| written) {
            self.conclude(&version, result::SUCCEEDED, message.clone());
            self.status.target = None;
            if self.status.rejected.as_ref().is_some_and(|rejected| rejected.version == version) {
                self.status.rejected = None;
            }
            events.push(EventNote::normal("ConfigurationCurrent", format!("Version {version}: {message}")));
            self.status.version = Some(version);
            self.situation = match self.is_placing {
                true => Situation::Placing("machines get the file".to_owned()),
                false => Situation::Settled,
            };
        } else if let Some(version) = &self.begun {
            events.push(EventNote::normal("ConfigurationRendered", format!("Version {version} is on its way")));
        }
        if let Some(Rejection { version, reason, message }) = &self.rejection {
            let back = self.status.version.as_deref().unwrap_or("none");
            let note = format!("Version {version} was taken back to {back}: {message}");
            events.push(EventNote::warning(
                if *reason == "ValidationFailed" { "ValidationFailed" } else { "ConfigurationRolledBack" },
                note,
            ));
        }
        self.status.observed_generation = self.generation;
        self.set_conditions(template, refused, now, &mut events);
        (self.status, events)
    }

    fn set_conditions(
        &mut self,
        template: &ConfigTemplate,
        refused: Option<String>,
        now: Timestamp,
        events: &mut Vec<EventNote>,
    ) {
        let render_failure = self.failure.as_ref().map(|failure| match failure {
            RenderFailure::InputMissing(message) => ("InputMissing", message.clone()),
            RenderFailure::Template(error) => ("RenderFailed", format!("spec.template: {error}")),
        });
        if self.has_rendered {
            let (status, reason, message) = match &render_failure {
                Some((reason, message)) => ("False", *reason, message.clone()),
                None => ("True", "Rendered", String::new()),
            };
            if self.set_condition(RENDERED, status, reason, message.clone(), now) && status == "False" {
                events.push(EventNote::warning(reason, message));
            }
        }
        let rejected = self
            .status
            .rejected
            .as_ref()
            .map(|own| (own.reason.clone(), format!("version {}: {}", own.version, own.message)));
        let version = self.status.version.as_deref().unwrap_or("none");
        let (progressing, current, reason, message): (&str, &str, String, String) = if let Some(message) = refused {
            ("False", "False", "Conflict".to_owned(), message)
        } else {
            match (&self.situation, rejected, render_failure) {
                (Situation::Rejected, Some((reason, message)), _) => {
                    ("False", "False", reason, format!("{message}; consumers have {version}"))
                }
                (Situation::PinnedUnknown(pinned), ..) => {
                    let message = format!("spec.pinnedVersion: there is no version {pinned} any longer");
                    ("False", "False", "UnknownVersion".to_owned(), message)
                }
                (Situation::Paused, ..) => ("False", "False", "Paused".to_owned(), "spec.paused is set".to_owned()),
                (Situation::Validating, ..) => {
                    ("True", "False", "Validating".to_owned(), self.failed_call.clone().unwrap_or_default())
                }
                (Situation::Progressing(message), ..) => {
                    let parts = [Some(message.clone()), self.failed_call.clone()];
                    let message = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
                    ("True", "False", "Progressing".to_owned(), message)
                }
                (_, _, Some((reason, message))) => {
                    ("False", "False", reason.to_owned(), format!("{message}; consumers have {version}"))
                }
                (Situation::MachinesFailed(message), ..) => {
                    ("False", "False", "MachinesFailed".to_owned(), message.clone())
                }
                (Situation::Placing(message), ..) => ("True", "False", "Placing".to_owned(), message.clone()),
                (Situation::Settled | Situation::Rejected, ..) if self.status.target.is_some() => {
                    ("True", "False", "Progressing".to_owned(), String::new())
                }
                (Situation::Settled | Situation::Rejected, ..) if template.spec.pinned_version.is_some() => {
                    ("False", "True", "Pinned".to_owned(), format!("spec.pinnedVersion is {version}"))
                }
                (Situation::Settled | Situation::Rejected, ..) => {
                    ("False", "True", "Current".to_owned(), String::new())
                }
            }
        };
        if self.set_condition(CURRENT, current, &reason, message.clone(), now) && reason == "Conflict" {
            events.push(EventNote::warning("Conflict", message.clone()));
        }
        self.set_condition(PROGRESSING, progressing, &reason, message, now);
    }

    /// Says whether the reason or the message is news.
    fn set_condition(&mut self, type_: &str, status: &str, reason: &str, message: String, now: Timestamp) -> bool {
        let conditions = &mut self.status.conditions;
        let old = conditions.iter().find(|condition| condition.type_ == type_);
        let since = old.filter(|old| old.status == status).map_or(Time(now), |old| old.last_transition_time.clone());
        let is_news = old.is_none_or(|old| old.reason != reason || old.message != message);
        let condition = Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: since,
            observed_generation: Some(self.generation),
        };
        match conditions.iter_mut().find(|condition| condition.type_ == type_) {
            Some(old) => *old = condition,
            None => conditions.push(condition),
        }
        is_news
    }
}
