//! Hot-swappable shared values: one thread replaces a value while others read it, as a configuration reload does.

use std::sync::{Arc, PoisonError, RwLock};

/// A shared value; clones share it. A reader keeps the value that it got.
#[derive(Debug)]
pub struct Live<T>(Arc<RwLock<Arc<T>>>);

impl<T> Live<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(value))))
    }

    /// The present value.
    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn set(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
    }
}

impl<T> Clone for Live<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_see_the_new_value_and_readers_keep_theirs() {
        let live = Live::new(1);
        let (clone, kept) = (live.clone(), live.get());
        live.set(2);
        assert_eq!((*kept, *clone.get()), (1, 2));
    }
}
