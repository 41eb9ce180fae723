//! What users read of MIG, recorded: GPUs that are cut, jobs on instances, plans, changes of mode.

#[allow(dead_code, reason = "each test file uses its part")]
use crate::fixtures;

use divvy_api::v1::{
    Amount, Gpu, GpuAvailable, GpuChanged, GpuHeldElsewhere, GpuMode, GpuSlice, Isolation, Job,
    Mig, MigInstance, MigPlanned, MigProfile, MigSlice, MigState, Slice,
};
use divvy_cli::args::Format;
use divvy_cli::render::{self, Item, View};
use insta::assert_snapshot;

const MIB: u64 = 1 << 20;
const UUID: &str = "GPU-00000000-0000-4000-8000-000000000000";

fn view(width: usize) -> View {
    View {
        wide: false,
        width: Some(width),
        now: fixtures::now(),
        zone: || jiff::tz::TimeZone::UTC,
        palette: Default::default(),
    }
}

fn list<T: Item>(
    items: &[T],
    format: Format,
    width: usize,
    table: impl FnOnce(&[T], View) -> String,
) -> String {
    render::list(items, format, view(width), table).expect("API types are JSON")
}

fn profile(name: &str, id: u32, mib: u64, slices: u8, starts: &[u8], room: u8) -> MigProfile {
    MigProfile {
        name: name.into(),
        id,
        memory_bytes: mib * MIB,
        memory_slices: slices,
        compute_slices: name.as_bytes()[0] - b'0',
        multiprocessors: 14,
        max_instances: u8::try_from(starts.len()).expect("few starts"),
        starts: starts.to_vec(),
        available: room,
    }
}

fn instance(name: &str, start: u8, slices: u8, mib: u64, state: MigState) -> MigInstance {
    MigInstance {
        gpu_uuid: UUID.into(),
        gpu_index: 0,
        profile: name.into(),
        start,
        memory_slices: slices,
        memory_bytes: mib * MIB,
        state,
        job: (state == MigState::InUse).then(|| "12".into()),
        uuid: Some(format!("MIG-{start:08}-0000-5000-8000-000000000000")),
    }
}

/// An A100 40GB: a job's instance, one with double memory that is somebody else's, one that nobody uses.
fn mig() -> Mig {
    Mig {
        memory_slices: 8,
        compute_slices: 7,
        profiles: vec![
            profile("1g.5gb", 19, 4864, 1, &[0, 1, 2, 3, 4, 5, 6], 5),
            profile("1g.5gb+me", 20, 4864, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
            profile("1g.10gb", 15, 9856, 2, &[0, 2, 4, 6], 2),
            profile("2g.10gb", 14, 9856, 2, &[0, 2, 4], 1),
            profile("3g.20gb", 9, 19968, 4, &[0, 4], 1),
            profile("4g.20gb", 5, 19968, 4, &[0], 0),
            profile("7g.40gb", 0, 40192, 8, &[0], 0),
        ],
        instances: vec![
            instance("1g.5gb", 0, 1, 4864, MigState::InUse),
            MigInstance {
                uuid: None,
                ..instance("1g.10gb", 2, 2, 9856, MigState::Unmanaged)
            },
            instance("3g.20gb", 4, 4, 19968, MigState::Idle),
        ],
    }
}

/// The first GPU is cut, the second is not.
fn gpus() -> Vec<Gpu> {
    let mut gpus = fixtures::gpus();
    gpus.truncate(2);
    gpus[0] = Gpu {
        model: "NVIDIA A100-SXM4-40GB".into(),
        mode: "mig".into(),
        enforcement: "mig".into(),
        memory_allocated_bytes: 4864 * MIB,
        share_allocated: 125,
        slices: vec![GpuSlice {
            unknown: false,
            user: "ana".into(),
            job: "12".into(),
            label: "gpu0.1g.5gb@0".into(),
            memory_limit_bytes: 4864 * MIB,
            memory_used_bytes: 3000 * MIB,
            share: 125,
            memory_driver_bytes: Some(3000 * MIB),
            memory_mismatch_bytes: None,
            compute_time: None,
            enforcement: "mig".into(),
            mig: Some(held(Some("MIG-1"))),
        }],
        mig: Some(mig()),
        ..gpus[0].clone()
    };
    gpus
}

#[test]
fn what_is_wrong_with_a_gpu_is_said_and_no_room_beside_it() {
    let mut gpus = gpus();
    let table = list(&gpus, Format::Table, 200, render::gpus);
    assert!(table.contains("up to 3g.20gb"), "{table}");
    let cut = gpus[0].mig.as_mut().expect("a GPU that is cut");
    for profile in &mut cut.profiles {
        profile.available = u8::from(profile.memory_slices == 1);
    }
    let table = list(&gpus, Format::Table, 200, render::gpus);
    assert!(!table.contains("1g.5gb+me"), "{table}");
    gpus[0].problem = Some("MIG mode turns on after a reset".into());
    let table = list(&gpus, Format::Table, 200, render::gpus);
    assert!(table.contains("after a reset"), "{table}");
    assert!(!table.contains("up to"), "{table}");
}

#[test]
fn what_other_daemons_hold_is_named_and_not_free() {
    let half = GpuHeldElsewhere {
        holder: "ana's daemon".into(),
        share: 500,
        memory_bytes: 40 << 30,
    };
    let mut shared = fixtures::gpus();
    shared.truncate(1);
    shared[0].held_elsewhere.push(half.clone());
    // The driver lists a process of ana's job, whose memory is part of what ana's daemon holds.
    shared[0].unmanaged_pids.push(4711);
    shared[0].available = Some(GpuAvailable {
        share: 500,
        memory_bytes: 39 << 30,
    });
    let table = list(&shared, Format::Table, 200, render::gpus);
    assert!(
        table.contains("0.5 (40.0 GiB) held by ana's daemon"),
        "{table}"
    );
    assert!(table.contains("0.5, 39."), "{table}");
    assert!(!table.contains("4711"), "{table}");
    let mut cut = gpus();
    cut[0].held_elsewhere.push(half);
    let table = list(&cut[..1], Format::Table, 200, render::gpus);
    assert!(!table.contains("up to"), "{table}");
}

fn held(uuid: Option<&str>) -> MigSlice {
    MigSlice {
        profile: "1g.10gb".into(),
        start: 6,
        memory_slices: 2,
        memory_bytes: 9856 * MIB,
        uuid: uuid.map(str::to_owned),
    }
}

/// A job on an instance.
fn job(request: Amount) -> Job {
    let mut job = fixtures::jobs().remove(1);
    let slice = Slice {
        label: "gpu0.1g.10gb@6".into(),
        gpu_uuid: UUID.into(),
        gpu_index: 0,
        memory_limit_bytes: 9856 * MIB,
        memory_used_bytes: 3000 * MIB,
        memory_peak_bytes: 4000 * MIB,
        share: 250,
        enforcement: "mig".into(),
        device_uuid: Some("MIG-00000006-0000-5000-8000-000000000000".into()),
        mig: Some(held(Some("MIG-00000006-0000-5000-8000-000000000000"))),
        denials: 0,
        last_denied_bytes: None,
        memory_mismatch_bytes: None,
        ..job.slices.remove(0)
    };
    Job {
        request,
        compute_time: None,
        slices: vec![slice],
        ..job
    }
}

#[test]
fn gpus_that_are_cut_show_what_lies_where() {
    let gpus = gpus();
    assert_snapshot!("gpus_120", list(&gpus, Format::Table, 120, render::gpus));
    assert_snapshot!("gpus_80", list(&gpus, Format::Table, 80, render::gpus));
    assert_snapshot!("gpus_wide", list(&gpus, Format::Wide, 80, render::gpus));
    assert_snapshot!(
        "gpus_json",
        list(&gpus[..1], Format::Json, 80, render::gpus)
    );
}

#[test]
fn the_map_has_a_dot_for_each_slice_that_nothing_lies_on() {
    let wide = list(&gpus(), Format::Wide, 80, render::gpus);
    assert!(
        wide.contains("[1g@0 #12][·][1g.10gb@2 unmanaged][3g@4 idle]"),
        "{wide}"
    );
    let mut gpus = gpus();
    let empty = gpus[0].mig.as_mut().expect("a GPU that is cut");
    empty.instances.clear();
    let wide = list(&gpus, Format::Wide, 80, render::gpus);
    assert!(wide.contains("[········]"), "{wide}");
}

#[test]
fn describe_says_what_an_instance_really_has() {
    let asked = job(Amount::Memory { bytes: 10 << 30 });
    assert_snapshot!("describe_memory", render::describe(&asked, view(80)));
    let named = Job {
        isolation: Isolation::Hardware,
        ..job(Amount::Mig {
            profile: "1g.10gb".into(),
        })
    };
    assert_snapshot!("describe_profile", render::describe(&named, view(80)));
    let mut starting = job(Amount::Share { thousandths: 250 });
    starting.memory_exact = true;
    starting.slices[0].mig = Some(held(None));
    let text = render::describe(&starting, view(80));
    assert!(
        text.contains("1g.10gb at memory slices 6-7 (not created yet)"),
        "{text}"
    );
}

#[test]
fn instances() {
    let mut instances = mig().instances;
    instances.push(instance("2g.10gb", 0, 2, 9856, MigState::Quarantined));
    instances.push(instance("2g.10gb", 2, 2, 9856, MigState::Destroying));
    instances.push(instance("1g.5gb", 6, 1, 4864, MigState::Creating));
    assert_snapshot!("ls", list(&instances, Format::Table, 80, render::instances));
    assert_snapshot!(
        "ls_wide",
        list(&instances, Format::Wide, 80, render::instances)
    );
    assert_snapshot!(
        "ls_json",
        list(&instances[..1], Format::Json, 80, render::instances)
    );
    assert_snapshot!(
        "ls_ndjson",
        list(&instances[..2], Format::Ndjson, 80, render::instances)
    );
    assert_snapshot!(
        "ls_name",
        list(&instances, Format::Name, 80, render::instances)
    );
}

#[test]
fn plans() {
    let planned = |profile: &str, start, slices, reuses, removes: &[&str]| MigPlanned {
        profile: profile.into(),
        gpu_uuid: UUID.into(),
        gpu_index: 0,
        start,
        memory_slices: slices,
        memory_bytes: 4864 * MIB * u64::from(slices),
        reuses,
        removes: removes.iter().map(ToString::to_string).collect(),
    };
    let planned = [
        planned("1g.5gb", 6, 1, true, &[]),
        planned("2g.10gb", 4, 2, false, &["1g.5gb@4", "1g.5gb@5"]),
        planned("4g.20gb", 0, 4, false, &[]),
    ];
    assert_snapshot!("plan", list(&planned, Format::Table, 80, render::planned));
    assert_snapshot!(
        "plan_wide",
        list(&planned, Format::Wide, 80, render::planned)
    );
    assert_snapshot!(
        "plan_json",
        list(&planned[1..2], Format::Json, 80, render::planned)
    );
    assert_snapshot!(
        "plan_name",
        list(&planned, Format::Name, 80, render::planned)
    );
}

#[test]
fn changes_of_mode() {
    let change = GpuChanged {
        gpu_uuid: UUID.into(),
        gpu_index: 0,
        from: GpuMode::Shared,
        mode: GpuMode::Mig,
        dry_run: true,
        steps: vec!["turn MIG mode on".into()],
        blockers: vec!["#12 holds gpu0.25a".into(), "pid 4711 uses the GPU".into()],
        remaining_steps: None,
    };
    let free = GpuChanged {
        blockers: Vec::new(),
        ..change.clone()
    };
    let done = GpuChanged {
        dry_run: false,
        remaining_steps: Some("reset the GPU: nvidia-smi -i 0 --gpu-reset".into()),
        ..free.clone()
    };
    let same = GpuChanged {
        from: GpuMode::Mig,
        steps: Vec::new(),
        ..free.clone()
    };
    let texts: String = [&change, &free, &done, &same].map(render::changed).concat();
    assert_snapshot!("change", texts);
    assert_snapshot!(
        "change_json",
        list(&[change], Format::Json, 80, |_, _| String::new())
    );
}

/// What a driver calls a profile, or a daemon a blocker, cannot move the cursor of who reads it.
#[test]
fn control_characters_are_shown_and_not_sent() {
    let mut gpus = gpus();
    let cut = gpus[0].mig.as_mut().expect("a GPU that is cut");
    for profile in &mut cut.profiles {
        profile.name = "1g\u{1b}[2J".into();
    }
    for instance in &mut cut.instances {
        instance.profile = "1g\u{1b}[2J".into();
        instance.uuid = Some("\u{7}".into());
        instance.job = Some("1\n2".into());
    }
    let instances = cut.instances.clone();
    let texts = [
        list(&gpus, Format::Wide, 80, render::gpus),
        list(&instances, Format::Wide, 80, render::instances),
        list(&instances, Format::Name, 80, render::instances),
    ];
    for text in texts {
        assert!(
            !text.replace('\n', "").chars().any(char::is_control),
            "{text:?}"
        );
    }
}

#[test]
fn tables_fit_the_terminal() {
    for width in [80, 100, 120, 200] {
        let tables = [
            list(&gpus(), Format::Table, width, render::gpus),
            list(&mig().instances, Format::Table, width, render::instances),
        ];
        for line in tables.iter().flat_map(|table| table.lines()) {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
    }
}
