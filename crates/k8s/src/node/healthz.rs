//! The liveness probe of the node driver, and its metrics.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::{TcpListener, UnixStream};

use super::metrics::NodePage;
use crate::metrics;

/// Answers `GET /healthz` for as long as the program runs: 200 while all these sockets have a listener.
///
/// The agent is not asked: what it does not answer is its own container's probe's matter, and this program waits for it.
///
/// With a page of metrics, `GET /metrics` answers it.
///
/// # Errors
/// The address is taken.
pub async fn listen(
    address: SocketAddr,
    sockets: impl Into<Vec<PathBuf>>,
    page: Option<Arc<NodePage>>,
) -> io::Result<SocketAddr> {
    let sockets = sockets.into();
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let answer = get(move || {
        let sockets = sockets.clone();
        async move {
            for socket in &sockets {
                if UnixStream::connect(socket).await.is_err() {
                    let why = format!("no process listens on {}\n", socket.display());
                    return (StatusCode::SERVICE_UNAVAILABLE, why);
                }
            }
            (StatusCode::OK, "ok\n".to_owned())
        }
    });
    let mut app = Router::new().route("/healthz", answer);
    if let Some(page) = page {
        let scrape = async move || metrics::page(page.text().await.to_string());
        app = app.route("/metrics", get(scrape));
    }
    tokio::spawn(async { axum::serve(listener, app).await });
    Ok(address)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpStream, UnixListener};

    use super::*;

    async fn probe(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let call = b"GET /healthz HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n";
        stream.write_all(call).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_socket_without_a_listener_fails_the_probe() {
        let folder = tempfile::tempdir().unwrap();
        let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let address = listen(any, sockets.clone(), None).await.unwrap();
        let _a = UnixListener::bind(&sockets[0]).unwrap();
        let ill = probe(address).await;
        assert!(ill.starts_with("HTTP/1.1 503"), "{ill}");
        assert!(ill.ends_with("/b.sock\n"), "{ill}");
        let _b = UnixListener::bind(&sockets[1]).unwrap();
        let well = probe(address).await;
        assert!(well.starts_with("HTTP/1.1 200"), "{well}");
    }
}
