//! The limit of GPUs of each user: the jobs that wait for it, those that do not, and the texts of the reasons.

use crate::node::{Node, amount, gpu};

use divvy_core::project::{check_user_limit, quota_exceeded_by_resize};
use divvy_core::start_bound::{JobBounds, latest_start};
use divvy_core::{Gpus, JobId, Project, Reason, SchedulingClass, UserName, plan, why};

fn of(user: &str) -> SchedulingClass {
    SchedulingClass {
        user: Some(user.into()),
        ..SchedulingClass::default()
    }
}

/// So many GPUs, and the limits of these users.
fn node(gpus: u32, limits: &[(&str, &str)]) -> Node {
    let mut node = Node::new(gpus, "");
    let limits = limits.iter();
    let limits =
        limits.map(|(user, most)| (UserName::from(*user), most.parse().expect("an amount")));
    node.snapshot.user_limits = limits.collect();
    node
}

#[test]
fn a_job_beyond_the_limit_waits_and_delays_only_jobs_of_its_user() {
    let mut node = node(8, &[("ana", "2")]);
    let ana: Vec<u64> = ["1", "0.5", "1", "0.25"]
        .map(|text| node.ask_as(text, of("ana")))
        .into();
    let bob = node.ask_as("4", of("bob"));
    assert_eq!(node.start(), [ana[0], ana[1], bob]);
    assert_eq!(
        node.reason(ana[2]),
        "the limit of user ana is 2 GPUs; 1.5 in use, 1 more needed"
    );
    assert_eq!(
        node.reason(ana[3]),
        "behind #3 of the same user: the limit of user ana is 2 GPUs; 1.5 in use, 1 more needed"
    );
    let waits = plan(&node.snapshot).waits;
    assert!(matches!(waits[0].reason, Reason::Quota(_)));
    assert!(matches!(waits[1].reason, Reason::BehindQuota(_)));
    let why = why(&node.snapshot, JobId(ana[2])).unwrap();
    assert!(why.summary.contains("the limit of user ana is 2 GPUs"));
    let ends = why.suggestions.iter().map(ToString::to_string);
    let ends: Vec<String> = ends.filter(|text| text.contains("ends")).collect();
    assert_eq!(
        ends,
        ["would start when any one of #1 or #2 ends"],
        "#5 of another user does not help"
    );
    node.end(ana[1]);
    assert_eq!(node.start(), [ana[2]]);
}

#[test]
fn a_range_takes_what_the_limit_leaves_and_a_user_of_no_limit_takes_all() {
    let mut node = node(8, &[("ana", "3")]);
    node.ask_as("1-4", of("ana"));
    node.ask_as("1-8", of("bob"));
    node.start();
    let counts = node.snapshot.held.iter().map(|held| held.grants.len());
    assert_eq!(counts.collect::<Vec<_>>(), [3, 5]);
}

#[test]
fn the_limit_holds_over_all_projects_and_beside_their_limits() {
    let mut node = node(8, &[("ana", "3")]);
    let project = |name: &str| {
        let mut project = Project::new(name.parse().unwrap());
        project.quota.gpus = Gpus::whole(4);
        project
    };
    node.snapshot.projects = vec![project("a"), project("b")];
    let within = |name: &str| SchedulingClass {
        project: Some(name.parse().unwrap()),
        ..of("ana")
    };
    let first = node.ask_as("2", within("a"));
    let second = node.ask_as("2", within("b"));
    let smaller = node.ask_as("1", within("a"));
    assert_eq!(node.start(), [first]);
    assert!(node.reason(second).starts_with("the limit of user ana is"));
    assert!(
        node.reason(smaller)
            .starts_with("behind #2 of the same user")
    );
}

#[test]
fn backfill_does_not_take_the_limit_from_a_job_of_the_same_user_that_waits_for_room() {
    let mut node = node(2, &[("ana", "2")]).backfilling();
    let bob = node.ask_as("1", of("bob"));
    node.start();
    let large = node.ask_as("2", of("ana"));
    let small = node.ask_as("0.5", of("ana"));
    let other = node.ask_as("0.5", of("bob"));
    // A backfilled job may run on the GPU that the large job needs as well, so room decides here.
    assert_eq!(node.start(), [0; 0]);
    assert!(node.reason(large).starts_with("needs 2 whole GPUs"));
    assert!(node.reason(small).contains("could delay #2"));
    assert!(node.reason(other).contains("could delay #2"));
    node.end(bob);
    assert_eq!(node.start(), [large]);

    // On another GPU the room delays nothing, and the limit does.
    for (most, starts) in [("1", false), ("1.5", true)] {
        let mut node = self::node(2, &[("ana", most)]).backfilling();
        node.ask_as("1", of("bob"));
        node.start();
        let busy = node.snapshot.held[0].grants[0].index;
        let mut ask = |on: u32, text: &str| {
            let request = divvy_core::Request {
                on: vec![on],
                ..amount(text).into()
            };
            let job = node.submit_request("default", request);
            let queue = node.snapshot.queues.last_mut().unwrap();
            queue.waiting.last_mut().unwrap().owner = of("ana");
            job
        };
        let head = ask(busy, "1");
        let small = ask(1 - busy, "0.5");
        assert_eq!(node.start() == [small], starts, "with a limit of {most}");
        assert!(node.reason(head).starts_with("needs 1 whole GPU"));
    }
}

#[test]
fn a_request_beyond_the_limit_is_refused_with_the_nearest_one_within() {
    let gpus: Vec<_> = (0..4).map(gpu).collect();
    let ana = UserName::from("ana");
    let refused = |most: &str, text: &str| {
        let most = most.parse().unwrap();
        let refused = check_user_limit(&gpus, &ana, most, &amount(text).into()).unwrap_err();
        (refused.to_string(), refused.hint())
    };
    for (most, text, nearest) in [
        ("2", "3", "-g 2"),
        ("2", "3-4", "-g 2"),
        ("2", "4x0.75", "-g 2x0.75"),
        ("0.5", "1", "-g 0.5"),
        ("0.25", "0.5", "-g 0.25"),
        ("0.25", "40GiB", "--gpu-memory 20GiB"),
        ("0.9", "2x0.5", "-g 0.5"),
    ] {
        let (message, hint) = refused(most, text);
        assert!(
            message.starts_with("the limit of user ana is "),
            "{message}"
        );
        assert!(
            hint.starts_with(&format!("the nearest request that fits is {nearest};")),
            "{text} within {most}: {hint}"
        );
    }
    let (message, hint) = refused("0", "0.001");
    assert_eq!(
        message,
        "the limit of user ana is 0 GPUs, and the job requests 0.001"
    );
    assert!(hint.starts_with("administrators change"), "{hint}");
    assert_eq!(
        check_user_limit(&gpus, &ana, Gpus::whole(2), &amount("1-4").into()),
        Ok(())
    );
}

#[test]
fn a_lowered_limit_stops_no_job_and_a_job_that_never_fits_it_delays_none() {
    let mut node = node(4, &[("ana", "3")]);
    let runs = node.ask_as("3", of("ana"));
    node.start();
    let (large, small) = (node.ask_as("2", of("ana")), node.ask_as("1", of("ana")));
    node.snapshot.user_limits = [("ana".into(), Gpus::whole(1))].into();
    assert_eq!(node.start(), [0; 0]);
    assert_eq!(
        node.reason(large),
        "the limit of user ana is 1 GPU, and the job requests 2"
    );
    node.end(runs);
    assert_eq!(node.start(), [small]);
}

#[test]
fn a_running_job_does_not_grow_beyond_the_limit_of_its_user() {
    let mut node = node(2, &[("ana", "1")]);
    let job = node.ask_as("0.5", of("ana"));
    node.ask_as("0.25", of("ana"));
    node.start();
    let grown = |share: &str| {
        let mut grants = node.snapshot.held[0].grants.clone();
        grants[0].share = share.parse().unwrap();
        quota_exceeded_by_resize(&node.snapshot, JobId(job), &grants).map(|it| it.to_string())
    };
    assert_eq!(grown("0.75"), None);
    assert_eq!(
        grown("0.8").unwrap(),
        "the limit of user ana is 1 GPU; 0.25 in use, 0.8 more needed"
    );
    assert_eq!(grown("0.1"), None, "less is always allowed");
}

#[test]
fn a_latest_start_is_promised_only_where_no_limit_can_delay_a_job() {
    let mut node = node(1, &[("ana", "2")]);
    node.ask_as("1", of("ana"));
    node.start();
    let waits = node.ask_as("1", of("ana"));
    let known = JobBounds {
        remaining_s: [(JobId(1), 60), (JobId(waits), 60)].into(),
        ..JobBounds::default()
    };
    assert_eq!(latest_start(&node.snapshot, JobId(waits), &known), Some(60));
    node.snapshot.user_limits = [("ana".into(), Gpus::from_thousandths(1500))].into();
    assert_eq!(latest_start(&node.snapshot, JobId(waits), &known), None);
}
