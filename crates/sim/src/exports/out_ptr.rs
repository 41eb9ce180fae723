//! Out pointers: places that the caller wants a result in.

use crate::trace::Answer;
use std::marker::PhantomData;

/// Checked before anything is done, written when all has succeeded.
pub struct OutPtr<T, A> {
    at: *mut T,
    answer: PhantomData<A>,
}

impl<T, A: Answer> OutPtr<T, A> {
    /// NULL is an argument that cannot be.
    pub fn new(at: *mut T) -> Result<Self, A> {
        if at.is_null() {
            return Err(A::INVALID);
        }
        let answer = PhantomData;
        Ok(OutPtr { at, answer })
    }

    pub fn set(self, value: T) -> Result<(), A> {
        // SAFETY: not null, and the API's contract says that it points to room for a T.
        unsafe { self.at.write(value) };
        Ok(())
    }
}
