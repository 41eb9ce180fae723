//! A server of one path, with limits on time, size and number of connections: the webhook's, and the extender's.

mod complaint;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::{debug, warn};

use complaint::{Complaints, Mistake};

/// What answers the requests.
pub trait Service: Send + Sync + 'static {
    /// The path of its requests, which are sent with POST.
    const PATH: &'static str;
    /// Bytes of the largest body.
    const MOST_BYTES: usize;

    /// The answer to a body, as JSON.
    ///
    /// # Errors
    /// The body is not what the path takes; the text says why.
    fn answer(&self, body: &[u8]) -> impl Future<Output = Result<String, String>> + Send;
}

/// A listener at an address, and the address that it has: the kernel chooses a port for port 0.
///
/// # Errors
/// The address is taken, or not one of this machine.
pub async fn listen(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

/// Answers requests for health for as long as the program runs.
pub async fn serve_health(listener: TcpListener, router: Router) {
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the health endpoint failed");
    }
}

/// Requests about pods are some 10 KiB; of what is larger only so many are read at once, as memory is bounded.
const SMALL_BYTES: u64 = 128 << 10;
const MOST_LARGE: usize = 4;
/// For a TLS handshake, and for the body of a request. As long as the API server itself waits for a webhook by default
/// (`timeoutSeconds`); a client that is slower is not one.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the head of the next request on a connection. Go's client gives up an idle connection after 90 s
/// (`DefaultTransport.IdleConnTimeout`). A server that closes it first may do so while a review is on its way, which the
/// API server does not repeat: the pod is refused.
const IDLE: Duration = Duration::from_secs(100);
/// How long requests in progress may take once the server ends.
const DRAIN: Duration = Duration::from_secs(10);
/// More connections than API servers and schedulers open; more wait to be accepted. Half of the usual bound of 1024
/// descriptors leaves room for the program's own.
const MOST_CONNECTIONS: usize = 512;

/// The certificate that is shown, which may change while connections last.
#[derive(Debug, Default)]
pub struct ServingCert(RwLock<Option<Arc<CertifiedKey>>>);

impl ServingCert {
    pub fn show(&self, key: CertifiedKey) {
        *self
            .0
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Arc::new(key));
    }
}

impl ResolvesServerCert for ServingCert {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self
            .0
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        shown.clone()
    }
}

/// Takes connections until the stop signal, then lets those that are there finish. HTTPS with this certificate, or
/// HTTP without one.
///
/// # Errors
/// TLS cannot be set up.
pub async fn serve<S: Service>(
    listener: TcpListener,
    shown: Option<Arc<ServingCert>>,
    service: Arc<S>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), rustls::Error> {
    let acceptor = shown.map(acceptor).transpose()?;
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let large = Arc::new(Semaphore::new(MOST_LARGE));
    let complaints = Arc::new(Complaints::default());
    // Carries no message: it closes when the last connection has gone.
    let (alive, mut gone) = mpsc::channel::<Infallible>(1);
    loop {
        let taken = tokio::select! {
            taken = accept(&listener, &room) => taken,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let Some((stream, client, place)) = taken else {
            continue;
        };
        let (acceptor, service, stop) = (acceptor.clone(), Arc::clone(&service), stop.clone());
        let (large, complaints) = (Arc::clone(&large), Arc::clone(&complaints));
        let alive = alive.clone();
        tokio::spawn(async move {
            let _held = (place, alive);
            let ended = match acceptor {
                None => converse(stream, &service, &large, stop).await,
                Some(acceptor) => match timeout(PATIENCE, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, &service, &large, stop).await,
                    Ok(Err(error)) => {
                        let mistake = Mistake::of_handshake(&error);
                        complaints.log(mistake, client, &error);
                        return;
                    }
                    Err(_) => return debug!("the TLS handshake timed out"),
                },
            };
            if let Err(error) = ended {
                let mistake = Mistake::of_conversation(&error);
                complaints.log(mistake, client, &error);
            }
        });
    }
    drop((listener, alive));
    let drained = timeout(DRAIN, gone.recv()).await;
    if drained.is_err() {
        warn!("closed connections that did not end in time");
    }
    Ok(())
}

fn acceptor(shown: Arc<ServingCert>) -> Result<TlsAcceptor, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions()?;
    let mut config = config.with_no_client_auth().with_cert_resolver(shown);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> Option<(TcpStream, IpAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, client)) => Some((stream, client.ip(), place)),
        Err(error) => {
            // Out of descriptors, most likely; asking again at once would not give any.
            warn!(%error, "cannot accept a connection");
            sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

async fn converse<S: Service>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    service: &Arc<S>,
    large: &Arc<Semaphore>,
    mut stop: watch::Receiver<bool>,
) -> hyper::Result<()> {
    let service = service_fn(|request: Request<Incoming>| {
        let (service, large) = (Arc::clone(service), Arc::clone(large));
        async move { Ok::<_, Infallible>(answer(&*service, &large, request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(IDLE);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let stopped = async {
        // An error means that the sender is gone, which also ends the server.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = stopped => None,
    };
    match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

async fn answer<S: Service>(
    service: &S,
    large: &Semaphore,
    request: Request<Incoming>,
) -> Response<Body> {
    let reply = |status: StatusCode, body: String| {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != S::PATH {
        return reply(StatusCode::NOT_FOUND, "unknown path\n".to_owned());
    }
    if request.method() != Method::POST {
        return reply(
            StatusCode::METHOD_NOT_ALLOWED,
            "send requests with POST\n".to_owned(),
        );
    }
    let said = request.body().size_hint().upper();
    let is_small = said.is_some_and(|bytes| bytes <= SMALL_BYTES);
    let _place = if is_small {
        None
    } else {
        match timeout(PATIENCE, large.acquire()).await {
            Ok(place) => place.ok(),
            Err(_) => {
                return reply(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "too many large requests at the same time\n".to_owned(),
                );
            }
        }
    };
    let body = to_bytes(Body::new(request.into_body()), S::MOST_BYTES);
    let body = match timeout(PATIENCE, body).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            return reply(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is too large or incomplete\n".to_owned(),
            );
        }
        Err(_) => {
            return reply(
                StatusCode::REQUEST_TIMEOUT,
                "the body did not arrive in time\n".to_owned(),
            );
        }
    };
    match service.answer(&body).await {
        Ok(text) => {
            let mut response = reply(StatusCode::OK, text);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            response
        }
        Err(why) => reply(StatusCode::BAD_REQUEST, format!("{why}\n")),
    }
}
