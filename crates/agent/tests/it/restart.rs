//! Death at any moment, of the daemon and of supervisors: no job is lost, none runs twice, none keeps what it held.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use divvy_api::client::{Client, WaitFor};
use divvy_api::v1::{EndReason, ErrorCode, Job, JobState, Submit};
use divvy_testkit::{
    Home, Rng, SEED, ended, in_state, is_alive, join, let_pass, quarter, script, signal, until,
    until_async,
};

fn holds(jobs: &[Job]) -> BTreeMap<String, Vec<String>> {
    let labels = |job: &Job| {
        job.slices
            .iter()
            .map(|slice| format!("{} {}", slice.gpu_uuid, slice.label))
            .collect()
    };
    jobs.iter()
        .map(|job| (job.id.clone(), labels(job)))
        .collect()
}

#[tokio::test]
async fn a_killed_daemon_finds_its_jobs_their_slices_and_its_queue_again() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    let gate = home.path().join("gate");
    let gated = format!(
        "until test -e {}; do sleep 0.05; done; exit 7",
        gate.display()
    );
    for queue in ["dual_gpus", "quarter_gpu"] {
        client.submit(&script(queue, "sleep 1000")).await.unwrap();
    }
    client.submit(&script("half_gpu", &gated)).await.unwrap();
    for _ in 0..2 {
        client
            .submit(&script("single_gpu", "sleep 1000"))
            .await
            .unwrap();
    }
    for id in ["1", "2", "3"] {
        in_state(&client, id, JobState::Running).await;
    }
    let before = client.jobs(false).await.unwrap();

    home.kill();
    home.start(&SEED);
    let client = home.connect();
    let after = client.jobs(false).await.unwrap();
    assert_eq!(holds(&before), holds(&after));
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(
            (before.state, before.pid, before.started_at),
            (after.state, after.pid, after.started_at)
        );
        assert_eq!((before.place, &before.reason), (after.place, &after.reason));
    }
    assert_eq!(home.slices(), ["1", "2", "3"]);

    // Ends while no daemon runs: the code is on disk, and the next daemon finds it.
    home.kill();
    fs::write(&gate, "").unwrap();
    until("the job has ended", || home.recorded("3", "exit").is_some());
    home.start(&SEED);
    let client = home.connect();
    let job = ended(&client, "3").await;
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::Failed), Some(7))
    );
    assert_eq!(home.slices(), ["1", "2"]);

    client.cancel("2").await.unwrap();
    let job = in_state(&client, "4", JobState::Running).await;
    assert_eq!(job.slices[0].label, "gpu2");
    assert_eq!(client.job("5").await.unwrap().place, Some(1));
}

#[tokio::test]
async fn a_job_of_a_build_with_other_records_keeps_its_supervisor_and_is_never_started_again() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    let ran = home.path().join("ran");
    let line = format!("echo >> {}; exec sleep 1000", ran.display());
    let times = || fs::read(&ran).map_or(0, |lines| lines.len());
    client.submit(&script("half_gpu", &line)).await.unwrap();
    in_state(&client, "1", JobState::Running).await;
    until("it has said so", || times() == 1);
    let pids = ["launch", "started"].map(|what| home.pid("1", what));
    home.kill();
    // As such a build would have left it.
    let folder = home.path().join("jobs/1");
    fs::write(folder.join("launch.json"), "{}").unwrap();
    let lock = fs::File::create(folder.join("run.lock")).unwrap();
    lock.lock().unwrap();
    for pid in pids {
        signal(pid, "KILL");
    }
    until("both are gone", || !pids.into_iter().any(is_alive));
    fs::remove_file(folder.join("record")).unwrap();

    let refused = home.run(&[&["daemon"], &SEED[..]].concat());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("job 1 still runs"), "{said}");

    drop(lock);
    home.start(&SEED);
    let client = home.connect();
    let job = ended(&client, "1").await;
    assert_eq!(job.end_reason, Some(EndReason::SupervisorLost), "{job:?}");
    assert_eq!(times(), 1, "it ran again");

    // Nor one whose record somebody took away.
    client.submit(&script("half_gpu", &line)).await.unwrap();
    in_state(&client, "2", JobState::Running).await;
    until("it has said so", || times() == 2);
    let pids = ["launch", "started"].map(|what| home.pid("2", what));
    home.kill();
    for pid in pids {
        signal(pid, "KILL");
    }
    until("both are gone", || !pids.into_iter().any(is_alive));
    fs::remove_dir_all(home.path().join("jobs/2")).unwrap();
    home.start(&SEED);
    let job = ended(&home.connect(), "2").await;
    assert_eq!(job.end_reason, Some(EndReason::SupervisorLost), "{job:?}");
    assert_eq!(times(), 2, "it ran again");
}

/// Whether the daemon has gone away under the call, which may be made again.
fn gone<T>(answer: &Result<T, divvy_api::v1::Error>) -> bool {
    matches!(answer, Err(error) if error.code == ErrorCode::NoDaemon)
}

async fn submit_until_heard(client: &Client, submit: &Submit) -> String {
    until_async("a daemon takes the job", async || {
        let answer = client.submit(submit).await;
        (!gone(&answer)).then(|| answer.unwrap().id)
    })
    .await
}

async fn wait_until_heard(client: &Client, id: &str) -> Job {
    until_async(
        format!("a daemon says that job {id} has ended"),
        async || {
            let answer = client
                .wait(id, WaitFor::Ended, Duration::from_secs(5))
                .await;
            match answer {
                Ok(job) if job.state == JobState::Ended => Some(job),
                Err(error) if error.code != ErrorCode::NoDaemon => panic!("{error:?}"),
                _ => None,
            }
        },
    )
    .await
}

#[tokio::test(flavor = "current_thread")]
async fn killed_at_random_moments_a_daemon_runs_every_job_exactly_once() {
    /// So many at least, and then until it was killed so often. After the most it is left alone, so that jobs come to their end
    /// however little gets done between two kills.
    const JOBS: u64 = 24;
    const FEWEST_KILLS: u32 = 4;
    const MOST_KILLS: u32 = 40;
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("SEED={seed}");
    let mut home = Home::started(&SEED);
    let ran = home.path().join("ran");
    let client = home.connect();
    let (done, kills) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let killer = {
        let (done, kills) = (Arc::clone(&done), Arc::<AtomicU32>::clone(&kills));
        let mut dice = Rng::new(seed);
        std::thread::spawn(move || {
            while !done.load(Ordering::SeqCst) && kills.load(Ordering::SeqCst) < MOST_KILLS {
                let_pass(Duration::from_millis(dice.below(250)));
                home.kill();
                kills.fetch_add(1, Ordering::SeqCst);
                home.start(&SEED);
            }
            home
        })
    };

    let queues = ["quarter_gpu", "half_gpu", "single_gpu", "dual_gpus"];
    let mut jobs = Vec::new();
    for number in 0.. {
        if number >= JOBS && kills.load(Ordering::SeqCst) >= FEWEST_KILLS {
            break;
        }
        let code = number % 5;
        let text = format!(
            "echo $DIVVY_JOB_ID >> {}; sleep 0.0{}; exit {code}",
            ran.display(),
            number % 8
        );
        let queue = queues[usize::try_from(number % 4).unwrap()];
        let submit = Submit {
            idempotency_key: Some(format!("job {number}")),
            ..script(queue, &text)
        };
        jobs.push((submit_until_heard(&client, &submit).await, code));
    }
    let mut told = Vec::new();
    for (id, code) in &jobs {
        told.push((wait_until_heard(&client, id).await, *code));
    }
    done.store(true, Ordering::SeqCst);
    let home = join("the killer of daemons", killer);
    let kills = kills.load(Ordering::SeqCst);
    let count = jobs.len() as u64;
    println!("{count} jobs, {kills} kills");

    for (job, code) in told {
        assert_eq!(
            job.exit_code.map(i64::from),
            Some(i64::try_from(code).unwrap()),
            "{job:#?}"
        );
    }
    let mut lines: Vec<u64> = fs::read_to_string(&ran)
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        (1..=count).collect::<Vec<_>>(),
        "each once, after {kills} kills"
    );
    let all = home.connect().jobs(true).await.unwrap();
    assert_eq!(all.len() as u64, count, "no key submitted twice");
    let ends = home
        .client()
        .events(0)
        .await
        .unwrap()
        .into_iter()
        .filter(|event| event.kind == "ended");
    let ends: Vec<String> = ends.filter_map(|event| event.job).collect();
    assert_eq!(ends.len() as u64, count);
    assert_eq!(
        ends.iter().collect::<BTreeSet<_>>().len() as u64,
        count,
        "each ended once"
    );
    assert_eq!(home.slices(), [""; 0]);
    assert!(
        home.connect()
            .gpus()
            .await
            .unwrap()
            .iter()
            .all(|gpu| gpu.share_allocated == 0)
    );
}

/// Children of a process, by what `/proc` says.
fn children(parent: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parent_of = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')')
            .next()?
            .split_whitespace()
            .nth(1)?
            .parse::<u32>()
            .ok()
    };
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

#[tokio::test]
async fn supervisors_killed_at_random_moments_never_make_a_job_run_twice() {
    const JOBS: u64 = 30;
    let seed = u64::from(std::process::id());
    println!("SEED={seed}");
    let mut dice = Rng::new(seed);
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let daemon = home.daemon_pid();
    let client = home.connect();
    let ran = home.path().join("ran");
    let text = format!("echo $DIVVY_JOB_ID >> {}; sleep 0.02", ran.display());
    let mut lost = 0;
    for number in 1..=JOBS {
        let id = client
            .submit(&quarter(&["sh", "-c", &text]))
            .await
            .unwrap()
            .id;
        let_pass(Duration::from_micros(dice.below(12_000)));
        // They are their nursery's children, and now and then it goes with them.
        let nurseries = children(daemon);
        let supervisors = nurseries.iter().flat_map(|nursery| children(*nursery));
        for supervisor in supervisors {
            signal(supervisor, "KILL");
        }
        if dice.below(4) == 0 {
            for nursery in nurseries {
                signal(nursery, "KILL");
            }
        }
        let job = ended(&client, &id).await;
        let text = fs::read_to_string(&ran).unwrap_or_default();
        let times = text
            .lines()
            .filter(|line| *line == number.to_string())
            .count();
        match job.end_reason.unwrap() {
            // Started again if it had not been, and then run to its end.
            EndReason::Completed => assert_eq!(times, 1, "{job:#?}"),
            EndReason::SupervisorLost => {
                lost += 1;
                assert!(times <= 1, "{job:#?}");
            }
            EndReason::LaunchFailed => assert_eq!(times, 0, "{job:#?}"),
            EndReason::Failed
            | EndReason::Cancelled
            | EndReason::Bypass
            | EndReason::TimeLimit
            | EndReason::IdleTimeout
            | EndReason::GpuLost
            | EndReason::Released
            | EndReason::DependencyFailed => panic!("{job:#?}"),
        }
    }
    println!("{lost} of {JOBS} were lost with their supervisors");
    assert_eq!(home.slices(), [""; 0]);
}

/// A job that runs until it is stopped, and its program's pid.
async fn long_job(client: &Client) -> (String, u32) {
    let job = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let running = in_state(client, &job.id, JobState::Running).await;
    (job.id, running.pid.unwrap())
}

/// Asks the daemon to answer once the job has ended: after a second, in which it looks at its jobs several times, the job has not.
async fn has_not_ended(client: &Client, id: &str) {
    let job = client
        .wait(id, WaitFor::Ended, Duration::from_secs(1))
        .await;
    assert_ne!(job.unwrap().state, JobState::Ended);
}

#[tokio::test]
async fn a_job_without_its_supervisor_keeps_its_slice_until_its_program_is_gone() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let (id, program) = long_job(&client).await;
    signal(home.pid(&id, "launch"), "KILL");
    // Several looks of the daemon later, and after a restart.
    has_not_ended(&client, &id).await;
    assert_eq!(client.job(&id).await.unwrap().state, JobState::Running);
    home.kill();
    home.start(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let job = client.job(&id).await.unwrap();
    assert_eq!((job.state, job.slices.len()), (JobState::Running, 1));
    assert!(is_alive(program));

    signal(program, "KILL");
    let job = ended(&client, &id).await;
    assert_eq!(
        (job.end_reason, job.exit_code),
        (Some(EndReason::SupervisorLost), None)
    );
    let reason = job.reason.unwrap();
    assert!(
        reason.contains("left no record") && !reason.contains("killed"),
        "this daemon has not seen how it ended: {reason}"
    );
    assert_eq!(home.slices(), [""; 0]);
}

#[tokio::test]
async fn how_a_supervisor_without_a_record_ended_is_said_as_far_as_it_is_known() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let (id, program) = long_job(&client).await;
    signal(home.pid(&id, "launch"), "KILL");
    signal(program, "KILL");
    let job = ended(&client, &id).await;
    assert_eq!(job.end_reason, Some(EndReason::SupervisorLost));
    let reason = job.reason.unwrap();
    assert!(reason.contains("was killed by signal 9"), "{reason}");
}

/// The supervisor's start lies later in its boot than this boot has lasted, as after a reboot.
#[tokio::test]
async fn a_supervisor_of_an_earlier_boot_ended_with_it_and_the_job_says_so() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let (id, program) = long_job(&client).await;
    home.kill();
    let supervisor = home.pid(&id, "launch");
    for pid in [supervisor, program] {
        signal(pid, "KILL");
    }
    let record = home.path().join(format!("jobs/{id}/record"));
    let text = fs::read_to_string(&record).unwrap();
    let later = text.replace("\"boot_ns\":", "\"boot_ns\":9");
    assert_ne!(text, later);
    fs::write(&record, later).unwrap();
    home.start(&["--sim", "l4-24gb:1"]);
    let job = ended(&home.connect(), &id).await;
    assert_eq!(job.end_reason, Some(EndReason::SupervisorLost));
    let reason = job.reason.unwrap();
    assert!(reason.contains("when the machine restarted"), "{reason}");
}

#[tokio::test]
async fn how_a_supervisor_ended_is_waited_for_where_it_will_be_known() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let (id, program) = long_job(&client).await;
    let supervisor = home.pid(&id, "launch");
    // Whose child it is hears of its end some time after its lock is free.
    let nursery = children(home.daemon_pid());
    assert_eq!(nursery.len(), 1, "{nursery:?}");
    signal(nursery[0], "STOP");
    for pid in [supervisor, program] {
        signal(pid, "KILL");
    }
    until("both are gone", || {
        !is_alive(supervisor) && !is_alive(program)
    });
    // Several looks of the daemon later.
    has_not_ended(&client, &id).await;
    signal(nursery[0], "CONT");
    let reason = ended(&client, &id).await.reason.unwrap();
    assert!(reason.contains("was killed by signal 9"), "{reason}");
}

#[tokio::test]
async fn a_job_without_its_supervisor_can_still_be_cancelled() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let id = client
        .submit(&quarter(&["sh", "-c", "sleep 1000 & sleep 1000"]))
        .await
        .unwrap()
        .id;
    let program = in_state(&client, &id, JobState::Running).await.pid.unwrap();
    signal(home.pid(&id, "launch"), "KILL");
    client.cancel(&id).await.unwrap();
    assert_eq!(
        ended(&client, &id).await.end_reason,
        Some(EndReason::Cancelled)
    );
    assert!(!is_alive(program));
}

#[tokio::test]
async fn a_second_daemon_of_a_home_is_refused() {
    let home = Home::started(&["--sim", "l4-24gb:1"]);
    let second = home.run(&["daemon", "--sim", "l4-24gb:1"]);
    assert_eq!(second.status.code(), Some(8), "{second:?}");
    let pid = home.daemon_pid().to_string();
    assert!(
        String::from_utf8_lossy(&second.stderr).contains(&pid),
        "{second:?}"
    );
    let detached = home.run(&["daemon", "--detached", "--sim", "l4-24gb:1"]);
    assert_eq!(detached.status.code(), Some(8), "{detached:?}");
    home.connect().node().await.expect("the first still serves");
}

#[tokio::test]
async fn a_daemon_that_is_told_to_stop_leaves_its_jobs_running_and_says_so() {
    let mut home = Home::started(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    let (id, program) = long_job(&client).await;
    // A poll in flight does not hold it up.
    let poll = tokio::spawn({
        let (client, id) = (home.connect(), id.clone());
        async move {
            client
                .wait(&id, WaitFor::Ended, Duration::from_secs(60))
                .await
        }
    });
    tokio::task::yield_now().await;
    assert_eq!(home.stop(), 0);
    assert_eq!(poll.await.unwrap().unwrap_err().code, ErrorCode::NoDaemon);
    assert!(
        home.daemon_log().contains("running jobs continue"),
        "{}",
        home.daemon_log()
    );
    assert!(is_alive(program));
    assert_eq!(client.node().await.unwrap_err().code, ErrorCode::NoDaemon);
    home.start(&["--sim", "l4-24gb:1"]);
    assert_eq!(home.connect().job(&id).await.unwrap().pid, Some(program));
}

#[tokio::test]
async fn a_daemon_with_fewer_gpus_leaves_running_jobs_where_they_are() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    client
        .submit(&script("dual_gpus", "sleep 1000"))
        .await
        .unwrap();
    client
        .submit(&script("single_gpu", "sleep 1000"))
        .await
        .unwrap();
    client.submit(&script("single_gpu", "true")).await.unwrap();
    in_state(&client, "2", JobState::Running).await;
    home.kill();
    // The queue of the one that waits is not configured any more; nothing that was taken in is dropped.
    home.start(&["--sim", "a100-80gb:3", "--gpus", "2"]);
    let client = home.connect();
    let gpus = client.gpus().await.unwrap();
    let modes: Vec<&str> = gpus.iter().map(|gpu| gpu.mode.as_str()).collect();
    assert_eq!(modes, ["unmanaged", "unmanaged", "shared"]);
    assert!(gpus.iter().all(|gpu| gpu.share_allocated == 1000));
    assert_eq!(client.job("3").await.unwrap().state, JobState::Queued);
    client.cancel("2").await.unwrap();
    assert_eq!(ended(&client, "3").await.exit_code, Some(0));
}

#[tokio::test]
async fn what_does_not_fit_the_node_is_refused_at_the_start_and_leaves_no_daemon() {
    let home = Home::empty();
    for (args, code, words) in [
        (&["--gpus", "3"][..], 2, "GPU 3"),
        (
            &[
                "--set",
                "strict-start=true",
                "--dynamic-gpus",
                "--queue",
                "many=4",
            ],
            5,
            "many",
        ),
        (&["--dynamic-gpus", "--queue", "odd=0.3"], 2, "0.125"),
        (&["--sim", "no-such-gpu:1"], 2, "no-such-gpu"),
    ] {
        let args = [&["daemon", "--sim", "a100-80gb:3"][..], args].concat();
        // The last `--sim` is the one that counts where it is given twice.
        let args = if args.iter().filter(|arg| **arg == "--sim").count() > 1 {
            [&args[..1], &args[3..]].concat()
        } else {
            args
        };
        let refused = home.run(&args);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(words), "{args:?}: {stderr}");
        assert!(stderr.contains("hint: "), "{args:?}: {stderr}");
        assert_eq!(home.run(&["ps"]).status.code(), Some(7));
    }
}
