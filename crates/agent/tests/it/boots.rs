//! The table of boots: starts on a machine that is another one than before, with its jobs, queues and configuration
//! file. The daemon serves what is there, a job keeps its GPU, and what is missing has a name.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use divvy_api::client::{Act, Client};
use divvy_api::v1::{
    Amount, Array, EndReason, ErrorCode, GpuChange, GpuMode, Job, JobState, MigState, Submit,
};
use divvy_testkit::{Home, call, ended, in_state, quarter, refused, script, until_async};

use crate::mig::driver;

/// The library of boots/nvml.c.
fn nvml() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/boots/nvml.c");
        let search = format!("-L{}", divvy_testkit::programs::folder().display());
        let flags = [
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            &search,
            "-l:libdivvy_sim.so",
            "-ldl",
        ];
        divvy_testkit::compiled(&source, "libboots_nvml.so", &flags)
    })
}

/// A home whose machine has these GPUs, with a driver that a test may tell what it is ([`lists`]).
fn machine(gpus: &str) -> Home {
    let programs = divvy_testkit::programs::folder();
    let mut home = Home::empty();
    let libraries = home.path().join("driver");
    fs::create_dir(&libraries).unwrap();
    symlink(nvml(), libraries.join("libnvidia-ml.so.1")).unwrap();
    for name in ["libcuda.so.1", "libcuda.so"] {
        symlink(programs.join("libdivvy_sim.so"), libraries.join(name)).unwrap();
    }
    let path = |name: &str| home.path().join(name).display().to_string();
    let (listing, state) = (path("listing"), path("sim-state"));
    fs::write(&listing, "all").unwrap();
    home.set("LD_LIBRARY_PATH", libraries.display().to_string());
    home.set("DIVVY_TEST_LISTING", listing);
    home.set("DIVVY_SIM_STATE", state);
    home.set("DIVVY_TEST_GPUS", gpus);
    // The first process of a machine makes its GPUs.
    driver::modes(&home);
    home
}

/// What the driver is from now on, in a word of boots/nvml.c.
fn lists(home: &Home, what: &str) {
    fs::write(home.path().join("listing"), what).unwrap();
}

/// The configuration file of the table, with these GPUs and queues.
fn configure(home: &Home, gpus: &str, queues: &str) {
    let text = format!(
        "gpus = \"{gpus}\"\nqueues = [{queues}]\n[projects.vision]\nquota = 1.5\nmembers = [\"root\"]\n"
    );
    let path = home.path().join("config.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
}

/// The machine starts again with this driver, and then the daemon with these words.
fn boot(home: &mut Home, what: &str, words: &[&str]) -> Client {
    assert_eq!(home.stop(), 0);
    lists(home, what);
    home.start(words);
    home.connect()
}

async fn on(client: &Client, gpu: u32, command: &[&str]) -> Job {
    let submit = Submit {
        gpus_on: vec![gpu],
        amount: Some(Amount::Share { thousandths: 500 }),
        ..quarter(command)
    };
    client.submit(&submit).await.unwrap()
}

async fn uuids(client: &Client) -> Vec<String> {
    let gpus = client.gpus().await.unwrap().into_iter();
    gpus.map(|gpu| gpu.uuid).collect()
}

async fn told(client: &Client) -> String {
    let events = client.events(0).await.unwrap().into_iter();
    let events = events.filter(|event| event.kind == "gpus_changed");
    events
        .map(|event| event.text)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Runs each row on a machine of its own, all at once.
fn each<R: Sync>(rows: &[R], row: impl AsyncFn(&R) + Copy + Send + Sync) {
    std::thread::scope(|scope| {
        for one in rows {
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = { runtime }.enable_all().build().unwrap();
                runtime.block_on(row(one));
            });
        }
    });
}

/// A row of the table of boots: its name, what the driver is before and after the boot, `gpus` of the file, where each
/// GPU of before is then, by its index (`None` where it is missing), and a part of the event.
type Row = (
    &'static str,
    [&'static str; 2],
    &'static str,
    [Option<u32>; 3],
    &'static str,
);

const SAME: [Option<u32>; 3] = [Some(0), Some(1), Some(2)];

const BOOTS: [Row; 4] = [
    (
        "a GPU less",
        ["all", "drop=1"],
        "0-2",
        [Some(0), None, Some(1)],
        "is missing",
    ),
    (
        "two GPUs swapped",
        ["all", "swap"],
        "0,1,2",
        [Some(1), Some(0), Some(2)],
        "was GPU 0",
    ),
    (
        "another model",
        ["all", "card=1"],
        "all",
        [Some(0), None, Some(2)],
        "GPU 1 (NVIDIA other card",
    ),
    ("no driver for a while", ["all", "absent"], "all", SAME, ""),
];

#[test]
fn over_each_boot_of_the_table_no_daemon_ends_and_no_job_is_lost_or_gets_another_gpu() {
    each(&BOOTS, boots);
}

async fn served(client: &Client) {
    until_async("the GPUs are served".to_owned(), async || {
        let gpus = client.gpus().await.ok()?;
        gpus.iter().all(|gpu| gpu.mode == "shared").then_some(())
    })
    .await;
}

async fn boots(&(name, [first, then], selection, places, event): &Row) {
    let mut home = machine("a100-80gb:3");
    lists(&home, first);
    let count = if first == "all" { 3 } else { 2 };
    configure(
        &home,
        selection,
        &format!("\"all={count}\", \"half=0.5\", \"new=0.5\""),
    );
    home.start(&[]);
    let client = home.connect();
    let before = uuids(&client).await;
    assert_eq!(before.len(), count, "{name}");
    // On GPU 0 a job and the first of an array, on GPU 1 a job.
    let zero = on(&client, 0, &["sleep", "1000"]).await;
    let one = on(&client, 1, &["sleep", "1000"]).await;
    let array = Submit {
        gpus_on: vec![0],
        array: Some(Array {
            indices: vec![1, 2],
            max_running: Some(1),
        }),
        ..script("half", "[ $DIVVY_ARRAY_INDEX = 2 ] || exec sleep 1000")
    };
    let array = client.submit(&array).await.unwrap();
    let (head, tail) = (format!("{}_1", array.id), format!("{}_2", array.id));
    let mut running = Vec::new();
    for (job, gpu) in [(&zero.id, 0), (&head, 0), (&one.id, 1)] {
        let now = in_state(&client, job, JobState::Running).await;
        running.push((job.clone(), now.pid, gpu));
    }
    // It waits for a GPU that it names by its index of now, in the project of the file.
    let pinned = Submit {
        gpus_on: vec![1],
        amount: Some(Amount::Whole { count: 1 }),
        project: Some("vision".to_owned()),
        ..quarter(&["true"])
    };
    let pinned = client.submit(&pinned).await.unwrap();
    let all = client.submit(&script("all", "true")).await.unwrap();

    let client = boot(&mut home, then, &[]);
    let (pid, is_absent) = (home.kept().pid(), then == "absent");
    for (id, pid, gpu) in &running {
        let Some(index) = places[*gpu] else {
            let job = ended(&client, id).await;
            assert_eq!(job.end_reason, Some(EndReason::GpuLost), "{name}");
            continue;
        };
        let now = client.job(id).await.unwrap();
        assert_eq!((now.state, now.pid), (JobState::Running, *pid), "{name}");
        let slice = &now.slices[0];
        assert_eq!(slice.gpu_uuid, before[*gpu], "{name}");
        let letter = slice.label.chars().last().unwrap();
        let label = format!("gpu{index}.5{letter}");
        assert_eq!((slice.gpu_index, &slice.label), (index, &label), "{name}");
    }
    for job in [&pinned.id, &all.id, &tail] {
        let job = client.job(job).await.unwrap();
        assert_eq!(job.state, JobState::Queued, "{name}: {job:#?}");
    }
    let said = told(&client).await;
    assert!(said.contains(event), "{name}: {said}");
    assert_eq!(said.is_empty(), event.is_empty(), "{name}: {said}");
    let node = client.node().await.unwrap();
    let of_file = home.path().join("config.toml").display().to_string();
    assert_eq!(node.config_file, Some(of_file), "{name}");
    let is_missing = then.starts_with("drop");
    let is_replaced = then.starts_with("card");
    let missing = node.start_warnings.iter();
    let missing = missing.filter(|line| line.ends_with("is missing")).count();
    assert_eq!(
        missing,
        usize::from(is_missing || is_replaced),
        "{name}: {:?}",
        node.start_warnings
    );
    if then == "newer" {
        assert_eq!(node.driver_version, "999.10");
    }
    // A new job, on the new GPU where there is one.
    let new = Submit {
        gpus_on: match then {
            "all" => vec![2],
            "card=1" => vec![1],
            _ => Vec::new(),
        },
        ..script("new", "true")
    };
    let new = client.submit(&new).await.unwrap();
    if is_absent {
        let [warning] = &node.start_warnings[..] else {
            panic!("{:?}", node.start_warnings);
        };
        assert!(warning.contains("Driver Not Loaded"), "{warning}");
        let (status, why) = call(&home.socket(), "GET", "/readyz", "");
        assert!(
            status == 503 && why.contains("Driver Not Loaded"),
            "{status} {why}"
        );
        let waits = client.job(&new.id).await.unwrap();
        let why = waits.reason.as_deref().unwrap_or_default();
        assert!(why.contains("do not respond"), "{waits:#?}");
        assert_eq!(uuids(&client).await, before);
        // It is loaded: the same process starts anew with it.
        lists(&home, "all");
        served(&client).await;
        assert_eq!(told(&client).await, "");
        assert_eq!(client.node().await.unwrap().start_warnings, [""; 0]);
    }
    if is_missing {
        let why = client.job(&all.id).await.unwrap().reason.unwrap();
        assert!(why.contains("does not respond"), "{name}: {why}");
        // As many as the last start had wait; more were never there.
        let more = |count| Submit {
            amount: Some(Amount::Whole { count }),
            ..quarter(&["true"])
        };
        let waits = client.submit(&more(3)).await.unwrap();
        assert_eq!(waits.state, JobState::Queued, "{name}");
        client.cancel(&waits.id).await.unwrap();
        let over_quota = Submit {
            project: Some("vision".to_owned()),
            ..more(3)
        };
        for never in [more(4), over_quota] {
            let refused = refused(client.submit(&never).await);
            assert_eq!(refused.code, ErrorCode::NeverFits, "{name}");
        }
    }
    if is_replaced {
        // Its card does not come back.
        client.cancel(&pinned.id).await.unwrap();
    }
    for job in [&zero.id, &one.id, &head] {
        client.cancel(job).await.ok();
    }
    if is_missing {
        // The GPU is back, while the daemon runs.
        lists(&home, "all");
    }
    let last = ended(&client, &all.id).await;
    assert_eq!(
        (last.slices.len(), last.exit_code),
        (count, Some(0)),
        "{name}"
    );
    let own = ended(&client, &pinned.id).await;
    if !is_replaced {
        assert_eq!(
            (&own.slices[0].gpu_uuid, own.exit_code),
            (&before[1], Some(0)),
            "{name}"
        );
    }
    let own = ended(&client, &tail).await;
    assert_eq!(
        (&own.slices[0].gpu_uuid, own.exit_code),
        (&before[0], Some(0)),
        "{name}"
    );
    let new = ended(&client, &new.id).await;
    assert_eq!(new.exit_code, Some(0), "{name}: {new:#?}");
    if matches!(then, "all" | "card=1") {
        assert!(
            !before.contains(&new.slices[0].gpu_uuid),
            "{name}: {new:#?}"
        );
    }
    if is_absent {
        // The module is unloaded under the daemon, and loaded again.
        let job = on(&client, 0, &["sleep", "1000"]).await;
        let job = in_state(&client, &job.id, JobState::Running).await;
        lists(&home, "absent");
        until_async("the daemon knows it".to_owned(), async || {
            let node = client.node().await.ok()?;
            (node.driver_version == "unknown").then_some(())
        })
        .await;
        lists(&home, "all");
        served(&client).await;
        let now = client.job(&job.id).await.unwrap();
        assert_eq!((now.state, now.pid), (JobState::Running, job.pid), "{name}");
    }
    assert_eq!(client.node().await.unwrap().pid, pid, "{name}: one process");
    assert_eq!(home.stop(), 0, "{name}");
}

#[tokio::test]
async fn a_job_beside_one_that_has_another_index_than_before_gets_the_next_label() {
    let mut home = machine("a100-80gb:3");
    home.start(&[]);
    let client = home.connect();
    for gpu in [1, 2] {
        let job = on(&client, gpu, &["sleep", "1000"]).await;
        in_state(&client, &job.id, JobState::Running).await;
    }
    let client = boot(&mut home, "drop=0", &[]);
    for gpu in [0, 1] {
        let job = on(&client, gpu, &["sleep", "1000"]).await;
        let job = in_state(&client, &job.id, JobState::Running).await;
        assert_eq!(job.slices[0].label, format!("gpu{gpu}.5b"));
    }
}

#[test]
fn a_queue_larger_than_the_machine_refuses_a_strict_start_alone() {
    let home = machine("a100-80gb:2");
    let more = "--gpus 0,1,2 names 3 GPUs, and the daemon knows 2 of them";
    let cases = [
        ("0-2", "one=1", 2, "there is no GPU 2 here", more),
        ("all", "tri=3", 5, "queue tri=3 cannot start any job", ""),
    ];
    // At a machine's first start too: it may have lost a GPU before.
    for (gpus, queue, code, error, warning) in cases {
        let words = ["--gpus", gpus, "--dynamic-gpus", "--queue", queue];
        let strict = [&["daemon", "--set", "strict-start=true"], &words[..]].concat();
        let refused = home.divvy(&strict).exits(code).stderr;
        assert!(refused.contains(error), "{words:?}: {refused}");
        let detached = [&["daemon", "--detached"], &words[..]].concat();
        let started = home.divvy(&detached).exits(0).stderr;
        let client = home.connect();
        let warnings = home.call(client.node()).unwrap().start_warnings;
        let [told] = &warnings[..] else {
            panic!("{words:?}: {warnings:?}")
        };
        assert!(told.contains(error) || told == warning, "{told}");
        assert_eq!(started, format!("warning: {told}\n"));
        let _ = home.divvy(&["daemon", "--stop"]).exits(0);
    }
    // A list that names no GPU of this machine is a mistake.
    let none = home.divvy(&["daemon", "--gpus", "7"]).exits(2).stderr;
    assert!(none.contains("there is no GPU 7 here"), "{none}");
}

#[tokio::test]
async fn a_placement_that_the_journal_refuses_fails_its_job_and_not_the_daemon() {
    let mut home = Home::started(&["--sim", "a100-80gb:1"]);
    home.connect().node().await.unwrap();
    assert_eq!(home.stop(), 0);
    let journal = rusqlite::Connection::open(home.path().join("state.db")).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON holding WHEN new.share = 500 \
                  BEGIN SELECT RAISE(ABORT, 'no half'); END";
    journal.execute_batch(refuse).unwrap();
    home.start(&["--sim", "a100-80gb:1"]);
    let client = home.connect();
    let half = on(&client, 0, &["true"]).await;
    let half = ended(&client, &half.id).await;
    assert_eq!(half.end_reason, Some(EndReason::LaunchFailed), "{half:#?}");
    assert!(
        half.reason.as_deref().unwrap().contains("no half"),
        "{half:#?}"
    );
    let next = client.submit(&quarter(&["true"])).await.unwrap();
    assert_eq!(ended(&client, &next.id).await.exit_code, Some(0));
}

/// Puts a GPU into MIG mode.
const MIG: GpuChange = GpuChange {
    mode: GpuMode::Mig,
    dry_run: false,
};

fn profile(name: &str, command: &[&str]) -> Submit {
    Submit {
        amount: Some(Amount::Mig {
            profile: name.to_owned(),
        }),
        ..quarter(command)
    }
}

/// A row of the table for MIG: its name, what the driver is after the boot, and whether the instances outlast it.
type MigRow = (&'static str, &'static str, bool);

const MIG_BOOTS: [MigRow; 3] = [
    ("MIG mode off", "all", false),
    ("renamed profiles", "names", true),
    ("an instance made by others", "all", true),
];

#[test]
fn over_each_boot_of_a_divided_gpu_its_queue_and_its_jobs_are_served() {
    if crate::mig::is_root() {
        each(&MIG_BOOTS, mig_boots);
    }
}

mod exhaustive {
    use super::{MigRow, Row, SAME};

    const BOOTS: [Row; 4] = [
        (
            "the first GPU less",
            ["all", "drop=0"],
            "all",
            [None, Some(0), Some(1)],
            "was GPU 1",
        ),
        ("a GPU more", ["drop=2", "all"], "all", SAME, "is new"),
        (
            "another order",
            ["all", "reverse"],
            "0-2",
            [Some(2), Some(1), Some(0)],
            "was GPU 2",
        ),
        ("a newer driver", ["all", "newer"], "0-2", SAME, ""),
    ];

    const MIG_BOOTS: [MigRow; 3] = [
        ("no driver, and MIG mode off", "absent", false),
        ("a GPU that returns with MIG mode off", "drop=1", false),
        ("a newer driver with other profile ids", "newer", false),
    ];

    #[test]
    fn over_each_other_boot_no_daemon_ends_and_no_job_is_lost_or_gets_another_gpu() {
        super::each(&BOOTS, super::boots);
        if crate::mig::is_root() {
            super::each(&MIG_BOOTS, super::mig_boots);
        }
    }
}

async fn mig_boots(&(name, then, is_kept): &MigRow) {
    let mut home = machine("h100-80gb:2");
    // A queue of instances needs a GPU in MIG mode at the first start.
    configure(&home, "0-1", "\"half=0.5\"");
    home.start(&[]);
    let client = home.connect();
    client.change_gpu("1", &MIG).await.unwrap();
    configure(&home, "0-1", "\"half=0.5\", \"m=3g.40gb\"");
    client.reload_config().await.unwrap();
    let shared = client.submit(&script("half", "sleep 1000")).await.unwrap();
    let shared = in_state(&client, &shared.id, JobState::Running).await;
    let holds = client
        .submit(&profile("4g.40gb", &["sleep", "1000"]))
        .await
        .unwrap();
    let holds = in_state(&client, &holds.id, JobState::Running).await;
    let waits = Submit {
        hold: true,
        ..script("m", "true")
    };
    let waits = client.submit(&waits).await.unwrap();
    let pinned = Submit {
        gpus_on: vec![1],
        hold: true,
        ..profile("3g.40gb", &["true"])
    };
    let pinned = client.submit(&pinned).await.unwrap();
    let is_foreign = name.contains("others");
    if !is_kept {
        // As with the driver's module, its instances end.
        client.cancel(&holds.id).await.unwrap();
        ended(&client, &holds.id).await;
    }
    assert_eq!(home.stop(), 0);
    match is_kept {
        true if is_foreign => driver::make(&home, 1, 19, 6, 1, true),
        true => {}
        false => {
            driver::happen(&home, "reboot");
            assert_eq!(driver::modes(&home), [false, false]);
        }
    }
    lists(&home, then);
    home.start(if then == "all" {
        &["--set", "strict-start=true"]
    } else {
        &[]
    });
    let client = home.connect();
    if matches!(then, "absent" | "drop=1") {
        let job = client.job(&waits.id).await.unwrap();
        assert_eq!(job.state, JobState::Queued, "{name}");
        lists(&home, "all");
    }
    until_async(format!("{name}: the GPU is divided"), async || {
        let gpus = client.gpus().await.ok()?;
        (gpus.last()?.mode == "mig").then_some(())
    })
    .await;
    let warnings = client.node().await.unwrap().start_warnings;
    assert_eq!(
        warnings.len(),
        usize::from(then == "drop=1"),
        "{name}: {warnings:?}"
    );
    let now = client.job(&shared.id).await.unwrap();
    assert_eq!(
        (now.state, now.pid),
        (JobState::Running, shared.pid),
        "{name}"
    );
    if is_kept {
        let now = client.job(&holds.id).await.unwrap();
        assert_eq!(
            (now.state, now.pid),
            (JobState::Running, holds.pid),
            "{name}"
        );
    }
    if is_foreign {
        let all = client.mig_instances().await.unwrap();
        let foreign: Vec<_> = all
            .iter()
            .filter(|one| one.state == MigState::Unmanaged)
            .collect();
        let [foreign] = foreign[..] else {
            panic!("{all:?}");
        };
        assert_eq!((foreign.profile.as_str(), foreign.start), ("1g.10gb", 6));
        // It is in the way of the other half, until its owner destroys it.
        client.act(&pinned.id, Act::Unhold).await.unwrap();
        until_async("the job says what it waits for".to_owned(), async || {
            let job = client.job(&pinned.id).await.unwrap();
            assert_eq!(job.state, JobState::Queued, "{job:#?}");
            job.reason.filter(|why| !why.contains("held"))
        })
        .await;
        driver::destroy(&home, 1, 19, 6);
    }
    for job in [&waits, &pinned] {
        client.act(&job.id, Act::Unhold).await.ok();
        let job = ended(&client, &job.id).await;
        assert_eq!(job.exit_code, Some(0), "{name}: {job:#?}");
        let profile = if then == "names" {
            "3g.39gb"
        } else {
            "3g.40gb"
        };
        let label = &job.slices[0].label;
        assert!(
            label.starts_with(&format!("gpu1.{profile}@")),
            "{name}: {label}"
        );
    }
    if then == "names" {
        // Both names mean the profile, and so does its memory by the name that it had.
        for amount in [
            profile("3g.39gb", &[]).amount,
            Some(Amount::Memory { bytes: 40 << 30 }),
        ] {
            let submit = Submit {
                amount,
                gpus_on: vec![1],
                ..quarter(&["true"])
            };
            let job = client.submit(&submit).await.unwrap();
            let job = ended(&client, &job.id).await;
            assert!(job.slices[0].label.starts_with("gpu1.3g.39gb@"), "{job:#?}");
        }
    }
    assert_eq!(home.stop(), 0, "{name}");
}

#[tokio::test]
async fn a_gpu_whose_mig_mode_others_turned_on_serves_its_waiting_jobs_with_instances() {
    if !crate::mig::is_root() {
        return;
    }
    let mut home = machine("h100-80gb:2");
    configure(&home, "all", "\"half=0.5\"");
    home.start(&[]);
    let client = home.connect();
    let runs = on(&client, 0, &["sleep", "1000"]).await;
    let runs = in_state(&client, &runs.id, JobState::Running).await;
    let pinned = Submit {
        gpus_on: vec![1],
        hold: true,
        ..script("half", "true")
    };
    let pinned = client.submit(&pinned).await.unwrap();
    assert_eq!(home.stop(), 0);
    driver::turn_on(&home, 1);
    home.start(&[]);
    let client = home.connect();
    client.act(&pinned.id, Act::Unhold).await.unwrap();
    let pinned = ended(&client, &pinned.id).await;
    assert_eq!(pinned.exit_code, Some(0), "{pinned:#?}");
    let label = &pinned.slices[0].label;
    assert!(label.starts_with("gpu1.3g.40gb@"), "{label}");
    let now = client.job(&runs.id).await.unwrap();
    assert_eq!((now.state, now.pid), (JobState::Running, runs.pid));
}
