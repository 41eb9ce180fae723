//! Flags of `daemon --clearml` as they are typed: hours, tags, and what becomes of tasks when the daemon is stopped.

use divvy_e2e::clearml::Scene;
use divvy_e2e::until;
use serde_json::json;

const HALVES: [&str; 2] = ["later=0.5", "now=0.5"];
const ALWAYS: &str = "0-24 SUN-SAT";

/// The day of the week after tomorrow: the test does not go on until then.
fn another_day() -> String {
    let day = jiff::Zoned::now().weekday().wrapping_add(3);
    let name = format!("{day:?}").to_uppercase();
    format!("0-24 {}", &name[..3])
}

#[test]
fn outside_of_its_hours_a_daemon_takes_only_what_is_tagged() {
    let closed = another_day();
    for hours in [["--uptime", &closed], ["--downtime", ALWAYS]] {
        let scene = Scene::new("a100-80gb:1");
        let (later, now) = (
            scene.enqueued("later", "later"),
            scene.enqueued("now", "now"),
        );
        let queue = scene.queue_id("now");
        scene.server.must(
            "queues.update",
            json!({ "queue": queue, "tags": ["force_workers:on"] }),
        );
        let daemon = scene.daemon("0", &HALVES, &hours);
        // Both were looked at, one after the other.
        assert_eq!(now.runs_on(), "gpu0.5a", "{hours:?}");
        now.completes("now");
        assert_eq!(
            (later.status().as_str(), later.runs()),
            ("queued", 0),
            "{hours:?}"
        );
        let _ = daemon.stop();
    }
    let scene = Scene::new("a100-80gb:1");
    let later = scene.enqueued("later", "later");
    scene.queue("now");
    let _daemon = scene.daemon("0", &HALVES, &["--uptime", ALWAYS]);
    later.completes("later");
}

#[test]
fn workers_have_the_tags_that_are_said() {
    let scene = Scene::new("a100-80gb:1");
    let task = scene.enqueued("now", "now");
    scene.queue("later");
    let _daemon = scene.daemon("0", &HALVES, &["--child-report-tags", "spot", "lab"]);
    task.runs_on();
    until("its worker is tagged", || {
        let workers = scene.stub().workers();
        let tags = |tags: &[String]| {
            tags.iter().any(|tag| tag == "spot") && tags.iter().any(|tag| tag == "lab")
        };
        let is_its = |id: &Option<String>| id.as_deref() == Some(&*task.id());
        workers
            .iter()
            .any(|worker| is_its(&worker.task) && tags(&worker.tags))
            .then_some(())
    });
}

#[test]
fn tasks_are_left_running_when_the_daemon_is_stopped_and_found_by_the_next() {
    let scene = Scene::new("a100-80gb:1");
    let task = scene.enqueued("now", "now");
    scene.queue("later");
    let daemon = scene.daemon("0", &HALVES, &["--set", "clearml.keep-children=true"]);
    assert_eq!(task.runs_on(), "gpu0.5a");
    assert_eq!(daemon.stop(), 0);
    assert_eq!(task.status(), "in_progress");
    let daemon = scene.daemon("0", &HALVES, &["--set", "clearml.keep-children=true"]);
    assert_eq!(task.runs_on(), "gpu0.5a");
    task.completes("now");
    assert_eq!(task.runs(), 1);
    assert_eq!(daemon.stop(), 0);

    // Without it they are stopped.
    let task = scene.enqueued("now", "other");
    let daemon = scene.daemon("0", &HALVES, &[]);
    assert_eq!(task.runs_on(), "gpu0.5a");
    let _ = daemon.stop();
    task.becomes("stopped");
}

#[test]
fn credentials_for_git_that_the_line_has_reach_the_task() {
    let scene = Scene::new("a100-80gb:1");
    let names = "'CLEARML_AGENT_GIT_USER', 'CLEARML_AGENT_GIT_PASS', 'CLEARML_LOG_LEVEL'";
    let script =
        format!("import os\nprint('git', *[os.environ[name] for name in ({names})], flush=True)\n");
    let task = scene.draft("git", &script, &json!({})).enqueue("now");
    scene.queue("later");
    let more = [
        "--git-user",
        "octo",
        "--git-pass",
        "t0ken",
        "--log-level",
        "DEBUG",
    ];
    let _daemon = scene.daemon("0", &HALVES, &more);
    task.becomes("completed");
    let log = task.log();
    assert!(log.contains("git octo t0ken DEBUG"), "{log}");
}
