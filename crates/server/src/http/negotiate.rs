//! Which representation a client wants, from its `Accept` header.

use http::HeaderMap;

use crate::http::status::{ApiError, ApiResult};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
}

/// The shape of the answer; the version is that of `meta.k8s.io` the client named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Object,
    Table(&'static str),
    Partial(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub encoding: Encoding,
    pub shape: Shape,
}

impl Accepted {
    pub const JSON: Self = Self { encoding: Encoding::Json, shape: Shape::Object };
}

pub const OFFERED: [&str; 2] = ["application/json", "application/yaml"];

/// The first thing in the client's list that can be given. Clients list what they prefer first,
/// and none of them weighs. `has_table` is false for kinds that are no rows of anything: reviews.
pub fn accepted(headers: &HeaderMap, has_table: bool) -> ApiResult<Accepted> {
    let mut values = headers.get_all(http::header::ACCEPT).iter().peekable();
    if values.peek().is_none() {
        return Ok(Accepted::JSON);
    }
    values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(media_range)
        .find(|accepted| has_table || !matches!(accepted.shape, Shape::Table(_)))
        .ok_or_else(|| ApiError::not_acceptable(&OFFERED))
}

fn media_range(range: &str) -> Option<Accepted> {
    let mut parts = range.split(';').map(str::trim);
    let encoding = match parts.next()? {
        "application/json" | "application/*" | "*/*" | "" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        _ => return None,
    };
    let (mut form, mut group, mut version) = (None, None, None);
    for (name, value) in parts.filter_map(|p| p.split_once('=')) {
        match name {
            "as" => form = Some(value),
            "g" => group = Some(value),
            "v" => version = Some(value),
            _ => {}
        }
    }
    let version = || match version {
        Some("v1") => Some("meta.k8s.io/v1"),
        Some("v1beta1") => Some("meta.k8s.io/v1beta1"),
        _ => None,
    };
    let shape = match (form, group) {
        (None, _) => Shape::Object,
        (Some("Table"), Some("meta.k8s.io")) => Shape::Table(version()?),
        (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), Some("meta.k8s.io")) => {
            Shape::Partial(version()?)
        }
        (Some(_), _) => return None,
    };
    Some(Accepted { encoding, shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &str, has_table: bool) -> ApiResult<Accepted> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::ACCEPT, accept.parse().unwrap());
        accepted(&headers, has_table)
    }

    fn for_header(accept: &str) -> ApiResult<Accepted> {
        negotiated(accept, true)
    }

    #[test]
    fn a_kind_without_a_table_is_given_as_an_object_or_not_at_all() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
        assert_eq!(negotiated(table, false).unwrap_err().code(), 406);
        assert_eq!(negotiated(&format!("{table},application/json"), false).unwrap(), Accepted::JSON);
    }

    #[test]
    fn the_first_form_we_know_is_taken() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(for_header(kubectl).unwrap().shape, Shape::Table("meta.k8s.io/v1"));
        assert_eq!(for_header("application/vnd.kubernetes.protobuf, application/json").unwrap(), Accepted::JSON);
        assert_eq!(for_header("application/json;as=Wheel;v=v1;g=meta.k8s.io, */*").unwrap(), Accepted::JSON);
        assert_eq!(for_header("application/yaml").unwrap().encoding, Encoding::Yaml);
    }

    #[test]
    fn what_cannot_be_given_is_refused() {
        assert_eq!(for_header("text/csv").unwrap_err().code(), 406);
    }
}
