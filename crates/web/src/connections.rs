//! Connection limits: for each user of a unix socket, and on TCP for callers with and without the token.
//!
//! A connection is a descriptor of the server, whether a client asks anything over it or not, and without descriptors a
//! daemon starts no job.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::deadline::ReadCounter;

/// Of one caller. A client has one connection for each call that goes on: `wait`, `logs -f`. So 512 is hundreds of such
/// calls at once, more than a script needs. It is also half of the usual bound of 1024 descriptors (024).
pub const MOST: usize = 512;

/// A panic elsewhere leaves these counts whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Places for the connections of each caller, so many and no more.
#[derive(Clone)]
pub struct ConnLimit {
    inside: Arc<Mutex<HashMap<u32, usize>>>,
    most: usize,
}

impl ConnLimit {
    pub fn of(most: usize) -> Self {
        Self {
            inside: Arc::default(),
            most,
        }
    }

    /// Counts one more; `None` where that is too many.
    pub fn enter(&self, caller: u32) -> Option<ConnPermit> {
        let mut inside = lock(&self.inside);
        let count = inside.entry(caller).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(ConnPermit {
            caller,
            crowd: self.clone(),
        })
    }
}

/// One connection's place, free again when it is dropped.
pub struct ConnPermit {
    caller: u32,
    crowd: ConnLimit,
}

impl Drop for ConnPermit {
    fn drop(&mut self) {
        let mut inside = lock(&self.crowd.inside);
        if let Some(count) = inside.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.caller);
            }
        }
    }
}

/// Connections over TCP. Until it has shown the token, a connection gives way to newer ones: the oldest is closed
/// first.
#[derive(Clone)]
pub struct TcpConns {
    open: Arc<Mutex<Open>>,
    /// Those that have shown the token.
    admitted: ConnLimit,
    most: usize,
}

/// What closes each connection that has not shown the token, by age.
#[derive(Default)]
struct Open {
    next: u64,
    closers: BTreeMap<u64, Arc<Notify>>,
}

impl TcpConns {
    /// So many connections without the token, and as many with it.
    pub fn of(most: usize) -> Self {
        Self {
            open: Arc::default(),
            admitted: ConnLimit::of(most),
            most,
        }
    }

    /// Takes a new connection in, and has the oldest closed if that makes too many.
    pub fn accept(&self) -> TcpConn {
        let closer = Arc::new(Notify::new());
        let mut open = lock(&self.open);
        if open.closers.len() >= self.most
            && let Some((_, oldest)) = open.closers.pop_first()
        {
            oldest.notify_one();
        }
        let number = open.next;
        open.next += 1;
        open.closers.insert(number, Arc::clone(&closer));
        drop(open);
        TcpConn(Arc::new(Entry {
            number,
            closer,
            conns: self.clone(),
            place: OnceLock::new(),
        }))
    }
}

/// One connection over TCP.
#[derive(Clone)]
pub struct TcpConn(Arc<Entry>);

struct Entry {
    number: u64,
    closer: Arc<Notify>,
    conns: TcpConns,
    /// Its place among connections that have shown the token.
    place: OnceLock<ConnPermit>,
}

impl TcpConn {
    /// It has shown the token and gives way to no other from now on; false where as many as may be have.
    pub fn mark_authenticated(&self) -> bool {
        let Entry { number, conns, .. } = &*self.0;
        if self.0.place.get().is_some() {
            return true;
        }
        let Some(place) = conns.admitted.enter(0) else {
            return false;
        };
        lock(&conns.open).closers.remove(number);
        // Requests of one connection are heard one after another.
        self.0.place.set(place).is_ok()
    }

    /// Returns once it is to give way.
    pub async fn gives_way(&self) {
        self.0.closer.notified().await;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        lock(&self.conns.open).closers.remove(&self.number);
    }
}

/// A connection with its place, also after it has become another protocol's.
pub struct TrackedStream<S, P> {
    stream: S,
    reads: ReadCounter,
    _place: P,
}

impl<S, P> TrackedStream<S, P> {
    pub fn new(stream: S, heard: ReadCounter, place: P) -> Self {
        Self {
            stream,
            reads: heard,
            _place: place,
        }
    }
}

impl<S: AsyncRead + Unpin, P: Unpin> AsyncRead for TrackedStream<S, P> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.reads.more();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin, P: Unpin> AsyncWrite for TrackedStream<S, P> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn one_caller_fills_its_own_places_alone_and_has_them_again() {
        let crowd = ConnLimit::of(MOST);
        let mut places: Vec<_> = (0..MOST).filter_map(|_| crowd.enter(1000)).collect();
        assert_eq!(places.len(), MOST);
        assert!(crowd.enter(1000).is_none());
        assert!(crowd.enter(1001).is_some());
        places.pop();
        places.push(crowd.enter(1000).expect("one place is free again"));
        assert!(crowd.enter(1000).is_none());
        places.clear();
        assert!(lock(&crowd.inside).is_empty());
    }

    #[test]
    fn a_connection_without_the_token_gives_way_to_newer_ones_and_one_with_it_does_not() {
        let conns = TcpConns::of(2);
        let [with, oldest, newer] = [(); 3].map(|()| {
            let conn = conns.accept();
            if lock(&conns.open).next == 1 {
                assert!(conn.mark_authenticated() && conn.mark_authenticated());
            }
            conn
        });
        let is_closed = |conn: &TcpConn| conn.gives_way().now_or_never().is_some();
        assert!(![&with, &oldest, &newer].into_iter().any(is_closed));
        let newest = conns.accept();
        assert!(is_closed(&oldest));
        assert!(![&with, &newer, &newest].into_iter().any(is_closed));
        // As many as may be have shown the token: one more has to wait until one of them ends.
        assert!(newer.mark_authenticated() && !newest.mark_authenticated());
        drop(with);
        assert!(newest.mark_authenticated());
        drop((oldest, newer, newest));
        assert!(lock(&conns.open).closers.is_empty());
        assert!(lock(&conns.admitted.inside).is_empty());
    }
}
