//! Tests of the compute scheduler, with threads in slice of processes and waits in slice of kernels.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::Scope;
use std::time::Instant;

use divvy_core::{Bytes, GpuUuid};
use divvy_ledger::{Field, GpuSpec, ProcessSlot, SliceSpec};
use divvy_testkit::PATIENCE;
use tempfile::TempDir;

use super::*;

const KERNEL: Duration = Duration::from_micros(500);

/// A slice of a quarter of GPU 0, and its job's number.
struct TestSlice {
    job: JobId,
    dir: TempDir,
    control: Control,
}

impl TestSlice {
    fn new(number: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let spec = SliceSpec {
            id: number.to_string(),
            generation: 1,
            gpus: vec![GpuSpec {
                uuid: [1; 16],
                limit: 1 << 30,
                weight: 250,
                ..GpuSpec::default()
            }],
            ..SliceSpec::default()
        };
        let control = Control::create(dir.path(), &spec).unwrap();
        let job = JobId(number);
        Self { job, dir, control }
    }

    fn kept(number: u64, scheduler: &ComputeScheduler) -> Self {
        let slice = Self::new(number);
        slice.keep(scheduler, "fair");
        slice
    }

    fn keep(&self, scheduler: &ComputeScheduler, compute: &str) {
        self.keep_of(scheduler, compute, 250);
    }

    fn keep_of(&self, scheduler: &ComputeScheduler, compute: &str, thousandths: u16) {
        let grant = core::Grant {
            gpu: GpuUuid::from_bytes([1; 16]),
            index: 0,
            memory: Bytes::gib(1),
            share: Share::from_thousandths(thousandths).unwrap(),
            label: "gpu0.25a".into(),
            mig: None,
        };
        let compute = compute.parse().unwrap();
        scheduler.add_slice(self.job, self.dir.path(), &[grant], compute);
    }

    fn slot(&self) -> ProcessSlot {
        Slice::open(self.dir.path()).unwrap().join().unwrap()
    }
}

/// Runs kernels one after the other until told to stop; always waits for its launches. It reports its whole turn as
/// used, as a program does that has launched ahead. If it reported less, the compute scheduler would learn in a tenth
/// of a second that it leaves room for another.
fn run_kernels(slot: &ProcessSlot, is_over: &AtomicBool, mut kernel: impl FnMut()) {
    let mut since = Instant::now();
    while !is_over.load(SeqCst) {
        if !slot.may_launch(0, boot_time_ns()) {
            slot.wait_for_turn(0, || true);
            since = Instant::now();
        }
        slot.submit_work(0, nanos(KERNEL), boot_time_ns());
        let watching = slot.watch_work();
        kernel();
        slot.add_device_time(0, nanos(since.elapsed()));
        since = Instant::now();
        slot.work_done(0);
        drop(watching);
    }
}

/// A GPU that only waits out the time of its kernels, and the processes that have to stop.
#[derive(Default)]
struct Stage {
    is_over: AtomicBool,
    running: AtomicUsize,
}

/// Stops the processes of a stage when dropped: also where the test fails, which waits for their end.
struct Stops<'a>(&'a Stage);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
    }
}

/// A kernel was run for this slice, beside another or not.
type Ran = (usize, bool);

/// Starts one process of each slice; every kernel is told to the receiver.
fn flood<'s>(
    scope: &'s Scope<'s, '_>,
    slots: &'s [ProcessSlot],
    stage: &'s Stage,
) -> Receiver<Ran> {
    let (kernels, told) = channel();
    for (number, slot) in slots.iter().enumerate() {
        let kernels = kernels.clone();
        let kernel = move || {
            let others = stage.running.fetch_add(1, SeqCst);
            std::thread::sleep(KERNEL);
            stage.running.fetch_sub(1, SeqCst);
            // The last receiver may have gone.
            _ = kernels.send((number, others > 0));
        };
        scope.spawn(move || run_kernels(slot, &stage.is_over, kernel));
    }
    told
}

/// Kernels until another slice than before was told of so often, of those that count.
fn kernels_until(
    told: &Receiver<Ran>,
    hand_overs: usize,
    counts: impl Fn(&Ran) -> bool,
) -> Vec<Ran> {
    let (mut ran, mut changes, mut last) = (Vec::new(), 0, None);
    let start = Instant::now();
    while changes < hand_overs {
        let one = told.recv_timeout(PATIENCE).expect("a kernel is run");
        assert!(
            start.elapsed() < PATIENCE,
            "waited in vain for {hand_overs} turns of different slices: {changes}"
        );
        if counts(&one) {
            changes += usize::from(last.is_some_and(|last| last != one.0));
            last = Some(one.0);
        }
        ran.push(one);
    }
    ran
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn slices_that_both_want_the_gpu_take_turns() {
    let scheduler = ComputeScheduler::start(Box::new(|_, _| {})).unwrap();
    let slices = [1, 2].map(|number| TestSlice::kept(number, &scheduler));
    let (slots, stage) = (slices.each_ref().map(TestSlice::slot), Stage::default());
    std::thread::scope(|scope| {
        // Where both run at will for once, they do so in turn as well.
        let alone = |(_, beside): &Ran| !beside;
        let _stops = Stops(&stage);
        let ran = kernels_until(&flood(scope, &slots, &stage), 10, alone);
        // At will, nearly all would run beside another.
        let beside = ran.iter().filter(|(_, beside)| *beside).count();
        assert!(beside * 2 <= ran.len(), "{beside} of {}", ran.len());
    });
    for slice in &slices {
        let got = scheduler.usage(slice.job).unwrap();
        assert_eq!(got.share, 250);
        assert!(got.throttled > Duration::ZERO, "it has waited: {got:?}");
    }
}

#[test]
fn one_alone_is_not_held_up() {
    let scheduler = ComputeScheduler::start(Box::new(|_, _| {})).unwrap();
    let slice = TestSlice::kept(1, &scheduler);
    let slot = slice.slot();
    until("closed until it wants something", || {
        slice.control.granted() == Grant::Closed
    });
    slot.wait_for_turn(0, || true);
    assert!(slot.is_ungated());
}

#[test]
fn one_that_never_lets_go_and_asks_without_end_leaves_the_others_their_time() {
    let scheduler = ComputeScheduler::start(Box::new(|_, _| {})).unwrap();
    let [hostile, honest] = [1, 2].map(|number| TestSlice::kept(number, &scheduler));
    let [liar, slot] = [&hostile, &honest].map(TestSlice::slot);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _watching = liar.watch_work();
            while !is_over.load(SeqCst) {
                liar.submit_work(0, u64::MAX, boot_time_ns());
                liar.wait_for_turn(0, || false);
            }
        });
        until("it has the GPU", || liar.has_work(0));
        let (start, mut kernels) = (Instant::now(), 0);
        // About two turns of each, with what is charged for the work that never ends.
        run_kernels(&slot, &is_over, || {
            std::thread::sleep(KERNEL);
            kernels += 1;
            let enough = kernels >= 1_500 || start.elapsed() > PATIENCE;
            is_over.store(enough, SeqCst);
        });
        let (passed, waited) = (
            start.elapsed(),
            scheduler.usage(honest.job).unwrap().throttled,
        );
        assert!(waited > Duration::ZERO, "the other had its turns too");
        assert!(
            waited * 4 <= passed * 3,
            "{waited:?} of {passed:?} at the gate"
        );
    });
}

#[test]
fn a_slice_whose_file_was_cut_takes_no_more_turns_and_the_others_do() {
    let scheduler = ComputeScheduler::start(Box::new(|_, _| {})).unwrap();
    let slices = [1, 2].map(|number| TestSlice::kept(number, &scheduler));
    let cut = TestSlice::kept(3, &scheduler);
    until("it is kept", || scheduler.usage(cut.job).is_some());
    let file = std::fs::File::options()
        .write(true)
        .open(cut.dir.path().join("slots"))
        .unwrap();
    file.set_len(100).unwrap();
    let (slots, stage) = (slices.each_ref().map(TestSlice::slot), Stage::default());
    std::thread::scope(|scope| {
        let _stops = Stops(&stage);
        kernels_until(&flood(scope, &slots, &stage), 6, |_| true);
    });
    assert_eq!(scheduler.usage(cut.job), None);
    assert_eq!(cut.control.granted(), Grant::Open);
    // Nor does it again, cut as it is.
    cut.keep(&scheduler, "strict");
    slices[0].keep(&scheduler, "fair=0.5");
    until("the order after it is carried out", || {
        scheduler.usage(slices[0].job).unwrap().share == 500
    });
    assert_eq!(scheduler.usage(cut.job), None);
}

#[test]
fn no_process_waits_for_an_ended_scheduler() {
    let scheduler = ComputeScheduler::start(Box::new(|_, _| {})).unwrap();
    let slices = [1, 2].map(|number| TestSlice::kept(number, &scheduler));
    let slots = slices.each_ref().map(TestSlice::slot);
    until("both are kept", || {
        slices
            .iter()
            .all(|slice| scheduler.usage(slice.job).is_some())
    });
    // One has the GPU for as long as it says that it is at work.
    slots[0].wait_for_turn(0, || true);
    slots[0].submit_work(0, u64::MAX, boot_time_ns());
    let _watching = slots[0].watch_work();
    std::thread::scope(|scope| {
        let (through, told) = channel();
        let waits = &slots[1];
        scope.spawn(move || {
            waits.wait_for_turn(0, || true);
            through.send(()).unwrap();
        });
        drop(scheduler);
        assert_eq!(told.recv_timeout(PATIENCE), Ok::<_, RecvTimeoutError>(()));
    });
    for slice in &slices {
        assert_eq!(slice.control.granted(), Grant::Open);
    }
}

#[test]
fn terms_can_change_and_end() {
    let scheduler = ComputeScheduler::start(Box::new(|_, _| {})).unwrap();
    let slices = [1, 2].map(|number| TestSlice::kept(number, &scheduler));
    let asked = |slice: &TestSlice| scheduler.usage(slice.job).map(|got| got.share);
    until("both are kept", || {
        slices.iter().all(|slice| asked(slice) == Some(250))
    });
    slices[0].keep(&scheduler, "fair=0.8");
    until("its share is another", || asked(&slices[0]) == Some(800));
    slices[0].keep(&scheduler, "none");
    until("it takes no part", || {
        slices[0].control.granted() == Grant::Open && asked(&slices[0]) == Some(250)
    });
    slices[0].keep(&scheduler, "strict=0.5");
    until("it takes part again", || {
        slices[0].control.granted() == Grant::Closed && asked(&slices[0]) == Some(500)
    });
    // No other slice has the GPU.
    slices[0].keep_of(&scheduler, "fair", 1000);
    until("it has its GPU to itself", || asked(&slices[0]).is_none());
    assert_eq!(slices[0].control.granted(), Grant::Open);
    scheduler.remove_slice(slices[1].job);
    until("it takes no turns", || asked(&slices[1]).is_none());
    assert_eq!(slices[1].control.granted(), Grant::Open);
}

#[test]
fn a_gate_that_its_job_opens_is_closed_again() {
    let scheduler = ComputeScheduler::start(Box::new(|_, _| {})).unwrap();
    let slice = TestSlice::new(1);
    slice.keep(&scheduler, "strict=0.5");
    until("its gate is closed", || {
        scheduler.usage(slice.job).is_some() && slice.control.granted() == Grant::Closed
    });
    assert_eq!(scheduler.usage(slice.job).unwrap().forged, None);
    slice.control.grant(Grant::Open, boot_time_ns());
    until("it is closed again", || {
        slice.control.granted() == Grant::Closed
    });
    let field = || Some(scheduler.usage(slice.job)?.forged?.field);
    until("the scheduler reports the forged gate", || {
        field() == Some(Field::Gate)
    });
    // A job that writes an old time opens its gate as well.
    until("the scheduler reports the forged time", || {
        slice.control.refresh_grant(0);
        field() == Some(Field::Keeper)
    });
}
