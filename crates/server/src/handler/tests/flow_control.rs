//! Priority and fairness: how requests are classified, and what a flood leaves to others.

use super::*;
use crate::flowcontrol::conditions;

async fn headers(server: &Server, user: &User, path: &str) -> (u16, Option<String>, Option<String>) {
    let response = server.start(user, Method::GET, path, Full::<Bytes>::default()).await;
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let found = (header("x-kubernetes-pf-flowschema-uid"), header("x-kubernetes-pf-prioritylevel-uid"));
    (response.status().as_u16(), found.0, found.1)
}

#[tokio::test]
async fn answers_name_the_objects_that_a_request_was_classified_by() {
    let server = Server::new(Settings::default()).await;
    let uid = async |path: &str| {
        let (code, object) = server.send(&administrator(), Method::GET, path, &Value::Null).await;
        assert_eq!(code, 200, "{object}");
        object["metadata"]["uid"].as_str().map(str::to_owned)
    };
    let flow = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let (_, schema, level) = headers(&server, &User::node("n1"), "/api/v1/nodes").await;
    assert_eq!(schema, uid(&format!("{flow}/flowschemas/system-node-high")).await);
    assert_eq!(level, uid(&format!("{flow}/prioritylevelconfigurations/node-high")).await);
    let (_, schema, _) = headers(&server, &service_account("a"), CONFIG_MAPS).await;
    assert_eq!(schema, uid(&format!("{flow}/flowschemas/service-accounts")).await);
}

#[tokio::test]
async fn a_flow_schema_of_an_administrator_is_obeyed_at_once() {
    let server = Server::new(Settings { max_reads: 100, max_writes: 0, ..Settings::default() }).await;
    let flow = "/apis/flowcontrol.apiserver.k8s.io/v1";
    let admin = administrator();
    let level = json!({ "metadata": { "name": "narrow" }, "spec": { "type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "borrowingLimitPercent": 0, "limitResponse": { "type": "Reject" },
    } } });
    let (code, made) = server.send(&admin, Method::POST, &format!("{flow}/prioritylevelconfigurations"), &level).await;
    assert_eq!(code, 201, "{made}");
    let schema = json!({ "metadata": { "name": "narrow" }, "spec": {
        "priorityLevelConfiguration": { "name": "narrow" }, "matchingPrecedence": 10,
        "rules": [{
            "subjects": [{ "kind": "Group", "group": { "name": SERVICE_ACCOUNTS } }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["/apis", "/apis/*"] }],
        }],
    } });
    let (code, made) = server.send(&admin, Method::POST, &format!("{flow}/flowschemas"), &schema).await;
    assert_eq!(code, 201, "{made}");
    // An answer that is not taken holds its seat; the level has one.
    let pod = service_account("a");
    let path = "/apis";
    let held = server.start(&pod, Method::GET, path, Full::<Bytes>::default()).await;
    let (code, status) = answer(server.start(&pod, Method::GET, path, Full::<Bytes>::default()).await).await;
    assert_eq!((code, &status["details"]["retryAfterSeconds"]), (429, &json!(1)), "{status}");
    let text = server.0.metrics.text();
    let line = r#"apiserver_flowcontrol_rejected_requests_total{priority_level="narrow",flow_schema="narrow",reason="concurrency-limit"} 1"#;
    assert!(text.contains(line), "{text}");
    assert_eq!(server.send(&User::node("n"), Method::GET, "/api/v1/nodes/n", &Value::Null).await.0, 404, "others");
    drop(held);
    let again = server.start(&pod, Method::GET, path, Full::<Bytes>::default()).await;
    assert_ne!(again.status(), 429);
    let (code, _) = answer_text(
        server
            .start(
                &admin,
                Method::GET,
                "/debug/api_priority_and_fairness/dump_priority_levels",
                Full::<Bytes>::default(),
            )
            .await,
    )
    .await;
    assert_eq!(code, 200);
}

async fn answer_text(response: Response) -> (u16, String) {
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8(bytes.to_vec()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn who_waits_in_a_queue_gets_a_turn_or_an_answer() {
    let server = Server::new(Settings { max_reads: 4, max_writes: 4, ..Settings::default() }).await;
    let pod = service_account("a");
    let get = || server.start(&pod, Method::GET, "/apis", Full::<Bytes>::default());
    let mut held = Vec::new();
    // As many as a flow has seats; the next one waits.
    let waiting = loop {
        let mut next = Box::pin(get());
        match futures::poll!(&mut next) {
            std::task::Poll::Ready(response) => held.push(response),
            std::task::Poll::Pending => match tokio::time::timeout(Duration::from_secs(1), &mut next).await {
                Ok(response) => held.push(response),
                Err(_) => break next,
            },
        }
        assert!(held.len() < 10, "a flow has a part of all seats");
    };
    let text = server.0.metrics.text();
    assert!(
        text.contains(r#"current_inqueue_requests{priority_level="workload-low",flow_schema="service-accounts"} 1"#),
        "{text}"
    );
    let admin = server.send(&administrator(), Method::GET, CONFIG_MAPS, &Value::Null).await;
    assert_eq!(admin.0, 200, "administrators wait for nobody");
    held.pop();
    held.push(waiting.await);
    assert!(held.iter().all(|response| response.status() == 200), "its turn");
    let refused = get().await;
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    let line =
        r#"rejected_requests_total{priority_level="workload-low",flow_schema="service-accounts",reason="time-out"} 1"#;
    assert!(server.0.metrics.text().contains(line));
}

#[tokio::test]
async fn a_flow_schema_says_whether_its_level_is_there() {
    let server = Server::new(Settings::default()).await;
    let schema = json!({ "metadata": { "name": "own" }, "spec": {
        "priorityLevelConfiguration": { "name": "missing" }, "matchingPrecedence": 10,
        "rules": [{
            "subjects": [{ "kind": "Group", "group": { "name": SERVICE_ACCOUNTS } }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
        }],
    } });
    let schemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
    let (code, made) = server.send(&administrator(), Method::POST, schemas, &schema).await;
    assert_eq!(code, 201, "{made}");
    assert!(conditions::write_missing(&server.0, jiff::Timestamp::now()).await);
    for (name, expected) in [("own", "True"), ("exempt", "False"), ("global-default", "False")] {
        let (_, found) = server.send(&administrator(), Method::GET, &format!("{schemas}/{name}"), &Value::Null).await;
        let condition = &found["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("Dangling"), &json!(expected)), "{found}");
    }
    let (_, found, _) = headers(&server, &service_account("a"), "/apis").await;
    let (_, stock) =
        server.send(&administrator(), Method::GET, &format!("{schemas}/service-accounts"), &Value::Null).await;
    assert_eq!(found.as_deref(), stock["metadata"]["uid"].as_str(), "one that dangles matches nothing");
}

#[tokio::test]
async fn a_list_that_nobody_has_read_yet_takes_as_many_seats_as_it_is_long() {
    let server = Server::new(Settings::default()).await;
    for n in 0..250 {
        let (code, made) =
            server.send(&administrator(), Method::POST, CONFIG_MAPS, &config_map(&format!("c{n}"))).await;
        assert_eq!(code, 201, "{made}");
    }
    let seats = async |path: &str, limit: Option<usize>| {
        let (route, query) = (Route::parse(path).unwrap(), Query { limit, ..Query::default() });
        let asked = Attributes::from_request(&Method::GET, path, &route, &query);
        let resource = server.0.api.served.find("", "v1", "configmaps");
        let info = RequestInfo { resource, ..RequestInfo::new(Verb::LIST) };
        server.0.seats_of_request(&asked, &route, &info, &query).await
    };
    assert_eq!(seats(CONFIG_MAPS, None).await, 3);
    assert_eq!(seats(CONFIG_MAPS, Some(100)).await, 1);
    assert_eq!(seats("/api/v1/namespaces/kube-system/configmaps", None).await, 1);
    assert_eq!(seats(&format!("{CONFIG_MAPS}/c1"), None).await, 1);
}
