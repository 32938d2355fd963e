//! A Deployment among ReplicaSets that act, report and start pods in their own time.

use super::*;

#[derive(Clone, Copy, Debug)]
enum Event {
    Reconcile,
    /// A set makes and deletes pods as its size says.
    Act(usize),
    /// A set reports what it has.
    Report(usize),
    /// A pod of a set becomes available.
    Start(usize),
    Gone(usize),
    Template(u8),
    /// A pod of a set breaks for good until it is replaced.
    Break(usize),
    Scale(i32),
    Pause(bool),
    /// Somebody deletes a set.
    Lose(usize),
}

fn calm() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Reconcile),
        4 => (0..4usize).prop_map(Event::Act),
        4 => (0..4usize).prop_map(Event::Report),
        6 => (0..4usize).prop_map(Event::Start),
        2 => (0..4usize).prop_map(Event::Gone),
        1 => (0..4u8).prop_map(Event::Template),
    ]
}

fn wild() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => calm(),
        1 => (0..4usize).prop_map(Event::Break),
        1 => (0..9i32).prop_map(Event::Scale),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => (0..4usize).prop_map(Event::Lose),
    ]
}

/// The pods of a set.
#[derive(Clone, Copy, Debug, Default)]
struct Pods {
    starting: i32,
    available: i32,
    leaving: i32,
}

struct Model {
    world: World,
    /// For each set: its template, and its pods.
    truth: BTreeMap<String, (u8, Pods)>,
    template: u8,
    made: i64,
}

impl Model {
    fn new(replicas: i32, surge: i32, unavailable: i32, recreate: bool) -> Self {
        let leeway = if recreate { RolloutLimits::default() } else { RolloutLimits { surge, unavailable } };
        let want = Desired { recreate, leeway, ..want(replicas, 0, 0) };
        Self { world: world(want, vec![]), truth: BTreeMap::new(), template: 0, made: 0 }
    }

    fn look(&mut self) -> Plan<Step, Status> {
        let (world, truth) = (&mut self.world, &self.truth);
        world.want.hash = format!("{}-{}", self.template, world.standing.collision_count.unwrap_or(0));
        for set in &mut world.sets {
            set.current = truth[&set.name].0 == self.template;
        }
        world.taken = world.sets.iter().map(|set| set.name.clone()).collect();
        world.old_pods = world.sets.iter().any(|set| {
            let pods = truth[&set.name].1;
            !set.current && pods.starting + pods.available + pods.leaving > 0
        });
        plan(world, at_second(100 + self.made))
    }

    /// Returns whether there was any action or event.
    fn reconcile(&mut self) -> bool {
        let Plan { actions, status, .. } = self.look();
        let mut busy = !actions.is_empty();
        for step in actions {
            self.apply(step);
        }
        if let Some(status) = status {
            busy |= status != self.world.standing;
            self.world.standing = status;
        }
        busy
    }

    fn set(&mut self, name: &str) -> &mut Set {
        self.world.sets.iter_mut().find(|set| set.name == name).expect("a set that is there")
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::OwnershipChange(_) => {}
            Step::Annotate { set, annotations, .. } => self.set(&set.name).annotations.extend(annotations),
            Step::Revise { revision, .. } => {
                self.world.want.annotations.insert(REVISION.into(), revision.to_string());
            }
            Step::Create(create) => {
                assert!(!self.truth.contains_key(&create.name), "two of one name");
                self.made += 1;
                self.truth.insert(create.name.clone(), (self.template, Pods::default()));
                self.world.sets.push(Set {
                    annotations: create.annotations,
                    born: at_second(self.made),
                    observed: false,
                    seen: Counts::default(),
                    ..set(&create.name, 0, create.replicas, 0)
                });
            }
            Step::Scale { set, from, to, marks } => {
                let set = self.set(&set.name);
                assert_eq!(set.replicas, from);
                assert!(to >= 0);
                (set.replicas, set.observed) = (to, false);
                set.annotations.extend(marks.map(|(name, value)| (name.to_owned(), value)));
            }
            Step::Forget(set) => {
                let pods = self.truth.remove(&set.name).expect("is there").1;
                assert_eq!(pods.starting + pods.available, 0, "forgets what still runs");
                self.world.sets.retain(|known| known.name != set.name);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        let name = |at: usize| self.world.sets.get(at).map(|set| set.name.clone());
        match event {
            Event::Reconcile => {
                self.reconcile();
            }
            Event::Act(at) => name(at).into_iter().for_each(|name| self.act(&name)),
            Event::Report(at) => name(at).into_iter().for_each(|name| self.report(&name)),
            Event::Start(at) => self.pods(name(at), |pods| {
                let one = pods.starting.min(1);
                (pods.starting, pods.available) = (pods.starting - one, pods.available + one);
            }),
            Event::Break(at) => self.pods(name(at), |pods| {
                let one = pods.available.min(1);
                (pods.starting, pods.available) = (pods.starting + one, pods.available - one);
            }),
            Event::Gone(at) => self.pods(name(at), |pods| pods.leaving = 0),
            Event::Template(template) => {
                self.template = template;
                self.world.want.generation += 1;
            }
            Event::Scale(replicas) => {
                self.world.want.replicas = replicas;
                self.world.want.generation += 1;
            }
            Event::Pause(paused) => self.world.want.paused = paused,
            Event::Lose(at) => {
                if let Some(name) = name(at) {
                    self.truth.remove(&name);
                    self.world.sets.retain(|set| set.name != name);
                }
            }
        }
    }

    fn pods(&mut self, name: Option<String>, change: impl Fn(&mut Pods)) {
        if let Some((_, pods)) = name.and_then(|name| self.truth.get_mut(&name)) {
            change(pods);
        }
    }

    fn act(&mut self, name: &str) {
        let wanted = self.set(name).replicas;
        let (_, pods) = self.truth.get_mut(name).expect("is there");
        pods.starting += (wanted - pods.starting - pods.available).max(0);
        let surplus = (pods.starting + pods.available - wanted).max(0);
        let young = surplus.min(pods.starting);
        pods.starting -= young;
        pods.available -= surplus - young;
        pods.leaving += surplus;
    }

    fn report(&mut self, name: &str) {
        let Pods { starting, available, leaving } = self.truth[name].1;
        let set = self.set(name);
        set.seen = Counts { replicas: starting + available, ready: available, available, leaving };
        set.observed = true;
    }

    fn settle(&mut self) -> Result<(), TestCaseError> {
        for round in 0.. {
            prop_assert!(round < 100, "does not come to rest");
            let busy = self.reconcile();
            for name in self.truth.keys().cloned().collect::<Vec<_>>() {
                self.act(&name);
                self.pods(Some(name.clone()), |pods| {
                    *pods = Pods { available: pods.starting + pods.available, ..Pods::default() }
                });
                self.report(&name);
            }
            if !busy && !self.reconcile() {
                break;
            }
        }
        Ok(())
    }

    fn total(&self) -> (i32, i32) {
        let all = self.truth.values().map(|(_, pods)| (pods.starting + pods.available, pods.available));
        all.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn an_update_keeps_to_its_bounds(
        (replicas, surge, unavailable) in (1..9i32, 0..4i32, 0..4i32),
        events in prop::collection::vec(calm(), 0..200),
    ) {
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable }.min(replicas);
        let mut model = Model::new(replicas, surge, unavailable, false);
        model.settle()?;
        for event in events {
            model.happen(event);
            let (all, available) = model.total();
            prop_assert!(all <= replicas + surge, "{} pods after {:?}", all, event);
            prop_assert!(available >= replicas - unavailable, "{} available after {:?}", available, event);
        }
    }

    #[test]
    fn recreate_never_mixes(events in prop::collection::vec(calm(), 0..200)) {
        let mut model = Model::new(3, 0, 0, true);
        for event in events {
            model.happen(event);
            let running = model.truth.values().filter(|(_, pods)| pods.starting + pods.available + pods.leaving > 0);
            prop_assert!(running.count() <= 1, "two templates at once after {:?}", event);
        }
    }

    #[test]
    fn it_converges_and_rests_whatever_happens(
        recreate: bool,
        events in prop::collection::vec(wild(), 0..200),
    ) {
        let mut model = Model::new(4, 1, 1, recreate);
        for event in events {
            model.happen(event);
        }
        model.world.want.paused = false;
        model.settle()?;
        let want = model.world.want.replicas;
        prop_assert_eq!(model.total(), (want, want));
        for set in &model.world.sets {
            prop_assert_eq!(set.replicas, if set.current { want } else { 0 }, "{}", &set.name);
        }
        prop_assert!(model.world.sets.len() <= 3, "remembers more than two: {}", model.world.sets.len());
        let status = &model.world.standing;
        prop_assert_eq!((status.replicas, status.updated_replicas, status.available_replicas), (want, want, want));
        prop_assert_eq!(reason(status, "Available").0, "True");
        let revision = model.world.sets.iter().find(|set| set.current).map(Set::revision);
        let latest = model.world.sets.iter().map(Set::revision).max();
        prop_assert_eq!(revision, latest);
        prop_assert_eq!(&model.world.want.annotations[REVISION], &latest.unwrap().to_string());
    }
}
