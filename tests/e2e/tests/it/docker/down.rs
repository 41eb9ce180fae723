//! An engine that goes away, or fails, at each call of a container job's life: nothing is lost, nothing runs twice, nothing stays.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;

use divvy_api::v1::{EndReason, Job, JobState};
use divvy_e2e::engine::door::{Call, Fault, FaultProxy, WORDS};
use divvy_e2e::engine::{Engine, IMAGE};
use divvy_e2e::{Daemon, Home, until};
use divvy_testkit::Bounded as _;
use divvy_testkit::failpoints::CRASH_AT;

use super::{ENGINE, cancel};

/// An instance whose engine is behind a door.
struct Scene {
    daemon: Option<Daemon>,
    home: Home,
    door: FaultProxy,
    engine: Arc<Engine>,
}

impl Scene {
    fn new() -> Option<Self> {
        let engine = Engine::shared(ENGINE)?;
        let door = FaultProxy::before(&engine);
        let home = Home::new("a100-80gb:1")
            .variable("DOCKER_HOST", &door.host())
            .variable("DIVVY_FORM", "");
        let mut scene = Self {
            daemon: None,
            home,
            door,
            engine,
        };
        scene.start();
        Some(scene)
    }

    /// Starts the daemon anew, and waits until it has looked for containers that nobody needs any more: those calls are its own.
    fn start(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            assert_eq!(daemon.stop(), 0);
        }
        self.door.fail(None);
        // Whoever answers when it is asked to end is given all the time that it may take here.
        self.daemon = Some(self.home.daemon(&["--set", "grace=1m"]));
        until("it has looked for what is left", || {
            let kinds = self.door.kinds();
            kinds
                .iter()
                .any(|call| call.what == "GET /containers/json")
                .then_some(())
        });
    }

    fn begun(&self, name: &str) -> PathBuf {
        PathBuf::from(self.home.gate(name))
    }

    /// Runs a job to its end, with this fault on its way; every run of its program adds a line to its gate.
    fn run(&self, name: &str, fault: Option<(&Call, Fault)>) -> Job {
        self.door.fail(fault);
        let id = self.submit(name);
        let job = self.home.ended(&id);
        if let Some((call, fault)) = fault {
            until(format!("{fault:?}: {call} comes"), || {
                self.door.has_failed().then_some(())
            });
        }
        job
    }

    /// Submits a job that comes to wait for its engine, and says so.
    fn waits(&self, name: &str) -> String {
        let first = &self.calls()[0];
        self.waits_at(first, Fault::GoneForGood, name)
    }

    fn waits_at(&self, call: &Call, fault: Fault, name: &str) -> String {
        self.door.fail(Some((call, fault)));
        let id = self.submit(name);
        until("it says that it waits", || {
            let log = self.home.log(&id);
            log.contains("waiting for the container engine")
                .then_some(())
        });
        id
    }

    fn submit(&self, name: &str) -> String {
        self.submit_script(&format!(
            "echo begun >>/gates/{name}; echo before; echo after; exit 5"
        ))
    }

    fn submit_script(&self, script: &str) -> String {
        let gate = self.begun("x");
        let mount = format!(
            "-v {}:/gates",
            gate.parent().expect("it is in a folder").display()
        );
        super::submit(
            &self.home,
            &["--docker-args", &mount],
            &["sh", "-c", script],
        )
    }

    /// The kinds of calls that a job makes when nothing goes wrong.
    fn calls(&self) -> Vec<Call> {
        let job = self.run("plain", None);
        self.ran_once(&job, "plain", "no fault");
        let calls = self.door.kinds();
        for what in ["create", "*/start", "*/wait", "*/logs"] {
            let is = |call: &Call| call.what.ends_with(what);
            assert!(calls.iter().any(is), "{what} is not among {calls:?}");
        }
        calls
    }

    fn ran_once(&self, job: &Job, name: &str, what: &str) {
        let ended = (job.end_reason, job.exit_code);
        assert_eq!(ended, (Some(EndReason::Failed), Some(5)), "{what}: {job:?}");
        let begun =
            fs::read_to_string(self.begun(name)).expect("the container has told when it began");
        assert_eq!(begun, "begun\n", "{what}");
        let log = self.home.log(&job.id);
        assert!(log.ends_with("before\nafter\n"), "{what}: {log}");
        let firsts = log.lines().filter(|line| *line == "before");
        assert_eq!(firsts.count(), 1, "{what}: {log}");
        self.nothing_stays(job, what);
    }

    fn nothing_stays(&self, job: &Job, what: &str) {
        until(format!("{what}: its container is gone"), || {
            self.containers(job).is_empty().then_some(())
        });
    }

    fn containers(&self, job: &Job) -> Vec<String> {
        self.engine.containers_of(&job.id, self.home.path())
    }

    /// It was cancelled, and nothing of it ran.
    fn is_cancelled(&self, id: &str, name: &str) {
        let job = self.home.ended(id);
        assert_eq!(job.end_reason, Some(EndReason::Cancelled), "{job:?}");
        assert!(!self.begun(name).exists(), "it ran: {job:?}");
        self.nothing_stays(&job, name);
        self.all_is_free();
    }

    /// The whole GPU can be had.
    fn all_is_free(&self) {
        let _ = self.home.divvy(&["run", "-g", "1", "--", "true"]).ok();
    }
}

/// A job whose engine breaks off at each of these calls in turn.
fn breaks_off(fault: Fault, is_tried: impl Fn(&Call) -> bool) {
    let Some(scene) = Scene::new() else { return };
    let calls = scene.calls();
    let tried: Vec<&Call> = calls.iter().filter(|call| is_tried(call)).collect();
    assert!(!tried.is_empty(), "{calls:?}");
    for (number, call) in tried.into_iter().enumerate() {
        let name = number.to_string();
        let job = scene.run(&name, Some((call, fault)));
        scene.ran_once(&job, &name, &call.to_string());
    }
    scene.all_is_free();
}

fn starts(call: &Call) -> bool {
    call.what.ends_with("*/start")
}

#[test]
fn where_the_engine_does_not_hear_the_start_a_job_runs_once_to_its_end() {
    breaks_off(Fault::Unheard, starts);
}

#[test]
fn where_the_engines_answer_to_the_start_is_lost_a_job_runs_once_to_its_end() {
    breaks_off(Fault::Unanswered, starts);
}

mod exhaustive {
    use super::*;

    #[test]
    fn whatever_call_the_engine_does_not_hear_a_job_runs_once_to_its_end() {
        breaks_off(Fault::Unheard, |_| true);
    }

    #[test]
    fn whatever_answer_of_the_engine_is_lost_a_job_runs_once_to_its_end() {
        breaks_off(Fault::Unanswered, |_| true);
    }

    #[test]
    fn at_whatever_call_the_engine_goes_away_for_a_while_a_job_runs_once_to_its_end() {
        breaks_off(Fault::Gone, |_| true);
    }

    #[test]
    fn whatever_the_engine_refuses_is_said_and_what_was_begun_is_taken_away() {
        let Some(mut scene) = Scene::new() else {
            return;
        };
        let mut kept = Vec::new();
        for (number, call) in scene.calls().iter().enumerate() {
            let name = number.to_string();
            let job = scene.run(&name, Some((call, Fault::Refused)));
            let what = call.to_string();
            if call.once_started {
                if call.what == "DELETE /containers/*" {
                    kept.push(job);
                    continue;
                }
                scene.ran_once(&job, &name, &what);
                continue;
            }
            let ended = (job.end_reason, job.exit_code);
            assert_eq!(
                ended,
                (Some(EndReason::LaunchFailed), Some(125)),
                "{what}: {job:?}"
            );
            assert!(!scene.begun(&name).exists(), "{what}: it ran");
            // An answer to HEAD has no words.
            let said = if call.what.starts_with("HEAD") {
                "500"
            } else {
                WORDS
            };
            let reason = job.reason.clone().unwrap_or_default();
            assert!(reason.contains(said), "{what}: {reason}");
            scene.nothing_stays(&job, &what);
        }
        scene.all_is_free();
        // One that could not be taken away is, by the next daemon if not by this one.
        assert_eq!(kept.len(), 1, "{kept:?}");
        scene.start();
        scene.nothing_stays(&kept[0], "after a restart");
    }
}

#[test]
fn a_job_that_waits_for_its_engine_says_so_and_can_be_cancelled() {
    let Some(scene) = Scene::new() else { return };
    let id = scene.waits("waits");
    cancel(&scene.home, &id);
    scene.is_cancelled(&id, "waits");
}

#[test]
fn a_job_that_waits_for_its_engine_can_be_cancelled_by_another_daemon() {
    let Some(mut scene) = Scene::new() else {
        return;
    };
    let id = scene.waits("waits");
    scene.daemon.take().expect("it runs").crash();
    scene.daemon = Some(scene.home.daemon(&[]));
    cancel(&scene.home, &id);
    scene.is_cancelled(&id, "waits");
}

#[test]
fn a_job_that_is_cancelled_before_its_engine_has_heard_of_its_start_is_not_started() {
    let Some(scene) = Scene::new() else { return };
    let calls = scene.calls();
    let start = calls.iter().find(|call| call.what.ends_with("*/start"));
    let start = start.expect("it is started");
    scene.door.fail(Some((start, Fault::GoneForGood)));
    let id = scene.submit("unheard");
    until("it is about to start", || {
        scene.door.has_failed().then_some(())
    });
    cancel(&scene.home, &id);
    scene.door.fail(None);
    scene.is_cancelled(&id, "unheard");
}

/// A kind of calls, by what it does.
fn call(what: &str, once_started: bool) -> Call {
    Call {
        what: what.to_owned(),
        once_started,
    }
}

#[test]
fn an_unreported_container_is_removed_with_its_cancelled_job() {
    let Some(scene) = Scene::new() else { return };
    let create = call("POST /containers/create", false);
    let id = scene.waits_at(&create, Fault::GoneUnanswered, "untold");
    cancel(&scene.home, &id);
    let job = scene.home.ended(&id);
    assert_eq!(scene.containers(&job).len(), 1, "the engine is away");
    scene.door.fail(None);
    scene.is_cancelled(&id, "untold");
}

#[test]
fn a_container_that_is_made_late_is_known_for_the_jobs_own() {
    let Some(scene) = Scene::new() else { return };
    let create = call("POST /containers/create", false);
    let job = scene.run("late", Some((&create, Fault::Late)));
    scene.ran_once(&job, "late", "a late create");
    scene.all_is_free();
}

#[test]
fn a_folder_that_becomes_a_link_after_its_check_is_mounted_where_the_link_leads() {
    let Some(scene) = Scene::new() else { return };
    let folder = scene.home.scratch().join("redirected");
    fs::create_dir(&folder).expect("the folder is new");
    let start = call("POST /containers/*/start", false);
    scene.door.fail(Some((&start, Fault::GoneForGood)));
    let mount = format!("-v {}:/data", folder.display());
    let list = ["sh", "-c", "echo /data/*"];
    let id = super::submit(&scene.home, &["--docker-args", &mount], &list);
    until("its mounts are checked and it is about to start", || {
        scene.door.has_failed().then_some(())
    });
    fs::remove_dir(&folder).expect("it is empty");
    symlink(scene.home.path(), &folder).expect("its place is free");
    scene.door.fail(None);
    let job = scene.home.ended(&id);
    let log = scene.home.log(&id);
    assert!(log.contains("/data/jobs"), "the daemon's own folder: {log}");
    scene.nothing_stays(&job, "redirected");
}

#[test]
fn a_log_that_the_engine_does_not_give_holds_up_no_end() {
    let Some(scene) = Scene::new() else { return };
    let logs = call("GET /containers/*/logs", true);
    let job = scene.run("mute", Some((&logs, Fault::RefusedForGood)));
    let ended = (job.end_reason, job.exit_code);
    assert_eq!(ended, (Some(EndReason::Failed), Some(5)), "{job:?}");
    scene.nothing_stays(&job, "mute");
    // Once the end is known it is asked for one time more.
    let heard = scene.door.heard();
    let known = heard
        .iter()
        .rposition(|call| call.what == "GET /containers/*/json");
    let since = known.expect("the engine was asked whether it has ended");
    let asked = heard[since..].iter().filter(|call| **call == logs).count();
    assert!(asked <= 1, "{heard:?}");
}

#[test]
fn a_cancel_is_heard_while_the_engine_does_not_say_which_process_was_started() {
    let Some(scene) = Scene::new() else { return };
    let look = call("GET /containers/*/json", true);
    for fault in [Fault::RefusedForGood, Fault::GoneForGood] {
        let name = format!("{fault:?}");
        scene.door.fail(Some((&look, fault)));
        let id = scene.submit_script(&format!(
            "trap 'echo bye >/gates/{name}-bye; exit 0' TERM; echo begun >/gates/{name}; while :; do sleep 0.05; done"
        ));
        until("it waits for the engine's word", || {
            (scene.begun(&name).exists() && scene.door.has_failed()).then_some(())
        });
        cancel(&scene.home, &id);
        // An engine that passes signals on is asked to, whatever else it does not do.
        if fault == Fault::RefusedForGood {
            until("its program was told", || {
                scene.begun(&format!("{name}-bye")).exists().then_some(())
            });
        }
        scene.door.fail(None);
        let job = scene.home.ended(&id);
        let ended = (job.end_reason, job.exit_code);
        assert_eq!(ended, (Some(EndReason::Cancelled), Some(0)), "{job:?}");
        scene.nothing_stays(&job, &name);
    }
    scene.all_is_free();
}

#[test]
fn a_guest_that_is_cancelled_before_its_container_may_start_waits_for_no_engine() {
    let Some(scene) = Scene::new() else { return };
    let looked_into = call("DELETE /containers/*", false);
    scene.door.fail(Some((&looked_into, Fault::GoneForGood)));
    let slice = ["docker", "slice", "-g", "0.5", "--name", "guest", "--"];
    let line = ["docker", "run", "--rm", IMAGE, "true"];
    let words = [&slice[..], &line].concat();
    let starter = scene.home.divvy_command(&words).spawn();
    let mut starter = starter.expect("divvy starts");
    until("one like its container was looked into", || {
        scene.door.has_failed().then_some(())
    });
    cancel(&scene.home, "guest");
    let job = scene.home.ended("guest");
    assert_eq!(job.end_reason, Some(EndReason::Cancelled), "{job:?}");
    assert!(!starter.wait_bounded().expect("it is our child").success());
    assert_eq!(scene.containers(&job).len(), 1, "the engine is away");
    scene.door.fail(None);
    scene.nothing_stays(&job, "guest");
    scene.all_is_free();
}

#[test]
fn what_was_made_for_a_job_that_then_lost_its_supervisor_is_taken_away_by_the_same_daemon() {
    let Some((engine, home)) = super::scene("a100-80gb:1") else {
        return;
    };
    let devices = home.scratch().join("cdi");
    let by_device = [
        "--set",
        &format!("containers.cdi-dir={}", devices.display()),
    ];
    // Each of its supervisors dies before it has written down that it begins.
    let dies = [(CRASH_AT, "container.made")];
    for words in [&[][..], &by_device] {
        let mut daemon = home.daemon_with(words, &dies);
        home.is_served_by(&mut daemon);
        let id = super::submit(&home, &[], &["true"]);
        let job = home.ended(&id);
        assert_eq!(job.end_reason, Some(EndReason::LaunchFailed), "{job:?}");
        let why = job.reason.clone().unwrap_or_default();
        assert!(why.contains("its supervisor ended 3 times"), "{why}");
        engine.is_rid_of(&id, home.path());
        until("its device is gone", || {
            let files = fs::read_dir(&devices).into_iter().flatten();
            (files.count() == 0).then_some(())
        });
        assert_eq!(devices.exists(), !words.is_empty(), "it was put there");
        assert_eq!(daemon.stop(), 0);
    }
}

impl Scene {
    /// The program that somebody else's line starts in a slice, with the gates; whoever starts it.
    fn starts_guest(&self, script: &str) -> Child {
        let gate = self.begun("x");
        let folder = gate.parent().expect("it is in a folder");
        let mount = format!("{}:/gates", folder.display());
        let slice = ["docker", "slice", "-g", "0.5", "--name", "guest", "--"];
        let line = [
            "docker", "run", "--rm", "-v", &mount, IMAGE, "sh", "-c", script,
        ];
        let words = [&slice[..], &line].concat();
        let mut starter = self.home.divvy_command(&words);
        starter.spawn().expect("divvy starts")
    }
}

/// Ends when it is asked to, and says that it was.
fn says_bye(name: &str) -> String {
    format!("trap 'echo bye >/gates/{name}; exit 0' TERM; while :; do sleep 0.05; done")
}

#[test]
fn a_cancel_reaches_a_container_whose_engine_has_gone_away() {
    let Some(scene) = Scene::new() else { return };
    let kill = call("POST /containers/*/kill", false);
    for is_guest in [false, true] {
        let name = format!("bye-{is_guest}");
        let (id, starter) = if is_guest {
            let starter = scene.starts_guest(&says_bye(&name));
            until("the job is there", || {
                let jobs = scene.home.items(&["ps"]);
                jobs.iter().any(|job| job["name"] == "guest").then_some(())
            });
            ("guest".to_owned(), Some(starter))
        } else {
            (scene.submit_script(&says_bye(&name)), None)
        };
        scene.home.running(&id);
        scene.door.fail(Some((&kill, Fault::GoneForGood)));
        cancel(&scene.home, &id);
        until("its program was told", || {
            scene.begun(&name).exists().then_some(())
        });
        assert!(scene.door.has_failed(), "the engine was asked first");
        scene.door.fail(None);
        let job = scene.home.ended(&id);
        let ended = (job.end_reason, job.exit_code);
        assert_eq!(ended, (Some(EndReason::Cancelled), Some(0)), "{job:?}");
        scene.nothing_stays(&job, &name);
        if let Some(mut starter) = starter {
            starter.wait_bounded().expect("it is our child");
        }
    }
    scene.all_is_free();
}

#[test]
fn a_guest_of_which_the_engine_does_not_say_whether_it_is_there_is_not_given_up() {
    let Some(scene) = Scene::new() else { return };
    let list = call("GET /containers/json", true);
    scene.door.fail(Some((&list, Fault::RefusedForGood)));
    let script = "echo begun >/gates/begun; until test -e /gates/go; do sleep 0.05; done; exit 5";
    let mut starter = scene.starts_guest(script);
    until("its program runs", || {
        scene.begun("begun").exists().then_some(())
    });
    starter.kill().expect("it is our child");
    starter.wait_bounded().expect("a child can be waited for");
    let asked = || {
        scene
            .door
            .heard()
            .iter()
            .filter(|one| **one == list)
            .count()
    };
    let before = asked();
    until("it was looked for again and again", || {
        (asked() > before + 8).then_some(())
    });
    let state = scene.home.job("guest").state;
    assert_ne!(state, JobState::Ended, "its container runs");
    scene.door.fail(None);
    scene.home.running("guest");
    scene.home.open("go");
    let job = scene.home.ended("guest");
    let ended = (job.end_reason, job.exit_code);
    assert_eq!(ended, (Some(EndReason::Failed), Some(5)), "{job:?}");
    scene.all_is_free();
}
