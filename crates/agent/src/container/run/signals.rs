//! Signals to the supervisor, as events.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// To end the job, with its grace.
    Stop,
    /// To pass this on.
    Pass(&'static str),
    /// That the terminal has another size.
    Resized,
}

pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hangup: Signal,
    resized: Signal,
}

impl Signals {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hangup: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    pub async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.terminate.recv() => Told::Stop,
            _ = self.interrupt.recv() => Told::Pass("SIGINT"),
            _ = self.quit.recv() => Told::Pass("SIGQUIT"),
            _ = self.hangup.recv() => Told::Pass("SIGHUP"),
            _ = self.resized.recv() => Told::Resized,
        }
    }

    /// Returns once somebody wants the job to end; for the time before there is anything to pass a signal on to.
    pub async fn stop(&mut self) {
        while self.next().await == Told::Resized {}
    }
}
