//! `kill -9` of the daemon, of a supervisor, of a job: nothing acknowledged is lost, nothing runs twice, nothing is booked
//! twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use divvy_api::v1::{EndReason, Job, JobState, Submit};
use divvy_e2e::{GIB, Home, until};
use divvy_testkit::{Rng, let_pass, quarter};
use rustix::process::{Pid, Signal, kill_process};

const QUEUES: [&str; 5] = [
    "--dynamic-gpus",
    "--queue",
    "whole=1",
    "half=0.5",
    "quarter=0.25",
];

fn kill(pid: u32) {
    kill_process(
        Pid::from_raw(pid.cast_signed()).expect("a process id"),
        Signal::KILL,
    )
    .expect("it lives");
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let after_name = stat.rsplit_once(')').expect("the name ends there").1;
    after_name
        .split_whitespace()
        .nth(1)
        .and_then(|field| field.parse().ok())
        .expect("proc(5) field 4")
}

/// What must be the same before and after a crash.
fn identity(job: &Job) -> String {
    let slices = job
        .slices
        .iter()
        .map(|slice| (&slice.label, &slice.gpu_uuid, slice.memory_limit_bytes));
    format!(
        "{} {:?} {:?} {:?}",
        job.id,
        job.pid,
        slices.collect::<Vec<_>>(),
        job.slice_directory
    )
}

#[test]
fn jobs_slices_exit_codes_and_the_queue_survive_the_daemon() {
    let home = Home::new("a100-80gb:2");
    let daemon = home.daemon(&QUEUES);
    let holder = home.submit_holder(&["-q", "half"], 3 * GIB, "holder");
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; exit 7",
        home.gate("seven")
    );
    let seven = home.submit(&["-q", "half"], &["sh", "-c", &script]);
    let killed = home.submit_holder(&["-q", "quarter"], GIB, "never");
    let before = [&holder, &seven, &killed].map(|job| home.running(job));
    let _ = (home.first_words(&holder), home.first_words(&killed));
    let first = home.submit(&["-q", "whole", "--name", "first"], &["true"]);
    let second = home.submit(&["-q", "whole", "--name", "second"], &["true"]);
    until("both wait", || {
        [&first, &second]
            .iter()
            .all(|job| home.job(job).reason.is_some())
            .then_some(())
    });
    let used = home.job(&holder).slices[0].memory_used_bytes;
    daemon.crash();

    // While nobody looks, one job ends by itself and one is killed.
    home.open("seven");
    kill(before[2].pid.expect("a running job has a process"));
    until("their ends are on disk", || {
        let is_there = |job: &&String| home.recorded(job, "exit").is_some();
        [&seven, &killed].iter().all(is_there).then_some(())
    });

    let daemon = home.daemon(&QUEUES);
    let after = home.job(&holder);
    assert_eq!(
        (after.state, identity(&after)),
        (JobState::Running, identity(&before[0]))
    );
    until("its ledger is read again", || {
        (home.job(&holder).slices[0].memory_used_bytes == used).then_some(())
    });
    assert_eq!(
        (home.ended(&seven).exit_code, home.ended(&seven).end_reason),
        (Some(7), Some(EndReason::Failed))
    );
    assert_eq!(home.ended(&killed).exit_code, Some(137));
    // The GPU whose jobs are gone is free, and the queue goes on where it was, in its order.
    assert_eq!(home.ended(&first).exit_code, Some(0));
    assert_eq!(home.ended(&second).exit_code, Some(0));
    assert!(home.job(&first).started_at < home.job(&second).started_at);

    // Once more, and this time it is asked politely: jobs outlive that too.
    assert_eq!(daemon.stop(), 0);
    let _daemon = home.daemon(&QUEUES);
    assert_eq!(identity(&home.job(&holder)), identity(&before[0]));
    home.open("holder");
    assert_eq!(home.ended(&holder).exit_code, Some(0));
    let left: Vec<_> = home
        .items(&["gpus"])
        .into_iter()
        .filter(|gpu| gpu["share_allocated"] != 0)
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_second_daemon_of_the_same_home_is_refused_and_the_first_serves_on() {
    let home = Home::new("a100-80gb:1");
    let mut daemon = home.daemon(&[]);
    let said = home.divvy(&["daemon"]).exits(8);
    assert!(
        said.stderr.contains(&daemon.pid().to_string()),
        "it does not say who: {}",
        said.stderr
    );
    assert_eq!(daemon.ended(), None);
    let _ = home.divvy(&["run", "-g", "0.5", "--", "true"]).ok();
}

#[test]
fn a_job_whose_supervisor_was_killed_keeps_its_slice_until_its_program_is_gone() {
    let home = Home::new("a100-80gb:1");
    let mut daemon = Some(home.daemon(&[]));
    for daemon_is_down in [false, true] {
        let gate = format!("gate-{daemon_is_down}");
        let job = home.submit_holder(&["-g", "0.5"], GIB, &gate);
        let running = home.running(&job);
        let _ = home.first_words(&job);
        let pid = running.pid.expect("a running job has a process");
        if daemon_is_down {
            daemon.take().expect("it runs").crash();
        }
        kill(parent_of(pid));
        if daemon_is_down {
            daemon = Some(home.daemon(&[]));
        }
        // Its memory is still in use, so another whole-GPU job must not start now.
        let whole = home.submit(&["-g", "1"], &["true"]);
        until("the plan has seen it", || home.job(&whole).reason);
        assert_eq!(
            home.job(&job).slices.len(),
            1,
            "the slice of a living program was given away"
        );
        home.open(&gate);
        let ended = home.ended(&job);
        assert_eq!(
            (ended.end_reason, ended.exit_code),
            (Some(EndReason::SupervisorLost), None)
        );
        assert_eq!(home.ended(&whole).exit_code, Some(0));
    }
}

#[test]
fn killed_at_random_moments_it_runs_every_job_once_and_never_overbooks() {
    const CRASHES: u64 = 20;
    const FEWEST: usize = 10;
    let seed = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_nanos() as u64;
    let mut random = Rng::new(seed);
    let home = Home::new("a100-80gb:2");
    let ledger = home.scratch().join("ran");
    let script = format!(
        "echo start $DIVVY_JOB_ID $NVIDIA_VISIBLE_DEVICES >> {0}; sleep 0.0$2; echo end $DIVVY_JOB_ID $NVIDIA_VISIBLE_DEVICES >> {0}; exit $1",
        ledger.display()
    );
    let enough = AtomicBool::new(false);
    let submitter = &|mut random: Rng| {
        let mut jobs: BTreeMap<String, i32> = BTreeMap::new();
        for nth in 0.. {
            // A slow machine takes fewer while daemons come and go; the last one takes the rest.
            if enough.load(Ordering::Relaxed) && jobs.len() > FEWEST {
                break;
            }
            let (code, pause) = (random.below(5), random.below(10));
            let words = [
                "sh",
                "-c",
                &script,
                "sh",
                &code.to_string(),
                &pause.to_string(),
            ];
            let submit = submission(&home, &words, &format!("key-{nth}"));
            // The daemon may be down or may die while it answers; the key makes it safe to ask again.
            let id = until("the job is taken", || {
                home.call(home.client().submit(&submit)).ok()
            })
            .id;
            jobs.insert(id, i32::try_from(code).expect("a digit"));
        }
        jobs
    };
    let jobs = thread::scope(|scope| {
        let first = Rng::new(random.draw());
        let jobs = scope.spawn(move || submitter(first));
        for _ in 0..CRASHES {
            let daemon = home.daemon(&QUEUES);
            // Any moment of its work: this pause is the experiment, nothing is waited for.
            let_pass(Duration::from_millis(random.below(250)));
            daemon.crash();
        }
        let daemon = home.daemon(&QUEUES);
        enough.store(true, Ordering::Relaxed);
        let jobs = jobs.join().expect("the submitter finishes");
        for id in jobs.keys() {
            home.ended(id);
        }
        drop(daemon);
        jobs
    });

    let _daemon = home.daemon(&QUEUES);
    let listed = home.items(&["ps", "--all"]);
    let ids: BTreeSet<&str> = listed.iter().filter_map(|job| job["id"].as_str()).collect();
    assert_eq!(
        ids,
        jobs.keys().map(String::as_str).collect(),
        "seed {seed}: jobs were lost or made up"
    );
    for (id, code) in &jobs {
        assert_eq!(
            home.job(id).exit_code,
            Some(*code),
            "seed {seed}, job {id}: {:?}",
            home.job(id)
        );
    }
    let text = fs::read_to_string(&ledger).expect("jobs ran");
    let mut busy: BTreeMap<&str, i32> = BTreeMap::new();
    let mut started = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, id, gpu] = words[..] else {
            panic!("seed {seed}: a job wrote {line:?}")
        };
        let now = busy.entry(gpu).or_default();
        if what == "start" {
            assert!(started.insert(id), "seed {seed}: job {id} ran twice");
            *now += 1;
        } else {
            *now -= 1;
        }
        assert!(*now <= 4, "seed {seed}: five quarters of {gpu} at once");
    }
    assert_eq!(
        started.len(),
        jobs.len(),
        "seed {seed}: a job ended without having run"
    );
}

/// Over the API and not by command, for the command would start a daemon of its own.
fn submission(home: &Home, command: &[&str], key: &str) -> Submit {
    let cwd = home.scratch().to_str();
    Submit {
        queue: Some("quarter".to_owned()),
        amount: None,
        cwd: cwd
            .expect("a temporary folder has a readable name")
            .to_owned(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        idempotency_key: Some(key.to_owned()),
        ..quarter(command)
    }
}
