//! The webhook's inventory of the cluster's GPUs: those published now, and those published until recently.
//!
//! A node that starts anew takes its slices back for a minute. Pods that come in that minute are to wait for it, not to be told that there
//! is no such GPU, so what has gone is remembered.

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::time::Duration;

use divvy_core::mig::MigProfile;
use divvy_core::units::Bytes;
use tokio::time::Instant;

use crate::base::claim::Inventory;

/// How long what has gone is remembered: longer than the reboot of a large server, inferred.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The GPUs, each with the time of its last publication.
#[derive(Debug, Default)]
pub struct InventoryHistory {
    sizes: BTreeMap<Bytes, Instant>,
    profiles: BTreeMap<MigProfile, (Bytes, Instant)>,
}

impl InventoryHistory {
    /// Takes in what there is now.
    pub fn see(&mut self, now: Instant, published: &Inventory) {
        self.sizes
            .extend(published.sizes.iter().map(|size| (*size, now)));
        let profiles = published.profiles.iter();
        self.profiles
            .extend(profiles.map(|(profile, memory)| (*profile, (*memory, now))));
        let fresh = |seen: &Instant| now.duration_since(*seen) < REMEMBERED;
        self.sizes.retain(|_, seen| fresh(seen));
        self.profiles.retain(|_, (_, seen)| fresh(seen));
    }

    pub fn inventory(&self) -> Inventory {
        let profiles = self.profiles.iter();
        Inventory {
            sizes: self.sizes.keys().copied().collect(),
            profiles: profiles
                .map(|(profile, (memory, _))| (*profile, *memory))
                .collect(),
        }
    }
}

/// The memory, shared.
#[derive(Debug, Default)]
pub struct SharedInventory(RwLock<InventoryHistory>);

impl SharedInventory {
    pub fn see(&self, now: Instant, published: &Inventory) {
        let mut memory = self
            .0
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        memory.see(now, published);
    }

    pub fn inventory(&self) -> Inventory {
        let memory = self
            .0
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        memory.inventory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_gone_is_remembered_for_a_while_and_no_longer() {
        let (mut memory, start) = (InventoryHistory::default(), Instant::now());
        let large = Inventory {
            sizes: [Bytes::gib(80)].into(),
            profiles: [("1g.10gb".parse().unwrap(), Bytes::mib(9728))].into(),
        };
        let small = Inventory {
            sizes: [Bytes::gib(24)].into(),
            ..Inventory::default()
        };
        memory.see(start, &large);
        memory.see(start + REMEMBERED / 2, &small);
        let both = memory.inventory();
        assert_eq!(both.sizes, [Bytes::gib(24), Bytes::gib(80)].into());
        assert_eq!(both.profiles, large.profiles);
        memory.see(start + REMEMBERED, &small);
        assert_eq!(memory.inventory(), small);
    }
}
