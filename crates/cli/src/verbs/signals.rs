//! The signals that end a job whose client waits for it.

use std::task::Poll;

use divvy_api::inherited::ignores;
use divvy_api::v1::{Error, ErrorCode};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT, SIGTERM and SIGHUP, without those that this process was started with ignored.
pub struct Signals(Vec<(Signal, u8)>);

impl Signals {
    /// Listens from now on.
    ///
    /// # Errors
    /// When a handler cannot be installed.
    pub fn new() -> Result<Self, Error> {
        let ends = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let heard = ends.iter().map(SignalKind::as_raw_value);
        let heard = heard.filter(|number| !ignores(*number));
        let listen = |number: i32| {
            let listened = signal(SignalKind::from_raw(number));
            let code = u8::try_from(number).unwrap_or_default();
            listened.map(|signal| (signal, code))
        };
        let all: Result<Vec<_>, _> = heard.map(listen).collect();
        all.map(Self).map_err(|error| {
            let why = format!("cannot listen for signals: {error}");
            Error::new(ErrorCode::Internal, why)
        })
    }

    /// The number of the next one.
    pub async fn next(&mut self) -> u8 {
        std::future::poll_fn(|context| {
            for (signal, number) in &mut self.0 {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}
