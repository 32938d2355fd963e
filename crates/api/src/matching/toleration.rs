//! Taints of nodes and tolerations of pods.

use k8s_openapi::api::core::v1::{self as api, Node};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Effect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl Effect {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "NoSchedule" => Some(Self::NoSchedule),
            "PreferNoSchedule" => Some(Self::PreferNoSchedule),
            "NoExecute" => Some(Self::NoExecute),
            _ => None,
        }
    }

    pub fn is_hard(self) -> bool {
        self != Self::PreferNoSchedule
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taint<S = String> {
    pub key: S,
    pub value: S,
    pub effect: Effect,
}

impl<S: Default> Taint<S> {
    /// `None` if it has an effect that nobody knows.
    pub fn parse(key: S, value: Option<S>, effect: &str) -> Option<Self> {
        Some(Self { key, value: value.unwrap_or_default(), effect: Effect::parse(effect)? })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Toleration<S = String> {
    /// `None`: every key.
    pub key: Option<S>,
    /// `None`: every value.
    pub value: Option<S>,
    /// `None`: every effect.
    pub effect: Option<Effect>,
}

impl<S: AsRef<str> + Default> Toleration<S> {
    /// `None` if it can cover nothing.
    pub fn parse(key: Option<S>, operator: Option<&str>, value: Option<S>, effect: Option<&str>) -> Option<Self> {
        let exists = operator == Some("Exists");
        let effect = match effect.filter(|text| !text.is_empty()) {
            Some(text) => Some(Effect::parse(text)?),
            None => None,
        };
        let key = key.filter(|key| !key.as_ref().is_empty());
        let value = if exists { None } else { Some(value.unwrap_or_default()) };
        (exists || key.is_some()).then_some(Self { key, value, effect })
    }

    #[inline]
    pub fn tolerates<T: AsRef<str>>(&self, taint: &Taint<T>) -> bool {
        let open_or = |own: &Option<S>, text: &T| own.as_ref().is_none_or(|own| own.as_ref() == text.as_ref());
        self.effect.is_none_or(|effect| effect == taint.effect)
            && open_or(&self.key, &taint.key)
            && open_or(&self.value, &taint.value)
    }
}

/// Whether the node has a taint of this effect that none of the tolerations covers.
pub fn has_untolerated_taint(node: &Node, effect: Effect, tolerations: &[api::Toleration]) -> bool {
    let covers = |of: &api::Toleration, taint: &Taint<&str>| {
        let read =
            Toleration::parse(of.key.as_deref(), of.operator.as_deref(), of.value.as_deref(), of.effect.as_deref());
        read.is_some_and(|toleration| toleration.tolerates(taint))
    };
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints
        .filter_map(|taint| Taint::parse(taint.key.as_str(), taint.value.as_deref(), &taint.effect))
        .any(|taint| taint.effect == effect && !tolerations.iter().any(|toleration| covers(toleration, &taint)))
}
