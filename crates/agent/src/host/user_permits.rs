//! Permits per user: a semaphore for each user, independent of other users.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use divvy_api::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The permits of the users that hold some or wait for some.
#[derive(Debug, Default)]
pub struct UserSemaphores(Mutex<HashMap<u32, Arc<Semaphore>>>);

impl UserSemaphores {
    /// Takes `many` of the `most` permits of a user; `None` where they are not free within `patience`.
    pub async fn take(
        self: &Arc<Self>,
        user: u32,
        (many, most): (u32, usize),
        patience: Duration,
    ) -> Option<UserPermit> {
        let made = || Arc::new(Semaphore::new(most));
        let permits = Arc::clone(lock(&self.0).entry(user).or_insert_with(made));
        // Dropped without permits where they come too late, and then nothing is kept of the user either.
        let mut share = UserPermit {
            shares: Arc::clone(self),
            user,
            permit: None,
        };
        let taken = timeout(patience, permits.acquire_many_owned(many)).await;
        share.permit = Some(taken.ok()?.ok()?);
        Some(share)
    }

    /// How many users have permits here.
    #[cfg(test)]
    pub fn users(&self) -> usize {
        lock(&self.0).len()
    }
}

/// Permits of a user, free again when this is dropped.
#[derive(Debug)]
pub struct UserPermit {
    shares: Arc<UserSemaphores>,
    user: u32,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for UserPermit {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut all = lock(&self.shares.0);
        // Each call of the user that holds or waits for permits has the semaphore too.
        if all
            .get(&self.user)
            .is_some_and(|permits| Arc::strong_count(permits) == 1)
        {
            all.remove(&self.user);
        }
    }
}
