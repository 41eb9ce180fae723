//! Table tests of the identity of GPUs over starts: the GPUs that the driver lists, and those of the start before.

use divvy_core::{Bytes, GpuSelection, parse_gpus};
use divvy_driver::nvml::mig::MigMode;

use super::*;
use crate::gpu::FaultyGpu;
use crate::gpu::mig::GpuMigState;
use crate::model::gpu_mode::{RequestedMode, effective_mode};

/// A GPU by a letter: its UUID, and its place on the bus unless `bus` is another's.
fn uuid(letter: char) -> GpuUuid {
    let byte = u8::try_from(u32::from(letter)).expect("a letter");
    GpuUuid::from_bytes([byte; 16])
}

/// What the driver lists: `abc`, `aBc` with B in MIG mode, `ad=b` with D in the place of B on the bus.
fn listed(text: &str) -> Observation {
    let (letters, bus) = text.split_once('=').unwrap_or((text, ""));
    let last = letters.chars().last();
    let gpus = (0..).zip(letters.chars()).map(|(index, letter)| {
        let small = letter.to_ascii_lowercase();
        let on = letter.is_ascii_uppercase();
        let slot = bus
            .chars()
            .next()
            .filter(|_| Some(letter) == last)
            .unwrap_or(small);
        let mode = MigMode {
            current: on,
            pending: on,
        };
        ObservedGpu {
            bus: format!("slot {slot}"),
            total: Bytes::gib(80),
            mig: Some(GpuMigState {
                mode,
                capabilities: None,
                epoch: Some(0),
                instances: Vec::new(),
                error: None,
            }),
            ..ObservedGpu::idle(uuid(small), index)
        }
    });
    Observation {
        gpus: gpus.collect(),
        troubles: Vec::new(),
        xids: Vec::new(),
    }
}

fn letter(gpu: &GpuUuid) -> char {
    char::from(gpu.to_bytes()[0])
}

/// A journal over several starts.
struct Machine {
    store: Store,
    _folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("state.db")).unwrap();
        Self {
            store,
            _folder: folder,
        }
    }

    /// A start: the GPUs as `LETTER NUMBER`, in brackets where they are missing and with `-` where they are not served,
    /// and what is different.
    fn start(&self, gpus: &str, selection: &str) -> (String, Vec<String>) {
        self.start_with(&listed(gpus), selection)
    }

    fn start_with(&self, seen: &Observation, selection: &str) -> (String, Vec<String>) {
        let selection: GpuSelection = parse_gpus(&[selection]).unwrap();
        let known = KnownGpus::compare(&self.store, seen, &selection, None).unwrap();
        let shown = known.gpus.iter().map(|gpu| {
            let served = if gpu.is_served { "" } else { "-" };
            let text = format!("{}{}{served}", letter(&gpu.uuid), gpu.number);
            if gpu.is_listed {
                text
            } else {
                format!("({text})")
            }
        });
        let shown = shown.collect::<Vec<_>>().join(" ");
        let modes = self.store.modes().unwrap();
        let device = |gpu: &ObservedGpu| {
            let wanted = modes.get(&gpu.uuid).copied();
            let mig = gpu.mig.as_ref().map(|mig| mig.mode);
            let mode = effective_mode(wanted.map(|wanted| wanted.mode), mig);
            let mut device = Device::new(gpu, mode, Bytes::ZERO);
            device.mode.requested = wanted;
            device
        };
        let devices: Vec<Device> = seen.gpus.iter().map(device).collect();
        let start = known.save(&self.store, &devices).unwrap();
        let short = |line: &String| {
            let (head, rest) = line.split_once(" (").unwrap_or((line, ""));
            let (_, tail) = rest.split_once(") ").unwrap_or(("", rest));
            format!("{head} {tail}").trim().to_owned()
        };
        (shown, start.changes.iter().map(short).collect())
    }
}

#[test]
fn each_start_knows_the_gpus_of_the_one_before_by_their_uuids() {
    // What is listed, then the GPUs and the differences.
    for (before, now, gpus, changes) in [
        ("abc", "abc", "a0 b1 c2", &[][..]),
        (
            "abc",
            "bc",
            "b0 c1 (a2)",
            &["GPU 0 was GPU 1", "GPU 1 was GPU 2", "GPU 2 is missing"],
        ),
        (
            "abc",
            "ac",
            "a0 c1 (b2)",
            &["GPU 1 was GPU 2", "GPU 2 is missing"],
        ),
        ("abc", "ab", "a0 b1 (c2)", &["GPU 2 is missing"]),
        (
            "abc",
            "c",
            "c0 (b1) (a2)",
            &["GPU 0 was GPU 2", "GPU 1 is missing", "GPU 2 is missing"],
        ),
        (
            "abc",
            "cba",
            "c0 b1 a2",
            &["GPU 0 was GPU 2", "GPU 2 was GPU 0"],
        ),
        ("ab", "abc", "a0 b1 c2", &["GPU 2 is new"]),
        (
            "ab",
            "cab",
            "c0 a1 b2",
            &["GPU 0 is new", "GPU 1 was GPU 0", "GPU 2 was GPU 1"],
        ),
        // Another card in the place of one.
        ("ab", "ad=b", "a0 d1", &["GPU 1 is new"]),
        (
            "aB",
            "ab",
            "a0 b1",
            &["GPU 1 was in MIG mode, and is not now"],
        ),
        ("ab", "aB", "a0 b1", &[]),
    ] {
        let machine = Machine::new();
        assert_eq!(
            machine.start(before, "all").1,
            [""; 0],
            "the first start has none before"
        );
        let (are, differ) = machine.start(now, "all");
        assert_eq!(
            (are.as_str(), &differ[..]),
            (
                gpus,
                &changes
                    .iter()
                    .map(|one| (*one).to_owned())
                    .collect::<Vec<_>>()[..]
            ),
            "{before} {now}"
        );
        assert_eq!(machine.start(now, "all").1, [""; 0], "{now}: told once");
    }
}

#[test]
fn indices_of_gpus_mean_those_that_had_them_when_the_list_was_first_used() {
    for (starts, selection, gpus) in [
        (&["abc", "cba"][..], "0-1", "c0- b1 a2"),
        (&["abc", "bc"], "0-1", "b0 c1- (a2)"),
        (&["abc", "bc", "abc"], "0-1", "a0 b1 c2-"),
        // The list names one that never was here, until it comes; and no more.
        (&["ab", "abc"], "0-2", "a0 b1 c2"),
        (&["ab", "abcd"], "0-2", "a0 b1 c2 d3-"),
        (&["abc", "ac", "acd"], "0-2", "a0 c1 d2- (b3)"),
        // A replacement has the place of what it replaces.
        (&["abc", "acd=b"], "0-2", "a0 c1 d2"),
        (&["abc", "cba"], "all", "c0 b1 a2"),
    ] {
        let machine = Machine::new();
        let shown = starts.iter().map(|gpus| machine.start(gpus, selection).0);
        assert_eq!(
            shown.last().as_deref(),
            Some(gpus),
            "{starts:?} {selection}"
        );
    }
    let machine = Machine::new();
    let both = format!("{},{}", uuid('a'), uuid('c'));
    machine.start("abc", &both);
    assert_eq!(machine.start("cb", &both).0, "c0 b1- (a2)");
    // Another list means the GPUs that have the indices now.
    assert_eq!(
        machine.start("cb", "0-1").0,
        "c0 b1",
        "the missing one has number 2"
    );
}

#[test]
fn a_missing_gpu_stays_known_while_a_month_passes_and_longer_for_its_jobs() {
    let machine = Machine::new();
    machine.start("ab", "all");
    let age = |days: i64| {
        let mut gpus = machine.store.known_gpus().unwrap();
        for gpu in &mut gpus {
            gpu.seen = now() - SignedDuration::from_hours(24 * days);
        }
        machine.store.begin().unwrap();
        machine.store.save_known_gpus(&gpus).unwrap();
        machine.store.commit().unwrap();
    };
    // A daemon may run for months between two starts.
    age(90);
    assert_eq!(machine.start("a", "all").0, "a0 (b1)");
    age(29);
    assert_eq!(machine.start("a", "all").0, "a0 (b1)");
    // A clock that went back forgets none.
    age(-400);
    assert_eq!(machine.start("a", "all").0, "a0 (b1)");
    let mut new = crate::journal::tests::new(None);
    new.spec.request.on = vec![1];
    let job = machine.store.insert(&new).unwrap();
    age(31);
    assert_eq!(machine.start("a", "all").0, "a0 (b1-)", "a job asks for it");
    machine.store.take_back(job.id).unwrap();
    assert_eq!(machine.start("a", "all").0, "a0");
}

#[test]
fn a_start_without_a_gpu_has_those_of_the_last_one_and_leaves_the_journal_as_it_is() {
    let machine = Machine::new();
    let blind = |selection: &str, sim: Option<&str>| {
        let selection: GpuSelection = parse_gpus(&[selection]).unwrap();
        let known = KnownGpus::of_last_start(&machine.store, &selection, sim).unwrap()?;
        let known = known.warned("no driver");
        let devices: Vec<Device> = known.missing().collect();
        let shown = devices.iter().map(|device| {
            assert!(device.gpu.away && !device.is_lost, "it may respond again");
            format!("{}{}", letter(&device.gpu.uuid), device.gpu.index)
        });
        let shown = shown.collect::<Vec<_>>().join(" ");
        known.check(&selection).unwrap();
        let start = known.save(&machine.store, &devices).unwrap();
        assert_eq!(start.changes, [""; 0]);
        assert!(start.warnings[0].starts_with("no driver; "));
        assert_eq!(start.before.len(), devices.len());
        Some(shown)
    };
    assert_eq!(blind("all", None), None, "no daemon has served a GPU");
    machine.start("abc", "0-1");
    let before = machine.store.known_gpus().unwrap();
    for (selection, sim, gpus) in [
        ("0-1", None, Some("a0 b1")),
        // Another list.
        ("2", None, Some("c2")),
        ("all", None, Some("a0 b1 c2")),
        ("7", None, None),
        // Simulated GPUs are another machine.
        ("0-1", Some("l4-24gb:1"), None),
    ] {
        assert_eq!(blind(selection, sim).as_deref(), gpus, "{selection}");
        assert_eq!(machine.store.known_gpus().unwrap(), before, "{selection}");
    }
    assert_eq!(machine.start("abc", "0-1").1, [""; 0]);
}

#[test]
fn mig_mode_that_is_turned_on_again_keeps_its_record() {
    let machine = Machine::new();
    let wanted = RequestedMode {
        mode: Mode::Mig,
        is_pending: false,
    };
    machine.store.set_mode(&uuid('a'), Some(wanted)).unwrap();
    machine.start("A", "all");
    let (_, changes) = machine.start("a", "all");
    assert_eq!(changes, [""; 0]);
    let known = machine.store.known_gpus().unwrap();
    assert_eq!(
        known[0].record.as_ref().map(|gpu| gpu.mode),
        Some(Mode::Mig)
    );
}

#[test]
fn a_gpu_that_does_not_respond_is_not_called_gone_and_many_differences_are_cut() {
    let machine = Machine::new();
    machine.start("ab", "all");
    let mut seen = listed("a");
    seen.troubles.push(FaultyGpu {
        index: 1,
        uuid: None,
        is_lost: false,
        message: "unknown error".to_owned(),
    });
    let (gpus, changes) = machine.start_with(&seen, "all");
    assert_eq!(
        (gpus.as_str(), changes),
        (
            "a0 (b1)",
            vec!["GPU 1 does not respond, or is missing".to_owned()]
        )
    );
    let many = told((0..40).map(|line| line.to_string()).collect());
    assert_eq!(
        (many.len(), many.last().map(String::as_str)),
        (17, Some("and 24 more"))
    );
    assert_eq!(told(vec!["one".to_owned()]), ["one"]);
}
