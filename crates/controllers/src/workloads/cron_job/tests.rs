//! Single steps of a CronJob, and stories of many.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::{api::batch::v1::CronJobStatus, apimachinery::pkg::apis::meta::v1::Time};
use proptest::prelude::*;
use serde_json::json;

use super::plan::{Action, Concurrency, Desired, JobView, Report, World, plan};
use crate::runtime::Plan;

const MINUTE: i64 = 60;
/// A whole minute, the thousandth.
const NOW: i64 = 60_000;

fn at_second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn desired() -> Desired {
    Desired {
        namespace: "ns".into(),
        name: "c".into(),
        created: at_second(NOW - 30),
        schedule: "* * * * *".into(),
        policy: Concurrency::Allow,
        patience: None,
        suspended: false,
        leaving: false,
        keep: [Some(3), Some(1)],
    }
}

fn world(want: Desired, jobs: Vec<JobView>) -> World {
    let mut world =
        World { want, version: "7".into(), status: CronJobStatus::default(), jobs, zone: Ok(TimeZone::UTC) };
    world.status = plan(&world, at_second(NOW)).status.map_or(CronJobStatus::default(), |report| report.status);
    world
}

/// The Job of a minute.
fn job(minute: i64, ended: Option<bool>) -> JobView {
    let over = ended.map(|_| at_second(minute * MINUTE + 30));
    JobView {
        name: format!("c-{minute}"),
        uid: format!("u{minute}"),
        scheduled: Some(at_second(minute * MINUTE)),
        ended,
        started: Some(at_second(minute * MINUTE)),
        completed: over.filter(|_| ended == Some(true)),
        leaving: false,
    }
}

fn deeds(plan: &Plan<Action, Report>) -> Vec<String> {
    let deed = |action: &Action| match action {
        Action::Delete { name, .. } => format!("delete {name}"),
        Action::Start { name, .. } => format!("start {name}"),
        Action::RecordEvent(note) => note.reason.clone().into_owned(),
    };
    plan.actions.iter().map(deed).collect()
}

#[test]
fn a_job_is_started_when_one_is_due_and_recorded_once_it_is_there() {
    let mut world = world(desired(), vec![]);
    let early = plan(&world, at_second(NOW - 1));
    assert_eq!((deeds(&early), early.requeue_at), (vec![], Some(at_second(NOW))));
    let due = plan(&world, at_second(NOW));
    assert_eq!((deeds(&due), due.requeue_at), (vec!["start c-1000".to_owned()], Some(at_second(NOW + MINUTE))));
    assert_eq!(due.status, None, "nothing is on record that is not there");

    world.jobs.push(job(1000, None));
    let report = plan(&world, at_second(NOW + 1)).status.unwrap();
    let expected = json!({
        "active": [{ "apiVersion": "batch/v1", "kind": "Job", "namespace": "ns", "name": "c-1000", "uid": "u1000" }],
        "lastScheduleTime": "1970-01-01T16:40:00Z",
    });
    assert_eq!(serde_json::to_value(&report.status).unwrap(), expected);
    world.status = report.status;
    let rest = plan(&world, at_second(NOW + 1));
    assert_eq!((deeds(&rest), rest.requeue_at), (vec![], Some(at_second(NOW + MINUTE))));

    world.jobs[0] = job(1000, Some(true));
    let report = plan(&world, at_second(NOW + 40)).status.unwrap();
    assert_eq!(report.events[0].message, "Saw completed job: c-1000, status: Complete");
    let expected = json!({ "lastScheduleTime": "1970-01-01T16:40:00Z", "lastSuccessfulTime": "1970-01-01T16:40:30Z" });
    assert_eq!(serde_json::to_value(&report.status).unwrap(), expected);
}

#[test]
fn two_times_within_a_minute_share_a_job_even_one_that_is_gone() {
    let mut world = world(Desired { schedule: "@every 45s".into(), ..desired() }, vec![]);
    world.status.last_schedule_time = Some(Time(at_second(NOW + 5)));
    let later = plan(&world, at_second(NOW + 50));
    assert_eq!((deeds(&later), later.requeue_at), (vec![], Some(at_second(NOW + 95))));
    assert_eq!(deeds(&plan(&world, at_second(NOW + 95))), ["start c-1001"]);
}

#[test]
fn what_runs_already_is_tolerated_waited_for_or_replaced() {
    for (policy, expected) in [
        (Concurrency::Allow, &["start c-1000"][..]),
        (Concurrency::Forbid, &["JobAlreadyActive"]),
        (Concurrency::Replace, &["delete c-999", "start c-1000"]),
    ] {
        let world = world(Desired { policy, ..desired() }, vec![job(999, None)]);
        let plan = plan(&world, at_second(NOW));
        assert_eq!(deeds(&plan), expected);
        assert_eq!(plan.requeue_at, Some(at_second(NOW + MINUTE)));
    }
    let ended = world(Desired { policy: Concurrency::Forbid, ..desired() }, vec![job(999, Some(true))]);
    assert_eq!(deeds(&plan(&ended, at_second(NOW + 30))), ["start c-1000"], "late, but now there is room");
}

#[test]
fn missed_starts_are_made_good_once_if_that_is_not_too_late() {
    let long_ago = |minutes: i64| at_second(NOW - minutes * MINUTE - 30);
    for (created, patience, expected) in [
        (long_ago(5), None, &["start c-1000"][..]),
        (long_ago(100), None, &["TooManyMissedTimes", "start c-1000"]),
        (long_ago(1_000_000 / 60), None, &["TooManyMissedTimes", "start c-1000"]),
        (long_ago(200), Some(600), &["start c-1000"]),
        (long_ago(5), Some(15), &["MissSchedule"]),
    ] {
        let patience = patience.map(SignedDuration::from_secs);
        let world = world(Desired { created, patience, ..desired() }, vec![]);
        assert_eq!(deeds(&plan(&world, at_second(NOW + 20))), expected, "{patience:?}");
    }
    let late = world(Desired { patience: Some(SignedDuration::from_secs(15)), ..desired() }, vec![]);
    let plan = plan(&late, at_second(NOW + 20));
    let Action::RecordEvent(say) = &plan.actions[0] else { panic!() };
    assert_eq!(say.message, "Missed scheduled time to start a job: Thu, 01 Jan 1970 16:40:00 +0000");
}

#[test]
fn old_jobs_are_not_kept_for_ever() {
    let jobs = vec![
        job(990, Some(true)),
        job(991, Some(false)),
        job(992, Some(true)),
        job(993, Some(false)),
        job(994, Some(true)),
        job(995, Some(true)),
        job(996, None),
    ];
    let paused = Desired { suspended: true, ..desired() };
    let found = plan(&world(paused.clone(), jobs.clone()), at_second(NOW));
    assert_eq!((deeds(&found), found.requeue_at), (vec!["delete c-990".to_owned(), "delete c-991".to_owned()], None));
    let none = Desired { keep: [Some(0), None], ..paused };
    let found = plan(&world(none, jobs), at_second(NOW));
    assert_eq!(deeds(&found), ["delete c-990", "delete c-992", "delete c-994", "delete c-995"]);
}

#[test]
fn what_cannot_be_started_is_reported() {
    let impossible = world(Desired { schedule: "0 0 31 2 *".into(), ..desired() }, vec![]);
    assert_eq!(deeds(&plan(&impossible, at_second(NOW))), ["InvalidSchedule"]);
    let nonsense = world(Desired { schedule: "often".into(), ..desired() }, vec![]);
    assert_eq!(deeds(&plan(&nonsense, at_second(NOW))), ["UnparseableSchedule"]);
    let nowhere = World { zone: Err("invalid timeZone".into()), ..world(desired(), vec![]) };
    assert_eq!(deeds(&plan(&nowhere, at_second(NOW))), ["UnknownTimeZone"]);
    for want in [Desired { suspended: true, ..desired() }, Desired { leaving: true, ..desired() }] {
        assert_eq!(plan(&world(want, vec![]), at_second(NOW)), Plan::default());
    }
}

#[test]
fn jobs_of_others_making_are_seen_and_not_counted() {
    let manual = JobView { name: "by-hand".into(), scheduled: None, ..job(1, None) };
    let world = world(Desired { policy: Concurrency::Forbid, ..desired() }, vec![manual]);
    assert_eq!(deeds(&plan(&world, at_second(NOW))), ["UnexpectedJob", "start c-1000"]);
}

#[test]
fn a_job_that_claims_a_time_to_come_holds_nothing_up() {
    let world = world(desired(), vec![job(2000, None)]);
    assert_eq!(world.status.last_schedule_time, None);
    assert_eq!(deeds(&plan(&world, at_second(NOW))), ["start c-1000"]);
}

#[test]
fn an_active_job_that_vanished_is_struck_off() {
    let mut world = world(desired(), vec![job(1000, None)]);
    world.jobs.clear();
    let report = plan(&world, at_second(NOW)).status.unwrap();
    assert_eq!(report.events[0].message, "Active job went missing: c-1000");
    assert_eq!(report.status.active, None);
    assert_eq!(report.status.last_schedule_time, Some(Time(at_second(NOW))), "its time has been");
}

#[derive(Clone, Debug)]
enum Command {
    Reconcile {
        who: usize,
        writes: usize,
    },
    Hear {
        who: usize,
    },
    End {
        which: usize,
        well: bool,
    },
    /// Somebody deletes a Job.
    Delete {
        which: usize,
    },
    Wait {
        seconds: i64,
    },
}

fn command() -> impl Strategy<Value = Command> {
    let writes = prop_oneof![2 => Just(usize::MAX), 1 => 0..3usize];
    prop_oneof![
        6 => (0..2usize, writes).prop_map(|(who, writes)| Command::Reconcile { who, writes }),
        3 => (0..2usize).prop_map(|who| Command::Hear { who }),
        2 => (0..5usize, any::<bool>()).prop_map(|(which, well)| Command::End { which, well }),
        1 => (0..5usize).prop_map(|which| Command::Delete { which }),
        3 => (1..200i64).prop_map(|seconds| Command::Wait { seconds }),
    ]
}

/// The API, and two controllers with caches of their own.
struct Model {
    want: Desired,
    now: i64,
    version: u64,
    status: CronJobStatus,
    jobs: BTreeMap<String, JobView>,
    known: [Known; 2],
    started: BTreeMap<String, usize>,
    made: usize,
}

#[derive(Clone, Default)]
struct Known {
    version: u64,
    status: CronJobStatus,
    jobs: BTreeMap<String, JobView>,
}

impl Model {
    fn truth(&self) -> Known {
        Known { version: self.version, status: self.status.clone(), jobs: self.jobs.clone() }
    }

    fn run(&mut self, command: Command) {
        match command {
            Command::Wait { seconds } => self.now += seconds,
            Command::Hear { who } => self.known[who] = self.truth(),
            Command::End { which, well } => {
                if let Some(job) = self.jobs.values_mut().filter(|job| job.ended.is_none()).nth(which) {
                    (job.ended, job.completed) = (Some(well), well.then(|| at_second(self.now)));
                }
            }
            Command::Delete { which } => {
                let recorded = self.status.last_schedule_time.as_ref().map(|Time(at)| *at);
                let named = self.jobs.values().filter(|job| job.scheduled <= recorded).nth(which);
                if let Some(name) = named.map(|job| job.name.clone()) {
                    self.jobs.remove(&name);
                }
            }
            Command::Reconcile { who, writes } => self.reconcile(who, writes),
        }
    }

    fn reconcile(&mut self, who: usize, mut writes: usize) {
        let known = self.known[who].clone();
        let mut jobs = known.jobs.clone();
        for active in known.status.active.iter().flatten() {
            let name = active.name.clone().unwrap();
            if let (false, Some(job)) = (jobs.contains_key(&name), self.jobs.get(&name)) {
                jobs.insert(name, job.clone());
            }
        }
        let world = World {
            want: self.want.clone(),
            version: known.version.to_string(),
            status: known.status,
            jobs: jobs.into_values().collect(),
            zone: Ok(TimeZone::UTC),
        };
        let plan = plan(&world, at_second(self.now));
        for action in plan.actions {
            if writes == 0 {
                self.known[who] = self.truth();
                return;
            }
            writes -= 1;
            match action {
                Action::RecordEvent(_) => {}
                Action::Delete { name, uid } => {
                    if self.jobs.get(&name).is_some_and(|job| job.uid == uid) {
                        self.jobs.remove(&name);
                    }
                    self.known[who].jobs.remove(&name);
                }
                Action::Start { name, at: due, version, alone } => {
                    let others = self.jobs.values().any(|job| job.ended.is_none());
                    if version != self.version.to_string() || (alone && others) {
                        self.known[who] = self.truth();
                        return;
                    }
                    if !self.jobs.contains_key(&name) {
                        *self.started.entry(name.clone()).or_default() += 1;
                        self.made += 1;
                        let running = self.jobs.values().filter(|job| job.ended.is_none()).count();
                        assert!(self.want.policy == Concurrency::Allow || running == 0, "{:?}", self.jobs);
                        let made = JobView {
                            uid: format!("u{}", self.made),
                            scheduled: Some(due),
                            started: Some(at_second(self.now)),
                            ..job(0, None)
                        };
                        self.jobs.insert(name.clone(), JobView { name: name.clone(), ..made });
                    }
                    self.known[who].jobs.insert(name.clone(), self.jobs[&name].clone());
                }
            }
        }
        let Some(report) = plan.status else { return };
        if writes > 0 && report.version == self.version.to_string() {
            self.status = report.status;
            self.version += 1;
            (self.known[who].version, self.known[who].status) = (self.version, self.status.clone());
        } else {
            self.known[who] = self.truth();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn no_time_gets_two_jobs_and_then_there_is_rest(
        policy in prop_oneof![Just(Concurrency::Allow), Just(Concurrency::Forbid), Just(Concurrency::Replace)],
        schedule in prop_oneof![Just("* * * * *"), Just("*/3 * * * *"), Just("@every 45s")],
        keep in (prop::option::of(0..3usize), prop::option::of(0..3usize)),
        commands in prop::collection::vec(command(), 0..60),
    ) {
        let want = Desired { policy, schedule: schedule.into(), keep: [keep.0, keep.1], ..desired() };
        let mut model = Model {
            want,
            now: NOW,
            version: 1,
            status: CronJobStatus::default(),
            jobs: BTreeMap::new(),
            known: [Known { version: 1, ..Known::default() }, Known { version: 1, ..Known::default() }],
            started: BTreeMap::new(),
            made: 0,
        };
        commands.into_iter().for_each(|command| model.run(command));
        prop_assert!(model.started.values().all(|times| *times == 1), "{:?}", model.started);
        // When everything has ended and been seen, a few reconciles are enough.
        model.jobs.values_mut().for_each(|job| job.ended = Some(true));
        for _ in 0..6 {
            model.run(Command::Hear { who: 0 });
            model.run(Command::Reconcile { who: 0, writes: usize::MAX });
            model.jobs.values_mut().for_each(|job| job.ended = Some(true));
        }
        let truth = model.truth();
        let world = World {
            want: model.want.clone(), version: String::new(), status: truth.status,
            jobs: truth.jobs.into_values().collect(), zone: Ok(TimeZone::UTC),
        };
        let last = plan(&world, at_second(model.now));
        prop_assert!(last.actions.is_empty() && last.status.is_none(), "{:?}", last);
        let retained = keep.0.unwrap_or(usize::MAX);
        prop_assert!(world.jobs.iter().filter(|job| job.ended == Some(true)).count() <= retained);
    }
}
