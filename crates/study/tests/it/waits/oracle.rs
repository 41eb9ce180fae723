//! The simulation against the public planner: a plain loop asks `plan` anew at each moment, and carries the plan out as
//! tests of the planner do. Waits must be equal, job by job, whatever the modes, orders, projects and preemptions.

use std::collections::BTreeMap;

use divvy_core::mig::MigInventory;
use divvy_core::order_key::sort_queue;
use divvy_core::project::{Quota, check_quota};
use divvy_core::{
    AllocatedJob, Gpu, Gpus, JobId, Mode, Order, PendingJob, Project, Queue, SchedulingClass,
    Snapshot, can_ever_fit, plan,
};
use divvy_study::engine::waits::figures::Figures;
use divvy_study::engine::waits::scene::Scene;
use divvy_study::engine::waits::work::Submission;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{figures, job, queue, scene};
use crate::node::{gpu as sample, keep, take};

/// What the loop found: waits in seconds by job, jobs refused, jobs preempted.
#[derive(Debug, Default)]
struct Found {
    waits: BTreeMap<usize, u64>,
    refused: usize,
    preempted: std::collections::BTreeSet<usize>,
}

/// The GPUs of the scene's nodes as a daemon would see them.
fn gpus(scene: &Scene) -> Vec<Gpu> {
    let gpus = scene.nodes.iter().flat_map(|node| &node.gpus);
    (0..)
        .zip(gpus)
        .map(|(index, gpu)| Gpu {
            mode: gpu.mode,
            total: gpu.memory,
            mig: gpu.table.clone().map(|table| MigInventory {
                table,
                instances: Vec::new(),
            }),
            ..sample(index)
        })
        .collect()
}

fn by_plans(scene: &Scene, jobs: &[Submission]) -> Found {
    let mut found = Found::default();
    let mut state = Snapshot {
        gpus: gpus(scene),
        queues: scene
            .queues
            .iter()
            .map(|spec| Queue {
                spec: spec.clone(),
                waiting: Vec::new(),
            })
            .collect(),
        order: scene.order,
        backfill: scene.backfill,
        projects: scene.projects.clone(),
        preemption: scene.preemption,
        ..Snapshot::default()
    };
    let mut ends: BTreeMap<JobId, u64> = BTreeMap::new();
    let mut started: BTreeMap<JobId, u64> = BTreeMap::new();
    let (mut next, mut again) = (0, None);
    loop {
        let moments = [
            jobs.get(next).map(|job| job.at_ms / 1000),
            ends.values().min().copied(),
            again,
        ];
        let Some(now) = moments.into_iter().flatten().min() else {
            return found;
        };
        again = again.filter(|at| *at > now);
        let over: Vec<JobId> = ends
            .iter()
            .filter(|(_, end)| **end <= now)
            .map(|(job, _)| *job)
            .collect();
        for gone in over {
            ends.remove(&gone);
            leave(&mut state, gone);
        }
        while let Some(job) = jobs.get(next).filter(|job| job.at_ms / 1000 <= now) {
            let project = scene
                .projects
                .iter()
                .find(|one| Some(&one.name) == job.owner.project.as_ref());
            let quota = project.map(|project| {
                check_quota(
                    &state.gpus,
                    project,
                    &job.owner,
                    &job.request,
                    scene.preemption,
                )
            });
            if can_ever_fit(&state.gpus, &job.request).is_ok()
                && quota.is_none_or(|quota| quota.is_ok())
            {
                wait(&mut state, jobs, next, false);
            } else {
                found.refused += 1;
            }
            next += 1;
        }
        for _ in 0..100 {
            for held in &mut state.held {
                held.ran_s = now - started[&held.job];
            }
            let plan = plan(&state);
            let is_final = plan.preempts.is_empty() && plan.head == state.head;
            (state.cursor, state.head) = (plan.cursor, plan.head);
            again = plan.replan_in_s.map(|after| now + after.max(1));
            for start in plan.starts {
                take(&mut state, &start);
                let nth = usize::try_from(start.job.0).unwrap();
                for queue in &mut state.queues {
                    queue.waiting.retain(|waiting| waiting.job != start.job);
                }
                state.held.push(AllocatedJob {
                    owner: jobs[nth].owner.clone(),
                    ..AllocatedJob::new(start.job, start.queue, start.grants)
                });
                started.insert(start.job, now);
                ends.insert(start.job, now + jobs[nth].runs_ms / 1000);
                found
                    .waits
                    .entry(nth)
                    .or_insert(now - jobs[nth].at_ms / 1000);
            }
            for preempt in plan.preempts {
                ends.remove(&preempt.job);
                leave(&mut state, preempt.job);
                let nth = usize::try_from(preempt.job.0).unwrap();
                found.preempted.insert(nth);
                wait(&mut state, jobs, nth, true);
            }
            if is_final {
                break;
            }
        }
    }
}

fn leave(state: &mut Snapshot, job: JobId) {
    let place = state.held.iter().position(|held| held.job == job).unwrap();
    let held = state.held.remove(place);
    keep(state, &held.grants);
}

fn wait(state: &mut Snapshot, jobs: &[Submission], nth: usize, requeued: bool) {
    let job = &jobs[nth];
    let mut pending = PendingJob {
        owner: job.owner.clone(),
        ..PendingJob::new(JobId(nth as u64), job.request.clone())
    };
    pending.turn.requeued = requeued;
    let queue = state
        .queues
        .iter_mut()
        .find(|queue| queue.spec.name == job.queue)
        .unwrap();
    queue.waiting.push(pending);
    sort_queue(&mut queue.waiting);
}

/// The mean wait of all jobs that started is the sum of the oracle's.
fn agree(figures: &Figures, found: &Found) -> Result<(), TestCaseError> {
    let mut waits: Vec<u64> = found.waits.values().copied().collect();
    waits.sort_unstable();
    let all = figures.all;
    prop_assert_eq!(all.wait.jobs, waits.len() as u64);
    prop_assert_eq!(all.refused, found.refused as u64);
    prop_assert_eq!(all.preempted, found.preempted.len() as u64);
    let sum: u64 = waits.iter().sum();
    let mean = all.wait.mean_ms * all.wait.jobs as f64 / 1000.0;
    prop_assert!(
        (mean - sum as f64).abs() < 1e-6 * (1.0 + sum as f64),
        "{mean} {sum}"
    );
    prop_assert_eq!(
        all.wait.longest_ms / 1000,
        waits.last().copied().unwrap_or(0)
    );
    let half = waits.len().div_ceil(2).max(1) - 1;
    prop_assert_eq!(
        all.wait.p50_ms / 1000,
        waits.get(half).copied().unwrap_or(0)
    );
    Ok(())
}

fn works() -> impl Strategy<Value = Vec<Submission>> {
    let asks = select(vec![
        "0.25", "0.5", "0.375", "0.7", "1", "2", "1-3", "2x0.5", "10GiB", "25GiB", "5", "1g.5gb",
        "3g.20gb",
    ]);
    let owner = (
        select(vec![None, Some("p"), Some("q")]),
        0..3_i32,
        any::<bool>(),
    );
    vec((0..40_u64, asks, 0..60_u64, any::<bool>(), owner), 1..40).prop_map(|jobs| {
        let mut jobs: Vec<Submission> = jobs
            .into_iter()
            .map(
                |(at, asks, runs, second, (project, priority, preemptible))| Submission {
                    queue: queue(if second { "b" } else { "a" }),
                    owner: SchedulingClass {
                        project: project.map(|name| name.parse().unwrap()),
                        priority,
                        preemptible,
                        user: None,
                    },
                    ..job(at, asks, runs)
                },
            )
            .collect();
        jobs.sort_by_key(|job| job.at_ms);
        jobs
    })
}

fn scenes() -> impl Strategy<Value = Scene> {
    let mode =
        prop_oneof![4 => Just(Mode::Shared), 2 => Just(Mode::Mig), 1 => Just(Mode::Exclusive)];
    let projects = prop_oneof![Just(None), (0..3_u64, 0..3_u64, 0..30_u64).prop_map(Some)];
    (vec(mode, 1..4), any::<bool>(), any::<bool>(), projects).prop_map(
        |(gpus, fair, backfill, quotas)| {
            let project = |name: &str, quota: u64, least: u64| Project {
                quota: Quota {
                    gpus: Gpus::whole(quota),
                    memory: None,
                },
                min_runtime_s: least,
                ..Project::new(name.parse().unwrap())
            };
            Scene {
                order: if fair { Order::Fairness } else { Order::Strict },
                backfill,
                projects: quotas.map_or_else(Vec::new, |(p, q, least)| {
                    vec![project("p", p, least), project("q", q, 0)]
                }),
                ..scene(&gpus, &["a", "b"])
            }
        },
    )
}

proptest! {
    #[test]
    fn waits_are_those_of_the_planner_asked_step_by_step(scene in scenes(), jobs in works()) {
        agree(&figures(&scene, &jobs), &by_plans(&scene, &jobs))?;
    }
}

fn of(project: Option<&str>, preemptible: bool) -> SchedulingClass {
    SchedulingClass {
        project: project.map(|name| name.parse().unwrap()),
        preemptible,
        ..SchedulingClass::default()
    }
}

fn project(name: &str, quota: u64) -> Project {
    Project {
        quota: Quota {
            gpus: Gpus::whole(quota),
            memory: None,
        },
        ..Project::new(name.parse().unwrap())
    }
}

#[test]
fn preemption_is_among_what_is_compared() {
    let borrower = Submission {
        owner: of(Some("q"), true),
        ..job(0, "1", 100)
    };
    let owner = Submission {
        owner: of(Some("p"), false),
        ..job(10, "1", 10)
    };
    let scene = Scene {
        projects: vec![project("p", 1), project("q", 0)],
        ..scene(&[Mode::Shared], &["a"])
    };
    let jobs = [borrower, owner];
    let figures = figures(&scene, &jobs);
    assert_eq!(figures.all.preempted, 1);
    assert_eq!(figures.all.wait.longest_ms, 0, "the first start counts");
    let found = by_plans(&scene, &jobs);
    assert_eq!((found.preempted.len(), found.waits.len()), (1, 2));
}

/// The range job is preempted at second 2. Nothing happens at second 8, when it would have ended.
#[test]
fn nothing_starts_when_a_preempted_job_would_have_ended() {
    let owned = |owner, job| Submission { owner, ..job };
    let jobs = [
        owned(of(Some("p"), true), job(1, "1-3", 7)),
        owned(of(None, false), job(1, "0.25", 8)),
        owned(of(Some("q"), true), job(2, "1-3", 5)),
        owned(of(Some("q"), false), job(2, "1", 4)),
        owned(of(None, true), job(3, "0.5", 12)),
    ];
    let scene = Scene {
        projects: vec![project("p", 0), project("q", 1)],
        ..scene(&[Mode::Shared; 2], &["a"])
    };
    let found = figures(&scene, &jobs);
    assert_eq!(found.all.preempted, 1);
    // The half starts when the quarter ends, at second 9.
    assert_eq!(found.all.wait.longest_ms, 6000);
    agree(&found, &by_plans(&scene, &jobs)).unwrap();
}
