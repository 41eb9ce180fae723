//! `kill -9` of the daemon anywhere between claim and terminal state: every task runs once, or is back in its queue.

use std::path::Path;

use divvy_clearml_stub::{Fault, Hold};
use divvy_e2e::clearml::{Scene, Task};
use divvy_e2e::{Daemon, until};
use divvy_testkit::failpoints::{self, CRASH_AT};

const QUEUES: [&str; 2] = ["half_gpu=0.5", "single_gpu=1"];

/// Two tasks: one whose life the daemon is killed in, and one that needs what it leaves.
fn tasks(scene: &Scene) -> [Task<'_>; 2] {
    scene.open("task");
    scene.open("next");
    [
        scene.enqueued("half_gpu", "task"),
        scene.enqueued("single_gpu", "next"),
    ]
}

/// After another start: both ran once, nobody is left over, and nothing is held for nobody.
fn all_is_well(scene: &Scene, tasks: &[Task<'_>], at: &str) {
    for task in tasks {
        until(format!("{at}: task {} is over", task.id()), || {
            (task.status() == "completed").then_some(())
        });
        assert_eq!(task.runs(), 1, "{at}: {:?}", task.notes());
    }
    for queue in ["half_gpu", "single_gpu"] {
        assert_eq!(scene.stub().waiting(queue), [] as [String; 0], "{at}");
    }
    until(format!("{at}: no slot is registered"), || {
        let workers = scene.stub().workers();
        workers
            .iter()
            .all(|worker| worker.id == "node1:dgpu0")
            .then_some(())
    });
    until(format!("{at}: no slice is left"), || {
        let jobs = scene.home.call(scene.home.client().jobs(false)).ok()?;
        jobs.is_empty().then_some(())
    });
    until(format!("{at}: no record is left"), || {
        is_empty(&scene.home.path().join("clearml")).then_some(())
    });
    scene.assert_no_complaints();
}

fn is_empty(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return true;
    };
    let mut names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    !names.any(|name| name.ends_with(".json"))
}

/// Kills the daemon at the call number `nth` that changes something about the task; whether there are so many.
fn crash_at_call(hold_at: fn(&str) -> (Fault, Hold), words: &str, nth: usize) -> bool {
    let scene = Scene::new("a100-80gb:1");
    let tasks = tasks(&scene);
    let (fault, hold) = hold_at("*");
    scene
        .stub()
        .inject(fault.changes().about(&tasks[0].id()).skip(nth));
    let daemon = scene.daemon("0", &QUEUES, &[]);
    until("the call comes, or never will", || {
        (hold.is_reached() || tasks[1].status() == "completed").then_some(())
    });
    if !hold.is_reached() {
        return false;
    }
    daemon.crash();
    hold.release();
    let _daemon = scene.daemon("0", &QUEUES, &[]);
    all_is_well(&scene, &tasks, &format!("{words} call {nth}"));
    true
}

/// A call of the start, in the middle.
#[test]
fn a_daemon_killed_before_its_call_is_done_loses_nothing() {
    assert!(crash_at_call(Fault::hold_before, "before", 3));
}

#[test]
fn a_daemon_killed_when_its_call_is_done_and_not_answered_loses_nothing() {
    assert!(crash_at_call(Fault::hold_after, "after", 2));
}

/// Commits of the journal between two of the front end's calls.
const COMMITS: [&str; 8] = [
    "journal.commit:1",
    "journal.commit:2",
    "journal.commit:3",
    "journal.commit:4",
    "journal.commit:5",
    "journal.commit:6",
    "journal.commit:7",
    "journal.commit:8",
];

/// Waits until the daemon has died, or everything is done without its having come to the point.
fn dies(daemon: &Daemon, tasks: &[Task<'_>]) -> bool {
    let stat = format!("/proc/{}/stat", daemon.pid());
    until("the daemon dies, or all is done", || {
        // A dead child that nobody has waited for is a zombie.
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        let is_dead = stat
            .rsplit_once(") ")
            .is_none_or(|(_, state)| state.starts_with('Z'));
        let is_done = tasks.iter().all(|task| task.status() == "completed");
        (is_dead || is_done).then_some(is_dead)
    })
}

fn crash_at_points(points: &[&str]) {
    let mut died = 0;
    for point in points {
        let scene = Scene::new("a100-80gb:1");
        let tasks = tasks(&scene);
        let words = scene.words("0", &QUEUES);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let daemon = scene.home.daemon_with(&words, &[(CRASH_AT, point)]);
        if dies(&daemon, &tasks) {
            died += 1;
            drop(daemon);
            let _daemon = scene.daemon("0", &QUEUES, &[]);
            all_is_well(&scene, &tasks, point);
        }
    }
    assert!(
        died * 2 > points.len(),
        "few of the points are ever reached: {died}"
    );
}

#[test]
fn a_daemon_that_dies_between_two_records_or_at_a_start_loses_nothing() {
    crash_at_points(&["journal.commit:3", "confirm.kept"]);
}

#[test]
fn a_server_that_drops_answers_for_a_while_loses_nothing() {
    is_away(&[("dropped after", Fault::drop_after("*").changes().times(4))]);
}

mod exhaustive {
    use super::*;

    /// Each call from `first` on, in steps of two: the other half is another test.
    fn crash_at_calls(hold_at: fn(&str) -> (Fault, Hold), words: &str, first: usize) {
        let calls = (first..).step_by(2);
        let tried = calls.take_while(|nth| crash_at_call(hold_at, words, *nth));
        let tried = tried.count();
        assert!(tried >= 5, "there are more calls than that: {tried}");
    }

    #[test]
    fn a_daemon_killed_before_any_even_call_is_done_loses_nothing() {
        crash_at_calls(Fault::hold_before, "before", 0);
    }

    #[test]
    fn a_daemon_killed_before_any_odd_call_is_done_loses_nothing() {
        crash_at_calls(Fault::hold_before, "before", 1);
    }

    #[test]
    fn a_daemon_killed_when_any_even_call_is_done_and_not_answered_loses_nothing() {
        crash_at_calls(Fault::hold_after, "after", 0);
    }

    #[test]
    fn a_daemon_killed_when_any_odd_call_is_done_and_not_answered_loses_nothing() {
        crash_at_calls(Fault::hold_after, "after", 1);
    }

    #[test]
    fn a_daemon_that_dies_between_any_two_of_its_records_loses_nothing() {
        crash_at_points(&COMMITS);
    }

    #[test]
    fn a_daemon_that_dies_at_any_step_of_a_start_or_an_end_loses_nothing() {
        crash_at_points(&[&failpoints::CONFIRM[..], &["end.freed", "end.forgotten"]].concat());
    }

    #[test]
    fn a_server_that_is_away_in_any_way_for_a_while_loses_nothing() {
        is_away(&[
            ("maintenance", Fault::answer("*", 503).times(12)),
            ("too many requests", Fault::answer("*", 429).times(6)),
            ("a gateway", Fault::answer("*", 502).times(6)),
            ("dropped before", Fault::drop_before("*").times(6)),
        ]);
    }
}

fn is_away(faults: &[(&str, Fault)]) {
    for (words, fault) in faults {
        let scene = Scene::new("a100-80gb:1");
        let tasks = tasks(&scene);
        let daemon = scene.daemon("0", &QUEUES, &[]);
        // From the claim on, so that it is in the middle of a task.
        scene.stub().inject(fault.clone().about(&tasks[0].id()));
        all_is_well(&scene, &tasks, words);
        drop(daemon);
    }
}

#[test]
fn a_token_that_counts_no_more_is_renewed() {
    let scene = Scene::new("a100-80gb:1");
    let tasks = tasks(&scene);
    let hold = scene.stub().hold_after("queues.get_next_task");
    let _daemon = scene.daemon("0", &QUEUES, &[]);
    until("the task is claimed", || hold.is_reached().then_some(()));
    scene.stub().with(|world| world.revoke_tokens());
    hold.release();
    all_is_well(&scene, &tasks, "a new token");
}

#[test]
fn an_old_server_that_pops_whatever_is_first_gets_back_what_was_not_meant() {
    let scene = Scene::new("a100-80gb:1");
    scene.stub().with(|world| world.is_old = true);
    let tasks = tasks(&scene);
    // Somebody else takes the first one between the look and the claim.
    let hold = scene.stub().hold_before("queues.get_next_task");
    let _daemon = scene.daemon("0", &QUEUES, &[]);
    until("the claim comes", || hold.is_reached().then_some(()));
    scene.stub().must(
        "queues.remove_task",
        serde_json::json!({ "queue": scene.queue_id("half_gpu"), "task": tasks[0].id() }),
    );
    let other = scene.enqueued("half_gpu", "other");
    scene.open("other");
    hold.release();
    other.becomes("completed");
    assert_eq!(other.runs(), 1);
    assert_eq!(tasks[0].runs(), 0, "it was somebody else's");
}
