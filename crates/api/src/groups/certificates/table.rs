//! Columns of `certificates.k8s.io/v1`.

use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    duration,
    read::{NONE, age, list, name, text, text_or, texts},
};

pub static CERTIFICATE_SIGNING_REQUESTS: Columns = Columns {
    definitions: &[
        NAME,
        AGE,
        column("SignerName", "Who is asked to sign."),
        column("Requestor", "The user who asked."),
        column("RequestedDuration", "How long the certificate should be valid."),
        column("Condition", "Whether it is approved, denied, failed, issued."),
    ],
    cells: |object, now| {
        let seconds = object.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
        vec![
            name(object),
            age(object, now),
            text_or(object, "/spec/signerName", NONE).into(),
            text(object, "/spec/username").into(),
            seconds.map_or_else(|| NONE.to_owned(), duration::human).into(),
            condition(object).into(),
        ]
    },
};

pub static CLUSTER_TRUST_BUNDLES: Columns = Columns {
    definitions: &[NAME, column("SignerName", "The signer whose certificates it verifies.")],
    cells: |object, _| vec![name(object), text_or(object, "/spec/signerName", NONE).into()],
};

pub static POD_CERTIFICATE_REQUESTS: Columns = Columns {
    definitions: &[
        NAME,
        column("PodName", "The pod that gets the certificate."),
        column("ServiceAccountName", "The service account the pod runs as."),
        column("NodeName", "The node the pod runs on."),
        column("SignerName", "Who is asked to sign."),
        column("State", "Whether it is issued, denied or failed."),
        AGE,
    ],
    cells: |object, now| {
        let has = |kind: &&str| texts(list(object, "/status/conditions"), "/type").any(|has| has == *kind);
        let state = ["Denied", "Failed", "Issued"].into_iter().find(has).unwrap_or("Pending");
        vec![
            name(object),
            text(object, "/spec/podName").into(),
            text(object, "/spec/serviceAccountName").into(),
            text(object, "/spec/nodeName").into(),
            text(object, "/spec/signerName").into(),
            state.into(),
            age(object, now),
        ]
    },
};

fn condition(object: &Value) -> String {
    let has = |kind| texts(list(object, "/status/conditions"), "/type").any(|has| has == kind);
    let mut condition = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    }
    .to_owned();
    if has("Failed") {
        condition.push_str(",Failed");
    }
    if !text(object, "/status/certificate").is_empty() {
        condition.push_str(",Issued");
    }
    condition
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn requests_show_who_asks_whom_and_what_came_of_it() {
        let object = json!({
            "spec": {"signerName": "s", "username": "ann", "expirationSeconds": 86400},
            "status": {"conditions": [{"type": "Approved"}], "certificate": "AA=="},
        });
        assert_eq!(
            row(&CERTIFICATE_SIGNING_REQUESTS, object),
            json!(["x", "5m", "s", "ann", "24h", "Approved,Issued"])
        );
        assert_eq!(
            row(&CERTIFICATE_SIGNING_REQUESTS, json!({})),
            json!(["x", "5m", "<none>", "", "<none>", "Pending"])
        );
    }

    #[test]
    fn a_denial_wins_over_an_approval() {
        let with = |kinds: &[&str]| json!({"status": {"conditions": kinds.iter().map(|kind| json!({"type": kind})).collect::<Vec<_>>()}});
        assert_eq!(condition(&with(&["Approved", "Denied"])), "Denied");
        assert_eq!(condition(&with(&["Approved", "Failed"])), "Approved,Failed");
    }
}
