//! The event simulation: at each arrival and each end the planner decides, and its decision is carried out.
//!
//! A preempted job leaves at once and goes back to its queue, before its equals. It starts anew, for its whole
//! duration. MIG instances of ended jobs stay idle, as on a node.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::choice::PolicyChoice;
use super::ground::Ground;
use super::scene::{MOST_JOBS, Scene, SceneError};
use super::work::{RunningJob, Submission};
use crate::model::project::{Resources, SchedulingClass};
use crate::model::queue::QueueSpec;
use crate::model::request::Request;
use crate::model::slice::Grant;
use crate::model::snapshot::{AllocatedJob, PendingJob, Queue, Snapshot};
use crate::placement::hosts::{HostNeed, HostTable};
use crate::placement::occupancy::NodeUsage;
use crate::placement::{can_ever_place_job, place_job};
use crate::plan::{Decision, decide_on};
use crate::project::{check_quota, check_user_limit};
use crate::units::{JobId, QueueName};

/// Decisions at one moment, while each changes the head or preempts. The product decides again too.
const MOST_ROUNDS: u32 = 64;

/// What became of each submission, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub jobs: Vec<JobOutcome>,
    /// Thousandths of GPUs times milliseconds that jobs held between the two moments that the figures count.
    pub held: u128,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct JobOutcome {
    /// From the submission to the first start.
    pub wait_ms: Option<u64>,
    pub refused: bool,
    pub preemptions: u32,
}

/// What a run reports now and then.
pub(super) type Tick<'a> = &'a mut dyn FnMut(usize);

/// A run from an empty set of nodes, or from one on which jobs run.
pub(super) struct Plan<'a> {
    pub scene: &'a Scene,
    /// In order of time. Running jobs come first, and run for their durations from `starts_at` on.
    pub submissions: &'a [Submission],
    pub running: &'a [RunningJob],
    /// The first moment.
    pub starts_at: u64,
    /// The moments between which GPU in use is counted.
    pub counted: (u64, u64),
    /// The job after whose start nothing more is of interest.
    pub until: Option<JobId>,
}

/// The queues of the scene, and after them those that only jobs name.
pub(super) fn queues(scene: &Scene, submissions: &[Submission]) -> Vec<QueueSpec> {
    let mut queues = scene.queues.clone();
    let mut place: BTreeMap<QueueName, ()> = queues
        .iter()
        .map(|queue| (queue.name.clone(), ()))
        .collect();
    for job in submissions {
        if place.insert(job.queue.clone(), ()).is_none() {
            queues.push(QueueSpec::open(job.queue.clone()));
        }
    }
    queues
}

impl Plan<'_> {
    /// # Errors
    /// [`SceneError`], for what cannot be simulated.
    pub fn run(&self, tick: Tick<'_>) -> Result<Outcome, SceneError> {
        self.with_run(|mut run| {
            run.all(tick);
            Outcome {
                jobs: run.outcomes,
                held: run.held,
            }
        })
    }

    /// The jobs that run at the first moment, with the GPUs that they hold.
    ///
    /// # Errors
    /// [`SceneError`], for what cannot be simulated.
    pub fn held(&self) -> Result<Vec<AllocatedJob>, SceneError> {
        self.with_run(|run| {
            let jobs = self.running.iter().zip(run.jobs).enumerate();
            jobs.map(|(nth, (running, held))| AllocatedJob {
                owner: running.job.owner.clone(),
                ran_s: running.ran_ms / 1000,
                ..AllocatedJob::new(id(nth), running.job.queue.clone(), held.grants)
            })
            .collect()
        })
    }

    fn with_run<T>(&self, then: impl FnOnce(Run<'_, '_>) -> T) -> Result<T, SceneError> {
        let count = self.submissions.len();
        if count > MOST_JOBS {
            return Err(SceneError::TooMany {
                what: "jobs",
                count,
                most: MOST_JOBS,
            });
        }
        let ground = Ground::of(self.scene)?;
        let needs: Vec<HostNeed> = self
            .submissions
            .iter()
            .map(|job| ground.need(job))
            .collect();
        let choice = PolicyChoice::new(self.scene, &ground, self.submissions, &needs)?;
        let table = HostTable {
            hosts: ground.hosts.clone(),
            models: ground.models.clone(),
            needs: &needs,
            choice: &choice,
        };
        let empty = NodeUsage::empty(&ground.gpus).on_hosts(&table);
        let mut run = Run::new(self, &ground, &empty);
        for (nth, job) in self.running.iter().enumerate() {
            run.resume(nth, job)?;
        }
        Ok(then(run))
    }
}

struct Run<'r, 'n> {
    plan: &'r Plan<'r>,
    ground: &'n Ground,
    empty: &'r NodeUsage<'n>,
    node: NodeUsage<'n>,
    /// Queues and rules for the planner; holders only where projects or limits of users need them.
    snapshot: Snapshot,
    needs_held: bool,
    queue_of: BTreeMap<QueueName, usize>,
    /// Ends: when, which job, and which of its starts.
    ends: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// A moment at which the planner may decide otherwise.
    again_at: Option<u64>,
    jobs: Vec<JobRun>,
    outcomes: Vec<JobOutcome>,
    /// Of each job, the number of its kind, and how many jobs of each kind wait.
    kind_of: Vec<usize>,
    waiting: Vec<usize>,
    /// Kinds of which jobs wait.
    kinds: usize,
    /// Whether jobs of this kind can ever start.
    ever: BTreeMap<(SchedulingClass, Request, HostNeed), bool>,
    now: u64,
    used: u64,
    held: u128,
    next: usize,
    done: usize,
}

/// A job of the run.
#[derive(Clone, Default)]
struct JobRun {
    started: u64,
    starts: u32,
    grants: Vec<Grant>,
}

impl<'r, 'n> Run<'r, 'n> {
    fn new(plan: &'r Plan<'r>, ground: &'n Ground, empty: &'r NodeUsage<'n>) -> Self {
        let scene = plan.scene;
        let specs = queues(scene, plan.submissions);
        let names = specs.iter().enumerate();
        let queue_of = names.map(|(at, spec)| (spec.name.clone(), at)).collect();
        let queue = |spec| Queue {
            spec,
            waiting: Vec::new(),
        };
        let count = plan.submissions.len();
        let (kind_of, kinds) = kinds(plan, empty);
        Self {
            plan,
            ground,
            empty,
            node: empty.clone(),
            snapshot: Snapshot {
                queues: specs.into_iter().map(queue).collect(),
                ..scene.rules()
            },
            needs_held: !scene.projects.is_empty() || !scene.user_limits.is_empty(),
            queue_of,
            ends: BinaryHeap::new(),
            again_at: None,
            jobs: vec![JobRun::default(); count],
            outcomes: vec![JobOutcome::default(); count],
            waiting: vec![0; kinds],
            kind_of,
            kinds: 0,
            ever: BTreeMap::new(),
            now: plan.starts_at,
            used: 0,
            held: 0,
            next: 0,
            done: 0,
        }
    }

    /// A job runs already: on the GPUs that are known, or where the planner would place it.
    fn resume(&mut self, nth: usize, running: &RunningJob) -> Result<(), SceneError> {
        let id = id(nth);
        let request = Request {
            on: running.gpus.clone(),
            ..running.job.request.clone()
        };
        let offers = place_job(&self.node, id, &request, |_, _| true)
            .ok_or(SceneError::Running { job: nth })?;
        let given = self.node.assign(id, &running.job.queue, &offers);
        self.next = nth + 1;
        self.hold(nth, given.grants);
        self.jobs[nth].started = self.now.saturating_sub(running.ran_ms);
        Ok(())
    }

    fn all(&mut self, tick: Tick<'_>) {
        let wanted = self.plan.until.and_then(|job| usize::try_from(job.0).ok());
        while let Some(at) = self.next_moment() {
            self.advance(at);
            self.end_jobs();
            self.submit_jobs();
            self.decide();
            let is_known = |job: usize| {
                let outcome = self.outcomes[job];
                outcome.wait_ms.is_some() || outcome.refused
            };
            if wanted.is_some_and(is_known) {
                return;
            }
            tick(self.done);
        }
    }

    fn next_moment(&self) -> Option<u64> {
        let submission = self.plan.submissions.get(self.next).map(|job| job.at_ms);
        let end = self.ends.peek().map(|Reverse((at, ..))| *at);
        let moments = [submission, end, self.again_at].into_iter().flatten();
        moments.min().map(|at| at.max(self.now))
    }

    fn advance(&mut self, at: u64) {
        let (from, to) = self.plan.counted;
        let counted = at.min(to).saturating_sub(self.now.max(from));
        self.held += u128::from(self.used) * u128::from(counted);
        self.now = at;
        if self.again_at.is_some_and(|again| again <= at) {
            self.again_at = None;
        }
    }

    fn end_jobs(&mut self) {
        while let Some(Reverse((at, nth, start))) = self.ends.peek().copied()
            && at <= self.now
        {
            self.ends.pop();
            let nth = usize::try_from(nth).unwrap_or(usize::MAX);
            if self.jobs[nth].starts == start {
                self.release(nth);
                self.done += 1;
            }
        }
    }

    fn submit_jobs(&mut self) {
        while let Some(job) = self.plan.submissions.get(self.next)
            && job.at_ms <= self.now
        {
            let nth = self.next;
            self.next += 1;
            if self.can_ever_start(nth) {
                self.enqueue(nth, false);
            } else {
                self.outcomes[nth].refused = true;
                self.done += 1;
            }
        }
    }

    /// Whether the job would start if all others had ended.
    fn can_ever_start(&mut self, nth: usize) -> bool {
        let job = &self.plan.submissions[nth];
        let (scene, id) = (self.plan.scene, id(nth));
        let kind = (job.owner.clone(), job.request.clone(), self.node.need(id));
        let (empty, gpus) = (self.empty, &self.ground.gpus);
        *self.ever.entry(kind).or_insert_with(|| {
            let owner = &job.owner;
            let projects = scene.projects.iter();
            let project = projects
                .clone()
                .find(|project| Some(&project.name) == owner.project.as_ref());
            let within =
                |project| check_quota(gpus, project, owner, &job.request, scene.preemption).is_ok();
            let user = owner.user.as_ref();
            let limit = user.and_then(|user| Some((user, *scene.user_limits.get(user)?)));
            can_ever_place_job(empty, id, &job.request)
                && project.is_none_or(within)
                && limit.is_none_or(|(user, most)| {
                    check_user_limit(gpus, user, most, &job.request).is_ok()
                })
        })
    }

    /// Puts the job into its queue: by priority, requeued jobs first, then by age.
    fn enqueue(&mut self, nth: usize, requeued: bool) {
        let job = &self.plan.submissions[nth];
        let mut waiting = PendingJob {
            owner: job.owner.clone(),
            ..PendingJob::new(id(nth), job.request.clone())
        };
        waiting.turn.requeued = requeued;
        let key = |waiting: &PendingJob| {
            let turn = waiting.turn.requeued;
            (Reverse(waiting.owner.priority), !turn, waiting.job)
        };
        let queue = &mut self.snapshot.queues[self.queue_of[&job.queue]].waiting;
        let place = queue.partition_point(|other| key(other) < key(&waiting));
        queue.insert(place, waiting);
        let waiting = &mut self.waiting[self.kind_of[nth]];
        *waiting += 1;
        self.kinds += usize::from(*waiting == 1);
    }

    fn decide(&mut self) {
        for _ in 0..MOST_ROUNDS {
            if self
                .snapshot
                .queues
                .iter()
                .all(|queue| queue.waiting.is_empty())
            {
                return;
            }
            self.tell_times();
            let node = std::mem::replace(&mut self.node, NodeUsage::empty(&[]));
            let (decision, node) = decide_on(&self.snapshot, node, self.empty, self.kinds);
            self.node = node;
            let is_final = decision.preempts.is_empty() && decision.head == self.snapshot.head;
            self.carry_out(decision);
            if is_final {
                return;
            }
        }
    }

    /// How long jobs have run and waited, where a rule depends on it.
    fn tell_times(&mut self) {
        for held in &mut self.snapshot.held {
            let nth = usize::try_from(held.job.0).unwrap_or(usize::MAX);
            held.ran_s = (self.now - self.jobs[nth].started) / 1000;
        }
        let Some(bound) = self
            .plan
            .scene
            .yields_for_ms
            .filter(|_| self.snapshot.backfill)
        else {
            return;
        };
        for waiting in self
            .snapshot
            .queues
            .iter_mut()
            .flat_map(|queue| &mut queue.waiting)
        {
            let nth = usize::try_from(waiting.job.0).unwrap_or(usize::MAX);
            let since = self.plan.submissions[nth].at_ms;
            waiting.yields = self.now.saturating_sub(since) < bound;
        }
    }

    fn carry_out(&mut self, decision: Decision) {
        (self.snapshot.cursor, self.snapshot.head) = (decision.cursor, decision.head);
        let again = decision
            .replan_in_s
            .map(|seconds| seconds.saturating_mul(1000).max(1));
        self.again_at = again.map(|after| self.now.saturating_add(after));
        for start in decision.starts {
            let nth = usize::try_from(start.job.0).unwrap_or(usize::MAX);
            let queue = self.queue_of[&start.queue];
            let waiting = &mut self.snapshot.queues[queue].waiting;
            waiting.retain(|waiting| waiting.job != start.job);
            let waiting = &mut self.waiting[self.kind_of[nth]];
            *waiting -= 1;
            self.kinds -= usize::from(*waiting == 0);
            self.hold(nth, start.grants);
        }
        for preempt in decision.preempts {
            let nth = usize::try_from(preempt.job.0).unwrap_or(usize::MAX);
            self.release(nth);
            self.outcomes[nth].preemptions += 1;
            self.enqueue(nth, true);
        }
    }

    /// The job starts with these grants, which the occupancy has already.
    fn hold(&mut self, nth: usize, grants: Vec<Grant>) {
        let job = &self.plan.submissions[nth];
        self.used += Resources::of(&grants).gpus.thousandths();
        if self.needs_held {
            self.snapshot.held.push(AllocatedJob {
                owner: job.owner.clone(),
                ..AllocatedJob::new(id(nth), job.queue.clone(), grants.clone())
            });
        }
        let runs = job
            .limit_ms
            .map_or(job.runs_ms, |limit| limit.min(job.runs_ms));
        let run = &mut self.jobs[nth];
        (run.started, run.grants) = (self.now, grants);
        run.starts += 1;
        self.ends.push(Reverse((
            self.now.saturating_add(runs),
            nth as u64,
            run.starts,
        )));
        let wait = self.now.saturating_sub(job.at_ms);
        self.outcomes[nth].wait_ms.get_or_insert(wait);
    }

    /// The job leaves its GPUs: it has ended, or is preempted.
    fn release(&mut self, nth: usize) {
        let run = &mut self.jobs[nth];
        // An end that was planned for this start does not come.
        run.starts += 1;
        let grants = std::mem::take(&mut run.grants);
        self.used -= Resources::of(&grants).gpus.thousandths();
        self.node.release(id(nth), &grants);
        if self.needs_held {
            self.snapshot.held.retain(|held| held.job != id(nth));
        }
    }
}

/// The number of each job's kind, and how many there are: jobs of one kind the planner cannot tell apart but by their
/// places.
fn kinds(plan: &Plan<'_>, empty: &NodeUsage<'_>) -> (Vec<usize>, usize) {
    let mut known = BTreeMap::new();
    let jobs = plan.submissions.iter().enumerate();
    let kind_of = jobs.map(|(nth, job)| {
        let SchedulingClass {
            project,
            preemptible,
            user,
            ..
        } = &job.owner;
        let limits = &plan.scene.user_limits;
        let user = user.as_ref().filter(|user| limits.contains_key(*user));
        let project = project.as_ref();
        let kind = (
            project,
            *preemptible,
            user,
            &job.request,
            empty.need(id(nth)),
        );
        let next = known.len();
        *known.entry(kind).or_insert(next)
    });
    let kind_of = kind_of.collect();
    (kind_of, known.len())
}

fn id(nth: usize) -> JobId {
    JobId(nth as u64)
}
