//! The world fails around a daemon: the driver, the disk, the journal's file, clients, a user's file system. What was acknowledged is kept,
//! others go on, and what is said says why.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use crate::mig::driver;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use divvy_api::client::Client;
use divvy_api::v1::{
    Amount, Array, EndReason, ErrorCode, GpuChange, GpuMode, Job, JobState, Submit,
};
use divvy_testkit::{
    Bounded as _, Home, call, ended, in_state, quarter, script, signal, until, until_async,
};

const GPUS: &str = "a100-80gb:2";

/// nvmlReturn_t has these (nvml.h of CUDA 13), but for success.
const CODES: [u32; 31] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
    27, 28, 29, 30, 999,
];

/// Of these: the GPU is lost, needs a reset, or is not found.
const LOST: [u32; 3] = [15, 16, 28];

/// What a look asks the driver.
const ASKED: [&str; 9] = [
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMigMode",
];

/// A home whose daemon meets these faults of the driver of these GPUs.
fn faulty(gpus: &str, faults: &str) -> Home {
    let mut home = Home::empty();
    let file = home.path().join("faults.toml");
    fs::write(&file, faults).unwrap();
    home.set("DIVVY_SIM_CONFIG", file.to_str().unwrap().to_owned());
    home.start(&["--sim", gpus]);
    home
}

async fn told(client: &Client, kind: &str) -> Vec<String> {
    let events = client.events(0).await.unwrap();
    let these = events.into_iter().filter(|event| event.kind == kind);
    these.map(|event| event.text).collect()
}

/// Waits until the job has ended. Each look at the GPUs has the driver asked at once, where the daemon would ask four times a second.
async fn ended_while_looking(client: &Client, id: &str) -> Job {
    until_async(format!("job {id} has ended"), async || {
        client.gpus().await.unwrap();
        let job = client.job(id).await.unwrap();
        (job.state == JobState::Ended).then_some(job)
    })
    .await
}

async fn sleeper(client: &Client, gpu: u32) -> Job {
    let submit = Submit {
        gpus_on: vec![gpu],
        ..quarter(&["sleep", "1000"])
    };
    let job = client.submit(&submit).await.unwrap();
    in_state(client, &job.id, JobState::Running).await
}

/// A function that is asked of the machine, and one that is asked of each GPU.
#[tokio::test]
async fn errors_of_the_driver_end_no_daemon_or_job_and_do_not_hide_the_other_gpu() {
    survives_errors_of(&["nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo_v2"]).await;
}

mod exhaustive {
    #[tokio::test]
    async fn no_error_of_the_driver_ends_a_daemon_or_a_job_or_hides_the_other_gpu() {
        super::survives_errors_of(&super::ASKED).await;
    }

    #[test]
    fn an_error_in_any_of_the_first_calls_of_the_driver_is_told_or_the_next_look_is_better() {
        super::starts_or_says_why(|nth| vec![1, 2, 3, 4 + nth % 26]);
    }
}

async fn survives_errors_of(functions: &[&'static str]) {
    // Each function fails once with each code, some looks apart, all functions at once, each in a home of its own. At the end of it GPU 1
    // falls off the bus for good, by which the end is known.
    let mut homes: Vec<(&str, Home, [Job; 2])> = Vec::new();
    for &function in functions {
        // A look asks each GPU; an odd step, so that both are met. The first calls are the start's.
        let step = if is_of_all(function) { 2 } else { 7 };
        let fault = |(nth, what): (usize, String)| {
            let call = 41 + nth * step;
            format!("[[fault]]\nfunction = '{function}'\ncall = {call}\n{what}\n")
        };
        let codes = CODES.iter().map(|code| format!("code = {code}"));
        let faults = codes.chain(["lose_gpu = 1".to_owned()]);
        let home = faulty(GPUS, &faults.enumerate().map(fault).collect::<String>());
        // At once, before any look that fails.
        let client = home.connect();
        let jobs = [sleeper(&client, 0).await, sleeper(&client, 1).await];
        homes.push((function, home, jobs));
    }
    for (function, home, [stays, goes]) in &homes {
        let client = home.connect();
        let lost = ended_while_looking(&client, &goes.id).await;
        assert_eq!(
            lost.end_reason,
            Some(EndReason::GpuLost),
            "{function}: {lost:#?}"
        );
        // Not before the end, at which it does not come back.
        let of = |texts: Vec<String>| {
            texts
                .iter()
                .filter(|text| text.starts_with("GPU 1"))
                .count()
        };
        let (gone, back) = (
            told(&client, "gpu_lost").await,
            told(&client, "gpu_recovered").await,
        );
        assert_eq!(of(back) + 1, of(gone), "{function}");
        if !is_of_all(function) {
            assert_eq!(told(&client, "gpu_error").await, [""; 0], "{function}");
        }
        let now = client.job(&stays.id).await.unwrap();
        assert_eq!(
            (now.state, now.pid),
            (JobState::Running, stays.pid),
            "{function}"
        );
        let last = client.submit(&quarter(&["true"])).await.unwrap();
        assert_eq!(
            ended(&client, &last.id).await.exit_code,
            Some(0),
            "{function}"
        );
    }
}

/// Starts a daemon over one GPU that meets this fault, and has it end or serve the GPU: what it says where it ends.
fn starts(fault: &str) -> Result<(), String> {
    let mut home = Home::empty();
    let file = home.path().join("faults.toml");
    fs::write(&file, format!("[[fault]]\n{fault}\n")).unwrap();
    home.set("DIVVY_SIM_CONFIG", file.to_str().unwrap().to_owned());
    let socket = home.socket();
    let mut ended = None;
    let daemon = home.daemon_with(&["--sim", "l4-24gb:1"], &[]);
    home.keep(daemon);
    until("it ends or answers", || {
        ended = home.kept().status();
        ended.is_some() || UnixStream::connect(&socket).is_ok()
    });
    let said = home.daemon_log();
    assert!(!said.contains("panicked"), "{fault}: {said}");
    if let Some(status) = ended {
        assert!(matches!(status.code(), Some(1 | 2)), "{fault}: {status}");
        // The fault by name, and what to do.
        let is_clear = said.contains("error: ") && said.contains("hint: ") && said.contains("nvml");
        assert!(is_clear, "{fault}: {said}");
        return Err(said);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let client = home.connect();
    // A later look may have met it.
    until("its GPU is served", || {
        let gpus = runtime.block_on(client.gpus()).unwrap();
        matches!(&gpus[..], [gpu] if gpu.mode == "shared")
    });
    Ok(())
}

/// What came of each fault, several tried at a time.
fn all_starts(faults: &[String]) -> Vec<Result<(), String>> {
    std::thread::scope(|scope| {
        let part = |faults: &[String]| {
            let faults = faults.to_vec();
            scope.spawn(move || Vec::from_iter(faults.iter().map(|fault| starts(fault))))
        };
        let parts: Vec<_> = faults.chunks(faults.len().div_ceil(4)).map(part).collect();
        let joined = parts.into_iter().map(|part| part.join().unwrap());
        joined.flatten().collect()
    })
}

#[test]
fn an_error_of_the_driver_at_the_start_is_told_or_the_next_look_is_better() {
    // Of every other code one of the first calls fails, which load the driver and count GPUs; of the rest one of those after them.
    starts_or_says_why(|nth| match nth % 2 {
        0 => vec![1 + nth / 2 % 3],
        _ => vec![4 + nth % 26],
    });
}

/// Starts a daemon for each code and each of these calls, which fails with the code.
fn starts_or_says_why(calls: impl Fn(usize) -> Vec<usize>) {
    let faults = |(nth, code): (usize, &u32)| {
        let fault = |call| format!("function = 'nvml*'\ncall = {call}\ncode = {code}");
        calls(nth).into_iter().map(fault).collect::<Vec<_>>()
    };
    let faults: Vec<String> = CODES.iter().enumerate().flat_map(faults).collect();
    let mut served = 0;
    for (fault, came) in faults.iter().zip(all_starts(&faults)) {
        match came {
            // A GPU that fails is asked again, but one that is lost.
            Ok(()) => served += 1,
            Err(said) => {
                // What is asked once, and a GPU that is lost, where there is no other.
                let is_lost = LOST
                    .iter()
                    .any(|code| fault.ends_with(&format!("= {code}")));
                let is_once = ["nvmlInit_v2", "nvmlSystemGetDriverVersion"]
                    .iter()
                    .any(|call| said.contains(call));
                let is_clear = is_once || is_lost && said.contains("no GPU responds");
                assert!(is_clear, "{fault}: {said}");
            }
        }
    }
    assert!(served > faults.len() / 2, "{served}");
}

#[test]
fn a_driver_that_never_answers_something_is_told_of_or_not_needed() {
    let faults: Vec<String> = ASKED
        .iter()
        .chain(&[
            "nvmlInit_v2",
            "nvmlSystemGetDriverVersion",
            "nvmlDeviceGetPciInfo_v3",
        ])
        .flat_map(|function| {
            // Not supported, lost, and what has no name.
            let of = |code| format!("function = '{function}'\ntimes = 0\ncode = {code}");
            [3, 15, 999].map(of)
        })
        .collect();
    for (fault, came) in faults.iter().zip(all_starts(&faults)) {
        if let Err(said) = came {
            let function = fault.split('\'').nth(1).unwrap();
            assert!(said.contains(function), "{fault}: {said}");
        }
    }
}

/// Without it nothing is known of any GPU.
fn is_of_all(function: &str) -> bool {
    function == "nvmlDeviceGetCount_v2"
}

#[tokio::test]
async fn a_driver_that_hangs_delays_no_call_and_no_slice_is_allocated() {
    // The call of some look, after those of the start. It hangs for 5 s until that is found out, and for what is tried meanwhile.
    let fault = "[[fault]]\nfunction = 'nvmlDeviceGetMemoryInfo_v2'\ncall = 41\ndelay_ms = 15000\n";
    let home = faulty("h100-80gb:2", fault);
    let client = home.connect();
    let [cancelled, ends] = [0, 1].map(|gpu| sleeper(&client, gpu));
    let (cancelled, ends) = (cancelled.await, ends.await);
    let socket = home.socket();
    let get = |path| call(&socket, "GET", path, "");
    let silent = "the driver has not responded for 5 s";
    until("it is found out", || {
        // A look at the GPUs has the driver asked, so that the call comes soon.
        get("/v1/gpus");
        get("/readyz").0 != 200
    });
    let (status, said) = get("/readyz");
    assert_eq!(status, 503);
    assert!(said.contains(silent), "{said}");

    // What asks for a look, what ends jobs, and what starts them.
    assert_eq!(client.gpus().await.unwrap().len(), 2);
    assert_eq!(get("/metrics").0, 200);
    client.cancel(&cancelled.id).await.unwrap();
    let over = ended(&client, &cancelled.id).await;
    assert_eq!(over.end_reason, Some(EndReason::Cancelled), "{over:#?}");
    signal(ends.pid.unwrap(), "KILL");
    let over = ended(&client, &ends.id).await;
    assert_eq!(over.exit_code, Some(137), "{over:#?}");
    let waits = client.submit(&quarter(&["true"])).await.unwrap();
    let waits = client.job(&waits.id).await.unwrap();
    assert_eq!(waits.state, JobState::Queued, "{waits:#?}");
    let why = waits.reason.unwrap();
    assert!(why.contains("respond"), "{why}");
    let change = GpuChange {
        mode: GpuMode::Mig,
        dry_run: true,
    };
    let would = client.change_gpu("0", &change).await.unwrap();
    let unseen = "it does not respond, so its processes cannot be listed";
    assert!(would.blockers.iter().any(|one| one == unseen), "{would:?}");
    // All of that before it has answered again.
    assert_eq!(told(&client, "gpu_recovered").await, [""; 0]);

    assert_eq!(ended(&client, &waits.id).await.exit_code, Some(0));
    assert_eq!(get("/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(told(&client, "gpu_error").await, [silent]);
    for kind in ["gpu_lost", "gpu_recovered"] {
        assert_eq!(told(&client, kind).await.len(), 2, "{kind}");
    }
}

#[tokio::test]
async fn a_gpu_that_vanishes_takes_its_own_jobs_along_and_no_others() {
    let mut home = Home::empty();
    home.set("DIVVY_TEST_GPUS", GPUS.to_owned());
    home.start(&["--sim", GPUS]);
    let client = home.connect();
    let stays = sleeper(&client, 0).await;
    let goes = sleeper(&client, 1).await;
    let both = Submit {
        amount: Some(Amount::Shares {
            count: 2,
            thousandths: 250,
        }),
        ..quarter(&["sleep", "1000"])
    };
    let both = client.submit(&both).await.unwrap();
    let again = Submit {
        retries: 1,
        ..script("default", "test -e /nonexistent || exec sleep 1000")
    };
    let again = client
        .submit(&Submit {
            amount: Some(Amount::Share { thousandths: 500 }),
            ..again
        })
        .await
        .unwrap();
    let was_on = in_state(&client, &again.id, JobState::Running).await.slices[0].gpu_index;
    in_state(&client, &both.id, JobState::Running).await;
    driver::happen(&home, "lose:1");
    for id in [&goes.id, &both.id] {
        let job = ended(&client, id).await;
        assert_eq!(job.end_reason, Some(EndReason::GpuLost), "{job:#?}");
        assert!(job.reason.as_deref().unwrap().contains("lost"), "{job:#?}");
    }
    if was_on == 1 {
        until_on(&client, &again.id, 0).await;
    }
    let job = client.job(&stays.id).await.unwrap();
    assert_eq!((job.state, job.pid), (JobState::Running, stays.pid));
    // What is left is given out, what is gone is not.
    let next = client.submit(&quarter(&["true"])).await.unwrap();
    let next = ended(&client, &next.id).await;
    assert_eq!((next.exit_code, next.slices[0].gpu_index), (Some(0), 0));
    assert_eq!(told(&client, "gpu_lost").await.len(), 1);
    // Whoever publishes GPUs elsewhere is told what it was, and that it will not be again.
    let gpus = client.gpus().await.unwrap();
    assert!(gpus[0].lost.is_none());
    let lost = gpus[1].lost.as_ref().expect("it does not answer");
    assert_eq!((lost.mode.as_str(), lost.for_good), ("shared", true));
    assert_eq!(gpus[1].mode, "unmanaged");
}

async fn until_on(client: &Client, id: &str, gpu: u32) {
    until_async(format!("job {id} runs on GPU {gpu}"), async || {
        let job = client.job(id).await.unwrap();
        (job.state == JobState::Running && job.slices[0].gpu_index == gpu).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_journal_that_takes_no_more_ends_no_daemon_and_loses_nothing_acknowledged() {
    let mut home = Home::empty();
    home.start(&["--sim", GPUS]);
    // No file of the daemon may grow beyond this: more than a slice's files take. A daemon that starts raises the limit.
    let limit = |home: &Home, current| {
        let pid = rustix::process::Pid::from_raw(home.daemon_pid().cast_signed());
        let maximum = None;
        let limit = rustix::process::Rlimit { current, maximum };
        rustix::process::prlimit(pid, rustix::process::Resource::Fsize, limit).unwrap();
    };
    let most = Some(6 * 1024 * 1024);
    limit(&home, most);
    let client = home.connect();
    // Whoever comes after it waits: of the disk they need what the journal says of them.
    let both = Submit {
        amount: Some(Amount::Whole { count: 2 }),
        ..quarter(&["sleep", "1000"])
    };
    let holder = client.submit(&both).await.unwrap().id;
    in_state(&client, &holder, JobState::Running).await;
    // One change that is larger than all that the file may grow: it is taken back as a whole.
    let large = Submit {
        env: BTreeMap::from([("BALLAST".to_owned(), "x".repeat(1_900_000))]),
        array: Some(Array {
            indices: (0..8).collect(),
            max_running: None,
        }),
        ..both.clone()
    };
    client.submit(&large).await.unwrap_err();
    until("the daemon logs why it starts anew", || {
        home.daemon_log().contains("cannot write to the journal")
    });
    until_async("it answers again", async || {
        client.node().await.ok().map(drop)
    })
    .await;
    limit(&home, most);
    assert_eq!(client.jobs(true).await.unwrap().len(), 1);
    // Many small ones: the reserve cannot be renewed, and is not used up.
    let mut acknowledged = BTreeMap::new();
    let ballast = "x".repeat(100_000);
    for number in 0.. {
        let submit = Submit {
            env: BTreeMap::from([
                ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
                ("BALLAST".to_owned(), ballast.clone()),
            ]),
            idempotency_key: Some(format!("key-{number}")),
            amount: Some(Amount::Whole { count: 2 }),
            ..script("default", "exit 0")
        };
        match client.submit(&submit).await {
            Ok(job) => acknowledged.insert(submit.idempotency_key.unwrap(), job.id),
            Err(error) => {
                assert_eq!(error.code, ErrorCode::DiskFull, "{error:?}");
                break;
            }
        };
        assert!(number < 2000, "the disk never fills");
    }
    assert!(!acknowledged.is_empty());
    let shown = client.jobs(true).await.unwrap().len();
    assert_eq!(shown, 1 + acknowledged.len());
    assert!(home.kept().status().is_none(), "{}", home.daemon_log());
    // There is room again.
    limit(&home, None);
    let last = until_async("it takes on new work", async || {
        client.submit(&quarter(&["true"])).await.ok()
    })
    .await;
    client.cancel(&holder).await.unwrap();
    for id in acknowledged.values() {
        let job = ended(&client, id).await;
        assert_eq!(job.end_reason, Some(EndReason::Completed), "{job:#?}");
    }
    ended(&client, &last.id).await;
    assert_eq!(home.slices(), [""; 0]);
}

/// A small file system in a home's place, until it is dropped. The daemon's own log lies on it as well.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn below(path: &std::path::Path) -> Self {
        let size = c"size=32m,mode=700";
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", path, "tmpfs", flags, size).unwrap();
        Self(path.to_owned())
    }

    /// Takes all of its room.
    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("fill")).unwrap();
        let block = vec![1; 4096];
        while file.write_all(&block).is_ok() {}
    }

    fn empty(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn on_a_full_disk_reads_are_answered_jobs_end_and_nothing_begins() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can mount a small file system");
        return;
    }
    let mut home = Home::empty();
    let disk = SmallDisk::below(home.path());
    home.start(&["--sim", GPUS]);
    let client = home.connect();
    let go = home.path().join("go");
    let text = format!(
        "echo hello; until [ -e {} ]; do sleep 0.05; done; exit 4",
        go.display()
    );
    let mut running = Vec::new();
    for _ in 0..3 {
        let job = client.submit(&quarter(&["sh", "-c", &text])).await.unwrap();
        in_state(&client, &job.id, JobState::Running).await;
        running.push(job.id);
    }
    let both = Submit {
        amount: Some(Amount::Whole { count: 2 }),
        ..quarter(&["true"])
    };
    let waiting = client.submit(&both).await.unwrap().id;
    // A file that is there already takes no room.
    fs::write(home.path().join("gone"), "").unwrap();
    disk.fill();
    until_async("the daemon sees that the disk is full", async || {
        let text = client.job(&waiting).await.unwrap().reason?;
        text.starts_with("the disk is full: ").then_some(())
    })
    .await;
    let refused = client.submit(&quarter(&["true"])).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::DiskFull, "{refused:?}");
    assert_eq!(
        (refused.code.http_status(), refused.code.exit_code()),
        (503, 1)
    );
    assert!(
        refused.message.starts_with("the disk is full: "),
        "{refused:?}"
    );
    let socket = home.socket();
    let (status, why) = call(&socket, "GET", "/readyz", "");
    assert!(status == 503 && why.contains("the disk is full"), "{why}");
    // `divvy doctor` shows it: only the daemon knows its own folders.
    let node = client.node().await.unwrap();
    assert_eq!(node.not_ready.as_deref(), Some(why.trim_end()));
    let path = format!("/v1/jobs/{}/log", running[0]);
    let (status, said) = call(&socket, "GET", &path, "");
    assert!(status == 200 && said.contains("hello"), "{status} {said}");
    // What gives back is done, and what ends is journaled.
    client.cancel(&waiting).await.unwrap();
    assert_eq!(
        ended(&client, &waiting).await.end_reason,
        Some(EndReason::Cancelled)
    );
    fs::rename(home.path().join("gone"), &go).unwrap();
    for id in &running {
        assert_eq!(ended(&client, id).await.exit_code, Some(4));
    }
    assert_eq!(client.jobs(true).await.unwrap().len(), 4);
    assert_eq!(told(&client, "disk_full").await.len(), 1);
    disk.empty();
    until_async("new work is taken on", async || {
        client.submit(&both).await.ok().map(drop)
    })
    .await;
    assert_eq!(ended(&client, "5").await.exit_code, Some(0));
    assert_eq!(told(&client, "disk_has_room").await.len(), 1);
    assert!(home.kept().status().is_none());
    assert_eq!(
        home.daemon_log().matches("serving").count(),
        1,
        "{}",
        home.daemon_log()
    );
}

#[tokio::test]
async fn a_daemon_waits_for_a_journal_that_another_program_holds() {
    let home = Home::started(&["--sim", GPUS]);
    let client = home.connect();
    let other = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let submit = tokio::spawn(async move { client.submit(&quarter(&["true"])).await });
    // It answers nothing that is not in the journal.
    until_async("the daemon logs that it waits", async || {
        home.daemon_log().contains("waiting for it").then_some(())
    })
    .await;
    assert!(!submit.is_finished());
    other.execute_batch("COMMIT").unwrap();
    let job = submit.await.unwrap().unwrap();
    assert_eq!(ended(&home.connect(), &job.id).await.exit_code, Some(0));
}

#[tokio::test]
async fn clients_that_die_in_the_middle_of_a_request_leave_nothing_behind() {
    let mut home = Home::started(&["--sim", GPUS]);
    let pid = home.daemon_pid();
    let socket = home.socket();
    let body = serde_json::to_string(&quarter(&["true"])).unwrap();
    let open = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    // A running job takes descriptors of its own.
    let client = home.connect();
    let waiting = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    in_state(&client, &waiting.id, JobState::Running).await;
    let before = open();
    let whole = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: divvy\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    // Cut everywhere but at the very end, and some that wait for an answer that never comes.
    for cut in (0..whole.len()).step_by(7) {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(&whole.as_bytes()[..cut]).unwrap();
    }
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let wait = format!(
            "GET /v1/jobs/{}/wait?state=ended&timeout_s=100 HTTP/1.1\r\nhost: divvy\r\n\r\n",
            waiting.id
        );
        stream.write_all(wait.as_bytes()).unwrap();
    }
    until("their connections are closed", || open() <= before + 4);
    let jobs = client.jobs(true).await.unwrap();
    assert_eq!(jobs.len(), 1, "{jobs:#?}");
    assert!(home.kept().status().is_none());
}

#[tokio::test]
async fn a_job_start_that_hangs_can_be_cancelled_and_delays_no_other_job() {
    let home = Home::started(&["--sim", GPUS, "--set", "grace=1s"]);
    let client = home.connect();
    let program = home.path().join("program");
    let ran = home.path().join("ran");
    fs::write(
        &program,
        format!("#!/bin/sh\ntouch {}\nexec sleep 1000\n", ran.display()),
    )
    .unwrap();
    assert!(
        Command::new("chmod")
            .arg("755")
            .arg(&program)
            .wait_bounded()
            .unwrap()
            .success()
    );
    // Whoever opens a file under a lease waits until its holder lets go of it (fcntl(2), F_SETLEASE), as execve does: it is as a file
    // system that does not answer. 1024 is F_SETLEASE, 1 F_WRLCK, 29 SIGIO.
    let holder = "import fcntl,os,signal,sys\nsignal.signal(29, signal.SIG_IGN)\nfd = os.open(sys.argv[1], os.O_RDONLY)\n\
                  fcntl.fcntl(fd, 1024, 1)\nprint('held', flush=True)\nsignal.pause()\n";
    let mut holder = Command::new("python3")
        .args(["-c", holder])
        .arg(&program)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(holder.stdout.as_mut().unwrap()),
        &mut line,
    )
    .unwrap();
    assert_eq!(line, "held\n");
    let hangs = client
        .submit(&quarter(&[program.to_str().unwrap()]))
        .await
        .unwrap();
    until("its supervisor has come to the start", || {
        home.recorded(&hangs.id, "launch").is_some()
    });
    // Others come and go meanwhile.
    let other = client.submit(&quarter(&["true"])).await.unwrap();
    assert_eq!(ended(&client, &other.id).await.exit_code, Some(0));
    assert_eq!(
        client.job(&hangs.id).await.unwrap().state,
        JobState::Starting
    );
    client.cancel(&hangs.id).await.unwrap();
    let job = ended(&client, &hangs.id).await;
    assert_eq!(job.end_reason, Some(EndReason::Cancelled), "{job:#?}");
    assert!(!ran.exists());
    assert_eq!(home.slices(), [""; 0]);
    signal(holder.id(), "KILL");
    holder.wait_bounded().unwrap();
}
