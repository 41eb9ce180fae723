//! Jobs that are suspended without their GPUs: others have the room, and their memory comes back with what was in it.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use divvy_api::client::Client;
use divvy_api::v1::{
    Amount, EndReason, ErrorCode, Idle, IdleAction, Job, JobState, MemoryPlace, ProjectChange,
    Resize, Submit,
};
use divvy_ledger::SCHEDULER_TIMEOUT_NS;
use divvy_testkit::{
    Bounded as _, Home, PATIENCE, ended, in_state, quarter, refused, until, until_async,
};

const GIB: u64 = 1 << 30;
/// What each process keeps: the host, which is not simulated, has to have room for it.
const EACH: u64 = 320 << 20;
const ONE: [&str; 4] = ["--sim", "a100-40gb:1", "--set", "grace=1s"];

/// `tests/clients/c/keep.c`, compiled.
fn keep() -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/c/keep.c");
    divvy_testkit::compiled(&source, "keep", &["-std=gnu11", "-O2", "-Wextra"])
}

/// A job of so many thousandths of the GPU that keeps so much memory until its gate is opened, by so many processes.
fn keeper(home: &Home, name: &str, thousandths: u16, processes: u32) -> Submit {
    let (bytes, processes) = (EACH.to_string(), processes.to_string());
    let gate = gate(home, name);
    let program = keep();
    let words = [program.to_str().unwrap(), &bytes, &gate, &processes];
    Submit {
        name: Some(name.to_owned()),
        amount: Some(match thousandths {
            1000 => Amount::Whole { count: 1 },
            thousandths => Amount::Share { thousandths },
        }),
        ..quarter(&words)
    }
}

fn gate(home: &Home, name: &str) -> String {
    let gate = home.path().join(format!("gate-{name}"));
    gate.to_str().unwrap().to_owned()
}

/// Has all processes of the job make no more calls of the driver.
fn make_idle(home: &Home, job: &Job, processes: usize) {
    fs::write(gate(home, &job.name) + ".idle", "").unwrap();
    let log = Path::new(&job.directory).join("log");
    until("they are idle", || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        said.matches("idle").count() == processes
    });
}

fn make_busy(home: &Home, name: &str) {
    fs::remove_file(gate(home, name) + ".idle").unwrap();
}

/// Submits it, and waits until all of its processes keep theirs.
async fn kept(home: &Home, submit: &Submit, processes: usize) -> Job {
    let client = home.connect();
    let id = client.submit(submit).await.unwrap().id;
    let job = in_state(&client, &id, JobState::Running).await;
    until_kept(&job, processes);
    job
}

fn until_kept(job: &Job, processes: usize) {
    let log = Path::new(&job.directory).join("log");
    until("they keep theirs", || {
        let said = fs::read_to_string(&log).unwrap_or_default();
        assert!(!said.contains("keep:"), "{said}");
        said.matches("kept").count() == processes
    });
}

/// Waits until this is so of a job.
async fn until_job(client: &Client, id: &str, what: &str, is_so: impl Fn(&Job) -> bool) -> Job {
    let last = RefCell::new(None);
    let told = fmt::from_fn(|f| write!(f, "{what}: {:#?}", last.borrow()));
    until_async(told, async || {
        let job = client.job(id).await.unwrap();
        if is_so(&job) {
            return Some(job);
        }
        assert_ne!(job.state, JobState::Ended, "{what}: {job:#?}");
        *last.borrow_mut() = Some(job);
        None
    })
    .await
}

fn place(job: &Job) -> Option<MemoryPlace> {
    job.gpu_memory.map(|memory| memory.place)
}

fn reason(job: &Job) -> &str {
    job.reason.as_deref().unwrap_or_default()
}

/// Used and given out of the only GPU.
async fn gpu(client: &Client) -> (u64, u16) {
    let gpu = &client.gpus().await.unwrap()[0];
    (gpu.memory_used_bytes, gpu.share_allocated)
}

async fn goes_on_to_its_end(home: &Home, client: &Client, id: &str, name: &str) {
    until_job(client, id, "it goes on", |job| !job.suspended).await;
    fs::write(gate(home, name), "").unwrap();
    let end = ended(client, id).await;
    assert_eq!(end.exit_code, Some(0), "{end:#?}");
}

async fn kinds(client: &Client, id: &str) -> Vec<String> {
    let events = client.events(0).await.unwrap().into_iter();
    let its = events.filter(|event| event.job.as_deref() == Some(id));
    its.map(|event| event.kind).collect()
}

fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default();
    state.trim_start().starts_with('T')
}

#[tokio::test]
async fn a_job_gives_its_gpu_to_another_and_goes_on_with_what_it_had_there() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 750, 2), 2).await;
    let second = keeper(&home, "second", 500, 1);
    let second = client.submit(&second).await.unwrap();
    assert_eq!(second.state, JobState::Queued);
    let (used, share) = gpu(&client).await;
    assert!(used > 2 * EACH && share == 750, "{used} {share}");
    let before = used;

    let aside = client.release(&first.id).await.unwrap();
    assert_eq!(place(&aside), Some(MemoryPlace::Host), "{aside:#?}");
    assert!(aside.suspended && aside.slices.is_empty(), "{aside:#?}");
    assert!(reason(&aside).ends_with("in host memory"), "{aside:#?}");
    // The kernel stops it some time after the signal.
    let pid = first.pid.unwrap();
    until("it stands still", || is_stopped(pid));
    let second = in_state(&client, &second.id, JobState::Running).await;
    until_kept(&second, 1);
    let (used, share) = gpu(&client).await;
    assert!(
        (EACH..before).contains(&used) && share == 500,
        "{used} {share}"
    );
    assert_eq!(client.gpus().await.unwrap()[0].slices.len(), 1);

    // It is to go on, and has to wait for the other; nobody new gets in its way.
    let due = client.resume(&first.id).await.unwrap();
    assert_eq!(place(&due), Some(MemoryPlace::RestorePending), "{due:#?}");
    let why = client.why(&first.id).await.unwrap();
    let other = format!("(there: #{})", second.id);
    assert!(why.summary.contains(&other), "{}", why.summary);
    let third = client.submit(&quarter(&["true"])).await.unwrap();
    let why = client.why(&third.id).await.unwrap();
    let for_whom = format!("room is reserved for #{}, which is resuming", first.id);
    assert!(why.summary.contains(&for_whom), "{}", why.summary);
    let holders = &why.gpus[0].held_by;
    let due: Vec<&str> = holders
        .iter()
        .filter(|one| one.reserved)
        .map(|one| &*one.job)
        .collect();
    assert_eq!(due, [&first.id]);

    fs::write(gate(&home, "second"), "").unwrap();
    assert_eq!(ended(&client, &second.id).await.exit_code, Some(0));
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
    assert_eq!(ended(&client, &third.id).await.exit_code, Some(0));
    let told = kinds(&client, &first.id).await;
    let of_memory: Vec<&str> = (told.iter().map(String::as_str))
        .filter(|kind| kind.starts_with("memory") || ["suspended", "resumed"].contains(kind))
        .collect();
    let expected = [
        "suspended",
        "memory_released",
        "memory_restore_pending",
        "memory_restoring",
        "memory_restored",
        "resumed",
    ];
    assert_eq!(of_memory, expected);
}

#[tokio::test]
async fn what_cannot_be_released_stays_and_the_job_is_suspended_all_the_same() {
    let mut home = Home::empty();
    let config = home.path().join("sim.toml");
    fs::write(&config, "[checkpoint]\nunknown = true\n").unwrap();
    let path = config.to_str().unwrap().to_owned();
    home.set("DIVVY_SIM_CONFIG", path);
    home.start(&[&ONE[..], &["--set", "park.host-memory=\"1MiB\""]].concat());
    let client = home.connect();
    let idle = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let idle = in_state(&client, &idle.id, JobState::Running).await;
    let first = kept(&home, &keeper(&home, "first", 500, 1), 1).await;
    // A park is refused before the driver is asked.
    let whole = keeper(&home, "whole", 1000, 1);
    let pending = client.submit(&whole).await.unwrap();
    for (job, why) in [
        (&pending, "is queued, but only running jobs can be parked"),
        (&first, "parked jobs have 0 B of at most 1.0 MiB"),
    ] {
        let error = refused(client.park(&job.id).await);
        assert!(error.message.contains(why), "{error}");
    }
    client.cancel(&pending.id).await.unwrap();
    for (job, why) in [
        (&idle, "no process of the job uses GPU memory"),
        (&first, "cuCheckpointProcessGetState"),
    ] {
        let stays = client.release(&job.id).await.unwrap();
        assert_eq!(place(&stays), Some(MemoryPlace::Gpu), "{stays:#?}");
        assert!(
            stays.suspended && reason(&stays).contains(why),
            "{stays:#?}"
        );
        assert_eq!(stays.slices.len(), 1);
        let pid = job.pid.unwrap();
        until("it stands still", || is_stopped(pid));
        let on = client.resume(&job.id).await.unwrap();
        assert!(!on.suspended && on.gpu_memory.is_none() && on.reason.is_none());
        until("it goes on", || !is_stopped(pid));
    }
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
    let gone = refused(client.release(&first.id).await);
    assert_eq!(gone.code, ErrorCode::Conflict);
}

/// A line of the simulated driver's configuration: it fails every call of this function.
fn failing(function: &str) -> String {
    format!("[[fault]]\nfunction = \"{function}\"\ncall = 1\ntimes = 0\ncode = 999\n")
}

/// Has the driver fail whoever calls this.
fn fault(home: &Home, function: &str) {
    configure(home, &failing(function));
}

fn no_fault(home: &Home) {
    configure(home, "");
}

/// The configuration of drivers that are started from now on: the checkpoint helper's, too.
fn configure(home: &Home, text: &str) {
    fs::write(home.path().join("sim.toml"), text).unwrap();
    let library = home.path().to_str().unwrap();
    let is_its = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).into_owned();
        words.contains("checkpoint\0--serve\0") && words.contains(library)
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for pid in pids.filter(is_its).collect::<Vec<u32>>() {
        let pid_of = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap());
        let _ = rustix::process::kill_process(pid_of.unwrap(), rustix::process::Signal::KILL);
        until("the helper is gone", || !is_its(&pid));
    }
}

fn with_faults() -> Home {
    with_faults_and(&[])
}

fn with_faults_and(more: &[&str]) -> Home {
    let mut home = Home::empty();
    no_fault(&home);
    let path = home.path().join("sim.toml").to_str().unwrap().to_owned();
    home.set("DIVVY_SIM_CONFIG", path);
    home.start(&[&ONE, more].concat());
    home
}

#[tokio::test]
async fn a_step_that_fails_is_undone_and_nothing_is_lost() {
    let home = with_faults();
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 500, 2), 2).await;
    for step in ["GetState", "Lock", "Checkpoint"] {
        let function = format!("cuCheckpointProcess{step}");
        fault(&home, &function);
        // Where nobody can say how the processes are, it is asked until somebody does.
        let released = client.release(&first.id);
        let stays = released.await.unwrap();
        no_fault(&home);
        assert_eq!(place(&stays), Some(MemoryPlace::Gpu), "{step}: {stays:#?}");
        assert!(reason(&stays).contains(&function), "{step}: {stays:#?}");
        let pid = first.pid.unwrap();
        until("it stands still", || is_stopped(pid));
        assert_eq!(gpu(&client).await.1, 500, "{step}");
        client.resume(&first.id).await.unwrap();
        until_job(&client, &first.id, "it goes on", |job| !job.suspended).await;
    }
    // And once nothing fails any more, it can be released.
    let aside = client.release(&first.id).await.unwrap();
    assert_eq!(place(&aside), Some(MemoryPlace::Host), "{aside:#?}");
    client.resume(&first.id).await.unwrap();
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
}

#[tokio::test]
async fn memory_that_does_not_come_back_is_tried_again() {
    let home = with_faults();
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 500, 2), 2).await;
    for step in ["Restore", "Unlock"] {
        let aside = client.release(&first.id).await.unwrap();
        assert_eq!(place(&aside), Some(MemoryPlace::Host), "{aside:#?}");
        let function = format!("cuCheckpointProcess{step}");
        fault(&home, &function);
        client.resume(&first.id).await.unwrap();
        let stuck = until_job(&client, &first.id, "it is said", |job| {
            reason(job).contains(&function)
        });
        let stuck = stuck.await;
        assert_eq!(place(&stuck), Some(MemoryPlace::Restoring));
        assert!(stuck.suspended, "{stuck:#?}");
        assert_eq!(gpu(&client).await.1, 500, "its GPU is its own again");
        no_fault(&home);
        until_job(&client, &first.id, "it goes on", |job| !job.suspended).await;
    }
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
}

/// Keeps so much until its gate is opened, and Divvy knows nothing of it.
fn stranger(home: &Home, bytes: u64) -> Child {
    let stranger = Command::new(keep())
        .args([&bytes.to_string(), &gate(home, "stranger")])
        .env("LD_LIBRARY_PATH", home.path().join("sim/lib"))
        .env("DIVVY_SIM", ONE[1])
        .env("DIVVY_SIM_STATE", home.path().join("sim/state"))
        .stdout(Stdio::piped())
        .spawn();
    let mut stranger = stranger.unwrap();
    let mut said = String::new();
    let words = BufReader::new(stranger.stdout.take().unwrap()).read_line(&mut said);
    assert_eq!((words.unwrap(), said.trim()), (5, "kept"));
    stranger
}

#[tokio::test]
async fn memory_that_was_never_offloaded_needs_no_room_also_without_a_figure() {
    let home = with_faults();
    let client = home.connect();
    let hidden = "hide_process_memory = true\n";
    configure(&home, hidden);
    let first = kept(&home, &keeper(&home, "first", 500, 2), 2).await;
    let gpu = &client.gpus().await.unwrap()[0];
    // With what the stranger's context takes, less than the job has with its two contexts.
    let left = 5 * EACH;
    let bytes = gpu.memory_total_bytes - gpu.memory_used_bytes - left;
    let mut stranger = stranger(&home, bytes);
    let fault = failing("cuCheckpointProcessLock");
    configure(&home, &format!("{hidden}{fault}"));
    let stays = tokio::time::timeout(PATIENCE, client.release(&first.id)).await;
    let stays = stays.expect("it is asked for room").unwrap();
    assert_eq!(place(&stays), Some(MemoryPlace::Gpu), "{stays:#?}");
    assert!(
        reason(&stays).contains("cuCheckpointProcessLock"),
        "{stays:#?}"
    );
    configure(&home, hidden);
    client.resume(&first.id).await.unwrap();
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
    fs::write(gate(&home, "stranger"), "").unwrap();
    assert!(stranger.wait_bounded().unwrap().success());
}

#[tokio::test]
async fn a_call_that_waits_for_an_offload_is_answered_when_the_job_is_requeued() {
    let home = with_faults();
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 500, 2), 2).await;
    let fault = |step: &str| failing(&format!("cuCheckpointProcess{step}"));
    configure(&home, &(fault("Checkpoint") + &fault("Unlock")));
    let (waits, id) = (home.connect(), first.id.clone());
    let released = tokio::spawn(async move { waits.release(&id).await });
    until_job(&client, &first.id, "it is said", |job| {
        place(job) == Some(MemoryPlace::Restoring) && reason(job).contains("Unlock")
    })
    .await;
    assert!(!released.is_finished());
    client.requeue(&first.id).await.unwrap();
    let answered = tokio::time::timeout(PATIENCE, released).await;
    let job = answered.expect("nobody answers").unwrap().unwrap();
    assert_eq!(job.gpu_memory, None, "{job:#?}");
    client.cancel(&first.id).await.unwrap();
    ended(&client, &first.id).await;
}

#[tokio::test]
async fn no_room_is_kept_for_a_job_that_lacks_something_else_and_its_turn_is() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let vision = ProjectChange {
        quota: Some(500),
        limit: Some(Some(500)),
        ..ProjectChange::default()
    };
    client.add_project("vision", &vision).await.unwrap();
    let of_vision = |submit: Submit| Submit {
        project: Some("vision".to_owned()),
        ..submit
    };
    let first = kept(&home, &of_vision(keeper(&home, "first", 500, 1)), 1).await;
    client.release(&first.id).await.unwrap();
    let second = kept(&home, &of_vision(keeper(&home, "second", 250, 1)), 1).await;
    client.resume(&first.id).await.unwrap();
    until_job(&client, &first.id, "it lacks quota", |job| {
        reason(job).contains("vision's limit is 0.5 GPU")
    })
    .await;
    let other = kept(&home, &keeper(&home, "other", 750, 1), 1).await;
    // Now it lacks room alone, which is kept.
    fs::write(gate(&home, "second"), "").unwrap();
    ended(&client, &second.id).await;
    until_job(&client, &first.id, "it lacks room", |job| {
        reason(job).contains(&format!("(there: #{})", other.id))
    })
    .await;
    let new = client.submit(&quarter(&["true"])).await.unwrap();
    let why = client.why(&new.id).await.unwrap();
    let for_whom = format!("room is reserved for #{}, which is resuming", first.id);
    assert!(why.summary.contains(&for_whom), "{}", why.summary);
    fs::write(gate(&home, "other"), "").unwrap();
    ended(&client, &other.id).await;
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
    assert_eq!(ended(&client, &new.id).await.exit_code, Some(0));
}

#[tokio::test]
async fn a_resume_waits_for_a_process_outside_divvy_that_took_the_memory() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 500, 1), 1).await;
    client.release(&first.id).await.unwrap();
    let mut stranger = stranger(&home, 30 * GIB);
    until_async("the daemon sees it", async || {
        let unmanaged = client.gpus().await.unwrap()[0].memory_unmanaged_bytes;
        (unmanaged >= 30 * GIB).then_some(())
    })
    .await;
    client.resume(&first.id).await.unwrap();
    let waits = until_job(&client, &first.id, "it is said", |job| {
        reason(job).contains("processes outside Divvy hold")
    });
    assert_eq!(place(&waits.await), Some(MemoryPlace::RestorePending));
    fs::write(gate(&home, "stranger"), "").unwrap();
    assert!(stranger.wait_bounded().unwrap().success());
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
}

#[tokio::test]
async fn beside_a_stranger_only_what_a_job_would_get_is_available() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let mut stranger = stranger(&home, 20 * GIB);
    // The daemon asks for a GPU's memory and for its processes one after the other, and the process may begin in between.
    let (gpu, process) = until_async("the daemon sees and describes it", async || {
        let gpu = client.gpus().await.unwrap().remove(0);
        let process = gpu.processes.first()?.clone();
        let whole = process.memory_bytes == Some(gpu.memory_unmanaged_bytes);
        (whole && gpu.memory_unmanaged_bytes >= 20 * GIB).then_some((gpu, process))
    })
    .await;
    assert_eq!(process.pid, stranger.id());
    let program = process.program.as_deref().unwrap_or_default();
    assert!(program.starts_with("keep"), "{process:?}");
    let job = client.submit(&quarter(&["true"])).await.unwrap();
    assert_eq!(process.user.as_deref(), Some(&*job.user));
    ended(&client, &job.id).await;

    let available = gpu.available.expect("half of the GPU is free");
    assert!((400..500).contains(&available.share), "{available:?}");
    let fate = async |amount| {
        let submit = Submit {
            amount: Some(amount),
            dry_run: true,
            ..quarter(&["true"])
        };
        client.submit(&submit).await.unwrap().state
    };
    let share = |thousandths| Amount::Share { thousandths };
    let memory = |bytes| Amount::Memory { bytes };
    assert_ne!(fate(share(available.share)).await, JobState::Queued);
    assert_eq!(fate(share(available.share + 1)).await, JobState::Queued);
    assert_ne!(fate(memory(available.memory_bytes)).await, JobState::Queued);
    assert_eq!(
        fate(memory(available.memory_bytes + 1)).await,
        JobState::Queued
    );
    fs::write(gate(&home, "stranger"), "").unwrap();
    assert!(stranger.wait_bounded().unwrap().success());
}

#[tokio::test]
async fn a_job_whose_memory_is_aside_can_be_stopped_started_anew_and_let_be() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 1000, 1), 1).await;
    client.release(&first.id).await.unwrap();
    // Asked again, it changes nothing; and resized it is later.
    let again = client.release(&first.id).await.unwrap();
    assert_eq!(place(&again), Some(MemoryPlace::Host));
    let resize = Resize {
        amount: Some(Amount::Share { thousandths: 500 }),
        compute: None,
    };
    let error = refused(client.resize(&first.id, &resize).await);
    assert!(error.message.contains("without its GPUs"), "{error}");

    let second = kept(&home, &keeper(&home, "second", 1000, 1), 1).await;
    client.resume(&first.id).await.unwrap();
    let let_be = client.suspend(&first.id).await.unwrap();
    assert_eq!(place(&let_be), Some(MemoryPlace::Host), "{let_be:#?}");
    client.cancel(&second.id).await.unwrap();
    ended(&client, &second.id).await;
    assert_eq!(gpu(&client).await.1, 0, "nobody asked it to go on");

    client.requeue(&first.id).await.unwrap();
    let anew = until_job(&client, &first.id, "it starts anew", |job| {
        job.runs_before == 1 && job.state == JobState::Running
    });
    let anew = anew.await;
    assert!(!anew.suspended && anew.gpu_memory.is_none(), "{anew:#?}");
    until_kept(&anew, 2);
    client.release(&first.id).await.unwrap();
    client.cancel(&first.id).await.unwrap();
    let end = ended(&client, &first.id).await;
    assert_eq!(end.end_reason, Some(EndReason::Cancelled));
    until_async(
        "the daemon sees the memory of the job as free",
        async || {
            let (used, share) = gpu(&client).await;
            (used < EACH && share == 0).then_some(())
        },
    )
    .await;
    assert!(home.slices().is_empty());
}

/// Where the daemon dies on the way out and on the way back.
const POINTS: &[&str] = &[
    "aside.intent",
    "aside.noted",
    "aside.locked",
    "aside.locked:2",
    "aside.saved",
    "aside.saved:2",
    "aside.stopped",
    "aside.kept",
    "back.due",
    "back.intent",
    "back.woken",
    "back.woken:2",
    "back.restored",
    "back.restored:2",
    "back.unlocked",
    "back.unlocked:2",
    "back.done",
    "back.kept",
];

/// How a job gives its memory away, and gets it back.
#[derive(Clone, Copy)]
enum Way {
    Suspended,
    Parked,
}

impl Way {
    async fn away(self, client: &Client, id: &str) -> bool {
        match self {
            Self::Suspended => client.release(id).await.is_ok(),
            Self::Parked => client.park(id).await.is_ok(),
        }
    }

    async fn back(self, client: &Client, id: &str) -> bool {
        match self {
            Self::Suspended => client.resume(id).await.is_ok(),
            Self::Parked => client.wake(id).await.is_ok(),
        }
    }
}

/// One step of each way.
#[tokio::test]
async fn a_daemon_that_dies_on_the_way_out_or_back_finds_where_the_memory_is() {
    finds_where_the_memory_is(&["aside.saved", "back.restored"], Way::Suspended).await;
}

#[tokio::test]
async fn a_daemon_that_dies_while_a_job_is_parked_or_woken_finds_where_the_memory_is() {
    finds_where_the_memory_is(&["aside.stopped", "back.woken"], Way::Parked).await;
}

mod exhaustive {
    #[tokio::test]
    async fn a_daemon_that_dies_at_any_step_finds_where_the_memory_is() {
        super::finds_where_the_memory_is(super::POINTS, super::Way::Suspended).await;
    }

    #[tokio::test]
    async fn a_daemon_that_dies_at_any_step_of_a_parked_job_finds_where_the_memory_is() {
        let points = [super::POINTS, &["aside.gated"]].concat();
        super::finds_where_the_memory_is(&points, super::Way::Parked).await;
    }
}

async fn finds_where_the_memory_is(points: &[&str], way: Way) {
    for point in points {
        let mut home = Home::empty();
        let mut first = None;
        // A job with a whole GPU takes no turns, which would open its gate.
        let share = match way {
            Way::Suspended => 750,
            Way::Parked => 1000,
        };
        home.crash_at(point, &ONE, async |home| {
            let client = home.connect();
            let job = kept(home, &keeper(home, "first", share, 2), 2).await;
            if matches!(way, Way::Parked) {
                make_idle(home, &job, 2);
            }
            // Cut short by the daemon's end.
            let _ = way.away(&client, &job.id).await;
            let _ = way.back(&client, &job.id).await;
            first = Some(job);
        })
        .await;
        let (client, first) = (home.connect(), first.unwrap());
        // What it was about to do is done, and what was not asked for any more is asked for again.
        let settled = until_job(&client, &first.id, point, |job| {
            let moves = [Some(MemoryPlace::Offloading), Some(MemoryPlace::Restoring)];
            !moves.contains(&place(job))
        });
        let settled = settled.await;
        match place(&settled) {
            Some(MemoryPlace::Host) => assert_eq!(gpu(&client).await.1, 0, "{point}"),
            Some(MemoryPlace::RestorePending) => {}
            None => assert!(!settled.suspended, "{point}: {settled:#?}"),
            elsewhere => panic!("{point}: {elsewhere:?}: {settled:#?}"),
        }
        // One that runs with its memory has nothing to wake.
        let is_asked = way.back(&client, &first.id).await;
        assert!(is_asked || place(&settled).is_none(), "{point}");
        until_job(&client, &first.id, point, |job| {
            !job.suspended && job.gpu_memory.is_none()
        })
        .await;
        assert_eq!(gpu(&client).await.1, share, "{point}");
        let slice = home.path().join("slices").join(&first.id);
        until("its gate is open", || {
            let gate = divvy_ledger::Control::open_writable(&slice).unwrap();
            gate.granted() != divvy_ledger::Grant::Parked
        });
        let pid = first.pid.unwrap();
        until("it runs", || !is_stopped(pid));
        goes_on_to_its_end(&home, &client, &first.id, "first").await;
        assert!(home.slices().is_empty(), "{point}");
    }
}

#[tokio::test]
async fn a_parked_job_runs_on_without_its_gpu_until_it_is_woken() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 750, 2), 2).await;
    make_idle(&home, &first, 2);
    let parked = client.park(&first.id).await.unwrap();
    assert_eq!(place(&parked), Some(MemoryPlace::Host), "{parked:#?}");
    assert!(!parked.suspended && parked.slices.is_empty(), "{parked:#?}");
    let wake = format!("`divvy wake {}` brings it back", first.id);
    assert!(reason(&parked).ends_with(&wake), "{parked:#?}");
    let pid = first.pid.unwrap();
    until("its processes run on", || !is_stopped(pid));
    assert_eq!(gpu(&client).await.1, 0);

    // Others have its room, and it waits for its turn.
    let second = kept(&home, &keeper(&home, "second", 500, 1), 1).await;
    let waking = client.wake(&first.id).await.unwrap();
    assert_eq!(
        place(&waking),
        Some(MemoryPlace::RestorePending),
        "{waking:#?}"
    );
    fs::write(gate(&home, "second"), "").unwrap();
    assert_eq!(ended(&client, &second.id).await.exit_code, Some(0));
    until_job(&client, &first.id, "it is woken", |job| {
        job.gpu_memory.is_none()
    })
    .await;
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
    let told = kinds(&client, &first.id).await;
    let of_park = ["parked", "wake_requested", "memory_restoring", "woken"];
    let told: Vec<&str> = told.iter().map(String::as_str).collect();
    assert!(
        told.ends_with(&[&of_park[..], &["ended"]].concat()),
        "{told:?}"
    );
}

/// A keeper that may be parked when it was idle for so long, and makes no call until its end.
fn parkable(home: &Home, name: &str, thousandths: u16, after_s: u64) -> Submit {
    fs::write(gate(home, name) + ".idle", "").unwrap();
    let action = IdleAction::Park;
    Submit {
        idle: Some(Idle { after_s, action }),
        ..keeper(home, name, thousandths, 1)
    }
}

async fn is_parked(client: &Client, id: &str) {
    let is_parked = |job: &Job| place(job) == Some(MemoryPlace::Host);
    until_job(client, id, "it is parked", is_parked).await;
}

async fn is_awake(client: &Client, id: &str) {
    let is_awake = |job: &Job| job.gpu_memory.is_none();
    until_job(client, id, "it is awake", is_awake).await;
}

#[tokio::test]
async fn an_idle_job_is_parked_for_a_pending_one_and_returns_with_its_memory() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let first = kept(&home, &parkable(&home, "first", 750, 1), 1).await;
    until_async("it is idle", async || {
        let told = kinds(&client, &first.id).await;
        told.contains(&"idle".to_owned()).then_some(())
    })
    .await;
    assert_eq!(place(&client.job(&first.id).await.unwrap()), None);

    let second = kept(&home, &parkable(&home, "second", 500, 3600), 1).await;
    is_parked(&client, &first.id).await;
    // The other half is free, but the first job is promised the room of a job that does not give way.
    let firm = client.submit(&keeper(&home, "firm", 500, 1)).await.unwrap();
    let promised = format!("its room is kept for #{}", first.id);
    let waits = |job: &Job| reason(job).contains(&promised);
    until_job(&client, &firm.id, "it waits", waits).await;
    client.cancel(&firm.id).await.unwrap();

    client.wake(&first.id).await.unwrap();
    let there = format!("there: #{}", second.id);
    let waits = |job: &Job| reason(job).contains(&there);
    until_job(&client, &first.id, "it waits for its room", waits).await;
    fs::write(gate(&home, "second"), "").unwrap();
    assert_eq!(ended(&client, &second.id).await.exit_code, Some(0));
    is_awake(&client, &first.id).await;
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
}

#[tokio::test]
async fn three_jobs_take_turns_with_memory_for_one() {
    let home = with_faults();
    let client = home.connect();
    let names = ["first", "second", "third"];
    let mut jobs: Vec<String> = Vec::new();
    for name in names {
        // More than 1 GiB: enough to measure the rate of a copy.
        let two = Submit {
            idle: parkable(&home, name, 750, 1).idle,
            ..keeper(&home, name, 750, 2)
        };
        let job = kept(&home, &two, 2).await;
        if let Some(before) = jobs.last() {
            is_parked(&client, before).await;
        }
        jobs.push(job.id);
    }
    let copy =
        "function = \"cuCheckpointProcessCheckpoint\"\ncall = 1\ntimes = 0\ndelay_ms = 200\n";
    configure(&home, &format!("[[fault]]\n{copy}"));
    client.wake(&jobs[0]).await.unwrap();
    let waits = format!(
        "waits for its memory to return: parking job {} (1.4 GiB), then copying",
        jobs[2]
    );
    until_job(&client, &jobs[0], &waits, |job| reason(job) == waits).await;
    is_awake(&client, &jobs[0]).await;
    is_parked(&client, &jobs[2]).await;
    no_fault(&home);
    // The first one stays awake for a while, though it does nothing.
    client.wake(&jobs[1]).await.unwrap();
    let there = format!("there: #{}", jobs[0]);
    let waits = |job: &Job| reason(job).contains(&there);
    until_job(&client, &jobs[1], "it waits for its turn", waits).await;
    let made_way = client.park(&jobs[0]).await.unwrap();
    assert_eq!(place(&made_way), Some(MemoryPlace::Host), "{made_way:#?}");
    is_awake(&client, &jobs[1]).await;
    for (id, name) in jobs.iter().zip(names).rev() {
        let _ = client.wake(id).await;
        fs::write(gate(&home, "second"), "").unwrap();
        goes_on_to_its_end(&home, &client, id, name).await;
    }
}

#[tokio::test]
async fn parks_that_fail_and_wakes_without_a_launch_are_remembered() {
    let home = with_faults_and(&["--set", "park.when=\"idle\""]);
    let client = home.connect();
    let told = async |id: &str, kind: &str, words: &str| {
        let events = client.events(0).await.unwrap().into_iter();
        let its = events.filter(|event| event.job.as_deref() == Some(id) && event.kind == kind);
        let its: Vec<String> = its.map(|event| event.text).collect();
        its.iter().filter(|text| text.contains(words)).count()
    };
    fault(&home, "cuCheckpointProcessLock");
    let stays = kept(&home, &parkable(&home, "stays", 500, 1), 1).await;
    until_async("it is parked no more", async || {
        let words = "cannot be parked: 3 parks in a row have failed";
        (told(&stays.id, "idle", words).await == 1).then_some(())
    })
    .await;
    assert_eq!(told(&stays.id, "park_failed", "ProcessLock").await, 3);
    no_fault(&home);

    let woken = kept(&home, &parkable(&home, "woken", 500, 1), 1).await;
    is_parked(&client, &woken.id).await;
    client.wake(&woken.id).await.unwrap();
    until_async("its idle time doubles", async || {
        let words = "woken without a launch within 5 s: its idle time is 2s";
        (told(&woken.id, "idle", words).await == 1).then_some(())
    })
    .await;
    for (job, name) in [(stays, "stays"), (woken, "woken")] {
        let _ = client.wake(&job.id).await;
        goes_on_to_its_end(&home, &client, &job.id, name).await;
    }
}

#[tokio::test]
async fn a_park_is_refused_before_any_lock_and_a_driver_that_fails_leaves_the_job_running() {
    let home = with_faults();
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 500, 1), 1).await;
    let idle = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let idle = in_state(&client, &idle.id, JobState::Running).await;
    let why = async |id: &str| {
        let error = refused(client.park(id).await);
        assert_eq!(error.code, ErrorCode::Conflict, "{error}");
        error.message
    };
    assert!(why(&idle.id).await.contains("uses GPU memory"));
    client.cancel(&idle.id).await.unwrap();
    ended(&client, &idle.id).await;
    assert!(why(&idle.id).await.contains("ended"));
    client.suspend(&first.id).await.unwrap();
    assert!(why(&first.id).await.contains("is suspended"));
    client.resume(&first.id).await.unwrap();
    assert!(
        refused(client.wake(&first.id).await)
            .message
            .contains("is not parked")
    );

    make_idle(&home, &first, 1);
    for step in ["GetState", "Lock", "Checkpoint"] {
        let function = format!("cuCheckpointProcess{step}");
        fault(&home, &function);
        let message = why(&first.id).await;
        no_fault(&home);
        assert!(message.contains(&function), "{message}");
        let runs = client.job(&first.id).await.unwrap();
        assert!(reason(&runs).contains("it was not parked"), "{runs:#?}");
        let pid = first.pid.unwrap();
        until("it runs on", || !is_stopped(pid));
    }
    client.park(&first.id).await.unwrap();
    assert!(why(&first.id).await.contains("is parked"));
    assert!(
        refused(client.suspend(&first.id).await)
            .message
            .contains("is parked")
    );
    assert!(
        refused(client.resume(&first.id).await)
            .hint
            .unwrap()
            .contains("divvy wake")
    );
    // SIGTERM arrives, for nothing is stopped.
    client.cancel(&first.id).await.unwrap();
    let end = ended(&client, &first.id).await;
    assert_eq!(end.end_reason, Some(EndReason::Cancelled));

    let dies = kept(&home, &keeper(&home, "dies", 500, 1), 1).await;
    make_idle(&home, &dies, 1);
    configure(&home, "[checkpoint]\nlock_kills = true\n");
    let message = why(&dies.id).await;
    let words = ["ended while the driver locked", "does not run any more"];
    assert!(words.iter().any(|word| message.contains(word)), "{message}");
    let end = ended(&client, &dies.id).await;
    assert_eq!(end.exit_code, Some(128 + 11), "{end:#?}");
    assert!(home.slices().is_empty());
}

/// The texts of a job's events of this kind.
async fn told(client: &Client, id: &str, kind: &str) -> Vec<String> {
    let events = client.events(0).await.unwrap().into_iter();
    let its = events.filter(|event| event.job.as_deref() == Some(id) && event.kind == kind);
    its.map(|event| event.text).collect()
}

#[tokio::test]
async fn the_first_call_of_a_parked_job_that_needs_its_gpu_wakes_it_once_there_is_room() {
    let home = Home::started(&ONE);
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 750, 2), 2).await;
    make_idle(&home, &first, 2);
    client.park(&first.id).await.unwrap();
    let second = kept(&home, &keeper(&home, "second", 500, 1), 1).await;
    make_busy(&home, "first");
    until_job(&client, &first.id, "a call has asked", |job| {
        place(job) == Some(MemoryPlace::RestorePending)
    })
    .await;
    assert_eq!(
        told(&client, &first.id, "wake_requested").await,
        ["by cuMemcpyDtoH_v2"]
    );
    let runs = client.job(&second.id).await.unwrap();
    assert_eq!(runs.state, JobState::Running, "a wake ends no other job");
    fs::write(gate(&home, "second"), "").unwrap();
    until_job(&client, &first.id, "it is woken", |job| {
        job.gpu_memory.is_none()
    })
    .await;
    goes_on_to_its_end(&home, &client, &first.id, "first").await;

    // It calls all the time, so it is not parked for long, if at all.
    let busy = kept(&home, &keeper(&home, "busy", 500, 1), 1).await;
    let parked = client.park(&busy.id).await;
    if parked.is_err() {
        let error = refused(parked);
        let why = "it was woken by cuMemcpyDtoH_v2 meanwhile";
        assert!(error.message.contains(why), "{error}");
    }
    until_job(&client, &busy.id, "it has its memory", |job| {
        job.gpu_memory.is_none()
    })
    .await;
    goes_on_to_its_end(&home, &client, &busy.id, "busy").await;
}

#[tokio::test]
async fn a_call_of_a_parked_job_without_a_daemon_wakes_it_under_the_next_daemon() {
    let mut home = Home::started(&ONE);
    let client = home.connect();
    let first = kept(&home, &keeper(&home, "first", 500, 1), 1).await;
    make_idle(&home, &first, 1);
    client.park(&first.id).await.unwrap();
    home.kill();
    // Longer than the gate counts without a daemon: the call is in the driver's lock.
    make_busy(&home, "first");
    let (since, silence) = (
        Instant::now(),
        Duration::from_nanos(2 * SCHEDULER_TIMEOUT_NS),
    );
    until("the gate does not count any more", || {
        since.elapsed() > silence
    });
    home.start(&ONE);
    let client = home.connect();
    until_job(&client, &first.id, "it is woken", |job| {
        job.gpu_memory.is_none()
    })
    .await;
    assert_eq!(
        told(&client, &first.id, "wake_requested").await,
        ["by cuMemcpyDtoH_v2"]
    );
    goes_on_to_its_end(&home, &client, &first.id, "first").await;
}
