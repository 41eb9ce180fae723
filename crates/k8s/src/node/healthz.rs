//! The answer to a liveness probe.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::{TcpListener, UnixStream};

/// Answers `GET /healthz` for as long as the program runs: 200 while somebody listens on all these sockets.
///
/// The agent is not asked: what it does not answer is its own container's probe's matter, and this program waits for it.
///
/// # Errors
/// The address is taken.
pub async fn listen(address: SocketAddr, sockets: impl Into<Vec<PathBuf>>) -> io::Result<()> {
    let sockets = sockets.into();
    let listener = TcpListener::bind(address).await?;
    let answer = get(move || {
        let sockets = sockets.clone();
        async move {
            for socket in &sockets {
                if UnixStream::connect(socket).await.is_err() {
                    let why = format!("nobody listens on {}\n", socket.display());
                    return (StatusCode::SERVICE_UNAVAILABLE, why);
                }
            }
            (StatusCode::OK, "ok\n".to_owned())
        }
    });
    let app = Router::new().route("/healthz", answer);
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(())
}
