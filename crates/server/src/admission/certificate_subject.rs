//! CertificateSubject: puts the requesting user into a new CertificateSigningRequest, whatever the client wrote there.
//! Nobody may ask for a certificate in another's name.

use mainstay_api::descriptor::Descriptor;
use serde_json::{Value, json};

use super::{Plugin, Request};

pub struct CertificateSubject;

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
}
