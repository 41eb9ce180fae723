//! Starts on a machine that is another one than before: GPUs gone, new, in another order, without MIG mode, under other
//! names. The daemon serves what is there, a job keeps its GPU, and what is missing has a name.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use divvy_api::client::Client;
use divvy_api::v1::{Amount, EndReason, ErrorCode, GpuChange, GpuMode, Job, JobState, Submit};
use divvy_testkit::{Home, ended, in_state, quarter, refused, script, until_async};

use crate::mig::driver;

/// A home whose machine has these GPUs, with a driver that a test may tell what it lists ([`lists`]).
fn machine(gpus: &str) -> Home {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/boots/nvml.c");
    let programs = divvy_testkit::programs::folder();
    let search = format!("-L{}", programs.display());
    let flags = [
        "-shared",
        "-fPIC",
        "-Wl,--no-as-needed",
        &search,
        "-l:libdivvy_sim.so",
        "-ldl",
    ];
    let nvml = divvy_testkit::compiled(&source, "libboots_nvml.so", &flags);
    let mut home = Home::empty();
    let libraries = home.path().join("driver");
    fs::create_dir(&libraries).unwrap();
    symlink(nvml, libraries.join("libnvidia-ml.so.1")).unwrap();
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

/// What the driver lists from now on: `all`, `drop=1`, `reverse`, `names` (3g.39gb for 3g.40gb).
fn lists(home: &Home, what: &str) {
    fs::write(home.path().join("listing"), what).unwrap();
}

/// The machine starts again and lists this, and then the daemon with these words.
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

async fn told(client: &Client) -> Vec<String> {
    let events = client.events(0).await.unwrap().into_iter();
    let events = events.filter(|event| event.kind == "gpus_changed");
    events.map(|event| event.text).collect()
}

/// A row of the table of boots: what the driver lists before and after, and where each GPU of before is then, by its
/// index; `None` where it is missing.
type Row = (&'static str, [Option<u32>; 3]);

const BOOTS: [Row; 5] = [
    ("drop=0", [None, Some(0), Some(1)]),
    ("drop=1", [Some(0), None, Some(1)]),
    ("drop=2", [Some(0), Some(1), None]),
    ("reverse", [Some(2), Some(1), Some(0)]),
    ("all", [Some(0), Some(1), Some(2)]),
];

#[tokio::test]
async fn a_boot_with_other_gpus_ends_no_daemon_and_no_job_gets_another_gpu() {
    for (what, then) in BOOTS {
        let words = ["--dynamic-gpus", "--queue", "tri=3", "dual=2", "half=0.5"];
        let mut home = machine("a100-80gb:3");
        home.start(&words);
        let client = home.connect();
        let before = uuids(&client).await;
        let one = on(&client, 1, &["sleep", "1000"]).await;
        let two = on(&client, 2, &["sleep", "1000"]).await;
        for job in [&one, &two] {
            in_state(&client, &job.id, JobState::Running).await;
        }
        // It waits for a GPU that it names by its index of now.
        let whole = Submit {
            gpus_on: vec![1],
            amount: Some(Amount::Whole { count: 1 }),
            ..quarter(&["true"])
        };
        let whole = client.submit(&whole).await.unwrap();
        let all = client.submit(&script("tri", "true")).await.unwrap();
        let client = boot(&mut home, what, &words);
        for (job, gpu) in [(&one, 1), (&two, 2)] {
            match then[gpu] {
                Some(index) => {
                    let slice = &client.job(&job.id).await.unwrap().slices[0];
                    assert_eq!(slice.gpu_uuid, before[gpu], "{what}");
                    assert_eq!(
                        (slice.gpu_index, slice.label.as_str()),
                        (index, &*format!("gpu{index}.5a")),
                        "{what}"
                    );
                }
                None => {
                    let job = ended(&client, &job.id).await;
                    assert_eq!(job.end_reason, Some(EndReason::GpuLost), "{what}");
                }
            }
        }
        let is_whole = then.iter().all(Option::is_some);
        assert_eq!(told(&client).await.is_empty(), what == "all", "{what}");
        let node = client.node().await.unwrap();
        let missing = node.start_warnings.iter();
        let missing = missing.filter(|line| line.ends_with("is missing"));
        assert_eq!(
            missing.count(),
            usize::from(!is_whole),
            "{what}: {:?}",
            node.start_warnings
        );
        for job in [&one, &two] {
            client.cancel(&job.id).await.ok();
        }
        if then[1].is_some() {
            let job = ended(&client, &whole.id).await;
            assert_eq!(
                (&job.slices[0].gpu_uuid, job.exit_code),
                (&before[1], Some(0)),
                "{what}"
            );
        }
        if !is_whole {
            let why = client.job(&all.id).await.unwrap();
            assert_eq!(why.state, JobState::Queued, "{what}: {why:#?}");
            assert!(
                why.reason.as_deref().unwrap().contains("does not respond"),
                "{why:#?}"
            );
            // As many as the last start had wait; more were never there.
            let more = Submit {
                amount: Some(Amount::Whole { count: 3 }),
                ..quarter(&["true"])
            };
            let waits = client.submit(&more).await.unwrap();
            assert_eq!(waits.state, JobState::Queued, "{what}");
            client.cancel(&waits.id).await.unwrap();
            let more = Submit {
                amount: Some(Amount::Whole { count: 4 }),
                ..more
            };
            let refused = refused(client.submit(&more).await);
            assert_eq!(refused.code, ErrorCode::NeverFits, "{what}");
            // The GPU is back, while the daemon runs.
            lists(&home, "all");
        }
        let job = ended(&client, &all.id).await;
        assert_eq!((job.slices.len(), job.exit_code), (3, Some(0)), "{what}");
    }
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
    let mut home = machine("a100-80gb:2");
    let daemon = |more: &[&'static str]| [&["daemon"], more].concat();
    let tri = ["--gpus", "all", "--dynamic-gpus", "--queue", "tri=3"];
    let never = ["--gpus", "0-2", "--dynamic-gpus", "--queue", "one=1"];
    let cases = [
        (never, 2, "there is no GPU 2 here"),
        (tri, 5, "queue tri=3 cannot start any job"),
    ];
    // What never fitted is a mistake, and no matter of a boot.
    for (words, code, error) in cases {
        let refused = home.divvy(&daemon(&words)).exits(code).stderr;
        assert!(refused.contains(error), "{words:?}: {refused}");
    }
    home.start(&["--gpus", "all", "--dynamic-gpus", "--queue", "one=1"]);
    home.call(home.connect().node()).unwrap();
    assert_eq!(home.stop(), 0);
    for (words, code, error) in cases {
        let strict = [&words[..], &["--strict-start"]].concat();
        let refused = home.divvy(&daemon(&strict)).exits(code).stderr;
        assert!(refused.contains(error), "{words:?}: {refused}");
    }
    home.start(&tri);
    let client = home.connect();
    let node = home.call(client.node()).unwrap();
    assert_eq!(node.start_warnings.len(), 1, "{:?}", node.start_warnings);
    assert_eq!(home.stop(), 0);
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

#[tokio::test]
async fn mig_mode_that_ended_with_a_reboot_is_back_before_its_queue_is_judged() {
    if !crate::mig::is_root() {
        return;
    }
    let mut home = machine("h100-80gb:1");
    home.start(&[]);
    let client = home.connect();
    client.change_gpu("0", &MIG).await.unwrap();
    until_async("the GPU is divided".to_owned(), async || {
        let gpus = client.gpus().await.unwrap();
        (gpus[0].mode == "mig").then_some(())
    })
    .await;
    let words = ["--dynamic-gpus", "--queue", "m=1g.10gb"];
    let client = boot(&mut home, "all", &words);
    let job = client.submit(&script("m", "true")).await.unwrap();
    assert_eq!(ended(&client, &job.id).await.exit_code, Some(0));
    assert_eq!(home.stop(), 0);
    driver::happen(&home, "reboot");
    assert_eq!(driver::modes(&home), [false]);
    home.start(&[&words[..], &["--strict-start"]].concat());
    let client = home.connect();
    let node = client.node().await.unwrap();
    assert_eq!(node.start_warnings, [""; 0]);
    let job = client.submit(&script("m", "true")).await.unwrap();
    assert_eq!(ended(&client, &job.id).await.exit_code, Some(0));
}

#[tokio::test]
async fn a_profile_that_the_driver_calls_otherwise_serves_its_queue_and_its_jobs() {
    if !crate::mig::is_root() {
        return;
    }
    let mut home = machine("h100-80gb:1");
    let words = ["--dynamic-gpus", "--queue", "m=3g.40gb"];
    // A queue of instances needs a GPU in MIG mode at the first start.
    home.start(&["--dynamic-gpus", "--queue", "one=1"]);
    let client = home.connect();
    client.change_gpu("0", &MIG).await.unwrap();
    assert_eq!(home.stop(), 0);
    home.start(&words);
    let client = home.connect();
    // It waits behind one that runs in the other half.
    let profile = |name: &str, command: &[&str]| Submit {
        amount: Some(Amount::Mig {
            profile: name.to_owned(),
        }),
        ..quarter(command)
    };
    let holds = client
        .submit(&profile("7g.80gb", &["sleep", "1000"]))
        .await
        .unwrap();
    in_state(&client, &holds.id, JobState::Running).await;
    let waits = client.submit(&script("m", "true")).await.unwrap();
    let client = boot(&mut home, "names", &words);
    assert_eq!(client.node().await.unwrap().start_warnings, [""; 0]);
    client.cancel(&holds.id).await.unwrap();
    assert_eq!(ended(&client, &waits.id).await.exit_code, Some(0));
    for submit in [
        profile("3g.40gb", &["true"]),
        profile("3g.39gb", &["true"]),
        Submit {
            amount: Some(Amount::Memory { bytes: 40 << 30 }),
            ..quarter(&["true"])
        },
    ] {
        let job = client.submit(&submit).await.unwrap();
        let job = ended(&client, &job.id).await;
        assert!(job.slices[0].label.starts_with("gpu0.3g.39gb@"), "{job:#?}");
    }
}
