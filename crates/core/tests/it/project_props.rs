//! What must hold of every plan with projects, over random nodes, projects, jobs and ends.

use crate::node;

use std::collections::{BTreeMap, BTreeSet};

use divvy_core::project::{Limit, Quota, Resources, check_quota, check_user_limit, quota_status};
use divvy_core::{
    AllocatedJob, Gpus, JobId, Mode, Preemption, Project, SchedulingClass, Snapshot, UserName,
    can_ever_fit, plan,
};
use node::{Node, amount};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const NAMES: [&str; 3] = ["a", "b", "c"];
const USERS: [&str; 3] = ["ana", "bob", "cat"];

/// Something that happens to a node.
#[derive(Clone, Debug)]
enum Step {
    Submit(&'static str, SchedulingClass),
    End(Index),
    /// Everybody runs on for so long.
    Pass(u64),
    /// Who is stopped is gone, and waits again.
    Gone,
}

fn projects() -> impl Strategy<Value = Vec<Project>> {
    let project = (
        0..3000_u64,
        proptest::option::of(0..4_u32),
        proptest::option::of(500..5000_u64),
        0..2_i32,
        select(vec![0, 0, 60]),
    );
    vec(project, 1..=NAMES.len()).prop_map(|projects| {
        let named = NAMES.into_iter().zip(projects);
        let project =
            |(name, (quota, weight, limit, priority, min_runtime_s)): (&str, _)| Project {
                quota: Quota {
                    gpus: Gpus::from_thousandths(quota),
                    memory: None,
                },
                weight,
                limit: Limit {
                    gpus: Option::map(limit, Gpus::from_thousandths),
                    memory: None,
                },
                priority,
                min_runtime_s,
                ..Project::new(name.parse().expect("a name"))
            };
        named.map(project).collect()
    })
}

/// Limits of some users, in half of the cases of none.
fn user_limits() -> impl Strategy<Value = BTreeMap<UserName, Gpus>> {
    let limited = proptest::collection::btree_map(select(USERS.to_vec()), 0..3000_u64, 1..=3);
    let limits = limited.prop_map(|limits| {
        let limits = limits.into_iter();
        let limit = |(user, most)| (UserName::from(user), Gpus::from_thousandths(most));
        limits.map(limit).collect()
    });
    prop_oneof![Just(BTreeMap::new()), limits]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let owner = (
        select(vec!["a", "a", "b", "b", "c", "none"]),
        0..3_i32,
        any::<bool>(),
        proptest::option::of(select(USERS.to_vec())),
    )
        .prop_map(|(project, priority, preemptible, user)| SchedulingClass {
            project: (project != "none").then(|| project.parse().expect("a name")),
            priority,
            preemptible,
            user: user.map(UserName::from),
        });
    let amounts = vec![
        "0.125", "0.25", "0.333", "0.5", "0.75", "1", "2", "1-3", "2x0.5", "20GiB", "45GiB",
    ];
    let step = prop_oneof![
        6 => (select(amounts), owner).prop_map(|(text, owner)| Step::Submit(text, owner)),
        2 => any::<Index>().prop_map(Step::End),
        2 => (1..50_u64).prop_map(Step::Pass),
        3 => Just(Step::Gone),
    ];
    vec(step, 1..40)
}

fn nodes() -> impl Strategy<Value = Node> {
    let node = (1..5_u32, projects(), any::<bool>(), user_limits());
    node.prop_map(|(gpus, projects, backfill, user_limits)| {
        let mut node = Node::new(gpus, "");
        node.snapshot.projects = projects;
        node.snapshot.backfill = backfill;
        node.snapshot.user_limits = user_limits;
        node
    })
}

/// What is to be gone, and what was asked for, so that it can be asked for again.
type Requests = BTreeMap<JobId, divvy_core::Request>;

fn happen(step: &Step, node: &mut Node, requests: &mut Requests) {
    match step {
        Step::Submit(text, owner) => {
            let request = amount(text).into();
            let project = node
                .snapshot
                .projects
                .iter()
                .find(|project| Some(&project.name) == owner.project.as_ref());
            let refused = project.is_some_and(|project| {
                check_quota(
                    &node.snapshot.gpus,
                    project,
                    owner,
                    &request,
                    Preemption::On,
                )
                .is_err()
            });
            let user = owner.user.as_ref();
            let limit = user.and_then(|user| Some((user, *node.snapshot.user_limits.get(user)?)));
            let refused = refused
                || limit.is_some_and(|(user, most)| {
                    check_user_limit(&node.snapshot.gpus, user, most, &request).is_err()
                });
            if !refused && can_ever_fit(&node.snapshot.gpus, &request).is_ok() {
                let job = node.ask_as(text, owner.clone());
                requests.insert(JobId(job), request);
            }
        }
        Step::End(index) => {
            if !node.snapshot.held.is_empty() {
                let job = index.get(&node.snapshot.held).job;
                node.end(job.0);
            }
        }
        Step::Pass(seconds) => {
            for held in &mut node.snapshot.held {
                held.ran_s += seconds;
            }
        }
        Step::Gone => {
            let leaving = |held: &mut AllocatedJob| held.leaving;
            for held in node
                .snapshot
                .held
                .extract_if(.., leaving)
                .collect::<Vec<_>>()
            {
                node.put_back(held.job, requests[&held.job].clone(), held.owner);
            }
        }
    }
}

/// The same until nothing changes any more: what starts behind the head may change whose turn it is after it.
fn come_to_rest(node: &mut Node) {
    for _ in 0..100 {
        let head = node.snapshot.head;
        if !carry_out(node) && node.snapshot.head == head {
            return;
        }
    }
    panic!("it never comes to rest");
}

/// Plans, starts, and marks who is to be stopped; whether anybody started.
fn carry_out(node: &mut Node) -> bool {
    let plan = node.step();
    let started = !plan.starts.is_empty();
    for preempt in plan.preempts {
        let mut held = node.snapshot.held.iter_mut();
        let held = held.find(|held| held.job == preempt.job);
        held.expect("whoever is stopped holds something").leaving = true;
    }
    started
}

fn rank(held: &AllocatedJob) -> (bool, std::cmp::Reverse<i32>, JobId) {
    let owner = &held.owner;
    (
        owner.preemptible,
        std::cmp::Reverse(owner.priority),
        held.job,
    )
}

fn used(snapshot: &Snapshot, which: impl Fn(&AllocatedJob) -> bool) -> Resources {
    let grants: Vec<_> = snapshot
        .held
        .iter()
        .filter(|held| which(held))
        .flat_map(|held| held.grants.clone())
        .collect();
    Resources::of(&grants)
}

/// The rules of projects and of users, word by word and by nothing of the planner's.
fn check(snapshot: &Snapshot) {
    for (user, most) in &snapshot.user_limits {
        let holds = used(snapshot, |held| held.owner.user.as_ref() == Some(user));
        assert!(holds.gpus <= *most, "{user} is beyond the limit");
    }
    for project in &snapshot.projects {
        let its = |held: &AllocatedJob| held.owner.project.as_ref() == Some(&project.name);
        assert!(project.limit.holds(used(snapshot, its)), "beyond the limit");
        let fixed = used(snapshot, |held| its(held) && !held.owner.preemptible);
        assert!(
            project.quota.holds(fixed),
            "borrowed by who cannot give back"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn limits_of_projects_and_users_and_quotas_are_never_violated(mut node in nodes(), steps in steps()) {
        let mut requests = Requests::new();
        for step in &steps {
            happen(step, &mut node, &mut requests);
            carry_out(&mut node);
            check(&node.snapshot);
        }
    }

    #[test]
    fn no_job_within_quota_is_preempted_and_none_without_a_gain(mut node in nodes(), steps in steps()) {
        let mut requests = Requests::new();
        for step in &steps {
            happen(step, &mut node, &mut requests);
            let before = node.snapshot.clone();
            let plan = plan(&before);
            prop_assert_eq!(&plan, &divvy_core::plan(&before), "equal snapshots give equal plans");
            carry_out(&mut node);
            let victims: BTreeSet<JobId> = plan.preempts.iter().map(|preempt| preempt.job).collect();
            let Some(by) = plan.preempts.first().map(|preempt| preempt.preemptor) else { continue };
            let victim = |job| before.held.iter().find(|held| held.job == job).expect("it holds something");
            let claimant = before.queues[0].waiting.iter().find(|waiting| waiting.job == by).expect("it waits");

            // Someone of a project is stopped only while its project is over quota by those before it, itself and the claimant.
            let mut gone = BTreeSet::new();
            let mut order: Vec<_> = victims.iter().map(|job| victim(*job)).collect();
            order.sort_by_key(|held| std::cmp::Reverse(rank(held)));
            for held in order {
                prop_assert!(held.owner.preemptible);
                if let Some(project) = before.projects.iter().find(|project| Some(&project.name) == held.owner.project.as_ref()) {
                    prop_assert!(held.ran_s >= project.min_runtime_s);
                    let same = claimant.owner.project == held.owner.project;
                    // It may itself be what brings its project over the quota.
                    let with = used(&node.snapshot, |other| {
                        other.owner.project == held.owner.project && rank(other) <= rank(held) && !gone.contains(&other.job)
                    });
                    prop_assert!(same || !project.quota.holds(with), "within quota, and stopped");
                }
                gone.insert(held.job);
            }

            // With all of them gone the claimant starts, and with one less it does not.
            let starts_without = |gone: &BTreeSet<JobId>| {
                let mut after = node.snapshot.clone();
                after.held.retain(|held| !gone.contains(&held.job) && !held.leaving || victims.contains(&held.job) && !gone.contains(&held.job));
                after.held.iter_mut().for_each(|held| held.leaving = false);
                divvy_core::plan(&after).starts.iter().any(|start| start.job == by)
            };
            prop_assert!(starts_without(&victims), "stopped in vain");
            for spared in &victims {
                let mut fewer = victims.clone();
                fewer.remove(spared);
                prop_assert!(!starts_without(&fewer), "{spared} need not have been stopped");
            }
        }
    }

    #[test]
    fn nothing_that_fits_and_may_start_is_left_idle(mut node in nodes(), steps in steps()) {
        let mut requests = Requests::new();
        for step in &steps {
            happen(step, &mut node, &mut requests);
            come_to_rest(&mut node);
            // Whoever waits for room or for its project, and not for its turn, would not start if it waited alone.
            for wait in plan(&node.snapshot).waits {
                use divvy_core::Reason::{Quota, Preempting, Short};
                if let Short(_) | Preempting(_) | Quota(_) = wait.reason {
                    let mut alone = node.snapshot.clone();
                    alone.queues[0].waiting.retain(|waiting| waiting.job == wait.job);
                    prop_assert!(plan(&alone).starts.is_empty(), "{} waits: {}", wait.job, wait.reason);
                }
            }
            // And while anybody waits for its turn, somebody waits for room.
            let waits = plan(&node.snapshot).waits;
            let behind = waits.iter().any(|wait| matches!(wait.reason, divvy_core::Reason::Behind(_)));
            let first = waits.iter().any(|wait| matches!(wait.reason, divvy_core::Reason::Short(_) | divvy_core::Reason::Preempting(_)));
            prop_assert!(first || !behind);
        }
    }

    #[test]
    fn every_project_gets_a_turn_whatever_its_weight(
        projects in projects(),
        gpus in 1..4_u32,
        mut jobs in vec((select(NAMES.to_vec()), select(vec!["0.25", "0.5", "1"])), 1..30),
    ) {
        // All of them preemptible and each ends some time: then each starts some time.
        let mut node = Node::new(gpus, "");
        node.snapshot.projects = projects;
        for project in &mut node.snapshot.projects {
            project.limit = Limit::default();
        }
        jobs.iter_mut().for_each(|(project, text)| {
            let owner = SchedulingClass { project: Some(project.parse().expect("a name")), priority: 0, preemptible: true, user: None };
            node.ask_as(text, owner);
        });
        let mut left = jobs.len();
        for _ in 0..jobs.len() {
            let started = node.step().starts.len();
            prop_assert!(started > 0 || node.snapshot.queues[0].waiting.is_empty(), "nobody starts on an empty node");
            left -= started;
            node.snapshot.held.clear();
        }
        prop_assert_eq!(left, 0);
    }

    #[test]
    fn fair_shares_fill_the_node_and_quotas_come_first(mut node in nodes(), steps in steps()) {
        let mut requests = Requests::new();
        for step in &steps {
            happen(step, &mut node, &mut requests);
            carry_out(&mut node);
            let managed = node.snapshot.gpus.iter().filter(|gpu| gpu.mode != Mode::Unmanaged).count();
            let standings = quota_status(&node.snapshot);
            let sum: u64 = standings.iter().map(|standing| standing.fair_share.thousandths()).sum();
            prop_assert!(sum <= managed as u64 * 1000);
            for standing in &standings {
                prop_assert!(standing.over.gpus <= standing.used.gpus);
            }
        }
    }
}
