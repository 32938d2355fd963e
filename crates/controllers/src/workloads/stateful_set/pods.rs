//! The pod of an ordinal: the template with a name, a place in the set, and volumes of its own.

use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::PodTemplateSpec};
use serde_json::{Value, json};

use super::{
    desired::{Desired, Ordinal},
    plan::{POD_INDEX, POD_NAME},
};
use crate::workloads::{controller_history::HASH, controller_ref::Owner, pod_template};

pub fn make(
    owner: &Owner,
    set: &StatefulSet,
    template: &PodTemplateSpec,
    mark: &str,
    want: &Desired,
    ordinal: Ordinal,
) -> Value {
    let name = want.pod(ordinal);
    let template = serde_json::to_value(template).unwrap_or_default();
    let mut pod = pod_template::pod(owner, &template, &name);
    for (key, value) in labels(want, ordinal).into_iter().chain([(HASH, mark.to_owned())]) {
        pod["metadata"]["labels"][key] = json!(value);
    }
    let service = set.spec.service_name.clone().unwrap_or_default();
    pod["spec"]["hostname"] = json!(name);
    if !service.is_empty() {
        pod["spec"]["subdomain"] = json!(service);
    }
    let claimed = want.claims.iter().map(
        |template| json!({ "name": template, "persistentVolumeClaim": { "claimName": want.claim(template, ordinal) } }),
    );
    let given = pod["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let others = given.into_iter().filter(|volume| !want.claims.iter().any(|claim| volume["name"] == claim.as_str()));
    let volumes: Vec<Value> = claimed.chain(others).collect();
    if !volumes.is_empty() {
        pod["spec"]["volumes"] = json!(volumes);
    }
    pod
}

/// What says which one of the set it is.
pub fn labels(want: &Desired, ordinal: Ordinal) -> [(&'static str, String); 2] {
    [(POD_NAME, want.pod(ordinal)), (POD_INDEX, ordinal.to_string())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::controller_ref::OwnerKind;

    #[test]
    fn a_pod_has_the_name_the_host_and_the_volumes_of_its_ordinal() {
        let set = json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "me" },
            "spec": {
                "selector": {}, "serviceName": "web-all",
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": {
                        "containers": [{ "name": "c" }],
                        "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} }],
                    },
                },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" } }],
            },
        });
        let set: StatefulSet = serde_json::from_value(set).unwrap();
        let owner = Owner::new(&OwnerKind::new::<StatefulSet>("statefulset-controller"), &set.metadata);
        let pod = make(&owner, &set, &set.spec.template, "web-abc", &Desired::from_set(&set), 2);
        let labels = json!({ "app": "web", POD_NAME: "web-2", POD_INDEX: "2", HASH: "web-abc" });
        assert_eq!(pod["metadata"]["labels"], labels);
        assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("web-2"), &json!("web-all")));
        let volumes = json!([
            { "name": "data", "persistentVolumeClaim": { "claimName": "data-web-2" } }, { "name": "tmp", "emptyDir": {} },
        ]);
        assert_eq!(pod["spec"]["volumes"], volumes);
    }
}
