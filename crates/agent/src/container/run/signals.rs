//! Signals to the supervisor, as events.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::supervisor::StdioMode;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalEvent {
    /// To end the job, with its grace.
    Stop,
    /// To pass this on.
    Pass(&'static str),
    /// That the terminal has another size.
    Resized,
}

/// `None` is a signal for which `Place::handles_signal` says no.
pub struct Signals {
    terminate: Signal,
    interrupt: Option<Signal>,
    quit: Option<Signal>,
    hangup: Option<Signal>,
    resized: Signal,
}

impl Signals {
    pub fn new(place: StdioMode) -> io::Result<Self> {
        let if_heard = |kind: SignalKind| {
            let is_heard = place.handles_signal(kind.as_raw_value());
            is_heard.then(|| signal(kind)).transpose()
        };
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: if_heard(SignalKind::interrupt())?,
            quit: if_heard(SignalKind::quit())?,
            hangup: if_heard(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    pub async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            _ = self.terminate.recv() => SignalEvent::Stop,
            () = heard(&mut self.interrupt) => SignalEvent::Pass("SIGINT"),
            () = heard(&mut self.quit) => SignalEvent::Pass("SIGQUIT"),
            () = heard(&mut self.hangup) => SignalEvent::Pass("SIGHUP"),
            _ = self.resized.recv() => SignalEvent::Resized,
        }
    }

    /// Returns once a signal asks the job to end; for the time before there is a container to pass a signal on to.
    pub async fn stop(&mut self) {
        while self.next().await == SignalEvent::Resized {}
    }
}

/// Returns at the next such signal; never for one that stays ignored.
async fn heard(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
