//! The worked figures of the systems whose quotas people know: Run:ai's (Q1 to Q8), ClearML's (C1 to C5).

use crate::node;

use divvy_core::mig::{UnallocatedInstance, UnallocatedState};
use divvy_core::project::{
    Limit, OutOfQuota, Quota, check_quota, quota_exceeded_by_resize, quota_status,
};
use divvy_core::units::gpus;
use divvy_core::{
    Bytes, Gpus, JobId, PendingJob, Preemption, Project, Reason, SchedulingClass, plan, why,
};
use node::{Node, amount, cut};

/// A project with a quota.
fn project(name: &str, quota: &str) -> Project {
    Project {
        quota: Quota {
            gpus: quota.parse().expect("a word of the test"),
            memory: None,
        },
        ..Project::new(name.parse().expect("a word of the test"))
    }
}

fn weighing(weight: u32, project: Project) -> Project {
    Project {
        weight: Some(weight),
        ..project
    }
}

fn limited(limit: &str, project: Project) -> Project {
    Project {
        limit: Limit {
            gpus: Some(limit.parse().expect("a word of the test")),
            memory: None,
        },
        ..project
    }
}

fn owner(project: &str) -> SchedulingClass {
    SchedulingClass {
        project: (!project.is_empty()).then(|| project.parse().expect("a word of the test")),
        priority: 0,
        preemptible: true,
        user: None,
    }
}

fn fixed(project: &str) -> SchedulingClass {
    SchedulingClass {
        preemptible: false,
        ..owner(project)
    }
}

/// So many GPUs, and these projects.
fn node(gpus: u32, projects: impl IntoIterator<Item = Project>) -> Node {
    let mut node = Node::new(gpus, "");
    node.snapshot.projects = projects.into_iter().collect();
    node
}

/// Submits so many jobs for this much; the last one's number.
fn submit(node: &mut Node, count: u32, text: &str, owner: &SchedulingClass) -> u64 {
    (0..count)
        .map(|_| node.ask_as(text, owner.clone()))
        .last()
        .expect("at least one")
}

/// What a project uses, in GPUs.
fn uses(node: &Node, project: &str) -> String {
    let held = node.snapshot.held.iter();
    let its = held.filter(|held| {
        held.owner
            .project
            .as_ref()
            .is_some_and(|name| name.as_str() == project)
    });
    let grants = its.flat_map(|held| &held.grants);
    gpus(
        grants
            .map(|grant| u64::from(grant.share.thousandths()))
            .sum(),
    )
    .to_string()
}

fn preempted(node: &Node) -> Vec<u64> {
    plan(&node.snapshot)
        .preempts
        .iter()
        .map(|preempt| preempt.job.0)
        .collect()
}

#[test]
fn q1_idle_gpus_are_split_in_proportion_to_the_quotas() {
    let mut node = node(8, [project("a", "3"), project("b", "1")]);
    submit(&mut node, 10, "1", &owner("b"));
    submit(&mut node, 10, "1", &owner("a"));
    node.start();
    assert_eq!(
        (uses(&node, "a"), uses(&node, "b")),
        ("6".into(), "2".into())
    );
}

#[test]
fn q2_quota_first_and_the_rest_by_over_quota_weight() {
    let low = weighing(1, project("a", "3"));
    let high = weighing(3, project("b", "1"));
    let mut node = node(8, [low, high, weighing(0, project("none", "0"))]);
    submit(&mut node, 10, "1", &owner("none"));
    submit(&mut node, 10, "1", &owner("a"));
    submit(&mut node, 10, "1", &owner("b"));
    node.start();
    assert_eq!(
        (uses(&node, "a"), uses(&node, "b")),
        ("4".into(), "4".into())
    );
    assert_eq!(uses(&node, "none"), "0");
}

#[test]
fn q3_a_fair_share_is_quota_plus_idle_by_weight() {
    let projects = [
        weighing(2, project("x", "4")),
        weighing(3, project("y", "6")),
        weighing(1, project("z", "0")),
    ];
    let mut node = node(30, projects);
    for name in ["x", "y", "z"] {
        submit(&mut node, 40, "1", &owner(name));
    }
    let shares: Vec<Gpus> = quota_status(&node.snapshot)
        .iter()
        .map(|standing| standing.fair_share)
        .collect();
    let thousandths = [10_667, 16_000, 3333, 0].map(Gpus::from_thousandths);
    assert_eq!(
        shares, thousandths,
        "16, and 3 once rounded down to whole GPUs"
    );
    node.start();
    assert_eq!(uses(&node, "y"), "16");
    assert_eq!(node.snapshot.held.len(), 30);
}

#[test]
fn q4_projects_beyond_the_fair_share_give_way_first_and_none_within_quota() {
    let projects = [
        weighing(1, project("a", "1")),
        weighing(1, project("b", "1")),
        project("c", "2"),
    ];
    let mut node = node(6, projects);
    let a = submit(&mut node, 4, "1", &owner("a"));
    node.start();
    let b = submit(&mut node, 2, "1", &owner("b"));
    node.start();
    // a has four of six and b two, and each is due two once c wants its own.
    let c = submit(&mut node, 2, "1", &owner("c"));
    assert_eq!(preempted(&node), [a], "the youngest of whoever is beyond");
    node.end(a);
    assert_eq!(node.start(), [c - 1]);
    assert_eq!(preempted(&node), [a - 1]);
    node.end(a - 1);
    assert_eq!(node.start(), [c]);

    // Everybody at the fair share: then over quota is enough, and within quota never is.
    let three = submit(&mut node, 1, "3", &fixed("c"));
    assert!(matches!(reason(&node, three), Reason::Quota(_)));
    node.snapshot.projects[2].quota.gpus = Gpus::whole(6);
    assert_eq!(
        preempted(&node),
        [0; 0],
        "all who are over would not be enough"
    );
    node.snapshot.queues[0].waiting.clear();
    let two = submit(&mut node, 1, "2", &fixed("c"));
    assert_eq!(preempted(&node), [a - 2, b], "one of each is left");
    node.end(a - 2);
    node.end(b);
    assert_eq!(node.start(), [two]);
}

#[test]
fn q5_priority_preempts_inside_a_project_and_never_across() {
    let mut node = node(4, [project("a", "2"), project("b", "2")]);
    let low = submit(&mut node, 2, "1", &owner("a"));
    submit(&mut node, 2, "1", &owner("b"));
    node.start();
    let urgent = SchedulingClass {
        priority: 10,
        ..owner("a")
    };
    let high = submit(&mut node, 1, "1", &urgent);
    assert_eq!(preempted(&node), [low], "its own project's youngest");
    assert_eq!(
        node.reason(high),
        format!(
            "within a's quota (1 of 2 GPUs with it): starts when #{low}, over quota, is preempted for it"
        )
    );
    // With all of its own project as urgent as it is, nobody gives way, however idle the others' priority is.
    for held in &mut node.snapshot.held {
        if held.owner.project == urgent.project {
            held.owner.priority = 10;
        }
    }
    assert_eq!(preempted(&node), [0; 0]);
}

#[test]
fn q6_gpus_without_demand_may_be_used_beyond_the_fair_share() {
    let mut node = node(4, [weighing(0, project("a", "1")), project("b", "3")]);
    submit(&mut node, 4, "1", &owner("a"));
    assert_eq!(node.start().len(), 4);
    // Until somebody does.
    let first = submit(&mut node, 3, "1", &owner("b")) - 2;
    assert_eq!(preempted(&node), [4]);
    node.end(4);
    assert_eq!(node.start(), [first]);
}

#[test]
fn q7_over_quota_is_over_in_any_resource() {
    let memory = Project {
        quota: Quota {
            gpus: Gpus::whole(2),
            memory: Some(Bytes::gib(80)),
        },
        ..project("a", "0")
    };
    let mut node = node(2, [memory, project("b", "1")]);
    let job = submit(&mut node, 3, "40GiB", &owner("a"));
    assert_eq!(node.start().len(), 3);
    let over = &quota_status(&node.snapshot)[0].over;
    assert_eq!(
        (over.gpus, over.memory),
        ("0.5".parse().unwrap(), Bytes::gib(40))
    );
    submit(&mut node, 1, "1", &fixed("b"));
    assert_eq!(preempted(&node), [job], "1.5 of 2 GPUs, but 120 of 80 GiB");
}

#[test]
fn q8_parts_are_packed_and_a_job_that_can_go_on_elsewhere_is_moved() {
    let mut node = node(3, [project("a", "1"), project("b", "2")]);
    submit(&mut node, 4, "0.5", &owner("a"));
    node.start();
    assert_eq!(
        (1..=4).map(|job| node.labels(job)).collect::<Vec<_>>(),
        ["gpu0.5a", "gpu0.5b", "gpu1.5a", "gpu1.5b"],
        "two to a GPU"
    );
    // The last one's leaving makes two GPUs empty.
    node.end(3);
    let b = submit(&mut node, 1, "2", &fixed("b"));
    assert_eq!(preempted(&node), [4]);
    node.end(4);
    assert_eq!(node.start(), [b]);

    // Of two that would do, the one that finds room elsewhere, though it has run for longer.
    let mut node = Node::new(3, "");
    node.snapshot.projects = vec![project("a", "0"), project("b", "1")];
    for (text, owner) in [
        ("0.75", owner("a")),
        ("0.5", owner("a")),
        ("0.5", owner("a")),
        ("0.5", fixed("")),
    ] {
        submit(&mut node, 1, text, &owner);
        node.start();
    }
    node.end(3);
    assert_eq!(
        [1, 2, 4].map(|job| node.labels(job)),
        ["gpu0.75a", "gpu1.5a", "gpu2.5a"]
    );
    node.snapshot.held[1].ran_s = 1000;
    let b = submit(&mut node, 1, "1", &fixed("b"));
    assert_eq!(preempted(&node), [2]);
    node.end(2);
    let moved = submit(&mut node, 1, "0.5", &owner("a"));
    assert_eq!(node.start(), [b, moved]);
    assert_eq!(node.labels(moved), "gpu2.5b");
}

fn reason(node: &Node, job: u64) -> Reason {
    let plan = plan(&node.snapshot);
    let wait = plan.waits.into_iter().find(|wait| wait.job == JobId(job));
    wait.expect("a job that waits").reason
}

#[test]
fn c1_no_project_goes_beyond_its_limit() {
    let mut node = node(4, [limited("1.5", project("a", "1"))]);
    let last = submit(&mut node, 5, "0.5", &owner("a"));
    let other = submit(&mut node, 1, "1", &owner(""));
    let mut started = node.start();
    started.sort_unstable();
    assert_eq!(started, [1, 2, 3, other], "and it stops nobody else");
    assert_eq!(
        node.reason(4),
        "a's limit is 1.5 GPUs; 1.5 in use, 0.5 more needed"
    );
    assert_eq!(
        node.reason(last),
        "behind #4 of the same project: a's limit is 1.5 GPUs; 1.5 in use, 0.5 more needed"
    );
    // A range takes what is allowed.
    let mut node = Node::new(4, "");
    node.snapshot.projects = vec![limited("2.5", project("a", "0"))];
    submit(&mut node, 1, "1-4", &owner("a"));
    node.start();
    assert_eq!(uses(&node, "a"), "2");
    // Within the quota it takes no more than that, and so is never stopped.
    node.end(1);
    node.snapshot.projects[0].quota.gpus = "1.5".parse().unwrap();
    submit(&mut node, 1, "1-4", &owner("a"));
    node.start();
    assert_eq!(uses(&node, "a"), "1");
}

#[test]
fn a_range_takes_no_longer_to_place_than_there_are_gpus() {
    let mut node = node(8, [project("a", "2")]);
    let endless = format!("1-{}", u32::MAX);
    let job = submit(&mut node, 1, &endless, &fixed("a"));
    assert_eq!(node.start(), [job]);
    assert_eq!(uses(&node, "a"), "2");
    // Not even one GPU is left of its quota.
    let none = submit(&mut node, 1, &endless, &fixed("a"));
    assert_eq!(node.start(), [0; 0]);
    assert_eq!(
        node.reason(none),
        "a's quota is 2 GPUs; 2 in use, 1 more needed, and only preemptible jobs may exceed it"
    );
}

/// Why a job may not hold so much of its GPU.
fn outgrows(node: &Node, job: u64, share: &str) -> Option<String> {
    let mut held = node.snapshot.held.iter();
    let held = held.find(|held| held.job.0 == job).expect("it runs");
    let mut grants = held.grants.clone();
    grants[0].share = share.parse().expect("a word of the test");
    quota_exceeded_by_resize(&node.snapshot, JobId(job), &grants)
        .map(|overdraft| overdraft.to_string())
}

#[test]
fn no_job_grows_beyond_the_limit_and_only_preemptible_jobs_beyond_the_quota() {
    let mut node = node(2, [limited("1.5", project("a", "1"))]);
    for owner in [fixed("a"), fixed("a"), owner("a")] {
        submit(&mut node, 1, "0.25", &owner);
    }
    assert_eq!(node.start(), [1, 2, 3]);
    assert_eq!(outgrows(&node, 1, "0.75"), None);
    assert_eq!(
        outgrows(&node, 1, "0.875").expect("0.25 is another's who cannot give way"),
        "a's quota is 1 GPU; 0.25 in use, 0.875 more needed, and only preemptible jobs may exceed it"
    );
    assert_eq!(outgrows(&node, 3, "1"), None);
    let limit = |gpus: &str| Some(gpus.parse().expect("a word of the test"));
    node.snapshot.projects[0].limit.gpus = limit("1.25");
    assert_eq!(
        outgrows(&node, 3, "1").expect("all of them count"),
        "a's limit is 1.25 GPUs; 0.5 in use, 1 more needed"
    );
    // Whoever shrinks is never in the way.
    node.snapshot.projects[0].limit.gpus = limit("0.5");
    assert_eq!(outgrows(&node, 3, "0.125"), None);
}

#[test]
fn c2_a_project_below_its_quota_comes_before_a_higher_one_above_its_own() {
    let dev = Project {
        priority: 1,
        ..limited("16", project("dev", "8"))
    };
    let mut node = node(16, [dev, limited("16", project("research", "8"))]);
    submit(&mut node, 4, "4", &owner("dev"));
    submit(&mut node, 4, "4", &owner("research"));
    assert_eq!(node.start().len(), 4);
    assert_eq!(
        (uses(&node, "dev"), uses(&node, "research")),
        ("8".into(), "8".into())
    );
    assert_eq!(plan(&node.snapshot).waits.len(), 4);
}

#[test]
fn c3_above_the_reservations_the_higher_priority_comes_first() {
    let research = Project {
        priority: 1,
        ..project("research", "4")
    };
    let mut node = node(16, [project("dev", "4"), research]);
    submit(&mut node, 4, "4", &owner("dev"));
    submit(&mut node, 4, "4", &owner("research"));
    node.start();
    assert_eq!(
        (uses(&node, "dev"), uses(&node, "research")),
        ("4".into(), "12".into())
    );
}

#[test]
fn c4_what_is_larger_than_the_limit_is_refused() {
    let project = limited("2", project("a", "1"));
    let gpus: Vec<_> = (0..4).map(node::gpu).collect();
    let ask = |text: &str, owner: &SchedulingClass| {
        let refused: Result<(), OutOfQuota> =
            check_quota(&gpus, &project, owner, &amount(text).into(), Preemption::On);
        refused.map_err(|refused| (refused.to_string(), refused.hint()))
    };
    assert_eq!(ask("2", &owner("a")), Ok(()));
    assert_eq!(ask("2-4", &owner("a")), Ok(()));
    let (message, hint) = ask("3", &owner("a")).unwrap_err();
    assert_eq!(message, "a's limit is 2 GPUs, and the job requests 3");
    assert!(
        hint.starts_with("the nearest request that fits is -g 2;"),
        "{hint}"
    );
    let (message, hint) = ask("2", &fixed("a")).unwrap_err();
    assert_eq!(
        message,
        "a's quota is 1 GPU, and the job requests 2, and only preemptible jobs may exceed it"
    );
    assert!(hint.contains("-g 1; --preemptible"), "{hint}");

    // One that waits when the limit is lowered holds nobody up.
    let mut node = node(4, [project.clone()]);
    let large = submit(&mut node, 1, "3", &owner("a"));
    let small = submit(&mut node, 1, "1", &owner("a"));
    assert_eq!(node.start(), [small]);
    assert_eq!(
        node.reason(large),
        "a's limit is 2 GPUs, and the job requests 3"
    );
}

#[test]
fn c5_without_preemption_every_project_may_go_over_quota_and_no_job_is_stopped() {
    let mut node = node(4, [project("a", "1"), project("b", "3")]);
    node.snapshot.preemption = Preemption::Off;
    submit(&mut node, 4, "1", &fixed("a"));
    assert_eq!(node.start().len(), 4);
    submit(&mut node, 1, "1", &owner("b"));
    assert_eq!(preempted(&node), [0; 0]);
    assert_eq!(node.reason(5), "needs 1 whole GPU; 4 of 4 GPUs in use");
}

#[test]
fn no_job_is_preempted_before_the_minimum_runtime() {
    let patient = Project {
        min_runtime_s: 600,
        ..project("a", "0")
    };
    let mut node = node(2, [patient, project("b", "2")]);
    submit(&mut node, 2, "1", &owner("a"));
    node.start();
    node.snapshot.held[0].ran_s = 560;
    let b = submit(&mut node, 1, "1", &owner("b"));
    let young = plan(&node.snapshot);
    assert_eq!((young.preempts.len(), young.replan_in_s), (0, Some(600)));
    node.snapshot.held[1].ran_s = 700;
    let old = plan(&node.snapshot);
    assert_eq!(
        (old.preempts[0].job, old.preempts[0].preemptor),
        (JobId(2), JobId(b))
    );
    assert_eq!(old.replan_in_s, None);
}

#[test]
fn a_job_that_is_ending_is_waited_for_and_no_other_job_is_preempted() {
    let mut node = node(2, [project("a", "0"), project("b", "1")]);
    submit(&mut node, 2, "1", &owner("a"));
    node.start();
    let b = submit(&mut node, 1, "1", &owner("b"));
    assert_eq!(preempted(&node), [2]);
    node.snapshot.held[1].leaving = true;
    assert_eq!(preempted(&node), [0; 0]);
    assert_eq!(
        node.reason(b),
        "within b's quota (1 of 1 GPUs with it): starts when #2, over quota, is preempted for it"
    );
}

/// The driver still shows an instance where the job's own lies, as after a failed removal.
#[test]
fn no_job_is_preempted_where_its_place_would_not_be_free() {
    let mut node = node(1, [project("a", "0"), project("b", "1")]);
    cut(&mut node.snapshot.gpus[0], "a100-40gb");
    submit(&mut node, 1, "7g.40gb", &owner("a"));
    node.start();
    submit(&mut node, 1, "7g.40gb", &owner("b"));
    assert_eq!(preempted(&node), [1]);
    let held = node.snapshot.held[0].grants[0].mig.expect("an instance");
    let inventory = node.snapshot.gpus[0].mig.as_mut().expect("MIG mode");
    inventory.instances.push(UnallocatedInstance {
        placement: held.placement,
        standing: UnallocatedState::Quarantined,
    });
    assert_eq!(preempted(&node), [0; 0]);
}

#[test]
fn jobs_that_cannot_be_preempted_stay_within_quota_and_preemptible_ones_go_on_beyond() {
    let mut node = node(4, [project("a", "1")]);
    submit(&mut node, 1, "0.75", &fixed("a"));
    let waits = submit(&mut node, 1, "0.5", &fixed("a"));
    let goes = submit(&mut node, 1, "2", &owner("a"));
    assert_eq!(node.start(), [1, goes]);
    assert_eq!(
        node.reason(waits),
        "a's quota is 1 GPU; 0.75 in use, 0.5 more needed, and only preemptible jobs may exceed it"
    );
    let said = why(&node.snapshot, JobId(waits)).unwrap();
    assert!(said.jobs_ahead.is_empty());
}

#[test]
fn only_jobs_in_the_way_of_a_start_are_preempted() {
    let mut node = node(4, [project("a", "0"), project("b", "2")]);
    // Halves on GPUs 0 and 1, whole jobs on 2 and 3; the cheap halves of GPU 0 and 1 are no use for two whole GPUs.
    for text in ["0.5", "0.5", "0.5", "0.5", "1", "1"] {
        submit(&mut node, 1, text, &owner("a"));
    }
    node.start();
    for held in &mut node.snapshot.held {
        held.ran_s = held.job.0;
    }
    submit(&mut node, 1, "1", &fixed("b"));
    assert_eq!(
        preempted(&node),
        [5],
        "one that is enough, before two that are cheaper"
    );
    node.snapshot.queues[0].waiting.clear();
    submit(&mut node, 1, "2", &fixed("b"));
    let gone = preempted(&node);
    for spared in &gone {
        let mut node = node.clone();
        for job in gone.iter().filter(|job| *job != spared) {
            node.end(*job);
        }
        assert!(node.start().is_empty(), "#{spared} was needed");
    }
    for job in &gone {
        node.end(*job);
    }
    assert_eq!(node.start().len(), 1);
}

#[test]
fn a_preempted_gpu_is_not_taken_by_a_later_job_of_the_same_project() {
    let mut node = node(3, [project("a", "1.75")]).backfilling();
    submit(&mut node, 1, "0.333", &fixed(""));
    let victim = submit(&mut node, 1, "0.75", &owner("a"));
    let ends = submit(&mut node, 1, "0.125", &fixed("a"));
    submit(&mut node, 1, "1", &fixed("a"));
    node.start();
    let first = SchedulingClass {
        priority: 2,
        ..fixed("a")
    };
    let head = submit(&mut node, 1, "0.75", &first);
    let after = submit(&mut node, 1, "0.125", &fixed("a"));
    node.start();
    node.end(ends);
    assert_eq!(preempted(&node), [victim]);
    assert_eq!(
        node.start(),
        [0; 0],
        "there is room for it, and not in the quota"
    );
    assert!(matches!(reason(&node, after), Reason::WouldDelay(_)));
    node.end(victim);
    assert_eq!(node.start(), [head]);
    assert!(matches!(reason(&node, after), Reason::Quota(_)));
}

#[test]
fn backfill_leaves_room_for_the_preemptor_beside_a_job_that_its_victim_brings_within_quota() {
    let first = |project| Project {
        priority: 1,
        ..project
    };
    let (a, b) = (project("a", "1.125"), weighing(2, project("b", "0")));
    let mut node = node(3, [first(a), first(b), project("c", "1.25")]).backfilling();
    let victim = submit(&mut node, 1, "1", &owner("a"));
    submit(&mut node, 1, "0.833", &fixed("a"));
    submit(&mut node, 1, "0.25", &fixed(""));
    node.start();
    let over = submit(&mut node, 1, "0.25", &owner("a"));
    let head = submit(&mut node, 1, "2x0.5", &fixed("c"));
    let late = submit(&mut node, 1, "0.25", &owner("b"));
    assert_eq!(preempted(&node), [victim]);
    // Each alone leaves the head its half GPU, and both do not: the victim's end brings `over` before the head.
    assert_eq!(node.start(), [over]);
    assert!(matches!(reason(&node, late), Reason::WouldDelay(_)));
    node.end(victim);
    assert!(node.start().contains(&head));
}

#[test]
fn the_first_pending_job_is_not_passed_for_what_its_project_got_meanwhile() {
    let mut node = node(2, [weighing(2, project("a", "1.438"))]).backfilling();
    let ends = submit(&mut node, 1, "2", &fixed(""));
    node.start();
    submit(&mut node, 1, "20GiB", &owner("a"));
    let first = SchedulingClass {
        priority: 2,
        ..owner("a")
    };
    let head = submit(&mut node, 1, "2x0.5", &first);
    let fits = SchedulingClass {
        priority: 2,
        ..fixed("a")
    };
    let fits = submit(&mut node, 1, "45GiB", &fits);
    submit(&mut node, 1, "0.333", &fixed(""));
    submit(&mut node, 1, "20GiB", &owner("a"));
    node.end(ends);
    assert_eq!(node.start()[0], fits);
    assert_eq!(node.snapshot.head, Some(JobId(head)));
    assert_eq!(node.start(), [0; 0]);
    node.end(fits);
    assert_eq!(node.start()[0], head);
}

#[test]
fn without_projects_nothing_is_different() {
    let mut node = Node::new(1, "");
    let waiting = PendingJob {
        owner: fixed("unknown"),
        ..PendingJob::new(JobId(1), amount("0.5").into())
    };
    node.snapshot.queues[0].waiting.push(waiting);
    assert_eq!(node.start(), [1]);
    assert!(quota_status(&node.snapshot).is_empty());
}

#[test]
fn pending_jobs_within_the_unused_quota_are_entitled_to_it_and_no_others() {
    let mut node = node(2, [project("a", "1"), project("b", "1")]);
    submit(&mut node, 2, "1", &fixed(""));
    node.start();
    // Half of the quota, all of it, and too much; one outside projects.
    for request in ["0.5", "1", "2"] {
        submit(&mut node, 1, request, &owner("a"));
    }
    submit(&mut node, 1, "1", &owner(""));
    let entitled = |node: &Node| -> Vec<u64> {
        let found = quota_status(&node.snapshot);
        found.iter().map(|standing| standing.entitled).collect()
    };
    assert_eq!(entitled(&node), [2, 0, 0]);
    // Once half of the quota is in use, the whole GPU no longer fits.
    node.end(1);
    node.start();
    assert_eq!(uses(&node, "a"), "0.5");
    assert_eq!(entitled(&node), [0, 0, 0]);
}
