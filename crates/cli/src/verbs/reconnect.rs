//! Reconnection to a daemon that went away while a verb followed it: its jobs go on, and it usually returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use divvy_api::v1::{Error, ErrorCode};

use crate::error_output::Result;
use crate::output;

/// How long a daemon may be away before what follows it gives up. An upgrade takes seconds, with its restart; a minute
/// would look like a hang.
const PATIENCE: Duration = Duration::from_secs(30);
/// A daemon is back within seconds: a tenth of one is not noticed, and a shorter pause would load its start.
const PAUSE: Duration = Duration::from_millis(100);

/// Absence until the client says that it waits. A restart usually takes less.
const SAY_AFTER: Duration = Duration::from_secs(1);

/// Since when the daemon has been away, and how long it may be. Clones say once together that it is away.
#[derive(Clone, Debug)]
pub struct Reconnect {
    since: Option<Instant>,
    patience: Duration,
    told: Arc<AtomicBool>,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self::within(PATIENCE)
    }
}

impl Reconnect {
    /// Waits for the daemon until a signal ends this process.
    pub fn without_end() -> Self {
        Self::within(Duration::MAX)
    }

    fn within(patience: Duration) -> Self {
        Self {
            since: None,
            patience,
            told: Arc::default(),
        }
    }

    /// Waits a moment when the failure is an absent daemon and patience is left.
    ///
    /// # Errors
    /// The failure itself, else.
    pub async fn retry_or_fail(&mut self, error: Error) -> Result<()> {
        let away = self.since.get_or_insert_with(Instant::now).elapsed();
        let is_away = matches!(error.code, ErrorCode::NoDaemon | ErrorCode::Unresponsive);
        if !is_away || away > self.patience {
            return Err(error);
        }
        if away >= SAY_AFTER && !self.told.swap(true, Ordering::Relaxed) {
            output::say(&self.waiting());
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    fn waiting(&self) -> String {
        let limit = match self.patience {
            Duration::MAX => String::new(),
            patience => format!("up to {} s ", patience.as_secs()),
        };
        format!("the daemon is away; waiting {limit}for its return; jobs keep running")
    }

    /// The daemon answered.
    pub fn back(&mut self) {
        if self.since.take().is_some() {
            self.told.store(false, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_client_gives_up_on_a_daemon_that_is_away_for_longer_than_it_waits() {
        let absent = || Error::new(ErrorCode::NoDaemon, "no daemon answers");
        let past = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        let mut away = Reconnect::default();
        away.retry_or_fail(absent()).await.unwrap();
        away.since = past(29);
        away.retry_or_fail(absent()).await.unwrap();
        away.since = past(31);
        let error = away.retry_or_fail(absent()).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NoDaemon);
        away.back();
        away.retry_or_fail(absent()).await.unwrap();
        let refused = Error::new(ErrorCode::NotFound, "no such job");
        assert!(away.retry_or_fail(refused).await.is_err());
        let mut endless = Reconnect {
            since: past(3600),
            ..Reconnect::without_end()
        };
        endless.retry_or_fail(absent()).await.unwrap();
    }
}
