//! The retry of a refused reservation: waits for memory that is about to be returned by dead processes or by a stream.

use std::time::Duration;

/// Retries until success, or until there is nothing to wait for. The question is asked *before* each try: memory that
/// returns after it is found by this try or the next one. If it were asked after the try, a "no" could refer to memory
/// that has just come back.
pub fn retry_while<T, E>(
    nap: Duration,
    mut waits: impl FnMut() -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    loop {
        let waits = waits();
        match attempt() {
            Err(_) if waits => divvy_ledger::nap(nap),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Tries while memory comes back just before the look or try of that number; says after how many of them it was had.
    fn had(moment: u32) -> Option<u32> {
        let looks = Cell::new(0);
        let is_back = || {
            let before = looks.replace(looks.get() + 1);
            before >= moment
        };
        let attempt = || if is_back() { Ok(looks.get()) } else { Err(()) };
        retry_while(Duration::ZERO, || !is_back(), attempt).ok()
    }

    #[test]
    fn what_comes_back_at_whatever_moment_is_had() {
        for moment in 0..6 {
            let looks = had(moment);
            assert!(
                looks.is_some_and(|looks| looks <= moment + 2),
                "{moment}: {looks:?}"
            );
        }
    }

    #[test]
    fn where_nothing_comes_back_it_is_tried_once() {
        let tries = Cell::new(0);
        let attempt = || {
            tries.set(tries.get() + 1);
            Err::<(), _>("full")
        };
        assert_eq!(retry_while(Duration::ZERO, || false, attempt), Err("full"));
        assert_eq!(tries.get(), 1);
    }
}
