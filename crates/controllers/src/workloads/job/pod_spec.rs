//! The pods of a Job as they are created.

use k8s_openapi::api::batch::v1::Job;
use serde_json::{Map, Value, json};

use super::{
    plan::Slot,
    view::{INDEX, INDEX_FAILURES, INDEX_IGNORED},
};
use crate::workloads::{controller_ref::Owner, pod_template};

const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";

pub fn pod(owner: &Owner, job: &Job, slot: &Slot) -> Value {
    let template = job.spec.as_ref().map(|spec| serde_json::to_value(&spec.template).unwrap_or_default());
    let mut pod = pod_template::pod(owner, &template.unwrap_or_default(), &slot.name);
    if let Some(index) = slot.index {
        give_index(&mut pod, &owner.key.name, index);
    }
    if let Some((failures, ignored)) = slot.failures {
        let annotations = entry(&mut pod["metadata"], "annotations");
        annotations.insert(INDEX_FAILURES.to_owned(), json!(failures.to_string()));
        if ignored > 0 {
            annotations.insert(INDEX_IGNORED.to_owned(), json!(ignored.to_string()));
        }
    }
    pod
}

/// The index is in an annotation, a label, a variable and the host name.
fn give_index(pod: &mut Value, job: &str, index: usize) {
    for field in ["annotations", "labels"] {
        entry(&mut pod["metadata"], field).insert(INDEX.to_owned(), json!(index.to_string()));
    }
    pod["metadata"]["generateName"] = json!(format!("{job}-{index}-"));
    pod["spec"]["hostname"] = json!(format!("{job}-{index}"));
    let variable = json!({ "name": INDEX_VARIABLE, "valueFrom": { "fieldRef": { "fieldPath": format!("metadata.labels['{INDEX}']") } } });
    for field in ["initContainers", "containers"] {
        for container in pod["spec"][field].as_array_mut().into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let variables = container.entry("env").or_insert_with(|| json!([]));
            if let Some(variables) = variables.as_array_mut()
                && !variables.iter().any(|known| known["name"] == INDEX_VARIABLE)
            {
                variables.push(variable.clone());
            }
        }
    }
    // A path the pod's author may not have written is not left empty.
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.retain(|field, value| field != "initContainers" || !value.is_null());
    }
}

fn entry<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    if !object[field].is_object() {
        object[field] = json!({});
    }
    object[field].as_object_mut().expect("it was made one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::controller_ref::OwnerKind;

    #[test]
    fn an_index_shows_in_all_places() {
        let job: Job = serde_json::from_value(json!({
            "metadata": { "name": "j", "namespace": "ns", "uid": "u" },
            "spec": { "template": {
                "metadata": { "labels": { "a": "b" } },
                "spec": { "containers": [
                    { "name": "one", "image": "i" },
                    { "name": "two", "image": "i", "env": [{ "name": "JOB_COMPLETION_INDEX", "value": "own" }] },
                ] },
            } },
        }))
        .unwrap();
        let owner = Owner::new(&OwnerKind::with_finalizer::<Job>("job-controller", Some("f")), &job.metadata);
        let slot = Slot { job: "u".into(), name: "j-3-x".into(), index: Some(3), failures: Some((2, 1)) };
        let pod = pod(&owner, &job, &slot);
        assert_eq!(pod["metadata"]["labels"], json!({ "a": "b", INDEX: "3" }));
        let annotations = json!({ INDEX: "3", INDEX_FAILURES: "2", INDEX_IGNORED: "1" });
        assert_eq!(pod["metadata"]["annotations"], annotations);
        assert_eq!(pod["metadata"]["finalizers"], json!(["f"]));
        assert_eq!(pod["metadata"]["generateName"], "j-3-");
        assert_eq!(pod["spec"]["hostname"], "j-3");
        let path = "metadata.labels['batch.kubernetes.io/job-completion-index']";
        assert_eq!(pod["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], path);
        assert_eq!(pod["spec"]["containers"][1]["env"], json!([{ "name": "JOB_COMPLETION_INDEX", "value": "own" }]));
        assert!(pod["spec"].get("initContainers").is_none());
    }

    #[test]
    fn without_indexes_it_is_the_template() {
        let template = json!({ "metadata": {}, "spec": { "containers": [{ "name": "one", "image": "i" }] } });
        let job =
            json!({ "metadata": { "name": "j", "namespace": "ns", "uid": "u" }, "spec": { "template": template } });
        let job: Job = serde_json::from_value(job).unwrap();
        let owner = Owner::new(&OwnerKind::new::<Job>("job-controller"), &job.metadata);
        let slot = Slot { job: "u".into(), name: "j-x".into(), index: None, failures: None };
        assert_eq!(pod(&owner, &job, &slot)["spec"], template["spec"]);
    }
}
