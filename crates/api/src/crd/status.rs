//! The status of a CustomResourceDefinition: which names it has, its conditions, and the versions that objects are stored as.
//!
//! A pure function of the definition and of the names that others in its group have. It runs within the write of a definition, so that who
//! creates one finds it established, and again whenever names become free.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

pub const NAMES_ACCEPTED: &str = "NamesAccepted";
pub const ESTABLISHED: &str = "Established";
pub const TERMINATING: &str = "Terminating";
const API_APPROVED: &str = "KubernetesAPIApprovalPolicyConformant";
pub const API_APPROVED_ANNOTATION: &str = "api-approved.kubernetes.io";

/// Names that are taken in a group: by the accepted names of other definitions, and by built-in kinds.
#[derive(Clone, Debug, Default)]
pub struct TakenNames {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
}

impl TakenNames {
    pub fn take_resource(&mut self, name: &str) {
        self.resources.insert(name.to_owned());
    }

    pub fn take_kind(&mut self, name: &str) {
        self.kinds.insert(name.to_owned());
    }

    /// Takes the names of `status.acceptedNames`.
    pub fn take_accepted(&mut self, names: &Value) {
        let text = |name: &str| names[name].as_str().filter(|text| !text.is_empty());
        let short = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let resources = text("plural").into_iter().chain(text("singular")).chain(short);
        self.resources.extend(resources.map(str::to_owned));
        self.kinds.extend(text("kind").into_iter().chain(text("listKind")).map(str::to_owned));
    }
}

pub fn condition_is_true(definition: &Value, name: &str) -> bool {
    condition(definition, name).is_some_and(|condition| condition["status"] == "True")
}

fn condition<'a>(definition: &'a Value, name: &str) -> Option<&'a Value> {
    definition["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == name)
}

/// Whether a group belongs to the Kubernetes project, so that its definitions need approval.
pub fn is_protected_group(group: &str) -> bool {
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')))
}

/// Whether a definition in a protected group is approved, as its annotation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    Approved,
    /// `unapproved…`: knowingly without.
    Bypassed,
    Missing,
    Invalid,
}

pub fn approval(definition: &Value) -> (Approval, String) {
    let annotation = definition["metadata"]["annotations"][API_APPROVED_ANNOTATION].as_str().unwrap_or_default();
    match annotation {
        "" => (
            Approval::Missing,
            format!(
                "protected groups must have approval annotation {API_APPROVED_ANNOTATION:?}, see \
                 https://github.com/kubernetes/enhancements/pull/1111"
            ),
        ),
        text if text.starts_with("unapproved") => (Approval::Bypassed, format!("not approved: {text:?}")),
        text if is_url(text) => (Approval::Approved, format!("approved in {text}")),
        _ => (
            Approval::Invalid,
            format!(
                "protected groups must have approval annotation {API_APPROVED_ANNOTATION:?} with either a URL or a reason \
                 starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            ),
        ),
    }
}

fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric()) && !host.is_empty() && !text.contains(' ')
}

/// The status that a definition should have. `taken` does not include its own names.
pub fn plan(definition: &Value, taken: &TakenNames, now: Timestamp) -> Value {
    let mut status = definition["status"].as_object().cloned().unwrap_or_default();
    let (names, accepted) = accept_names(definition, taken);
    status.insert("acceptedNames".to_owned(), names);
    let mut conditions: Vec<Value> = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let are_accepted = accepted.is_none();
    let (reason, message) = accepted.unwrap_or(("NoConflicts", "no conflicts found".to_owned()));
    set_condition(&mut conditions, NAMES_ACCEPTED, are_accepted, reason, &message, now);
    let is_established = condition_is_true(definition, ESTABLISHED);
    if !is_established && are_accepted {
        let message = "the initial names have been accepted";
        set_condition(&mut conditions, ESTABLISHED, true, "InitialNamesAccepted", message, now);
    } else if !is_established {
        set_condition(&mut conditions, ESTABLISHED, false, "NotAccepted", "not all names are accepted", now);
    }
    if is_protected_group(definition["spec"]["group"].as_str().unwrap_or_default()) {
        let (approval, message) = approval(definition);
        let reason = match approval {
            Approval::Approved => "ApprovedAnnotation",
            Approval::Bypassed => "UnapprovedAnnotation",
            Approval::Missing => "MissingAnnotation",
            Approval::Invalid => "InvalidAnnotation",
        };
        set_condition(&mut conditions, API_APPROVED, approval == Approval::Approved, reason, &message, now);
    }
    status.insert("conditions".to_owned(), conditions.into());
    add_stored_version(&mut status, &definition["spec"]);
    Value::Object(status)
}

/// The version that is now stored is one that was ever stored.
pub fn add_stored_version(status: &mut Map<String, Value>, spec: &Value) {
    let versions = spec["versions"].as_array().into_iter().flatten();
    let Some(storage) = versions.into_iter().find(|version| version["storage"] == true) else { return };
    let stored = status.entry("storedVersions").or_insert_with(|| json!([]));
    if let Some(stored) = stored.as_array_mut().filter(|stored| !stored.contains(&storage["name"])) {
        stored.push(storage["name"].clone());
    }
}

/// Marks a definition whose objects are about to be deleted.
pub fn mark_terminating(definition: &mut Value, reason: &str, message: &str, now: Timestamp) {
    let mut conditions = definition["status"]["conditions"].as_array().cloned().unwrap_or_default();
    set_condition(&mut conditions, TERMINATING, true, reason, message, now);
    definition["status"]["conditions"] = conditions.into();
}

pub const DELETION_PENDING: (&str, &str) = (
    "InstanceDeletionPending",
    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
);
pub const DELETION_IN_PROGRESS: (&str, &str) = ("InstanceDeletionInProgress", "CustomResource deletion is in progress");

fn set_condition(conditions: &mut Vec<Value>, name: &str, is_true: bool, reason: &str, message: &str, now: Timestamp) {
    let status = if is_true { "True" } else { "False" };
    let mut new = json!({
        "type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": now.to_string(),
    });
    match conditions.iter_mut().find(|condition| condition["type"] == name) {
        Some(old) => {
            if old["status"] == status {
                new["lastTransitionTime"] = old["lastTransitionTime"].clone();
            }
            *old = new;
        }
        None => conditions.push(new),
    }
}

type Conflict = (&'static str, String);

/// The names a definition gets, and the last conflict, if any: a name that is taken stays as it was.
fn accept_names(definition: &Value, taken: &TakenNames) -> (Value, Option<Conflict>) {
    let requested = &definition["spec"]["names"];
    let before = &definition["status"]["acceptedNames"];
    let mut names = before.as_object().cloned().unwrap_or_default();
    let mut conflict = None;
    let text = |names: &Value, field: &str| names[field].as_str().unwrap_or_default().to_owned();
    let scalars = [
        ("plural", "PluralConflict", &taken.resources),
        ("singular", "SingularConflict", &taken.resources),
        ("kind", "KindConflict", &taken.kinds),
        ("listKind", "ListKindConflict", &taken.kinds),
    ];
    for (field, reason, used) in scalars {
        let (wanted, had) = (text(requested, field), text(before, field));
        if wanted != had && used.contains(&wanted) {
            conflict = Some((reason, format!("{wanted:?} is already in use")));
        } else {
            names.insert(field.to_owned(), wanted.into());
        }
        if field == "singular" {
            accept_short_names(requested, before, taken, &mut names, &mut conflict);
        }
    }
    // What has no name yet has none at all, as clients in Go read it.
    for field in ["plural", "kind"] {
        names.entry(field).or_insert_with(|| "".into());
    }
    match requested.get("categories") {
        Some(categories) => names.insert("categories".to_owned(), categories.clone()),
        None => names.remove("categories"),
    };
    (Value::Object(names), conflict)
}

fn accept_short_names(
    requested: &Value,
    before: &Value,
    taken: &TakenNames,
    names: &mut Map<String, Value>,
    conflict: &mut Option<Conflict>,
) {
    let list = |names: &Value| -> Vec<String> {
        let listed = names["shortNames"].as_array().into_iter().flatten();
        listed.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let (wanted, had) = (list(requested), list(before));
    let in_use = wanted.iter().filter(|name| !had.contains(name) && taken.resources.contains(*name));
    let in_use: Vec<String> = in_use.map(|name| format!("{name:?} is already in use")).collect();
    match in_use.as_slice() {
        [] if wanted.is_empty() => drop(names.remove("shortNames")),
        [] => drop(names.insert("shortNames".to_owned(), wanted.into())),
        [one] => *conflict = Some(("ShortNamesConflict", one.clone())),
        many => *conflict = Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn definition(group: &str) -> Value {
        json!({
            "metadata": {"name": format!("foos.{group}")},
            "spec": {
                "group": group,
                "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList", "shortNames": ["f"]},
                "versions": [{"name": "v1", "served": true, "storage": true}],
            },
        })
    }

    fn conditions(status: &Value) -> Vec<String> {
        let listed = status["conditions"].as_array().unwrap().iter();
        let text = |c: &Value| format!("{}={} {}", c["type"], c["status"], c["reason"]).replace('"', "");
        listed.map(text).collect()
    }

    #[test]
    fn free_names_are_accepted_and_establish_the_definition() {
        let mut crd = definition("example.com");
        crd["status"] = plan(&crd, &TakenNames::default(), NOW);
        assert_eq!(
            conditions(&crd["status"]),
            ["NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"]
        );
        assert_eq!(crd["status"]["acceptedNames"], crd["spec"]["names"]);
        assert_eq!(crd["status"]["storedVersions"], json!(["v1"]));
        let later = "2030-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(plan(&crd, &TakenNames::default(), later), crd["status"], "a settled status does not change");
    }

    #[test]
    fn names_that_are_taken_are_refused_until_they_are_free() {
        let mut taken = TakenNames::default();
        taken.take_accepted(&json!({"plural": "others", "singular": "other", "shortNames": ["f"], "kind": "Foo", "listKind": "OtherList"}));
        let mut crd = definition("example.com");
        crd["status"] = plan(&crd, &taken, NOW);
        assert_eq!(conditions(&crd["status"]), ["NamesAccepted=False KindConflict", "Established=False NotAccepted"]);
        assert_eq!(crd["status"]["conditions"][0]["message"], "\"Foo\" is already in use");
        assert_eq!(
            crd["status"]["acceptedNames"],
            json!({"plural": "foos", "singular": "foo", "kind": "", "listKind": "FooList"})
        );
        let free = plan(&crd, &TakenNames::default(), NOW);
        assert_eq!(conditions(&free), ["NamesAccepted=True NoConflicts", "Established=True InitialNamesAccepted"]);
    }

    #[test]
    fn an_established_definition_stays_so_when_it_asks_for_a_taken_name() {
        let mut crd = definition("example.com");
        crd["status"] = plan(&crd, &TakenNames::default(), NOW);
        crd["spec"]["names"]["shortNames"] = json!(["f", "g"]);
        let mut taken = TakenNames::default();
        taken.take_resource("g");
        let status = plan(&crd, &taken, NOW);
        assert_eq!(
            conditions(&status),
            ["NamesAccepted=False ShortNamesConflict", "Established=True InitialNamesAccepted"]
        );
        assert_eq!(status["acceptedNames"]["shortNames"], json!(["f"]));
    }

    #[test]
    fn protected_groups_say_whether_they_are_approved() {
        for (group, expected) in [
            ("k8s.io", true),
            ("a.k8s.io", true),
            ("b.kubernetes.io", true),
            ("xk8s.io", false),
            ("example.com", false),
        ] {
            assert_eq!(is_protected_group(group), expected, "{group}");
        }
        let mut crd = definition("a.k8s.io");
        for (annotation, expected) in [
            (json!("https://github.com/kubernetes/kubernetes/pull/1"), Approval::Approved),
            (json!("unapproved, experimental"), Approval::Bypassed),
            (json!("yes"), Approval::Invalid),
            (json!(null), Approval::Missing),
        ] {
            crd["metadata"]["annotations"] = json!({ API_APPROVED_ANNOTATION: annotation });
            assert_eq!(approval(&crd).0, expected, "{annotation}");
        }
        let status = plan(&crd, &TakenNames::default(), NOW);
        assert_eq!(conditions(&status)[2], "KubernetesAPIApprovalPolicyConformant=False MissingAnnotation");
    }
}
