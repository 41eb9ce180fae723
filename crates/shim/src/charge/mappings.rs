//! Who keeps memory made by `cuMemCreate` alive: its handle references and its mappings. It dies when both are none.
//!
//! Plain bookkeeping; `vmm` speaks to the driver and to the account. What may die is taken out *before* the driver is
//! asked, for the driver may give the same handle to another thread at once, and put back when the driver refuses.

use std::collections::{BTreeMap, HashMap};

use divvy_ledger::Kind;

use crate::charge::tally::Tally;

/// A handle's memory: its GPU's place in the slice and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    pub gpu: usize,
    pub bytes: u64,
}

#[derive(Default)]
pub struct Mappings {
    handles: HashMap<u64, Handle>,
    /// The handle mapped at each start address.
    ranges: BTreeMap<u64, u64>,
}

#[derive(Clone, Copy, Debug)]
struct Handle {
    backing: Backing,
    references: u32,
    mappings: u32,
}

/// What [`Mappings::release`] took.
#[must_use]
pub struct Released {
    handle: u64,
    pub dead: Option<Backing>,
}

/// What [`Mappings::unmap`] took.
#[must_use]
pub struct Unmapped {
    ranges: Vec<(u64, u64, Option<Backing>)>,
}

impl Unmapped {
    pub fn dead(&self) -> impl Iterator<Item = Backing> {
        self.ranges.iter().filter_map(|(_, _, dead)| *dead)
    }
}

impl Mappings {
    /// A new handle, with one reference.
    pub fn create(&mut self, handle: u64, backing: Backing) {
        self.handles.insert(
            handle,
            Handle {
                backing,
                references: 1,
                mappings: 0,
            },
        );
    }

    /// One more reference. Handles that are not ours (imported ones) stay unknown.
    pub fn retain(&mut self, handle: u64) {
        if let Some(known) = self.handles.get_mut(&handle) {
            known.references += 1;
        }
    }

    /// One reference less; `None` for a handle that is not ours.
    pub fn release(&mut self, handle: u64) -> Option<Released> {
        let known = self.handles.get_mut(&handle)?;
        known.references = known.references.saturating_sub(1);
        Some(Released {
            handle,
            dead: self.bury(handle),
        })
    }

    /// The driver refused the release.
    pub fn undo_release(&mut self, released: &Released) {
        self.revive(released.handle, released.dead).references += 1;
    }

    /// A range of addresses that starts there now shows the handle's memory.
    pub fn map(&mut self, address: u64, handle: u64) {
        if let Some(known) = self.handles.get_mut(&handle) {
            known.mappings += 1;
            self.ranges.insert(address, handle);
        }
    }

    /// Ends all mappings that start in the given range; one call may end several.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Unmapped {
        let end = address.saturating_add(bytes);
        let starts: Vec<u64> = self
            .ranges
            .range(address..end)
            .map(|(start, _)| *start)
            .collect();
        let ranges = starts
            .into_iter()
            .filter_map(|start| {
                let handle = self.ranges.remove(&start)?;
                if let Some(known) = self.handles.get_mut(&handle) {
                    known.mappings = known.mappings.saturating_sub(1);
                }
                Some((start, handle, self.bury(handle)))
            })
            .collect();
        Unmapped { ranges }
    }

    /// The driver refused to unmap.
    pub fn undo_unmap(&mut self, unmapped: &Unmapped) {
        for (start, handle, dead) in &unmapped.ranges {
            self.revive(*handle, *dead).mappings += 1;
            self.ranges.insert(*start, *handle);
        }
    }

    /// Says which handles' memory there is on a GPU.
    pub fn tell(&self, gpu: usize, tally: &mut Tally) {
        let backings = self.handles.values().map(|handle| handle.backing);
        for backing in backings.filter(|backing| backing.gpu == gpu) {
            tally.add(Kind::Handle, backing.bytes);
        }
    }

    /// Removes the handle if nothing keeps its memory alive, and says so.
    fn bury(&mut self, handle: u64) -> Option<Backing> {
        let known = self.handles.get(&handle)?;
        if known.references > 0 || known.mappings > 0 {
            return None;
        }
        self.handles.remove(&handle).map(|handle| handle.backing)
    }

    fn revive(&mut self, handle: u64, dead: Option<Backing>) -> &mut Handle {
        let backing = dead.unwrap_or(Backing { gpu: 0, bytes: 0 });
        self.handles.entry(handle).or_insert(Handle {
            backing,
            references: 0,
            mappings: 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Backing = Backing {
        gpu: 1,
        bytes: 2 << 20,
    };

    fn mapped() -> Mappings {
        let mut mappings = Mappings::default();
        mappings.create(7, PAGE);
        mappings.map(0x1000, 7);
        mappings
    }

    #[test]
    fn a_released_handle_lives_on_in_its_mapping() {
        let mut mappings = mapped();
        assert_eq!(mappings.release(7).unwrap().dead, None);
        assert_eq!(
            mappings.unmap(0x1000, 0x1000).dead().collect::<Vec<_>>(),
            [PAGE]
        );
    }

    #[test]
    fn an_unmapped_handle_lives_on_in_its_references() {
        let mut mappings = mapped();
        mappings.retain(7);
        assert_eq!(mappings.unmap(0x1000, 0x1000).dead().count(), 0);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        assert_eq!(mappings.release(7).unwrap().dead, Some(PAGE));
        assert!(mappings.release(7).is_none());
    }

    #[test]
    fn a_mapping_can_give_a_released_handle_back() {
        let mut mappings = mapped();
        assert_eq!(mappings.release(7).unwrap().dead, None);
        mappings.retain(7);
        assert_eq!(mappings.unmap(0x1000, 0x1000).dead().count(), 0);
        assert_eq!(mappings.release(7).unwrap().dead, Some(PAGE));
    }

    #[test]
    fn one_unmap_ends_every_mapping_in_its_range_and_none_outside() {
        let mut mappings = mapped();
        mappings.create(8, PAGE);
        mappings.map(0x2000, 8);
        mappings.map(0x3000, 8);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        assert_eq!(mappings.release(8).unwrap().dead, None);
        assert_eq!(mappings.unmap(0x1000, 0x2000).dead().count(), 1);
        assert_eq!(mappings.unmap(0x3000, 0x1000).dead().count(), 1);
    }

    #[test]
    fn a_refused_release_or_unmap_changes_nothing() {
        let mut mappings = mapped();
        let unmapped = mappings.unmap(0x1000, 0x1000);
        mappings.undo_unmap(&unmapped);
        let released = mappings.release(7).unwrap();
        mappings.undo_release(&released);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        let last = mappings.unmap(0x1000, 0x1000);
        assert_eq!(last.dead().collect::<Vec<_>>(), [PAGE]);
        mappings.undo_unmap(&last);
        assert_eq!(
            mappings.unmap(0x1000, 0x1000).dead().collect::<Vec<_>>(),
            [PAGE]
        );
    }

    #[test]
    fn handles_of_others_are_left_alone() {
        let mut mappings = mapped();
        assert!(mappings.release(9).is_none());
        mappings.retain(9);
        mappings.map(0x5000, 9);
        assert_eq!(mappings.unmap(0x5000, 0x1000).dead().count(), 0);
    }
}
