//! Clients of Klusters' APIs, whose answers are bounded: what such an API answers is up to the administrator of the Kluster, or to whoever writes its kubeconfig.
//!
//! An answer without an end would fill the memory of the server that looks after all Klusters. Watches end when they have carried as much, and are taken up again.

use std::{
    error::Error as StdError,
    task::{Context, Poll},
};

use futures::{TryFutureExt, future::MapOk};
use http::{Request, Response};
use http_body_util::Limited;
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use tower::{Layer, Service};

/// Of one answer: more than ten thousand pods, or as many nodes.
pub const MOST_BYTES: usize = 128 << 20;

/// A client that reads so many bytes of an answer, and then gives it up.
pub fn bounded_client(config: Config, most_bytes: usize) -> Result<Client, kube::Error> {
    Ok(ClientBuilder::try_from(config)?.with_layer(&Bounded { inner: (), most_bytes }).build())
}

type LimitBody<B> = Box<dyn FnOnce(Response<B>) -> Response<Limited<B>> + Send>;

/// A service whose answers are bounded; the layer that makes it, without one.
#[derive(Clone)]
struct Bounded<S> {
    inner: S,
    most_bytes: usize,
}

impl<S> Layer<S> for Bounded<()> {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded { inner, most_bytes: self.most_bytes }
    }
}

impl<S, B> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    B: http_body::Body<Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    type Response = Response<Limited<B>>;
    type Error = S::Error;
    type Future = MapOk<S::Future, LimitBody<B>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let most = self.most_bytes;
        self.inner.call(request).map_ok(Box::new(move |response| response.map(|body| Limited::new(body, most))))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;
    use kube::{Api, api::ListParams};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn an_answer_without_an_end_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let _ = connection.read(&mut [0; 4096]).await;
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
            connection.write_all(head.as_bytes()).await.unwrap();
            let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
            let mut sent = 0_usize;
            while connection.write_all(&chunk).await.is_ok() {
                sent += chunk.len();
            }
            sent
        });
        let config = Config::new(format!("http://{address}").parse().unwrap());
        let client = bounded_client(config, 1 << 20).unwrap();
        Api::<Node>::all(client).list(&ListParams::default()).await.unwrap_err();
        assert!(server.await.unwrap() < 64 << 20, "the connection was closed");
    }
}
