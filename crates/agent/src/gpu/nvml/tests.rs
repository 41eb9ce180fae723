//! Observations of simulated GPUs. The simulator reads its environment once in a process, so each test runs itself in a
//! process of its own.

use std::path::PathBuf;
use std::process::Command;

use divvy_testkit::{Bounded as _, programs, sim};

use super::super::health::{DriverHealth, INTERVAL, MAX_XIDS, RemappedRows};
use super::super::source::Source;
use super::*;

/// The path of the machine's state, for the simulator too.
const STATE: &str = "DIVVY_SIM_STATE";

/// Set in the process that is a machine's only user.
const INSIDE: &str = "OBSERVED_MACHINE";

/// Runs `body` in a process of its own on a machine with these GPUs; `test` is the name of the test that asks for it.
#[track_caller]
fn on(gpus: &str, config: &str, test: &str, body: impl FnOnce(Machine)) {
    if std::env::var_os(INSIDE).is_some() {
        let state = PathBuf::from(std::env::var_os(STATE).unwrap());
        let library = programs::folder().join("libdivvy_sim.so");
        return body(Machine { state, library });
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, config).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("gpu::nvml::tests::{test}"),
            "--nocapture",
        ])
        .env(INSIDE, "1")
        .env("DIVVY_SIM", gpus)
        .env(STATE, folder.path().join("state"))
        .env("DIVVY_SIM_CONFIG", file)
        .env("DIVVY_SIM_LOG", folder.path().join("log"))
        .output_bounded()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

struct Machine {
    state: PathBuf,
    library: PathBuf,
}

impl Machine {
    fn driver(&self) -> NvmlDriver {
        NvmlDriver::load(Some(&self.library)).unwrap()
    }

    fn happen(&self, orders: &[&str]) {
        sim::control(&self.state, orders);
    }

    /// How often a function was called so far.
    fn calls(&self, function: &str) -> usize {
        let log = std::fs::read_to_string(self.state.with_file_name("log")).unwrap();
        log.matches(&format!(" {function}(")).count()
    }
}

fn awake(source: &Source) -> Observation {
    source.observe_awake(&BTreeSet::new()).unwrap()
}

/// The Xid events of an observation, each with the place of its GPU in the first one.
fn told(observation: &Observation, first: &Observation) -> Vec<(usize, u64)> {
    let place = |gpu: &GpuUuid| first.gpus.iter().position(|seen| seen.uuid == *gpu);
    let xids = observation.xids.iter();
    xids.map(|xid| (place(&xid.gpu).unwrap(), xid.xid))
        .collect()
}

#[test]
fn an_observation_tells_the_xid_events_since_the_one_before() {
    let test = "an_observation_tells_the_xid_events_since_the_one_before";
    on("l4-24gb:5", "", test, |machine| {
        machine.driver();
        machine.happen(&["xid:0=31"]);
        let source = Source::new(machine.driver());
        let first = source.observe().unwrap();
        machine.happen(&["xid:0=48", "xid:1=13"]);
        // The daemon's start looks several times before its observer does.
        assert_eq!(source.observe().unwrap().xids, []);
        assert_eq!(told(&awake(&source), &first), [(0, 48), (1, 13)]);
        assert_eq!(awake(&source).xids, []);
        // More than one observation has.
        let flood = (0..5).flat_map(|gpu| vec![format!("xid:{gpu}=43"); 16]);
        let flood: Vec<String> = flood.collect();
        machine.happen(&flood.iter().map(String::as_str).collect::<Vec<_>>());
        let [one, two] = [(); 2].map(|()| awake(&source).xids.len());
        assert_eq!((one, two), (MAX_XIDS, 16));
        machine.happen(&["lose:1"]);
        let last = awake(&source);
        assert_eq!((last.gpus.len(), last.troubles.len()), (4, 1));
        assert_eq!(told(&last, &first), [(1, 79)], "a lost GPU's last event");
    });
}

#[test]
fn a_gpu_whose_xid_events_cannot_be_watched_is_tried_again_later() {
    let test = "a_gpu_whose_xid_events_cannot_be_watched_is_tried_again_later";
    let config = "[[fault]]\nfunction = 'nvmlDeviceRegisterEvents'\ncall = 2\ncode = 999\n\
                  [[fault]]\nfunction = 'nvmlEventSetWait_v2'\ncall = 6\ncode = 15\n";
    on("l4-24gb:2", config, test, |machine| {
        let nvml = Arc::new(Nvml::load(Some(&machine.library)).unwrap());
        let gpus: Vec<Device<'_>> = nvml.devices().unwrap().into_iter().flatten().collect();
        let uuids = gpus.iter().map(|gpu| gpu.uuid().unwrap().parse().unwrap());
        let uuids: Vec<GpuUuid> = uuids.collect();
        let (mut watch, begun) = (XidWatch::default(), Instant::now());
        let mut look = |seconds: u64| {
            let now = begun + std::time::Duration::from_secs(seconds);
            for (gpu, uuid) in gpus.iter().zip(&uuids) {
                watch.watch(&nvml, gpu, uuid, now);
            }
            let registered = machine.calls("nvmlDeviceRegisterEvents");
            machine.happen(&["xid:0=13", "xid:1=31"]);
            let told = watch.take().into_iter().map(|event| event.xid);
            (registered, told.collect::<Vec<u64>>())
        };
        // The failure of the second GPU spoils the set. The first is watched again, the second ten seconds later.
        assert_eq!(look(0), (2, vec![]));
        assert_eq!(look(9), (3, vec![13]));
        // The driver answers the second question with an error, and the set is of no use.
        assert_eq!(look(10), (4, vec![13]));
        assert_eq!(look(11), (4, vec![]), "a set that was new is not replaced");
        assert_eq!(look(19), (6, vec![13, 31]));
        assert_eq!(look(20), (6, vec![13, 31]), "both stay watched");
        assert_eq!(machine.calls("nvmlEventSetFree"), 2);
    });
}

#[test]
fn the_memory_errors_of_a_gpu_are_asked_for_every_ten_seconds() {
    let test = "the_memory_errors_of_a_gpu_are_asked_for_every_ten_seconds";
    on("h100-80gb:1,rtx4090-24gb:1", "", test, |machine| {
        let source = Source::new(machine.driver());
        let well = DriverHealth {
            uncorrected_ecc: Some(0),
            remapped: Some(RemappedRows::default()),
        };
        let health = |observation: Observation| observation.gpus.into_iter().map(|gpu| gpu.health);
        let seen: Vec<DriverHealth> = health(awake(&source)).collect();
        assert_eq!(seen, [well.clone(), DriverHealth::default()]);
        machine.happen(&["ecc:0=2", "remap:0=pending"]);
        assert_eq!(health(awake(&source)).next(), Some(well.clone()));
        assert_eq!(machine.calls("nvmlDeviceGetTotalEccErrors"), 2);
        let nvml = Nvml::load(Some(&machine.library)).unwrap();
        let gpu = nvml.device(0).unwrap();
        let (reader, uuid) = (
            HealthReader::default(),
            gpu.uuid().unwrap().parse().unwrap(),
        );
        let now = Instant::now();
        let sick = DriverHealth {
            uncorrected_ecc: Some(2),
            remapped: Some(RemappedRows {
                uncorrectable: 1,
                is_pending: true,
                has_failed: false,
            }),
        };
        assert_eq!(reader.read(&gpu, &uuid, now), sick);
        machine.happen(&["reset:0", "remap:0=failed"]);
        assert_eq!(reader.read(&gpu, &uuid, now), sick);
        let failed = DriverHealth {
            uncorrected_ecc: Some(0),
            remapped: Some(RemappedRows {
                uncorrectable: 0,
                is_pending: false,
                has_failed: true,
            }),
        };
        assert_eq!(reader.read(&gpu, &uuid, now + INTERVAL), failed);
        machine.happen(&["lose:0"]);
        let later = now + INTERVAL + INTERVAL;
        assert_eq!(reader.read(&gpu, &uuid, later), failed, "the last answer");
    });
}
