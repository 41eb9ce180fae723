//! One daemon for every user of the machine: what each may do, and as whom their programs run. Takes root and a second user.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use divvy_api::client::{Client, Runs};
use divvy_api::frame::Frame;
use divvy_api::v1::{
    Amount, Brief, ErrorCode, Exec, GpuChange, Job, JobState, MigGc, Resize, Runner, Submit,
    TaskBoundKind,
};
use divvy_testkit::{Bounded as _, Home, divvy, ended, in_state, log, quarter, refused, until};
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;

/// Numbers that no user database has.
pub const ANA: u32 = 60_101;
pub const LEE: u32 = 60_102;
const KIM: u32 = 60_103;

const SYSTEM: [&str; 3] = ["--system", "--sim", "a100-80gb:1"];

/// A daemon for everybody, unless nobody can be anybody else here.
pub fn system(more: &[&str]) -> Option<Home> {
    if !geteuid().is_root() {
        eprintln!(
            "SKIPPED: only root can start a daemon for every user; nothing of users is tested here"
        );
        return None;
    }
    Some(Home::started(&[&SYSTEM[..], more].concat()))
}

/// Does this as another user: what connects in it is theirs by the kernel's word.
pub fn as_user<T: Send>(home: &Home, uid: u32, work: impl AsyncFnOnce(Client) -> T + Send) -> T {
    let socket = home.socket();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            set_thread_groups(&[]).unwrap();
            let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
            set_thread_res_gid(group, group, group).unwrap();
            set_thread_res_uid(user, user, user).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(work(Client::new(socket)))
        });
        thread.join().unwrap()
    })
}

fn shell(script: &str) -> Submit {
    quarter(&["sh", "-c", script])
}

fn run(home: &Home, uid: u32, submit: &Submit) -> (Job, String) {
    as_user(home, uid, async |client| {
        let id = client.submit(submit).await.unwrap().id;
        let job = ended(&client, &id).await;
        let text = log(&client, &id).await;
        (job, text)
    })
}

#[test]
fn a_program_runs_as_the_user_who_submitted_it_and_cannot_become_another() {
    let Some(home) = system(&[]) else { return };
    let script = "id -u; id -g; id -G; sed -n 's/^NoNewPrivs:\t//p; s/^CapEff:\t//p; s/^CapBnd:\t//p' /proc/self/status; pwd; echo $TOKEN";
    let submit = Submit {
        cwd: "/tmp".into(),
        env: BTreeMap::from([
            ("PATH".into(), std::env::var("PATH").unwrap()),
            ("TOKEN".into(), "of-ana".into()),
        ]),
        ..shell(script)
    };
    let (job, text) = run(&home, ANA, &submit);
    let ana = ANA.to_string();
    let none = "0000000000000000";
    let expected = [&ana, &ana, &ana, none, none, "1", "/tmp", "of-ana"];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected, "{job:?}");
    assert_eq!((job.uid, job.user), (Some(ANA), ana));
    let limit = "sed -n 's/^Max processes *\\([0-9]*\\).*/\\1/p' /proc/self/limits";
    let (limited, most) = run(&home, ANA, &shell(limit));
    let bound = limited.group.unwrap().bound.unwrap();
    if bound.by == TaskBoundKind::User {
        assert_eq!(most.trim(), bound.max.unwrap().to_string());
    }
    let folder = home.path().join("jobs").join(&job.id);
    let owner = |name: &str| fs::metadata(folder.join(name)).unwrap().uid();
    assert_eq!((owner("log"), owner("record")), (ANA, 0));
    assert_eq!(
        fs::metadata(folder.join("log")).unwrap().mode() & 0o777,
        0o600
    );
}

/// Processes of a user.
fn processes_of(uid: u32) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok());
    numbers
        .filter(|entry| entry.metadata().is_ok_and(|about| about.uid() == uid))
        .count()
}

#[test]
fn a_user_without_a_group_that_counts_begins_only_so_many_processes_and_jobs_go_on() {
    const MOST: usize = 40;
    // No other test's: the kernel counts all that the user runs.
    const EVE: u32 = 60_110;
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon for every user");
        return;
    }
    let mut home = Home::empty();
    // The lower of this and a part of the machine's holds.
    let mut command = home.command("prlimit");
    command.arg(format!("--nproc={MOST}:{MOST}"));
    command.arg(divvy()).arg("daemon").args(SYSTEM);
    home.start_by(command.stdin(Stdio::null()));
    let fill = "(i=0; while [ $i -lt 100 ]; do sleep 1000 & i=$((i+1)); done) 2>/dev/null; \
                echo full; exec sleep 1000";
    as_user(&home, EVE, async |client| {
        let id = client.submit(&shell(fill)).await.unwrap().id;
        in_state(&client, &id, JobState::Running).await;
        let mut said = client.log(&id, 0, true).await.unwrap();
        assert_eq!(said.next().await.unwrap().unwrap(), "full\n");
        let bound = client.job(&id).await.unwrap().group.unwrap().bound.unwrap();
        if bound.by == TaskBoundKind::Group {
            eprintln!("SKIPPED: here the control group of a job counts its processes");
        } else {
            let said = (bound.by, bound.max, bound.uid);
            let most = u64::try_from(MOST).unwrap();
            assert_eq!(said, (TaskBoundKind::User, Some(most), Some(EVE)));
            let there = processes_of(EVE);
            assert!((MOST / 2..=MOST).contains(&there), "{there}");
            // At the limit another job starts, and another program in this one.
            let other = client.submit(&shell("echo started")).await.unwrap().id;
            assert_eq!(ended(&client, &other).await.exit_code, Some(0));
            let guest = Exec {
                command: ["sh", "-c", "exit 7"].map(str::to_owned).to_vec(),
                terminal: None,
            };
            let (mut output, _input) = client.exec(&id, &guest).await.unwrap();
            let end = output.next().await.unwrap();
            assert!(
                matches!(&end, Frame::End(end) if end.exit_code == 7),
                "{end:?}"
            );
        }
        client.cancel(&id).await.unwrap();
        ended(&client, &id).await;
    });
    until("all of them are gone", || processes_of(EVE) == 0);
}

#[test]
fn programs_folders_and_files_are_reached_with_the_users_rights_alone() {
    let Some(home) = system(&[]) else { return };
    let closed = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let program = closed.path().join("program");
    fs::write(&program, "#!/bin/sh\necho reached\n").unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let closed_to = |submit: Submit| run(&home, ANA, &submit);
    let (job, text) = closed_to(quarter(&[program.to_str().unwrap()]));
    assert_eq!(
        (job.exit_code, text.contains("reached")),
        (Some(126), false),
        "{text}"
    );
    let inside = Submit {
        cwd: closed.path().to_str().unwrap().into(),
        ..quarter(&["true"])
    };
    let (job, _) = closed_to(inside);
    assert_ne!(job.exit_code, Some(0), "{job:?}");
    // The same as root.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let own = runtime.block_on(async {
        let client = home.connect();
        let id = client
            .submit(&quarter(&[program.to_str().unwrap()]))
            .await
            .unwrap()
            .id;
        ended(&client, &id).await
    });
    assert_eq!(own.exit_code, Some(0));
}

#[test]
fn a_job_cannot_change_its_limits_and_its_user_owns_only_the_account() {
    let Some(home) = system(&[]) else { return };
    let submit = shell(
        "for file in control slots; do test -w $DIVVY_SLICE/$file && echo may write $file; done; \
         echo x > $DIVVY_SLICE/new; rm -f $DIVVY_SLICE/control; ls $DIVVY_SLICE; sleep 1000",
    );
    let (id, slice) = as_user(&home, ANA, async |client| {
        let id = client.submit(&submit).await.unwrap().id;
        in_state(&client, &id, JobState::Running).await;
        (id.clone(), home.path().join("slices").join(id))
    });
    let owner = |name: &str| {
        let meta = fs::metadata(slice.join(name)).unwrap();
        (meta.uid(), meta.mode() & 0o777)
    };
    assert_eq!(owner("control"), (0, 0o644));
    assert_eq!(owner("slots"), (ANA, 0o600));
    assert_eq!(owner("."), (0, 0o711));
    let said = home.path().join("jobs").join(&id).join("log");
    until("it has tried all", || {
        fs::read_to_string(&said).unwrap().contains("ls:")
    });
    let said = fs::read_to_string(&said).unwrap();
    assert!(said.contains("may write slots"), "{said}");
    assert!(!said.contains("may write control"), "{said}");
    assert!(!slice.join("new").exists() && slice.join("control").exists());
    // Another user can neither read the account nor write it.
    let tried = as_user(&home, LEE, async |_| {
        (
            fs::read(slice.join("slots")).is_ok(),
            fs::write(slice.join("control"), "").is_ok(),
        )
    });
    assert_eq!(tried, (false, false));
    as_user(&home, ANA, async |client| {
        drop(client.cancel(&id).await.unwrap())
    });
}

/// What a job is in brief, without what changes while it runs.
fn without_slices(job: &Brief<'_>) -> Value {
    let mut said = serde_json::to_value(job).unwrap();
    said.as_object_mut().unwrap().remove("slices");
    said
}

#[test]
fn of_anothers_job_one_sees_that_it_is_there_and_no_more() {
    let Some(home) = system(&[]) else { return };
    let submit = Submit {
        name: Some("train".into()),
        ..shell("echo s3cret-output; exec sleep 1000 # s3cret-word")
    };
    let (failed, id) = as_user(&home, ANA, async |client| {
        let absent = Submit {
            name: Some("absent".into()),
            ..quarter(&["/no/s3cret"])
        };
        let failed = client.submit(&absent).await.unwrap().id;
        ended(&client, &failed).await;
        let why = client.why(&failed).await.unwrap();
        assert!(why.summary.contains("/no/s3cret"), "{}", why.summary);
        let id = client.submit(&submit).await.unwrap().id;
        in_state(&client, &id, JobState::Running).await;
        // It runs before it has said anything.
        let mut said = client.log(&id, 0, true).await.unwrap();
        assert_eq!(said.next().await.unwrap().unwrap(), "s3cret-output\n");
        assert!(client.job(&id).await.unwrap().limiter.is_some());
        (failed, id)
    });
    as_user(&home, LEE, async |client| {
        let shown = client.job(&id).await.unwrap();
        assert_eq!(
            (shown.name.as_str(), shown.uid, shown.redacted),
            ("train", Some(ANA), true)
        );
        let jobs: Vec<Job> = client.jobs(true).await.unwrap();
        let mut brief = Vec::new();
        let take = |job: Brief<'_>| brief.push(without_slices(&job));
        client.jobs_briefly(true, take).await.unwrap();
        // In brief as in full.
        let full: Vec<Value> = jobs.iter().map(|job| without_slices(&job.into())).collect();
        assert_eq!(brief, full);
        assert_eq!(brief[1]["name"], "train");
        let all = serde_json::to_string(&(jobs, shown)).unwrap();
        let brief = serde_json::to_string(&brief).unwrap();
        let events = serde_json::to_string(&client.events(0).await.unwrap()).unwrap();
        for told in [all, brief, events] {
            assert!(!told.contains("s3cret"), "{told}");
        }
        let resize = Resize {
            amount: Some(Amount::Share { thousandths: 500 }),
            compute: None,
        };
        for reference in [id.as_str(), "train"] {
            for error in [
                refused(client.log(reference, 0, false).await.map(drop)),
                refused(client.oom(reference).await.map(drop)),
                refused(client.advice(&Runs::Like(reference.into())).await.map(drop)),
                refused(client.cancel(reference).await),
                refused(client.resize(reference, &resize).await),
            ] {
                assert_eq!(error.code, ErrorCode::NotAllowed, "{error:?}");
                assert_eq!(error.code.exit_code(), 4);
                assert!(error.hint.is_some());
            }
        }
        let why = client.why(&failed).await.unwrap();
        assert_eq!(why.summary, "the job has ended");
        let shown = client.job(&id).await.unwrap();
        assert!(shown.limiter.is_none() && shown.group.is_none());
        // There is none of theirs, so `last` is the last of all, and still not theirs.
        let error = refused(client.cancel("last").await);
        assert_eq!(error.code, ErrorCode::NotAllowed);
        // With one of their own it is that.
        let own = client.submit(&quarter(&["true"])).await.unwrap().id;
        ended(&client, &own).await;
        assert_eq!(client.job("last").await.unwrap().id, own);
        let advised = client.advice(&Runs::All).await.unwrap();
        let advised = serde_json::to_string(&advised).unwrap();
        assert!(!advised.contains("s3cret"), "{advised}");
    });
    as_user(&home, ANA, async |client| {
        let shown = client.job("last").await.unwrap();
        assert_eq!((shown.id.as_str(), shown.redacted), (id.as_str(), false));
        assert_eq!(shown.command.len(), 3);
        client.cancel("last").await.unwrap();
        assert!(log(&client, &id).await.contains("s3cret-output"));
    });
}

#[test]
fn earlier_runs_of_other_users_show_only_what_every_user_sees() {
    let Some(home) = system(&[]) else { return };
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let script = |name: &str, text: &str| {
        let place = folder.path().join(name);
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, PermissionsExt::from_mode(0o755)).unwrap();
        let script = place.join("run.sh");
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, PermissionsExt::from_mode(0o644)).unwrap();
        script.to_str().unwrap().to_owned()
    };
    let (short, long) = (
        script("one", "exit 0\n"),
        script("s3cret", "exec sleep 1000\n"),
    );
    let whole = |command: &[&str]| Submit {
        amount: Some(Amount::Whole { count: 1 }),
        ..quarter(command)
    };
    for _ in 0..3 {
        let (job, _) = run(&home, ANA, &whole(&["sh", &short, "s3cret"]));
        assert_eq!((job.name.as_str(), job.exit_code), ("run.sh", Some(0)));
    }
    // The same name, which was taken from the command, and another program.
    let holder = as_user(&home, ANA, async |client| {
        let submit = whole(&["bash", &long]);
        let id = client.submit(&submit).await.unwrap().id;
        in_state(&client, &id, JobState::Running).await;
        let waits = client.submit(&whole(&["true"])).await.unwrap().id;
        let why = client.why(&waits).await.unwrap();
        assert_eq!(why.gpus[0].held_by[0].usual_run, None, "{why:#?}");
        client.cancel(&waits).await.unwrap();
        id
    });
    as_user(&home, LEE, async |client| {
        let waits = client.submit(&whole(&["true"])).await.unwrap().id;
        let why = client.why(&waits).await.unwrap();
        let held_by = &why.gpus[0].held_by[0];
        assert_eq!(held_by.job, holder);
        let usual = held_by.usual_run.unwrap();
        assert_eq!(usual.runs, 3);
        let told = serde_json::to_string(&why).unwrap();
        assert!(!told.contains("s3cret"), "{told}");
        client.cancel(&waits).await.unwrap();
    });
    as_user(&home, ANA, async |client| {
        drop(client.cancel(&holder).await.unwrap());
    });
}

#[test]
fn roles_are_as_the_file_says() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon for every user");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let access = dir.path().join("access.toml");
    let text = format!("operator = [{LEE}]\nviewer = [{KIM}]\nuser = [{ANA}]\nothers = \"none\"\n");
    fs::write(&access, text).unwrap();
    fs::set_permissions(&access, PermissionsExt::from_mode(0o644)).unwrap();
    let home = system(&["--set", &format!("listen.access={}", access.display())]).unwrap();
    let code = |answer: Result<(), divvy_api::v1::Error>| answer.err().map(|error| error.code);
    let id = as_user(&home, ANA, async |client| {
        let id = client
            .submit(&quarter(&["sleep", "1000"]))
            .await
            .unwrap()
            .id;
        in_state(&client, &id, JobState::Running).await;
        let govern = client.change_gpu("0", &exclusive()).await.map(drop);
        assert_eq!(code(govern), Some(ErrorCode::NotAllowed));
        let gc = client.mig_gc(&MigGc::default()).await.map(drop);
        assert_eq!(code(gc), Some(ErrorCode::NotAllowed));
        id
    });
    as_user(&home, KIM, async |client| {
        assert_eq!(client.gpus().await.unwrap().len(), 1);
        let submit = client.submit(&quarter(&["true"])).await.map(drop);
        assert_eq!(code(submit), Some(ErrorCode::NotAllowed));
    });
    as_user(&home, LEE, async |client| {
        let shown = client.job(&id).await.unwrap();
        assert_eq!(
            (shown.redacted, shown.command),
            (false, vec!["sleep".into(), "1000".into()])
        );
        client.mig_gc(&MigGc::default()).await.unwrap();
        let govern = client.change_gpu("0", &exclusive()).await.map(drop);
        assert_eq!(code(govern), Some(ErrorCode::NotAllowed));
        client.cancel(&id).await.unwrap();
        assert_eq!(ended(&client, &id).await.state, JobState::Ended);
    });
    // The next daemon reads the file again, and not this one.
    fs::write(&access, "others = \"admin\"\n").unwrap();
    as_user(&home, 60_199, async |client| {
        let error = client.node().await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotAllowed);
    });
}

#[test]
fn to_put_a_job_first_of_all_takes_the_operators_role() {
    let access = tempfile::NamedTempFile::new().unwrap();
    fs::write(access.path(), format!("operator = [{LEE}]")).unwrap();
    fs::set_permissions(access.path(), PermissionsExt::from_mode(0o600)).unwrap();
    let access = access.path().to_str().unwrap();
    let Some(home) = system(&["--set", &format!("listen.access={access}")]) else {
        return;
    };
    let with = |priority| Submit {
        priority,
        ..quarter(&["true"])
    };
    as_user(&home, ANA, async |client| {
        let error = refused(client.submit(&with(1)).await);
        assert_eq!(error.code, ErrorCode::NotAllowed);
        assert!(error.message.contains("operator"), "{}", error.message);
        client.submit(&with(0)).await.unwrap();
        client.submit(&with(-5)).await.unwrap();
    });
    as_user(&home, LEE, async |client| {
        client.submit(&with(1000)).await.unwrap();
    });
}

fn exclusive() -> GpuChange {
    serde_json::from_value(serde_json::json!({"mode": "exclusive"})).unwrap()
}

#[test]
fn what_only_root_could_be_trusted_with_is_refused() {
    let Some(home) = system(&[]) else { return };
    as_user(&home, ANA, async |client| {
        let here = Submit {
            runner: Runner::Client,
            ..quarter(&["true"])
        };
        let error = refused(client.submit(&here).await);
        assert_eq!(error.code, ErrorCode::NotAllowed);
        let contained = serde_json::json!({"image": "debian", "arguments": []});
        let contained = Submit {
            container: Some(serde_json::from_value(contained).unwrap()),
            ..quarter(&["true"])
        };
        let error = refused(client.submit(&contained).await);
        assert_eq!(error.code, ErrorCode::NotAllowed, "{error:?}");
        // One user's key is not another's.
        let keyed = Submit {
            idempotency_key: Some("k".into()),
            ..quarter(&["true"])
        };
        let first = client.submit(&keyed).await.unwrap().id;
        assert_eq!(client.submit(&keyed).await.unwrap().id, first);
    });
    let keyed = Submit {
        idempotency_key: Some("k".into()),
        ..quarter(&["id", "-u"])
    };
    let (job, text) = run(&home, LEE, &keyed);
    assert_eq!(
        (job.uid, text.trim()),
        (Some(LEE), LEE.to_string().as_str())
    );
}

#[test]
fn the_owner_of_a_job_survives_the_daemon() {
    let Some(mut home) = system(&[]) else { return };
    let (running, waiting) = as_user(&home, ANA, async |client| {
        let whole = Submit {
            amount: Some(Amount::Whole { count: 1 }),
            ..quarter(&["sleep", "1000"])
        };
        let running = client.submit(&whole).await.unwrap().id;
        in_state(&client, &running, JobState::Running).await;
        let waiting = client.submit(&shell("id -u")).await.unwrap().id;
        (running, waiting)
    });
    home.kill();
    home.start(&SYSTEM);
    as_user(&home, LEE, async |client| {
        let error = refused(client.cancel(&running).await);
        assert_eq!(error.code, ErrorCode::NotAllowed);
    });
    as_user(&home, ANA, async |client| {
        client.cancel(&running).await.unwrap();
        ended(&client, &waiting).await;
        assert_eq!(log(&client, &waiting).await.trim(), ANA.to_string());
    });
}

#[test]
fn a_private_daemon_refuses_every_other_user() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can call as another user");
        return;
    }
    let home = Home::started(&["--sim", "a100-80gb:1"]);
    let socket = home.socket();
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600);
    // Also where its folder and its socket were opened by mistake.
    fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    as_user(&home, ANA, async |client| {
        let error = client.jobs(true).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NotAllowed);
        assert!(error.message.contains(&ANA.to_string()), "{error:?}");
    });
}

#[test]
fn arguments_that_open_too_much_are_refused_before_anything_is_written() {
    let home = Home::empty();
    let wrong: [&[&str]; 4] = [
        &["--set", "listen.access=/etc/hostname"],
        &["--set", "listen.listen=127.0.0.1:0"],
        &["--set", "listen.token-file=/etc/hostname"],
        &[
            "--set",
            "listen.listen=0.0.0.0:0",
            "--set",
            "listen.token-file=/etc/hostname",
        ],
    ];
    for words in wrong {
        let said = home.run(&[&["daemon", "--sim", "a100-80gb:1"], words].concat());
        assert_eq!(said.status.code(), Some(2), "{words:?}: {said:?}");
        assert!(!home.path().join("state.db").exists());
    }
}

#[test]
fn values_of_the_environment_are_in_nothing_that_stays() {
    let Some(mut home) = system(&[]) else { return };
    let submit = Submit {
        env: BTreeMap::from([
            ("PATH".into(), std::env::var("PATH").unwrap()),
            ("API_KEY".into(), "s3cret-plain".into()),
        ]),
        secrets: BTreeMap::from([("TOKEN".into(), "s3cret-kept".into())]),
        ..shell("test ${#API_KEY} = 12 && test ${#TOKEN} = 11")
    };
    let (job, _) = run(&home, ANA, &submit);
    assert_eq!(job.exit_code, Some(0));
    let shown = as_user(&home, ANA, async |client| {
        let events = client.events(0).await.unwrap();
        serde_json::to_string(&(client.jobs(true).await.unwrap(), events)).unwrap()
    });
    assert!(!shown.contains("s3cret"), "{shown}");
    assert_eq!(home.stop(), 0);
    let found = Command::new("grep")
        .args(["-rlaF", "s3cret"])
        .arg(home.path())
        .output_bounded()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&found.stdout),
        "",
        "files that keep it"
    );
}

#[test]
fn a_process_of_another_user_with_a_slice_open_is_reported_and_delays_no_job() {
    let Some(home) = system(&["--set", "grace=1s"]) else {
        return;
    };
    let id = as_user(&home, ANA, async |client| {
        let id = client.submit(&shell("sleep 1000")).await.unwrap().id;
        in_state(&client, &id, JobState::Running).await;
        id
    });
    // This process is root's, and holds nothing of the GPU.
    let slice = divvy_ledger::Slice::open(&home.path().join("slices").join(&id)).unwrap();
    let _slot = slice.join().unwrap();
    let events = as_user(&home, 0, async |client| {
        client.cancel(&id).await.unwrap();
        ended(&client, &id).await;
        client.events(0).await.unwrap()
    });
    let its = events
        .iter()
        .filter(|event| event.job.as_ref() == Some(&id));
    let said: Vec<&str> = its
        .filter(|event| event.kind == "orphan_process")
        .map(|event| event.text.as_str())
        .collect();
    let pid = format!("pid {} ", std::process::id());
    assert!(
        matches!(said[..], [said] if said.starts_with(&pid)),
        "{said:?}"
    );
    until("the slice is gone", || home.slices().is_empty());
}
