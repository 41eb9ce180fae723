//! Moments of a run: jobs end, jobs are submitted, and the planners decide.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use divvy_core::project::{SchedulingClass, check_quota, check_user_limit};
use divvy_core::request::Request;
use divvy_core::{NodeUsage, PendingJob, Queue, Snapshot};

use super::nodes::nodes;
use super::{JobOutcome, JobRun, Plan, Run, Tick, id, queues};
use crate::engine::waits::ground::Ground;
use crate::engine::waits::scene::SceneError;
use crate::engine::waits::work::{RunningJob, Submission};

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
        let rules = Snapshot {
            queues: specs.into_iter().map(queue).collect(),
            ..scene.rules()
        };
        let count = plan.submissions.len();
        let (kind_of, firsts) = kinds(plan);
        let (nodes, views) = nodes(scene, ground, &firsts, &rules);
        Self {
            plan,
            ground,
            empty,
            nodes,
            views,
            all: rules,
            needs_held: !scene.projects.is_empty() || !scene.user_limits.is_empty(),
            queue_of,
            ends: BinaryHeap::new(),
            again_at: None,
            jobs: vec![JobRun::default(); count],
            outcomes: vec![JobOutcome::default(); count],
            waiting: vec![0; firsts.len()],
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

    /// A job runs already: on the GPUs that are known, or where the first planner with room would place it.
    pub(super) fn resume(&mut self, nth: usize, running: &RunningJob) -> Result<(), SceneError> {
        let job = Submission {
            request: Request {
                on: running.gpus.clone(),
                ..running.job.request.clone()
            },
            ..running.job.clone()
        };
        let found = self.nodes.iter().enumerate().find_map(|(at, node)| {
            let request = self.ground.request_on(at, &job)?;
            let offers = node.usage.find(&request)?;
            (!node.lacks(std::iter::once(&job))).then_some((at, offers))
        });
        let (node, offers) = found.ok_or(SceneError::Running { job: nth })?;
        let usage = &mut self.nodes[node].usage;
        let given = usage.assign(id(nth), &running.job.queue, &offers);
        self.next = nth + 1;
        self.hold(nth, node, given.grants);
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
        let (scene, kind) = (self.plan.scene, self.kind_of[nth]);
        let (views, gpus) = (&self.views, &self.ground.gpus);
        let known = self.ever.entry((job.owner.clone(), kind));
        *known.or_insert_with(|| {
            let owner = &job.owner;
            let projects = scene.projects.iter();
            let project = projects
                .clone()
                .find(|project| Some(&project.name) == owner.project.as_ref());
            let within =
                |project| check_quota(gpus, project, owner, &job.request, scene.preemption).is_ok();
            let user = owner.user.as_ref();
            let limit = user.and_then(|user| Some((user, *scene.user_limits.get(user)?)));
            views.iter().any(|view| view.requests[kind].is_some())
                && project.is_none_or(within)
                && limit.is_none_or(|(user, most)| {
                    check_user_limit(gpus, user, most, &job.request).is_ok()
                })
        })
    }

    /// Puts the job into its queue: by priority, requeued jobs first, then by age.
    pub(super) fn enqueue(&mut self, nth: usize, requeued: bool) {
        let (job, kind) = (&self.plan.submissions[nth], self.kind_of[nth]);
        let queue = self.queue_of[&job.queue];
        let key = |waiting: &PendingJob| {
            let turn = waiting.turn.requeued;
            (Reverse(waiting.owner.priority), !turn, waiting.job)
        };
        let insert = |snapshot: &mut Snapshot, request: &Request| {
            let mut waiting = PendingJob {
                owner: job.owner.clone(),
                ..PendingJob::new(id(nth), request.clone())
            };
            waiting.turn.requeued = requeued;
            let queue = &mut snapshot.queues[queue].waiting;
            let place = queue.partition_point(|other| key(other) < key(&waiting));
            queue.insert(place, waiting);
        };
        insert(&mut self.all, &job.request);
        for view in &mut self.views {
            if let Some(request) = &view.requests[kind] {
                insert(&mut view.snapshot, request);
            }
        }
        let waiting = &mut self.waiting[kind];
        *waiting += 1;
        self.kinds += usize::from(*waiting == 1);
    }
}

/// The number of each job's kind, and the first job of each: jobs of one kind the planners cannot tell apart but by their
/// places.
fn kinds<'s>(plan: &Plan<'s>) -> (Vec<usize>, Vec<&'s Submission>) {
    let mut known = BTreeMap::new();
    let mut firsts = Vec::new();
    let kind_of = plan.submissions.iter().map(|job| {
        let SchedulingClass {
            project,
            preemptible,
            user,
            ..
        } = &job.owner;
        let limits = &plan.scene.user_limits;
        let user = user.as_ref().filter(|user| limits.contains_key(*user));
        let room = (&job.request, &job.models, job.cpu_milli, job.memory);
        let kind = (project.as_ref(), *preemptible, user, room);
        *known.entry(kind).or_insert_with(|| {
            firsts.push(job);
            firsts.len() - 1
        })
    });
    let kind_of = kind_of.collect();
    (kind_of, firsts)
}
