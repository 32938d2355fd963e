//! `resource.k8s.io/v1`.

use k8s_openapi::api::resource::v1::{
    DeviceClass, DeviceTaintRule, ResourceClaim, ResourceClaimTemplate, ResourceSlice,
};

use super::{
    rules::{DeviceClassRules, ResourceClaimRules, ResourceClaimTemplateRules, ResourceSliceRules},
    table,
};
use crate::{
    descriptor::{Descriptor, SelectableField},
    groups::builder::{describe, field},
};

pub fn kinds() -> Vec<Descriptor> {
    vec![
        describe::<DeviceClass>().rules::<DeviceClassRules>().generation(),
        describe::<DeviceTaintRule>().status().generation(),
        describe::<ResourceClaim>().rules::<ResourceClaimRules>().columns(&table::RESOURCE_CLAIMS).status(),
        describe::<ResourceClaimTemplate>().rules::<ResourceClaimTemplateRules>(),
        describe::<ResourceSlice>()
            .rules::<ResourceSliceRules>()
            .columns(&table::RESOURCE_SLICES)
            .generation()
            .select(SLICE_FIELDS),
    ]
}

const SLICE_FIELDS: &[SelectableField] =
    &[field("spec.driver", &["spec", "driver"]), field("spec.nodeName", &["spec", "nodeName"])];
