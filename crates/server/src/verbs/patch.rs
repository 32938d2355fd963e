//! PATCH in its three classic forms. The fourth is [`super::apply`].

use bytes::Bytes;
use http::HeaderMap;
use mainstay_api::{
    decode::{self, Decoded},
    patch::{self, PatchError},
};
use serde_json::{Value, json};

use super::{Call, apply};
use crate::{
    api::Api,
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
        warnings::Warnings,
        write_options::{self, WriteKind},
    },
    objects::{
        field_tracking,
        guaranteed_update::{Ownership, Part, guaranteed_update},
        metadata, request_object,
    },
};

const ACCEPTED: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    apply::MEDIA_TYPE,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    Json,
    Merge,
    Strategic,
}

impl PatchType {
    fn from_headers(headers: &HeaderMap) -> ApiResult<Self> {
        match request_object::media_type(headers) {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            other => Err(ApiError::unsupported_media_type(other, &ACCEPTED)),
        }
    }
}

/// A patch as it came, ready to be applied to any version of the object.
pub struct Patch {
    form: PatchType,
    content: Value,
}

impl Patch {
    pub fn parse(headers: &HeaderMap, body: &Bytes) -> ApiResult<Self> {
        let form = PatchType::from_headers(headers)?;
        let Decoded { value: content, .. } =
            decode::json(body).map_err(|e| ApiError::bad_request(format!("error decoding patch: {e}")))?;
        let shaped = match form {
            PatchType::Json => content.is_array(),
            PatchType::Merge | PatchType::Strategic => content.is_object(),
        };
        if !shaped {
            let wanted = if form == PatchType::Json { "a list of operations" } else { "an object" };
            return Err(ApiError::bad_request(format!("error decoding patch: it must be {wanted}")));
        }
        Ok(Self { form, content })
    }

    /// Applies the patch to an object of the given schema definition.
    pub fn apply(&self, api: &Api, definition: &str, object: &mut Value) -> ApiResult<()> {
        let applied = match self.form {
            PatchType::Merge => {
                patch::merge(object, &self.content);
                Ok(())
            }
            PatchType::Json => patch::json(object, &self.content),
            PatchType::Strategic => patch::strategic(object, &self.content, api.schema, definition),
        };
        applied.map_err(|error| match error {
            PatchError::Malformed(why) => ApiError::bad_request(why),
            PatchError::TooLarge(why) => ApiError::too_large(why),
            PatchError::Inapplicable(_) | PatchError::TestFailed(_) => ApiError::unprocessable(format!(
                "the server rejected our request due to an error in our request: {error}"
            )),
        })
    }
}

/// Whether the body of a PATCH is a configuration to apply.
pub fn is_apply(headers: &HeaderMap) -> bool {
    request_object::media_type(headers) == apply::MEDIA_TYPE
}

pub async fn patch(call: &Call<'_>, part: Part) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, headers, body, .. } = call;
    let d = &target.d;
    if is_apply(headers) {
        return apply::apply(call, part).await;
    }
    let patch = Patch::parse(headers, body)?;
    write_options::check(query, WriteKind::Patch)?;
    let writer = call.writer(part);
    let ownership = Ownership::Tracked(&writer);
    let mut warnings = Warnings::default();
    let changed = guaranteed_update(&call.admission(), part, ownership, query.dry_run, |old| {
        let mut object = old.clone();
        patch.apply(api, &d.schema, &mut object)?;
        let clears_managers = request_object::has_empty_managed_fields(&object);
        let mut object = request_object::shape(d, api.schema, object.into(), query.field_validation, &mut warnings)?;
        metadata::set_namespace(target, &mut object)?;
        metadata::check_name(target, &mut object)?;
        if clears_managers {
            field_tracking::set_managed_fields(&mut object, Some(json!([])));
        }
        Ok(object)
    })
    .await?;
    if part != Part::Status {
        warnings.extend(d.strategy.warnings(&changed.object)); // agents and controllers take no advice
    }
    let mut response = reply::object(d, *accepted, *row, &changed.wire, Some(changed.revision))?;
    warnings.write(response.headers_mut());
    Ok(response)
}
