use super::together::{ActiveEngine, advance};
use super::*;

const MS: u64 = 1_000_000;
const US: u64 = 1_000;

fn zeroed<T>() -> Box<T> {
    // SAFETY: only used for Engine and Queue; their documented empty state is zeroed memory.
    unsafe { Box::new_zeroed().assume_init() }
}

/// A GPU under virtual time with one queue per process.
struct Bench {
    engine: Box<Engine>,
    queues: Vec<Box<Queue>>,
}

impl Bench {
    fn new(processes: usize) -> Self {
        Bench {
            engine: zeroed(),
            queues: (0..processes).map(|_| zeroed()).collect(),
        }
    }

    fn lanes(&self) -> impl Iterator<Item = Lane<'_>> {
        self.queues
            .iter()
            .enumerate()
            .map(|(id, queue)| Lane { id, queue })
    }

    fn part(&self) -> ActiveEngine<'_> {
        ActiveEngine::new(&self.engine, self.lanes())
    }

    fn advance(&self, to: u64) {
        advance(&[self.part()], to);
    }

    fn push(&self, process: usize, work: Work) -> u64 {
        self.queues[process]
            .push(self.engine.now(), work)
            .expect("the queue has room")
    }

    fn fill(&self, process: usize, ns: u64) {
        while self.queues[process]
            .push(self.engine.now(), Work::Busy(ns))
            .is_some()
        {}
    }

    fn busy(&self, process: usize) -> u64 {
        self.queues[process].busy.load(Relaxed)
    }

    fn is_full(&self, process: usize) -> bool {
        let queue = &self.queues[process];
        queue.newest() - queue.done.load(SeqCst) >= DEPTH
    }

    fn share(&self, process: usize) -> f64 {
        self.busy(process) as f64 / self.engine.now() as f64 * 100.0
    }
}

#[test]
fn work_takes_its_time_and_ends_in_issue_order() {
    let bench = Bench::new(1);
    let kernel = bench.push(0, Work::Busy(5 * MS));
    let copy = bench.push(0, Work::Delay(MS));
    bench.advance(5 * MS - 1);
    assert!(!bench.queues[0].is_done(kernel));
    bench.advance(10 * MS);
    assert_eq!(bench.queues[0].ended_at(kernel), Some(5 * MS));
    assert_eq!(bench.queues[0].ended_at(copy), Some(6 * MS));
    assert_eq!((bench.busy(0), bench.engine.busy()), (5 * MS, 5 * MS));
}

#[test]
fn two_saturating_processes_share_evenly_whatever_their_kernels_are() {
    let bench = Bench::new(2);
    for ms in 0..1000 {
        bench.fill(0, 10 * MS);
        bench.fill(1, 10 * US);
        bench.advance(ms * MS);
    }
    assert!((bench.share(0) - 50.0).abs() < 0.3, "{}", bench.share(0));
    assert!((bench.share(1) - 50.0).abs() < 0.3, "{}", bench.share(1));
}

/// The table of the design: two saturating processes with kernels of 1 ms and 0.2 ms, and one that runs 5 ms, waits for
/// it and pauses 45 ms.
#[test]
fn round_robin_gives_the_shares_of_the_design_table() {
    let bench = Bench::new(3);
    let (mut waiting_for, mut resume_at) = (None, 0);
    while bench.engine.now() < 60_000 * MS {
        bench.fill(0, MS);
        bench.fill(1, 200 * US);
        if let Some(end) = waiting_for.and_then(|ticket| bench.queues[2].ended_at(ticket)) {
            (waiting_for, resume_at) = (None, end + 45 * MS);
        }
        if waiting_for.is_none() && bench.engine.now() >= resume_at {
            waiting_for = Some(bench.push(2, Work::Busy(5 * MS)));
        }
        bench.advance(bench.engine.now() + 100 * US);
    }
    for (process, expected) in [(0, 45.3), (1, 45.3), (2, 8.2)] {
        let share = bench.share(process);
        assert!(
            (share - expected).abs() < 1.0,
            "process {process}: {share:.1} %, expected {expected} %"
        );
    }
}

#[test]
fn a_lone_process_gets_all_and_an_idle_one_costs_nothing() {
    let bench = Bench::new(2);
    bench.push(0, Work::Busy(100 * MS));
    bench.advance(200 * MS);
    assert_eq!(bench.busy(0), 100 * MS);
    assert_eq!(bench.engine.busy(), 100 * MS);
}

#[test]
fn delays_run_beside_other_processes_work() {
    let bench = Bench::new(2);
    bench.push(0, Work::Busy(10 * MS));
    let copy = bench.push(1, Work::Delay(4 * MS));
    bench.advance(10 * MS);
    assert_eq!(bench.queues[1].ended_at(copy), Some(4 * MS));
    assert_eq!(bench.busy(0), 10 * MS);
}

#[test]
fn nothing_passes_a_gate_before_it_is_opened() {
    let bench = Bench::new(1);
    let gate = bench.push(0, Work::Gate);
    let kernel = bench.push(0, Work::Busy(MS));
    bench.advance(50 * MS);
    assert!(!bench.queues[0].is_done(gate));
    assert_eq!(bench.part().until_next_event(), None);
    // Opened some time after the last look.
    bench.queues[0].open_gate(gate, 53 * MS);
    bench.advance(60 * MS);
    assert_eq!(bench.queues[0].ended_at(gate), Some(53 * MS));
    assert_eq!(bench.queues[0].ended_at(kernel), Some(54 * MS));
}

#[test]
fn a_full_queue_refuses_and_takes_again_after_progress() {
    let bench = Bench::new(1);
    bench.fill(0, MS);
    assert!(bench.is_full(0));
    bench.advance(3 * MS);
    for _ in 0..3 {
        bench.push(0, Work::Busy(MS));
    }
    assert!(bench.is_full(0));
}

#[test]
fn work_does_not_start_before_it_arrives() {
    let bench = Bench::new(1);
    let late = bench.queues[0].push(7 * MS, Work::Busy(MS)).expect("room");
    assert_eq!(bench.part().until_next_event(), Some(7 * MS));
    bench.advance(20 * MS);
    assert_eq!(bench.queues[0].ended_at(late), Some(8 * MS));
}

#[test]
fn utilisation_windows_follow_the_load_and_forget() {
    let bench = Bench::new(1);
    for _ in 0..6 {
        bench.push(0, Work::Busy(WINDOW_NS / 2));
        bench.advance((bench.engine.now() / WINDOW_NS + 1) * WINDOW_NS);
    }
    let now = bench.engine.now();
    assert_eq!(bench.engine.windows().percent(now, 6), 50);
    assert_eq!(bench.queues[0].windows().percent(now, 1), 50);
    bench.advance(now + 100 * WINDOW_NS);
    assert_eq!(bench.engine.windows().percent(bench.engine.now(), 6), 0);
}

#[test]
fn a_restarted_clock_does_not_stop_the_gpu() {
    let bench = Bench::new(1);
    bench.advance(1_000_000 * MS);
    bench.advance(MS);
    let kernel = bench.push(0, Work::Busy(MS));
    bench.advance(3 * MS);
    assert_eq!(bench.queues[0].ended_at(kernel), Some(2 * MS));
}

#[test]
fn equal_input_gives_equal_history_however_it_is_cut_into_steps() {
    let whole = Bench::new(2);
    let pieces = Bench::new(2);
    for bench in [&whole, &pieces] {
        for at in 0..200u64 {
            bench.queues[0]
                .push(at * 300 * US, Work::Busy(at % 7 * 100 * US))
                .expect("room");
            bench.queues[1]
                .push(at * 500 * US, Work::Busy(at % 5 * 300 * US))
                .expect("room");
        }
    }
    whole.advance(500 * MS);
    for us in (0..=500_000).step_by(137) {
        pieces.advance(us * US);
    }
    pieces.advance(500 * MS);
    for process in 0..2 {
        for ticket in 1..=200 {
            assert_eq!(
                whole.queues[process].ended_at(ticket),
                pieces.queues[process].ended_at(ticket),
                "{process} {ticket}"
            );
        }
    }
}

fn meeting(parties: u16, key: u32) -> Work {
    Work::Meet { key, parties }
}

#[test]
fn the_first_process_at_a_meeting_keeps_the_gpu_in_its_turns_until_the_last_has_come() {
    let bench = Bench::new(2);
    let early = bench.push(0, meeting(2, 0));
    bench.push(1, Work::Busy(5 * MS));
    let late = bench.push(1, meeting(2, 0));
    let after = bench.push(0, Work::Busy(MS));
    bench.advance(20 * MS);
    // In turns: 0 spins, 1 works, five times each; in the last turn 1 works less than a time slice and arrives.
    let spun = (5 * MS).div_ceil(SLICE_NS) * SLICE_NS;
    assert_eq!(bench.queues[1].ended_at(late), Some(spun + 5 * MS));
    assert_eq!(bench.queues[0].ended_at(early), Some(spun + 5 * MS));
    assert_eq!(bench.queues[0].ended_at(after), Some(spun + 6 * MS));
    assert_eq!((bench.busy(0), bench.busy(1)), (spun + MS, 5 * MS));
}

#[test]
fn a_process_that_meets_on_the_gpu_polled_last_is_met_on_another_gpu() {
    let [ahead, behind] = [Bench::new(1), Bench::new(1)];
    let tickets = [&ahead, &behind].map(|bench| bench.push(0, meeting(2, 0)));
    ahead.advance(5 * MS);
    advance(&[ahead.part(), behind.part()], 6 * MS);
    for (bench, ticket) in [&ahead, &behind].into_iter().zip(tickets) {
        assert_eq!(bench.queues[0].ended_at(ticket), Some(5 * MS));
    }
}

#[test]
fn no_process_is_released_by_a_meeting_of_another_key_or_size() {
    let bench = Bench::new(3);
    let meetings = [meeting(2, 1), meeting(2, 2), meeting(3, 1)];
    let tickets: Vec<u64> = (0..)
        .zip(meetings)
        .map(|(lane, work)| bench.push(lane, work))
        .collect();
    assert_eq!(bench.part().until_next_event(), Some(SLICE_NS));
    bench.advance(100 * MS);
    for (queue, ticket) in bench.queues.iter().zip(tickets) {
        assert!(!queue.is_done(ticket));
    }
    assert_eq!(
        bench.part().until_next_event(),
        None,
        "all spin, and time has nothing to bring"
    );
    assert_eq!(bench.engine.busy(), 100 * MS, "spinning is work to the GPU");
}

#[test]
fn a_meeting_of_one_ends_where_it_begins() {
    let bench = Bench::new(1);
    bench.push(0, Work::Busy(MS));
    let alone = bench.push(0, meeting(1, 0));
    bench.advance(5 * MS);
    assert_eq!(bench.queues[0].ended_at(alone), Some(MS));
}

#[test]
fn meetings_across_gpus_end_at_one_time_and_repeat() {
    let gpus = [Bench::new(1), Bench::new(2)];
    let mut tickets = Vec::new();
    for round in 1..=3 {
        gpus[0].push(0, Work::Busy(round * MS));
        gpus[1].push(1, Work::Busy(2 * MS));
        tickets.push([
            gpus[0].push(0, meeting(2, 9)),
            gpus[1].push(1, meeting(2, 9)),
        ]);
    }
    // One GPU is far ahead of the other before they are looked at together.
    gpus[1].advance(MS);
    let parts = || {
        gpus.each_ref()
            .map(|bench| ActiveEngine::new(&bench.engine, bench.lanes()))
    };
    for to in [2, 3, 50] {
        advance(&parts(), to * MS);
    }
    let ends = |bench: usize, queue: usize| {
        let tickets = tickets.iter().map(move |pair| pair[bench]);
        let ended_at = |ticket| gpus[bench].queues[queue].ended_at(ticket).map(|ns| ns / MS);
        tickets.map(ended_at).collect::<Vec<_>>()
    };
    assert_eq!(ends(0, 0), [Some(2), Some(4), Some(7)]);
    assert_eq!(ends(1, 1), ends(0, 0));
}
