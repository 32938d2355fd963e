//! Which machines are heard of, and which are unaccounted for: expected and never seen, silent, or joined and not expected.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use mainstay_api::machine::{ACCOUNTED, Machine, MachineState, NEVER_SEEN, NOT_EXPECTED, SILENT, StateValue};

/// What the Node of a machine says about its heartbeats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// There is no Node of its name.
    NoNode,
    Heard,
    /// No heartbeat since then.
    Silent {
        since: Timestamp,
    },
}

/// What the controller writes into a Machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    pub seen: MachineState,
    pub accounted: Condition,
}

/// `expects_any` says whether any machine of the cluster is expected: while nobody says which machines there should be, none that
/// joins is one too many.
pub fn account(machine: &Machine, contact: &Contact, expects_any: bool, now: Timestamp) -> Account {
    let before = machine.status.as_ref().and_then(|status| status.seen.as_ref());
    let was_seen = before.is_some_and(|seen| seen.state != StateValue::Pending);
    let (state, since, message) = match contact {
        Contact::Heard => (StateValue::Success, now, String::new()),
        Contact::Silent { since } => (StateValue::Failed, *since, "no heartbeat arrives".to_owned()),
        Contact::NoNode if was_seen => (StateValue::Failed, now, "its Node is gone".to_owned()),
        Contact::NoNode => (StateValue::Pending, now, "it has never joined".to_owned()),
    };
    let since = match before.filter(|before| before.state == state) {
        Some(before) => before.since.clone(),
        None => Time(since),
    };
    let (status, reason, message_of) = match state {
        StateValue::Success if !machine.spec.expected && expects_any => {
            ("False", NOT_EXPECTED, "it joined, and nobody expects it: mainstay machine expect".to_owned())
        }
        StateValue::Success | StateValue::Running => ("True", ACCOUNTED, String::new()),
        StateValue::Failed => ("False", SILENT, format!("{message} since {}", since.0)),
        StateValue::Pending => ("False", NEVER_SEEN, "it is expected and has never joined".to_owned()),
    };
    let transition = match machine.condition(ACCOUNTED).filter(|before| before.status == status) {
        Some(before) => before.last_transition_time.clone(),
        None => Time(now),
    };
    let accounted = Condition {
        type_: ACCOUNTED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message_of,
        last_transition_time: transition,
        observed_generation: None,
    };
    Account { seen: MachineState { state, since, message, output: String::new() }, accounted }
}

/// Whether the Machine says the same already.
pub fn is_written(machine: &Machine, account: &Account) -> bool {
    let seen = machine.status.as_ref().and_then(|status| status.seen.as_ref());
    seen == Some(&account.seen) && machine.condition(ACCOUNTED) == Some(&account.accounted)
}

#[cfg(test)]
mod tests {
    use mainstay_api::machine::{MachineSpec, MachineStatus};

    use super::*;

    fn time(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn written(mut machine: Machine, account: Account) -> Machine {
        let status = machine.status.get_or_insert_with(MachineStatus::default);
        status.seen = Some(account.seen);
        status.conditions = vec![account.accounted];
        machine
    }

    #[test]
    fn machines_are_unaccounted_for_in_three_ways() {
        let machine = |expected| Machine::new("m", MachineSpec { expected, ..MachineSpec::default() });
        let silent = Contact::Silent { since: time(50) };
        for (expected, expects_any, contact, state, reason) in [
            (true, true, Contact::NoNode, StateValue::Pending, Some(NEVER_SEEN)),
            (true, true, Contact::Heard, StateValue::Success, None),
            (true, true, silent.clone(), StateValue::Failed, Some(SILENT)),
            (false, true, Contact::Heard, StateValue::Success, Some(NOT_EXPECTED)),
            (false, false, Contact::Heard, StateValue::Success, None),
            (false, false, silent, StateValue::Failed, Some(SILENT)),
        ] {
            let account = account(&machine(expected), &contact, expects_any, time(100));
            let machine = written(machine(expected), account.clone());
            assert_eq!((account.seen.state, machine.unaccounted()), (state, reason), "{expected} {contact:?}");
            assert!(is_written(&machine, &account));
        }
    }

    #[test]
    fn a_state_has_the_time_since_when_it_holds() {
        let machine = Machine::new("m", MachineSpec::default());
        let machine = written(machine.clone(), account(&machine, &Contact::Heard, false, time(10)));
        let later = account(&machine, &Contact::Heard, false, time(20));
        assert_eq!(later.seen.since, Time(time(10)));
        let silent = account(&machine, &Contact::Silent { since: time(30) }, false, time(40));
        assert_eq!(
            (silent.seen.since.clone(), silent.accounted.last_transition_time.clone()),
            (Time(time(30)), Time(time(40)))
        );
        let gone = account(&written(machine.clone(), silent), &Contact::NoNode, false, time(60));
        assert_eq!((gone.seen.state, gone.seen.since), (StateValue::Failed, Time(time(30))), "it was silent before");
    }
}
