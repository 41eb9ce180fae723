//! Whoever is said to start at the latest then does, however much earlier than they may the others end.

use crate::node;

use std::collections::BTreeMap;

use divvy_core::start_bound::{JobBounds, latest_start};
use divvy_core::{JobId, Mode, Order, PendingJob};
use node::{Node, amount};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A job: what it asks for, how long it may run, and how long it does.
#[derive(Clone, Debug)]
struct Task {
    queue: &'static str,
    amount: &'static str,
    limit: Option<u64>,
    /// Of its limit, in hundredths.
    runs: u64,
    /// Runs after one of those before it.
    after: Option<Index>,
}

fn tasks() -> impl Strategy<Value = Vec<Task>> {
    let amounts = select(vec![
        "1", "2", "1-2", "0.5", "0.25", "0.75", "0.125", "0.333", "20GiB", "1GiB", "50GiB",
        "2x0.5", "1g.5gb", "3g.20gb",
    ]);
    let limit = prop_oneof![12 => (1..40_u64).prop_map(Some), 1 => Just(None)];
    let after = prop_oneof![6 => Just(None), 1 => any::<Index>().prop_map(Some)];
    let task = (
        select(vec!["high", "default"]),
        amounts,
        limit,
        0..=100_u64,
        after,
    );
    let task = task.prop_map(|(queue, amount, limit, runs, after)| Task {
        queue,
        amount,
        limit,
        runs,
        after,
    });
    vec(task, 1..24)
}

fn nodes() -> impl Strategy<Value = Node> {
    let modes = vec(
        select(vec![Mode::Shared, Mode::Shared, Mode::Mig, Mode::Exclusive]),
        1..5,
    );
    (modes, any::<bool>(), any::<bool>(), 0..4_u64).prop_map(|(modes, fair, backfill, yields)| {
        let mut node = Node::new(0, "high=1");
        node.snapshot.queues[0].spec.amount = None;
        for (index, mode) in (0..).zip(modes) {
            let mut gpu = node::gpu(index);
            gpu.mode = mode;
            if mode == Mode::Mig {
                node::cut(&mut gpu, "a100-40gb");
            }
            node.snapshot.gpus.push(gpu);
        }
        node.snapshot.order = if fair { Order::Fairness } else { Order::Strict };
        node.snapshot.backfill = backfill;
        node.yields = yields;
        node
    })
}

/// A node in time.
struct Run {
    node: Node,
    now: u64,
    tasks: BTreeMap<JobId, Task>,
    after: BTreeMap<JobId, JobId>,
    /// Who does not stand in its queue yet.
    outside: Vec<(usize, PendingJob)>,
    started: BTreeMap<JobId, u64>,
    ended: Vec<JobId>,
}

impl Run {
    fn new(node: Node, tasks: &[Task]) -> Self {
        let mut run = Self {
            node,
            now: 0,
            tasks: BTreeMap::new(),
            after: BTreeMap::new(),
            outside: Vec::new(),
            started: BTreeMap::new(),
            ended: Vec::new(),
        };
        for task in tasks {
            let before: Vec<JobId> = run.tasks.keys().copied().collect();
            let job = JobId(
                run.node
                    .submit_request(task.queue, amount(task.amount).into()),
            );
            run.tasks.insert(job, task.clone());
            if let Some(after) = task.after.filter(|_| !before.is_empty()) {
                run.after.insert(job, *after.get(&before));
            }
        }
        for (index, queue) in run.node.snapshot.queues.iter_mut().enumerate() {
            let outside = queue
                .waiting
                .extract_if(.., |waiting| run.after.contains_key(&waiting.job));
            run.outside.extend(outside.map(|waiting| (index, waiting)));
        }
        run
    }

    fn plan(&mut self) {
        for job in self.node.start() {
            self.started.insert(JobId(job), self.now);
        }
    }

    /// When a job that has started ends; never where nobody limits it.
    fn end(&self, job: JobId) -> Option<u64> {
        let task = &self.tasks[&job];
        Some(self.started[&job] + task.limit? * task.runs / 100)
    }

    /// Lets the next ones end, and whoever runs after them come; false when nothing more happens.
    fn step(&mut self) -> bool {
        let held = self.node.snapshot.held.iter();
        let running: Vec<JobId> = held.map(|held| held.job).collect();
        let Some(next) = running.iter().filter_map(|job| self.end(*job)).min() else {
            return false;
        };
        self.now = next;
        for job in running {
            if self.end(job) == Some(next) {
                self.node.end(job.0);
                self.ended.push(job);
            }
        }
        let (after, ended) = (&self.after, &self.ended);
        let comes = |(_, waiting): &mut (usize, PendingJob)| ended.contains(&after[&waiting.job]);
        for (queue, waiting) in self.outside.extract_if(.., comes) {
            let there = &mut self.node.snapshot.queues[queue].waiting;
            let place = there.partition_point(|other| other.job < waiting.job);
            there.insert(place, waiting);
        }
        self.plan();
        true
    }

    /// By when each waiting job starts at the latest, as things stand.
    fn promises(&self) -> Vec<(JobId, Option<u64>)> {
        let mut snapshot = self.node.snapshot.clone();
        for (queue, waiting) in &self.outside {
            let there = &mut snapshot.queues[*queue].waiting;
            let place = there.partition_point(|other| other.job < waiting.job);
            there.insert(place, waiting.clone());
        }
        let mut known = JobBounds::default();
        for (job, task) in &self.tasks {
            let Some(limit) = task.limit else { continue };
            let ran = self.started.get(job).map_or(0, |at| self.now - at);
            known.remaining_s.insert(*job, limit - ran.min(limit));
        }
        for (_, waiting) in &self.outside {
            known
                .dependencies
                .insert(waiting.job, vec![self.after[&waiting.job]]);
        }
        let waiting = snapshot.queues.iter().flat_map(|queue| &queue.waiting);
        let promise = |waiting: &PendingJob| {
            let by = latest_start(&snapshot, waiting.job, &known);
            (waiting.job, by.map(|seconds| self.now + seconds))
        };
        waiting.map(promise).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_job_with_a_latest_start_has_started_by_then(node in nodes(), tasks in tasks()) {
        let mut run = Run::new(node, &tasks);
        run.plan();
        let mut promised: BTreeMap<JobId, u64> = BTreeMap::new();
        loop {
            for (job, by) in run.promises() {
                if let Some(by) = by {
                    let sooner = promised.entry(job).or_insert(by);
                    *sooner = by.min(*sooner);
                }
            }
            if !run.step() {
                break;
            }
        }
        for (job, by) in promised {
            let at = run.started.get(&job).copied();
            prop_assert!(at.is_some_and(|at| at <= by), "#{job} was promised {by} and started at {at:?}: {:?}", run.tasks);
        }
    }
}

/// By when a waiting job starts at the latest.
fn by(node: &Node, job: u64, left: &[(u64, u64)]) -> Option<u64> {
    let left = left.iter().map(|(job, seconds)| (JobId(*job), *seconds));
    let known = JobBounds {
        remaining_s: left.collect(),
        ..JobBounds::default()
    };
    latest_start(&node.snapshot, JobId(job), &known)
}

#[test]
fn a_job_that_ends_early_may_make_another_start_later_and_that_is_reckoned_with() {
    let mut node = Node::new(2, "");
    let (a, b) = (node.ask("0.5"), node.ask("0.5"));
    let (c, d) = (node.ask("0.5"), node.ask("0.5"));
    node.start();
    assert_eq!(
        (node.labels(a), node.labels(b)),
        ("gpu0.5a".into(), "gpu0.5b".into())
    );
    let half = node.ask("0.5");
    let whole = node.ask("1");
    // If `c` ends at 9, the half lies beside `d`, and the whole starts on GPU 0 at 11. If `a` ends first, the half lies there.
    let left = [(a, 10), (b, 11), (c, 9), (d, 200), (half, 100)];
    assert_eq!(by(&node, whole, &left), Some(109));
}

#[test]
fn jobs_of_one_size_are_foretold_exactly() {
    let mut node = Node::new(2, "");
    let held: Vec<u64> = (0..8).map(|_| node.ask("0.25")).collect();
    node.start();
    let waiting: Vec<u64> = (0..16).map(|_| node.ask("0.25")).collect();
    let left: Vec<(u64, u64)> = held.iter().chain(&waiting).map(|job| (*job, 10)).collect();
    assert_eq!(by(&node, waiting[0], &left), Some(10));
    assert_eq!(by(&node, waiting[7], &left), Some(10));
    assert_eq!(by(&node, waiting[8], &left), Some(20));
    assert_eq!(by(&node, waiting[15], &left), Some(20));
}
