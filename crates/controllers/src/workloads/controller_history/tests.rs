use k8s_openapi::api::apps::v1::StatefulSet;

use super::{super::controller_ref::OwnerKind, *};

fn owner() -> Owner {
    let meta = json!({ "name": "web", "namespace": "ns", "uid": "me" });
    Owner::new(&OwnerKind::new::<StatefulSet>("statefulset-controller"), &serde_json::from_value(meta).unwrap())
}

fn template(image: &str) -> PodTemplateSpec {
    let template = json!({
        "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": image }] },
    });
    serde_json::from_value(template).unwrap()
}

/// What the API would keep of a place.
fn retained(place: &TemplateRevision, uid: &str) -> Arc<ControllerRevision> {
    let Some(Write::Create(revision)) = &place.write else { panic!("nothing to keep: {place:?}") };
    let mut revision = (**revision).clone();
    revision.metadata.uid = Some(uid.to_owned());
    revision.metadata.resource_version = Some("5".to_owned());
    Arc::new(revision)
}

fn placed(image: &str, collisions: i32, known: &[Arc<ControllerRevision>]) -> TemplateRevision {
    let (owner, template) = (owner(), template(image));
    find_revision(&RevisionRequest { owner: &owner, annotations: None, template: &template, collisions }, known, |_| {
        false
    })
}

#[test]
fn a_first_template_is_the_first_revision() {
    let first = retained(&placed("a", 0, &[]), "1");
    assert_eq!(first.revision, Some(1));
    assert!(name(&first).starts_with("web-") && name(&first).ends_with(hash(&first)));
    let data = &first.data.0;
    assert_eq!(data["spec"]["template"]["$patch"], "replace");
    assert_eq!(data["spec"]["template"]["spec"]["containers"][0]["image"], "a");
    assert_eq!(first.metadata.labels.as_ref().unwrap()["app"], "web");
    let again = placed("a", 0, std::slice::from_ref(&first));
    assert_eq!((again.write, name(&again.revision)), (None, name(&first)));
}

#[test]
fn a_template_that_was_there_before_becomes_the_newest_again() {
    let first = retained(&placed("a", 0, &[]), "1");
    let second = retained(&placed("b", 0, std::slice::from_ref(&first)), "2");
    assert_eq!(second.revision, Some(2));
    let back = placed("a", 0, &[first.clone(), second]);
    let expected = Write::Renumber { name: name(&first).to_owned(), uid: "1".into(), version: "5".into(), number: 3 };
    assert_eq!(back.write, Some(expected));
}

#[test]
fn what_others_wrote_is_recognised_by_its_contents() {
    let theirs = json!({
        "metadata": { "name": "web-6596ffb49b", "namespace": "ns", "uid": "9", "labels": { HASH: "6596ffb49b" } },
        "data": { "spec": { "template": {
            "$patch": "replace", "metadata": { "creationTimestamp": null, "labels": { "app": "web" } },
            "spec": { "containers": [{ "name": "c", "image": "a" }] },
        } } },
        "revision": 4,
    });
    let theirs: Arc<ControllerRevision> = Arc::new(serde_json::from_value(theirs).unwrap());
    let place = placed("a", 0, &[theirs]);
    assert_eq!((place.write, name(&place.revision)), (None, "web-6596ffb49b"));
}

#[test]
fn a_name_that_another_holds_is_passed_over_and_counted() {
    let first = placed("a", 0, &[]);
    let held = name(&first.revision).to_owned();
    let (owner, template) = (owner(), template("a"));
    let wanted = RevisionRequest { owner: &owner, annotations: None, template: &template, collisions: 0 };
    let other = find_revision(&wanted, &[], |name| name == held);
    assert_eq!(other.collisions, 1);
    assert_ne!(name(&other.revision), held);
    let remembered = placed("a", 1, &[]);
    assert_eq!(name(&remembered.revision), name(&other.revision));
}

#[test]
fn the_oldest_unused_are_dropped() {
    let mut known = Vec::new();
    for image in ["a", "b", "c", "d"] {
        known.push(retained(&placed(image, 0, &known), image));
    }
    let used = BTreeSet::from([name(&known[3]).to_owned(), hash(&known[0]).to_owned()]);
    let dropped = surplus(&known, &used, 1);
    assert_eq!(dropped, [Write::Drop { name: name(&known[1]).to_owned(), uid: "b".into() }]);
    assert!(surplus(&known, &used, 2).is_empty());
}

#[test]
fn long_names_fit_into_labels() {
    let mut long = owner();
    long.key.name = "a".repeat(240);
    let template = template("a");
    let wanted = RevisionRequest { owner: &long, annotations: None, template: &template, collisions: 0 };
    let place = find_revision(&wanted, &[], |_| false);
    assert!(name(&place.revision).len() <= 253 && mark(&place.revision).len() <= 63);
    assert_eq!(template_of(&place.revision), Some(template));
}
