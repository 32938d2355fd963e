//! A connection to a port of a pod, through the agent of its node.

use http::{Request, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::{
    Agents, pipe,
    pod::{empty_body, node, segment},
};
use crate::{
    api::Api,
    http::status::{ApiError, ApiResult},
};

/// Opens the connection, as if from within the pod.
pub async fn open(api: &Api, agents: &Agents, pod: &Value, port: u16) -> ApiResult<TokioIo<Upgraded>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text(&pod["metadata"]["namespace"]), text(&pod["metadata"]["name"]));
    let node = node(pod).ok_or_else(|| ApiError::bad_request(format!("pod {name} does not have a host assigned")))?;
    let agent = agents.find(api, node).await?;
    let path = format!("/tunnel/{}/{}/{port}", segment(&namespace), segment(&name));
    let tunnel = Request::builder()
        .uri(path)
        .header(header::HOST, "agent")
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "tcp")
        .body(empty_body())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let mut opened = agents.send(&agent, tunnel).await?;
    if opened.status() != StatusCode::SWITCHING_PROTOCOLS {
        let refused = pipe::refusal(opened).await;
        let why = refused.status()["message"].as_str().unwrap_or_default().to_owned();
        return Err(ApiError::not_served(format!("error trying to reach service: {why}")));
    }
    let upgraded = hyper::upgrade::on(&mut opened).await;
    Ok(TokioIo::new(upgraded.map_err(|e| ApiError::not_served(format!("error trying to reach service: {e}")))?))
}
