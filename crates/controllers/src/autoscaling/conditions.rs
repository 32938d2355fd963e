//! The conditions of an autoscaler while they are being decided: what keeps its status keeps its time.

use jiff::Timestamp;
use k8s_openapi::{
    api::autoscaling::v2::{HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerStatus},
    apimachinery::pkg::apis::meta::v1::Time,
};

use super::plan::whole_seconds;

pub struct Conditions {
    list: Vec<HorizontalPodAutoscalerCondition>,
    now: Timestamp,
}

impl Conditions {
    pub fn new(status: &HorizontalPodAutoscalerStatus, now: Timestamp) -> Self {
        Self { list: status.conditions.clone().unwrap_or_default(), now }
    }

    pub fn set(&mut self, type_: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        let status = if is_true { "True" } else { "False" };
        let known = self.list.iter_mut().find(|condition| condition.type_ == type_);
        let since = known.as_ref().filter(|known| known.status == status);
        let since = since.and_then(|known| known.last_transition_time.clone());
        let condition = HorizontalPodAutoscalerCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.into()),
            last_transition_time: Some(since.unwrap_or(Time(whole_seconds(self.now)))),
            observed_generation: None,
        };
        match known {
            Some(known) => *known = condition,
            None => self.list.push(condition),
        }
    }

    pub fn to_list(&self) -> Vec<HorizontalPodAutoscalerCondition> {
        self.list.clone()
    }

    pub fn into_list(self) -> Vec<HorizontalPodAutoscalerCondition> {
        self.list
    }
}
