//! The number of kubelet's calls in progress, so that a driver that ends finishes them before kubelet closes the
//! connection.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

/// Counts calls; its clones count together.
#[derive(Clone, Debug, Default)]
pub struct CallCount(watch::Sender<usize>);

/// A call in progress, until it is dropped.
#[derive(Debug)]
pub struct Call(watch::Sender<usize>);

impl CallCount {
    pub fn begin(&self) -> Call {
        self.0.send_modify(|calls| *calls += 1);
        Call(self.0.clone())
    }

    /// Waits until no call is in progress, at most for `patience`; whether that is so.
    pub async fn finished(&self, patience: Duration) -> bool {
        let mut calls = self.0.subscribe();
        let none = calls.wait_for(|calls| *calls == 0);
        timeout(patience, none).await.is_ok()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn the_end_waits_for_calls_in_progress_but_not_for_ever() {
        let calls = CallCount::default();
        let (first, second) = (calls.begin(), calls.clone().begin());
        assert!(!calls.finished(Duration::from_millis(20)).await);
        drop(first);
        assert!(!calls.finished(Duration::from_millis(20)).await);
        drop(second);
        assert!(calls.finished(Duration::from_millis(20)).await);
    }
}
