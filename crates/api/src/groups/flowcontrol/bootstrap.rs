//! The FlowSchemas and PriorityLevelConfigurations every cluster starts with.
//!
//! The mandatory ones are always there and always the same, so that every request has a priority level and
//! administrators are never limited. The suggested ones are made once and kept as upstream suggests them while they are
//! marked [`AUTO_UPDATE`].

use k8s_openapi::{
    api::flowcontrol::v1::{
        ExemptPriorityLevelConfiguration, FlowDistinguisherMethod, FlowSchema, FlowSchemaSpec, GroupSubject,
        LimitResponse, LimitedPriorityLevelConfiguration, NonResourcePolicyRule, PolicyRulesWithSubjects,
        PriorityLevelConfiguration, PriorityLevelConfigurationReference, PriorityLevelConfigurationSpec,
        QueuingConfiguration, ResourcePolicyRule, ServiceAccountSubject, Subject, UserSubject,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

/// The annotation of objects whose spec follows upstream's suggestion. An administrator sets it to `false` to keep changes.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

const EVERYBODY: [&str; 2] = ["system:unauthenticated", "system:authenticated"];
const NODES: &str = "system:nodes";
const CONTROLLERS: &str = "system:kube-controller-manager";
const SCHEDULER: &str = "system:kube-scheduler";

/// Exempt and catch-all.
pub fn mandatory_priority_levels() -> [PriorityLevelConfiguration; 2] {
    let exempt = PriorityLevelConfigurationSpec {
        type_: "Exempt".to_owned(),
        exempt: Some(ExemptPriorityLevelConfiguration {
            nominal_concurrency_shares: Some(0),
            lendable_percent: Some(0),
        }),
        limited: None,
    };
    [
        PriorityLevelConfiguration { metadata: named("exempt"), spec: exempt, status: None },
        level("catch-all", 5, 0, None),
    ]
}

pub fn suggested_priority_levels() -> [PriorityLevelConfiguration; 6] {
    [
        level("system", 30, 33, Some((64, 6))),
        level("node-high", 40, 25, Some((64, 6))),
        level("leader-election", 10, 0, Some((16, 4))),
        level("workload-high", 40, 50, Some((128, 6))),
        level("workload-low", 100, 90, Some((128, 6))),
        level("global-default", 20, 50, Some((128, 6))),
    ]
}

/// Exempt and catch-all.
pub fn mandatory_flow_schemas() -> [FlowSchema; 2] {
    [
        schema("exempt", "exempt", 1, None, everything(groups(&["system:masters"]))),
        schema("catch-all", "catch-all", 10_000, Some("ByUser"), everything(groups(&EVERYBODY))),
    ]
}

pub fn suggested_flow_schemas() -> [FlowSchema; 11] {
    let by_user = Some("ByUser");
    let by_namespace = Some("ByNamespace");
    let lock = ["get", "create", "update"];
    let leases = || namespaced(&lock, "coordination.k8s.io", &["leases"]);
    let probes = PolicyRulesWithSubjects {
        subjects: groups(&EVERYBODY),
        resource_rules: None,
        non_resource_rules: Some(vec![NonResourcePolicyRule {
            verbs: texts(&["get"]),
            non_resource_urls: texts(&["/healthz", "/readyz", "/livez"]),
        }]),
    };
    let node_objects =
        ResourcePolicyRule { cluster_scope: Some(true), ..namespaced(&["*"], "", &["nodes", "nodes/status"]) };
    [
        schema("system-nodes", "system", 500, by_user, everything(groups(&[NODES]))),
        schema(
            "system-node-high",
            "node-high",
            400,
            by_user,
            some(groups(&[NODES]), vec![node_objects, namespaced(&["*"], "coordination.k8s.io", &["leases"])]),
        ),
        schema("probes", "exempt", 2, None, probes),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            by_user,
            some([users(&[CONTROLLERS, SCHEDULER]), accounts(&["*"])].concat(), vec![leases()]),
        ),
        schema("workload-leader-election", "leader-election", 200, by_user, some(accounts(&["*"]), vec![leases()])),
        schema(
            "endpoint-controller",
            "workload-high",
            150,
            by_user,
            some(
                [users(&[CONTROLLERS]), accounts(&["endpoint-controller", "endpointslicemirroring-controller"])]
                    .concat(),
                vec![namespaced(&lock, "", &["endpoints"])],
            ),
        ),
        schema("kube-controller-manager", "workload-high", 800, by_namespace, everything(users(&[CONTROLLERS]))),
        schema("kube-scheduler", "workload-high", 800, by_namespace, everything(users(&[SCHEDULER]))),
        schema("kube-system-service-accounts", "workload-high", 900, by_namespace, everything(accounts(&["*"]))),
        schema("service-accounts", "workload-low", 9000, by_user, everything(groups(&["system:serviceaccounts"]))),
        schema("global-default", "global-default", 9900, by_user, everything(groups(&EVERYBODY))),
    ]
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn texts(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

/// A level that queues (how many queues, how many of them for one flow), or refuses what is beyond its limit.
fn level(name: &str, shares: i32, lendable: i32, queues: Option<(i32, i32)>) -> PriorityLevelConfiguration {
    let queuing = queues.map(|(queues, hand)| QueuingConfiguration {
        queues: Some(queues),
        hand_size: Some(hand),
        queue_length_limit: Some(50),
    });
    let limited = LimitedPriorityLevelConfiguration {
        nominal_concurrency_shares: Some(shares),
        lendable_percent: Some(lendable),
        borrowing_limit_percent: None,
        limit_response: LimitResponse { type_: if queuing.is_some() { "Queue" } else { "Reject" }.to_owned(), queuing },
    };
    let spec = PriorityLevelConfigurationSpec { type_: "Limited".to_owned(), limited: Some(limited), exempt: None };
    PriorityLevelConfiguration { metadata: named(name), spec, status: None }
}

fn schema(
    name: &str,
    level: &str,
    precedence: i32,
    distinguisher: Option<&str>,
    rules: PolicyRulesWithSubjects,
) -> FlowSchema {
    let spec = FlowSchemaSpec {
        distinguisher_method: distinguisher.map(|kind| FlowDistinguisherMethod { type_: kind.to_owned() }),
        matching_precedence: Some(precedence),
        priority_level_configuration: PriorityLevelConfigurationReference { name: level.to_owned() },
        rules: Some(vec![rules]),
    };
    FlowSchema { metadata: named(name), spec, status: None }
}

/// Whatever these subjects ask for.
fn everything(subjects: Vec<Subject>) -> PolicyRulesWithSubjects {
    let any = || texts(&["*"]);
    let resources = ResourcePolicyRule {
        verbs: any(),
        api_groups: any(),
        resources: any(),
        namespaces: Some(any()),
        cluster_scope: Some(true),
    };
    let others = NonResourcePolicyRule { verbs: any(), non_resource_urls: any() };
    PolicyRulesWithSubjects { subjects, resource_rules: Some(vec![resources]), non_resource_rules: Some(vec![others]) }
}

fn some(subjects: Vec<Subject>, rules: Vec<ResourcePolicyRule>) -> PolicyRulesWithSubjects {
    PolicyRulesWithSubjects { subjects, resource_rules: Some(rules), non_resource_rules: None }
}

fn namespaced(verbs: &[&str], group: &str, resources: &[&str]) -> ResourcePolicyRule {
    ResourcePolicyRule {
        verbs: texts(verbs),
        api_groups: texts(&[group]),
        resources: texts(resources),
        namespaces: Some(texts(&["*"])),
        cluster_scope: None,
    }
}

fn groups(names: &[&str]) -> Vec<Subject> {
    let subject = |name: &&str| Subject {
        kind: "Group".to_owned(),
        group: Some(GroupSubject { name: (*name).to_owned() }),
        ..Subject::default()
    };
    names.iter().map(subject).collect()
}

fn users(names: &[&str]) -> Vec<Subject> {
    let subject = |name: &&str| Subject {
        kind: "User".to_owned(),
        user: Some(UserSubject { name: (*name).to_owned() }),
        ..Subject::default()
    };
    names.iter().map(subject).collect()
}

/// Service accounts of `kube-system`.
fn accounts(names: &[&str]) -> Vec<Subject> {
    let subject = |name: &&str| Subject {
        kind: "ServiceAccount".to_owned(),
        service_account: Some(ServiceAccountSubject { name: (*name).to_owned(), namespace: "kube-system".to_owned() }),
        ..Subject::default()
    };
    names.iter().map(subject).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        groups::flowcontrol::rules::{FlowSchemaRules, PriorityLevelConfigurationRules},
        validation::testing::{assert_refused, completed},
    };

    #[test]
    fn all_are_valid_complete_and_at_a_level_that_is_there() {
        let levels: Vec<_> = mandatory_priority_levels().into_iter().chain(suggested_priority_levels()).collect();
        let names: BTreeSet<_> = levels.iter().map(|level| level.metadata.name.clone().unwrap()).collect();
        assert_eq!(names.len(), levels.len());
        for level in levels {
            let object = serde_json::to_value(&level).unwrap();
            assert_refused::<PriorityLevelConfigurationRules>(object.clone(), &[]);
            assert_eq!(completed::<PriorityLevelConfigurationRules>(object.clone())["spec"], object["spec"]);
        }
        for schema in mandatory_flow_schemas().into_iter().chain(suggested_flow_schemas()) {
            assert!(names.contains(&schema.spec.priority_level_configuration.name));
            let object = serde_json::to_value(&schema).unwrap();
            assert_refused::<FlowSchemaRules>(object.clone(), &[]);
            assert_eq!(completed::<FlowSchemaRules>(object.clone())["spec"], object["spec"]);
        }
    }
}
