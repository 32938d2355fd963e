//! Several servers on one etcd: what clients notice when a server, or a member of etcd, goes.

use std::{
    env,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::support::{
    Client, Server,
    objects::{CONFIG_MAPS, config_map, deployment},
};
use crate::harness::{Etcd, eventually};

/// How long an election Lease is valid without renewal.
const LEASE: Duration = Duration::from_secs(4);
/// How long a call of etcd may take.
const CALL: Duration = Duration::from_secs(5);
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";

fn server(members: &[Etcd]) -> Server {
    let (store, keys) = (Etcd::flag_for(members), members[0].key_file());
    Server::start_with(&["--store", &store, "--encryption-provider-config", &keys])
}

/// Whether this server holds both election Leases, as the client's server says.
fn leads(client: &mut Client, server: &Server) -> bool {
    ["mainstay-controllers", "mainstay-scheduler"].iter().all(|lease| {
        let lease = client.get(&format!("{LEASES}/{lease}"));
        lease.code == 200 && lease.json()["spec"]["holderIdentity"] == server.address().to_string()
    })
}

/// Whether the controllers have acted on the Deployment.
fn is_decided(client: &mut Client, name: &str) -> bool {
    let made = client.get(REPLICA_SETS).granted();
    let sets = made["items"].as_array().cloned().unwrap_or_default();
    sets.iter().any(|set| set["metadata"]["ownerReferences"][0]["name"] == name)
}

/// How long a decision takes that only the leader makes.
#[track_caller]
fn time_to_decide(client: &mut Client, name: &str, since: Instant) -> Duration {
    client.post(DEPLOYMENTS, &deployment(name)).granted();
    eventually("the next leader decides", || is_decided(client, name).then(|| since.elapsed()))
}

#[test]
fn leadership_is_handed_over_before_the_lease_expires_and_taken_over_when_it_does() {
    let etcd = [Etcd::start("bin/etcd-3.5")];
    let mut first = server(&etcd);
    let mut client = first.client();
    eventually("the first leads", || leads(&mut client, &first).then_some(()));
    let mut second = server(&etcd);
    let mut other = second.client();
    eventually("the second serves", || leads(&mut other, &first).then_some(()));
    let stopped = Instant::now();
    first.signal("TERM");
    eventually("the second leads", || leads(&mut other, &second).then_some(()));
    let handed_over = stopped.elapsed();
    let decided = time_to_decide(&mut other, "after-stop", stopped);
    println!("stopped in order: the Leases changed hands after {handed_over:?}, next decision after {decided:?}");
    assert!(handed_over < LEASE, "nobody waited for the Lease to expire: {handed_over:?}");
    assert_eq!(first.wait().code(), Some(0));

    first.start_again();
    let mut client = first.client();
    let killed = Instant::now();
    second.kill();
    let decided = time_to_decide(&mut client, "after-kill", killed);
    println!("killed: next decision after {decided:?}");
    assert!(decided > LEASE / 2, "the Lease counts as long as it was not seen to expire: {decided:?}");
}

/// What a client met that has several addresses and goes on to the next when one takes no connection.
#[derive(Debug, Default)]
struct Met {
    answers: usize,
    server_errors: Vec<String>,
    /// From the first request that failed to the next that did not.
    longest_outage: Duration,
}

struct Load {
    stop: Arc<AtomicBool>,
    met: Arc<Mutex<Met>>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    /// Reads and writes in turn, without a pause.
    fn start(mut clients: Vec<Client>, name: &'static str) -> Self {
        let (stop, met) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Met::default())));
        let thread = thread::spawn({
            let (stop, met) = (stop.clone(), met.clone());
            move || {
                let (mut n, mut at, mut failing) = (0, 0, None);
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let begun = Instant::now();
                    let map = config_map(&format!("{name}-{n}")).to_string();
                    let (method, path, body) = match n % 3 {
                        0 => ("GET", CONFIG_MAPS.to_owned() + "?limit=5", ""),
                        1 => ("GET", "/api/v1/namespaces/default".to_owned(), ""),
                        _ => ("POST", CONFIG_MAPS.to_owned(), &*map),
                    };
                    let kind = if body.is_empty() { "" } else { "application/json" };
                    let answer = clients[at].attempt(method, &path, kind, body.as_bytes());
                    let mut met = met.lock().unwrap();
                    match answer {
                        Ok(answer) if answer.code < 500 => {
                            met.answers += 1;
                            let outage = failing.take().map(|since: Instant| since.elapsed()).unwrap_or_default();
                            met.longest_outage = met.longest_outage.max(outage).max(begun.elapsed());
                        }
                        Ok(answer) => {
                            failing.get_or_insert(begun);
                            met.server_errors.push(format!("{method} {path}: {} {}", answer.code, answer.text()));
                        }
                        // Not an answer: the connection is gone, and the other server is asked.
                        Err(_) => {
                            failing.get_or_insert(begun);
                            at = (at + 1) % clients.len();
                        }
                    }
                }
            }
        });
        Self { stop, met, thread: Some(thread) }
    }

    fn answers(&self) -> usize {
        self.met.lock().unwrap().answers
    }

    /// Waits until it has been answered so often again.
    #[track_caller]
    fn go_on(&self, answers: usize) {
        let before = self.answers();
        eventually("requests are answered", || (self.answers() >= before + answers).then_some(()));
    }

    fn end(mut self) -> Met {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("once").join().expect("no panic");
        std::mem::take(&mut *self.met.lock().unwrap())
    }
}

#[test]
fn clients_get_no_server_errors_while_servers_are_restarted_one_by_one() {
    let etcd = [Etcd::start("bin/etcd-3.5")];
    let mut servers = [server(&etcd), server(&etcd)];
    let clients = |servers: &[Server; 2]| servers.iter().map(Server::client).collect::<Vec<_>>();
    let loads: Vec<Load> = ["a", "b", "c"].into_iter().map(|name| Load::start(clients(&servers), name)).collect();
    for round in 0..2 {
        for server in &mut servers {
            loads.iter().for_each(|load| load.go_on(30));
            let mut watch = server.client().watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=0"));
            server.signal("TERM");
            while watch.next().expect("a watch ends in order").is_some() {}
            assert_eq!(server.wait().code(), Some(0), "round {round}: {}", server.log());
            loads.iter().for_each(|load| load.go_on(30));
            server.start_again();
        }
    }
    for load in loads {
        let met = load.end();
        println!("{} answers, the longest gap {:?}", met.answers, met.longest_outage);
        assert!(met.server_errors.is_empty(), "{:#?}", met.server_errors);
    }
}

#[test]
fn one_member_of_etcd_may_be_lost_also_the_leader_and_no_request_waits_for_the_end_of_its_time() {
    let mut etcd = Etcd::start_three("bin/etcd-3.5");
    let server = server(&etcd);
    let loads: Vec<Load> = ["a", "b"].into_iter().map(|name| Load::start(vec![server.client()], name)).collect();
    loads.iter().for_each(|load| load.go_on(30));
    let leader = |etcd: &[Etcd; 3]| eventually("etcd has a leader", || etcd.iter().position(Etcd::is_leader));
    // Each member once by power cut, the leader once more, and each once frozen.
    for lost in [0, 1, 2, 3] {
        let lost = if lost == 3 { leader(&etcd) } else { lost };
        etcd[lost].kill();
        loads.iter().for_each(|load| load.go_on(50));
        etcd[lost].start_again();
    }
    for frozen in [0, 1, 2] {
        etcd[frozen].signal("STOP");
        loads.iter().for_each(|load| load.go_on(50));
        etcd[frozen].signal("CONT");
        loads.iter().for_each(|load| load.go_on(10));
    }
    for load in loads {
        let met = load.end();
        println!(
            "{} answers, {} errors, the longest gap {:?}",
            met.answers,
            met.server_errors.len(),
            met.longest_outage
        );
        assert!(met.longest_outage < CALL, "{:?} {:#?}", met.longest_outage, met.server_errors);
    }
}

#[test]
fn three_servers_on_three_members_lose_each_server_in_turn_and_the_leader_of_etcd() {
    let mut etcd = Etcd::start_three("bin/etcd-3.5");
    let mut servers = [server(&etcd), server(&etcd), server(&etcd)];
    let clients = |servers: &[Server; 3]| servers.iter().map(Server::client).collect::<Vec<_>>();
    let loads: Vec<Load> = ["a", "b"].into_iter().map(|name| Load::start(clients(&servers), name)).collect();
    loads.iter().for_each(|load| load.go_on(30));
    for lost in [0, 1, 2] {
        servers[lost].kill();
        loads.iter().for_each(|load| load.go_on(30));
        let mut other = servers[(lost + 1) % 3].client();
        let took = time_to_decide(&mut other, &format!("after-server-{lost}"), Instant::now());
        println!("server {lost} killed: next decision after {took:?}");
        servers[lost].start_again();
        loads.iter().for_each(|load| load.go_on(10));
    }
    for load in &loads {
        let met = load.met.lock().unwrap();
        assert!(met.server_errors.is_empty(), "servers that live answer: {:#?}", met.server_errors);
    }
    let leader = eventually("etcd has a leader", || etcd.iter().position(Etcd::is_leader));
    etcd[leader].kill();
    loads.iter().for_each(|load| load.go_on(50));
    time_to_decide(&mut servers[0].client(), "after-etcd", Instant::now());
    etcd[leader].start_again();
    // What was acknowledged is there, whoever is asked.
    let names = |server: &Server| {
        let listed = server.client().get(DEPLOYMENTS).granted();
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    for server in &servers {
        assert_eq!(names(server), ["after-etcd", "after-server-0", "after-server-1", "after-server-2"]);
    }
    for load in loads {
        let met = load.end();
        println!("{} answers, the longest gap {:?}", met.answers, met.longest_outage);
        assert!(met.longest_outage < 3 * CALL, "{:?} {:#?}", met.longest_outage, met.server_errors);
    }
}

/// How long etcd has no quorum: ten minutes with `MAINSTAY_LONG_OUTAGE=600`.
fn outage() -> Duration {
    let seconds = env::var("MAINSTAY_LONG_OUTAGE").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(12))
}

#[test]
fn without_a_quorum_reads_answer_what_they_may_and_writes_fail_in_time() {
    let mut etcd = Etcd::start_three("bin/etcd-3.5");
    let mut server = server(&etcd);
    let mut client = server.client();
    client.post(CONFIG_MAPS, &config_map("before")).granted();
    let mut events = client.watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=0"));
    events.about("before");
    etcd[1].kill();
    etcd[2].kill();
    let began = Instant::now();
    let mut timed = |method: &str, path: &str, body: &Value| {
        let begun = Instant::now();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = client.send(method, path, "application/json", body.as_bytes());
        assert!(begun.elapsed() < 3 * CALL, "{method} {path} took {:?}", begun.elapsed());
        answer
    };
    while began.elapsed() < outage() {
        let refused = timed("POST", CONFIG_MAPS, &config_map("meanwhile"));
        refused.refused_saying(503, "ServiceUnavailable", "etcd at 127.0.0.1");
        assert!(refused.header("retry-after").is_some(), "clients are told to try again");
        timed("GET", CONFIG_MAPS, &Value::Null).refused(503, "ServiceUnavailable");
        // Whoever says that any version will do gets what there is.
        let listed = timed("GET", &format!("{CONFIG_MAPS}?resourceVersion=0"), &Value::Null).granted();
        let names: Vec<&Value> =
            listed["items"].as_array().unwrap().iter().map(|map| &map["metadata"]["name"]).collect();
        assert!(names.contains(&&json!("before")), "{names:?}");
        let one = timed("GET", &format!("{CONFIG_MAPS}/before?resourceVersion=0"), &Value::Null).granted();
        assert_eq!(one["metadata"]["name"], "before");
        assert_eq!(timed("GET", "/livez", &Value::Null).code, 200);
        assert_eq!(timed("GET", "/readyz", &Value::Null).code, 500);
    }
    etcd[1].launch_again();
    etcd[2].launch_again();
    let mut client = server.client();
    eventually("writes are served again", || {
        matches!(client.post(CONFIG_MAPS, &config_map("after")).code, 201 | 409).then_some(())
    });
    events.about("after");
    client.post(DEPLOYMENTS, &deployment("after")).granted();
    eventually("controllers go on", || is_decided(&mut client, "after").then_some(()));
    server.assert_well();
}
