//! Plans, step by step in a model: what the plan asks for happens, and what it reports is what it sees next.

use jiff::ToSpan;
use mainstay_api::{config_template::result, machine_file::FileAttributes};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::config_templates::{
    consumers::{ConsumerContainer, ConsumerState},
    machines::MachineTarget,
    notify::NotifyResult,
};

/// A cluster with one template.
struct Model {
    template: ConfigTemplate,
    content: Result<String, RenderFailure>,
    output: OutputState,
    consumers: Vec<ConsumerView>,
    former: Vec<FormerConsumer>,
    now: Timestamp,
    /// Versions that make a consumer fail when it is notified.
    bad: Vec<String>,
    /// Versions that the validate command refuses.
    invalid: Vec<String>,
    evicted: Vec<String>,
    /// So many replacements begin before anybody gave them a version.
    early: usize,
    former_files: Vec<FormerFile>,
    moved: Vec<(String, String)>,
}

fn consumer(name: &str) -> ConsumerView {
    ConsumerView {
        name: name.to_owned(),
        uid: format!("{name}-uid"),
        action: PodAction::Signal { container: "c".to_owned(), signal: "SIGHUP".to_owned() },
        containers: ["c", "d"].map(|name| ConsumerContainer { name: name.to_owned(), is_running: true }).into(),
        state: None,
        files: None,
        begun_with: None,
        started: true,
        running: true,
        deleting: false,
        waits: false,
        needs_met: None,
        health: Health::Healthy { since: Timestamp::UNIX_EPOCH },
        restarts: 0,
        crash: None,
        machine: None,
    }
}

fn machine(name: &str) -> ConsumerView {
    let containers = Vec::new();
    let file = FileAttributes { path: "/etc/zones.conf".to_owned(), ..FileAttributes::default() };
    let machine = Some(MachineTarget { node: name.to_owned(), file, existing: None });
    let (action, running) = (PodAction::Nothing, false);
    ConsumerView { name: format!("node/{name}"), action, running, machine, containers, ..consumer(name) }
}

impl Model {
    fn new(spec: serde_json::Value, consumers: usize) -> Self {
        let mut template: ConfigTemplate = serde_json::from_value(json!({
            "metadata": { "name": "zones", "namespace": "shop", "uid": "u", "generation": 1 },
            "spec": {
                "inputs": [{ "name": "db", "service": { "name": "db" } }],
                "template": "x",
                "output": { "configMap": { "name": "zones", "key": "zones.conf" } },
                "consumers": [{ "selector": { "matchLabels": { "app": "web" } } }],
            },
        }))
        .unwrap();
        let mut merged = serde_json::to_value(&template.spec).unwrap();
        merged.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        template.spec = serde_json::from_value(merged).unwrap();
        let consumers = (0..consumers).map(|number| consumer(&format!("web-{number}"))).collect();
        Self {
            template,
            content: Ok("one".to_owned()),
            output: OutputState::default(),
            consumers,
            former: Vec::new(),
            now: Timestamp::UNIX_EPOCH + 100.seconds(),
            bad: Vec::new(),
            invalid: Vec::new(),
            evicted: Vec::new(),
            early: 0,
            former_files: Vec::new(),
            moved: Vec::new(),
        }
    }

    fn world(&self) -> World {
        let result =
            self.content.clone().map(|text| RenderedVersion { version: version(&text), content: Content(text) });
        let digest = result.as_ref().map(|rendered| rendered.version.clone()).unwrap_or_default();
        let rendered = Rendered { result, digests: [("db".to_owned(), digest)].into(), managers: Default::default() };
        World {
            template: Arc::new(self.template.clone()),
            quiet_until: None,
            rendered: Some(rendered),
            output: self.output.clone(),
            consumers: self.consumers.clone(),
            former: self.former.clone(),
            former_files: self.former_files.clone(),
            read_copies: self.consumers.iter().filter_map(|consumer| consumer.files.clone()).collect(),
            left_behind: Vec::new(),
        }
    }

    /// One reconcile; says how many actions there were.
    fn step(&mut self) -> usize {
        let Plan { actions, status, requeue_at } = plan(&self.world(), self.now);
        let count = actions.len();
        let outcomes: Vec<Result<Outcome, crate::runtime::ApiError>> =
            actions.into_iter().map(|action| Ok(self.apply(action))).collect();
        let status = status.expect("a status");
        if status.is_interim {
            return count;
        }
        let (status, _) = status.finish(&self.template, &outcomes, self.now);
        let changed = self.template.status.as_ref() != Some(&status);
        self.template.status = Some(status);
        if let Some(at) = requeue_at.filter(|_| count == 0 && !changed) {
            self.now = self.now.max(at);
        }
        count + usize::from(changed)
    }

    fn apply(&mut self, action: Action) -> Outcome {
        match action {
            Action::WriteOutput { content, .. } => {
                let written = match content {
                    VersionContent::Rendered(Content(text)) => version(&text),
                    VersionContent::Copy(name) => {
                        self.output.copies.iter().find(|copy| copy.name == name).unwrap().version.clone()
                    }
                };
                (self.output.version, self.output.exists) = (Some(written), true);
                return Outcome::Written;
            }
            Action::MakeCopy(NewCopy { version, .. }) => {
                let name = format!("zones-{version}");
                self.output.copies.push(Copy { uid: name.clone(), name, version, is_shared: false });
            }
            Action::DeleteCopy { name, .. } => self.output.copies.retain(|copy| copy.name != name),
            Action::Validate(request) => {
                let valid = !self.invalid.contains(&version(&request.content.0));
                return if valid { Outcome::Valid } else { Outcome::Invalid(format!("pod {}: exit 1", request.pod)) };
            }
            Action::SetConsumer(change) => {
                self.moved.push((change.pod.clone(), change.state.version.clone()));
                self.set(change);
            }
            Action::Notify { change, .. } => {
                let bad = self.bad.contains(&change.state.version);
                let result = if bad { NotifyResult::Failed("exit 1".to_owned()) } else { NotifyResult::Notified };
                self.set(change.finished(result, self.now));
            }
            Action::Evict { pod, .. } => {
                self.consumers.retain(|consumer| consumer.name != pod);
                let replacement = format!("{pod}x");
                let begun = self.early > 0;
                self.early = self.early.saturating_sub(1);
                let fresh = ConsumerView {
                    action: PodAction::Restart,
                    started: begun,
                    running: begun,
                    health: Health::Unhealthy { since: self.now },
                    ..consumer(&replacement)
                };
                self.consumers.push(fresh);
                self.evicted.push(pod);
            }
            Action::Release { former, .. } => self.former.retain(|own| *own != former),
            Action::SetFile(FileChange { machine, version, assigned, .. }) => {
                self.moved.push((machine.node.clone(), version.clone()));
                let is_it = |own: &&mut ConsumerView| own.machine.as_ref().is_some_and(|own| own.node == machine.node);
                let consumer = self.consumers.iter_mut().find(is_it).unwrap();
                consumer.files = Some(format!("zones-{version}"));
                let state = ConsumerState {
                    version,
                    step: Step::Assigned,
                    time: Time(assigned),
                    restarts: 0,
                    message: String::new(),
                };
                consumer.state = Some(state);
            }
            Action::Forget(left) => panic!("the template is there: {left:?}"),
            Action::DeleteFile(former) => self.former_files.retain(|own| *own != former),
        }
        Outcome::Done
    }

    fn set(&mut self, change: ConsumerChange) {
        let consumer = self.consumers.iter_mut().find(|consumer| consumer.name == change.pod).unwrap();
        consumer.files = change.copy;
        consumer.state = Some(change.state);
    }

    /// Until nothing happens any longer.
    fn settle(&mut self) {
        for _ in 0..200 {
            let before = self.now;
            if self.step() == 0 && self.now == before {
                return;
            }
            self.assert_current_is_true();
            for consumer in self.consumers.iter_mut().filter(|consumer| !consumer.started && consumer.state.is_some()) {
                (consumer.started, consumer.running) = (true, true);
                consumer.begun_with = consumer.files.clone();
                consumer.health = Health::Healthy { since: self.now };
            }
            for consumer in self.consumers.iter_mut().filter(|consumer| consumer.machine.is_some()) {
                if let Some(state) = consumer.state.as_mut().filter(|state| state.step == Step::Assigned) {
                    let is_bad = self.bad.contains(&state.version);
                    (state.step, state.time) = (if is_bad { Step::Failed } else { Step::Notified }, Time(self.now));
                }
            }
        }
        panic!("never rests: {:#?}", self.template.status);
    }

    /// Nobody is told that all machines have a file that one of them does not have.
    fn assert_current_is_true(&self) {
        let has_file = |own: &ConsumerView| {
            let state = own.state.as_ref().filter(|own| own.step == Step::Notified);
            own.machine.is_none() || own.deleting || state.map(|own| &own.version) == self.status().version.as_ref()
        };
        let lacking: Vec<&str> =
            self.consumers.iter().filter(|own| !has_file(own)).map(|own| own.name.as_str()).collect();
        assert!(self.current().0 != "Current" || lacking.is_empty(), "{lacking:?} lack the file");
    }

    fn render(&mut self, content: &str) {
        self.content = Ok(content.to_owned());
    }

    fn status(&self) -> &mainstay_api::config_template::ConfigTemplateStatus {
        self.template.status.as_ref().unwrap()
    }

    fn current(&self) -> (&str, &str) {
        let condition = self.status().conditions.iter().find(|own| own.type_ == "Current").unwrap();
        (&condition.reason, &condition.message)
    }

    /// The version that each consumer reads.
    fn read_versions(&self) -> Vec<String> {
        let own = |consumer: &ConsumerView| consumer.state.as_ref().map(|state| state.version.clone());
        self.consumers
            .iter()
            .map(|consumer| own(consumer).or(self.output.version.clone()).unwrap_or_default())
            .collect()
    }

    fn results(&self) -> Vec<&str> {
        self.status().history.iter().map(|entry| entry.result.as_str()).collect()
    }
}

fn waves(waves: serde_json::Value) -> serde_json::Value {
    json!({ "rollout": { "waves": waves, "maxUnavailable": 1, "progressDeadlineSeconds": 60 } })
}

#[test]
fn the_first_version_is_written_at_once_and_then_nothing_happens() {
    let mut model = Model::new(json!({}), 3);
    model.settle();
    assert_eq!(model.output.version, Some(version("one")));
    assert_eq!(model.current(), ("Current", ""));
    assert_eq!((model.step(), model.moved.len()), (0, 0), "an unchanged result touches nobody");
    assert_eq!(model.results(), [result::SUCCEEDED]);
    assert_eq!(model.status().consumers, Some(ConsumerCounts { total: 3, updated: 3, healthy: 3 }));
}

#[test]
fn a_version_reaches_one_consumer_and_then_the_others() {
    let mut model = Model::new(waves(json!([1])), 4);
    model.settle();
    model.render("two");
    while model.moved.is_empty() {
        model.step();
    }
    assert_eq!(model.moved, [("web-0".to_owned(), version("two"))]);
    assert_eq!(model.output.version, Some(version("one")), "pods that start have the last good version");
    assert_eq!(model.current().0, "Progressing");
    model.settle();
    assert_eq!(model.read_versions(), vec![version("two"); 4]);
    assert_eq!(model.output.version, Some(version("two")));
    assert_eq!(model.results(), [result::SUCCEEDED, result::SUCCEEDED]);
    assert_eq!(model.status().history[0].changed, ["db"]);
}

#[test]
fn a_bad_version_reaches_one_consumer_is_taken_back_and_not_tried_again() {
    let mut model = Model::new(waves(json!([1])), 4);
    model.settle();
    model.bad.push(version("two"));
    model.render("two");
    model.settle();
    assert_eq!(model.moved, [("web-0".to_owned(), version("two")), ("web-0".to_owned(), version("one"))]);
    assert_eq!(model.read_versions(), vec![version("one"); 4]);
    assert_eq!(model.output.version, Some(version("one")));
    let (reason, message) = model.current();
    assert_eq!(reason, "RolledBack");
    assert!(
        message.contains("web-0 (exit 1)") && message.ends_with(&format!("consumers have {}", version("one"))),
        "{message}"
    );
    assert_eq!(model.results(), [result::ROLLED_BACK, result::SUCCEEDED]);
    model.render("three");
    model.settle();
    assert_eq!(model.read_versions(), vec![version("three"); 4]);
    assert_eq!(model.current(), ("Current", ""));
}

#[test]
fn a_consumer_that_crashes_with_a_version_or_is_not_well_in_time_takes_it_back() {
    for crash in [true, false] {
        let mut model = Model::new(waves(json!([1, "100%"])), 3);
        model.settle();
        model.render("two");
        while !model.consumers.iter().any(|own| own.state.as_ref().is_some_and(|state| state.step == Step::Notified)) {
            model.step();
        }
        let now = model.now;
        let consumer = &mut model.consumers[0];
        consumer.health = Health::Unhealthy { since: now };
        if crash {
            (consumer.restarts, consumer.crash) = (1, Some("container c ended with 1".to_owned()));
        } else {
            model.step();
            model.now = now + 61.seconds();
        }
        while model.status().rejected.is_none() {
            model.step();
        }
        model.consumers[0].health = Health::Healthy { since: now };
        model.settle();
        assert_eq!(model.read_versions(), vec![version("one"); 3]);
        assert_eq!(model.current().0, "RolledBack");
    }
}

#[test]
fn a_consumer_that_waits_for_what_it_needs_has_not_failed() {
    let mut model = Model::new(waves(json!([1])), 2);
    model.settle();
    model.render("two");
    while !model.consumers.iter().any(|own| own.state.as_ref().is_some_and(|state| state.step == Step::Notified)) {
        model.step();
    }
    let mut model_at = |seconds: i64, waits: bool, met: Option<Timestamp>| {
        model.now += seconds.seconds();
        let consumer = model.consumers.iter_mut().find(|own| own.state.is_some()).unwrap();
        (consumer.waits, consumer.needs_met) = (waits, met);
        consumer.health = Health::Unhealthy { since: Timestamp::UNIX_EPOCH };
        model.step();
        (model.current().0.to_owned(), model.now)
    };
    let (reason, now) = model_at(3600, true, None);
    assert_eq!(reason, "Progressing", "it has the version, and then its database went");
    assert_eq!(model_at(59, false, Some(now)).0, "Progressing", "the database is back a moment ago");
    assert_eq!(model_at(1, false, Some(now)).0, "RolledBack");
}

#[test]
fn an_invalid_version_reaches_nobody() {
    let mut model = Model::new(json!({ "validate": { "command": ["check"] } }), 2);
    model.settle();
    model.invalid.push(version("two"));
    model.render("two");
    model.settle();
    assert_eq!((model.moved.len(), model.output.version.clone()), (0, Some(version("one"))));
    assert_eq!(model.current().0, "ValidationFailed");
    assert_eq!(model.results()[0], result::INVALID);
    model.render("three");
    model.settle();
    assert_eq!(model.read_versions(), vec![version("three"); 2]);
}

#[test]
fn a_container_that_no_consumer_has_is_named_instead_of_waited_for() {
    let mut model = Model::new(json!({ "validate": { "command": ["check"], "container": "nope" } }), 2);
    model.consumers.clear();
    model.settle();
    model.consumers = vec![consumer("web-0"), consumer("web-1")];
    model.render("two");
    model.settle();
    let (reason, message) = model.current();
    assert_eq!(reason, "ValidationFailed");
    assert!(message.contains("spec.validate.container: no consumer has a container \"nope\""), "{message}");
    assert_eq!(model.read_versions(), vec![version("one"); 2]);
    // The second container is one.
    model.template.spec.validate.as_mut().unwrap().container = Some("d".to_owned());
    model.template.metadata.generation = Some(2);
    model.settle();
    assert_eq!(model.read_versions(), vec![version("two"); 2], "a changed template is tried again");

    let mut model = Model::new(waves(json!([1])), 3);
    for consumer in &mut model.consumers {
        consumer.action = PodAction::Signal { container: "nope".to_owned(), signal: "SIGHUP".to_owned() };
        consumer.running = false; // no such container runs
    }
    model.settle();
    model.render("two");
    model.settle();
    let (reason, message) = model.current();
    assert!(reason == "RolledBack" && message.contains("the pod has no container \"nope\""), "{reason}: {message}");
}

#[test]
fn what_could_not_be_asked_is_said_while_it_is_tried_again() {
    let mut model = Model::new(json!({ "validate": { "command": ["check"] } }), 1);
    model.consumers.clear();
    model.settle();
    model.consumers = vec![consumer("web-0")];
    model.render("two");
    loop {
        let Plan { actions, status, .. } = plan(&model.world(), model.now);
        let Some(Action::Validate(_)) = actions.first() else {
            model.step();
            continue;
        };
        let broken = crate::runtime::ApiError::other("run a command in pod web-0", std::io::Error::other("no route"));
        let (status, _) = status.unwrap().finish(&model.template, &[Err(broken)], model.now);
        model.template.status = Some(status);
        break;
    }
    assert_eq!(model.current(), ("Validating", "run a command in pod web-0: no route"));
    model.settle();
    assert_eq!(model.current(), ("Current", ""));
}

#[test]
fn a_template_that_cannot_be_rendered_keeps_the_last_good_version_and_names_the_line() {
    let mut model = Model::new(json!({}), 1);
    model.settle();
    let error = TemplateError { line: Some(3), problem: "undefined value".to_owned(), detail: None };
    model.content = Err(RenderFailure::Template(error));
    model.settle();
    let expected = format!("spec.template: line 3: undefined value; consumers have {}", version("one"));
    assert_eq!(model.current(), ("RenderFailed", expected.as_str()));
    assert_eq!(model.output.version, Some(version("one")));
    model.content = Err(RenderFailure::InputMissing("spec.inputs[0] (db): service \"db\" does not exist".to_owned()));
    model.settle();
    assert_eq!(model.current().0, "InputMissing");
}

#[test]
fn paused_nothing_moves_and_pinned_all_return() {
    let mut model = Model::new(json!({}), 3);
    model.settle();
    model.template.spec.paused = true;
    model.render("two");
    model.settle();
    assert_eq!((model.current().0, model.moved.len()), ("Paused", 0));
    model.template.spec.paused = false;
    model.settle();
    assert_eq!(model.read_versions(), vec![version("two"); 3]);
    model.template.spec.pinned_version = Some(version("one"));
    model.settle();
    assert_eq!(model.read_versions(), vec![version("one"); 3]);
    assert_eq!((model.current().0, model.output.version.clone()), ("Pinned", Some(version("one"))));
    model.render("three");
    model.settle();
    assert_eq!(model.read_versions(), vec![version("one"); 3], "what is rendered waits");
    model.template.spec.pinned_version = None;
    model.settle();
    assert_eq!(model.read_versions(), vec![version("three"); 3]);
    model.template.spec.pinned_version = Some("0123456789".to_owned());
    model.settle();
    assert_eq!(model.current().0, "UnknownVersion");
    assert_eq!(model.read_versions(), vec![version("three"); 3]);
}

#[test]
fn restarted_consumers_are_evicted_one_by_one_and_their_successors_start_with_the_version() {
    let mut model = Model::new(waves(json!([1])), 3);
    model.consumers.iter_mut().for_each(|consumer| consumer.action = PodAction::Restart);
    model.settle();
    model.render("two");
    while model.evicted.is_empty() {
        model.step();
    }
    assert_eq!(model.evicted, ["web-0"]);
    model.step();
    assert_eq!(model.evicted, ["web-0"], "the next one only when its successor is well");
    model.settle();
    assert_eq!(model.evicted, ["web-0", "web-1", "web-2"]);
    assert_eq!(model.read_versions(), vec![version("two"); 3]);
    assert_eq!(model.current(), ("Current", ""));
}

#[test]
fn a_replacement_that_began_before_it_was_given_the_version_is_evicted_once_more() {
    let mut model = Model::new(waves(json!([1])), 2);
    model.consumers.iter_mut().for_each(|consumer| consumer.action = PodAction::Restart);
    model.settle();
    model.render("two");
    model.early = 1;
    model.settle();
    assert_eq!(model.current().0, "Current");
    let copy = model.output.copy(&version("two")).map(str::to_owned);
    let begun: Vec<_> = model.consumers.iter().map(|own| own.begun_with.clone()).collect();
    assert_eq!(begun, [copy.clone(), copy], "the environment of all is of the version");
    assert_eq!(model.evicted.len(), 3, "{:?}", model.evicted);
    // One that was given the version, but whose containers were made a moment before.
    let mut model = Model::new(waves(json!([])), 1);
    model.consumers[0] = ConsumerView { action: PodAction::Restart, started: false, running: false, ..consumer("a") };
    model.settle();
    model.render("two");
    model.step();
    model.step();
    assert_eq!(model.consumers[0].state.as_ref().map(|own| own.step), Some(Step::Assigned));
    (model.consumers[0].started, model.consumers[0].running) = (true, true);
    model.consumers[0].begun_with = Some(String::new());
    model.settle();
    assert_eq!(model.evicted, ["a"]);
}

#[test]
fn machines_get_the_file_in_waves_and_a_bad_version_is_taken_back() {
    let mut model = Model::new(waves(json!([1])), 0);
    model.consumers = (0..4).map(|number| machine(&format!("n{number}"))).collect();
    model.settle();
    let moved = |model: &mut Model| std::mem::take(&mut model.moved);
    let first: Vec<String> = moved(&mut model).into_iter().map(|(node, _)| node).collect();
    assert_eq!(first, ["n0", "n1", "n2", "n3"], "one after the other");
    assert_eq!(model.current(), ("Current", ""));
    assert_eq!(model.status().consumers, Some(ConsumerCounts { total: 4, updated: 4, healthy: 4 }));
    model.render("bad");
    model.bad.push(version("bad"));
    model.settle();
    assert_eq!(model.current().0, "RolledBack");
    assert_eq!(moved(&mut model), [("n0".to_owned(), version("bad")), ("n0".to_owned(), version("one"))]);
    model.render("two");
    model.settle();
    assert_eq!(moved(&mut model).len(), 4);
    // One more machine, and one that leaves.
    model.consumers.push(machine("n9"));
    model.former_files.push(FormerFile { name: "zones.gone".to_owned(), uid: "u".to_owned() });
    model.settle();
    assert_eq!(moved(&mut model), [("n9".to_owned(), version("two"))]);
    assert!(model.former_files.is_empty());
}

#[test]
fn a_machine_that_falls_silent_keeps_its_file_and_holds_up_no_other() {
    let rollout = json!({ "maxUnavailable": 2, "progressDeadlineSeconds": 60 });
    let mut model = Model::new(json!({ "rollout": rollout }), 0);
    model.consumers = (0..2).map(|number| machine(&format!("n{number}"))).collect();
    model.settle();
    assert_eq!(model.current(), ("Current", ""));
    let silent = Health::Unknown { since: model.now };
    model.consumers[0].health = silent.clone();
    model.now += 9000.seconds();
    model.settle();
    assert_eq!(model.current(), ("Current", ""), "it has the file");
    // One that falls silent before it has the file.
    model.consumers.push(ConsumerView { health: silent, ..machine("n8") });
    model.settle();
    assert_eq!(model.current().0, "Placing");
    assert!(model.current().1.contains("nothing heard of node/n8"), "{:?}", model.current());
    model.consumers.push(machine("n9"));
    model.consumers[0].health = Health::Healthy { since: model.now };
    model.settle();
    assert_eq!(model.moved.last().map(|(node, _)| node.as_str()), Some("n9"));
}

#[test]
fn a_template_is_not_current_while_machines_lack_their_file_whatever_keeps_them_from_it() {
    let mut model = Model::new(json!({ "rollout": { "waves": [1], "maxUnavailable": 3 } }), 0);
    model.consumers = (0..3).map(|number| machine(&format!("n{number}"))).collect();
    model.step();
    assert_eq!(model.current().0, "Placing", "the output is written");
    model.step();
    assert_eq!(model.current(), ("Placing", "no file yet: node/n0, node/n1, node/n2"), "its copy is made");
    model.template.spec.paused = true;
    model.step();
    assert_eq!(model.current().0, "Paused");
    model.template.spec.paused = false;
    // Nodes that have not said yet whether they are ready.
    for consumer in &mut model.consumers[1..] {
        consumer.health = Health::Unknown { since: model.now };
    }
    model.settle();
    assert_eq!(model.moved, [("n0".to_owned(), version("one"))]);
    assert_eq!(model.current(), ("Placing", "wave 2: nothing heard of node/n1, node/n2"));
    assert_eq!(model.status().consumers, Some(ConsumerCounts { total: 3, updated: 1, healthy: 1 }));
    for consumer in &mut model.consumers[1..] {
        consumer.health = Health::Healthy { since: model.now };
    }
    model.settle();
    assert_eq!((model.current(), model.moved.len()), (("Current", ""), 3));
}

#[test]
fn a_first_version_that_machines_cannot_have_reaches_no_more_of_them() {
    let mut model = Model::new(waves(json!([1])), 0);
    model.consumers = (0..4).map(|number| machine(&format!("n{number}"))).collect();
    model.bad.push(version("one"));
    model.settle();
    assert_eq!(model.moved, [("n0".to_owned(), version("one"))]);
    assert_eq!(model.current().0, "MachinesFailed");
}

#[test]
fn a_key_that_somebody_else_has_is_a_conflict_and_the_version_is_not_current() {
    let mut model = Model::new(json!({}), 0);
    let world = model.world();
    let report = plan(&world, model.now).status.unwrap();
    let message = "Apply failed with 1 conflict: conflict with \"kubectl\": .data.zones.conf".to_owned();
    let (status, events) = report.finish(&model.template, &[Ok(Outcome::Refused(message.clone()))], model.now);
    model.template.status = Some(status);
    assert_eq!(model.current(), ("Conflict", message.as_str()));
    assert_eq!((model.status().version.as_ref(), events.len()), (None, 2));
}

#[test]
fn old_copies_are_deleted_unless_a_pod_reads_them() {
    let mut model = Model::new(json!({ "historyLimit": 2 }), 1);
    for content in ["one", "two", "three", "four"] {
        model.render(content);
        model.settle();
    }
    let mut copies: Vec<String> = model.output.copies.iter().map(|copy| copy.version.clone()).collect();
    copies.sort();
    let mut expected = vec![version("three"), version("four")];
    expected.sort();
    assert_eq!(copies, expected);
    // Somebody who is no consumer any longer reads an old one until it is released.
    model.former.push(FormerConsumer { pod: "other".to_owned(), uid: "u".to_owned() });
    let mut world = model.world();
    world.read_copies.insert(format!("zones-{}", version("three")));
    model.template.spec.history_limit = Some(1);
    let Plan { actions, .. } = plan(&world, model.now);
    assert!(matches!(&actions[..], [Action::Release { .. }]), "{actions:?}");
}

proptest! {
    /// Whatever versions are bad, nobody is left with one, never more consumers move at once than may, and it comes to rest.
    #[test]
    fn rollouts_end_with_a_version_that_is_good(
        size in 1_usize..12,
        first in 1_usize..4,
        contents in proptest::collection::vec((0_u8..6, any::<bool>()), 1..8),
    ) {
        let mut model = Model::new(waves(json!([first, "50%"])), size);
        model.settle();
        let bad: Vec<String> = contents.iter().filter(|(_, bad)| *bad).map(|(number, _)| version(&format!("v{number}"))).collect();
        model.bad = bad.clone();
        for (number, _) in contents {
            model.render(&format!("v{number}"));
            for _ in 0..200 {
                let before = model.now;
                let reads = model.read_versions();
                let idle = model.step() == 0 && model.now == before;
                let good = model.status().version.clone();
                let towards_bad = reads.iter().zip(model.read_versions()).filter(|(old, new)| *old != new && Some(new) != good.as_ref());
                prop_assert!(towards_bad.count() <= 1, "more than maxUnavailable at once");
                if idle {
                    break;
                }
            }
            let reads = model.read_versions();
            prop_assert!(reads.iter().all(|read| Some(read) == model.output.version.as_ref()), "{reads:?}");
            prop_assert!(!bad.contains(model.output.version.as_ref().unwrap()));
        }
    }
}
