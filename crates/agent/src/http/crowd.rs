//! So many connections of one caller at once, and no more: those beyond are closed when they come.
//!
//! A connection is a descriptor of the daemon, whether anything is asked over it or not, and without descriptors no job
//! starts.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Of one caller. A client has one connection for each call that goes on: `wait`, `logs -f`.
const MOST: usize = 512;

/// How many connections each caller has.
#[derive(Clone, Default)]
struct Inside(Arc<Mutex<HashMap<u32, usize>>>);

impl Inside {
    /// Counts one more; `None` where that is too many.
    fn enter(&self, caller: u32) -> Option<Place> {
        let mut inside = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = inside.entry(caller).or_default();
        if *count >= MOST {
            return None;
        }
        *count += 1;
        Some(Place {
            caller,
            inside: self.clone(),
        })
    }
}

/// One connection's place, free again when it is dropped.
struct Place {
    caller: u32,
    inside: Inside,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut inside = self.inside.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = inside.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.caller);
            }
        }
    }
}

/// Whose connection it is; `None`: one that is not counted.
type Who<S> = Box<dyn Fn(&S) -> Option<u32> + Send>;

/// A listener that counts.
pub struct Crowd<L: Listener> {
    listener: L,
    who: Who<L::Io>,
    inside: Inside,
}

impl<L: Listener> Crowd<L> {
    pub fn new(listener: L, who: impl Fn(&L::Io) -> Option<u32> + Send + 'static) -> Self {
        Self {
            listener,
            who: Box::new(who),
            inside: Inside::default(),
        }
    }
}

impl<L: Listener> Listener for Crowd<L> {
    type Io = Guest<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await;
            let place = match (self.who)(&stream) {
                None => None,
                Some(caller) => match self.inside.enter(caller) {
                    Some(place) => Some(place),
                    None => {
                        tracing::debug!(caller, "has {MOST} connections, and gets no more");
                        continue;
                    }
                },
            };
            let guest = Guest {
                stream,
                _place: place,
            };
            return (guest, address);
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection with its place.
pub struct Guest<S> {
    stream: S,
    _place: Option<Place>,
}

impl<S> Guest<S> {
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guest<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guest<S> {
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
    use super::*;

    #[test]
    fn one_caller_fills_its_own_places_alone_and_has_them_again() {
        let inside = Inside::default();
        let mut places: Vec<_> = (0..MOST).filter_map(|_| inside.enter(1000)).collect();
        assert_eq!(places.len(), MOST);
        assert!(inside.enter(1000).is_none());
        assert!(inside.enter(1001).is_some());
        places.pop();
        places.push(inside.enter(1000).expect("one place is free again"));
        assert!(inside.enter(1000).is_none());
        places.clear();
        assert!(inside.0.lock().unwrap().is_empty());
    }
}
