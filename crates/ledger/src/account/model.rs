//! A model checker of the admission check: it walks every interleaving of a few processes over the steps that
//! production runs.
//!
//! A world is all shared words and where each process stands. From each world, each process may do its next step; worlds
//! seen before are not walked again, so loops end and the walk is complete. The words lie in a [`WeakMemory`], which shows a
//! process every value that production's orders ([`order`]) allow, on any processor.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, SeqCst};

use super::weak::WeakMemory;
use super::{Attempt, Count, Memory, Outcome, Step, VERSION, Word, order};

const SLOTS: usize = 4;
/// Words of the memory: one for each slot, then these two.
const LIMIT: usize = SLOTS;
const LIVE: usize = SLOTS + 1;
const WORDS: usize = SLOTS + 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Act {
    /// Makes the process's slot part of every count from here on.
    Join,
    Reserve(u64),
    /// Gives back what was granted last.
    Release,
    /// Bytes are granted to the process of a slot.
    Hold(usize, u64),
    /// The agent changes the limit.
    Limit(u64),
    /// Another process reaps the dead owner of a slot: undecided bytes become firm.
    Settle(usize),
    /// The dead owner's bytes have come back.
    Free(usize),
    /// Bytes on their way to be shared: they are in that slot's word too, undecided,
    Copy(usize, u64),
    /// then they leave the process's own,
    Leave(u64),
    /// and then they are firm where they are now.
    Arrive(usize),
}

/// The order of each kind of access.
#[derive(Clone, Copy, Hash, Debug)]
struct Orders {
    change: Ordering,
    join: Ordering,
    load_word: Ordering,
    load_live: Ordering,
    load_limit: Ordering,
}

const PRODUCTION: Orders = Orders {
    change: order::CHANGE,
    join: order::JOIN,
    load_word: order::LOAD_WORD,
    load_live: order::LOAD_LIVE,
    load_limit: order::LOAD_LIMIT,
};

#[derive(Clone, Hash)]
struct Shared {
    memory: WeakMemory<WORDS>,
    orders: Orders,
    /// Whether words have versions; without, racers that withdraw and come again make a world seen before.
    versions: bool,
    contended: [bool; SLOTS],
}

impl Shared {
    fn limit(&self) -> u64 {
        self.memory.newest(LIMIT)
    }

    fn word(&self, slot: usize) -> Word {
        Word(self.memory.newest(slot))
    }

    /// A process changes a word, as all of production's changes do: at once, or not at all.
    fn change(
        &mut self,
        process: usize,
        slot: usize,
        change: impl FnOnce(Word) -> Option<Word>,
    ) -> bool {
        let kept = if self.versions { !0 } else { !VERSION };
        let change = |word| change(Word(word)).map(|word| word.0 & kept);
        self.memory
            .update(process, slot, self.orders.change, change)
    }
}

#[derive(Clone, Hash)]
struct Process {
    slot: usize,
    script: &'static [Act],
    attempt: Option<Attempt>,
    /// Bytes granted and the slot they are in.
    held: Vec<(usize, u64)>,
    dead: bool,
    refusals: Vec<u64>,
    /// The limit when the attempt began.
    limit: u64,
    /// Whether at some instant of the attempt its bytes did not fit beside what all held.
    was_full: bool,
}

impl Process {
    fn has_ended(&self) -> bool {
        self.dead || (self.script.is_empty() && self.attempt.is_none())
    }
}

#[derive(Clone, Hash)]
struct World {
    weather: Weather,
    shared: Shared,
    processes: Vec<Process>,
}

#[derive(Clone, Copy, PartialEq, Hash)]
enum Weather {
    /// A waiting process waits without a bound, and no process dies.
    Fair,
    /// A waiting process may give up at any time, and any process may be killed at any step.
    Foul,
}

struct View<'a> {
    shared: RefCell<&'a mut Shared>,
    process: usize,
    slot: usize,
    patient: bool,
    /// Which of the values that a load may read it reads, and of how many.
    choice: usize,
    choices: &'a Cell<usize>,
}

impl View<'_> {
    fn load_word(&self, word: usize, order: Ordering) -> u64 {
        let memory = &mut self.shared.borrow_mut().memory;
        self.choices.set(memory.choices(self.process, word, order));
        memory.load(self.process, word, order, self.choice)
    }
}

impl Memory for View<'_> {
    const STEPWISE: bool = true;
    const LIVE_WORDS: usize = 1;

    fn limit(&self) -> u64 {
        let order = self.shared.borrow().orders.load_limit;
        self.load_word(LIMIT, order)
    }
    fn live(&self, _: usize) -> u64 {
        let order = self.shared.borrow().orders.load_live;
        self.load_word(LIVE, order)
    }
    fn load(&self, slot: usize) -> Word {
        let order = self.shared.borrow().orders.load_word;
        Word(self.load_word(slot, order))
    }
    fn sum(&self) -> u64 {
        unreachable!("the model goes by steps")
    }
    fn update(&self, slot: usize, change: impl Fn(Word) -> Option<Word>) -> bool {
        self.shared.borrow_mut().change(self.process, slot, change)
    }
    fn enter(&self) -> bool {
        !std::mem::replace(&mut self.shared.borrow_mut().contended[self.slot], true)
    }
    fn leave(&self) {
        self.shared.borrow_mut().contended[self.slot] = false;
    }
    fn pause(&self) -> bool {
        self.patient
    }
}

impl World {
    fn new(weather: Weather, limit: u64, scripts: &[(usize, &'static [Act])]) -> Self {
        let mut values = [0; WORDS];
        values[LIMIT] = limit;
        let shared = Shared {
            memory: WeakMemory::new(values),
            orders: PRODUCTION,
            versions: false,
            contended: [false; SLOTS],
        };
        let process = |&(slot, script)| Process {
            slot,
            script,
            attempt: None,
            held: Vec::new(),
            dead: false,
            refusals: Vec::new(),
            limit,
            was_full: false,
        };
        Self {
            weather,
            shared,
            processes: scripts.iter().map(process).collect(),
        }
    }

    fn held(&self) -> u64 {
        self.processes
            .iter()
            .flat_map(|process| &process.held)
            .map(|(_, bytes)| bytes)
            .sum()
    }

    fn is_waiting(&self, process: usize) -> bool {
        let attempt = self.processes[process].attempt.as_ref();
        attempt.is_some_and(|attempt| matches!(attempt.step, Step::Pause(_)))
    }

    fn has_ended(&self, process: usize) -> bool {
        self.processes[process].has_ended()
    }

    /// The same with a word that has a value from the start.
    fn with(mut self, word: usize, value: u64) -> Self {
        let mut values: [u64; WORDS] = std::array::from_fn(|word| self.shared.memory.newest(word));
        values[word] = value;
        self.shared.memory = WeakMemory::new(values);
        self
    }

    /// The worlds after one step of one process, one for each value that it may read.
    fn step(&self, index: usize, patient: bool) -> Vec<Self> {
        let choices = Cell::new(1);
        let mut worlds = Vec::new();
        while worlds.len() < choices.get() {
            match self.step_with(index, patient, worlds.len(), &choices) {
                Some(world) => worlds.push(world),
                None => break,
            }
        }
        worlds
    }

    fn step_with(
        &self,
        index: usize,
        patient: bool,
        choice: usize,
        choices: &Cell<usize>,
    ) -> Option<Self> {
        if self.has_ended(index) {
            return None;
        }
        let mut next = self.clone();
        let held = self.held();
        let World {
            weather,
            shared,
            processes,
        } = &mut next;
        let process = &mut processes[index];
        let slot = process.slot;
        if let Some(attempt) = &mut process.attempt {
            let bytes = attempt.bytes;
            let view = View {
                shared: RefCell::new(shared),
                process: index,
                slot,
                patient,
                choice,
                choices,
            };
            let mut outcome = attempt.step(&view);
            // Steps that touch nothing shared go along with the one before.
            while outcome.is_none() && matches!(attempt.step, Step::Judge | Step::Done(_)) {
                outcome = attempt.step(&view);
            }
            // A count is irrelevant once it is judged; two worlds that differ in it alone are one.
            if !matches!(attempt.step, Step::CountAll | Step::GiveWay) {
                attempt.count = Count::default();
                attempt.used = 0;
            }
            match (&attempt.step, outcome) {
                (Step::Leave(Outcome::Granted { .. }), _) => {
                    process.held.push((slot, bytes));
                    assert!(
                        held + bytes <= process.limit,
                        "over the limit that was there before"
                    );
                }
                (_, Some(Outcome::Denied { .. })) => {
                    assert!(
                        *weather == Weather::Foul || process.was_full,
                        "refused what always fitted"
                    );
                    process.refusals.push(bytes);
                    process.attempt = None;
                }
                (_, Some(Outcome::Granted { .. })) => process.attempt = None,
                _ => {}
            }
        } else {
            let (act, rest) = process.script.split_first()?;
            process.script = rest;
            match *act {
                Act::Join => {
                    let order = shared.orders.join;
                    let joined = |live| Some(live | 1 << slot);
                    shared.memory.update(index, LIVE, order, joined);
                }
                Act::Reserve(bytes) => {
                    process.attempt = Some(Attempt::new(slot, bytes));
                    process.limit = shared.limit();
                    process.was_full = false;
                }
                Act::Release => {
                    if let Some((slot, bytes)) = process.held.pop() {
                        shared.change(index, slot, |word| Some(word.release(bytes)));
                    }
                }
                Act::Hold(slot, bytes) => {
                    process.held.push((slot, bytes));
                    shared.change(index, slot, |word| Some(word.force(bytes)));
                }
                Act::Limit(bytes) => {
                    shared.memory.update(index, LIMIT, SeqCst, |_| Some(bytes));
                }
                Act::Copy(to, bytes) => {
                    assert!(shared.change(index, to, |word| word.publish(bytes)));
                }
                Act::Leave(bytes) => {
                    shared.change(index, slot, |word| Some(word.release(bytes)));
                }
                Act::Arrive(to) => {
                    shared.change(index, to, |word| Some(word.make_firm()));
                }
                Act::Settle(of) | Act::Free(of) => {
                    return next.recover(index, of, matches!(act, Act::Free(_)));
                }
            }
        }
        next.watch();
        Some(next)
    }

    /// Reaps the slot of a dead process; a living one cannot be reaped.
    fn recover(mut self, by: usize, slot: usize, free: bool) -> Option<Self> {
        let owner = self
            .processes
            .iter_mut()
            .find(|process| process.slot == slot && process.dead)?;
        if free {
            owner.held.clear();
        }
        let emptied = |word: Word| if free { word.empty() } else { word.firm() };
        self.shared.change(by, slot, |word| Some(emptied(word)));
        self.watch();
        Some(self)
    }

    fn watch(&mut self) {
        let (held, limit) = (self.held(), self.shared.limit());
        for process in &mut self.processes {
            let bytes = process.attempt.as_ref().map_or(0, |attempt| attempt.bytes);
            process.was_full |= held + bytes > limit;
        }
        let goes_on = |process: usize| {
            let known = self.processes.get(process);
            known.is_some_and(|process| !process.has_ended())
        };
        let orders = &self.shared.orders;
        let mut loaded = [orders.load_word; WORDS];
        (loaded[LIMIT], loaded[LIVE]) = (orders.load_limit, orders.load_live);
        self.shared.memory.forget(goes_on, loaded);
    }

    fn kill(&mut self, process: usize) {
        let process = &mut self.processes[process];
        process.dead = true;
        process.attempt = None;
        // Not shared memory: it goes with the process.
        self.shared.contended[process.slot] = false;
    }

    fn fingerprint(&self) -> u128 {
        let mut hasher = Fingerprint(0);
        self.hash(&mut hasher);
        hasher.0
    }
}

/// 128 bits, so that no two of some million worlds are taken for one.
struct Fingerprint(u128);

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        for eight in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..eight.len()].copy_from_slice(eight);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        let mixed =
            (self.0 ^ u128::from(word)).wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645);
        self.0 = mixed.rotate_left(67) ^ 0x9e37_79b9_7f4a_7c15;
    }
    fn finish(&self) -> u64 {
        self.0 as u64
    }
}

/// Walks through every world. Checks `at_the_end` wherever no process has a step left, and that every world can reach
/// such an end.
/// Returns how many worlds there are.
fn walk(start: World, at_the_end: impl Fn(&World)) -> usize {
    let initial_limit = start.shared.limit();
    let mut numbers = HashMap::from([(start.fingerprint(), 0usize)]);
    let mut leads_from: Vec<Vec<usize>> = vec![Vec::new()];
    let mut ends = Vec::new();
    let mut ahead = vec![(0, start)];
    while let Some((number, world)) = ahead.pop() {
        assert!(world.held() <= initial_limit, "over the limit");
        let mut nexts = Vec::new();
        for process in 0..world.processes.len() {
            nexts.extend(world.step(process, true));
            if world.weather == Weather::Foul && !world.has_ended(process) {
                if world.is_waiting(process) {
                    nexts.extend(world.step(process, false));
                }
                let mut killed = world.clone();
                killed.kill(process);
                nexts.push(killed);
            }
        }
        if nexts.is_empty() {
            at_the_end(&world);
            ends.push(number);
        }
        for next in nexts {
            let fresh = leads_from.len();
            let to = *numbers.entry(next.fingerprint()).or_insert(fresh);
            if to == fresh {
                leads_from.push(Vec::new());
                ahead.push((to, next));
            }
            leads_from[to].push(number);
        }
    }
    let mut can_end = vec![false; leads_from.len()];
    while let Some(number) = ends.pop() {
        if !std::mem::replace(&mut can_end[number], true) {
            ends.extend(&leads_from[number]);
        }
    }
    assert!(
        can_end.iter().all(|ends| *ends),
        "some world can never come to an end"
    );
    can_end.len()
}

/// Without releases: no reservation that fits was refused when all is done, and the words are exactly what is held.
fn nothing_fitting_was_refused(world: &World) {
    let shared = &world.shared;
    let refused = world.processes.iter().flat_map(|process| &process.refusals);
    for bytes in refused {
        assert!(
            world.held() + bytes > shared.limit(),
            "{bytes} bytes were refused and would fit"
        );
    }
    words_are_what_is_held(world);
}

fn words_are_what_is_held(world: &World) {
    let shared = &world.shared;
    let words = || (0..SLOTS).map(|slot| shared.word(slot));
    assert_eq!(words().map(Word::bytes).sum::<u64>(), world.held());
    assert!(words().all(|word| word.undecided() == 0) && shared.contended == [false; SLOTS]);
}

use Act::{Free, Join, Limit, Release, Reserve, Settle};

#[test]
fn of_two_racers_that_fit_alone_exactly_one_is_granted() {
    let start = World::new(
        Weather::Fair,
        10,
        &[(0, &[Join, Reserve(6)]), (1, &[Join, Reserve(5)])],
    );
    walk(start, |world| {
        nothing_fitting_was_refused(world);
        assert!(world.held() == 5 || world.held() == 6);
    });
}

#[test]
fn two_racers_that_fit_together_are_both_granted() {
    let start = World::new(
        Weather::Fair,
        10,
        &[(0, &[Join, Reserve(6)]), (1, &[Join, Reserve(4)])],
    );
    walk(start, |world| assert_eq!(world.held(), 10));
}

#[test]
fn of_three_racers_none_is_refused_what_fits() {
    let start = World::new(
        Weather::Fair,
        10,
        &[
            (0, &[Join, Reserve(6)]),
            (1, &[Join, Reserve(5)]),
            (2, &[Join, Reserve(4)]),
        ],
    );
    walk(start, |world| {
        nothing_fitting_was_refused(world);
        assert!(world.held() >= 9);
    });
}

#[test]
fn a_racer_too_large_does_not_keep_out_a_small_one() {
    let scripts: [(usize, &[Act]); 3] = [
        (0, &[Join, Reserve(9)]),
        (1, &[Join, Reserve(2)]),
        (2, &[Join, Reserve(9)]),
    ];
    walk(
        World::new(Weather::Fair, 10, &scripts),
        nothing_fitting_was_refused,
    );
}

#[test]
fn threads_of_one_process_race_as_processes_do() {
    let start = World::new(
        Weather::Fair,
        10,
        &[
            (1, &[Join, Reserve(6)]),
            (1, &[Join, Reserve(5)]),
            (0, &[Join, Reserve(7)]),
        ],
    );
    walk(start, |world| {
        nothing_fitting_was_refused(world);
        assert!(world.held() >= 5);
    });
}

/// Six bytes go to and fro between two processes while a third one counts; four are always free.
fn bytes_on_the_move(versions: bool) -> World {
    const FROM: Act = Act::Hold(0, 6);
    const TO: Act = Act::Hold(2, 6);
    let moves: &[Act] = &[FROM, Release, TO, Release, FROM, Release, TO, Release, FROM];
    let start = World::new(Weather::Fair, 10, &[(0, moves), (1, &[Join, Reserve(4)])]);
    let mut start = start.with(LIVE, 0b101);
    start.shared.versions = versions;
    start
}

#[test]
fn bytes_on_the_move_refuse_no_reservation() {
    walk(bytes_on_the_move(true), |world| {
        words_are_what_is_held(world);
        assert_eq!(world.held(), 10);
    });
}

#[test]
#[should_panic(expected = "refused what always fitted")]
fn without_versions_bytes_on_the_move_could_look_like_bytes_that_stay() {
    walk(bytes_on_the_move(false), |_| {});
}

#[test]
fn a_shrinking_limit_holds_for_every_reservation_begun_after_it() {
    let start = World::new(
        Weather::Fair,
        10,
        &[
            (0, &[Join, Reserve(4), Reserve(2)]),
            (1, &[Join, Reserve(4)]),
            (3, &[Limit(5)]),
        ],
    );
    walk(start, words_are_what_is_held);
}

#[test]
fn the_limit_holds_wherever_a_process_gives_up_or_is_killed() {
    let start = World::new(
        Weather::Foul,
        10,
        &[
            (0, &[Join, Reserve(6)]),
            (1, &[Join, Reserve(5), Release, Reserve(7)]),
        ],
    );
    walk(start, |_| {});
}

#[test]
fn the_limit_holds_wherever_one_of_three_processes_gives_up_or_is_killed() {
    let start = World::new(
        Weather::Foul,
        10,
        &[
            (0, &[Join, Reserve(6)]),
            (1, &[Join, Reserve(5)]),
            (2, &[Join, Reserve(4)]),
        ],
    );
    walk(start, |_| {});
}

#[test]
fn recovery_of_a_killed_process_leaves_what_the_living_hold() {
    let start = World::new(
        Weather::Foul,
        10,
        &[
            (0, &[Join, Reserve(6)]),
            (1, &[Join, Reserve(5), Release]),
            (3, &[Settle(0), Free(0)]),
        ],
    );
    walk(start, |world| {
        if world.processes.iter().skip(1).all(|process| !process.dead) {
            words_are_what_is_held(world);
        }
    });
}

/// A process in one slot shares six bytes, which move to the word of another one, while a third process reserves.
fn sharing(from: usize, to: usize, reserve: &'static [Act]) -> World {
    let moves: &'static [Act] = match to {
        0 => &[Act::Copy(0, 6), Act::Leave(6), Act::Arrive(0)],
        _ => &[Act::Copy(3, 6), Act::Leave(6), Act::Arrive(3)],
    };
    let start = World::new(Weather::Fair, 10, &[(from, moves), (1, reserve)]);
    let mut start = start.with(LIVE, 1 << from | 1 << to).with(from, 6);
    start.processes[0].held.push((from, 6));
    start
}

#[test]
fn bytes_that_become_shared_are_counted_at_every_moment() {
    walk(sharing(0, 3, &[Join, Reserve(5)]), |world| {
        words_are_what_is_held(world);
        assert_eq!(world.held(), 6);
    });
}

#[test]
fn bytes_that_become_shared_refuse_no_reservation() {
    walk(sharing(0, 3, &[Join, Reserve(4)]), |world| {
        assert_eq!(world.held(), 10)
    });
}

#[test]
#[should_panic(expected = "over the limit")]
fn counted_before_the_slots_bytes_that_become_shared_would_be_missed() {
    walk(sharing(3, 0, &[Join, Reserve(5)]), |_| {});
}

#[test]
#[should_panic(expected = "over the limit")]
fn the_walk_notices_slots_that_are_missing_from_the_count() {
    walk(
        World::new(Weather::Fair, 10, &[(0, &[Reserve(6)]), (1, &[Reserve(6)])]),
        |_| {},
    );
}

/// Every world of the tests above that a weaker order could break.
fn worlds() -> Vec<World> {
    let fair = |scripts: &[(usize, &'static [Act])]| World::new(Weather::Fair, 10, scripts);
    vec![
        fair(&[(0, &[Join, Reserve(6)]), (1, &[Join, Reserve(5)])]),
        fair(&[(0, &[Join, Reserve(6)]), (1, &[Join, Reserve(4)])]),
        fair(&[
            (0, &[Join, Reserve(4), Reserve(2)]),
            (1, &[Join, Reserve(4)]),
            (3, &[Limit(5)]),
        ]),
        bytes_on_the_move(true),
        sharing(0, 3, &[Join, Reserve(5)]),
        sharing(0, 3, &[Join, Reserve(4)]),
    ]
}

/// Worlds walked, or what broke first.
fn walked(change: impl Fn(&mut Orders)) -> Result<usize, String> {
    let mut sum = 0;
    for mut world in worlds() {
        change(&mut world.shared.orders);
        let walked = std::panic::catch_unwind(|| walk(world, nothing_fitting_was_refused));
        sum += walked.map_err(|cause| {
            let text = cause.downcast_ref::<&str>().map(|text| (*text).to_owned());
            text.or_else(|| cause.downcast_ref::<String>().cloned())
                .unwrap_or_default()
        })?;
    }
    Ok(sum)
}

#[test]
fn a_reservation_with_any_of_its_orders_weakened_passes_the_limit() {
    assert!(walked(|_| ()).expect("production's orders hold") > 10_000);
    let broken = |change: &dyn Fn(&mut Orders)| {
        let broken = walked(change).expect_err("some world breaks");
        assert_eq!(broken, "over the limit that was there before");
    };
    for order in [Relaxed, Acquire, Ordering::Release, AcqRel] {
        broken(&|orders| orders.change = order);
        broken(&|orders| orders.join = order);
    }
    for order in [Relaxed, Acquire] {
        broken(&|orders| orders.load_word = order);
        broken(&|orders| orders.load_live = order);
        broken(&|orders| orders.load_limit = order);
    }
}
