//! CertificateSubject: puts the requesting user into a new CertificateSigningRequest, whatever the client wrote there.
//! Nobody may ask for a certificate in another's name.
//!
//! And upstream's CertificateSubjectRestriction: a client certificate of the group `system:masters`, which no role limits and nobody
//! can revoke, cannot be asked for at all.

use async_trait::async_trait;
use base64::{Engine, prelude::BASE64_STANDARD};
use mainstay_api::descriptor::Descriptor;
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    auth::MASTERS,
    http::status::{ApiError, ApiResult},
    objects::metadata,
    pki,
};

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

pub struct CertificateSubject;

#[async_trait]
impl Plugin for CertificateSubject {
    fn name(&self) -> &'static str {
        "CertificateSubject"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.kind == "CertificateSigningRequest"
    }

    fn prepare_create(&self, request: &Request<'_>, object: &mut Value) {
        let user = request.user;
        let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
        spec.insert("username".to_owned(), json!(user.name));
        spec.insert("groups".to_owned(), json!(user.groups));
        let uid = (!user.uid.is_empty()).then(|| json!(user.uid));
        let extra = (!user.extra.is_empty()).then(|| json!(user.extra));
        for (field, value) in [("uid", uid), ("extra", extra)] {
            match value {
                Some(value) => spec.insert(field.to_owned(), value),
                None => spec.remove(field),
            };
        }
    }
    async fn create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        let name = metadata::string_field(object, "name").unwrap_or_default();
        objection(&object["spec"]).map_or(Ok(()), |why| Err(ApiError::forbidden(&request.target.d, name, &why)))
    }
}

/// Why nobody may ask for this.
fn objection(spec: &Value) -> Option<String> {
    if spec["signerName"] != CLIENT_SIGNER {
        return None;
    }
    let pem = BASE64_STANDARD.decode(spec["request"].as_str().unwrap_or_default()).unwrap_or_default();
    let asked = pki::Request::parse(&pem).ok()?;
    let is_master = asked.organizations.iter().any(|group| group == MASTERS);
    is_master.then(|| format!("use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn spec(signer: &str, group: &str) -> Value {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.distinguished_name.push(DnType::OrganizationName, group);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"signerName": signer, "request": BASE64_STANDARD.encode(pem)})
    }

    #[test]
    fn nobody_asks_for_a_client_certificate_of_the_masters() {
        let why = objection(&spec(CLIENT_SIGNER, "system:masters")).unwrap();
        assert_eq!(why, "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed");
        assert_eq!(objection(&spec(CLIENT_SIGNER, "devs")), None);
        assert_eq!(
            objection(&spec("example.com/signer", "system:masters")),
            None,
            "what others sign is theirs to judge"
        );
        assert_eq!(objection(&json!({"signerName": CLIENT_SIGNER, "request": "AAAA"})), None, "validation judges that");
    }
}
