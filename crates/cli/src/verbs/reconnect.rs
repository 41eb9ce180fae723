//! Reconnection to a daemon that went away while a verb followed it: its jobs go on, and it usually returns.

use std::time::{Duration, Instant};

use divvy_api::v1::{Error, ErrorCode};

use crate::error_output::Result;
use crate::output;

/// How long a daemon may be away before what follows it gives up.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// Since when the daemon has been away, and how long it may be.
#[derive(Debug)]
pub struct Reconnect {
    since: Option<Instant>,
    patience: Duration,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self {
            since: None,
            patience: PATIENCE,
        }
    }
}

impl Reconnect {
    /// Waits for the daemon until a signal ends this process.
    pub fn without_end() -> Self {
        Self {
            since: None,
            patience: Duration::MAX,
        }
    }

    /// Waits a moment when the failure is an absent daemon and patience is left.
    ///
    /// # Errors
    /// The failure itself, else.
    pub async fn retry_or_fail(&mut self, error: Error) -> Result<()> {
        let since = *self.since.get_or_insert_with(|| {
            output::progress("lost the connection to the daemon; reconnecting");
            Instant::now()
        });
        let is_away = matches!(error.code, ErrorCode::NoDaemon | ErrorCode::Unresponsive);
        if !is_away || since.elapsed() > self.patience {
            return Err(error);
        }
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    /// The daemon answered.
    pub fn back(&mut self) {
        self.since = None;
    }
}
