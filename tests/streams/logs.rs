use crate::cluster::{Cluster, KUBECTLS};

#[test]
fn logs_are_chosen_by_every_flag() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a", "b"]);
    for n in 1..=5 {
        cluster.runtime.fake.print("web/a", &format!("line {n}"));
    }
    cluster.runtime.fake.print("web/b", "from b");
    for k in KUBECTLS {
        assert_eq!(cluster.ok(k, "logs web -c a"), "line 1\nline 2\nline 3\nline 4\nline 5\n");
        assert_eq!(cluster.ok(k, "logs web -c a --tail=2"), "line 4\nline 5\n");
        assert_eq!(cluster.ok(k, "logs web -c a --since=1h --limit-bytes=6"), "line 1");
        assert_eq!(cluster.ok(k, "logs web -c a --since-time=2100-01-01T00:00:00Z"), "");
        let stamped = cluster.ok(k, "logs web -c a --tail=1 --timestamps");
        assert!(stamped.ends_with("Z line 5\n") && stamped.starts_with("20"), "{stamped}");
        let all = cluster.ok(k, "logs web --all-containers --prefix");
        assert!(all.contains("[pod/web/a] line 1\n") && all.contains("[pod/web/b] from b\n"), "{all}");
        assert!(cluster.ok(k, "logs -l app=web --all-containers").contains("from b\n"));
        let refused = cluster.refused(k, "logs web -c none");
        assert!(refused.contains("container none is not valid for pod web"), "{refused}");
        let refused = cluster.refused(k, "logs web -c a --previous");
        let text = "previous terminated container \"a\" in pod \"web\" not found";
        assert!(refused.contains(text), "{refused}");
        assert!(cluster.refused(k, "logs none").contains("pods \"none\" not found"));
    }
}

#[test]
fn a_restarted_container_has_a_log_before() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    cluster.runtime.fake.print("web/a", "first life");
    cluster.runtime.fake.exit("web/a", 1);
    cluster.restart("web", "a", 1);
    cluster.runtime.fake.print("web/a", "second life");
    for k in KUBECTLS {
        assert_eq!(cluster.ok(k, "logs web"), "second life\n");
        assert_eq!(cluster.ok(k, "logs web --previous"), "first life\n");
    }
}

#[test]
fn a_log_is_followed_until_the_container_ends() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    cluster.runtime.fake.print("web/a", "one");
    let followers = KUBECTLS.map(|k| cluster.begin(k, "logs -f web"));
    for follower in &followers {
        follower.prints("one\n");
    }
    cluster.runtime.fake.print("web/a", "two");
    for follower in &followers {
        follower.prints("two\n");
    }
    cluster.runtime.fake.print("web/a", "three");
    cluster.runtime.fake.exit("web/a", 0);
    for follower in followers {
        assert_eq!(follower.ends(), (0, "one\ntwo\nthree\n".to_owned()));
    }
}
