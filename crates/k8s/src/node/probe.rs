//! The liveness probe of the node's agent for kubelet: whether `divvy daemon` answers on its socket in time.
//!
//! It asks `/healthz`, which needs neither the journal nor the driver: an agent that waits for either is alive. The chart runs it in the
//! agent's container, so that trouble of the plugin never restarts the agent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

#[derive(clap::Args)]
pub struct Args {
    /// Socket of this node's `divvy daemon`
    #[arg(long, value_name = "SOCKET", default_value = "/run/divvy/divvy.sock")]
    agent: PathBuf,
    /// Seconds to wait for the response
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
}

/// Why an agent counts as hung.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("no daemon listens on {socket}")]
    Absent {
        socket: PathBuf,
        source: std::io::Error,
    },
    #[error("the daemon on {socket} did not respond within {seconds} s")]
    Silent { socket: PathBuf, seconds: u64 },
    #[error("the daemon on {socket} closed the connection")]
    Broken {
        socket: PathBuf,
        source: hyper::Error,
    },
    #[error("the daemon on {socket} responded with {status}")]
    Ill { socket: PathBuf, status: StatusCode },
}

/// # Errors
/// The agent does not answer in time, or not with 200.
pub async fn run(args: Args) -> Result<(), ProbeError> {
    let Args { agent, seconds } = args;
    let asked = timeout(Duration::from_secs(seconds), ask(&agent)).await;
    asked.unwrap_or(Err(ProbeError::Silent {
        socket: agent,
        seconds,
    }))
}

async fn ask(socket: &Path) -> Result<(), ProbeError> {
    let stream = UnixStream::connect(socket).await;
    let stream = stream.map_err(|source| ProbeError::Absent {
        socket: socket.to_owned(),
        source,
    })?;
    let broken = |source| ProbeError::Broken {
        socket: socket.to_owned(),
        source,
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    tokio::spawn(connection);
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = axum::http::Uri::from_static("/healthz");
    let host = axum::http::HeaderValue::from_static("divvy");
    request.headers_mut().insert("host", host);
    match sender.send_request(request).await.map_err(broken)?.status() {
        StatusCode::OK => Ok(()),
        status => Err(ProbeError::Ill {
            socket: socket.to_owned(),
            status,
        }),
    }
}
