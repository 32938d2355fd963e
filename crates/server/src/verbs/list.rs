//! GET of a collection: pages, selectors, and what `resourceVersion` means for them.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::StatusCode;
use mainstay_store::{Entry, List, Revision, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Call;
use crate::{
    api::{Api, Target},
    custom_resources::webhook_conversion,
    flowcontrol::ListSize,
    http::{
        negotiate::{Accepted, Encoding, Shape},
        query::{Query, Version, VersionMatch},
        reply::{self, RowObject},
        response_body::{Body, Response},
        status::{ApiError, ApiResult},
    },
    objects::{
        filter::Filter,
        large_work::LONG_LIST,
        object::{self, Wire},
    },
};

/// How many keys are read at a time while looking for matches to fill a page.
const STRIDE: usize = 500;
/// Lists leave in pieces of about this size.
const PIECE: usize = 64 * 1024;

/// A consistent page of a collection.
pub struct Page {
    pub entries: Vec<Arc<Entry>>,
    pub revision: Revision,
    /// Continues behind the last entry; absent on the last page.
    pub next: Option<String>,
    /// How many objects follow; not known when a selector is used.
    pub remaining: Option<u64>,
}

/// Where a page starts, as clients carry it from page to page.
#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    /// -1: the client accepted to go on at whatever is newest.
    rv: i64,
    /// Key below the collection's prefix.
    start: String,
}

impl Token {
    fn encode(revision: i64, start: &str) -> String {
        let token = Self { v: "meta.k8s.io/v1".into(), rv: revision, start: start.into() };
        BASE64_URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    fn decode(text: &str) -> ApiResult<Self> {
        let bad = || ApiError::bad_request("continue key is not valid: it must come from an earlier page of this list");
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| bad())?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        if token.v != "meta.k8s.io/v1" || token.start.contains("..") || token.start.is_empty() {
            return Err(bad());
        }
        Ok(token)
    }
}

pub async fn list(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, .. } = call;
    let filter = Filter::parse(&target.d, query)?;
    let page = page(api, target, query, &filter).await?;
    if filter.is_empty() && query.continue_token.is_empty() {
        let size = ListSize::estimate(&page.entries, page.remaining.unwrap_or(0));
        api.list_sizes.record(&target.prefix(), size);
    }
    webhook_conversion::prefetch(api, &target.d, &page.entries).await?;
    let is_long = *accepted != Accepted::JSON && page.entries.len() >= LONG_LIST;
    api.long_lists.run(is_long, async { encode_page(target, *accepted, *row, page) }).await
}

/// Reads the page a query asks for.
pub async fn page(api: &Api, target: &Target, query: &Query, filter: &Filter) -> ApiResult<Page> {
    let prefix = target.prefix();
    let (mut at, mut start) = (None, None);
    if query.continue_token.is_empty() {
        at = exact_revision(api, query).await?;
    } else {
        let token = Token::decode(&query.continue_token)?;
        start = Some(format!("{prefix}{}", token.start));
        at = u64::try_from(token.rv).ok().map(Revision).or(at);
    }
    if let (Some(name), None, None, None) = (filter.exact_name(), at, &start, query.limit)
        && (target.namespace.is_some() || !target.d.namespaced())
    {
        return single(api, target, filter, name, query.version).await;
    }
    let mut entries = Vec::new();
    let mut revision = at;
    loop {
        let room = query.limit.map(|limit| limit - entries.len());
        let limit = if filter.is_empty() { room } else { room.map(|room| room.max(STRIDE)) };
        let request = List { prefix: &prefix, start: start.as_deref(), limit, at: revision };
        let any_will_do = query.version == Version::Any && query.continue_token.is_empty();
        let listing = if any_will_do { api.store.list_any(request).await } else { api.store.list(request).await };
        let listing = listing.map_err(|error| match error {
            StoreError::Compacted { .. } if !query.continue_token.is_empty() => {
                let start = start.as_deref().and_then(|s| s.strip_prefix(&prefix)).unwrap_or_default();
                ApiError::expired_page(Token::encode(-1, start))
            }
            error => error.into(),
        })?;
        if !filter.is_empty() {
            webhook_conversion::prefetch(api, &target.d, &listing.entries).await?;
        }
        revision = Some(listing.revision);
        let unread = listing.remaining;
        let total = listing.entries.len();
        let last = listing.entries.last().map(|entry| entry.key.clone());
        let mut taken = 0;
        let filtering = async {
            for entry in listing.entries {
                if query.limit.is_some_and(|limit| entries.len() == limit) {
                    break;
                }
                taken += 1;
                if filter.matches(&target.d, &entry) {
                    entries.push(entry);
                }
            }
        };
        api.long_lists.run(total >= LONG_LIST && !filter.is_empty(), filtering).await;
        let full = query.limit.is_some_and(|limit| entries.len() == limit);
        let more = unread > 0 || taken < total;
        if full || !more {
            let next = more.then(|| entries.last()).flatten().map(|entry| {
                let start = format!("{}\0", entry.key.strip_prefix(&*prefix).unwrap_or(&entry.key));
                Token::encode(listing.revision.0 as i64, &start)
            });
            let remaining = (filter.is_empty() && next.is_some()).then_some(unread);
            return Ok(Page { entries, revision: listing.revision, next, remaining });
        }
        start = last.map(|key| format!("{key}\0"));
    }
}

/// The revision a list must be read at, if not simply the newest.
async fn exact_revision(api: &Api, query: &Query) -> ApiResult<Option<Revision>> {
    let Version::Of(wanted) = query.version else { return Ok(None) };
    let exact = match query.version_match {
        Some(matching) => matching == VersionMatch::Exact,
        None => query.limit.is_some(),
    };
    if exact {
        return Ok(Some(Revision(wanted)));
    }
    let newest = api.store.revision().await?;
    if newest.0 < wanted { Err(ApiError::too_large_version(wanted, newest.0)) } else { Ok(None) }
}

async fn single(api: &Api, target: &Target, filter: &Filter, name: &str, version: Version) -> ApiResult<Page> {
    let key = crate::objects::keys::key(&target.d, target.namespace.as_deref(), name);
    let (entry, revision) =
        if version == Version::Any { api.store.get_any(&key).await? } else { api.store.get(&key).await? };
    if let Some(entry) = &entry {
        webhook_conversion::prefetch(api, &target.d, std::slice::from_ref(entry)).await?;
    }
    let entries = entry.filter(|entry| filter.matches(&target.d, entry)).into_iter().collect();
    Ok(Page { entries, revision, next: None, remaining: None })
}

fn encode_page(target: &Target, accepted: Accepted, row: RowObject, page: Page) -> ApiResult<Response> {
    let d = &target.d;
    let mut metadata = json!({ "resourceVersion": page.revision.to_string() });
    if let Some(next) = &page.next {
        metadata["continue"] = json!(next);
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = json!(remaining);
    }
    if accepted == Accepted::JSON {
        let head =
            format!(r#"{{"kind":"{}","apiVersion":"{}","metadata":{metadata},"items":["#, d.list_kind, d.api_version());
        let items = page.entries.iter().map(|entry| Ok((Wire::from_entry(d, entry)?, entry.modified)));
        let items = items.collect::<ApiResult<_>>()?;
        return Ok(reply::with_media_type(StatusCode::OK, "application/json", copied_out(head, items)));
    }
    let objects: Vec<Value> = page
        .entries
        .iter()
        .map(|entry| {
            let mut object = object::parse(d, entry)?;
            object::set_version(&mut object, entry.modified);
            Ok(object)
        })
        .collect::<ApiResult<_>>()?;
    let value = match accepted.shape {
        Shape::Table(version) => reply::table(version, &d.columns, row, metadata, true, &objects),
        Shape::Partial(version) => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata,
            "items": objects.iter().map(|object| reply::partial(version, object)).collect::<Vec<_>>(),
        }),
        Shape::Object => json!({
            "kind": d.list_kind, "apiVersion": d.api_version(), "metadata": metadata, "items": objects,
        }),
    };
    let encoding = if accepted.encoding == Encoding::Yaml { Encoding::Yaml } else { Encoding::Json };
    Ok(reply::encoded(StatusCode::OK, encoding, &value))
}

/// A list as a body that is put together while it is sent, of known length.
fn copied_out(head: String, items: Vec<(Wire, Revision)>) -> Body {
    const TAIL: &[u8] = b"]}";
    let commas = items.len().saturating_sub(1);
    let length = head.len() + commas + TAIL.len() + items.iter().map(|(wire, rev)| wire.len(*rev)).sum::<usize>();
    let mut items = items.into_iter().peekable();
    let mut head = Some(head.into_bytes());
    let mut done = false;
    let pieces = std::iter::from_fn(move || {
        if done {
            return None;
        }
        let mut piece = head.take().unwrap_or_default();
        piece.reserve(PIECE.min(length) + 4096);
        while piece.len() < PIECE {
            let Some((wire, revision)) = items.next() else {
                piece.extend_from_slice(TAIL);
                done = true;
                break;
            };
            wire.write(revision, &mut piece);
            if items.peek().is_some() {
                piece.push(b',');
            }
        }
        Some(Bytes::from(piece))
    });
    Body::Pieces { length: length as u64, pieces: Box::new(pieces) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_as_long_as_it_said() {
        for count in [0, 1, 2, 3000] {
            let item = |n: usize| {
                let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": format!("c{n}")}});
                (Wire::encode(&object), Revision(n as u64))
            };
            let Body::Pieces { length, pieces } =
                copied_out(r#"{"items":["#.to_owned(), (0..count).map(item).collect())
            else {
                panic!("not in pieces")
            };
            let whole = pieces.fold(Vec::new(), |mut all, piece| {
                all.extend_from_slice(&piece);
                all
            });
            assert_eq!(whole.len() as u64, length);
            let parsed: Value = serde_json::from_slice(&whole).unwrap();
            assert_eq!(parsed["items"].as_array().unwrap().len(), count);
        }
    }

    #[test]
    fn tokens_survive_the_round_trip_and_forgeries_do_not() {
        let token = Token::decode(&Token::encode(7, "a/b\0")).unwrap();
        assert_eq!((token.rv, token.start.as_str()), (7, "a/b\0"));
        assert!(Token::decode("not-base64!").is_err());
        assert!(Token::decode(&BASE64_URL_SAFE_NO_PAD.encode("{}")).is_err());
        assert!(Token::decode(&Token::encode(1, "../secrets/x")).is_err());
    }
}
