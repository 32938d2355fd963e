//! Properties that hold whatever happens, in whatever order, and however late it is noticed.

use proptest::prelude::*;

use super::*;
use crate::workloads::stateful_set::model::{Model, Spec, image};

#[derive(Clone, Debug)]
enum Event {
    /// The controller looks, at the world as it was some steps ago.
    Look(usize),
    Machines,
    Ready(Ordinal),
    BreakDown(Ordinal),
    Fail(Ordinal),
    Evict(Ordinal),
    Finish(Ordinal),
    Image(&'static str),
    Scale(i64),
    Partition(i64),
    Pass(i64),
}

fn event() -> impl Strategy<Value = Event> {
    let at = 0..5_i64;
    prop_oneof![
        6 => (0..4_usize).prop_map(Event::Look),
        3 => Just(Event::Machines),
        2 => at.clone().prop_map(Event::Ready),
        1 => at.clone().prop_map(Event::BreakDown),
        1 => at.clone().prop_map(Event::Fail),
        1 => at.clone().prop_map(Event::Evict),
        2 => at.clone().prop_map(Event::Finish),
        1 => prop_oneof![Just("a"), Just("b"), Just("broken")].prop_map(Event::Image),
        1 => (0..5_i64).prop_map(Event::Scale),
        1 => (0..4_i64).prop_map(Event::Partition),
        1 => (1..20_i64).prop_map(Event::Pass),
    ]
}

fn spec() -> impl Strategy<Value = Spec> {
    let order = prop_oneof![Just(Order::OrderedReady), Just(Order::Parallel)];
    let unavailable = prop_oneof![3 => Just(None), 1 => (1..3_i32).prop_map(Some)];
    (order, unavailable, any::<bool>(), any::<bool>(), 0..2_i32, 0..3_i64, any::<bool>()).prop_map(
        |(order, unavailable, on_delete, claims, min_ready, start, replace_unready)| Spec {
            replace_unready,
            order,
            unavailable,
            on_delete: on_delete && unavailable.is_none(),
            claims,
            min_ready: min_ready * 5,
            start,
            ..Spec::default()
        },
    )
}

fn happen(model: &mut Model, event: &Event) {
    let there = |model: &Model, at: Ordinal| model.pods.contains_key(&at).then_some(at);
    match event {
        Event::Look(_) => {}
        Event::Machines => drop(model.machines()),
        Event::Ready(at) => there(model, *at)
            .filter(|at| {
                !model.pods[at].is_finished() && !model.pods[at].is_ready() && image(&model.pods[at]) != "broken"
            })
            .into_iter()
            .for_each(|at| model.ready(at)),
        Event::BreakDown(at) => there(model, *at).into_iter().for_each(|at| model.break_down(at)),
        Event::Fail(at) => there(model, *at).into_iter().for_each(|at| model.end(at, "Failed")),
        Event::Evict(at) => model.evict(*at),
        Event::Finish(at) => {
            there(model, *at)
                .filter(|at| model.pods[at].is_being_deleted())
                .into_iter()
                .for_each(|at| model.finish(at));
        }
        Event::Image(image) => model.spec.image = image,
        Event::Scale(replicas) => model.spec.replicas = *replicas,
        Event::Partition(partition) => model.spec.partition = *partition,
        Event::Pass(seconds) => model.pass(*seconds),
    }
}

proptest! {
    /// Whatever happened before: with a good template it comes to be as it is wanted, and then nothing more is done.
    #[test]
    fn it_converges_and_then_rests(spec in spec(), events in prop::collection::vec(event(), 0..40)) {
        let mut model = Model::new(spec);
        for event in &events {
            if let Event::Look(_) = event {
                model.step();
            }
            happen(&mut model, event);
        }
        model.spec.image = "b";
        if events.iter().any(|event| matches!(event, Event::Image("broken"))) {
            model.spec.partition = 0; // or what is held back may rightly be made from that
        }
        // What broke down by itself is mended by someone where the set rightly waits for it: without the annotation,
        // where it does not decide alone, and where the pod is what it should be.
        let update = controller_history::mark(&model.world().template_revision.revision).to_owned();
        let waits = !model.spec.replace_unready || model.spec.on_delete || model.spec.partition > 0 || model.spec.unavailable.is_some();
        let mended = |pod: &Pod| image(pod) == "broken" && (waits || pod.label(HASH) == Some(&update));
        let mended: Vec<Ordinal> = model.pods.iter().filter(|(_, pod)| mended(pod)).map(|(at, _)| *at).collect();
        mended.into_iter().for_each(|at| model.ready(at));
        model.rest();
        let wanted: Vec<Ordinal> = model.world().want.ordinals().collect();
        prop_assert_eq!(model.pods.keys().copied().collect::<Vec<_>>(), wanted);
        prop_assert!(model.pods.values().all(|pod| pod.is_ready()));
        if !model.spec.on_delete && model.spec.partition == 0 {
            let update = controller_history::name(&model.world().template_revision.revision).to_owned();
            prop_assert_eq!(model.status.current_revision.as_ref(), Some(&update));
            prop_assert!(model.pods.values().all(|pod| pod.label(HASH) == Some(&update)));
        }
        prop_assert!(model.plan().actions.is_empty() && model.plan().status.is_none());
    }

    /// A set that goes one by one does one thing to one pod at a time: creations only behind pods that are available,
    /// deletions only while nothing else is amiss before them.
    #[test]
    fn one_by_one_means_one_at_a_time(spec in spec(), events in prop::collection::vec(event(), 0..60)) {
        let mut model = Model::new(Spec { order: Order::OrderedReady, unavailable: None, ..spec });
        for event in &events {
            happen(&mut model, event);
            let Event::Look(_) = event else { continue };
            let plan = model.step();
            let touched: Vec<(Ordinal, bool)> = plan.actions.iter().filter_map(|action| match action {
                Action::Create { ordinal, .. } => Some((*ordinal, true)),
                Action::Delete { ordinal, .. } => Some((*ordinal, false)),
                _ => None,
            }).collect();
            prop_assert!(touched.len() <= 1, "{:?}", plan.actions);
            for (ordinal, created) in touched {
                let before = model.pods.range(..ordinal);
                let sound = before.filter(|(at, _)| model.world().want.ordinals().contains(at)).all(|(_, pod)| {
                    life(pod, model.spec.min_ready, model.now) == Life::Available
                });
                prop_assert!(sound || !created, "created {} too early", ordinal);
            }
        }
    }

    /// Looks at worlds that are long past never take away more at once than allowed: what they would do was
    /// done already, and is refused.
    #[test]
    fn late_looks_do_no_harm(spec in spec(), events in prop::collection::vec(event(), 0..60)) {
        let mut model = Model::new(Spec { on_delete: false, ..spec });
        model.rest();
        let most = usize::try_from(model.spec.unavailable.unwrap_or(1)).unwrap();
        model.spec.image = "b";
        let mut past = vec![model.clone()];
        for event in events {
            match event {
                Event::Look(ago) => {
                    let then = &past[past.len().saturating_sub(ago + 1)];
                    let plan = then.plan();
                    model.apply(&plan);
                }
                Event::Machines | Event::Ready(_) | Event::Finish(_) | Event::Pass(_) => happen(&mut model, &event),
                _ => {}
            }
            let missing = model.world().want.ordinals().filter(|at| {
                model.pods.get(at).is_none_or(|pod| life(pod, model.spec.min_ready, model.now) != Life::Available)
            });
            prop_assert!(missing.count() <= most, "{:?}", model.pods);
            past.push(model.clone());
        }
    }
}
