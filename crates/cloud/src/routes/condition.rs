//! The condition `NetworkUnavailable` of Nodes, as the route controller writes it.
//!
//! The agent of a node writes the same condition when it has no route to its peers. A condition has no owner, so the first word of the message says
//! whose it is: upstream's route controller says `RouteController …`. Neither side clears what the other one reports.

use mainstay_api::pod_range_routes::ROUTE_CONTROLLER_MESSAGE;

use super::view::ReportedCondition;

pub const TYPE: &str = "NetworkUnavailable";
pub const CREATED: &str = "RouteCreated";
pub const NOT_CREATED: &str = "NoRouteCreated";

/// What is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionWrite {
    pub holds: bool,
    pub reason: &'static str,
    pub message: String,
}

/// What to write, given whether the route is there, or why not; nothing if the condition says so already.
pub fn decide_condition(current: Option<&ReportedCondition>, route: Result<(), &str>) -> Option<ConditionWrite> {
    let is_own = current.is_some_and(|current| current.message.starts_with(ROUTE_CONTROLLER_MESSAGE));
    match (route, current) {
        (Ok(()), Some(current)) if !is_own || !current.holds => None,
        (Ok(()), _) => Some(ConditionWrite {
            holds: false,
            reason: CREATED,
            message: format!("{ROUTE_CONTROLLER_MESSAGE} created a route"),
        }),
        (Err(why), current) => {
            let message = format!("{ROUTE_CONTROLLER_MESSAGE} failed to create a route: {why}");
            let is_reported = current.is_some_and(|current| current.holds && (!is_own || current.message == message));
            (!is_reported).then_some(ConditionWrite { holds: true, reason: NOT_CREATED, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(holds: bool, message: &str) -> Option<ReportedCondition> {
        Some(ReportedCondition { holds, message: message.to_owned() })
    }

    #[test]
    fn what_is_written_depends_on_whose_condition_it_is() {
        let created = "RouteController created a route";
        let failed = "RouteController failed to create a route: full";
        let of_agent = "no route to the pods of 2 of 2 other nodes";
        let written = |current: Option<ReportedCondition>, route| {
            decide_condition(current.as_ref(), route).map(|write| (write.holds, write.reason))
        };
        let (yes, no) = (Some((true, NOT_CREATED)), Some((false, CREATED)));
        assert_eq!(written(None, Ok(())), no);
        assert_eq!(written(None, Err("full")), yes);
        assert_eq!(written(reported(false, created), Ok(())), None);
        assert_eq!(written(reported(true, failed), Ok(())), no);
        assert_eq!(written(reported(true, failed), Err("full")), None);
        assert_eq!(written(reported(true, failed), Err("no port")), yes, "another reason");
        assert_eq!(written(reported(false, created), Err("full")), yes);
        assert_eq!(written(reported(true, of_agent), Ok(())), None, "the agent's to clear");
        assert_eq!(written(reported(true, of_agent), Err("full")), None, "it is unavailable as it is");
        assert_eq!(written(reported(false, of_agent), Err("full")), yes);
    }
}
