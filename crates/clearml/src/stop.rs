//! The stop signal for the front end.

use std::sync::Arc;

use tokio::sync::watch;

/// Tells the front end to stop; clones are the same word.
#[derive(Clone, Debug)]
pub struct StopSignal(Arc<watch::Sender<bool>>);

impl Default for StopSignal {
    fn default() -> Self {
        Self::new()
    }
}

impl StopSignal {
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Requests the stop, and wakes the waiters of all clones, in any thread.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    pub fn is_requested(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns once it was said.
    pub async fn requested(&self) {
        // The sender is held by `self`, so waiting ends with the word alone.
        let _ = self.0.subscribe().wait_for(|said| *said).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_word_reaches_every_clone_and_stays_said() {
        let stop = StopSignal::new();
        let other = stop.clone();
        assert!(!other.is_requested());
        std::thread::spawn(move || other.stop());
        stop.requested().await;
        assert!(stop.is_requested());
        stop.requested().await;
    }
}
