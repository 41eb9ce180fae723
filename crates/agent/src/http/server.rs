//! The HTTP/1.1 server: accepts connections, bounds how many each caller has, and closes those that send no request.
//!
//! ```text
//! unix socket ─► its pod may call? its user has a place? ─── yes ──┐
//!                └─ no: one answer, 403 or 429                     ├─► hyper (HTTP/1.1 alone) ─► gate ─► routes
//! TCP ─► until the token is shown, the oldest ───┘
//!        gives way to the newest
//! ```
//! Accepting waits for no client: what a connection says is heard in a task of its own.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};
use divvy_api::v1::{Error, ErrorCode};
use divvy_web::connections::{ConnLimit, MOST, TcpConns, TrackedStream};
use divvy_web::deadline::{Deadlines, HeadTimer, ReadCounter};
use futures_util::FutureExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::Peer;
use super::body::ApiError;
use super::socket::Socket;
use crate::host::node_pods::NodePods;

/// How long a connection beyond its user's bound may take to ask. Then it is told.
const REFUSED_HEAD: Duration = Duration::from_secs(2);

/// Bytes of one connection that are read ahead, and so of a request's line and headers: a path has a name of 200 bytes,
/// a header a token of 4 KiB. hyper's own bound is six times that.
const AHEAD: usize = 64 << 10;

/// How long no connection is accepted after an error that is not the connection's own: no descriptor is free. A call
/// that ends frees one within moments; a shorter pause would be busy waiting.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves each connection.
#[derive(Clone)]
pub struct Server {
    routes: TowerToHyperService<Router>,
    deadlines: Deadlines,
}

impl Server {
    pub fn new(routes: Router) -> Self {
        Self {
            routes: TowerToHyperService::new(routes),
            deadlines: Deadlines::USUAL,
        }
    }

    /// Serves the unix socket until the future is dropped. `is_counted` says for which users connections are bounded, and
    /// `pods` which pods of a cluster may call.
    pub async fn local(
        self,
        mut listener: UnixListener,
        socket: Socket,
        is_counted: impl Fn(u32) -> bool,
        pods: Option<NodePods>,
    ) -> Infallible {
        let local = Local {
            server: self,
            is_counted,
            pods,
            places: ConnLimit::of(MOST),
            refused: TcpConns::of(MOST),
        };
        let mut is_failing = false;
        let mut renewed = Box::pin(socket.renewed());
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        is_failing = false;
                        local.enter(stream);
                    }
                    Err(error) => pause(&error, &mut is_failing).await,
                },
                new = &mut renewed => {
                    // Clients that connected before wait in the old one.
                    let accept = || tokio::task::unconstrained(listener.accept()).now_or_never();
                    while let Some(Ok((stream, _))) = accept() {
                        local.enter(stream);
                    }
                    listener = new;
                    renewed.set(socket.renewed());
                }
            }
        }
    }

    /// Serves TCP until the future is dropped.
    pub async fn remote(self, listener: TcpListener) -> Infallible {
        let conns = TcpConns::of(MOST);
        let mut is_failing = false;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    is_failing = false;
                    let conn = conns.accept();
                    let peer = Peer::Token(conn.clone());
                    let served = self.connection(stream, conn.clone(), peer);
                    tokio::spawn(async move {
                        tokio::select! {
                            () = served => {}
                            () = conn.gives_way() => {
                                tracing::debug!("closed a connection without the token in favour of newer ones");
                            }
                        }
                    });
                }
                Err(error) => pause(&error, &mut is_failing).await,
            }
        }
    }

    fn connection<S, P>(
        &self,
        stream: S,
        place: P,
        peer: Peer,
    ) -> impl Future<Output = ()> + Send + use<S, P>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        P: Unpin + Send + 'static,
    {
        let heard = ReadCounter::default();
        let guest = TrackedStream::new(stream, heard.clone(), place);
        let routes = self.routes.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            // The answer to HEAD is that to GET: hyper sends its headers and leaves its body out.
            if request.method() == Method::HEAD {
                *request.method_mut() = Method::GET;
            }
            request.extensions_mut().insert(peer.clone());
            routes.call(request)
        });
        let deadlines = self.deadlines;
        let connection = http1::Builder::new()
            .timer(HeadTimer { deadlines, heard })
            .header_read_timeout(deadlines.head)
            .max_buf_size(AHEAD)
            .serve_connection(TokioIo::new(guest), service)
            .with_upgrades();
        async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
        }
    }
}

/// The unix socket's side of a server.
struct Local<F> {
    server: Server,
    is_counted: F,
    pods: Option<NodePods>,
    places: ConnLimit,
    /// Connections of users without a place. The oldest gives way to the newest, which asks at once.
    refused: TcpConns,
}

impl<F: Fn(u32) -> bool> Local<F> {
    fn enter(&self, stream: UnixStream) {
        let peer = stream
            .peer_cred()
            .map_or(Peer::Unknown, |peer| Peer::Local {
                uid: peer.uid(),
                gid: peer.gid(),
                pid: (peer.pid())
                    .and_then(|pid| u32::try_from(pid).ok())
                    .filter(|pid| *pid > 0),
            });
        let (uid, pid) = match peer {
            Peer::Local { uid, pid, .. } => (uid, pid),
            _ => (u32::MAX, None),
        };
        if let Some(pods) = &self.pods
            && let Some(why) = pods.refusal(&stream, pid)
        {
            tracing::debug!(uid, "refused a connection: {why}");
            return self.refuse(stream, outside(why));
        }
        let place = match (self.is_counted)(uid) {
            false => None,
            true => match self.places.enter(uid) {
                Some(place) => Some(place),
                None => {
                    tracing::debug!(uid, "refused a connection: the user has {MOST} open ones");
                    return self.refuse(stream, too_many(uid));
                }
            },
        };
        tokio::spawn(self.server.connection(stream, place, peer));
    }

    /// Tells a client why it is not served.
    fn refuse(&self, stream: UnixStream, why: Error) {
        let refused = self.refused.accept();
        tokio::spawn(async move {
            tokio::select! {
                () = refuse(stream, why) => {}
                () = refused.gives_way() => {}
            }
        });
    }
}

/// Answers one request, after it was heard: some clients take an answer before it for an error.
async fn refuse(stream: UnixStream, why: Error) {
    let service = service_fn(async |_| {
        let refusal: Response = ApiError::from(why.clone()).into_response();
        Ok::<_, Infallible>(refusal)
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REFUSED_HEAD)
        .max_buf_size(AHEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The refusal of a process in a pod that is no node pod.
fn outside(why: String) -> Error {
    Error::new(ErrorCode::NotAllowed, format!("the daemon of this node does not serve the caller: {why}")).hint(
        "use `divvy-k8s ps` with the rights of your kubeconfig; administrators use `kubectl exec` in the node pod",
    )
}

fn too_many(uid: u32) -> Error {
    let why =
        format!("too many connections: uid {uid} has {MOST} open, which is the limit for one user");
    Error::new(ErrorCode::TooMany, why).hint(format!(
        "end some clients that wait or follow logs (`pgrep -u {uid} -a divvy` lists them), or try again later"
    ))
}

/// After an error of accept(2). Says it once until a connection is accepted again.
async fn pause(error: &io::Error, is_failing: &mut bool) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    ) {
        return;
    }
    if !std::mem::replace(is_failing, true) {
        tracing::error!(%error, "cannot accept connections; retrying");
    }
    tokio::time::sleep(PAUSE).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use divvy_api::v1::ErrorBody;
    use divvy_testkit::PATIENCE;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;

    const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    /// A server with these deadlines. Its answer takes longer than the deadline of the headers.
    fn server(head: Duration, idle: Duration) -> Server {
        let slow = move || async move {
            tokio::time::sleep(head * 2).await;
            "done"
        };
        Server {
            deadlines: Deadlines { head, idle },
            ..Server::new(Router::new().route("/", get(slow)))
        }
    }

    /// What is heard until the server closes the connection.
    async fn rest(stream: &mut UnixStream) -> String {
        let mut heard = String::new();
        let read = timeout(PATIENCE, stream.read_to_string(&mut heard)).await;
        read.expect("the server closes it").unwrap();
        heard
    }

    async fn piece(stream: &mut UnixStream) -> usize {
        let mut piece = [0; 4096];
        let read = timeout(PATIENCE, stream.read(&mut piece)).await;
        read.expect("the server answers").unwrap()
    }

    #[tokio::test]
    async fn a_connection_that_sends_half_a_request_or_none_is_closed_and_an_answer_may_take_its_time()
     {
        let head = Duration::from_millis(100);
        let begin_idle = |idle| {
            let (client, stream) = UnixStream::pair().unwrap();
            tokio::spawn(server(head, idle).connection(stream, (), Peer::Unknown));
            client
        };
        let begin = || begin_idle(PATIENCE);
        for half in [&b""[..], b"GET / HT"] {
            let mut client = begin();
            client.write_all(half).await.unwrap();
            assert_eq!(rest(&mut client).await, "");
        }
        // A client with a byte now and then is not heard for ever.
        let mut client = begin();
        let drip = async {
            while client.write_all(b"G").await.is_ok() {
                tokio::time::sleep(head / 4).await;
            }
        };
        timeout(PATIENCE, drip).await.expect("the server closes it");
        // Nothing comes after an answer.
        let mut client = begin_idle(head);
        client.write_all(ASK).await.unwrap();
        assert!(rest(&mut client).await.ends_with("done"));
        // The second request comes later than its headers may take, and before the connection has been idle for too
        // long.
        let mut client = begin();
        for _ in 0..2 {
            client.write_all(ASK).await.unwrap();
            assert!(piece(&mut client).await > 0);
            tokio::time::sleep(head * 2).await;
        }
        client.write_all(b"GET / HT").await.unwrap();
        assert_eq!(rest(&mut client).await, "");
    }

    #[tokio::test]
    async fn a_user_with_too_many_connections_is_told_so_and_others_are_served() {
        let local = Local {
            server: server(Duration::from_secs(5), Duration::from_secs(5)),
            is_counted: |_| true,
            pods: None,
            places: ConnLimit::of(1),
            refused: TcpConns::of(1),
        };
        let begin = || {
            let (client, stream) = UnixStream::pair().unwrap();
            local.enter(stream);
            client
        };
        let _first = begin();
        // It asks nothing, and gives way to the next.
        let mut silent = begin();
        let mut client = begin();
        assert_eq!(rest(&mut silent).await, "");
        client.write_all(ASK).await.unwrap();
        let told = rest(&mut client).await;
        assert!(told.starts_with("HTTP/1.1 429 "), "{told}");
        let (head, body) = told.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("application/json") && head.contains("retry-after: 1"));
        let body: ErrorBody = serde_json::from_str(body).unwrap();
        assert_eq!(body.error.code, ErrorCode::TooMany);
        assert!(body.error.message.contains("512"), "{}", body.error.message);
        let other = local.places.enter(u32::MAX);
        assert!(other.is_some());
    }
}
