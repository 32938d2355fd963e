use super::*;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn server(device: Option<&str>) -> ServerView {
    ServerView::Present { status: "ACTIVE".into(), device: device.map(str::to_owned) }
}

fn volume(status: &str, servers: &[&str]) -> Option<CinderView> {
    Some(CinderView { status: status.into(), servers: servers.iter().map(|id| (*id).to_owned()).collect() })
}

fn new() -> World {
    World {
        has_finalizer: true,
        node: Some(NodeView { server: Some("s".into()), ..NodeView::default() }),
        server_id: Some("s".into()),
        server: server(None),
        volume: volume("available", &[]),
        ..World::default()
    }
}

fn attached() -> World {
    World { server: server(Some("/dev/vdb")), volume: volume("in-use", &["s"]), ..new() }
}

fn attach() -> Action {
    Action::Attach { server: "s".into() }
}

fn detach(why: Release) -> Action {
    Action::Detach { server: "s".into(), why }
}

#[test]
fn the_finalizer_is_there_before_nova_is_asked() {
    assert_eq!(plan(&World { has_finalizer: false, ..new() }, now()).actions, [Action::AddFinalizer]);
    assert_eq!(plan(&new(), now()).actions, [attach()]);
}

#[test]
fn an_attachment_that_was_not_recorded_is_found_and_recorded() {
    let found = plan(&attached(), now());
    assert_eq!(found.actions, []);
    let status = found.status.unwrap();
    assert!(status.attached && status.device == "/dev/vdb" && status.attach_error.is_none());
    let recorded = World { recorded: status, ..attached() };
    assert_eq!(plan(&recorded, now()).status, None);
}

#[test]
fn nova_is_not_asked_again_while_it_is_at_work() {
    for status in ["attaching", "reserved", "detaching", "extending"] {
        let busy = plan(&World { volume: volume(status, &[]), ..new() }, now());
        assert_eq!((busy.actions, busy.status), (vec![], None), "{status}");
        assert_eq!(busy.requeue_at, Some(now() + Pace::default().poll));
    }
}

#[test]
fn what_cannot_be_attached_says_why() {
    let why = |world: World| {
        let found = plan(&world, now());
        assert_eq!(found.actions, [], "{world:?}");
        found.status.unwrap().attach_error.unwrap()
    };
    assert!(why(World { node: None, server_id: None, ..new() }).contains("does not exist"));
    assert!(why(World { server_id: None, ..new() }).contains("spec.providerID"));
    assert!(why(World { server: ServerView::Gone, ..new() }).contains("server s"));
    assert!(why(World { volume: None, ..new() }).contains("Cinder has no such volume"));
    assert!(why(World { volume: volume("in-use", &["other"]), ..new() }).contains("at server other"));
    assert!(why(World { volume: volume("error", &[]), ..new() }).contains("\"error\""));
}

#[test]
fn what_is_mounted_is_detached_only_when_the_node_cannot_write_any_more() {
    let deleting = |node: NodeView| World { is_deleting: true, node: Some(node), ..attached() };
    let mounted = NodeView { server: Some("s".into()), is_volume_in_use: true, ..NodeView::default() };
    let waiting = plan(&deleting(mounted.clone()), now());
    assert!(waiting.actions.is_empty() && waiting.requeue_at.is_some());
    let unmounted = NodeView { is_volume_in_use: false, ..mounted.clone() };
    assert_eq!(plan(&deleting(unmounted), now()).actions, [detach(Release::NotInUse)]);
    let fenced = NodeView { unique_pods_ended: true, ..mounted.clone() };
    assert_eq!(plan(&deleting(fenced), now()).actions, [detach(Release::UniquePodsEnded)]);
    let off = NodeView { is_out_of_service: true, ..mounted.clone() };
    assert_eq!(plan(&deleting(off), now()).actions, [detach(Release::OutOfService)]);
    let device = Some("/dev/vdb".to_owned());
    let shut_off = ServerView::Present { status: "SHUTOFF".into(), device };
    let down = World { server: shut_off, ..deleting(mounted) };
    assert_eq!(plan(&down, now()).actions, [detach(Release::ServerDown)]);
    let deleted = World { node: None, ..down };
    assert_eq!(plan(&deleted, now()).actions, [detach(Release::NodeDeleted)]);
}

#[test]
fn the_record_goes_when_neither_nova_nor_cinder_shows_the_volume_there() {
    let deleting = |server: ServerView, volume: Option<CinderView>| {
        plan(&World { is_deleting: true, server, volume, ..attached() }, now()).actions
    };
    assert_eq!(deleting(server(None), volume("available", &[])), [Action::RemoveFinalizer]);
    assert_eq!(deleting(server(None), volume("in-use", &["other"])), [Action::RemoveFinalizer]);
    assert_eq!(deleting(server(None), None), [Action::RemoveFinalizer], "Cinder has no such volume");
    assert_eq!(
        deleting(ServerView::Gone, volume("in-use", &["s"])),
        [Action::RemoveFinalizer],
        "nor Nova such a server"
    );
    assert_eq!(deleting(server(None), volume("detaching", &["s"])), [], "Nova is at work");
    assert_eq!(deleting(server(None), volume("attaching", &[])), [], "an attachment that comes yet");
    assert_eq!(deleting(server(None), volume("in-use", &["s"])), [detach(Release::NotInUse)], "Cinder shows it yet");
    let foreign = World { is_deleting: true, has_finalizer: false, ..attached() };
    assert_eq!(plan(&foreign, now()), Plan::default());
}

#[test]
fn an_attachment_that_took_effect_after_it_was_given_up_is_undone() {
    let stray = World { volume: volume("in-use", &["late"]), strays: vec!["late".into()], ..new() };
    let found = plan(&stray, now());
    assert_eq!(found.actions, [Action::Detach { server: "late".into(), why: Release::NotInUse }]);
    assert!(found.requeue_at.is_some());
}
