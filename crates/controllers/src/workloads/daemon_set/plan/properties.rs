//! Properties that hold whatever happens, in whatever order, and however late it is noticed.

use proptest::prelude::*;

use super::*;
use crate::workloads::daemon_set::model::{Model, image};

#[derive(Clone, Debug)]
enum Event {
    /// The controller looks, at the world as it was some steps ago.
    Look(usize),
    Machines,
    Machine(usize, Verdict),
    Ready(usize),
    BreakDown(usize),
    Fail(usize),
    Evict(usize),
    Finish(usize),
    Image(&'static str),
    Pass(i64),
}

fn event() -> impl Strategy<Value = Event> {
    let verdict = prop_oneof![2 => Just(Verdict::Runs), 1 => Just(Verdict::Stays), 1 => Just(Verdict::Leaves)];
    let which = 0..6_usize;
    prop_oneof![
        6 => (0..4_usize).prop_map(Event::Look),
        3 => Just(Event::Machines),
        1 => (0..4_usize, verdict).prop_map(|(at, verdict)| Event::Machine(at, verdict)),
        2 => which.clone().prop_map(Event::Ready),
        1 => which.clone().prop_map(Event::BreakDown),
        1 => which.clone().prop_map(Event::Fail),
        1 => which.clone().prop_map(Event::Evict),
        2 => which.prop_map(Event::Finish),
        1 => prop_oneof![Just("a"), Just("b"), Just("broken")].prop_map(Event::Image),
        1 => (1..20_i64).prop_map(Event::Pass),
    ]
}

fn model() -> impl Strategy<Value = Model> {
    let update = prop_oneof![
        (1..3_i32).prop_map(|unavailable| (unavailable, 0, false)),
        (1..3_i32).prop_map(|surge| (0, surge, false)),
        Just((1, 0, true)),
    ];
    (1..5_usize, update, 0..2_i32).prop_map(|(nodes, (unavailable, surge, on_delete), min_ready)| Model {
        unavailable,
        surge,
        on_delete,
        min_ready: min_ready * 5,
        ..Model::new(nodes)
    })
}

fn happen(model: &mut Model, event: &Event) {
    let names: Vec<String> = model.pods.keys().cloned().collect();
    let pod = |at: &usize| names.get(*at).cloned();
    match event {
        Event::Look(_) => {}
        Event::Machines => drop(model.work()),
        Event::Machine(at, verdict) => drop(model.nodes.insert(format!("m{at}"), *verdict)),
        Event::Ready(at) => {
            let fit = pod(at).filter(|name| {
                !model.pods[name].is_finished() && !model.pods[name].is_ready() && image(&model.pods[name]) != "broken"
            });
            fit.into_iter().for_each(|name| model.ready(&name));
        }
        Event::BreakDown(at) => pod(at).into_iter().for_each(|name| model.break_down(&name)),
        Event::Fail(at) => pod(at).into_iter().for_each(|name| model.end(&name, "Failed")),
        Event::Evict(at) => pod(at).into_iter().for_each(|name| model.evict(&name)),
        Event::Finish(at) => {
            let gone = pod(at).filter(|name| model.pods[name].is_being_deleted());
            gone.into_iter().for_each(|name| model.finish(&name));
        }
        Event::Image(image) => model.image = image,
        Event::Pass(seconds) => model.pass(*seconds),
    }
}

proptest! {
    #[test]
    fn it_converges_and_then_rests(model in model(), events in prop::collection::vec(event(), 0..40)) {
        let mut model = model;
        for event in &events {
            if let Event::Look(_) = event {
                model.step();
            }
            happen(&mut model, event);
        }
        model.image = "b";
        if model.on_delete {
            let names: Vec<String> = model.pods.keys().cloned().collect();
            names.iter().for_each(|name| model.evict(name));
        }
        model.rest();
        for (node, verdict) in model.nodes.clone() {
            let there = model.on(&node);
            match verdict {
                Verdict::Runs => prop_assert_eq!(there.len(), 1, "{}", node),
                Verdict::Stays => prop_assert!(there.len() <= 1),
                Verdict::Leaves => prop_assert!(there.is_empty()),
            }
        }
        let runs = |pod: &&Pod| model.nodes.get(&pod.spec.node_name) == Some(&Verdict::Runs);
        prop_assert!(model.pods.values().filter(runs).all(|pod| image(pod) == "b" && pod.is_ready()));
        prop_assert!(model.plan().actions.is_empty() && model.plan().status.is_none());
    }

    /// However late the looks: no node ever has two pods (with a surge: two of one revision), and no more
    /// nodes are without a serving one than the update may take.
    #[test]
    fn late_looks_do_no_harm(model in model(), events in prop::collection::vec(event(), 0..60)) {
        let mut model = Model { on_delete: false, ..model };
        model.rest();
        model.image = "b";
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
            let mut without = 0;
            for node in model.nodes.keys() {
                let pods: Vec<&Pod> = model.pods.values().filter(|pod| pod.spec.node_name == *node).collect();
                let of = |wanted: &str| pods.iter().filter(|pod| pod.is_active() && image(pod) == wanted).count();
                prop_assert!(of("a") <= 1 && of("b") <= 1, "{:?}", pods);
                prop_assert!(model.surge > 0 || pods.len() <= 1, "{:?}", pods);
                without += i32::from(!pods.iter().any(|pod| model.serves(pod)));
            }
            prop_assert!(without <= model.unavailable, "{} without: {:?}", without, model.pods);
            past.push(model.clone());
        }
    }
}
