//! Holders of memory made by `cuMemCreate`: handle references, mappings, and bindings to sparse arrays or multicast
//! objects. The memory is freed when its last holder is gone.
//!
//! Plain bookkeeping; `vmm`, `sharing` and `binding` speak to the driver and to the account, and say what `B`, the memory behind
//! a handle, is. What may die is taken out *before* the driver is asked, for the driver may give the same handle to another thread at
//! once, and put back when the driver refuses.

use std::collections::hash_map::{Entry, OccupiedEntry};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use crate::charge::pointers::AddressHasher;

type ByHandle<T> = HashMap<u64, T, BuildHasherDefault<AddressHasher>>;

pub struct Mappings<B> {
    handles: ByHandle<Handle<B>>,
    /// The handle mapped at each start address.
    ranges: BTreeMap<u64, u64>,
    /// The bindings to a resource, by resource.
    bound: ByHandle<Vec<(BindingRegion, u64)>>,
}

/// The part of a resource that a handle is bound to: a box in one of its surfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingRegion {
    /// The surface, as the binding function encodes it: regions of two surfaces never overlap.
    pub surface: [u64; 2],
    pub from: [u64; 3],
    pub to: [u64; 3],
}

impl BindingRegion {
    fn overlaps(&self, other: &Self) -> bool {
        let along =
            |axis: usize| self.from[axis] < other.to[axis] && other.from[axis] < self.to[axis];
        self.surface == other.surface && (0..3).all(along)
    }

    /// The boxes of it that lie outside of a region that overlaps it.
    fn without(mut self, other: &Self) -> Vec<Self> {
        let mut outside = Vec::new();
        for axis in 0..3 {
            if self.from[axis] < other.from[axis] {
                let mut before = self;
                before.to[axis] = other.from[axis];
                self.from[axis] = other.from[axis];
                outside.push(before);
            }
            if self.to[axis] > other.to[axis] {
                let mut after = self;
                after.from[axis] = other.to[axis];
                self.to[axis] = other.to[axis];
                outside.push(after);
            }
        }
        outside
    }
}

#[derive(Clone, Copy, Debug)]
struct Handle<B> {
    backing: B,
    references: u32,
    /// Mappings and bindings.
    mappings: u32,
}

/// The result of [`Mappings::take_bound`].
#[derive(Default)]
#[must_use]
pub struct Bound {
    resource: u64,
    part: Option<BindingRegion>,
    taken: Vec<(BindingRegion, u64)>,
}

/// The result of [`Mappings::release`].
#[must_use]
pub struct Released<B> {
    handle: u64,
    pub dead: Option<B>,
}

/// The result of [`Mappings::unmap`].
#[must_use]
pub struct Unmapped<B> {
    ranges: Vec<(u64, u64, Option<B>)>,
}

#[cfg(test)]
impl<B: Clone> Unmapped<B> {
    fn dead(&self) -> impl Iterator<Item = B> {
        self.ranges.iter().filter_map(|(_, _, dead)| dead.clone())
    }
}

/// Removes a handle that has neither a reference nor a mapping, and returns its memory.
fn end_if_unused<B>(known: OccupiedEntry<'_, u64, Handle<B>>) -> Option<B> {
    let Handle {
        references,
        mappings,
        ..
    } = known.get();
    (*references == 0 && *mappings == 0).then(|| known.remove().backing)
}

impl<B> Default for Mappings<B> {
    fn default() -> Self {
        Mappings {
            handles: HashMap::default(),
            ranges: BTreeMap::new(),
            bound: HashMap::default(),
        }
    }
}

impl<B: Clone> Mappings<B> {
    /// A new handle, with one reference. What was known by it has ended without a word, and is returned.
    pub fn create(&mut self, handle: u64, backing: B) -> Option<B> {
        let new = Handle {
            backing,
            references: 1,
            mappings: 0,
        };
        let old = self.handles.insert(handle, new);
        old.map(|old| old.backing)
    }

    /// A handle that was imported: a new one, or one more reference to the memory of a known one. Returns what is not needed.
    pub fn import(&mut self, handle: u64, backing: B) -> Option<B> {
        match self.handles.get_mut(&handle) {
            Some(known) => {
                known.references += 1;
                Some(backing)
            }
            None => self.create(handle, backing),
        }
    }

    /// The memory behind a handle; `None` for one that is not ours.
    pub fn backing(&self, handle: u64) -> Option<B> {
        Some(self.handles.get(&handle)?.backing.clone())
    }

    /// One more reference. Handles that are not ours stay unknown.
    pub fn retain(&mut self, handle: u64) {
        if let Some(known) = self.handles.get_mut(&handle) {
            known.references += 1;
        }
    }

    /// One reference less; `None` for a handle that is not ours, or has no reference left: the driver refuses to release it.
    pub fn release(&mut self, handle: u64) -> Option<Released<B>> {
        let Entry::Occupied(mut known) = self.handles.entry(handle) else {
            return None;
        };
        let held = known.get_mut();
        held.references = held.references.checked_sub(1)?;
        let dead = end_if_unused(known);
        Some(Released { handle, dead })
    }

    /// The driver refused the release.
    pub fn undo_release(&mut self, released: Released<B>) {
        if let Some(known) = self.revive(released.handle, released.dead) {
            known.references += 1;
        }
    }

    /// A range of addresses that starts there now shows the handle's memory.
    pub fn map(&mut self, address: u64, handle: u64) {
        if let Some(known) = self.handles.get_mut(&handle) {
            known.mappings += 1;
            self.ranges.insert(address, handle);
        }
    }

    /// The handle whose memory is mapped around an address, as far as its start tells.
    pub fn mapped_at(&self, address: u64) -> Option<u64> {
        let (_, handle) = self.ranges.range(..=address).next_back()?;
        Some(*handle)
    }

    /// Ends all mappings that start in the given range; one call may end several.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Unmapped<B> {
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
                Some((start, handle, self.unhold(handle)))
            })
            .collect();
        Unmapped { ranges }
    }

    /// The driver refused to unmap.
    pub fn undo_unmap(&mut self, unmapped: Unmapped<B>) {
        // Backwards: of several mappings of one memory the last that was taken holds what died.
        for (start, handle, dead) in unmapped.ranges.into_iter().rev() {
            if let Some(known) = self.revive(handle, dead) {
                known.mappings += 1;
                self.ranges.insert(start, handle);
            }
        }
    }

    /// A part of a resource is backed by the handle's memory now, and by no other. Returns what has died of it.
    pub fn bind(&mut self, resource: u64, part: BindingRegion, handle: u64) -> Vec<B> {
        if let Some(known) = self.handles.get_mut(&handle) {
            known.mappings += 1;
        }
        let before = self.take_bound(resource, Some(part));
        let dead = self.unbound(before);
        if self.handles.contains_key(&handle) {
            self.bound.entry(resource).or_default().push((part, handle));
        }
        dead
    }

    /// Whether anything is bound to anything.
    pub fn has_bindings(&self) -> bool {
        !self.bound.is_empty()
    }

    /// Takes out what is bound to a part of a resource, or to all of it, and what overlaps the part.
    pub fn take_bound(&mut self, resource: u64, part: Option<BindingRegion>) -> Bound {
        let Some(bound) = self.bound.get_mut(&resource) else {
            return Bound::default();
        };
        let is_in = |of: &BindingRegion| part.is_none_or(|part| of.overlaps(&part));
        let taken = bound.extract_if(.., |(of, _)| is_in(of)).collect();
        if bound.is_empty() {
            self.bound.remove(&resource);
        }
        Bound {
            resource,
            part,
            taken,
        }
    }

    /// Ends the bindings that were taken out, and keeps what of them lies outside of the part. Returns the backings
    /// without a holder.
    pub fn unbound(&mut self, bound: Bound) -> Vec<B> {
        for (of, handle) in &bound.taken {
            let rest = bound.part.map_or_else(Vec::new, |part| of.without(&part));
            for piece in rest {
                if let Some(known) = self.handles.get_mut(handle) {
                    known.mappings += 1;
                    let bound = self.bound.entry(bound.resource).or_default();
                    bound.push((piece, *handle));
                }
            }
        }
        let handles = bound.taken.into_iter().map(|(_, handle)| handle);
        handles.filter_map(|handle| self.unhold(handle)).collect()
    }

    /// The driver refused to unbind it.
    pub fn undo_take(&mut self, bound: Bound) {
        if !bound.taken.is_empty() {
            self.bound
                .entry(bound.resource)
                .or_default()
                .extend(bound.taken);
        }
    }

    /// Each handle's memory.
    pub fn backings(&self) -> impl Iterator<Item = &B> {
        self.handles.values().map(|handle| &handle.backing)
    }

    fn unhold(&mut self, handle: u64) -> Option<B> {
        let Entry::Occupied(mut known) = self.handles.entry(handle) else {
            return None;
        };
        let held = known.get_mut();
        held.mappings = held.mappings.saturating_sub(1);
        end_if_unused(known)
    }

    /// The handle; one that had died comes back to life.
    fn revive(&mut self, handle: u64, dead: Option<B>) -> Option<&mut Handle<B>> {
        if let Some(backing) = dead {
            self.handles.entry(handle).or_insert(Handle {
                backing,
                references: 0,
                mappings: 0,
            });
        }
        self.handles.get_mut(&handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "a page";
    const OTHER: &str = "another page";

    fn mapped() -> Mappings<&'static str> {
        let mut mappings = Mappings::default();
        assert_eq!(mappings.create(7, PAGE), None);
        mappings.map(0x1000, 7);
        mappings
    }

    /// The tiles of a level from one to another.
    fn tiles(from: u64, to: u64) -> BindingRegion {
        BindingRegion {
            surface: [0; 2],
            from: [from, 0, 0],
            to: [to, 4, 1],
        }
    }

    /// Unbinds a part of resource 1, or all of it.
    fn end(
        mappings: &mut Mappings<&'static str>,
        part: Option<BindingRegion>,
    ) -> Vec<&'static str> {
        let taken = mappings.take_bound(1, part);
        mappings.unbound(taken)
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
    fn a_handle_imported_again_is_one_more_reference_to_the_same_memory() {
        let mut mappings = mapped();
        assert_eq!(mappings.import(7, OTHER), Some(OTHER));
        assert_eq!(mappings.backing(7), Some(PAGE));
        assert_eq!(mappings.unmap(0x1000, 0x1000).dead().count(), 0);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        assert_eq!(mappings.release(7).unwrap().dead, Some(PAGE));
    }

    #[test]
    fn a_handle_made_again_is_of_new_memory() {
        let mut mappings = mapped();
        assert_eq!(mappings.create(7, OTHER), Some(PAGE));
        assert_eq!(mappings.release(7).unwrap().dead, Some(OTHER));
        assert_eq!(mappings.import(7, PAGE), None);
        assert_eq!(mappings.release(7).unwrap().dead, Some(PAGE));
    }

    #[test]
    fn one_unmap_ends_every_mapping_in_its_range_and_none_outside() {
        let mut mappings = mapped();
        assert_eq!(mappings.create(8, OTHER), None);
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
        mappings.undo_unmap(unmapped);
        let released = mappings.release(7).unwrap();
        mappings.undo_release(released);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        let last = mappings.unmap(0x1000, 0x1000);
        assert_eq!(last.dead().collect::<Vec<_>>(), [PAGE]);
        mappings.undo_unmap(last);
        assert_eq!(
            mappings.unmap(0x1000, 0x1000).dead().collect::<Vec<_>>(),
            [PAGE]
        );
    }

    #[test]
    fn a_handle_released_more_often_than_it_has_references_dies_with_its_mapping() {
        let mut mappings = mapped();
        assert_eq!(mappings.release(7).unwrap().dead, None);
        assert!(mappings.release(7).is_none());
        let unmapped = mappings.unmap(0x1000, 0x1000);
        assert_eq!(unmapped.dead().collect::<Vec<_>>(), [PAGE]);
    }

    #[test]
    fn a_refused_unmap_of_several_mappings_of_one_memory_keeps_them_all() {
        let mut mappings = mapped();
        mappings.map(0x2000, 7);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        let refused = mappings.unmap(0x1000, 0x3000);
        mappings.undo_unmap(refused);
        assert_eq!(mappings.unmap(0x2000, 0x1000).dead().count(), 0);
        let last = mappings.unmap(0x1000, 0x1000);
        assert_eq!(last.dead().collect::<Vec<_>>(), [PAGE]);
    }

    #[test]
    fn handles_of_others_are_left_alone() {
        let mut mappings = mapped();
        assert!(mappings.release(9).is_none());
        mappings.retain(9);
        mappings.map(0x5000, 9);
        assert_eq!(mappings.unmap(0x5000, 0x1000).dead().count(), 0);
        assert!(mappings.bind(1, tiles(0, 1), 9).is_empty());
        assert!(end(&mut mappings, None).is_empty());
    }

    #[test]
    fn what_is_bound_lives_until_it_is_unbound_or_its_resource_is_gone() {
        let mut mappings = mapped();
        assert_eq!(mappings.create(8, OTHER), None);
        assert!(mappings.bind(1, tiles(1, 2), 7).is_empty());
        assert!(mappings.bind(1, tiles(2, 3), 8).is_empty());
        assert_eq!(mappings.release(8).unwrap().dead, None);
        assert_eq!(mappings.unmap(0x1000, 0x1000).dead().count(), 0);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        assert!(end(&mut mappings, Some(tiles(3, 4))).is_empty());
        let taken = mappings.take_bound(1, None);
        mappings.undo_take(taken);
        assert_eq!(end(&mut mappings, Some(tiles(1, 2))), [PAGE]);
        assert_eq!(end(&mut mappings, None), [OTHER]);
        assert!(end(&mut mappings, None).is_empty());
    }

    #[test]
    fn what_is_bound_over_something_else_ends_it() {
        let mut mappings = mapped();
        assert_eq!(mappings.create(8, OTHER), None);
        assert!(mappings.bind(1, tiles(1, 2), 8).is_empty());
        assert_eq!(mappings.release(8).unwrap().dead, None);
        assert_eq!(mappings.bind(1, tiles(1, 2), 7), [OTHER]);
        // The same again is no change.
        assert!(mappings.bind(1, tiles(1, 2), 7).is_empty());
        assert_eq!(mappings.release(7).unwrap().dead, None);
        assert_eq!(mappings.unmap(0x1000, 0x1000).dead().count(), 0);
        assert_eq!(end(&mut mappings, None), [PAGE]);
    }

    #[test]
    fn a_binding_over_parts_of_an_earlier_one_ends_it_with_its_last_part() {
        let mut mappings = mapped();
        assert_eq!(mappings.create(8, OTHER), None);
        assert!(mappings.bind(1, tiles(0, 4), 7).is_empty());
        assert_eq!(mappings.unmap(0x1000, 0x1000).dead().count(), 0);
        assert_eq!(mappings.release(7).unwrap().dead, None);
        // The middle, refused once, then the two ends; another surface does not count.
        let refused = mappings.take_bound(1, Some(tiles(1, 3)));
        mappings.undo_take(refused);
        assert!(mappings.bind(1, tiles(1, 3), 8).is_empty());
        let elsewhere = BindingRegion {
            surface: [0, 1],
            ..tiles(0, 4)
        };
        assert!(mappings.bind(1, elsewhere, 8).is_empty());
        assert!(mappings.bind(1, tiles(0, 1), 8).is_empty());
        assert_eq!(end(&mut mappings, Some(tiles(3, 4))), [PAGE]);
        assert_eq!(mappings.release(8).unwrap().dead, None);
        assert!(end(&mut mappings, Some(tiles(0, 4))).is_empty());
        assert_eq!(end(&mut mappings, None), [OTHER]);
    }

    #[test]
    fn the_rest_of_a_region_is_the_region_without_the_other() {
        let volume = |region: &BindingRegion| -> u64 {
            (0..3)
                .map(|axis| region.to[axis] - region.from[axis])
                .product()
        };
        let cube = |from: [u64; 3], to: [u64; 3]| BindingRegion {
            surface: [0; 2],
            from,
            to,
        };
        let whole = cube([1, 1, 1], [4, 4, 4]);
        for corner in 0..125 {
            let from = [corner % 5, corner / 5 % 5, corner / 25];
            for size in 1..4 {
                let other = cube(from, from.map(|at| at + size));
                if !whole.overlaps(&other) {
                    continue;
                }
                let rest = whole.without(&other);
                let shared: u64 = (0..3)
                    .map(|axis| {
                        whole.to[axis].min(other.to[axis]) - whole.from[axis].max(other.from[axis])
                    })
                    .product();
                assert_eq!(rest.iter().map(volume).sum::<u64>() + shared, 27);
                assert!(
                    rest.iter()
                        .all(|piece| volume(piece) > 0 && !piece.overlaps(&other))
                );
            }
        }
    }

    #[test]
    fn an_address_inside_a_mapping_finds_its_handle() {
        let mappings = mapped();
        assert_eq!(mappings.mapped_at(0x1800), Some(7));
        assert_eq!(mappings.mapped_at(0x0800), None);
    }
}
