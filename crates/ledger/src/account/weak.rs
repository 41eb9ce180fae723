//! A weak memory model for the model checkers: the values that a processor may show to a thread beside the newest.
//!
//! x86-64 shows nearly all stores in their order, arm64 does not, and no run on one processor shows all that it may do. This
//! memory keeps the past values of each word. A thread has a view: the oldest value of each word that it may still read.
//!
//! | access | what it adds to the thread's view |
//! |---|---|
//! | relaxed load | the value that it read: any one that is not older than the view |
//! | acquire load | also the view that the writer had published with that value |
//! | change of a word | always sees the newest value, and publishes the thread's view if it releases |
//! | sequentially consistent | also sees every such access to the same word that came before |
//! | acquire fence | the views of all values that were read before |
//!
//! This is the promise-free part of the "promising semantics" (Kang et al., POPL 2017): all behaviours of C++20 but stores
//! that are visible before an earlier load of their thread. All stores here depend on earlier loads, which forbids that.

use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Release, SeqCst};

/// By word: the position of a value in the word's history.
type View<const WORDS: usize> = [u8; WORDS];

#[derive(Clone, Copy, Debug, Hash)]
struct Message<const WORDS: usize> {
    value: u64,
    published: View<WORDS>,
}

#[derive(Clone, Copy, Debug, Hash)]
struct Thread<const WORDS: usize> {
    view: View<WORDS>,
    /// What an acquire fence would add.
    ahead: View<WORDS>,
}

/// Most threads of a memory.
const THREADS: usize = 4;

#[derive(Clone, Debug)]
pub struct WeakMemory<const WORDS: usize> {
    /// By word, oldest first; mostly there are none.
    older: [Vec<Message<WORDS>>; WORDS],
    newest: [Message<WORDS>; WORDS],
    threads: [Thread<WORDS>; THREADS],
    /// The newest value of each word that a sequentially consistent access saw.
    consistent: View<WORDS>,
}

impl<const WORDS: usize> Hash for WeakMemory<WORDS> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for message in &self.newest {
            hasher.write_u64(message.value);
        }
        // Else every position is 0.
        if self.older.iter().any(|older| !older.is_empty()) {
            (&self.older, &self.newest, &self.threads, &self.consistent).hash(hasher);
        }
    }
}

fn acquires(order: Ordering) -> bool {
    matches!(order, Acquire | AcqRel | SeqCst)
}

fn releases(order: Ordering) -> bool {
    matches!(order, Release | AcqRel | SeqCst)
}

fn join<const WORDS: usize>(view: &mut View<WORDS>, other: &View<WORDS>) {
    for (mine, theirs) in view.iter_mut().zip(other) {
        *mine = (*mine).max(*theirs);
    }
}

impl<const WORDS: usize> WeakMemory<WORDS> {
    pub fn new(values: [u64; WORDS]) -> Self {
        let fresh = [0; WORDS];
        let message = |value| Message {
            value,
            published: fresh,
        };
        let thread = Thread {
            view: fresh,
            ahead: fresh,
        };
        Self {
            older: [const { Vec::new() }; WORDS],
            newest: values.map(message),
            threads: [thread; THREADS],
            consistent: fresh,
        }
    }

    /// The newest value.
    pub fn newest(&self, word: usize) -> u64 {
        self.newest[word].value
    }

    fn last(&self, word: usize) -> usize {
        self.older[word].len()
    }

    fn message(&self, word: usize, at: usize) -> Message<WORDS> {
        self.older[word]
            .get(at)
            .copied()
            .unwrap_or(self.newest[word])
    }

    /// The values that a load may read: 0 is the oldest.
    pub fn choices(&self, thread: usize, word: usize, order: Ordering) -> usize {
        self.last(word) + 1 - self.oldest(thread, word, order)
    }

    fn oldest(&self, thread: usize, word: usize, order: Ordering) -> usize {
        let seen = self.threads[thread].view[word];
        usize::from(match order {
            SeqCst => seen.max(self.consistent[word]),
            _ => seen,
        })
    }

    pub fn load(&mut self, thread: usize, word: usize, order: Ordering, choice: usize) -> u64 {
        let at = self.oldest(thread, word, order) + choice;
        self.see(thread, word, order, at);
        self.message(word, at).value
    }

    fn see(&mut self, thread: usize, word: usize, order: Ordering, at: usize) {
        let published = self.message(word, at).published;
        let thread = &mut self.threads[thread];
        thread.view[word] = thread.view[word].max(at as u8);
        join(&mut thread.ahead, &published);
        if acquires(order) {
            join(&mut thread.view, &published);
        }
        if order == SeqCst {
            self.consistent[word] = self.consistent[word].max(at as u8);
        }
    }

    /// An atomic change of the newest value, or none. Returns whether it changed.
    pub fn update(
        &mut self,
        thread: usize,
        word: usize,
        order: Ordering,
        change: impl FnOnce(u64) -> Option<u64>,
    ) -> bool {
        let at = self.last(word);
        self.see(thread, word, order, at);
        let Some(value) = change(self.newest(word)) else {
            return false;
        };
        let next = (at + 1) as u8;
        // What the value before it published goes on with it (release sequence).
        let mut published = self.newest[word].published;
        let thread = &mut self.threads[thread];
        thread.view[word] = next;
        if releases(order) {
            join(&mut published, &thread.view);
        }
        published[word] = next;
        let before = std::mem::replace(&mut self.newest[word], Message { value, published });
        self.older[word].push(before);
        if order == SeqCst {
            self.consistent[word] = next;
        }
        true
    }

    pub fn acquire_fence(&mut self, thread: usize) {
        let thread = &mut self.threads[thread];
        join(&mut thread.view, &thread.ahead);
    }

    /// Forgets values that no thread can read any more. `reads`: the threads that go on; `loaded`: the order of the loads
    /// of each word.
    pub fn forget(&mut self, reads: impl Fn(usize) -> bool, loaded: [Ordering; WORDS]) {
        for (word, order) in loaded.into_iter().enumerate() {
            let threads = (0..THREADS).filter(|thread| reads(*thread));
            let oldest = threads.map(|thread| self.oldest(thread, word, order)).min();
            let dropped = oldest.unwrap_or(self.last(word));
            if dropped == 0 {
                continue;
            }
            self.older[word].drain(..dropped);
            let shift =
                |view: &mut View<WORDS>| view[word] = view[word].saturating_sub(dropped as u8);
            for thread in &mut self.threads {
                shift(&mut thread.view);
                shift(&mut thread.ahead);
            }
            for message in self.older.iter_mut().flatten().chain(&mut self.newest) {
                shift(&mut message.published);
            }
            shift(&mut self.consistent);
        }
        // A thread that has ended is as fresh as can be: two worlds that differ in it alone are one.
        for (thread, now) in self.threads.iter_mut().enumerate() {
            if !reads(thread) {
                (now.view, now.ahead) = ([0; WORDS], [0; WORDS]);
            }
        }
    }
}

/// One way through a program's choices.
pub struct Choices {
    taken: Vec<(usize, usize)>,
    at: usize,
}

impl Choices {
    /// A number below `of`.
    pub fn next(&mut self, of: usize) -> usize {
        if self.at == self.taken.len() {
            self.taken.push((0, of));
        }
        self.at += 1;
        self.taken[self.at - 1].0
    }
}

/// Runs a program once for each way through its choices.
pub fn every_choice(mut run: impl FnMut(&mut Choices)) {
    let mut choices = Choices {
        taken: Vec::new(),
        at: 0,
    };
    loop {
        choices.at = 0;
        run(&mut choices);
        while choices
            .taken
            .last()
            .is_some_and(|(taken, of)| taken + 1 == *of)
        {
            choices.taken.pop();
        }
        let Some(last) = choices.taken.last_mut() else {
            return;
        };
        last.0 += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// What two threads may read, each with one store before one load, in every order of their steps: the litmus test `SB`.
    fn store_buffering(store: Ordering, load: Ordering) -> BTreeSet<[u64; 2]> {
        let mut seen = BTreeSet::new();
        // Which thread steps.
        for schedule in [[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]] {
            every_choice(|choices| {
                let mut memory = WeakMemory::new([0, 0]);
                let (mut begun, mut read) = ([false; 2], [0; 2]);
                for thread in schedule {
                    if std::mem::replace(&mut begun[thread], true) {
                        let choice = choices.next(memory.choices(thread, 1 - thread, load));
                        read[thread] = memory.load(thread, 1 - thread, load, choice);
                    } else {
                        memory.update(thread, thread, store, |_| Some(1));
                    }
                }
                seen.insert(read);
            });
        }
        seen
    }

    /// What a thread reads of a word and of the flag that another set after it, the flag first: the litmus test `MP`.
    fn message_passing(store: Ordering, load: Ordering, fence: bool) -> BTreeSet<[u64; 2]> {
        let mut seen = BTreeSet::new();
        // How many of the stores come before the loads.
        for stores in 0..=2 {
            every_choice(|choices| {
                let mut memory = WeakMemory::new([0, 0]);
                for word in 0..stores {
                    memory.update(0, word, store, |_| Some(1));
                }
                let flag = choices.next(memory.choices(1, 1, load));
                let flag = memory.load(1, 1, load, flag);
                if fence {
                    memory.acquire_fence(1);
                }
                let data = choices.next(memory.choices(1, 0, Relaxed));
                seen.insert([flag, memory.load(1, 0, Relaxed, data)]);
            });
        }
        seen
    }

    #[test]
    fn two_threads_miss_each_others_store_unless_all_accesses_are_consistent() {
        let missed = |store, load| store_buffering(store, load).contains(&[0, 0]);
        for store in [Relaxed, Release, AcqRel, SeqCst] {
            for load in [Relaxed, Acquire, SeqCst] {
                let consistent = (store, load) == (SeqCst, SeqCst);
                assert_eq!(missed(store, load), !consistent, "{store:?} {load:?}");
            }
        }
    }

    #[test]
    fn a_thread_that_sees_a_flag_sees_the_word_before_it_where_both_sides_synchronise() {
        let stale = |store, load, fence| message_passing(store, load, fence).contains(&[1, 0]);
        for (store, load, fence, expected) in [
            (Relaxed, Relaxed, false, true),
            (Release, Relaxed, false, true),
            (Relaxed, Acquire, false, true),
            (Release, Acquire, false, false),
            (Release, Relaxed, true, false),
            (SeqCst, SeqCst, false, false),
        ] {
            assert_eq!(
                stale(store, load, fence),
                expected,
                "{store:?} {load:?} {fence}"
            );
            let outcomes = message_passing(store, load, fence);
            assert!(outcomes.contains(&[0, 1]) && outcomes.contains(&[1, 1]));
        }
    }

    const NUMBER: usize = 0;
    const FIRST: usize = 1;
    const SECOND: usize = 2;

    /// What a reader of a control file accepts as its two words, beside a writer that changes both from 0 to 1 under the
    /// sequence number. `copies`: whether it compares two copies, and not only their numbers.
    fn guarded_read(copies: bool) -> BTreeSet<[u64; 2]> {
        const WRITER: usize = 0;
        const READER: usize = 1;
        let orders = [[0, 1, 2], [1, 0, 2], [1, 2, 0]];
        let mut accepted = BTreeSet::new();
        every_choice(|choices| {
            let mut memory = WeakMemory::new([0; 3]);
            let writes = [NUMBER, FIRST, SECOND, NUMBER];
            let mut written = writes.into_iter();
            let mut seen = [[0; 3]; 2];
            for copy in &mut seen {
                for word in orders[choices.next(orders.len())] {
                    for _ in 0..choices.next(written.len() + 1) {
                        let next = written.next().expect("one of those that are left");
                        memory.update(WRITER, next, SeqCst, |value| Some(value + 1));
                    }
                    let choice = choices.next(memory.choices(READER, word, Relaxed));
                    copy[word] = memory.load(READER, word, Relaxed, choice);
                }
                // Finding the page in the kernel's cache is a full barrier (`folio_try_get`; Documentation/atomic_t.txt).
                memory.acquire_fence(READER);
            }
            let [before, after] = seen;
            let equal = if copies {
                before == after
            } else {
                before[NUMBER] == after[NUMBER]
            };
            if equal && before[NUMBER] % 2 == 0 {
                accepted.insert([before[FIRST], before[SECOND]]);
            }
        });
        accepted
    }

    #[test]
    fn two_equal_copies_of_a_control_file_hold_one_state_and_two_equal_numbers_do_not() {
        let states = BTreeSet::from([[0, 0], [1, 1]]);
        assert_eq!(guarded_read(true), states);
        assert_ne!(guarded_read(false), states);
    }

    /// Whether an opening of a lock file and a fork can overlap, each of which counts itself and then looks at the other's count.
    fn opening_beside_a_fork(count: Ordering, look: Ordering) -> bool {
        store_buffering(count, look).contains(&[0, 0])
    }

    #[test]
    fn no_lock_file_is_opened_beside_a_fork_unless_an_order_is_weaker() {
        assert!(!opening_beside_a_fork(SeqCst, SeqCst));
        assert!(opening_beside_a_fork(AcqRel, Acquire));
    }
}
