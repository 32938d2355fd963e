//! DELETE of a collection: each selected object by itself, as if deleted one by one.

use futures::{FutureExt, StreamExt, TryStreamExt, stream};
use http::StatusCode;
use serde_json::{Value, json};

use super::{Call, delete, list};
use crate::{
    admission::Request,
    api::Target,
    http::{reply, response_body::Response, status::ApiResult},
    objects::{filter::Filter, keys, object},
};

/// How many deletes are under way at once; they share commits.
const WIDTH: usize = 32;

pub async fn delete_collection(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, headers, body, .. } = call;
    let d = &target.d;
    let options = delete::Options::parse(query, headers, body)?;
    let filter = Filter::parse(d, query)?;
    let page = list::page(api, target, query, &filter).await?;
    let targets = page.entries.iter().map(|entry| {
        let (namespace, name) = keys::names(d, &entry.key);
        Target { d: d.clone(), namespace: namespace.map(str::to_owned), name: name.to_owned() }
    });
    let targets: Vec<Target> = targets.collect();
    let requests: Vec<Request<'_>> = targets.iter().map(|target| Request { target, ..call.admission() }).collect();
    let deletes = requests.iter().map(|request| delete_if_there(request, &options).boxed()).collect::<Vec<_>>();
    let deleted: Vec<Option<Value>> = stream::iter(deletes).buffered(WIDTH).try_collect().await?;
    let list = json!({
        "kind": d.list_kind,
        "apiVersion": d.api_version(),
        "metadata": { "resourceVersion": page.revision.to_string(), "continue": page.next },
        "items": deleted.into_iter().flatten().collect::<Vec<_>>(),
    });
    Ok(reply::encoded(StatusCode::OK, accepted.encoding, &list))
}

/// The object as it was deleted, or nothing if someone else was faster.
async fn delete_if_there(request: &Request<'_>, options: &delete::Options) -> ApiResult<Option<Value>> {
    match delete::delete_one(request, options).await {
        Ok(deleted) => {
            let mut object = deleted.object;
            object::set_version(&mut object, deleted.revision);
            Ok(Some(object))
        }
        Err(error) if error.code() == StatusCode::NOT_FOUND => Ok(None),
        Err(error) => Err(error),
    }
}
