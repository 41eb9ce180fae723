//! Waiting for simulated work: in real time by sleeping as long as the work needs at least, on a virtual clock by
//! making time jump.

use crate::engine::machine::slots::QueuePosition;
use crate::engine::machine::state::{Locked, State};

/// Longest sleep between two looks: a lost GPU or a killed neighbour is noticed within it. A shorter one would take
/// processor time from the tests' programs.
const LOOK_AGAIN_NS: u64 = 10_000_000;

/// A sleep ends so much later than asked, at worst: Linux's timer slack is 50 us, and waking a virtual machine's
/// processor takes as long again or longer. A program that waits for its GPU spins by default (`CU_CTX_SCHED_AUTO`), so
/// the rest of a wait is spun here too.
const OVERSHOOT_NS: u64 = 200_000;

/// How long to sleep while other processes have the GPU, for an unknown time. A tenth of what a sleep overshoots, so a
/// shorter one would gain nothing.
const NAP_NS: u64 = 20_000;

impl State {
    /// Blocks until this process's queue on `gpu` has done `ticket`, or the GPU is lost.
    pub fn wait(&self, slot: usize, gpu: usize, ticket: u64) {
        self.wait_for(slot, QueuePosition { slot, gpu, ticket });
    }

    /// The same for the process of `waiter` and the queue of any process.
    pub fn wait_for(&self, waiter: usize, at: QueuePosition) {
        let QueuePosition { slot, gpu, ticket } = at;
        let queue = self.queue(slot, gpu);
        loop {
            let epoch = self.epoch();
            {
                let locked = self.lock();
                if slot != waiter {
                    locked.reap();
                }
                locked.advance(gpu);
                if queue.is_done(ticket) || self.gpu(gpu).health.is_lost() {
                    self.slots()[waiter].set_awaited(None);
                    return;
                }
                if self.has_virtual_clock() {
                    self.slots()[waiter].set_awaited(Some(at));
                    if locked.jump() {
                        drop(locked);
                        self.notify();
                        continue;
                    }
                }
            }
            let least = if self.has_virtual_clock() {
                LOOK_AGAIN_NS
            } else {
                queue.at_least(ticket)
            };
            match least {
                1..=OVERSHOOT_NS => std::thread::yield_now(),
                _ => self.sleep(
                    epoch,
                    least
                        .saturating_sub(OVERSHOOT_NS)
                        .clamp(NAP_NS, LOOK_AGAIN_NS),
                ),
            }
        }
    }
}

impl Locked<'_> {
    /// Lets a virtual clock jump to the next event on any GPU, if every process with a context waits. False when there
    /// is nothing to jump to.
    pub fn jump(&self) -> bool {
        self.reap();
        if !self.all_wait() {
            return false;
        }
        let events = self
            .compute_units()
            .filter_map(|unit| self.running(unit).until_next_event());
        let Some(ns) = events.min() else { return false };
        self.set_virtual_now(self.now() + ns);
        self.advance_all();
        true
    }
}
