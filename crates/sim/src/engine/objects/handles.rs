//! Opaque handles: what CUDA clients hold as pointers and never look into. A stale or foreign value finds nothing.

use std::marker::PhantomData;

/// `(tag, generation, index)` in one pointer-sized value that is never 0 and never a small number (the special streams
/// are 1 and 2).
pub struct Handle<T> {
    value: usize,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T> Eq for Handle<T> {}

impl<T> Handle<T> {
    /// A value that came over the API; only [`Handles`] knows whether it means anything.
    pub fn from_value(value: usize) -> Self {
        Handle {
            value,
            of: PhantomData,
        }
    }

    pub fn value(self) -> usize {
        self.value
    }
}

/// Below it are four bits that are zero, so that handles look aligned as pointers do.
const INDEX_SHIFT: u32 = 4;

/// So 24 bits are left for the index: more objects than memory holds.
const GENERATION_SHIFT: u32 = 28;

/// So 16 bits are left for the generation, which tells a handle from that of a freed object.
const TAG_SHIFT: u32 = 44;

/// The living objects of one kind.
pub struct Handles<T> {
    tag: usize,
    entries: Vec<(u16, Option<T>)>,
    free: Vec<usize>,
}

impl<T> Handles<T> {
    /// `tag` (1 to 255) tells the kinds apart, so that a stream is never taken for an event.
    pub const fn new(tag: u8) -> Self {
        Handles {
            tag: tag as usize,
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    pub fn insert(&mut self, object: T) -> Handle<T> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() - 1
        });
        self.entries[index].1 = Some(object);
        self.handle(index)
    }

    pub fn get(&self, handle: Handle<T>) -> Option<&T> {
        self.entries.get(self.index(handle)?)?.1.as_ref()
    }

    pub fn get_mut(&mut self, handle: Handle<T>) -> Option<&mut T> {
        let index = self.index(handle)?;
        self.entries.get_mut(index)?.1.as_mut()
    }

    pub fn remove(&mut self, handle: Handle<T>) -> Option<T> {
        let index = self.index(handle)?;
        let (generation, entry) = self.entries.get_mut(index)?;
        let object = entry.take()?;
        *generation = generation.wrapping_add(1);
        self.free.push(index);
        Some(object)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Handle<T>, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, (_, entry))| Some((self.handle(index), entry.as_ref()?)))
    }

    /// Handles of the objects that `wanted` picks.
    pub fn find(&self, wanted: impl Fn(&T) -> bool) -> Vec<Handle<T>> {
        self.iter()
            .filter(|(_, object)| wanted(object))
            .map(|(handle, _)| handle)
            .collect()
    }

    fn handle(&self, index: usize) -> Handle<T> {
        let generation = usize::from(self.entries[index].0);
        Handle::from_value(
            self.tag << TAG_SHIFT | generation << GENERATION_SHIFT | index << INDEX_SHIFT,
        )
    }

    fn index(&self, handle: Handle<T>) -> Option<usize> {
        let index = (handle.value & ((1 << GENERATION_SHIFT) - 1)) >> INDEX_SHIFT;
        (index < self.entries.len() && self.handle(index) == handle).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_object_is_not_found_again_even_when_its_place_is_reused() {
        let mut handles = Handles::new(7);
        let first = handles.insert("first");
        assert_eq!(handles.remove(first), Some("first"));
        let second = handles.insert("second");
        assert_ne!(first.value(), second.value());
        assert_eq!(handles.remove(first), None);
        assert_eq!(
            (handles.get(first), handles.get(second)),
            (None, Some(&"second"))
        );
    }

    #[test]
    fn handles_of_another_kind_and_special_values_find_nothing() {
        let mut streams = Handles::new(1);
        let mut events = Handles::new(2);
        let event = events.insert(0);
        streams.insert(0);
        for foreign in [0, 1, 2, event.value(), usize::MAX, event.value() + 1] {
            assert_eq!(streams.get(Handle::from_value(foreign)), None);
        }
    }
}
