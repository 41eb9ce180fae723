//! The launch gate in a job's process: it decides whether a launch may start, and waits on a futex until it may.

use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

use super::park::UNNAMED_CALL;
use crate::control::{Control, Field, Forgery};
use crate::futex;
use crate::layout::{ControlFile, GPUS, SlotLines, gate_word};
use crate::process::boot_time_ns;
use crate::slot::ProcessSlot;

/// The gate ignores the grants of an agent that has renewed none for this long, in nanoseconds. Four of the agent's
/// renewals: one late renewal opens no gate, and a dead agent holds up no program for longer (015).
pub const SCHEDULER_TIMEOUT_NS: u64 = 1_000_000_000;
/// How often a process at the gate asks, in case it was overlooked, and to show that it goes on. A report that was
/// missed costs one turn of another slice. Half would double what each waiting process writes, for a rare case.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(20);
/// A process that looks so often and was away for longer, in nanoseconds, was stopped meanwhile, or its machine slept.
const AWAY_NS: u64 = 1_000_000_000;
/// How often it looks whether its work has left the GPU. A twentieth of the shortest turn: the GPU idles no longer than
/// that at its end. Shorter would take processor time from the program.
const LOOK: Duration = Duration::from_micros(200);
/// The longest wait of a launch at the gate, in nanoseconds, even if the grant says otherwise: an error of Divvy must
/// not hang a program. Longer than the turns of other slices together; shorter than the timeouts of collective calls
/// (PyTorch with NCCL: 10 minutes).
pub const MAX_GATE_WAIT_NS: u64 = 60_000_000_000;

/// The word of the gate of a parked job ([`ProcessSlot::gate`]).
pub const PARKED_WORD: u64 = gate_word::PARKED;

/// The grant of a slice: the launches that its processes may start. Times are of [`boot_time_ns`], below 2^62.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Anything, until told otherwise. What a slice begins with.
    Open,
    /// Anything, until told otherwise, with little on the GPU ahead.
    Bounded,
    /// Anything, until then.
    Until(u64),
    /// Until then, only on a GPU where the process has nothing, and only processes that stood at its gate with nothing there
    /// before this was granted: work that is still there may wait for theirs.
    Peers(u64),
    /// Nothing.
    Closed,
    /// Nothing, and every call that needs the GPU waits: the job's memory is not there.
    Parked,
}

impl Grant {
    fn to_word(self) -> u64 {
        match self {
            Self::Open => gate_word::OPEN,
            Self::Bounded => gate_word::BOUNDED,
            Self::Until(end) => gate_word::until(end),
            Self::Peers(end) => gate_word::peers(end),
            Self::Closed => gate_word::CLOSED,
            Self::Parked => gate_word::PARKED,
        }
    }

    pub(crate) fn from_word(word: u64) -> Self {
        match gate_word::parts(word) {
            (0, _) => Self::Open,
            _ if word == gate_word::BOUNDED => Self::Bounded,
            _ if word == gate_word::PARKED => Self::Parked,
            (1, end) => Self::Until(end),
            (2, end) => Self::Peers(end),
            // Also what a later version has in mind with a word of this kind.
            _ => Self::Closed,
        }
    }
}

/// The gate's words as a part of the agent last wrote them, and the forgery that it found since.
#[derive(Default)]
pub(crate) struct WrittenGate {
    /// The grant, and the time of its last refresh.
    written: Option<(u64, u64)>,
    /// The work to keep ahead.
    ahead: Option<u64>,
    forged: Option<Forgery>,
}

impl WrittenGate {
    /// Compares the words with what was written, before they are written again.
    fn check(&mut self, file: &ControlFile) {
        let Some((grant, keeper)) = self.written else {
            return;
        };
        let forgery = |field, found, expected| Forgery {
            field,
            gpu: None,
            found,
            expected,
        };
        let found = file.keeper.load(SeqCst);
        // Another part of the agent may have written an earlier time, but none at which the grant has ended.
        if found.saturating_add(SCHEDULER_TIMEOUT_NS / 2) < keeper {
            self.forged = Some(forgery(Field::Keeper, found, keeper));
        }
        let found = file.grant.load(SeqCst);
        // Another part of the agent leaves an open gate ajar.
        if found != grant && grant != Grant::Open.to_word() {
            self.forged = Some(forgery(Field::Gate, found, grant));
        }
        let found = file.ahead.load(SeqCst);
        if let Some(ahead) = self.ahead.filter(|ahead| *ahead != found) {
            self.forged = Some(forgery(Field::Ahead, found, ahead));
            file.ahead.store(ahead, SeqCst);
        }
    }
}

impl Control {
    /// Changes what the slice's processes may launch, and wakes those that wait. `now`: [`boot_time_ns`].
    pub fn grant(&self, grant: Grant, now: u64) {
        let Some(file) = self.whole() else { return };
        self.with_written_gate(|gate| {
            gate.check(file);
            gate.written = Some((grant.to_word(), now));
        });
        file.keeper.store(now, SeqCst);
        if file.grant.swap(grant.to_word(), SeqCst) != grant.to_word() {
            file.told.fetch_add(1, SeqCst);
            futex::wake(&file.told);
        }
    }

    /// Changes how much work the slice's processes keep on a GPU ahead while the gate is not open, in nanoseconds; 0 for
    /// the limiter's own figure.
    pub fn set_ahead(&self, nanos: u64) {
        let Some(file) = self.whole() else { return };
        self.with_written_gate(|gate| gate.ahead = Some(nanos));
        file.ahead.store(nanos, SeqCst);
    }

    /// Says that the grant still counts. Due well within [`SCHEDULER_TIMEOUT_NS`] while it is not open.
    pub fn refresh_grant(&self, now: u64) {
        if let Some(file) = self.whole() {
            self.with_written_gate(|gate| {
                gate.check(file);
                gate.written = gate.written.map(|(grant, _)| (grant, now));
            });
            file.keeper.store(now, SeqCst);
        }
    }

    /// The last forgery that this part of the agent found in place of its grant.
    pub fn forged_gate(&self) -> Option<Forgery> {
        self.with_written_gate(|gate| gate.forged)
    }

    fn with_written_gate<T>(&self, with: impl FnOnce(&mut WrittenGate) -> T) -> T {
        with(&mut self.gate.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The grant as it stands.
    pub fn granted(&self) -> Grant {
        self.whole().map_or(Grant::Open, |file| {
            Grant::from_word(file.grant.load(SeqCst))
        })
    }
}

/// The time that a thread has waited at the gate, without the periods in which it could not observe the grant.
struct WaitTimer {
    nanos: u64,
    then: u64,
}

impl WaitTimer {
    fn since(now: u64) -> Self {
        Self {
            nanos: 0,
            then: now,
        }
    }

    /// In nanoseconds, up to now.
    fn until(&mut self, now: u64) -> u64 {
        let passed = now.saturating_sub(self.then);
        self.nanos += passed.min(AWAY_NS);
        self.then = now;
        self.nanos
    }
}

impl ProcessSlot {
    /// Whether everything may be launched and nothing need be said about it: one load.
    #[inline]
    pub fn is_ungated(&self) -> bool {
        self.control.grant.load(Relaxed) == gate_word::OPEN
    }

    /// The word that [`ProcessSlot::is_ungated`] looks at, 0 while it is. It stays mapped for as long as the slot lives.
    pub fn gate(&self) -> &AtomicU64 {
        &self.control.grant
    }

    /// Whether everything may be launched, and little be kept ahead.
    #[inline]
    pub fn is_bounded(&self) -> bool {
        self.control.grant.load(Relaxed) == gate_word::BOUNDED
    }

    /// How much work to keep on a GPU ahead, in nanoseconds, of at most so much; a daemon that is gone bounds nothing.
    /// `now`: [`boot_time_ns`].
    pub fn ahead(&self, most: u64, now: u64) -> u64 {
        match self.control.ahead.load(Relaxed) {
            0 => most,
            _ if self.is_scheduler_gone(now) => most,
            nanos => nanos.min(most),
        }
    }

    /// Whether a launch on a GPU of the slice may go on. `now`: [`boot_time_ns`].
    pub fn may_launch(&self, gpu: usize, now: u64) -> bool {
        let word = self.control.grant.load(Acquire);
        let granted = match Grant::from_word(word) {
            Grant::Open | Grant::Bounded => true,
            Grant::Until(end) => now < end,
            Grant::Peers(end) => now < end && !self.has_work(gpu) && self.is_let_in(gpu, word),
            Grant::Closed | Grant::Parked => false,
        };
        granted || self.is_scheduler_gone(now) || self.is_inherited()
    }

    /// Waits until a launch on a GPU of the slice may go on; returns for how many nanoseconds. `has_drained` is asked now and
    /// then, until it says that none of this process's work is left on the GPU.
    pub fn wait_for_turn(&self, gpu: usize, has_drained: impl FnMut() -> bool) -> u64 {
        self.wait_at_most(MAX_GATE_WAIT_NS, gpu, has_drained)
    }

    fn wait_at_most(&self, longest: u64, gpu: usize, mut has_drained: impl FnMut() -> bool) -> u64 {
        let mut time = WaitTimer::since(boot_time_ns());
        let lines = self.own();
        // The grant when this process was first seen here with nothing on the GPU; read before the demand is reported.
        let mut idle_at = self.idle_grant(gpu);
        lines.waiting.fetch_add(1, SeqCst);
        self.request_turn();
        let (mut drained, mut asked_at) = (false, time.then);
        loop {
            let told = self.control.told.load(SeqCst);
            let now = boot_time_ns();
            let stood = time.until(now);
            if let Some(grant) = self.idle_grant(gpu)
                && *idle_at.get_or_insert(grant) != grant
            {
                self.let_in(gpu, grant);
            }
            if self.may_launch(gpu, now) {
                break;
            }
            if self.is_parked() && self.wait_for_wake(UNNAMED_CALL) {
                time = WaitTimer::since(boot_time_ns());
                continue;
            }
            if stood > longest {
                self.alarm();
                break;
            }
            if !drained && has_drained() {
                drained = true;
                self.work_done(gpu);
                self.request_turn();
                asked_at = now;
            }
            let nap = if drained { ASK_AGAIN } else { LOOK };
            futex::wait(&self.control.told, told, nap);
            // The daemon takes a process that waits here without reporting for stopped.
            let is_due = boot_time_ns().saturating_sub(asked_at) >= ASK_AGAIN.as_nanos() as u64;
            if is_due && self.control.told.load(SeqCst) == told {
                self.request_turn();
                asked_at = boot_time_ns();
            }
        }
        lines.waiting.fetch_sub(1, SeqCst);
        let waited = time.until(boot_time_ns());
        self.slots.throttled.fetch_add(waited, Relaxed);
        waited
    }

    /// Whether this grant came while this process stood at the gate with nothing on the GPU.
    fn is_let_in(&self, gpu: usize, grant: u64) -> bool {
        let let_in = self.let_in.get(gpu);
        let_in.is_some_and(|let_in| let_in.load(Relaxed) == grant)
    }

    /// The grant as it stands; none while this process has something on the GPU.
    fn idle_grant(&self, gpu: usize) -> Option<u64> {
        (!self.has_work(gpu)).then(|| self.control.grant.load(Acquire))
    }

    fn let_in(&self, gpu: usize, grant: u64) {
        if let Some(let_in) = self.let_in.get(gpu) {
            let_in.store(grant, Relaxed);
        }
    }

    /// Says that work of about `cost` nanoseconds goes to a GPU now. Returns when the slice's work on it should be done.
    pub fn submit_work(&self, gpu: usize, cost: u64, now: u64) -> u64 {
        let Some(shared) = self.slots.gpus.get(gpu) else {
            return now;
        };
        let chained = |end: u64| {
            end.max(now)
                .saturating_add(cost)
                .min(now + MAX_GATE_WAIT_NS)
        };
        let before = shared
            .work_end
            .fetch_update(SeqCst, SeqCst, |end| Some(chained(end)))
            .unwrap_or_default();
        let end = chained(before);
        self.own().work_end[gpu].store(end, SeqCst);
        end
    }

    /// Says that none of this process's work is left on a GPU.
    pub fn work_done(&self, gpu: usize) {
        if let Some(end) = self.own().work_end.get(gpu) {
            end.store(0, SeqCst);
        }
    }

    /// Whether this process has put work on a GPU that is not known to be done.
    pub fn has_work(&self, gpu: usize) -> bool {
        let end = self.own().work_end.get(gpu);
        end.is_some_and(|end| end.load(SeqCst) != 0)
    }

    /// Says that a thread of this process waits for its work until the guard is dropped: what is not done then is not forgotten.
    pub fn watch_work(&self) -> WorkWaitGuard<'_> {
        let lines = self.own();
        lines.watching.fetch_add(1, SeqCst);
        WorkWaitGuard(lines)
    }

    /// Adds measured device time, in nanoseconds, to the slot's counter.
    pub fn add_device_time(&self, gpu: usize, nanos: u64) {
        if let Some(shared) = self.slots.gpus.get(gpu) {
            shared.device_time.fetch_add(nanos, Relaxed);
        }
    }

    /// Tells the keeper that this process wants something.
    pub(super) fn request_turn(&self) {
        self.own().asked.fetch_add(1, SeqCst);
        self.slots.asked.fetch_add(1, SeqCst);
        futex::wake(&self.slots.asked);
    }

    pub(super) fn is_scheduler_gone(&self, now: u64) -> bool {
        now.saturating_sub(self.control.keeper.load(Relaxed)) > SCHEDULER_TIMEOUT_NS
    }

    fn own(&self) -> &SlotLines {
        &self.slots.slots[self.index]
    }
}

/// A thread waits for this process's work.
pub struct WorkWaitGuard<'a>(&'a SlotLines);

impl Drop for WorkWaitGuard<'_> {
    fn drop(&mut self) {
        self.0.watching.fetch_sub(1, SeqCst);
    }
}

/// Clears the work reports of a slot's last owner for the next one.
pub(crate) fn forget(lines: &SlotLines) {
    lines.waiting.store(0, SeqCst);
    lines.watching.store(0, SeqCst);
    for gpu in 0..GPUS {
        lines.work_end[gpu].store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{DemandReader, GpuSpec, Slice, SliceSpec};

    #[test]
    fn a_process_stopped_at_the_gate_does_not_count_the_stop_as_waiting() {
        let mut time = WaitTimer::since(5);
        assert_eq!(time.until(7), 2);
        let hour = 3_600 * AWAY_NS;
        assert_eq!(time.until(7 + hour), 2 + AWAY_NS);
        assert_eq!(time.until(8 + hour), 3 + AWAY_NS);
    }

    #[test]
    fn a_grant_survives_its_word_and_none_at_all_is_open() {
        for grant in [
            Grant::Open,
            Grant::Bounded,
            Grant::Until(7),
            Grant::Peers(gate_word::TIME),
            Grant::Closed,
            Grant::Parked,
        ] {
            assert_eq!(Grant::from_word(grant.to_word()), grant);
        }
        assert_eq!(Grant::from_word(0), Grant::Open);
        assert_eq!(
            Grant::Until(u64::MAX).to_word(),
            Grant::Until(gate_word::TIME - 1).to_word()
        );
    }

    #[test]
    fn a_closed_gate_of_a_later_version_is_closed() {
        assert_eq!(Grant::from_word(3 << 62 | 2), Grant::Closed);
    }

    #[test]
    fn processes_keep_the_work_ahead_that_the_daemon_says_while_it_is_there_and_the_word_is_guarded()
     {
        const MOST: u64 = 10_000_000;
        let (_folder, control, slice) = slice();
        let slot = slice.join().unwrap();
        let now = boot_time_ns();
        // As under a daemon of an earlier version.
        assert_eq!(slot.ahead(MOST, now), MOST);
        control.grant(Grant::Bounded, now);
        control.set_ahead(MOST / 4);
        assert_eq!(slot.ahead(MOST, now), MOST / 4);
        assert_eq!(slot.ahead(MOST, now + 2 * SCHEDULER_TIMEOUT_NS), MOST);
        control.whole().unwrap().ahead.store(MOST * 9, SeqCst);
        assert_eq!(
            slot.ahead(MOST, now),
            MOST,
            "it bounds what is written there"
        );
        control.refresh_grant(now);
        assert_eq!(slot.ahead(MOST, now), MOST / 4, "it is put right");
        assert_eq!(control.forged_gate().unwrap().field, Field::Ahead);
        control.set_ahead(0);
        assert_eq!(slot.ahead(MOST, now), MOST);
    }

    /// As in a container, where an outside process cannot tell the owner and whether it is stopped.
    #[test]
    fn a_waiter_that_does_not_ask_counts_as_stopped_until_it_asks() {
        const LOOK: u64 = ASK_AGAIN.as_nanos() as u64;
        let (_folder, _control, slice) = slice();
        let (slot, other) = (slice.join().unwrap(), slice.join().unwrap());
        let mut lookout = DemandReader::new(&slice).unwrap();
        let start = boot_time_ns();
        let mut looks = (1_u64..).map(|look| start + gate_word::TIME / 2 + look * LOOK);
        slot.own().pid_namespace.fetch_add(1, SeqCst);
        slot.submit_work(0, LOOK, start);
        slot.own().waiting.store(1, SeqCst);
        let mut look = |what: &dyn Fn()| {
            what();
            let demand = lookout.demand(looks.next().unwrap()).unwrap();
            (demand.waiting, demand.busy)
        };
        for _ in 0..50 {
            let seen = look(&|| slot.request_turn());
            assert_eq!(seen, (true, true), "it asks, and is believed");
        }
        // A report of another process of the slice does not count as its own.
        let seen: Vec<_> = (0..50).map(|_| look(&|| other.request_turn())).collect();
        let silent_from = seen.iter().position(|seen| *seen == (false, false));
        assert_eq!(silent_from, Some(9), "{seen:?}");
        assert!(seen[9..].iter().all(|seen| *seen == (false, false)));
        assert_eq!(
            look(&|| slot.request_turn()),
            (true, true),
            "and it is back"
        );
    }

    #[test]
    fn a_reader_that_slept_takes_no_waiter_for_silent() {
        let (_folder, _control, slice) = slice();
        let slot = slice.join().unwrap();
        let mut lookout = DemandReader::new(&slice).unwrap();
        slot.submit_work(0, 1, boot_time_ns());
        slot.own().waiting.store(1, SeqCst);
        for hour in 1..4 {
            let now = boot_time_ns() + hour * 3_600 * AWAY_NS;
            let demand = lookout.demand(now).unwrap();
            assert!(demand.waiting && demand.busy);
        }
    }

    fn slice() -> (TempDir, Control, Slice) {
        let folder = tempfile::tempdir().unwrap();
        let spec = SliceSpec {
            id: "job-1".into(),
            generation: 1,
            gpus: vec![GpuSpec {
                uuid: [1; 16],
                limit: 1 << 30,
                weight: 1000,
                ..GpuSpec::default()
            }],
            ..SliceSpec::default()
        };
        let control = Control::create(folder.path(), &spec).unwrap();
        let slice = Slice::open(folder.path()).unwrap();
        (folder, control, slice)
    }

    #[test]
    fn a_launch_that_has_waited_too_long_goes_on_and_is_counted() {
        const LONGEST: u64 = 5_000_000;
        let (_folder, control, slice) = slice();
        let slot = slice.join().unwrap();
        let now = boot_time_ns();
        // A keeper that stands by it for good.
        control.grant(Grant::Closed, now + MAX_GATE_WAIT_NS * 60);
        assert!(slot.wait_at_most(LONGEST, 0, || true) > LONGEST);
        let seen = slice.read().unwrap();
        assert_eq!(seen.alarms(), 1);
        assert!(!slot.may_launch(0, now), "the gate is still closed");
    }
}
