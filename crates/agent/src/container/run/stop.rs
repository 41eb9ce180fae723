//! The stop of a container: a stop request, the grace period once the container got it, then a kill.
//!
//! ```text
//! wanted ─► asked, again and again ─► heard ─► grace ─► killed, again and again
//! ```
//! Only a delivered request starts the grace period: an engine may be away for longer than any grace, and a program
//! gets all of its own.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use super::AGAIN;

/// The end of one container.
#[derive(Clone, Copy, Debug)]
pub struct StopSequence {
    grace: Duration,
    stage: StopStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopStage {
    /// No stop is wanted.
    Unwanted,
    /// It is to be asked at this moment.
    Ask(Instant),
    /// It is to be killed then.
    Kill(Instant),
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopRequest {
    Terminate,
    Kill,
}

impl StopSequence {
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            stage: StopStage::Unwanted,
        }
    }

    /// Requests a stop, perhaps a second time.
    pub fn request(&mut self, now: Instant) {
        if !self.is_wanted() {
            self.stage = StopStage::Ask(now);
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.stage != StopStage::Unwanted
    }

    /// When there is something to be done; `None` for never.
    pub fn due(&self) -> Option<Instant> {
        match self.stage {
            StopStage::Unwanted => None,
            StopStage::Ask(at) | StopStage::Kill(at) => Some(at),
        }
    }

    /// What is due.
    pub fn due_request(&self, now: Instant) -> Option<StopRequest> {
        match self.stage {
            StopStage::Ask(at) if at <= now => Some(StopRequest::Terminate),
            StopStage::Kill(at) if at <= now => Some(StopRequest::Kill),
            StopStage::Unwanted | StopStage::Ask(_) | StopStage::Kill(_) => None,
        }
    }

    /// It was asked, and has heard that or not.
    pub fn terminate_sent(&mut self, is_heard: bool, now: Instant) {
        self.stage = match is_heard {
            true => StopStage::Kill(now + self.grace),
            false => StopStage::Ask(now + AGAIN),
        };
    }

    /// The kill was sent, as far as is known.
    pub fn killed(&mut self, now: Instant) {
        self.stage = StopStage::Kill(now + AGAIN);
    }
}

/// A signal by the name that engines give it (`SIGTERM`, `TERM`, `15`); `None` for one that only the engine is to send.
pub fn named(signal: &str) -> Option<Signal> {
    let name = signal.strip_prefix("SIG").unwrap_or(signal);
    Some(match name {
        "HUP" | "1" => Signal::HUP,
        "INT" | "2" => Signal::INT,
        "QUIT" | "3" => Signal::QUIT,
        "KILL" | "9" => Signal::KILL,
        "USR1" | "10" => Signal::USR1,
        "USR2" | "12" => Signal::USR2,
        "TERM" | "15" => Signal::TERM,
        "WINCH" | "28" => Signal::WINCH,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    #[test]
    fn the_grace_begins_when_the_wish_was_heard_and_not_when_it_was_made() {
        let start = Instant::now();
        let mut ending = StopSequence::new(GRACE);
        assert_eq!((ending.due(), ending.due_request(start)), (None, None));
        ending.request(start);
        // An engine that is away for an hour.
        let mut now = start;
        while now < start + Duration::from_secs(3600) {
            assert_eq!(ending.due_request(now), Some(StopRequest::Terminate));
            ending.terminate_sent(false, now);
            assert_eq!(ending.due_request(now), None);
            now += AGAIN;
            assert_eq!(ending.due(), Some(now));
        }
        ending.terminate_sent(true, now);
        assert_eq!(ending.due(), Some(now + GRACE));
        assert_eq!(ending.due_request(now + GRACE - AGAIN), None);
        assert_eq!(ending.due_request(now + GRACE), Some(StopRequest::Kill));
    }

    #[test]
    fn who_is_told_twice_has_one_grace_and_is_killed_until_he_is_gone() {
        let start = Instant::now();
        let mut ending = StopSequence::new(GRACE);
        ending.request(start);
        ending.terminate_sent(true, start);
        ending.request(start + AGAIN);
        let over = start + GRACE;
        assert_eq!(ending.due(), Some(over));
        ending.killed(over);
        assert_eq!(ending.due_request(over), None);
        assert_eq!(ending.due_request(over + AGAIN), Some(StopRequest::Kill));
    }

    #[test]
    fn signals_are_known_as_images_write_them() {
        for signal in ["SIGTERM", "TERM", "15"] {
            assert_eq!(named(signal), Some(Signal::TERM));
        }
        // What ends an init is its own affair.
        for signal in ["SIGRTMIN+3", "37", "", "SIG"] {
            assert_eq!(named(signal), None);
        }
    }
}
