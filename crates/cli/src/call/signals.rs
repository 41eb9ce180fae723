//! Signal handling of a client that waits for a job: its signals, as a stream of their meanings.

use std::task::Poll;

use divvy_api::disposition::is_ignored;
use divvy_api::v1::{Error, ErrorCode};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that are listened for, and what each stands for.
pub struct Signals<T>(Vec<(Signal, T)>);

impl<T: Copy> Signals<T> {
    /// Listens from now on.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn listen(signals: impl IntoIterator<Item = (SignalKind, T)>) -> Result<Self, Error> {
        let signals = signals.into_iter();
        let all: Result<_, _> = signals
            .map(|(kind, stands_for)| Ok((signal(kind)?, stands_for)))
            .collect();
        all.map(Self).map_err(|error: std::io::Error| {
            let why = format!("cannot listen for signals: {error}");
            Error::new(ErrorCode::Internal, why)
        })
    }

    /// Returns the meaning of the next signal.
    pub async fn next(&mut self) -> T {
        std::future::poll_fn(|context| {
            for (signal, stands_for) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*stands_for);
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl Signals<u8> {
    /// Those that end what `run` waits for, by number: SIGINT, SIGTERM and SIGHUP, without those that this process was started with ignored.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub fn that_end() -> Result<Self, Error> {
        let all = [
            (SignalKind::interrupt(), 2),
            (SignalKind::terminate(), 15),
            (SignalKind::hangup(), 1),
        ];
        let heard = |(kind, _): &(SignalKind, u8)| !is_ignored(kind.as_raw_value());
        Self::listen(all.into_iter().filter(heard))
    }
}
