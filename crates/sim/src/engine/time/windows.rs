//! Utilisation windows: busy nanoseconds in each window of time.

use crate::engine::time::WINDOW_NS;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// So the cells of five seconds, 30, fit with two that are being written.
const WINDOWS: usize = 32;

/// Busy nanoseconds per window of 1/6 s, for the last five seconds.
#[repr(C)]
pub struct Windows {
    /// Which window a cell holds, counted from 1 so that zeroed cells are of no window.
    number: [AtomicU64; WINDOWS],
    busy: [AtomicU64; WINDOWS],
}

impl Windows {
    pub fn add(&self, mut from: u64, mut ns: u64) {
        while ns > 0 {
            let window = from / WINDOW_NS;
            let part = ns.min((window + 1) * WINDOW_NS - from);
            let cell = (window % WINDOWS as u64) as usize;
            if self.number[cell].load(Relaxed) != window + 1 {
                self.busy[cell].store(0, Relaxed);
                self.number[cell].store(window + 1, Relaxed);
            }
            self.busy[cell].store(self.busy[cell].load(Relaxed) + part, Relaxed);
            from += part;
            ns -= part;
        }
    }

    /// Busy percent over the last `count` whole windows and the one that has begun.
    pub fn percent(&self, now: u64, count: u64) -> u32 {
        let current = now / WINDOW_NS;
        let first = current.saturating_sub(count);
        let busy: u64 = (first..=current)
            .map(|window| (window, (window % WINDOWS as u64) as usize))
            .filter(|(window, cell)| self.number[*cell].load(Relaxed) == window + 1)
            .map(|(_, cell)| self.busy[cell].load(Relaxed))
            .sum();
        let length = (now - first * WINDOW_NS).max(1);
        (busy.saturating_mul(100) / length).min(100) as u32
    }

    /// The windows that have ended and are still known, oldest first: when each ended, and busy percent.
    pub fn ended(&self, now: u64) -> Vec<(u64, u32)> {
        let current = now / WINDOW_NS;
        let first = current.saturating_sub(WINDOWS as u64 - 1);
        let percent = |window: u64| {
            let cell = (window % WINDOWS as u64) as usize;
            let known = self.number[cell].load(Relaxed) == window + 1;
            let busy = if known {
                self.busy[cell].load(Relaxed)
            } else {
                0
            };
            (busy * 100 / WINDOW_NS).min(100) as u32
        };
        (first..current)
            .map(|window| ((window + 1) * WINDOW_NS, percent(window)))
            .collect()
    }

    pub fn clear(&self) {
        for cell in &self.number {
            cell.store(0, Relaxed);
        }
    }
}
