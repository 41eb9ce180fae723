//! Moments of a run: jobs end, jobs are submitted, and the planner decides.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{JobOutcome, JobRun, Plan, Run, Tick, id, queues};
use crate::model::project::SchedulingClass;
use crate::model::request::Request;
use crate::model::snapshot::{PendingJob, Queue, Snapshot};
use crate::placement::occupancy::NodeUsage;
use crate::placement::{can_ever_place_job, place_job};
use crate::project::{check_quota, check_user_limit};
use crate::simulate::waits::ground::Ground;
use crate::simulate::waits::scene::SceneError;
use crate::simulate::waits::work::RunningJob;

impl<'r, 'n> Run<'r, 'n> {
    pub(super) fn new(plan: &'r Plan<'r>, ground: &'n Ground, empty: &'r NodeUsage<'n>) -> Self {
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
    pub(super) fn resume(&mut self, nth: usize, running: &RunningJob) -> Result<(), SceneError> {
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

    pub(super) fn all(&mut self, tick: Tick<'_>) {
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
        let end = self.ends.peek().map(|Reverse((at, _))| *at);
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
        while let Some(Reverse((at, nth))) = self.ends.peek().copied()
            && at <= self.now
        {
            self.ends.pop();
            self.release(usize::try_from(nth).unwrap_or(usize::MAX));
            self.done += 1;
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
    pub(super) fn enqueue(&mut self, nth: usize, requeued: bool) {
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
