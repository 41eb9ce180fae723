//! Log lines about clients that cannot talk to the server: each mistake in its own words, at most once a minute.
//!
//! A client with a wrong configuration tries again many times a second, and everything that reaches the port can be one.

use std::fmt::Display;
use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::{AlertDescription, Error as TlsError, InvalidMessage};
use tracing::{debug, warn};

/// One mistake is logged once in this time; the others are counted.
const PAUSE: Duration = Duration::from_secs(60);

/// What a client does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// It ended the handshake: the certificate is not one that it trusts for this server's name.
    Distrust,
    /// HTTP where the server wants TLS.
    PlainHttp,
    /// TLS, or anything else, where the server wants HTTP.
    NoHttp,
}

impl Mistake {
    /// Three show a pattern, such as one client or one path; more would fill the log.
    const COUNT: usize = 3;

    /// The mistake behind a handshake that failed; `None` for a connection that merely ended.
    pub fn of_handshake(error: &io::Error) -> Option<Self> {
        match error.get_ref()?.downcast_ref::<TlsError>()? {
            TlsError::AlertReceived(
                AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired,
            ) => Some(Self::Distrust),
            TlsError::InvalidMessage(InvalidMessage::InvalidContentType) => Some(Self::PlainHttp),
            _ => None,
        }
    }

    /// The mistake behind a conversation that failed.
    pub fn of_conversation(error: &hyper::Error) -> Option<Self> {
        error.is_parse().then_some(Self::NoHttp)
    }

    fn text(self) -> &'static str {
        match self {
            Self::Distrust => {
                "a client refused the certificate of this server: its CA file does not match, or it uses another host name"
            }
            Self::PlainHttp => "a client sent plain HTTP, but this port serves HTTPS",
            Self::NoHttp => "a client sent no HTTP request, but this port serves plain HTTP",
        }
    }
}

/// The mistakes of this server's clients.
#[derive(Debug, Default)]
pub struct Complaints(Mutex<[Seen; Mistake::COUNT]>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    logged: Option<Instant>,
    /// Since then.
    more: u64,
}

impl Complaints {
    /// Logs a failure: a mistake as a warning, anything else for debugging.
    pub fn log(&self, mistake: Option<Mistake>, client: IpAddr, error: &impl Display) {
        let Some(mistake) = mistake else {
            debug!(%client, %error, "a connection failed");
            return;
        };
        match self.due(mistake, Instant::now()) {
            Some(0) => warn!(%client, %error, "{}", mistake.text()),
            Some(more) => warn!(%client, %error, more, "{}", mistake.text()),
            None => debug!(%client, %error, "{}", mistake.text()),
        }
    }

    /// How many of these were not logged since the last one; `None` if that was logged just now.
    fn due(&self, mistake: Mistake, now: Instant) -> Option<u64> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = &mut all[mistake as usize];
        if seen.logged.is_some_and(|at| now.duration_since(at) < PAUSE) {
            seen.more += 1;
            return None;
        }
        seen.logged = Some(now);
        Some(std::mem::take(&mut seen.more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake(error: TlsError) -> Option<Mistake> {
        Mistake::of_handshake(&io::Error::new(io::ErrorKind::InvalidData, error))
    }

    #[test]
    fn what_clients_do_wrong_is_told_apart() {
        let alert = |alert| handshake(TlsError::AlertReceived(alert));
        // Go's clients send `bad certificate` for each reason.
        assert_eq!(
            alert(AlertDescription::BadCertificate),
            Some(Mistake::Distrust)
        );
        assert_eq!(alert(AlertDescription::UnknownCA), Some(Mistake::Distrust));
        assert_eq!(alert(AlertDescription::CloseNotify), None);
        let plain = TlsError::InvalidMessage(InvalidMessage::InvalidContentType);
        assert_eq!(handshake(plain), Some(Mistake::PlainHttp));
        // A probe of the port.
        let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert_eq!(Mistake::of_handshake(&ended), None);
    }

    #[test]
    fn a_mistake_is_logged_once_a_minute_with_the_number_of_the_others() {
        let complaints = Complaints::default();
        let start = Instant::now();
        assert_eq!(complaints.due(Mistake::Distrust, start), Some(0));
        for _ in 0..3 {
            assert_eq!(complaints.due(Mistake::Distrust, start), None);
        }
        assert_eq!(complaints.due(Mistake::NoHttp, start), Some(0));
        assert_eq!(complaints.due(Mistake::Distrust, start + PAUSE), Some(3));
    }
}
