//! Rules about nodes that agents and controllers must agree on.

use k8s_openapi::api::core::v1::Node;

/// Whether the node's `Ready` condition is true; `Unknown` and a missing one are not.
pub fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_true_condition_makes_a_node_ready() {
        let node = |conditions: serde_json::Value| -> Node {
            serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": conditions } })).unwrap()
        };
        for (status, ready) in [("True", true), ("False", false), ("Unknown", false)] {
            assert_eq!(is_ready(&node(json!([{ "type": "Ready", "status": status }]))), ready, "{status}");
        }
        assert!(!is_ready(&node(json!([{ "type": "MemoryPressure", "status": "True" }]))));
        assert!(!is_ready(&Node::default()));
    }
}
