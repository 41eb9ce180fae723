//! A keyed mutex: one operation at a time for each claim. kubelet retries NodePrepareResources after a timeout, so a
//! late call may still run when the pod is deleted. Without the lock it could run after NodeUnprepareResources and leak
//! the allocation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use divvy_api::sync::lock;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

/// The locks, by the claim's uid.
#[derive(Debug, Default)]
pub struct KeyedMutex(Mutex<HashMap<String, Weak<Turn<()>>>>);

impl KeyedMutex {
    /// Waits for all earlier callers of this claim.
    pub async fn lock(&self, claim: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = lock(&self.0);
            turns.retain(|_, turn| turn.strong_count() > 0);
            let known = turns.get(claim).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let turn = Arc::new(Turn::new(()));
                turns.insert(claim.to_owned(), Arc::downgrade(&turn));
                turn
            })
        };
        turn.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_claim_has_one_turn_at_a_time_and_others_do_not_wait() {
        let turns = KeyedMutex::default();
        let first = turns.lock("a").await;
        assert!(turns.lock("a").now_or_never().is_none());
        assert!(turns.lock("b").now_or_never().is_some());
        drop(first);
        assert!(turns.lock("a").now_or_never().is_some());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn locks_of_unused_claims_are_forgotten() {
        let turns = KeyedMutex::default();
        for claim in ["a", "b", "c"] {
            drop(turns.lock(claim).await);
        }
        let _d = turns.lock("d").await;
        assert_eq!(turns.0.lock().unwrap().len(), 1);
    }
}
