//! What lies at a path of a container that has not been started, by the engine's own word.
//!
//! Docker and Podman answer the same call (`HEAD /containers/ID/archive`) with the same header, and mean two things by it. Of a link that
//! leads nowhere Docker tells like of any other; Podman answers that nothing is there and tells of it in the header all the same, which
//! the library does not pass on: so the call is made here. Docker names a target of links alone, Podman one of everything.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bollard::Docker;
use bollard::container::PathStatResponse;
use bollard::errors::Error;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONNECTION, HOST};
use hyper::{HeaderMap, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;

use super::engine::TIMEOUT;

/// The header: JSON in base64.
const STAT: &str = "X-Docker-Container-Path-Stat";

/// The bit of a mode that says link (`ModeSymlink` of Go's io/fs, in whose numbers engines speak).
const LINK: u32 = 1 << 27;

/// What lies at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum There {
    Nothing,
    /// A file or a folder.
    Itself,
    /// A link, to this path from the container's root once all links of its end are followed.
    Link(String),
}

/// Asks the engine behind the socket.
///
/// # Errors
/// When it fails. That the container is not there looks as if nothing were in it.
pub async fn there(
    socket: &Path,
    docker: &Docker,
    container: &str,
    path: &str,
) -> Result<There, Error> {
    let version = docker.client_version();
    let target = format!(
        "/v{}.{}/containers/{container}/archive?path={}",
        version.major_version,
        version.minor_version,
        escaped(path)
    );
    let asked = tokio::time::timeout(Duration::from_secs(TIMEOUT), ask(socket, &target)).await;
    let (status, headers) = asked.unwrap_or(Err(Error::RequestTimeoutError))?;
    read(status, &headers)
}

/// A call on a connection of its own.
async fn ask(socket: &Path, target: &str) -> Result<(StatusCode, HeaderMap), Error> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let request = Request::head(target)
        .header(HOST, "engine")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())?;
    let answer = async {
        let answer = sender.send_request(request).await?;
        Ok::<_, Error>((answer.status(), answer.headers().clone()))
    };
    let mut answer = std::pin::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // It ends with the answer, which is there then, or without.
        _ = connection => answer.await,
    }
}

fn read(status: StatusCode, headers: &HeaderMap) -> Result<There, Error> {
    if !status.is_success() && status != StatusCode::NOT_FOUND {
        return Err(Error::DockerResponseServerError {
            status_code: status.as_u16(),
            message: String::new(),
        });
    }
    let stat = headers.get(STAT).map(|value| {
        let text = STANDARD.decode(value.as_bytes()).ok();
        let stat = text.and_then(|text| serde_json::from_slice(&text).ok());
        stat.ok_or_else(|| Error::HttpHeaderNotFoundError(STAT.to_owned()))
    });
    match stat.transpose()? {
        Some(PathStatResponse {
            file_mode,
            link_target,
            ..
        }) if file_mode & LINK != 0 => Ok(There::Link(link_target)),
        Some(_) if status.is_success() => Ok(There::Itself),
        None if status.is_success() => Err(Error::HttpHeaderNotFoundError(STAT.to_owned())),
        _ => Ok(There::Nothing),
    }
}

/// A path as a value of a query (RFC 3986, 2.1 and 3.4).
fn escaped(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn answered(status: u16, stat: Option<&str>) -> Result<There, Error> {
        let mut headers = HeaderMap::new();
        if let Some(stat) = stat {
            let value = HeaderValue::from_str(&STANDARD.encode(stat)).unwrap();
            headers.insert("x-docker-container-path-stat", value);
        }
        read(StatusCode::from_u16(status).unwrap(), &headers)
    }

    fn stat(mode: u32, target: &str) -> String {
        format!(
            r#"{{"name":"x","size":7,"mode":{mode},"mtime":"2026-01-02T03:04:05Z","isDir":false,"linkTarget":"{target}"}}"#
        )
    }

    #[test]
    fn a_link_is_known_by_its_mode_whatever_the_engine_answers_besides() {
        let link = stat(134_218_239, "/usr/lib");
        let leads = There::Link("/usr/lib".to_owned());
        // Podman's answer where it leads nowhere is the second.
        for status in [200, 404] {
            assert_eq!(answered(status, Some(&link)).unwrap(), leads);
        }
        // Docker names no target of a file, Podman the file.
        for target in ["", "/bin/sh"] {
            let file = answered(200, Some(&stat(493, target)));
            assert_eq!(file.unwrap(), There::Itself);
        }
        assert_eq!(answered(404, None).unwrap(), There::Nothing);
    }

    #[test]
    fn an_engine_that_fails_says_nothing_about_the_path() {
        let failed = answered(500, Some(&stat(493, "")));
        assert_eq!(
            super::super::engine::status(&failed.unwrap_err()),
            Some(500)
        );
        assert!(answered(200, None).is_err());
        let mut headers = HeaderMap::new();
        headers.insert(
            "x-docker-container-path-stat",
            HeaderValue::from_static("no base64"),
        );
        assert!(read(StatusCode::OK, &headers).is_err());
    }

    #[test]
    fn a_path_is_one_value_of_the_query() {
        assert_eq!(
            escaped("/a b/ü&c=%.x-y_z~"),
            "/a%20b/%C3%BC%26c%3D%25.x-y_z~"
        );
    }
}
