//! What claims ask for, with the DeviceClasses they name looked up.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClaimConfiguration, DeviceClassConfiguration, DeviceClassSpec, DeviceRequest,
    DeviceSelector, DeviceToleration, ExactDeviceRequest,
};
use mainstay_api::matching::{Taint, Toleration};

use super::{
    capacity::Amount,
    constraint::Constraint,
    extended::ExtendedClaim,
    view::{ClaimKey, ClaimView},
};

/// A claim that nothing is allocated to yet.
#[derive(Clone, Debug)]
pub struct ClaimRequests {
    pub key: ClaimKey,
    pub uid: String,
    pub requests: Vec<Request>,
    pub constraints: Vec<Constraint>,
    pub config: Vec<DeviceClaimConfiguration>,
    /// It stands for extended resources of a pod.
    pub extended: Option<Arc<ExtendedClaim>>,
}

#[derive(Clone, Debug)]
pub struct Request {
    /// In the order in which they are preferred. There is one unless the request has `firstAvailable`.
    pub alternatives: Vec<Alternative>,
}

/// One way to satisfy a request.
#[derive(Clone, Debug)]
pub struct Alternative {
    /// `request`, or `request/subrequest`.
    pub name: String,
    /// CEL expressions: those of the class, then its own.
    pub selectors: Vec<String>,
    pub count: DeviceCount,
    pub admin_access: bool,
    pub tolerations: Vec<ParsedToleration>,
    pub capacity: BTreeMap<String, Amount>,
    pub class_config: Vec<DeviceClassConfiguration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceCount {
    Exactly(usize),
    /// Every device that is selected, of which there has to be one at least.
    All,
}

#[derive(Clone, Debug)]
pub struct ParsedToleration {
    pub wire: DeviceToleration,
    /// `None` if it can cover nothing.
    parsed: Option<Toleration>,
}

impl ClaimRequests {
    /// The error says what has to exist first.
    pub fn new(key: &ClaimKey, claim: &ClaimView, classes: &BTreeMap<String, DeviceClassSpec>) -> Result<Self, String> {
        let requests = claim.devices.requests.iter().flatten().map(|request| Request::new(request, classes));
        Ok(Self {
            key: key.clone(),
            uid: claim.uid.clone(),
            requests: requests.collect::<Result<_, _>>()?,
            constraints: claim.devices.constraints.iter().flatten().filter_map(Constraint::new).collect(),
            config: claim.devices.config.clone().unwrap_or_default(),
            extended: None,
        })
    }
}

impl Request {
    fn new(request: &DeviceRequest, classes: &BTreeMap<String, DeviceClassSpec>) -> Result<Self, String> {
        if let Some(exact) = &request.exactly {
            return Ok(Self { alternatives: vec![Alternative::new(request.name.clone(), exact, classes)?] });
        }
        let alternatives = request.first_available.iter().flatten().map(|sub| {
            let exact = ExactDeviceRequest {
                allocation_mode: sub.allocation_mode.clone(),
                capacity: sub.capacity.clone(),
                count: sub.count,
                device_class_name: sub.device_class_name.clone(),
                selectors: sub.selectors.clone(),
                tolerations: sub.tolerations.clone(),
                ..ExactDeviceRequest::default()
            };
            Alternative::new(format!("{}/{}", request.name, sub.name), &exact, classes)
        });
        Ok(Self { alternatives: alternatives.collect::<Result<_, _>>()? })
    }
}

impl Alternative {
    fn new(
        name: String,
        request: &ExactDeviceRequest,
        classes: &BTreeMap<String, DeviceClassSpec>,
    ) -> Result<Self, String> {
        let Some(class) = classes.get(&request.device_class_name) else {
            return Err(format!("request {name}: device class {} does not exist", request.device_class_name));
        };
        let count = match request.allocation_mode.as_deref() {
            None | Some("ExactCount") => {
                DeviceCount::Exactly(usize::try_from(request.count.unwrap_or(1)).unwrap_or(usize::MAX))
            }
            Some("All") => DeviceCount::All,
            Some(mode) => return Err(format!("request {name}: unsupported count mode {mode}")),
        };
        let expressions = |all: &Option<Vec<DeviceSelector>>| -> Vec<String> {
            all.iter().flatten().filter_map(|selector| Some(selector.cel.as_ref()?.expression.clone())).collect()
        };
        Ok(Self {
            selectors: [expressions(&class.selectors), expressions(&request.selectors)].concat(),
            count,
            admin_access: request.admin_access == Some(true),
            tolerations: request.tolerations.iter().flatten().map(ParsedToleration::new).collect(),
            capacity: capacity_requests(request.capacity.as_ref()),
            class_config: class.config.clone().unwrap_or_default(),
            name,
        })
    }

    /// Whether a reference means it: by the name of its request, or by its own.
    pub fn is_named(&self, reference: &str) -> bool {
        self.name == reference || self.name.split_once('/').is_some_and(|(request, _)| request == reference)
    }

    pub fn tolerates(&self, taint: &Taint) -> bool {
        let parsed = |toleration: &ParsedToleration| toleration.parsed.as_ref().is_some_and(|own| own.tolerates(taint));
        self.tolerations.iter().any(parsed)
    }
}

impl ParsedToleration {
    fn new(wire: &DeviceToleration) -> Self {
        let (key, value) = (wire.key.clone(), wire.value.clone());
        let parsed = Toleration::parse(key, wire.operator.as_deref(), value, wire.effect.as_deref());
        Self { wire: wire.clone(), parsed }
    }
}

fn capacity_requests(capacity: Option<&CapacityRequirements>) -> BTreeMap<String, Amount> {
    let requests = capacity.into_iter().flat_map(|capacity| capacity.requests.iter().flatten());
    requests.filter_map(|(name, amount)| Some((name.clone(), Amount::parse(amount)?))).collect()
}
