//! `kill -9` of the glue at each of its calls, to the server and to the cluster: nothing is lost, nothing runs twice.

use divvy_clearml_stub::{Fault, Hold};
use serde_json::json;

use super::VALUES;
use super::apiserver::Cut;
use super::kubelet::Fate;
use super::scene::{Scene, until};

/// The first tier kills the glue at every third write, the second tier at each.
const SOME: usize = 3;

/// Two tasks: one whose life the glue is killed in, and one that comes behind it.
fn tasks(scene: &Scene) -> [String; 2] {
    ["task", "next"].map(|name| scene.stub.enqueued("half", name, json!({})))
}

fn all_is_well(scene: &Scene, tasks: &[String], at: &str) {
    for task in tasks {
        until(
            format!("{at}: {task} is over; it is {}", scene.status(task)),
            || (scene.status(task) == "completed").then_some(()),
        );
        assert_eq!(scene.node.runs(task), 1, "{at}");
    }
    assert_eq!(scene.stub.waiting("half"), [] as [String; 0], "{at}");
    scene.is_clean();
    assert_eq!(scene.stub.complaints(), [] as [String; 0], "{at}");
}

fn over(scene: &Scene, tasks: &[String]) -> bool {
    let completed = tasks.iter().all(|task| scene.status(task) == "completed");
    completed && scene.api.look(|view| view.all("secrets").is_empty())
}

/// Kills the glue at its call number `nth` to the server that changes something about the task, for all of them.
fn at_calls_of_the_server(hold_at: fn(&str) -> (Fault, Hold), words: &str) {
    for nth in 0.. {
        let scene = Scene::new(VALUES);
        let tasks = tasks(&scene);
        let (fault, hold) = hold_at("*");
        scene
            .stub
            .inject(fault.changes().about(&tasks[0]).skip(nth));
        let glue = scene.glue();
        until("the call comes, or never will", || {
            (hold.is_reached() || over(&scene, &tasks)).then_some(())
        });
        if !hold.is_reached() {
            assert!(nth >= 4, "there are more calls than that: {nth}");
            return;
        }
        glue.crash();
        hold.release();
        let _glue = scene.glue();
        all_is_well(&scene, &tasks, &format!("{words} call {nth}"));
    }
}

/// The same for its calls to the cluster, for each of the numbers up to the first that never comes.
fn at_writes_to_the_cluster(cut: Cut, numbers: impl Iterator<Item = usize>) {
    for nth in numbers {
        let scene = Scene::new(VALUES);
        let tasks = tasks(&scene);
        scene.api.cut(nth, cut);
        let glue = scene.glue();
        let held = || scene.api.look(|view| view.held().is_some());
        until("the write comes, or never will", || {
            (held() || over(&scene, &tasks)).then_some(())
        });
        if !held() {
            assert!(
                nth >= 14,
                "there are more writes than that for two tasks: {nth}"
            );
            return;
        }
        glue.crash();
        scene.api.release();
        let _glue = scene.glue();
        all_is_well(&scene, &tasks, &format!("{cut:?} write {nth}"));
    }
}

#[test]
fn a_glue_killed_before_a_call_to_the_server_is_done_loses_nothing() {
    at_calls_of_the_server(Fault::hold_before, "before");
}

#[test]
fn a_glue_killed_when_a_call_to_the_server_is_done_and_not_answered_loses_nothing() {
    at_calls_of_the_server(Fault::hold_after, "after");
}

#[test]
fn a_glue_killed_before_a_write_to_the_cluster_is_done_loses_nothing() {
    at_writes_to_the_cluster(Cut::Before, (1..).step_by(SOME));
}

#[test]
fn a_glue_killed_when_a_write_to_the_cluster_is_done_and_not_answered_loses_nothing() {
    at_writes_to_the_cluster(Cut::After, (2..).step_by(SOME));
}

#[test]
fn a_server_and_a_cluster_that_are_away_for_a_while_lose_nothing() {
    for (words, fault) in [
        ("maintenance", Fault::answer("*", 503).times(6)),
        ("a gateway", Fault::answer("*", 502).times(4)),
        ("dropped before", Fault::drop_before("*").times(4)),
        ("dropped after", Fault::drop_after("*").changes().times(3)),
    ] {
        let scene = Scene::new(VALUES);
        let tasks = tasks(&scene);
        let _glue = scene.glue();
        scene.stub.inject(fault.about(&tasks[0]));
        for method in ["GET", "POST", "PATCH", "DELETE"] {
            scene.api.fail(method, "secrets", 500, 2);
            scene.api.fail(method, "pods", 503, 2);
        }
        all_is_well(&scene, &tasks, words);
    }
}

#[test]
fn a_glue_killed_while_its_task_runs_finds_how_it_ended() {
    for (fate, status) in [
        (Fate::Completes, "completed"),
        (Fate::Exits(9), "failed"),
        (Fate::Evicted, "failed"),
    ] {
        let scene = Scene::new(VALUES);
        let task = scene.stub.enqueued("half", "task", json!({}));
        scene.node.set(&task, Fate::Runs);
        let glue = scene.glue();
        until("its program begins", || {
            (scene.node.runs(&task) == 1).then_some(())
        });
        glue.crash();
        scene.node.set(&task, fate);
        until("its pod ends", || {
            let phase = scene.pod_of(&task)?["status"]["phase"].clone();
            (phase == "Succeeded" || phase == "Failed").then_some(())
        });
        let _glue = scene.glue();
        scene.becomes(&task, status);
        scene.is_clean();
        assert_eq!(scene.node.runs(&task), 1);
    }
}

#[test]
fn an_old_server_that_pops_whatever_is_first_gets_back_what_was_not_meant() {
    let scene = Scene::new(VALUES);
    scene.stub.with(|world| world.is_old = true);
    let tasks = tasks(&scene);
    // Somebody else takes the first one between the look and the claim.
    let hold = scene.stub.hold_before("queues.get_next_task");
    let _glue = scene.glue();
    until("the claim comes", || hold.is_reached().then_some(()));
    let queue = scene.stub.queue("half");
    scene.must(
        "queues.remove_task",
        json!({ "queue": queue, "task": tasks[0] }),
    );
    hold.release();
    scene.becomes(&tasks[1], "completed");
    assert_eq!(scene.node.runs(&tasks[1]), 1);
    assert_eq!(scene.node.runs(&tasks[0]), 0, "it was somebody else's");
    scene.is_clean();
}

mod exhaustive {
    use super::*;

    #[test]
    fn a_glue_killed_before_any_write_to_the_cluster_loses_nothing() {
        at_writes_to_the_cluster(Cut::Before, 1..);
    }

    #[test]
    fn a_glue_killed_after_any_write_to_the_cluster_loses_nothing() {
        at_writes_to_the_cluster(Cut::After, 1..);
    }
}
