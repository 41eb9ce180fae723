//! Scripts of jobs, the files of their output, and what is started when they have ended.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Stdio;

use divvy_api::client::Client;
use divvy_api::v1::{Array, EndReason, ErrorCode, Job, JobState, Output, Script, Submit};
use divvy_testkit::{Bounded as _, Home, SEED, ended, in_state, log, quarter, refused, until};

use crate::users::{LEE, as_user};

fn scripted(text: &str, words: &[&str]) -> Submit {
    Submit {
        script: Some(Script {
            text: text.to_owned(),
            slurm_names: true,
        }),
        ..quarter(words)
    }
}

fn noticed(line: &str, submit: Submit) -> Submit {
    Submit {
        notify: Some(line.to_owned()),
        ..submit
    }
}

fn output(stdout: Option<&str>, stderr: Option<&str>) -> Option<Output> {
    Some(Output {
        stdout: stdout.map(str::to_owned),
        stderr: stderr.map(str::to_owned),
        append: false,
    })
}

/// What the log of an ended job says once it has this.
async fn says(client: &Client, id: &str, what: &str) -> String {
    divvy_testkit::until_async(format!("the log of job {id} has {what}"), async || {
        let text = log(client, id).await;
        text.contains(what).then_some(text)
    })
    .await
}

#[tokio::test]
async fn a_script_is_the_one_that_was_submitted_and_its_output_is_in_the_files_of_each_task() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    let all = Submit {
        amount: Some(divvy_api::v1::Amount::Whole { count: 3 }),
        ..quarter(&["sleep", "1000"])
    };
    let all = client.submit(&all).await.unwrap().id;
    in_state(&client, &all, JobState::Running).await;
    let work = home.path().join("work");
    fs::create_dir(&work).unwrap();
    let text = "#!/bin/sh -e\necho \"$1 $SLURM_JOB_ID $SLURM_ARRAY_JOB_ID $SLURM_ARRAY_TASK_ID\"\necho wrong >&2\n";
    let array = Submit {
        name: Some("train".into()),
        cwd: work.display().to_string(),
        array: Some(Array {
            indices: vec![4, 7],
            max_running: None,
        }),
        output: output(Some("%x-%A_%a.out"), Some("%2j.err")),
        ..scripted(text, &["train.sh", "a b"])
    };
    let first = client.submit(&array).await.unwrap().id;
    // The journal has the script, and a daemon that is killed while the job waits loses nothing of it.
    home.kill();
    home.start(&SEED);
    let client = home.connect();
    client.cancel(&all).await.unwrap();
    let number: u64 = first.parse().unwrap();
    for (id, index) in [(number, 4), (number + 1, 7)] {
        let job = ended(&client, &id.to_string()).await;
        assert_eq!(job.end_reason, Some(EndReason::Completed), "{job:?}");
        let files = job.output.unwrap();
        let out = work.join(format!("train-{first}_{index}.out"));
        assert_eq!(files.stdout.as_deref(), out.to_str());
        let said = fs::read_to_string(out).unwrap();
        assert_eq!(said, format!("a b {id} {first} {index}\n"));
        let errors = fs::read_to_string(work.join(format!("{id:02}.err"))).unwrap();
        assert_eq!(errors, "wrong\n");
        assert_eq!(job.command, ["train.sh", "a b"]);
        let folder = Path::new(&job.directory);
        assert!(!folder.join("script").exists() && !divvy_testkit::has_spec(folder));
    }
}

#[tokio::test]
async fn what_no_job_can_be_started_with_is_refused() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let container = divvy_api::v1::Container {
        image: "u22".into(),
        arguments: Vec::new(),
        starter: None,
        as_submitter: false,
    };
    let script = |text: &str| scripted(text, &["a.sh"]);
    let files = |pattern: &str| Submit {
        output: output(Some(pattern), None),
        ..quarter(&["true"])
    };
    for (submit, why) in [
        (script("echo\n"), "no interpreter line"),
        (script("#!\necho\n"), "no interpreter line"),
        (script("#!/bin/sh\n\0"), "NUL"),
        (
            Submit {
                confirm: true,
                ..script("#!/bin/sh\n")
            },
            "confirmation",
        ),
        (files("%q"), "-o %q: unknown field `%q`"),
        (files(""), "the file name is empty"),
        (files("a\0"), "NUL"),
        (
            Submit {
                container: Some(container),
                ..files("a")
            },
            "not supported for containers",
        ),
        (
            Submit {
                runner: divvy_api::v1::Runner::Client,
                ..files("a")
            },
            "terminal",
        ),
        (noticed(" ", quarter(&["true"])), "is empty"),
        (noticed("a\0", quarter(&["true"])), "NUL"),
        (noticed(&"n".repeat(4097), quarter(&["true"])), "4096"),
        (
            script(&format!("#!/bin/sh\n{}", "x".repeat(1 << 20))),
            "1048576",
        ),
    ] {
        let error = refused(client.submit(&submit).await);
        assert_eq!(error.code, ErrorCode::Usage, "{error}");
        assert!(error.message.contains(why), "{why}: {error}");
    }
}

#[tokio::test]
async fn a_run_that_comes_again_adds_to_its_files_and_a_folder_that_is_missing_is_named() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let file = home.path().join("out");
    fs::write(&file, "old\n").unwrap();
    let twice = Submit {
        retries: 1,
        output: output(file.to_str(), None),
        ..quarter(&["sh", "-c", "echo run; exit 1"])
    };
    let id = client.submit(&twice).await.unwrap().id;
    ended(&client, &id).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "run\nrun\n");
    let added = Submit {
        retries: 0,
        output: Some(Output {
            append: true,
            ..twice.output.clone().unwrap()
        }),
        ..twice
    };
    let id = client.submit(&added).await.unwrap().id;
    ended(&client, &id).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "run\nrun\nrun\n");

    let lost = Submit {
        output: output(Some("/no/such/folder/out"), None),
        ..quarter(&["true"])
    };
    let id = client.submit(&lost).await.unwrap().id;
    let job = ended(&client, &id).await;
    assert_eq!(job.end_reason, Some(EndReason::LaunchFailed));
    let why = "cannot write the job's output to /no/such/folder/out: the folder /no/such/folder does not exist";
    assert_eq!(
        (job.exit_code, job.reason.as_deref()),
        (Some(125), Some(why))
    );
}

#[tokio::test]
async fn the_bound_of_logs_is_none_of_an_output_file() {
    let home = Home::started(&[&SEED[..], &["--set", "limits.log-size=1M"]].concat());
    let client = home.connect();
    let file = home.path().join("err");
    // 4 MB each.
    let script = "seq 100000000 100400000; seq 100000000 100400000 >&2; exec sleep 1000";
    let both = Submit {
        output: output(None, file.to_str()),
        ..quarter(&["sh", "-c", script])
    };
    let id = client.submit(&both).await.unwrap().id;
    let log = home.path().join("jobs").join(&id).join("log");
    let size = 400_001 * 10;
    until("all is written and the log is cut", || {
        let is_cut = |log: fs::Metadata| log.len() == size && log.blocks() * 512 <= 1 << 20;
        let is_whole = |file: fs::Metadata| file.len() == size;
        fs::metadata(&log).is_ok_and(is_cut) && fs::metadata(&file).is_ok_and(is_whole)
    });
    let whole = fs::read_to_string(&file).unwrap();
    assert_eq!(whole.lines().count(), 400_001);
    assert!(!whole.contains('\0'), "nothing of it was cut");
}

/// What a notice says of how its job ended.
const TELL: &str = "echo \"said $DIVVY_JOB_ID $DIVVY_JOB_NAME $DIVVY_END_REASON [$DIVVY_EXIT_CODE] [$CUDA_VISIBLE_DEVICES] $TOKEN$DIVVY_USED.\"";

#[tokio::test]
async fn a_notice_tells_of_every_end_once_and_has_no_gpu() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let named = |name: &str, command: &[&str]| Submit {
        name: Some(name.to_owned()),
        secrets: [("TOKEN".to_owned(), "hush".to_owned())].into(),
        ..noticed(TELL, quarter(command))
    };
    let submit = async |submit: Submit| client.submit(&submit).await.unwrap().id;
    let again = submit(Submit {
        retries: 1,
        ..named("again", &["sh", "-c", "exit 3"])
    })
    .await;
    let held = submit(named("held", &["sleep", "1000"])).await;
    let after = submit(Submit {
        after: vec![divvy_api::v1::After {
            job: held.clone(),
            ok: true,
        }],
        ..named("after", &["true"])
    })
    .await;
    let waits = submit(Submit {
        after: vec![divvy_api::v1::After {
            job: held.clone(),
            ok: false,
        }],
        ..named("waits", &["true"])
    })
    .await;
    in_state(&client, &held, JobState::Running).await;
    client.cancel(&waits).await.unwrap();
    client.cancel(&held).await.unwrap();
    for (id, name, end) in [
        (again, "again", "failed [3]"),
        (held, "held", "cancelled [143]"),
        (after, "after", "dependency_failed []"),
        (waits, "waits", "cancelled []"),
    ] {
        ended(&client, &id).await;
        let line = format!("said {id} {name} {end} [] hush.\n");
        let text = says(&client, &id, "said").await;
        assert_eq!(text.matches("said").count(), 1, "{text}");
        assert!(text.contains(&line), "{line}: {text}");
        let folder = home.path().join("jobs").join(&id).join("notice");
        until("its environment is forgotten", || {
            !divvy_testkit::has_spec(&folder)
        });
    }
}

#[tokio::test]
async fn a_notification_tells_the_peak_of_the_limit_and_describe_the_next_size() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let (probe, gate) = (home.program("cudarc_probe"), home.gate("go"));
    let (divvy, folder) = (home.program("divvy"), home.path().display());
    let told = format!(
        "DIVVY_HOME={folder} {divvy} describe $DIVVY_JOB_ID; echo \"[$DIVVY_USED] is all\""
    );
    let hold = [
        &probe,
        "hold",
        "--bytes",
        "1073741824",
        "--until-file",
        &gate,
    ];
    let id = client
        .submit(&noticed(&told, quarter(&hold)))
        .await
        .unwrap()
        .id;
    in_state(&client, &id, JobState::Running).await;
    home.open("go");
    ended(&client, &id).await;
    let text = says(&client, &id, "at its peak] is all").await;
    let line = text.lines().last().unwrap_or_default();
    assert!(
        line.starts_with("[1.") && line.ends_with(" GiB at its peak] is all"),
        "{text}"
    );
    assert!(text.contains("; next time: --gpu-memory "), "{text}");
}

#[tokio::test]
async fn a_daemon_that_dies_gives_a_notice_at_most_once() {
    for (point, times) in [
        ("end.decided", 1),
        ("end.forgotten", 0),
        ("notice.noted", 0),
        ("notice.given", 1),
    ] {
        let mut home = Home::empty();
        let client = home.connect();
        let file = home.path().join("notices");
        let line = format!("echo said >> {}", file.display());
        let submit = noticed(&line, quarter(&["true"]));
        let mut id = String::new();
        home.crash_at(point, &SEED, async |_| {
            id = client.submit(&submit).await.unwrap().id;
        })
        .await;
        ended(&client, &id).await;
        // The notice of a later job comes after it.
        let last = home.path().join("last");
        let line = format!("echo said > {}", last.display());
        let other = noticed(&line, quarter(&["true"]));
        client.submit(&other).await.unwrap();
        until("the later notice came", || last.exists());
        let said = || fs::read_to_string(&file).unwrap_or_default();
        until("the notice came, if it does", || {
            said().lines().count() >= times
        });
        assert_eq!(said().lines().count(), times, "{point}");
    }
}

#[test]
fn a_supervisor_ends_what_has_run_for_its_time_without_an_agent() {
    let dir = tempfile::tempdir().unwrap();
    let spec = serde_json::json!({
        "job": "7", "command": ["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"], "cwd": "/",
        "env": {"PATH": std::env::var("PATH").unwrap()}, "grace_ms": 100, "ends_after_ms": 100, "limiter": null,
    });
    fs::write(dir.path().join("record"), format!("{spec}\n")).unwrap();
    let home = Home::empty();
    let path = dir.path().display().to_string();
    let mut supervisor = home.divvy_command(&["supervise", &path]);
    supervisor.stdin(Stdio::null());
    let status = supervisor.wait_bounded().unwrap();
    assert!(status.success());
    let exit = divvy_testkit::recorded(dir.path(), "exit").unwrap();
    assert_eq!(exit["signal"], 9, "{exit}");
}

#[test]
fn files_scripts_and_notices_of_another_user_are_that_users() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon for every user");
        return;
    }
    let home = Home::started(&["--system", "--sim", "a100-80gb:1"]);
    let work = tempfile::tempdir_in("/tmp").unwrap();
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    set(work.path(), 0o1777);
    let roots = work.path().join("roots");
    fs::write(&roots, "root's\n").unwrap();
    set(&roots, 0o644);
    let run = |submit: Submit| -> (Job, String) {
        as_user(&home, LEE, async |client| {
            let id = client.submit(&submit).await.unwrap().id;
            let job = ended(&client, &id).await;
            let text = if submit.notify.is_some() {
                says(&client, &id, "uid").await
            } else {
                log(&client, &id).await
            };
            (job, text)
        })
    };
    let own = work.path().join("own");
    let text = "#!/bin/sh\nid -u; stat -c '%u %a' \"$0\"; test -w \"$0\" && echo its own\n";
    let (job, said) = run(Submit {
        output: output(own.to_str(), None),
        ..noticed("echo \"uid $(id -u) $(id -G)\"", scripted(text, &["a.sh"]))
    });
    assert_eq!(
        fs::read_to_string(&own).unwrap(),
        format!("{LEE}\n{LEE} 700\nits own\n")
    );
    assert_eq!(fs::metadata(&own).unwrap().uid(), LEE);
    assert!(said.contains(&format!("uid {LEE} {LEE}\n")), "{said}");

    for path in [
        &roots,
        &home.path().join("state.db"),
        &home.path().join("jobs"),
    ] {
        let (job, _) = run(Submit {
            output: output(path.to_str(), None),
            ..quarter(&["true"])
        });
        assert_eq!(job.end_reason, Some(EndReason::LaunchFailed), "{job:?}");
        let reason = job.reason.unwrap();
        assert!(
            reason.contains("Permission denied") || reason.contains("Is a directory"),
            "{reason}"
        );
    }
    assert_eq!(fs::read_to_string(&roots).unwrap(), "root's\n");
    let seen = as_user(&home, LEE + 1, async |client| {
        client.job(&job.id).await.unwrap()
    });
    assert!(seen.redacted && seen.output.is_none() && seen.notify.is_none());
}
