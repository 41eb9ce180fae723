//! The HTTP/1.1 server of the page on 127.0.0.1: bounds its connections, and closes those that send no request.
//!
//! Every user of the machine can open the port. A connection that has not shown the token gives way to newer ones, so
//! that other users cannot keep the user's own browser out.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use divvy_web::connections::{TcpConns, TrackedStream};
use divvy_web::deadline::{Deadlines, HeadTimer, ReadCounter};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::proxy::Proxy;

/// Connections without the token, and as many with it. A browser opens six to one server.
const MOST: usize = 256;

/// Bytes of a request's line and headers. Browsers send some kilobytes, with cookies of other programs of this host: a
/// larger head is an attack.
const AHEAD: usize = 64 << 10;

/// How long no connection is accepted after an error of accept(2): no descriptor is free.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until the future is dropped.
///
/// # Errors
/// When the listener cannot be used; returned as the value, since it is the only way to end.
pub async fn serve(listener: TcpListener, proxy: Proxy) -> io::Error {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return error,
    };
    let (conns, proxy) = (TcpConns::of(MOST), Arc::new(proxy));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let conn = conns.accept();
                let (proxy, gives_way) = (Arc::clone(&proxy), conn.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = connection(stream, conn, proxy) => {}
                        () = gives_way.gives_way() => {}
                    }
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn connection(stream: TcpStream, conn: divvy_web::connections::TcpConn, proxy: Arc<Proxy>) {
    let heard = ReadCounter::default();
    let stream = TrackedStream::new(stream, heard.clone(), conn.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (proxy, conn) = (Arc::clone(&proxy), conn.clone());
        async move { Ok::<_, std::convert::Infallible>(proxy.answer(request, &conn).await) }
    });
    let deadlines = Deadlines::USUAL;
    // A client that hangs up or breaks off needs no word on the terminal.
    let _ = http1::Builder::new()
        .timer(HeadTimer { deadlines, heard })
        .header_read_timeout(deadlines.head)
        .max_buf_size(AHEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
