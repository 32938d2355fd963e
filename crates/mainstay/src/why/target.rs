//! The object that is asked about, as people write it: `web`, `deploy/web`, `pvc/data`, `no/worker-1`.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub kind: TargetKind,
    pub name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    Pod,
    Workload(WorkloadKind),
    CronJob,
    Service,
    Claim,
    Node,
    Namespace,
}

/// Kinds whose controllers own pods, directly or through ReplicaSets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkloadKind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    ReplicationController,
}

impl WorkloadKind {
    /// Group, kind and plural.
    pub fn resource(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Deployment => ("apps", "Deployment", "deployments"),
            Self::ReplicaSet => ("apps", "ReplicaSet", "replicasets"),
            Self::StatefulSet => ("apps", "StatefulSet", "statefulsets"),
            Self::DaemonSet => ("apps", "DaemonSet", "daemonsets"),
            Self::Job => ("batch", "Job", "jobs"),
            Self::ReplicationController => ("", "ReplicationController", "replicationcontrollers"),
        }
    }
}

/// Singular, plural and short names, as `kubectl api-resources` lists them.
const NAMES: [(&[&str], TargetKind); 12] = [
    (&["pod", "pods", "po"], TargetKind::Pod),
    (&["deployment", "deployments", "deploy"], TargetKind::Workload(WorkloadKind::Deployment)),
    (&["replicaset", "replicasets", "rs"], TargetKind::Workload(WorkloadKind::ReplicaSet)),
    (&["statefulset", "statefulsets", "sts"], TargetKind::Workload(WorkloadKind::StatefulSet)),
    (&["daemonset", "daemonsets", "ds"], TargetKind::Workload(WorkloadKind::DaemonSet)),
    (&["job", "jobs"], TargetKind::Workload(WorkloadKind::Job)),
    (&["replicationcontroller", "replicationcontrollers", "rc"], {
        TargetKind::Workload(WorkloadKind::ReplicationController)
    }),
    (&["cronjob", "cronjobs", "cj"], TargetKind::CronJob),
    (&["service", "services", "svc"], TargetKind::Service),
    (&["persistentvolumeclaim", "persistentvolumeclaims", "pvc"], TargetKind::Claim),
    (&["node", "nodes", "no"], TargetKind::Node),
    (&["namespace", "namespaces", "ns"], TargetKind::Namespace),
];

impl TargetKind {
    pub fn noun(self) -> &'static str {
        NAMES.iter().find(|(_, kind)| *kind == self).map_or("object", |(names, _)| names[0])
    }
}

impl Target {
    pub fn parse(text: &str) -> Result<Self, String> {
        let (kind, name) = text.split_once('/').unwrap_or(("pod", text));
        if name.is_empty() || name.contains('/') {
            return Err("write it like pod/NAME or deployment/NAME".to_owned());
        }
        let lower = kind.to_lowercase();
        let found = NAMES.iter().find(|(names, _)| names.contains(&lower.as_str()));
        let kind = found.map(|(_, kind)| *kind).ok_or_else(|| {
            let known: Vec<&str> = NAMES.iter().map(|(names, _)| names[0]).collect();
            format!("{kind:?} is not a kind that can be explained; these can: {}", known.join(", "))
        })?;
        Ok(Self { kind, name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_by_all_their_names_and_others_are_refused() {
        let parse = |text: &str| Target::parse(text).map(|target| (target.kind, target.name));
        for text in ["web", "pod/web", "po/web", "Pods/web"] {
            assert_eq!(parse(text), Ok((TargetKind::Pod, "web".to_owned())), "{text}");
        }
        let web = |kind| Ok((kind, "web".to_owned()));
        assert_eq!(parse("deploy/web"), web(TargetKind::Workload(WorkloadKind::Deployment)));
        assert_eq!(parse("cj/web"), web(TargetKind::CronJob));
        assert_eq!(parse("svc/web"), web(TargetKind::Service));
        assert_eq!(parse("pvc/web"), web(TargetKind::Claim));
        assert_eq!(parse("node/web"), web(TargetKind::Node));
        assert_eq!(parse("ns/web"), web(TargetKind::Namespace));
        for wrong in ["", "pod/", "pod/a/b", "secret/web"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
