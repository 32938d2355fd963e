//! The subresources a kind can have: their names, verbs and kinds, as discovery lists them and requests name them.

use std::borrow::Cow;

use super::Descriptor;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subresource {
    Status,
    Scale,
    /// Conditions of a certificate request: whether it may be signed.
    Approval,
    /// `spec.finalizers`. A kind that has them stays until they are gone, with the phase `Terminating`.
    Finalize,
    EphemeralContainers,
    Resize,
    Binding,
    Eviction,
    /// A node gives back a pod that it cannot run.
    Refusal,
    Token,
    Log,
    Exec,
    Attach,
    PortForward,
    Proxy,
}

/// A kind that requests of a subresource carry, where it is not that of the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubresourceKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: Cow<'static, str>,
}

const ALL: [Subresource; 15] = [
    Subresource::Status,
    Subresource::Scale,
    Subresource::Approval,
    Subresource::Finalize,
    Subresource::EphemeralContainers,
    Subresource::Resize,
    Subresource::Binding,
    Subresource::Eviction,
    Subresource::Refusal,
    Subresource::Token,
    Subresource::Log,
    Subresource::Exec,
    Subresource::Attach,
    Subresource::PortForward,
    Subresource::Proxy,
];

impl Subresource {
    /// As URLs name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Scale => "scale",
            Self::Approval => "approval",
            Self::Finalize => "finalize",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Resize => "resize",
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Refusal => "refusal",
            Self::Token => "token",
            Self::Log => "log",
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
            Self::Proxy => "proxy",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        ALL.into_iter().find(|subresource| subresource.name() == name)
    }

    pub fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Status | Self::Scale | Self::Approval | Self::EphemeralContainers | Self::Resize => {
                &["get", "patch", "update"]
            }
            Self::Finalize => &["update"],
            Self::Binding | Self::Eviction | Self::Refusal | Self::Token => &["create"],
            Self::Log => &["get"],
            Self::Exec | Self::Attach | Self::PortForward => &["create", "get"],
            Self::Proxy => &["create", "delete", "get", "patch", "update"],
        }
    }

    /// The kind of its bodies on this resource; `None` for the resource's own.
    pub fn kind(self, d: &Descriptor) -> Option<SubresourceKind> {
        let (group, version, kind): (_, _, Cow<'static, str>) = match self {
            Self::Status
            | Self::Approval
            | Self::Finalize
            | Self::EphemeralContainers
            | Self::Resize
            | Self::Refusal
            | Self::Log => return None,
            Self::Scale => ("autoscaling", "v1", "Scale".into()),
            Self::Binding => ("", "v1", "Binding".into()),
            Self::Eviction => ("policy", "v1", "Eviction".into()),
            Self::Token => ("authentication.k8s.io", "v1", "TokenRequest".into()),
            Self::Exec => ("", "v1", "PodExecOptions".into()),
            Self::Attach => ("", "v1", "PodAttachOptions".into()),
            Self::PortForward => ("", "v1", "PodPortForwardOptions".into()),
            Self::Proxy => ("", "v1", format!("{}ProxyOptions", d.kind).into()),
        };
        Some(SubresourceKind { group, version, kind })
    }

    /// Whether requests are passed on to the agent of a node.
    pub fn is_relayed(self) -> bool {
        matches!(self, Self::Log | Self::Exec | Self::Attach | Self::PortForward | Self::Proxy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subresource_is_found_by_its_name() {
        for subresource in ALL {
            assert_eq!(Subresource::from_name(subresource.name()), Some(subresource));
        }
        assert_eq!(Subresource::from_name("statuses"), None);
    }
}
