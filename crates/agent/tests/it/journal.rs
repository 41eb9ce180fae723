//! A journal that was lost, cut short, damaged or restored: no GPU is given out twice, and no job runs twice.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Output;

use divvy_api::client::Client;
use divvy_api::v1::{Amount, EndReason, ErrorCode, Job, JobState, JournalFile, Resize, Submit};
use divvy_testkit::{
    Home, ended, in_state, is_alive, mentions, quarter, signal, until, until_async,
};

/// One GPU.
const ONE: [&str; 2] = ["--sim", "a100-80gb:1"];

/// A shell script on half a GPU.
fn half(script: &str) -> Submit {
    Submit {
        amount: Some(Amount::Share { thousandths: 500 }),
        ..quarter(&["sh", "-c", script])
    }
}

fn journal_files(home: &Home) -> Vec<PathBuf> {
    let files = ["state.db", "state.db-wal", "state.db-shm"];
    files.map(|name| home.path().join(name)).to_vec()
}

fn labels(jobs: &[Job]) -> Vec<(String, Option<u32>, String)> {
    let of = |job: &Job| (job.id.clone(), job.pid, job.slices[0].label.clone());
    jobs.iter().map(of).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// What a command of `admin journal` says that it did.
fn done(output: &Output) -> JournalFile {
    assert!(output.status.success(), "{}", said(output));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(list["items"][0].clone()).unwrap()
}

async fn two_halves_run(client: &Client) -> Vec<Job> {
    for id in ["1", "2"] {
        client.submit(&half("exec sleep 1000")).await.unwrap();
        in_state(client, id, JobState::Running).await;
    }
    client.jobs(false).await.unwrap()
}

#[tokio::test]
async fn a_lost_journal_is_completed_from_the_records_of_jobs_that_run() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    two_halves_run(&client).await;
    // What their records do not have yet.
    client.suspend("1").await.unwrap();
    let resize = Resize {
        amount: Some(Amount::Share { thousandths: 250 }),
        compute: None,
    };
    client.resize("2", &resize).await.unwrap();
    let before = until_async("job 2 has shrunk", async || {
        let jobs = client.jobs(false).await.unwrap();
        (jobs[1].slices[0].share == 250).then_some(jobs)
    });
    let before = before.await;
    home.kill();
    for file in journal_files(&home) {
        let _ = fs::remove_file(file);
    }
    home.start(&ONE);
    let client = home.connect();
    let after = client.jobs(false).await.unwrap();
    assert_eq!(labels(&before), labels(&after));
    assert!(after[0].suspended, "it was before the journal was lost");
    let gpu = client.gpus().await.unwrap().remove(0);
    assert_eq!(gpu.share_allocated, 750);
    assert_eq!(
        (&after[0].name, &after[0].user),
        (&before[0].name, &before[0].user)
    );
    let node = client.node().await.unwrap();
    assert_eq!(node.journal.unwrap().recovered, 2);
    let new = client.submit(&half("exec sleep 1000")).await.unwrap();
    assert_eq!((new.id.as_str(), new.state), ("3", JobState::Queued));
    let why = client.why("3").await.unwrap();
    assert_eq!(why.gpus[0].holders.len(), 2, "{why:?}");

    client.cancel("2").await.unwrap();
    let job = ended(&client, "2").await;
    assert_eq!(job.end_reason, Some(EndReason::Cancelled));
    in_state(&client, "3", JobState::Running).await;
}

#[tokio::test]
async fn a_journal_that_was_cut_short_gives_no_gpu_out_twice() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    let wal = home.path().join("state.db-wal");
    let before = two_halves_run(&client).await;
    home.kill();
    // Within the first frame (a header of 32 bytes, then 24 and a page for each): nothing is left of what was journaled since the
    // daemon made its reserve and began the log again.
    let wal = fs::File::options().write(true).open(wal).unwrap();
    wal.set_len(32 + 24 + 4096 - 37).unwrap();
    home.start(&ONE);
    let client = home.connect();
    assert_eq!(labels(&before), labels(&client.jobs(false).await.unwrap()));
    let gpu = client.gpus().await.unwrap().remove(0);
    assert_eq!(gpu.share_allocated, 1000);
    assert!(
        home.daemon_log().contains("ends within a frame"),
        "{}",
        home.daemon_log()
    );
}

#[tokio::test]
async fn a_restored_journal_runs_no_job_twice_and_takes_over_what_has_happened_since() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    let ran = home.path().join("ran");
    let times = || fs::read_to_string(&ran).map_or(0, |lines| lines.lines().count());
    let line = |then: &str| format!("echo >> {}; {then}", ran.display());
    let mut secret = half(&line("exec sleep 1000"));
    secret.secrets.insert("TOKEN".into(), "quiet".into());
    secret.env.insert("MARK".into(), "of-the-copy".into());
    let mut blocker = half("exec sleep 1000");
    blocker.amount = Some(Amount::Whole { count: 1 });
    client.submit(&blocker).await.unwrap();
    in_state(&client, "1", JobState::Running).await;
    client.submit(&half(&line("exit 3"))).await.unwrap();
    client.submit(&secret).await.unwrap();
    let copy = done(&home.run(&["admin", "journal", "copy", "-o", "json"]));
    assert_eq!((copy.jobs_living, copy.jobs_ended), (3, 0));
    let copied = fs::read(&copy.path).unwrap();
    assert!(mentions(&copied, "of-the-copy"), "environments are copied");
    assert!(!mentions(&copied, "quiet"), "a secret is in the copy");
    let mode = fs::metadata(&copy.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the copy is its owner's");

    client.cancel("1").await.unwrap();
    ended(&client, "2").await;
    in_state(&client, "3", JobState::Running).await;
    client
        .submit(&half(&line("exec sleep 1000")))
        .await
        .unwrap();
    in_state(&client, "4", JobState::Running).await;
    until("all have said so", || times() == 3);
    let before = client.jobs(false).await.unwrap();

    let refused = home.run(&["admin", "journal", "restore", &copy.path]);
    assert_eq!(refused.status.code(), Some(8), "{}", said(&refused));
    home.kill();
    let missing = home.run(&["admin", "journal", "restore", "/nowhere"]);
    assert_eq!(missing.status.code(), Some(3), "{}", said(&missing));
    let other = home.daemon_output();
    let other = home.run(&["admin", "journal", "restore", other.to_str().unwrap()]);
    assert_eq!(other.status.code(), Some(2), "{}", said(&other));
    assert!(said(&other).contains(&copy.path), "{}", said(&other));
    let restored = done(&home.run(&["admin", "journal", "restore", &copy.path, "-o", "json"]));
    assert!(PathBuf::from(restored.replaced.unwrap()).is_file());

    home.start(&ONE);
    let client = home.connect();
    assert_eq!(labels(&before), labels(&client.jobs(false).await.unwrap()));
    assert_eq!(ended(&client, "2").await.exit_code, Some(3));
    assert_eq!(client.job("1").await.unwrap().state, JobState::Ended);
    assert_eq!(client.submit(&quarter(&["true"])).await.unwrap().id, "5");
    assert_eq!(times(), 3, "a job ran twice");
    let journal = fs::read(home.path().join("state.db")).unwrap();
    let wal = fs::read(home.path().join("state.db-wal")).unwrap();
    assert!(
        !mentions(&journal, "quiet") && !mentions(&wal, "quiet"),
        "a secret is in the journal"
    );
}

#[tokio::test]
async fn a_restored_journal_starts_a_job_again_whose_folder_was_deleted() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    let ran = home.path().join("ran");
    let times = || fs::read_to_string(&ran).map_or(0, |lines| lines.lines().count());
    let mut blocker = half("exec sleep 1000");
    blocker.amount = Some(Amount::Whole { count: 1 });
    client.submit(&blocker).await.unwrap();
    in_state(&client, "1", JobState::Running).await;
    let line = format!("echo >> {}", ran.display());
    client.submit(&half(&line)).await.unwrap();
    let copy = done(&home.run(&["admin", "journal", "copy", "-o", "json"]));
    client.cancel("1").await.unwrap();
    ended(&client, "2").await;
    assert_eq!(times(), 1);
    home.kill();
    // As a daemon does after `retention.jobs-for`.
    fs::remove_dir_all(home.path().join("jobs/2")).unwrap();
    let restored = home.run(&["admin", "journal", "restore", &copy.path]);
    assert!(restored.status.success(), "{}", said(&restored));
    home.start(&ONE);
    ended(&home.connect(), "2").await;
    assert_eq!(times(), 2);
}

#[tokio::test]
async fn a_damaged_journal_is_refused_with_the_copy_and_the_command() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    client.submit(&half("exec sleep 1000")).await.unwrap();
    in_state(&client, "1", JobState::Running).await;
    home.kill();
    let damage = |home: &Home| {
        for file in journal_files(home) {
            let _ = fs::remove_file(file);
        }
        fs::write(home.path().join("state.db"), [0x5a; 8192]).unwrap();
        let refused = home.run(&[&["daemon"], &ONE[..]].concat());
        assert_eq!(refused.status.code(), Some(1));
        said(&refused)
    };
    let journal = home.path().join("state.db").display().to_string();
    let copy = done(&home.run(&["admin", "journal", "copy", "-o", "json"]));
    let text = damage(&home);
    assert!(
        text.contains(&format!("cannot use the journal {journal}")),
        "{text}"
    );
    let hint = format!("hint: divvy admin journal restore {}", copy.path);
    assert!(text.contains(&hint), "{text}");
    fs::remove_file(&copy.path).unwrap();
    let text = damage(&home);
    assert!(
        text.contains(&format!("mv {journal} {journal}.damaged")),
        "{text}"
    );
    // The way out that it names.
    fs::rename(&journal, format!("{journal}.damaged")).unwrap();
    home.start(&ONE);
    in_state(&home.connect(), "1", JobState::Running).await;
}

#[tokio::test]
async fn a_job_that_nothing_identifies_keeps_its_gpu_until_it_ends() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    client
        .submit(&half("echo hello; exec sleep 1000"))
        .await
        .unwrap();
    in_state(&client, "1", JobState::Running).await;
    let log = home.path().join("jobs/1/log");
    until("it has said so", || {
        fs::read(&log).is_ok_and(|log| log == b"hello\n")
    });
    let pids = ["launch", "started"].map(|what| home.pid("1", what));
    home.kill();
    for file in journal_files(&home) {
        let _ = fs::remove_file(file);
    }
    // The first line is the spec, of which nothing is left.
    let record = home.path().join("jobs/1/record");
    let text = fs::read_to_string(&record).unwrap();
    let spec = text.lines().next().unwrap().len();
    fs::write(&record, text.replacen(&text[..spec], &"x".repeat(spec), 1)).unwrap();

    home.start(&ONE);
    let client = home.connect();
    let unknown = client.node().await.unwrap().journal.unwrap().unknown;
    assert_eq!((unknown[0].job.as_str(), &unknown[0].gpus), ("1", &vec![0]));
    assert!(
        pids.iter().all(|pid| unknown[0].pids.contains(pid)),
        "{unknown:?}"
    );
    let gpu = client.gpus().await.unwrap().remove(0);
    assert_eq!((gpu.share_allocated, gpu.slices[0].unknown), (500, true));
    let refused = client.cancel("1").await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::Conflict, "{refused:?}");
    let hint = refused.hint.unwrap();
    assert!(
        pids.iter().all(|pid| hint.contains(&pid.to_string())),
        "{hint}"
    );
    let mut whole = half("exec sleep 1000");
    whole.amount = Some(Amount::Whole { count: 1 });
    let waits = client.submit(&whole).await.unwrap();
    assert_eq!((waits.id.as_str(), waits.state), ("2", JobState::Queued));
    let why = client.why("2").await.unwrap();
    assert!(why.gpus[0].holders[0].contains("#1"), "{why:?}");

    for pid in pids {
        signal(pid, "KILL");
    }
    until("both are gone", || !pids.into_iter().any(is_alive));
    in_state(&client, "2", JobState::Running).await;
    assert_eq!(fs::read(&log).unwrap(), b"hello\n", "a log was deleted");
    assert_eq!(home.slices(), ["2"]);
}
