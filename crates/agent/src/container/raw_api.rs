//! Raw HTTP calls of the engine's API, for answers that the client library does not pass on.

use std::path::Path;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONNECTION, HOST};
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::engine::TIMEOUT;

/// What an engine answers.
#[derive(Debug)]
pub struct RawResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Calls the engine behind the socket, in the version that `docker` speaks. `target`: path and query.
///
/// # Errors
/// The engine does not answer, or not completely.
pub async fn call(
    socket: &Path,
    docker: &Docker,
    method: Method,
    target: &str,
) -> Result<RawResponse, Error> {
    let version = docker.client_version();
    let (major, minor) = (version.major_version, version.minor_version);
    let request = Request::builder()
        .method(method)
        .uri(format!("/v{major}.{minor}{target}"))
        .header(HOST, "engine")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    tokio::time::timeout(Duration::from_secs(TIMEOUT), send(socket, request))
        .await
        .unwrap_or(Err(Error::RequestTimeoutError))
}

async fn send(socket: &Path, request: Request<Empty<Bytes>>) -> Result<RawResponse, Error> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        let (head, body) = answer.into_parts();
        Ok::<_, Error>(RawResponse {
            status: head.status,
            headers: head.headers,
            body: body.collect().await?.to_bytes().to_vec(),
        })
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // It ends with the answer, which is there then, or without.
        _ = connection => answer.await,
    }
}

/// Text as a value of a query, or as a part of a path (RFC 3986, 2.1 and 3.4).
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                escaped.push(char::from(byte));
            }
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_value_of_the_query() {
        assert_eq!(
            escaped("/a b/ü&c=%.x-y_z~"),
            "/a%20b/%C3%BC%26c%3D%25.x-y_z~"
        );
    }
}
