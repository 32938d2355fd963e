//! Certificate requests of nodes are approved and signed.

use std::sync::Arc;

use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequest};
use kube::{Api, api::PostParams};
use mainstay_controllers::{CertificateAuthority, CertificateRequest, Settings, Signer};
use serde_json::json;

use crate::cluster::{Cluster, until};

/// Of `system:node:n1` in `system:nodes`.
const REQUEST: &str = "\
-----BEGIN CERTIFICATE REQUEST-----
MIHsMIGSAgEAMDAxFTATBgNVBAoMDHN5c3RlbTpub2RlczEXMBUGA1UEAwwOc3lz
dGVtOm5vZGU6bjEwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASE8TfZoDxXK/iO
3C2cJ0ZSxMq6L14Nn+oPv6vg1qFtHf8xQiT/APeM64mRHkQKPigei0yDfszm9Ba0
bVnD2O2/oAAwCgYIKoZIzj0EAwIDSQAwRgIhAK4pfg/p6l0y+opsN5AEeSyRxvj5
cEBj5ccpAs0Zwh0tAiEAoTsfGKWyGs1YITO6DO0qlNOJ4FUNwJAxEyX+Tt/td3E=
-----END CERTIFICATE REQUEST-----
";
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----
MIIBtzCCAV2gAwIBAgIUPMto+6oXrEj9hlFV/dgef+zdaOswCgYIKoZIzj0EAwIw
MDEVMBMGA1UECgwMc3lzdGVtOm5vZGVzMRcwFQYDVQQDDA5zeXN0ZW06bm9kZTpu
MTAgFw0yNjExMTcyMzE4MDhaGA8yMTI2MTAyNDIzMTgwOFowMDEVMBMGA1UECgwM
c3lzdGVtOm5vZGVzMRcwFQYDVQQDDA5zeXN0ZW06bm9kZTpuMTBZMBMGByqGSM49
AgEGCCqGSM49AwEHA0IABITxN9mgPFcr+I7cLZwnRlLEyrovXg2f6g+/q+DWoW0d
/zFCJP8A94zriZEeRAo+KB6LTIN+zOb0FrRtWcPY7b+jUzBRMB0GA1UdDgQWBBRW
YC9FoAu5hghuxffk2stH3LD3jjAfBgNVHSMEGDAWgBRWYC9FoAu5hghuxffk2stH
3LD3jjAPBgNVHRMBAf8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIEPLGOGcVFxz
05TbcKnZ+9jpjRdFd1qDB8KyWFZuawtcAiEAmGCITSekm15aXOzouR2ljx4HuKkb
59ww4ivpS0wqENQ=
-----END CERTIFICATE-----
";

/// Signs one request, always the same way.
struct FixedAuthority;

impl CertificateAuthority for FixedAuthority {
    fn read(&self, request: &[u8]) -> Result<CertificateRequest, String> {
        assert_eq!(request, REQUEST.as_bytes());
        Ok(CertificateRequest {
            common_name: "system:node:n1".to_owned(),
            common_names: 1,
            organizations: vec!["system:nodes".to_owned()],
            has_host_names: false,
            has_other_names: false,
            public_key: vec![1],
        })
    }

    fn sign(&self, _: &[u8], _: Signer, _: Option<i32>) -> Result<String, String> {
        Ok(CERTIFICATE.to_owned())
    }
}

#[tokio::test]
pub async fn a_node_gets_the_certificate_that_it_asks_for_itself() {
    let settings = Settings { certificate_authority: Some(Arc::new(FixedAuthority)), ..Settings::default() };
    let cluster = Cluster::start_as(settings).await;
    let request = json!({ "metadata": { "name": "own" }, "spec": {
        "request": ByteString(REQUEST.as_bytes().to_vec()), "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"],
    } });
    let requests: Api<CertificateSigningRequest> = Api::all(cluster.node_client("n1"));
    let request = serde_json::from_value(request).unwrap();
    requests.create(&PostParams::default(), &request).await.expect("ask for a certificate");
    let signed: Api<CertificateSigningRequest> = Api::all(cluster.client.clone());
    until("it is signed", async || {
        let status = signed.get("own").await.expect("the request").status.unwrap_or_default();
        status.certificate.is_some_and(|certificate| certificate.0 == CERTIFICATE.as_bytes())
    })
    .await;
    cluster.stop().await;
}
