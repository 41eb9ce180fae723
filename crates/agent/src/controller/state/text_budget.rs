//! Text budgets: bytes of texts of each user's jobs that have not ended.

use std::collections::{BTreeMap, BTreeSet};

/// The sums per user.
#[derive(Debug, Default)]
pub struct TextBudget {
    /// Bytes by user ID.
    pub bytes_by_user: BTreeMap<u32, u64>,
    /// Users with more ended jobs than retention keeps, none of which may be deleted yet.
    pub users_over_limit: BTreeSet<u32>,
}

impl TextBudget {
    pub fn of(&self, uid: u32) -> u64 {
        self.bytes_by_user.get(&uid).copied().unwrap_or(0)
    }

    pub fn add(&mut self, uid: u32, bytes: u64) {
        *self.bytes_by_user.entry(uid).or_default() += bytes;
    }

    pub fn remove(&mut self, uid: u32, bytes: u64) {
        let left = self.of(uid).saturating_sub(bytes);
        match left {
            0 => self.bytes_by_user.remove(&uid),
            left => self.bytes_by_user.insert(uid, left),
        };
    }
}
