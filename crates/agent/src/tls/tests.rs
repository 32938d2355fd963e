use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Authority { pem, issuer: Issuer::new(params, key) }
}

impl Authority {
    fn pair(&self, user: &str, group: &str) -> Pair {
        let mut params = CertificateParams::new(vec!["agent".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { certificate, key: key.serialize_pem() }
    }
}

/// Whether the agent answers a caller with this certificate, or none.
async fn answers(agent: &Identity, trusted: &Authority, caller: Option<&Pair>) -> bool {
    let acceptor = TlsAcceptor::from(Arc::new(agent.server_config().unwrap()));
    let builder = client_builder(&trusted.pem).unwrap();
    let config = match caller {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(pair.rotating().unwrap())),
        None => builder.with_no_client_auth(),
    };
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(async move {
        let mut stream = acceptor.accept(theirs).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await
    });
    let name = ServerName::try_from("agent").unwrap();
    let mut received = Vec::new();
    if let Ok(mut stream) = TlsConnector::from(Arc::new(config)).connect(name, ours).await {
        let _ = stream.read_to_end(&mut received).await;
    }
    let _ = serving.await.unwrap();
    received == b"hello"
}

#[tokio::test]
async fn only_servers_and_administrators_of_our_ca_may_call_an_agent() {
    let (ca, node_ca, stranger) = (authority(), authority(), authority());
    let own = Identity::new(
        &ca.pem,
        &ca.pair("system:node:a", "system:nodes"),
        &node_ca.pair("system:node:a", "system:nodes"),
    )
    .unwrap();
    for (caller, expected) in [
        (Some(ca.pair("mainstay-server", "mainstay:servers")), true),
        (Some(ca.pair("mainstay-admin", "system:masters")), true),
        (Some(ca.pair("system:node:b", "system:nodes")), false),
        (Some(ca.pair("mainstay-server", "others")), false),
        (Some(stranger.pair("mainstay-server", "mainstay:servers")), false),
        (None, false),
    ] {
        assert_eq!(answers(&own, &node_ca, caller.as_ref()).await, expected, "{caller:?}");
    }
}

#[tokio::test]
async fn a_replaced_certificate_is_shown_from_the_next_handshake_on() {
    let (ca, old, new) = (authority(), authority(), authority());
    let own =
        Identity::new(&ca.pem, &ca.pair("system:node:a", "system:nodes"), &old.pair("system:node:a", "x")).unwrap();
    let server = ca.pair("mainstay-server", "mainstay:servers");
    assert!(answers(&own, &old, Some(&server)).await);
    let renewed = new.pair("system:node:a", "x");
    own.serving.replace(&renewed.certificate, &renewed.key).unwrap();
    assert!(answers(&own, &new, Some(&server)).await);
    assert!(!answers(&own, &old, Some(&server)).await);
}

#[test]
fn keys_are_never_shown() {
    let pair = authority().pair("a", "b");
    assert!(!format!("{pair:?}").contains("PRIVATE"));
}
