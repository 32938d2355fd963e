//! `autoscaling/v2`, and `autoscaling/v1` as another view of the same objects.

use k8s_openapi::api::autoscaling::{v1, v2};

use super::{
    rules::{HorizontalPodAutoscalerV1Rules, HorizontalPodAutoscalerV2Rules},
    table,
};
use crate::{convert::Autoscaler, descriptor::Descriptor, groups::builder::describe};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<v1::HorizontalPodAutoscaler>()
            .rules::<HorizontalPodAutoscalerV1Rules>()
            .columns(&table::HORIZONTAL_POD_AUTOSCALERS_V1)
            .short("hpa")
            .category("all")
            .stored_as("autoscaling/v2", Autoscaler)
            .status(),
        describe::<v2::HorizontalPodAutoscaler>()
            .rules::<HorizontalPodAutoscalerV2Rules>()
            .columns(&table::HORIZONTAL_POD_AUTOSCALERS)
            .short("hpa")
            .category("all")
            .status(),
    ]
}
