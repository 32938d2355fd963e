use proptest::prelude::*;

use super::*;

const ALL: StepSettings =
    StepSettings { has_static: true, has_dynamic: true, validate_interval: SignedDuration::from_mins(5) };

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn wanted(version: &str, running: Option<&str>) -> StepRecord {
    let desired = DesiredVersion { version: Some(version.to_owned()), drain: false };
    StepRecord { desired, running: running.map(str::to_owned), ..StepRecord::default() }
}

fn failed() -> StepOutcome {
    StepOutcome::Failed { message: "exit code 1".to_owned(), output: "no space left".to_owned() }
}

/// Runs steps until there is nothing to do; `outcome` says how each ends.
fn run(record: &mut StepRecord, now: &mut i64, outcome: impl Fn(Step) -> StepOutcome) -> Vec<(Step, String)> {
    let mut ran = Vec::new();
    while let NextStep::Run { step, version } = record.next_step(&ALL, 0, time(*now)) {
        assert!(ran.len() < 50, "never rests: {ran:?}");
        record.begin(step, &version, 0, time(*now));
        *now += 1;
        record.end(step, outcome(step), time(*now));
        ran.push((step, version));
    }
    ran
}

fn steps(ran: &[(Step, String)]) -> Vec<Step> {
    ran.iter().map(|(step, _)| *step).collect()
}

fn states(record: &StepRecord) -> [StateValue; 3] {
    let status = report(record, &ALL, &MachineStatus::default(), time(0));
    [status.provisioned, status.configured, status.validated].map(|state| state.unwrap().state)
}

#[test]
fn a_version_runs_once_everything_passed_in_order() {
    let (mut record, mut now) = (wanted("v2", Some("v1")), 0);
    record.desired.drain = true;
    let ran = run(&mut record, &mut now, |_| StepOutcome::Passed);
    assert_eq!(steps(&ran), [Step::Drain, Step::Update, Step::Static, Step::Dynamic, Step::Validate]);
    assert!(ran.iter().all(|(_, version)| version == "v2"));
    assert_eq!((record.running.as_deref(), record.running_since), (Some("v2"), Some(time(now))));
    assert_eq!(states(&record), [StateValue::Success; 3]);
}

#[test]
fn a_machine_without_a_version_is_configured_and_validated_all_the_same() {
    let (mut record, mut now) = (StepRecord::default(), 0);
    let ran = run(&mut record, &mut now, |_| StepOutcome::Passed);
    assert_eq!(steps(&ran), [Step::Static, Step::Dynamic, Step::Validate]);
    assert_eq!(record.running, None);
}

#[test]
fn failed_validation_keeps_the_old_version_and_runs_configuration_again() {
    let (mut record, mut now) = (wanted("v2", Some("v1")), 0);
    let fails = |step| if step == Step::Validate { failed() } else { StepOutcome::Passed };
    run(&mut record, &mut now, fails);
    assert_eq!(record.running.as_deref(), Some("v1"));
    assert_eq!(states(&record), [StateValue::Success, StateValue::Success, StateValue::Failed]);
    now += 10;
    assert_eq!(steps(&run(&mut record, &mut now, fails)), [Step::Dynamic, Step::Validate], "not the update");
    assert_eq!(record.next_step(&ALL, 0, time(now + 19)), NextStep::Wait { until: Some(time(now + 20)) });
    now += 20;
    assert_eq!(steps(&run(&mut record, &mut now, |_| StepOutcome::Passed)), [Step::Dynamic, Step::Validate]);
    assert_eq!(record.running.as_deref(), Some("v2"));
}

#[test]
fn an_update_that_fails_names_its_version() {
    let (mut record, mut now) = (wanted("v9", Some("v1")), 0);
    assert_eq!(steps(&run(&mut record, &mut now, |_| failed())), [Step::Update]);
    let configured = report(&record, &ALL, &MachineStatus::default(), time(0)).configured.unwrap();
    assert_eq!((configured.state, &*configured.message), (StateValue::Failed, "update to version \"v9\": exit code 1"));
    assert_eq!((configured.output.as_str(), record.running.as_deref()), ("no space left", Some("v1")));
}

#[test]
fn a_change_of_what_it_depends_on_configures_anew_at_the_same_version() {
    let (mut record, mut now) = (wanted("v1", Some("v1")), 0);
    run(&mut record, &mut now, |_| StepOutcome::Passed);
    assert!(matches!(record.next_step(&ALL, 0, time(now)), NextStep::Wait { until: Some(_) }));
    let changed = record.next_step(&ALL, 7, time(now));
    assert_eq!(changed, NextStep::Run { step: Step::Dynamic, version: "v1".to_owned() });
}

#[test]
fn static_configuration_has_to_pass_the_first_time_and_may_fail_later() {
    let fails = |step| if step == Step::Static { failed() } else { StepOutcome::Passed };
    let (mut record, mut now) = (wanted("v1", None), 0);
    assert_eq!(steps(&run(&mut record, &mut now, fails)), [Step::Update, Step::Static]);
    assert_eq!(record.next_step(&ALL, 0, time(now + 100_000)), NextStep::Wait { until: None });
    assert_eq!(states(&record), [StateValue::Failed; 3]);

    let (mut record, mut now) = (wanted("v1", None), 0);
    run(&mut record, &mut now, |_| StepOutcome::Passed);
    record.desired.version = Some("v2".to_owned());
    assert_eq!(steps(&run(&mut record, &mut now, fails)), [Step::Update, Step::Static]);
    assert_eq!(states(&record), [StateValue::Success, StateValue::Failed, StateValue::Failed]);
    now += 10;
    assert_eq!(steps(&run(&mut record, &mut now, fails)), [Step::Static], "tried again");
}

#[test]
fn a_machine_half_way_to_a_version_is_updated_to_go_back() {
    let (mut record, mut now) = (wanted("v1", None), 0);
    run(&mut record, &mut now, |_| StepOutcome::Passed);
    record.desired.version = Some("v2".to_owned());
    run(&mut record, &mut now, |step| if step == Step::Update { failed() } else { StepOutcome::Passed });
    record.desired.version = Some("v1".to_owned());
    assert_eq!(states(&record)[2], StateValue::Pending, "what was valid before says nothing");
    let ran = run(&mut record, &mut now, |_| StepOutcome::Passed);
    assert_eq!(steps(&ran), [Step::Update, Step::Static, Step::Dynamic, Step::Validate]);
    assert!(ran.iter().all(|(_, version)| version == "v1"));
    assert_eq!(record.running.as_deref(), Some("v1"));
}

#[test]
fn a_newer_version_is_taken_after_the_step_under_way() {
    let mut record = wanted("v2", Some("v1"));
    record.begin(Step::Update, "v2", 0, time(0));
    record.desired.version = Some("v3".to_owned());
    record.end(Step::Update, StepOutcome::Passed, time(1));
    let mut now = 1;
    let ran = run(&mut record, &mut now, |_| StepOutcome::Passed);
    assert_eq!(ran[0], (Step::Update, "v3".to_owned()));
    assert!(ran.iter().all(|(_, version)| version == "v3"));
}

#[test]
fn a_step_that_was_cut_off_runs_again_at_once() {
    let mut record = wanted("v2", Some("v1"));
    record.begin(Step::Update, "v2", 0, time(0));
    assert_eq!(record.next_step(&ALL, 0, time(0)), NextStep::Run { step: Step::Update, version: "v2".to_owned() });
    assert_eq!(states(&record)[1], StateValue::Running);
}

#[test]
fn a_clock_that_is_set_back_neither_repeats_steps_for_ever_nor_puts_retries_off() {
    // It all happened ten years ahead.
    let (mut record, mut ahead) = (wanted("v2", Some("v1")), 10 * 365 * 86_400);
    record.begin(Step::Update, "v2", 0, time(ahead));
    record.end(Step::Update, StepOutcome::Passed, time(ahead));
    let mut now = 100;
    record.correct_times(time(now));
    let ran = run(&mut record, &mut now, |_| StepOutcome::Passed);
    assert_eq!(steps(&ran), [Step::Static, Step::Dynamic, Step::Validate]);
    assert_eq!((record.running.as_deref(), record.running_since), (Some("v2"), Some(time(now))));

    record.desired.version = Some("v3".to_owned());
    run(&mut record, &mut ahead, |step| if step == Step::Update { failed() } else { StepOutcome::Passed });
    record.correct_times(time(now));
    assert_eq!(record.next_step(&ALL, 0, time(now)), NextStep::Wait { until: Some(time(now + 10)) });
    record.correct_times(time(now + 10));
    let ran = run(&mut record, &mut (now + 10), |_| StepOutcome::Passed);
    assert_eq!(ran[0], (Step::Update, "v3".to_owned()));
}

#[test]
fn a_machine_that_is_validated_again_stays_valid_meanwhile() {
    let (mut record, mut now) = (wanted("v1", None), 0);
    run(&mut record, &mut now, |_| StepOutcome::Passed);
    record.begin(Step::Validate, "v1", 0, time(now + 300));
    assert_eq!(states(&record), [StateValue::Success; 3]);
    record.begin(Step::Validate, "v1", 0, time(now + 310));
    assert_eq!(states(&record), [StateValue::Success; 3], "cut off and begun again");
    record.end(Step::Validate, failed(), time(now + 320));
    assert_eq!(states(&record)[2], StateValue::Failed);
}

#[test]
fn a_state_that_stays_keeps_its_time() {
    let (mut record, mut now) = (wanted("v1", None), 0);
    run(&mut record, &mut now, |_| StepOutcome::Passed);
    let first = report(&record, &ALL, &MachineStatus::default(), time(100));
    let later = report(&record, &ALL, &first, time(200));
    assert_eq!(first, later);
}

proptest! {
    /// Whatever fails and however often the wanted version changes: a version runs only after it was validated, and a machine
    /// whose steps pass from some time on ends at what is wanted.
    #[test]
    fn a_machine_ends_at_what_is_wanted_once_its_steps_pass(
        turns in prop::collection::vec((0..4_u8, any::<u8>(), any::<bool>(), -400_i64..400), 0..60),
    ) {
        let mut record = StepRecord { was_provisioned: true, ..StepRecord::default() };
        let (mut now, mut validated) = (0, Vec::new());
        for (version, chance, passes, clock) in turns {
            // Every now and then somebody sets the clock.
            now += i64::from(chance) * 5 + if clock % 7 == 0 { clock * 10_000 } else { 0 };
            record.correct_times(time(now));
            record.desired = DesiredVersion { version: Some(format!("v{version}")), drain: chance % 2 == 0 };
            if let NextStep::Run { step, version } = record.next_step(&ALL, u64::from(chance % 3), time(now)) {
                record.begin(step, &version, u64::from(chance % 3), time(now));
                record.end(step, if passes { StepOutcome::Passed } else { failed() }, time(now + 1));
                if step == Step::Validate && passes {
                    validated.push(version);
                }
            }
            prop_assert_eq!(record.running.as_ref(), validated.last());
        }
        record.desired.version = Some("last".to_owned());
        for _ in 0..20 {
            now += 700;
            record.correct_times(time(now));
            run(&mut record, &mut now, |_| StepOutcome::Passed);
        }
        prop_assert_eq!(record.running.as_deref(), Some("last"));
    }
}
