//! What becomes of a request for a certificate. Pure: the world and the time are arguments.

use jiff::{SignedDuration, Timestamp};

use crate::{
    auth::{BOOTSTRAPPERS, MASTERS, NODES},
    pki::Request,
};

/// Requests from bootstrappers for one name within this time of each other are from two machines at once.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(60);
/// How long answered and unanswered requests are kept.
const ANSWERED: SignedDuration = SignedDuration::from_hours(1);
const UNANSWERED: SignedDuration = SignedDuration::from_hours(24);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signer {
    /// What the agent of a machine shows to the API.
    NodeClient,
    /// What it shows to servers that call it.
    NodeServing,
    /// Any other client of the API.
    Client,
}

impl Signer {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "kubernetes.io/kube-apiserver-client-kubelet" => Some(Self::NodeClient),
            "kubernetes.io/kubelet-serving" => Some(Self::NodeServing),
            "kubernetes.io/kube-apiserver-client" => Some(Self::Client),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Pending,
    Approved,
    Issued,
    /// Denied or failed.
    Refused,
}

pub struct Asked {
    pub signer: Signer,
    pub user: String,
    pub groups: Vec<String>,
    pub usages: Vec<String>,
    pub request: Result<Request, String>,
    pub state: State,
    pub created: Timestamp,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Approve(String),
    Deny(String),
    Fail(String),
    Issue,
}

impl Asked {
    /// The machine that the certificate would name.
    pub fn node(&self) -> Option<&str> {
        let name = self.request.as_ref().ok()?.common_name.strip_prefix("system:node:")?;
        (self.signer != Signer::Client && !name.is_empty()).then_some(name)
    }

    fn is_from(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// `member` tells whether a Node of the name exists; `others` are all requests there are.
pub fn plan<'a>(asked: &Asked, member: bool, others: impl IntoIterator<Item = &'a Asked>) -> Option<Action> {
    match asked.state {
        State::Issued | State::Refused => None,
        State::Approved => Some(match objection(asked) {
            Some(why) => Action::Fail(why),
            None => Action::Issue,
        }),
        State::Pending => approve(asked, member, others),
    }
}

fn approve<'a>(asked: &Asked, member: bool, others: impl IntoIterator<Item = &'a Asked>) -> Option<Action> {
    let joining = asked.signer == Signer::NodeClient && asked.is_from(BOOTSTRAPPERS);
    let own = asked.signer != Signer::Client && asked.is_from(NODES);
    if !joining && !own {
        return None; // for people to decide
    }
    if let Some(why) = objection(asked) {
        return Some(Action::Deny(why));
    }
    let name = asked.node().unwrap_or_default();
    if own {
        let itself = asked.user == format!("system:node:{name}");
        return Some(if itself {
            Action::Approve("Auto approving a certificate that a machine asks for itself.".to_owned())
        } else {
            Action::Deny(format!("{} may not ask for a certificate of node {name:?}", asked.user))
        });
    }
    if member {
        return Some(Action::Deny(format!(
            "node {name:?} is a member already: choose another name with --node-name, or, if that machine is gone \
             for good, remove it with `kubectl delete node {name}` and join again"
        )));
    }
    if others.into_iter().any(|other| is_rival(asked, other)) {
        return Some(Action::Deny(format!(
            "another machine is just joining as node {name:?}: choose another name with --node-name"
        )));
    }
    Some(Action::Approve("Auto approving the certificate of a machine that joins.".to_owned()))
}

/// Whether another machine got a certificate of the same name a moment ago.
fn is_rival(asked: &Asked, other: &Asked) -> bool {
    let key = |asked: &Asked| asked.request.as_ref().ok().map(|request| request.public_key.clone());
    other.signer == Signer::NodeClient
        && other.is_from(BOOTSTRAPPERS)
        && matches!(other.state, State::Approved | State::Issued)
        && other.node() == asked.node()
        && key(other) != key(asked)
        && asked.created.duration_since(other.created).abs() <= AT_ONCE
}

/// What is wrong with the request itself.
fn objection(asked: &Asked) -> Option<String> {
    let request = match &asked.request {
        Ok(request) => request,
        Err(why) => return Some(format!("the request cannot be read: {why}")),
    };
    let named = !request.dns_names.is_empty() || !request.addresses.is_empty();
    let uses = |allowed: &[&str], required: &str| {
        let usages = &asked.usages;
        usages.iter().any(|usage| usage == required) && usages.iter().all(|usage| allowed.contains(&usage.as_str()))
    };
    let machine = asked.node().is_some() && request.organizations == [NODES];
    match asked.signer {
        Signer::Client if request.organizations.iter().any(|group| group == MASTERS) => {
            Some(format!("use of kubernetes.io/kube-apiserver-client signer with {MASTERS} group is not allowed"))
        }
        Signer::Client if request.organizations.len() > 1 => Some("only one group can be named".to_owned()),
        Signer::Client if request.common_name.is_empty() => Some("the subject names nobody".to_owned()),
        Signer::Client if !asked.usages.iter().any(|usage| usage == "client auth") => {
            Some("usages did not match: \"client auth\" is missing".to_owned())
        }
        Signer::Client => None,
        _ if !machine => Some("subject common name and organization are not those of a node".to_owned()),
        Signer::NodeClient if named || request.other_names => {
            Some("subject alternative names are not allowed".to_owned())
        }
        Signer::NodeClient if !uses(&["key encipherment", "digital signature", "client auth"], "client auth") => {
            Some("usages did not match [digital signature, client auth]".to_owned())
        }
        Signer::NodeServing if !named => Some("DNS or IP subjectAltName is required".to_owned()),
        Signer::NodeServing if request.other_names => Some("email and URI subjectAltNames are not allowed".to_owned()),
        Signer::NodeServing if !uses(&["key encipherment", "digital signature", "server auth"], "server auth") => {
            Some("usages did not match [digital signature, server auth]".to_owned())
        }
        Signer::NodeClient | Signer::NodeServing => None,
    }
}

/// Whether a request has been kept long enough.
pub fn is_old(state: State, created: Timestamp, now: Timestamp) -> bool {
    let kept = match state {
        State::Issued | State::Refused => ANSWERED,
        State::Pending | State::Approved => UNANSWERED,
    };
    now.duration_since(created) > kept
}

#[cfg(test)]
mod tests;
