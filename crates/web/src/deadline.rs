//! Deadlines of a connection on which a server waits for a request: for its headers, and idle before them.
//!
//! hyper has one timer for both (`header_read_timeout`), which begins when the answer before was sent. As idle time 10
//! s would be short: a client that calls every 10 s would meet a connection that is just being closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For a request's headers, from their first byte on; a new connection, from its beginning on.
    pub head: Duration,
    /// From an answer's end to the next request's first byte.
    pub idle: Duration,
}

impl Deadlines {
    /// 10 s for headers; idle as long as nginx has it (`keepalive_timeout`), which is longer than a minute between two
    /// calls.
    pub const USUAL: Self = Self {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
    };
}

/// How many times bytes have come over a connection.
#[derive(Clone, Default)]
pub struct ReadCounter(Arc<AtomicU64>);

impl ReadCounter {
    pub fn more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn times(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// hyper's timer of one connection.
pub struct HeadTimer {
    pub deadlines: Deadlines,
    pub heard: ReadCounter,
}

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    /// hyper asks for it when it begins to wait for a request.
    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let heard_before = self.heard.times();
        let has_begun = heard_before == 0;
        let until = if has_begun {
            deadline
        } else {
            Instant::now() + self.deadlines.idle
        };
        Box::pin(Head {
            head: self.deadlines.head,
            heard: self.heard.clone(),
            heard_before,
            has_begun,
            sleep: Box::pin(tokio::time::sleep_until(until.into())),
        })
    }
}

/// Waits for a request's headers. hyper polls it after each piece of them.
struct Head {
    head: Duration,
    heard: ReadCounter,
    heard_before: u64,
    has_begun: bool,
    sleep: Pin<Box<tokio::time::Sleep>>,
}

impl Sleep for Head {}

impl Future for Head {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if !self.has_begun && self.heard.times() != self.heard_before {
            self.has_begun = true;
            let until = tokio::time::Instant::now() + self.head;
            self.sleep.as_mut().reset(until);
        }
        self.sleep.as_mut().poll(context)
    }
}
