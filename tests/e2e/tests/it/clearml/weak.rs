//! Weak points of the stock agent's dynamic mode, each shown not to be here.
//!
//! | the stock agent | shown by |
//! |---|---|
//! | frees a slot that was killed after ten minutes | `life::a_slot_whose_processes_are_killed_is_free_and_its_task_failed`, `containers::a_container_that_is_killed_frees_its_slot` |
//! | pulls more than fits while containers start | `life::a_hundred_quarters_that_start_slowly_are_never_more_than_four_a_gpu` |
//! | judges by its last queue whether parts are asked for | `the_order_of_queues_says_nothing_about_parts` |
//! | takes parts of any size, and refuses what the vendor prints | `what_can_never_run_is_refused_at_the_start`, `gpus_may_be_listed_with_blanks` |
//! | reports free GPUs that do not add up | `nothing_is_asked_that_open_servers_do_not_have` |
//! | gives a range more than there is | `placement::a_range_takes_the_whole_gpus_that_are_free_and_no_part_of_another` |
//! | runs out of letters | `a_slots_letter_is_used_again` |
//! | wipes a user's abort away by starting again and again | `a_task_is_started_once_and_without_force` |
//! | lets a task's arguments out of its part | `containers::a_tasks_own_arguments_do_not_let_it_out` |
//! | waits for its next look between two tasks | `what_waits_is_pulled_without_waiting_for_the_next_look` |
//! | knows its slots after a crash (which must stay so) | `life::a_daemon_that_is_killed_and_started_again_knows_its_slots` |
//! | loses a task whose start fails | `a_task_that_cannot_be_started_fails_and_says_why` |

use std::fs;

use divvy_e2e::clearml::Scene;
use divvy_e2e::until;

#[test]
fn the_order_of_queues_says_nothing_about_parts() {
    for queues in [
        ["half_gpu=0.5", "single_gpu=1"],
        ["single_gpu=1", "half_gpu=0.5"],
    ] {
        let scene = Scene::new("a100-80gb:2");
        let tasks = ["half", "single"].map(|size| scene.enqueued(&format!("{size}_gpu"), size));
        let _daemon = scene.daemon("0-1", &queues, &[]);
        let slots = tasks.map(|task| task.runs_on());
        let expected = if queues[0].starts_with("half") {
            ["gpu0.5a", "gpu1"]
        } else {
            ["gpu1.5a", "gpu0"]
        };
        assert_eq!(slots, expected);
    }
}

#[test]
fn what_can_never_run_is_refused_at_the_start() {
    let scene = Scene::new("a100-80gb:3");
    scene.queue("some_queue");
    let conf = scene.conf();
    let conf = conf.to_str().expect("a readable name");
    let refused = |queue: &str, because: &str| {
        let words = [
            "daemon",
            "--clearml",
            "--config-file",
            conf,
            "--dynamic-gpus",
            "--gpus",
            "0-2",
            "--set",
            "strict-start=true",
            "--queue",
            queue,
        ];
        let said = scene.home.divvy(&words);
        assert!(
            said.code != 0 && said.stderr.contains(because),
            "{queue}: {}",
            said.stderr
        );
    };
    refused("some_queue=0.3", "0.125");
    refused("some_queue=0.1", "0.125");
    refused("some_queue=1.25", "cannot be > 1");
    refused("some_queue=0", "<= 0 is not allowed");
    refused("some_queue", "<queue_name>=<num_gpus>");
    refused("some_queue=4", "cannot start any job");
    refused("other_queue=1", "no queue \"other_queue\"");
}

#[test]
fn gpus_may_be_listed_with_blanks() {
    let scene = Scene::new("a100-80gb:3");
    let task = scene.enqueued("dual_gpu", "dual");
    let conf = scene.conf();
    let conf = conf.to_str().expect("a readable name");
    let words = [
        "--clearml",
        "--config-file",
        conf,
        "--dynamic-gpus",
        "--gpus",
        "0,",
        "1",
        "--queue",
        "dual_gpu=2",
    ];
    let _daemon = scene.home.daemon(&words);
    assert_eq!(task.runs_on(), "gpu0,1");
    until("the daemon is known by its name", || {
        let workers = scene.stub().workers();
        workers
            .into_iter()
            .find(|worker| worker.id == "node1:dgpu0,1")
    });
}

#[test]
fn nothing_is_asked_that_open_servers_do_not_have() {
    let scene = Scene::new("a100-80gb:2");
    let half = scene.enqueued("half_gpu", "half");
    let daemon = scene.daemon("0-1", &["half_gpu=0.5", "single_gpu=1"], &[]);
    half.runs_on();
    let report = until("the daemon has reported", || {
        let workers = scene.stub().workers();
        workers
            .into_iter()
            .find(|worker| worker.id == "node1:dgpu0-1" && worker.reports > 2)
    });
    for list in ["gpu_usage", "gpu_memory_used", "gpu_memory_free"] {
        assert_eq!(
            report.stats[list].as_array().map(Vec::len),
            Some(2),
            "{list}: {}",
            report.stats
        );
    }
    // A dashboard adds the parts up: the daemon has none, its slots have theirs.
    assert_eq!(report.stats["gpu_fraction"], serde_json::json!([0, 0]));
    half.completes("half");
    assert_eq!(daemon.stop(), 0);
    until("it has unregistered", || {
        scene.stub().workers().is_empty().then_some(())
    });
    scene.assert_no_complaints();
}

#[test]
fn a_slots_letter_is_used_again() {
    let scene = Scene::new("a100-80gb:1");
    // More than the alphabet has.
    let tasks: Vec<_> = (0..30)
        .map(|number| {
            scene.open(&format!("t{number}"));
            scene.enqueued("eighth_gpu", &format!("t{number}"))
        })
        .collect();
    let _daemon = scene.daemon("0", &["eighth_gpu=0.125"], &[]);
    for task in tasks {
        let slot = task.becomes("completed")["last_worker"].clone();
        let letter = slot
            .as_str()
            .and_then(|slot| slot.strip_prefix("node1:gpu0.125"));
        assert!(
            letter.is_some_and(|letter| ("a"..="h").contains(&letter)),
            "{slot}"
        );
    }
}

#[test]
fn a_task_is_started_once_and_without_force() {
    let scene = Scene::new("a100-80gb:1");
    let task = scene.enqueued("single_gpu", "task");
    let _daemon = scene.daemon("0", &["single_gpu=1"], &[]);
    task.runs_on();
    task.completes("task");
    let calls = scene.stub().calls_to("tasks.started");
    let ours: Vec<_> = calls
        .iter()
        .filter(|call| call.client != "quick-agent")
        .collect();
    assert_eq!(ours.len(), 1, "{ours:?}");
    assert!(
        ours[0].body.get("force").is_none_or(|force| force == false),
        "{}",
        ours[0].body
    );
    assert_eq!(ours[0].body["status_message"], "pulled by node1:gpu0");
}

#[test]
fn what_waits_is_pulled_without_waiting_for_the_next_look() {
    // Looks are further apart than any test waits: all but the first of these cannot be due to one.
    let scene = Scene::new("a100-80gb:1");
    let tasks = ["a", "b", "c", "d", "e", "f"].map(|name| {
        scene.open(name);
        scene.enqueued("quarter_gpu", name)
    });
    let words = scene.words("0", &["quarter_gpu=0.25"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let apart = [("CLEARML_AGENT_QUEUE_POLL_FREQ_SEC", "600")];
    let _daemon = scene.home.daemon_with(&words, &apart);
    for task in tasks {
        task.becomes("completed");
    }
}

#[test]
fn a_task_that_cannot_be_started_fails_and_says_why() {
    let scene = Scene::new("a100-80gb:1");
    let [task, next] = ["task", "next"].map(|name| scene.enqueued("single_gpu", name));
    let program = scene.home.scratch().join("bin/clearml-agent");
    let aside = scene.home.scratch().join("aside");
    fs::rename(&program, &aside).expect("the folder is ours");
    let _daemon = scene.daemon(
        "0",
        &["single_gpu=1"],
        &["--set", "clearml.agent=[\"clearml-agent-of-this-test\"]"],
    );
    let fields = task.becomes("failed");
    assert!(
        fields["status_reason"]
            .as_str()
            .is_some_and(|reason| !reason.is_empty()),
        "{fields}"
    );
    assert!(
        task.log().contains("clearml-agent-of-this-test"),
        "{}",
        task.log()
    );
    next.becomes("failed");
    scene.assert_no_complaints();
}
