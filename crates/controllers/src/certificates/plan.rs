//! Decides what becomes of a CertificateSigningRequest. Pure: requests and time are arguments.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use mainstay_api::{
    validation::names,
    wellknown::user::{MASTERS_GROUP as MASTERS, NODE_PREFIX, NODES_GROUP as NODES},
};

use super::CertificateRequest;

/// The group of everybody who has a bootstrap token.
const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// Requests from bootstrappers for one name within this time of each other are from two machines at once.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(60);
/// How long answered and unanswered requests are kept.
const ANSWERED: SignedDuration = SignedDuration::from_hours(1);
const UNANSWERED: SignedDuration = SignedDuration::from_hours(24);
/// How many answered requests of one requester are kept that long.
const ANSWERED_EACH: usize = 100;
/// How long after its creation a requester may still be about to read the answer.
const UNREAD: SignedDuration = SignedDuration::from_secs(120);

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
            mainstay_api::wellknown::signer::KUBELET_CLIENT => Some(Self::NodeClient),
            mainstay_api::wellknown::signer::KUBELET_SERVING => Some(Self::NodeServing),
            mainstay_api::wellknown::signer::CLIENT => Some(Self::Client),
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

pub struct SigningRequest {
    pub signer: Signer,
    pub user: String,
    pub groups: Vec<String>,
    pub usages: Vec<String>,
    pub request: Result<CertificateRequest, String>,
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

impl SigningRequest {
    /// The node that the certificate would name, if a Node can have that name.
    pub fn node(&self) -> Option<&str> {
        let name = self.request.as_ref().ok()?.common_name.strip_prefix(NODE_PREFIX)?;
        (self.signer != Signer::Client && names::dns1123_subdomain(name).is_empty()).then_some(name)
    }

    fn is_from(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// `member` tells whether a Node of the name exists; `others` are all requests there are.
pub fn plan<'a>(
    asked: &SigningRequest,
    member: bool,
    others: impl IntoIterator<Item = &'a SigningRequest>,
) -> Option<Action> {
    match asked.state {
        State::Issued | State::Refused => None,
        State::Approved => Some(match objection(asked) {
            Some(why) => Action::Fail(why),
            None => Action::Issue,
        }),
        State::Pending => approve(asked, member, others),
    }
}

fn approve<'a>(
    asked: &SigningRequest,
    member: bool,
    others: impl IntoIterator<Item = &'a SigningRequest>,
) -> Option<Action> {
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
    if others.into_iter().any(|other| is_competing(asked, other)) {
        return Some(Action::Deny(format!(
            "another machine is just joining as node {name:?}: choose another name with --node-name"
        )));
    }
    Some(Action::Approve("Auto approving the certificate of a machine that joins.".to_owned()))
}

/// Whether another machine got a certificate of the same name a moment ago.
fn is_competing(asked: &SigningRequest, other: &SigningRequest) -> bool {
    let key = |asked: &SigningRequest| asked.request.as_ref().ok().map(|request| request.public_key.clone());
    other.signer == Signer::NodeClient
        && other.is_from(BOOTSTRAPPERS)
        && matches!(other.state, State::Approved | State::Issued)
        && other.node() == asked.node()
        && key(other) != key(asked)
        && is_at_once(asked.created, other.created)
}

/// Whether two requests were made so close together that neither machine can have become a Node before the other asked.
pub fn is_at_once(a: Timestamp, b: Timestamp) -> bool {
    a.duration_since(b).abs() <= AT_ONCE
}

/// What is wrong with the request itself.
fn objection(asked: &SigningRequest) -> Option<String> {
    let request = match &asked.request {
        Ok(request) => request,
        Err(why) => return Some(format!("the request cannot be read: {why}")),
    };
    let named = request.has_host_names;
    let uses = |allowed: &[&str], required: &[&str]| {
        let usages = &asked.usages;
        required.iter().all(|required| usages.iter().any(|usage| usage == required))
            && usages.iter().all(|usage| allowed.contains(&usage.as_str()))
    };
    let of_nodes = request.organizations.iter().any(|group| group == NODES);
    let node_name = request.common_name.strip_prefix(NODE_PREFIX);
    if request.common_names > 1 {
        return Some(format!("the subject has {} common names: exactly one is required", request.common_names));
    }
    // Whoever signs it: a certificate of a node that cannot exist is of no use to anybody honest.
    if let Some(name) = node_name.filter(|_| of_nodes)
        && let [complaint, ..] = &*names::dns1123_subdomain(name)
    {
        return Some(format!("no node can be named {name:?}: {complaint}"));
    }
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
        Signer::NodeClient if named || request.has_other_names => {
            Some("subject alternative names are not allowed".to_owned())
        }
        Signer::NodeClient
            if !uses(
                &["key encipherment", "digital signature", "client auth"],
                &["digital signature", "client auth"],
            ) =>
        {
            Some("usages did not match [digital signature, client auth]".to_owned())
        }
        Signer::NodeServing if !named => Some("DNS or IP subjectAltName is required".to_owned()),
        Signer::NodeServing if request.has_other_names => {
            Some("email and URI subjectAltNames are not allowed".to_owned())
        }
        Signer::NodeServing
            if !uses(
                &["key encipherment", "digital signature", "server auth"],
                &["digital signature", "server auth"],
            ) =>
        {
            Some("usages did not match [digital signature, server auth]".to_owned())
        }
        Signer::NodeClient | Signer::NodeServing => None,
    }
}

/// Which answered requests are forgotten before their time because a requester has many of them: the oldest beyond
/// [`ANSWERED_EACH`], but none whose answer the requester may not have read yet. Takes requester, state and creation of
/// each request, and answers their indexes.
pub fn superfluous<'a>(requests: &[(&'a str, State, Timestamp)], now: Timestamp) -> Vec<usize> {
    let mut answered: BTreeMap<&'a str, Vec<(Timestamp, usize)>> = BTreeMap::new();
    for (index, (user, state, created)) in requests.iter().enumerate() {
        if matches!(state, State::Issued | State::Refused) {
            answered.entry(*user).or_default().push((*created, index));
        }
    }
    let mut gone = Vec::new();
    for mut of_user in answered.into_values() {
        of_user.sort_unstable();
        let surplus = of_user.len().saturating_sub(ANSWERED_EACH);
        let read = |(created, _): &&(Timestamp, usize)| now.duration_since(*created) > UNREAD;
        gone.extend(of_user.iter().take(surplus).filter(read).map(|(_, index)| *index));
    }
    gone
}

/// Whether a request has been kept long enough.
pub fn is_old(state: State, created: Timestamp, now: Timestamp) -> bool {
    now.duration_since(created) > retention(state)
}

/// How long a request is kept.
pub fn retention(state: State) -> SignedDuration {
    match state {
        State::Issued | State::Refused => ANSWERED,
        State::Pending | State::Approved => UNANSWERED,
    }
}

#[cfg(test)]
mod tests;
