//! The lock-free admission check of the ledger: it decides whether a reservation fits, and never exceeds the limit.
//!
//! Every process has one word per GPU: all its bytes, and how many of its reservations are still being decided. To
//! reserve, it **publishes** the bytes in its own word, and only then **counts** the words of all processes.
//!
//! # Never over the limit
//! All accesses are sequentially consistent, so they have one order that every process agrees on. Take the bytes that
//! are granted at some instant, and among these grants the one that was published last. Every other one was published
//! before it and has not been released since, so its bytes were in the words when the last one counted: a word holds
//! the sum of what is published in it, nothing is ever negative, and a slot's bit is set before its first byte is
//! published. (Bytes that become shared move from a slot's word to a word of their own, which is counted after all
//! slots': they are in the second before they leave the first.) So the last one counted at least all bytes granted at
//! that instant, found them within the limit it read after publishing, and that limit holds. The argument assumes
//! nothing about speed, order of counting, or where a process dies: a process killed after publishing leaves its bytes
//! charged, which can only make others count more.
//! # No refusal of a reservation that fits
//! Two processes that publish at once may each count the other, though one of them would fit. The number of undecided
//! reservations sits in the same word as the bytes (a second word could be read torn from the first), so a count tells
//! firm bytes from bytes in dispute. A reservation is refused only when two counts in a row find the limit exceeded, no
//! rival undecided, and every word the same. A word that gains bytes changes its version, and one that only loses bytes
//! cannot come back to what it was, so between these two counts no word changed: at that instant firm bytes filled the limit.
//! (A version comes round after 256 additions; they would have to fall between two reads of one word, exactly.)
//!
//! Anything else is a tie, and the lowest slot wins it. A process that sees an undecided rival in a lower slot
//! withdraws and waits until that one is decided. A process that sees only higher ones stays published and counts
//! again, for they will withdraw. Threads of one process share a slot, so one at a time contends for it
//! (`Memory::enter`) and the others withdraw. Waiting is bounded (`Memory::pause`): a process stopped or killed in
//! between costs the others a while and a refusal, never a hang.
//!
//! [`Attempt`] is one reservation as a machine of small steps, each touching shared memory once. The tests below walk
//! through every interleaving of those very steps; production runs them in a loop.

/// One process on one GPU: bytes charged (lowest 48 bits), a version that changes whenever bytes are added (8 bits), and
/// reservations undecided (highest 8 bits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Word(pub u64);

/// Most bytes one word can hold: 256 TiB.
pub(crate) const MOST_BYTES: u64 = (1 << 48) - 1;
const MOST_UNDECIDED: u64 = 0xff;
const VERSION: u64 = 0xff << 48;

impl Word {
    pub const fn bytes(self) -> u64 {
        self.0 & MOST_BYTES
    }
    pub const fn undecided(self) -> u64 {
        self.0 >> 56
    }
    const fn with(self, bytes: u64, undecided: u64) -> Self {
        Self(bytes | self.0 & VERSION | undecided << 56)
    }
    const fn next_version(self) -> Self {
        Self(self.0 & !VERSION | self.0.wrapping_add(1 << 48) & VERSION)
    }
    /// The bytes of one more undecided reservation; `None` when they do not fit the word.
    pub fn publish(self, bytes: u64) -> Option<Self> {
        let room = bytes <= MOST_BYTES - self.bytes() && self.undecided() < MOST_UNDECIDED;
        let more = || self.with(self.bytes() + bytes, self.undecided() + 1);
        room.then(|| more().next_version())
    }
    /// One reservation is granted: its bytes are firm.
    pub const fn make_firm(self) -> Self {
        self.with(self.bytes(), self.undecided().saturating_sub(1))
    }
    /// One reservation is given up.
    pub const fn withdraw(self, bytes: u64) -> Self {
        self.make_firm().release(bytes)
    }
    /// Firm bytes are given back; more than there are leaves none.
    pub const fn release(self, bytes: u64) -> Self {
        self.with(self.bytes().saturating_sub(bytes), self.undecided())
    }
    /// Charges bytes that exist already, even beyond the limit.
    pub fn force(self, bytes: u64) -> Self {
        let sum = self.bytes().saturating_add(bytes).min(MOST_BYTES);
        self.with(sum, self.undecided()).next_version()
    }
    /// Nothing is left of it but its version.
    pub const fn empty(self) -> Self {
        self.with(0, 0)
    }
    /// All undecided reservations of a dead process count as firm.
    pub const fn firm(self) -> Self {
        self.with(self.bytes(), 0)
    }
}

/// The order of each access of a reservation. The model weakens them one by one, and names what goes wrong then.
pub(crate) mod order {
    use std::sync::atomic::Ordering::{self, SeqCst};

    /// Any change of a word of bytes.
    pub const CHANGE: Ordering = SeqCst;
    /// A process enters the bitmap of words that count, before its first change.
    pub const JOIN: Ordering = SeqCst;
    pub const LOAD_WORD: Ordering = SeqCst;
    pub const LOAD_LIVE: Ordering = SeqCst;
    pub const LOAD_LIMIT: Ordering = SeqCst;
}

/// The words of one GPU in all slots, as one reservation sees them. Each method is one atomic access.
pub(crate) trait Memory {
    /// Whether one `Attempt::step` is one access (to explore interleavings) or as many as make sense.
    const STEPWISE: bool;
    /// Number of words of the bitmap.
    const LIVE_WORDS: usize;

    fn limit(&self) -> u64;
    /// Which of the slots `64 * index ..` may hold bytes.
    fn live(&self, index: usize) -> u64;
    fn load(&self, slot: usize) -> Word;
    /// The bytes of all words, each read once, after the word of the bitmap that names it.
    fn sum(&self) -> u64;
    /// Changes a word at once, or not at all where `change` gives `None`. Returns whether it did.
    fn update(&self, slot: usize, change: impl Fn(Word) -> Option<Word>) -> bool;
    /// Tries to become the one thread of this process that contends; `leave` ends it.
    fn enter(&self) -> bool;
    fn leave(&self);
    /// Lets others run. `false` when this reservation has waited long enough.
    fn pause(&self) -> bool;
}

/// How a reservation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Outcome {
    /// `total`: bytes in use by all processes as counted, with these.
    Granted { total: u64 },
    /// `used`: bytes in use as counted, without these.
    Denied { limit: u64, used: u64 },
}

/// One reservation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    slot: usize,
    bytes: u64,
    contender: bool,
    limit: u64,
    /// Bytes in use as last counted, without these.
    used: u64,
    /// Fingerprint of the last count that found the limit exceeded by firm bytes alone.
    full: Option<u64>,
    count: Count,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    Publish,
    /// The word has no room for the bytes: for good, or because of undecided ones.
    Blocked,
    ReadLimit,
    CountAll,
    Judge,
    Settle,
    Withdraw(Next),
    /// Not published: become this process's contender.
    Enter,
    /// Not published: wait until no lower slot has an undecided reservation.
    GiveWay,
    Pause(Next),
    Leave(Outcome),
    Done(Outcome),
}

/// Where to go on after withdrawing or waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Next {
    Publish,
    ReadLimit,
    Enter,
    GiveWay,
    Deny,
}

/// One pass over all words in slot order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Count {
    index: usize,
    bits: u64,
    total: u64,
    rivals: bool,
    lower_rivals: bool,
    fingerprint: u64,
}

impl Count {
    /// Reads one thing; `true` when there is nothing left to read. `published`: own undecided reservations.
    #[inline(always)]
    fn advance<M: Memory>(&mut self, memory: &M, own: usize, published: u64) -> bool {
        if self.bits == 0 {
            if self.index == M::LIVE_WORDS {
                return true;
            }
            self.bits = memory.live(self.index);
            self.index += 1;
        } else {
            let slot = (self.index - 1) * 64 + self.bits.trailing_zeros() as usize;
            self.bits &= self.bits - 1;
            let word = memory.load(slot);
            self.total = self.total.saturating_add(word.bytes());
            if word.undecided() > if slot == own { published } else { 0 } {
                self.rivals = true;
                self.lower_rivals |= slot < own;
            }
            self.fingerprint = (self.fingerprint.rotate_left(5) ^ word.0 ^ slot as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        false
    }
}

impl Attempt {
    /// One that goes by steps from the first on, for the model.
    #[cfg(test)]
    pub fn new(slot: usize, bytes: u64) -> Self {
        Self::at(Step::Publish, slot, bytes)
    }

    fn at(step: Step, slot: usize, bytes: u64) -> Self {
        Self {
            slot,
            bytes,
            contender: false,
            limit: 0,
            used: 0,
            full: None,
            count: Count::default(),
            step,
        }
    }

    /// Reserves `bytes` in the word of `slot`.
    #[inline(always)]
    pub fn run<M: Memory>(slot: usize, bytes: u64, memory: &M) -> Outcome {
        match Self::straight(slot, bytes, memory) {
            Ok(total) => Outcome::Granted { total },
            Err(step) => Self::at(step, slot, bytes).by_steps(memory),
        }
    }

    /// The way that nearly every reservation goes: publish, read the limit, count, settle. The same accesses as by steps and
    /// in the same order; only a count that finds the limit exceeded is not judged but done again, which adds a look and no
    /// right. It costs a third of what going from step to step does. `Err` is the step to go on from.
    #[inline(always)]
    fn straight<M: Memory>(slot: usize, bytes: u64, memory: &M) -> Result<u64, Step> {
        if !memory.update(slot, |word| word.publish(bytes)) {
            return Err(Step::Blocked);
        }
        let limit = memory.limit();
        let total = memory.sum();
        if total > limit {
            return Err(Step::ReadLimit);
        }
        memory.update(slot, |word| Some(word.make_firm()));
        Ok(total)
    }

    /// Runs the steps to the end.
    #[cold]
    fn by_steps<M: Memory>(mut self, memory: &M) -> Outcome {
        loop {
            if let Some(outcome) = self.step(memory) {
                return outcome;
            }
        }
    }

    /// Does the next step.
    #[inline(always)]
    pub fn step<M: Memory>(&mut self, memory: &M) -> Option<Outcome> {
        self.step = match self.step {
            Step::Publish => {
                if memory.update(self.slot, |word| word.publish(self.bytes)) {
                    Step::ReadLimit
                } else {
                    Step::Blocked
                }
            }
            Step::Blocked => match memory.load(self.slot) {
                word if word.undecided() > 0 => Step::Pause(Next::Publish),
                word => {
                    (self.limit, self.used) = (MOST_BYTES, word.bytes());
                    self.go(Next::Deny)
                }
            },
            Step::ReadLimit => {
                self.limit = memory.limit();
                self.count = Count::default();
                Step::CountAll
            }
            Step::CountAll => {
                if self.counted(memory, 1) {
                    Step::Judge
                } else {
                    Step::CountAll
                }
            }
            Step::Judge => self.judge(),
            Step::Settle => {
                memory.update(self.slot, |word| Some(word.make_firm()));
                Step::Leave(Outcome::Granted {
                    total: self.count.total,
                })
            }
            Step::Withdraw(next) => {
                memory.update(self.slot, |word| Some(word.withdraw(self.bytes)));
                self.go(next)
            }
            Step::Enter => {
                self.contender = memory.enter();
                if self.contender {
                    Step::Publish
                } else {
                    Step::Pause(Next::Enter)
                }
            }
            Step::GiveWay => {
                if self.counted(memory, 0) {
                    self.used = self.count.total;
                    if self.count.lower_rivals {
                        Step::Pause(Next::GiveWay)
                    } else {
                        Step::Publish
                    }
                } else {
                    Step::GiveWay
                }
            }
            Step::Pause(next) => match (memory.pause(), next) {
                (true, next) => self.go(next),
                (false, Next::ReadLimit) => Step::Withdraw(Next::Deny),
                (false, _) => self.go(Next::Deny),
            },
            Step::Leave(outcome) => {
                if self.contender {
                    memory.leave();
                }
                Step::Done(outcome)
            }
            Step::Done(outcome) => return Some(outcome),
        };
        None
    }

    #[inline(always)]
    fn counted<M: Memory>(&mut self, memory: &M, published: u64) -> bool {
        loop {
            if self.count.advance(memory, self.slot, published) {
                return true;
            }
            if M::STEPWISE {
                return false;
            }
        }
    }

    #[inline(always)]
    fn judge(&mut self) -> Step {
        if self.count.total <= self.limit {
            return Step::Settle;
        }
        self.used = self.count.total.saturating_sub(self.bytes);
        let before = self.full.take();
        if !self.count.rivals {
            if before == Some(self.count.fingerprint) {
                return Step::Withdraw(Next::Deny);
            }
            self.full = Some(self.count.fingerprint);
            Step::Pause(Next::ReadLimit)
        } else if !self.contender {
            Step::Withdraw(Next::Enter)
        } else if self.count.lower_rivals {
            Step::Withdraw(Next::GiveWay)
        } else {
            Step::Pause(Next::ReadLimit)
        }
    }

    fn go(&mut self, next: Next) -> Step {
        match next {
            Next::Publish => Step::Publish,
            Next::ReadLimit => Step::ReadLimit,
            Next::Enter => Step::Enter,
            Next::GiveWay => {
                self.count = Count::default();
                Step::GiveWay
            }
            Next::Deny => Step::Leave(Outcome::Denied {
                limit: self.limit,
                used: self.used,
            }),
        }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod weak;
