//! Accounts that go and come while jobs wait: a uid belongs to another user, or the user database does not answer. The
//! daemon has a folder `/etc` of its own.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use divvy_api::client::{Act, Client};
use divvy_api::frame::Frame;
use divvy_api::v1::{Amount, Array, EndReason, Exec, JobState, Submit};
use divvy_testkit::{Home, divvy, ended, in_state, log, quarter, until, until_async};
use rustix::process::geteuid;

use crate::users::as_user;

/// No account of this machine has it.
const OLD: u32 = 60_121;

/// A daemon for every user, with user accounts of its own.
struct Machine {
    home: Home,
    etc: tempfile::TempDir,
}

impl Machine {
    /// One with the account `olduser`; `None` where this process may make none.
    fn started() -> Option<Self> {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root can give a daemon its own user database");
            return None;
        }
        let etc = tempfile::tempdir_in("/tmp").unwrap();
        fs::set_permissions(etc.path(), PermissionsExt::from_mode(0o755)).unwrap();
        for file in ["ld.so.cache", "ld.so.conf", "machine-id", "localtime"] {
            let _ = fs::copy(Path::new("/etc").join(file), etc.path().join(file));
        }
        let services = "passwd: files\ngroup: files\n";
        fs::write(etc.path().join("nsswitch.conf"), services).unwrap();
        fs::write(etc.path().join("group"), "root:x:0:\n").unwrap();
        let mut machine = Self {
            home: Home::empty(),
            etc,
        };
        machine.name("olduser");
        machine.start();
        Some(machine)
    }

    fn passwd(&self) -> PathBuf {
        self.etc.path().join("passwd")
    }

    /// Gives the uid to the account of this name.
    fn name(&self, user: &str) {
        let text =
            format!("root:x:0:0:root:/root:/bin/sh\n{user}:x:{OLD}:{OLD}::/nonexistent:/bin/sh\n");
        fs::write(self.passwd(), text).unwrap();
    }

    fn start(&mut self) {
        let mut command = self.home.command("unshare");
        let own_etc = "mount --bind \"$0\" /etc && exec \"$@\"";
        command.args(["--mount", "sh", "-c", own_etc]);
        command.arg(self.etc.path()).arg(divvy());
        command.args(["daemon", "--system", "--sim", "a100-80gb:1"]);
        command.args(["--set", "grace=1s"]);
        self.home.start_by(command.stdin(Stdio::null()));
    }
}

fn whole(command: &[&str]) -> Submit {
    Submit {
        amount: Some(Amount::Whole { count: 1 }),
        cwd: "/tmp".into(),
        ..quarter(command)
    }
}

async fn submitted(client: &Client, submit: &Submit) -> String {
    client.submit(submit).await.unwrap().id
}

#[test]
fn no_waiting_job_of_an_account_runs_as_the_next_owner_of_its_uid() {
    let Some(mut machine) = Machine::started() else {
        return;
    };
    let open = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(open.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mark = |name: &str| open.path().join(name).to_str().unwrap().to_owned();
    let touch = |name: &str| whole(&["touch", &mark(name)]);
    let (running, held, others) = as_user(&machine.home, OLD, async |client| {
        let sleeps = Submit {
            notify: Some(format!("touch {}", mark("notice"))),
            ..whole(&["sleep", "1000"])
        };
        let running = submitted(&client, &sleeps).await;
        in_state(&client, &running, JobState::Running).await;
        let hold = Submit {
            hold: true,
            ..touch("held")
        };
        let held = submitted(&client, &hold).await;
        let mut others = vec![submitted(&client, &touch("queued")).await];
        let array = Submit {
            array: Some(Array {
                indices: vec![0, 1],
                max_running: None,
            }),
            ..touch("array")
        };
        submitted(&client, &array).await;
        let all = client.jobs(false).await.unwrap();
        let tasks = all.iter().filter(|job| job.command == array.command);
        others.extend(tasks.map(|job| job.id.clone()));
        assert_eq!(others.len(), 3);
        (running, held, others)
    });
    // After an upgrade the jobs are those of the journal.
    machine.home.kill();
    machine.start();
    machine.name("newuser");
    let expected = format!(
        "uid {OLD} belonged to olduser when the job was submitted, and belongs to newuser now"
    );
    as_user(&machine.home, OLD, async |client| {
        // A running program is the kernel's, and has the uid; nothing more is started in it.
        let enter = Exec {
            command: vec!["touch".into(), mark("exec")],
            terminal: None,
        };
        let (mut output, _input) = client.exec(&running, &enter).await.unwrap();
        let mut said = String::new();
        loop {
            match output.next().await.unwrap() {
                Frame::End(end) => break said += &format!("{end:?}"),
                Frame::Output(text) | Frame::Errors(text) => {
                    said += &String::from_utf8_lossy(&text);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(said.contains(&expected), "{said}");
        client.act(&held, Act::Unhold).await.unwrap();
        client.cancel(&running).await.unwrap();
        for id in others.iter().chain([&held]) {
            let job = ended(&client, id).await;
            assert_eq!(job.end_reason, Some(EndReason::LaunchFailed), "{job:?}");
            assert_eq!(job.reason.as_deref(), Some(expected.as_str()));
        }
        ended(&client, &running).await;
        until_async("the notification has failed", async || {
            let text = log(&client, &running).await;
            text.contains(&expected).then_some(())
        })
        .await;
    });
    let made = fs::read_dir(open.path()).unwrap().count();
    assert_eq!(made, 0, "nothing of olduser's jobs runs as newuser");
    // Jobs of the new account run.
    let own = as_user(&machine.home, OLD, async |client| {
        let id = submitted(&client, &touch("own")).await;
        ended(&client, &id).await
    });
    assert_eq!((own.user.as_str(), own.exit_code), ("newuser", Some(0)));
    assert!(Path::new(&mark("own")).exists());
}

#[test]
fn a_journal_that_another_user_could_write_is_refused() {
    let Some(mut machine) = Machine::started() else {
        return;
    };
    machine.home.kill();
    let journal = machine.home.path().join("state.db");
    let refused = |what: &str| {
        let said = machine
            .home
            .run(&["daemon", "--system", "--sim", "a100-80gb:1"]);
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_ne!(said.status.code(), Some(0), "{text}");
        assert!(text.contains(what) && text.contains("chmod 600"), "{text}");
    };
    fs::set_permissions(&journal, PermissionsExt::from_mode(0o666)).unwrap();
    refused("is writable by other users (mode 666)");
    fs::set_permissions(&journal, PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(&journal, Some(OLD), None).unwrap();
    refused("belongs to uid 60121");
    std::os::unix::fs::chown(&journal, Some(0), None).unwrap();
    machine.start();
}

#[test]
fn a_job_waits_in_its_queue_while_its_account_cannot_be_looked_up() {
    let Some(machine) = Machine::started() else {
        return;
    };
    let id = as_user(&machine.home, OLD, async |client| {
        let hold = Submit {
            hold: true,
            ..whole(&["id", "-u"])
        };
        submitted(&client, &hold).await
    });
    // Without the file the service `files` is unavailable, as a directory service that is down.
    let aside = machine.etc.path().join("aside");
    fs::rename(machine.passwd(), &aside).unwrap();
    let called = Instant::now();
    until(
        "the daemon has forgotten what it knew of the caller",
        || called.elapsed() > Duration::from_millis(1100),
    );
    as_user(&machine.home, 0, async |client| {
        let is_told = async |why: &str| {
            until_async("it is back in its queue", async || {
                let events = client.events(0).await.unwrap();
                let told = events.iter().any(|event| event.text == why);
                told.then_some(())
            })
            .await;
        };
        client.act(&id, Act::Unhold).await.unwrap();
        let why = "it could not be started: the user database does not answer";
        is_told(why).await;
        assert_ne!(client.job(&id).await.unwrap().state, JobState::Ended);
        // Another service answers, and does not know the user either.
        let without = "root:x:0:0:root:/root:/bin/sh\n";
        fs::write(machine.passwd(), without).unwrap();
        let why = "it could not be started: the user database has no account for its user now";
        is_told(why).await;
        assert_ne!(client.job(&id).await.unwrap().state, JobState::Ended);
        fs::rename(&aside, machine.passwd()).unwrap();
        let job = ended(&client, &id).await;
        assert_eq!(job.exit_code, Some(0), "{job:?}");
        assert_eq!(log(&client, &id).await.lines().last(), Some("60121"));
    });
}
