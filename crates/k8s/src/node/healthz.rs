//! The liveness and readiness probes of the node driver, and its metrics.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::UnixStream;
use tokio::sync::watch;

use super::metrics::NodePage;
use crate::base::{metrics, server};

/// Answers `GET /healthz` for as long as the program runs: 200 while all these sockets have a listener. `GET /readyz`
/// is 200 once kubelet has registered this driver: only then may a rolling update end the one before it.
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
    registered: watch::Receiver<bool>,
    page: Option<Arc<NodePage>>,
) -> io::Result<SocketAddr> {
    let sockets = sockets.into();
    let (listener, address) = server::listen(address).await?;
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
    let is_ready = get(move || {
        let is_registered = *registered.borrow();
        async move {
            if is_registered {
                (StatusCode::OK, "ok\n")
            } else {
                (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "kubelet has not registered this driver yet\n",
                )
            }
        }
    });
    let mut app = Router::new()
        .route("/healthz", answer)
        .route("/readyz", is_ready);
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
        get(address, "/healthz").await
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let call = format!("GET {path} HTTP/1.1\r\nhost: node\r\nconnection: close\r\n\r\n");
        stream.write_all(call.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_socket_without_a_listener_fails_the_probe() {
        let folder = tempfile::tempdir().unwrap();
        let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (_, registered) = watch::channel(false);
        let listening = listen(any, sockets.clone(), registered, None);
        let address = listening.await.unwrap();
        let _a = UnixListener::bind(&sockets[0]).unwrap();
        let ill = probe(address).await;
        assert!(ill.starts_with("HTTP/1.1 503"), "{ill}");
        assert!(ill.ends_with("/b.sock\n"), "{ill}");
        let _b = UnixListener::bind(&sockets[1]).unwrap();
        let well = probe(address).await;
        assert!(well.starts_with("HTTP/1.1 200"), "{well}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_driver_is_ready_once_kubelet_has_registered_it() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (register, registered) = watch::channel(false);
        let address = listen(any, [], registered, None).await.unwrap();
        let early = get(address, "/readyz").await;
        assert!(early.starts_with("HTTP/1.1 503"), "{early}");
        register.send_replace(true);
        let late = get(address, "/readyz").await;
        assert!(late.starts_with("HTTP/1.1 200"), "{late}");
    }
}
