//! FlowSchemas and PriorityLevelConfigurations, parsed once for all requests.

use std::{collections::BTreeMap, sync::Arc};

use http::HeaderValue;
use k8s_openapi::{
    api::flowcontrol::v1::{FlowSchema, PolicyRulesWithSubjects, PriorityLevelConfiguration},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use mainstay_api::groups::flowcontrol::bootstrap::{
    mandatory_flow_schemas, mandatory_priority_levels, suggested_flow_schemas, suggested_priority_levels,
};

const EXEMPT: &str = "exempt";

/// One immutable state of all objects.
pub struct FlowConfig {
    /// By precedence, then name: the first that matches counts.
    pub schemas: Vec<Arc<ParsedFlowSchema>>,
    pub levels: BTreeMap<Arc<str>, Arc<PriorityLevel>>,
}

pub struct ParsedFlowSchema {
    pub name: Arc<str>,
    /// As the header of a response; none before the object is stored.
    pub uid: Option<HeaderValue>,
    pub level: Arc<PriorityLevel>,
    precedence: i32,
    pub distinguisher: Distinguisher,
    pub rules: Vec<PolicyRulesWithSubjects>,
}

/// What tells the flows of a FlowSchema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distinguisher {
    Nothing,
    User,
    Namespace,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PriorityLevel {
    pub name: Arc<str>,
    pub uid: Option<HeaderValue>,
    pub is_exempt: bool,
    pub shares: u64,
    pub lendable_percent: u64,
    pub borrowing_limit_percent: Option<u64>,
    /// `None` refuses what exceeds the level's seats.
    pub queuing: Option<Queuing>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queuing {
    pub queues: usize,
    pub hand_size: usize,
    pub queue_length_limit: usize,
}

impl FlowConfig {
    /// From what is stored. Mandatory objects that are missing count nevertheless; before anything is stored, the suggested ones as well.
    pub fn new(mut schemas: Vec<FlowSchema>, mut levels: Vec<PriorityLevelConfiguration>) -> Self {
        if levels.is_empty() {
            levels.extend(suggested_priority_levels());
        }
        if schemas.is_empty() {
            schemas.extend(suggested_flow_schemas());
        }
        for level in mandatory_priority_levels() {
            if !levels.iter().any(|known| known.metadata.name == level.metadata.name) {
                levels.push(level);
            }
        }
        for schema in mandatory_flow_schemas() {
            if !schemas.iter().any(|known| known.metadata.name == schema.metadata.name) {
                schemas.push(schema);
            }
        }
        let levels: BTreeMap<Arc<str>, Arc<PriorityLevel>> = levels
            .iter()
            .map(|level| {
                let level = parse_level(level);
                (level.name.clone(), Arc::new(level))
            })
            .collect();
        // One whose level is not there is left out, as upstream does.
        let mut schemas: Vec<_> =
            schemas.into_iter().filter_map(|schema| parse_schema(schema, &levels).map(Arc::new)).collect();
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        Self { schemas, levels }
    }
}

fn name_and_uid(metadata: &ObjectMeta) -> (Arc<str>, Option<HeaderValue>) {
    let uid = metadata.uid.as_deref().and_then(|uid| HeaderValue::from_str(uid).ok());
    (metadata.name.as_deref().unwrap_or_default().into(), uid)
}

fn parse_level(level: &PriorityLevelConfiguration) -> PriorityLevel {
    let (name, uid) = name_and_uid(&level.metadata);
    let number = |value: Option<i32>, or: u64| value.map_or(or, |value| u64::try_from(value).unwrap_or(0));
    let spec = &level.spec;
    if spec.type_ == "Exempt" || &*name == EXEMPT {
        let exempt = spec.exempt.as_ref();
        return PriorityLevel {
            name,
            uid,
            is_exempt: true,
            shares: number(exempt.and_then(|exempt| exempt.nominal_concurrency_shares), 0),
            lendable_percent: number(exempt.and_then(|exempt| exempt.lendable_percent), 0).min(100),
            borrowing_limit_percent: None,
            queuing: None,
        };
    }
    let limited = spec.limited.clone().unwrap_or_default();
    let queuing = (limited.limit_response.type_ == "Queue").then(|| {
        let given = limited.limit_response.queuing.clone().unwrap_or_default();
        let queues = number(given.queues, 64).clamp(1, 10_000) as usize;
        Queuing {
            queues,
            hand_size: (number(given.hand_size, 8) as usize).clamp(1, queues),
            queue_length_limit: number(given.queue_length_limit, 50) as usize,
        }
    });
    PriorityLevel {
        name,
        uid,
        is_exempt: false,
        shares: number(limited.nominal_concurrency_shares, 30),
        lendable_percent: number(limited.lendable_percent, 0).min(100),
        borrowing_limit_percent: limited.borrowing_limit_percent.map(|percent| number(Some(percent), 0)),
        queuing,
    }
}

fn parse_schema(schema: FlowSchema, levels: &BTreeMap<Arc<str>, Arc<PriorityLevel>>) -> Option<ParsedFlowSchema> {
    let (name, uid) = name_and_uid(&schema.metadata);
    let spec = schema.spec;
    Some(ParsedFlowSchema {
        name,
        uid,
        level: levels.get(spec.priority_level_configuration.name.as_str())?.clone(),
        precedence: spec.matching_precedence.unwrap_or(1000),
        distinguisher: match spec.distinguisher_method.as_ref().map(|method| method.type_.as_str()) {
            Some("ByUser") => Distinguisher::User,
            Some("ByNamespace") => Distinguisher::Namespace,
            _ => Distinguisher::Nothing,
        },
        rules: spec.rules.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_stored_objects_the_stock_ones_count_and_a_dangling_schema_never_does() {
        let stock = FlowConfig::new(Vec::new(), Vec::new());
        assert_eq!((stock.levels.len(), stock.schemas.len()), (8, 13));
        assert_eq!((&*stock.schemas[0].name, &*stock.schemas[12].name), ("exempt", "catch-all"));
        let mut own = suggested_flow_schemas()[0].clone();
        own.metadata.name = Some("own".to_owned());
        own.spec.priority_level_configuration.name = "missing".to_owned();
        let names =
            |config: &FlowConfig| config.schemas.iter().map(|schema| schema.name.to_string()).collect::<Vec<_>>();
        assert_eq!(names(&FlowConfig::new(vec![own], Vec::new())), ["exempt", "catch-all"]);
    }
}
