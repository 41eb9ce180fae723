//! How a container is brought to its end: it is asked until it has heard, and killed when its grace from then on is over.
//!
//! ```text
//! wanted ─► asked, again and again ─► heard ─► grace ─► killed, again and again
//! ```
//! Whoever asks in vain has not asked: an engine may be away for longer than any grace, and a program is to have all of its own.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use super::AGAIN;

/// The end of one container.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    grace: Duration,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nobody wants it to end.
    Unwanted,
    /// It is to be asked at this moment.
    Ask(Instant),
    /// It is to be killed then.
    Kill(Instant),
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urge {
    Ask,
    Kill,
}

impl Ending {
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            stage: Stage::Unwanted,
        }
    }

    /// Somebody wants it to end, perhaps once more.
    pub fn want(&mut self, now: Instant) {
        if !self.is_wanted() {
            self.stage = Stage::Ask(now);
        }
    }

    pub fn is_wanted(&self) -> bool {
        self.stage != Stage::Unwanted
    }

    /// When there is something to be done; `None` for never.
    pub fn due(&self) -> Option<Instant> {
        match self.stage {
            Stage::Unwanted => None,
            Stage::Ask(at) | Stage::Kill(at) => Some(at),
        }
    }

    /// What is due.
    pub fn urge(&self, now: Instant) -> Option<Urge> {
        match self.stage {
            Stage::Ask(at) if at <= now => Some(Urge::Ask),
            Stage::Kill(at) if at <= now => Some(Urge::Kill),
            Stage::Unwanted | Stage::Ask(_) | Stage::Kill(_) => None,
        }
    }

    /// It was asked, and has heard that or not.
    pub fn asked(&mut self, is_heard: bool, now: Instant) {
        self.stage = match is_heard {
            true => Stage::Kill(now + self.grace),
            false => Stage::Ask(now + AGAIN),
        };
    }

    /// It was killed, as far as anybody knows.
    pub fn killed(&mut self, now: Instant) {
        self.stage = Stage::Kill(now + AGAIN);
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
        let mut ending = Ending::new(GRACE);
        assert_eq!((ending.due(), ending.urge(start)), (None, None));
        ending.want(start);
        // An engine that is away for an hour.
        let mut now = start;
        while now < start + Duration::from_secs(3600) {
            assert_eq!(ending.urge(now), Some(Urge::Ask));
            ending.asked(false, now);
            assert_eq!(ending.urge(now), None);
            now += AGAIN;
            assert_eq!(ending.due(), Some(now));
        }
        ending.asked(true, now);
        assert_eq!(ending.due(), Some(now + GRACE));
        assert_eq!(ending.urge(now + GRACE - AGAIN), None);
        assert_eq!(ending.urge(now + GRACE), Some(Urge::Kill));
    }

    #[test]
    fn who_is_told_twice_has_one_grace_and_is_killed_until_he_is_gone() {
        let start = Instant::now();
        let mut ending = Ending::new(GRACE);
        ending.want(start);
        ending.asked(true, start);
        ending.want(start + AGAIN);
        let over = start + GRACE;
        assert_eq!(ending.due(), Some(over));
        ending.killed(over);
        assert_eq!(ending.urge(over), None);
        assert_eq!(ending.urge(over + AGAIN), Some(Urge::Kill));
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
