use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use jsonwebtoken::{EncodingKey, Header};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// A provider on loopback with one key, `k1`, until it retires that.
struct Provider {
    address: SocketAddr,
    certificate: String,
    key: KeyPair,
    has_retired: Arc<AtomicBool>,
}

impl Provider {
    async fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let tls_key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&tls_key).unwrap();
        let tls = rustls::ServerConfig::builder_with_provider(mainstay_tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::from_pem_slice(tls_key.serialize_pem().as_bytes()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let point = key.public_key_raw();
        let jwk = json!({
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "k1",
            "x": BASE64.encode(&point[1..33]), "y": BASE64.encode(&point[33..]),
        });
        let documents = BTreeMap::from([
            (
                "/.well-known/openid-configuration",
                json!({ "issuer": format!("https://{address}"), "jwks_uri": format!("https://{address}/keys") }),
            ),
            ("/keys", json!({ "keys": [jwk] })),
        ]);
        let (documents, acceptor) = (Arc::new(documents), TlsAcceptor::from(Arc::new(tls)));
        let has_retired = Arc::<AtomicBool>::default();
        let retired = has_retired.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (documents, acceptor, retired) = (documents.clone(), acceptor.clone(), retired.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let respond = service_fn(|request: Request<Incoming>| {
                        let path = request.uri().path();
                        let document = match documents.get(path).map(ToString::to_string) {
                            Some(_) if path == "/keys" && retired.load(Ordering::SeqCst) => {
                                Some(json!({ "keys": [] }).to_string())
                            }
                            document => document,
                        };
                        async move {
                            Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(
                                document.unwrap_or_default(),
                            )))
                        }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), respond)
                        .await;
                });
            }
        });
        Self { address, certificate: certificate.pem(), key, has_retired }
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    fn configuration(&self, mappings: Value) -> AuthenticationConfiguration {
        serde_json::from_value(json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": { "url": self.url(), "audiences": ["mainstay"], "certificateAuthority": self.certificate },
                "claimMappings": mappings,
                "claimValidationRules": [{ "claim": "tenant", "requiredValue": "t1" }],
            }],
        }))
        .unwrap()
    }

    fn token(&self, claims: &Value) -> String {
        let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::ES256) };
        sign(&header, claims, &self.key)
    }
}

fn sign(header: &Header, claims: &Value, key: &KeyPair) -> String {
    jsonwebtoken::encode(header, claims, &EncodingKey::from_ec_der(key.serialized_der())).unwrap()
}

fn people() -> Value {
    json!({ "username": { "claim": "email", "prefix": "oidc:" }, "groups": { "claim": "groups", "prefix": "g:" }, "uid": { "claim": "sub" } })
}

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

#[tokio::test]
async fn a_token_of_a_trusted_issuer_names_a_user_and_anything_wrong_names_nobody() {
    let provider = Provider::start().await;
    let trusted = TrustedIssuers::new(provider.configuration(people()), "https://own").unwrap();
    let good = json!({
        "iss": provider.url(), "aud": ["other", "mainstay"], "exp": 1_800_000_100, "nbf": 1_800_000_000, "sub": "42",
        "email": "ann@example.com", "email_verified": true, "groups": ["devs"], "tenant": "t1",
    });
    let ann = trusted.user(&provider.token(&good), now()).await.expect("a user");
    assert_eq!((&*ann.name, &*ann.uid), ("oidc:ann@example.com", "42"));
    assert_eq!(ann.groups, ["g:devs", "system:authenticated"]);

    let changed = |field: &str, value: Value| {
        let mut claims = good.clone();
        claims[field] = value;
        claims
    };
    for (why, claims) in [
        ("expired", changed("exp", json!(1_800_000_000))),
        ("never expires", changed("exp", Value::Null)),
        ("not yet valid", changed("nbf", json!(1_800_000_001))),
        ("for others", changed("aud", json!("other"))),
        ("for nobody", changed("aud", Value::Null)),
        ("of another issuer", changed("iss", json!("https://elsewhere"))),
        ("of another tenant", changed("tenant", json!("t2"))),
        ("e-mail not verified", changed("email_verified", json!(false))),
        ("e-mail perhaps verified", changed("email_verified", json!("true"))),
        ("without a name", changed("email", Value::Null)),
        ("groups are numbers", changed("groups", json!([1]))),
    ] {
        assert_eq!(trusted.user(&provider.token(&claims), now()).await, None, "{why}");
    }
    let foreign_key = KeyPair::generate().unwrap();
    let header = Header { kid: Some("k1".to_owned()), ..Header::new(Algorithm::ES256) };
    assert_eq!(trusted.user(&sign(&header, &good, &foreign_key), now()).await, None, "signed by another key");
    let header = Header { kid: Some("k2".to_owned()), ..header };
    assert_eq!(trusted.user(&sign(&header, &good, &foreign_key), now()).await, None, "names an unknown key");
    let symmetric = jsonwebtoken::encode(
        &Header { kid: Some("k1".to_owned()), ..Header::default() },
        &good,
        &EncodingKey::from_secret(provider.key.public_key_raw()),
    );
    assert_eq!(trusted.user(&symmetric.unwrap(), now()).await, None, "the public key as a secret");
    let unsigned = format!("{}.{}.", BASE64.encode(r#"{"alg":"none","kid":"k1"}"#), BASE64.encode(good.to_string()));
    assert_eq!(trusted.user(&unsigned, now()).await, None, "not signed");
    for garbage in ["", ".", "..", "a.b.c", "a.e30.c"] {
        assert_eq!(trusted.user(garbage, now()).await, None, "{garbage:?}");
    }
}

#[tokio::test]
async fn expressions_map_claims_and_rules_judge_them() {
    let provider = Provider::start().await;
    let mut configuration = provider.configuration(json!({
        "username": { "expression": "'p:' + claims.sub" },
        "groups": { "expression": "claims.roles.split(',')" },
        "uid": { "expression": "claims.sub" },
        "extra": [{ "key": "example.com/team", "valueExpression": "claims.?team.orValue('')" }],
    }));
    let jwt = &mut configuration.jwt[0];
    jwt.claim_validation_rules = serde_json::from_value(json!([
        { "expression": "claims.exp - claims.nbf <= 3600", "message": "lives too long" },
    ]))
    .unwrap();
    jwt.user_validation_rules = serde_json::from_value(json!([
        { "expression": "user.groups.all(g, !g.startsWith('system:'))", "message": "reserved" },
    ]))
    .unwrap();
    let trusted = TrustedIssuers::new(configuration, "https://own").unwrap();
    let claims = |change: Value| {
        let mut claims = json!({
            "iss": provider.url(), "aud": "mainstay", "nbf": 1_799_999_900, "exp": 1_800_000_100, "sub": "42",
            "roles": "devs,ops", "team": "blue",
        });
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        provider.token(&claims)
    };
    let user = trusted.user(&claims(json!({})), now()).await.expect("a user");
    assert_eq!((&*user.name, &*user.uid), ("p:42", "42"));
    assert_eq!(user.groups, ["devs", "ops", "system:authenticated"]);
    assert_eq!(user.extra["example.com/team"], ["blue"]);
    assert_eq!(trusted.user(&claims(json!({ "exp": 1_900_000_000 })), now()).await, None, "lives too long");
    assert_eq!(trusted.user(&claims(json!({ "roles": "system:masters" })), now()).await, None, "reserved");
    assert_eq!(trusted.user(&claims(json!({ "roles": 7 })), now()).await, None, "no text");
}

#[tokio::test]
async fn a_key_that_the_issuer_has_retired_is_not_believed_for_long() {
    let provider = Provider::start().await;
    let trusted = TrustedIssuers::new(provider.configuration(people()), "https://own").unwrap();
    let claims = json!({
        "iss": provider.url(), "aud": "mainstay", "exp": 1_900_000_000, "sub": "42", "email": "ann@example.com",
        "groups": ["devs"], "tenant": "t1",
    });
    let token = provider.token(&claims);
    assert!(trusted.user(&token, now()).await.is_some());
    provider.has_retired.store(true, Ordering::SeqCst);
    let at = |seconds: i64| now() + jiff::SignedDuration::from_secs(seconds);
    assert!(trusted.user(&token, at(60)).await.is_some(), "not asked at every request");
    assert_eq!(trusted.user(&token, at(301)).await, None);
}

#[tokio::test]
async fn everybody_who_comes_with_the_first_token_gets_in() {
    let provider = Provider::start().await;
    let trusted = TrustedIssuers::new(provider.configuration(people()), "https://own").unwrap();
    let claims = json!({
        "iss": provider.url(), "aud": "mainstay", "exp": 1_900_000_000, "sub": "42", "email": "ann@example.com",
        "groups": ["devs"], "tenant": "t1",
    });
    let token = provider.token(&claims);
    let users = futures::future::join_all((0..8).map(|_| trusted.user(&token, now()))).await;
    assert!(users.iter().all(Option::is_some), "{users:?}");
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_lets_nobody_in() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let provider = Provider { address, ..Provider::start().await };
    let trusted = TrustedIssuers::new(provider.configuration(people()), "https://own").unwrap();
    let claims =
        json!({ "iss": provider.url(), "aud": "mainstay", "exp": 1_900_000_000, "email": "a", "tenant": "t1" });
    assert_eq!(trusted.user(&provider.token(&claims), now()).await, None);
}

#[test]
fn a_configuration_that_is_wrong_names_the_field() {
    let problem = |change: &dyn Fn(&mut Value)| {
        let mut file = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [{
                "issuer": { "url": "https://issuer", "audiences": ["a"] },
                "claimMappings": { "username": { "claim": "sub", "prefix": "" } },
            }],
        });
        change(&mut file);
        let parsed = serde_json::from_value(file).map_err(|error| error.to_string());
        match parsed {
            Ok(parsed) => {
                TrustedIssuers::new(parsed, "https://own").err().map_or(String::new(), |error| error.to_string())
            }
            Err(error) => error,
        }
    };
    assert_eq!(problem(&|_| {}), "");
    let jwt = |change: &dyn Fn(&mut Value)| problem(&|file: &mut Value| change(&mut file["jwt"][0]));
    assert!(jwt(&|jwt| jwt["issuer"]["url"] = json!("http://issuer")).starts_with("jwt[0].issuer.url: must be a URL"));
    assert!(jwt(&|jwt| jwt["issuer"]["url"] = json!("https://own")).contains("service accounts"));
    assert!(jwt(&|jwt| jwt["issuer"]["audiences"] = json!([])).starts_with("jwt[0].issuer.audiences:"));
    assert!(jwt(&|jwt| jwt["issuer"]["audiences"] = json!(["a", "b"])).contains("audienceMatchPolicy"));
    assert!(jwt(&|jwt| jwt["issuer"]["certificateAuthority"] = json!("x")).contains("no certificate in PEM form"));
    assert!(jwt(&|jwt| jwt["claimMappings"]["username"] = json!({ "claim": "sub" })).contains("username.prefix"));
    assert!(jwt(&|jwt| jwt["claimMappings"]["username"] = json!({})).contains("claim or expression is required"));
    assert!(jwt(&|jwt| jwt["claimMappings"]["nobody"] = json!({})).contains("unknown field `nobody`"));
    let expression = |text: &str| {
        let text = text.to_owned();
        jwt(&move |jwt| jwt["claimMappings"]["username"] = json!({ "expression": text }))
    };
    assert_eq!(expression("claims.sub"), "");
    assert!(expression("claims.sub +").starts_with("jwt[0].claimMappings.username.expression: ERROR: <input>:1:"));
    assert!(expression("nobody.sub").contains("undeclared reference to 'nobody'"));
    assert!(expression("1 == 1").contains("must evaluate to text"));
    assert!(problem(&|file| file["kind"] = json!("Pod")).starts_with("kind: want"));
    assert_eq!(problem(&|file| file["anonymous"] = json!({ "enabled": false })), "");
    assert!(problem(&|file| file["anonymous"] = json!({ "enabled": true })).starts_with("anonymous.enabled: must be"));
    let extra = |keys: &[&str]| {
        let extra: Vec<Value> = keys.iter().map(|key| json!({ "key": key, "valueExpression": "claims.sub" })).collect();
        jwt(&move |jwt| jwt["claimMappings"]["extra"] = json!(extra))
    };
    assert_eq!(extra(&["example.com/team", "example.com/area"]), "");
    for (keys, words) in [
        (&["example.com/team", "example.com/team"][..], "jwt[0].claimMappings.extra[1].key: stands in an earlier item"),
        (&["team"], "jwt[0].claimMappings.extra[0].key: must be a domain-prefixed path"),
        (&["example.com/Team"], "jwt[0].claimMappings.extra[0].key: must be lowercase"),
        (&["authentication.kubernetes.io/node-name"], "jwt[0].claimMappings.extra[0].key: k8s.io, kubernetes.io and"),
    ] {
        assert!(extra(keys).starts_with(words), "{keys:?}: {}", extra(keys));
    }
    for name in
        ["claims.email", "claims . email", "claims.?email.orValue('')", "claims['email']", "'a' + claims[\"email\"]"]
    {
        assert!(expression(name).contains("claims.email_verified must be used"), "{name}: {}", expression(name));
    }
    assert_eq!(expression("claims.email_verified ? claims.email : claims.sub"), "");
    assert_eq!(expression("claims.emails"), "");
}
