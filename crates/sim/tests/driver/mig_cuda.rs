//! CUDA on instances of a divided GPU.

use crate::launch::load;
use crate::machine::{Client, Environment, MIB, Machine};
use divvy_driver::sys::nvml::NO_INSTANCE;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NO_DEVICE: u32 = 100;
const NVML_NOT_SUPPORTED: u32 = 3;
const NVML_NO_PERMISSION: u32 = 4;
const NVML_IN_USE: u32 = 19;

/// An A100 with three whole instances: 3g at 4, and 1g at 0 and at 1, which are GPU instances 2, 7 and 8.
const THREE: &str = "context_mib = 300\n[mig]\nenabled = [0]\n\
    [[mig.instance]]\ngpu = 0\nprofile = '3g.20gb'\nstart = 4\n\
    [[mig.instance]]\ngpu = 0\nprofile = '1g.5gb'\nstart = 0\n\
    [[mig.instance]]\ngpu = 0\nprofile = '1g.5gb'\nstart = 1\n";
const INSTANCES: [u32; 3] = [2, 7, 8];

/// Bytes of the profile 1g.5gb, and of a context.
const SMALL: u64 = 4864 * MIB;
const CONTEXT: u64 = 300 * MIB;
const GIB: u64 = 1 << 30;

/// A program that has initialised NVML, with GPU 0's handle in `gpu` and those of its MIG devices in `mig0` and so on.
fn monitor(environment: &Environment<'_>) -> Client {
    let mut monitor = environment.client();
    monitor.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &gpu"]);
    for index in 0..3 {
        // Holes and indices beyond the last stay without a handle.
        let _ = monitor.call(&format!(
            "nvmlDeviceGetMigDeviceHandleByIndex $gpu {index} &mig{index}"
        ));
    }
    monitor
}

fn uuid(monitor: &mut Client, device: &str) -> String {
    monitor.ok(&[&format!("nvmlDeviceGetUUID ${device} &uuid 96")]);
    text(&monitor.bytes("uuid"))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).expect("an end");
    String::from_utf8(bytes[..end].to_vec()).expect("text")
}

/// What CUDA shows of a device.
#[derive(Debug, Clone, PartialEq)]
struct Shown {
    name: String,
    multiprocessors: u32,
    total: u64,
    /// The digits of both versions of its UUID.
    gpu: String,
    own: String,
}

fn shown(environment: &Environment<'_>) -> Vec<Shown> {
    let mut client = environment.client();
    match client.call("cuInit 0") {
        0 => {}
        NO_DEVICE => return Vec::new(),
        other => panic!("cuInit: {other}"),
    }
    client.ok(&["cuDeviceGetCount &count"]);
    let count = client.small_value("count");
    (0..count).map(|at| device(&mut client, at)).collect()
}

fn device(client: &mut Client, ordinal: u32) -> Shown {
    client.ok(&[
        &format!("cuDeviceGetName &name 200 {ordinal}"),
        &format!("cuDeviceGetAttribute &multiprocessors 16 {ordinal}"),
        &format!("cuDeviceTotalMem_v2 &total {ordinal}"),
        &format!("cuDeviceGetUuid &gpu {ordinal}"),
        &format!("cuDeviceGetUuid_v2 &own {ordinal}"),
    ]);
    let mut digits = |name| -> String {
        let bytes = client.bytes(name);
        bytes[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let (gpu, own) = (digits("gpu"), digits("own"));
    Shown {
        name: text(&client.bytes("name")),
        multiprocessors: client.small_value("multiprocessors"),
        total: client.value("total"),
        gpu,
        own,
    }
}

fn digits(uuid: &str) -> String {
    let digits = uuid.trim_start_matches("MIG-").trim_start_matches("GPU-");
    digits.replace('-', "")
}

/// The machine of [`THREE`], and the UUIDs of its MIG devices.
fn three() -> (Machine, [String; 3]) {
    let machine = Machine::new("a100-40gb:1");
    let mut monitor = monitor(&machine.with_config(THREE));
    let uuids = ["mig0", "mig1", "mig2"].map(|device| uuid(&mut monitor, device));
    (machine, uuids)
}

/// A program on one of them.
fn on(machine: &Machine, uuid: &str) -> Client {
    machine
        .with_config(THREE)
        .with("CUDA_VISIBLE_DEVICES", uuid)
        .client()
}

#[test]
fn a_process_has_one_device_of_each_gpu_instance_with_its_figures() {
    let (machine, uuids) = three();
    let shown = shown(&machine.with_config(THREE));
    let figures: Vec<_> = shown
        .iter()
        .map(|device| (device.name.as_str(), device.multiprocessors, device.total))
        .collect();
    let small = ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14, SMALL);
    let large = ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42, 19_968 * MIB);
    assert_eq!(figures, [large, small, small]);
    let own: Vec<&str> = shown.iter().map(|device| device.own.as_str()).collect();
    assert_eq!(own, uuids.each_ref().map(|uuid| digits(uuid)));
    let gpu = uuid(&mut monitor(&machine.with_config(THREE)), "gpu");
    assert!(shown.iter().all(|device| device.gpu == digits(&gpu)));
}

#[test]
fn instances_are_named_by_uuid_by_its_beginning_or_by_their_ids() {
    let (machine, uuids) = three();
    let gpu = uuid(&mut monitor(&machine.with_config(THREE)), "gpu");
    let own = |list: &str| -> Vec<String> {
        let environment = machine
            .with_config(THREE)
            .with("CUDA_VISIBLE_DEVICES", list);
        shown(&environment)
            .into_iter()
            .map(|device| device.own)
            .collect()
    };
    assert_eq!(own(&uuids[1]), [digits(&uuids[1])]);
    assert_eq!(own(&uuids[1][..20]), [digits(&uuids[1])]);
    assert_eq!(own(&format!("MIG-{gpu}/8/0")), [digits(&uuids[2])]);
    assert_eq!(own("2,0"), [digits(&uuids[2]), digits(&uuids[0])]);
    assert_eq!(
        own(&format!("{},MIG-{gpu}/9/0,{}", uuids[2], uuids[0])),
        [digits(&uuids[2])]
    );
    assert!(own("MIG-").is_empty() && own(&gpu).is_empty() && own("").is_empty());
}

#[test]
fn gpus_that_are_not_divided_stay_devices_beside_instances() {
    let machine = Machine::new("a100-40gb:2");
    let config =
        "[mig]\nenabled = [1]\n[[mig.instance]]\ngpu = 1\nprofile = '7g.40gb'\nstart = 0\n";
    let names: Vec<String> = shown(&machine.with_config(config))
        .into_iter()
        .map(|device| device.name)
        .collect();
    assert_eq!(
        names,
        ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB MIG 7g.40gb"]
    );
}

#[test]
fn a_divided_gpu_without_instances_is_no_device() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.with_config("[mig]\nenabled = [0]").client();
    assert_eq!(client.call("cuInit 0"), NO_DEVICE);
}

#[test]
fn memory_ends_at_the_gpu_instance_and_no_other_instance_is_touched() {
    let (machine, uuids) = three();
    let (mut one, mut two) = (on(&machine, &uuids[1]), on(&machine, &uuids[2]));
    one.start();
    two.start();
    assert_eq!(one.memory(), (SMALL - CONTEXT, SMALL));
    one.ok(&[&format!("cuMemAlloc_v2 &a {}", SMALL - CONTEXT - 2 * MIB)]);
    assert_eq!(
        one.call(&format!("cuMemAlloc_v2 &b {}", 4 * MIB)),
        OUT_OF_MEMORY
    );
    assert_eq!(one.memory().0, 2 * MIB);
    assert_eq!(two.memory(), (SMALL - CONTEXT, SMALL));
    two.ok(&[&format!("cuMemAlloc_v2 &a {GIB}")]);

    let mut monitor = monitor(&machine.with_config(THREE));
    let mut memory = |device: &str| {
        monitor.ok(&[&format!("nvmlDeviceGetMemoryInfo ${device} &memory")]);
        let bytes = monitor.bytes("memory");
        let word =
            |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (word(0), word(8), word(16))
    };
    assert_eq!(memory("mig1"), (SMALL, 2 * MIB, SMALL - 2 * MIB));
    assert_eq!(
        memory("mig2"),
        (SMALL, SMALL - CONTEXT - GIB, CONTEXT + GIB)
    );
    let reserved = 623 * MIB;
    let used = reserved + SMALL - 2 * MIB + CONTEXT + GIB;
    assert_eq!(memory("gpu"), (40_960 * MIB, 40_960 * MIB - used, used));
    one.kill();
    assert_eq!(memory("mig1"), (SMALL, SMALL, 0));
}

#[test]
fn processes_are_listed_with_their_instances() {
    let (machine, uuids) = three();
    let (mut one, mut two) = (on(&machine, &uuids[1]), on(&machine, &uuids[2]));
    one.start();
    two.start();
    one.ok(&[&format!("cuMemAlloc_v2 &a {GIB}")]);
    let mut monitor = monitor(&machine.with_config(THREE));
    let mut listed = |device: &str| {
        monitor.set("count", 8u64);
        monitor.ok(&[&format!(
            "nvmlDeviceGetComputeRunningProcesses_v3 ${device} &count &list"
        )]);
        let (count, bytes) = (monitor.small_value("count"), monitor.bytes("list"));
        let entries = bytes.chunks(24).take(count as usize);
        let entry = |entry: &[u8]| {
            let word = |at: usize| u32::from_ne_bytes(entry[at..at + 4].try_into().expect("four"));
            let used = u64::from_ne_bytes(entry[8..16].try_into().expect("eight"));
            (word(0), used, word(16), word(20))
        };
        entries.map(entry).collect::<Vec<_>>()
    };
    let first = (one.pid(), CONTEXT + GIB, INSTANCES[1], 0);
    let second = (two.pid(), CONTEXT, INSTANCES[2], 0);
    assert_eq!(listed("mig0"), []);
    assert_eq!(listed("mig1"), [first]);
    assert_eq!(listed("mig2"), [second]);
    assert_eq!(listed("gpu"), [first, second]);
    assert!(listed("gpu").iter().all(|entry| entry.2 != NO_INSTANCE));
}

#[test]
fn the_utilisation_of_a_divided_gpu_is_unknown() {
    let (machine, _) = three();
    let mut monitor = monitor(&machine.with_config(THREE));
    for device in ["gpu", "mig1"] {
        for call in [
            "nvmlDeviceGetUtilizationRates $DEVICE &a",
            "nvmlDeviceGetEncoderUtilization $DEVICE &a &b",
            "nvmlDeviceGetDecoderUtilization $DEVICE &a &b",
            "nvmlDeviceGetProcessUtilization $DEVICE &a &b 0",
            "nvmlDeviceGetSamples $DEVICE 1 0 &a &b 0",
            "nvmlDeviceGetNumGpuCores $DEVICE &a",
        ] {
            let call = call.replace("DEVICE", device);
            assert_eq!(monitor.call(&call), NVML_NOT_SUPPORTED, "{call}");
        }
    }
    monitor.ok(&["nvmlDeviceGetPowerUsage $gpu &a"]);
}

#[test]
fn all_of_a_divided_gpu_is_for_processes_that_may_watch_it() {
    let (machine, _) = three();
    let root = machine.path("root");
    let environment = machine.with_config(&format!("unprivileged = true\n{THREE}"));
    let calls = |environment: &Environment<'_>| {
        let mut monitor = monitor(environment);
        monitor.set("count", 0u64);
        [
            "nvmlDeviceGetMemoryInfo $gpu &a",
            "nvmlDeviceGetComputeRunningProcesses_v3 $gpu &count &a",
            "nvmlDeviceGetMemoryInfo $mig0 &a",
        ]
        .map(|call| monitor.call(call))
    };
    assert_eq!(calls(&environment), [0; 3]);
    let environment = environment.with("DIVVY_SIM_ROOT", root.to_str().expect("text"));
    assert_eq!(calls(&environment), [0; 3]);
    std::fs::remove_file(root.join("dev/nvidia-caps/nvidia-cap2")).expect("there");
    let config = format!("unprivileged = true\n{THREE}");
    let config = config.replace("enabled = [0]", "enabled = [0]\nwithout_modprobe = true");
    let without = machine
        .with_config(&config)
        .with("DIVVY_SIM_ROOT", root.to_str().expect("text"));
    let denied = NVML_NO_PERMISSION;
    assert_eq!(calls(&without), [denied, denied, 0]);
}

/// Programs that have launched ten kernels of 5 ms each on their devices; how long it took each, in milliseconds.
fn together(machine: &Machine, uuids: &[&str]) -> Vec<f32> {
    let config = format!("clock = 'virtual'\n{THREE}");
    let client = |uuid: &&str| {
        let environment = machine.with_config(&config);
        environment.with("CUDA_VISIBLE_DEVICES", uuid).client()
    };
    let mut clients: Vec<Client> = uuids.iter().map(client).collect();
    for client in &mut clients {
        client.start();
        load(client, machine);
        client.ok(&[
            "cuModuleGetFunction &kernel $module \"sim_busy_ms_5\"",
            "cuEventCreate &begin 0",
            "cuEventCreate &end 0",
        ]);
    }
    // Time stands still until all of them wait.
    for client in &mut clients {
        client.ok(&[
            "cuEventRecord $begin 0",
            "again 10 cuLaunchKernel $kernel 1 1 1 1 1 1 0 0 0 0",
            "cuEventRecord $end 0",
        ]);
    }
    // Whoever is done gives its context back, or it would stop the clock for the others.
    let orders = [
        "cuEventSynchronize $end",
        "cuEventElapsedTime &ms $begin $end",
        "cuDevicePrimaryCtxReset_v2 0",
    ];
    for client in &mut clients {
        orders.iter().for_each(|order| client.tell(order));
    }
    let mut took = Vec::new();
    for mut client in clients {
        for order in orders {
            assert_eq!(client.answer(), "0", "{order}");
        }
        let bytes = client.bytes("ms");
        took.push(f32::from_ne_bytes(bytes[..4].try_into().expect("four")));
    }
    took
}

#[test]
fn compute_instances_work_at_once_and_processes_in_one_take_turns() {
    let machine = Machine::new("a100-40gb:1");
    let config = format!("clock = 'virtual'\n{THREE}");
    let mut monitor = monitor(&machine.with_config(&config));
    let uuids = ["mig0", "mig1", "mig2"].map(|device| uuid(&mut monitor, device));
    let [large, one, two] = uuids.each_ref().map(String::as_str);
    assert_eq!(together(&machine, &[large, one, two]), [50.0; 3]);
    let shared = together(&machine, &[one, one, two]);
    assert_eq!(shared[2], 50.0);
    assert!(shared[0] > 90.0 && shared[1] > 90.0, "{shared:?}");
}

/// Makes compute instances of one slice in GPU instance 2, in place of the one that has all of it; their handles are
/// `part0` and `part1`.
fn split(monitor: &mut Client) {
    monitor.ok(&[
        "nvmlDeviceGetGpuInstanceById $gpu 2 &instance",
        "nvmlGpuInstanceGetComputeInstanceById $instance 0 &whole",
        "nvmlComputeInstanceDestroy $whole",
        "nvmlGpuInstanceCreateComputeInstance $instance 0 &part0",
        "nvmlGpuInstanceCreateComputeInstance $instance 0 &part1",
    ]);
}

#[test]
fn compute_instances_of_one_gpu_instance_share_its_memory_and_a_process_has_one_of_them() {
    let (machine, _) = three();
    let mut monitor = monitor(&machine.with_config(THREE));
    split(&mut monitor);
    let gpu = uuid(&mut monitor, "gpu");
    let names = |list: Option<&str>| {
        let environment = machine.with_config(THREE);
        let environment = match list {
            Some(list) => environment.with("CUDA_VISIBLE_DEVICES", list),
            None => environment,
        };
        let names = shown(&environment).into_iter();
        names
            .map(|device| {
                (
                    device.name.replace("NVIDIA A100-SXM4-40GB MIG ", ""),
                    device.own,
                )
            })
            .collect::<Vec<_>>()
    };
    let all: Vec<String> = names(None).into_iter().map(|(name, _)| name).collect();
    assert_eq!(all, ["1c.3g.20gb", "1g.5gb", "1g.5gb"]);
    let (first, second) = (format!("MIG-{gpu}/2/0"), format!("MIG-{gpu}/2/1"));
    let one = names(Some(&first));
    let other = names(Some(&second));
    assert_ne!(one, other);
    assert_eq!(names(Some(&format!("{second},{first}"))), other);

    let (mut one, mut two) = (on(&machine, &first), on(&machine, &second));
    one.start();
    two.start();
    one.ok(&[&format!("cuMemAlloc_v2 &a {GIB}")]);
    let total = 19_968 * MIB;
    assert_eq!(two.memory(), (total - 2 * CONTEXT - GIB, total));
}

#[test]
fn an_instance_cannot_be_destroyed_while_a_process_has_it_for_a_device() {
    let (machine, uuids) = three();
    let mut monitor = monitor(&machine.with_config(THREE));
    monitor.ok(&[
        "nvmlDeviceGetGpuInstanceById $gpu 7 &instance",
        "nvmlGpuInstanceGetComputeInstanceById $instance 0 &compute",
    ]);
    let (mut here, mut elsewhere) = (on(&machine, &uuids[1]), on(&machine, &uuids[2]));
    here.ok(&["cuInit 0"]);
    elsewhere.start();
    assert_eq!(
        monitor.call("nvmlComputeInstanceDestroy $compute"),
        NVML_IN_USE
    );
    here.kill();
    monitor.ok(&[
        "nvmlComputeInstanceDestroy $compute",
        "nvmlGpuInstanceDestroy $instance",
    ]);
    elsewhere.ok(&[&format!("cuMemAlloc_v2 &a {GIB}")]);
}

#[test]
fn instances_reach_no_peer_and_share_memory_with_themselves_alone() {
    let (machine, uuids) = three();
    let mut all = machine.with_config(THREE).client();
    all.ok(&["cuInit 0", "cuDeviceCanAccessPeer &can 0 1"]);
    assert_eq!(all.small_value("can"), 0);
    all.ok(&["cuDeviceGetAttribute &set_aside 108 0"]);
    assert_eq!(all.small_value("set_aside"), 0);

    let mut maker = on(&machine, &uuids[1]);
    maker.start();
    maker.ok(&[
        &format!("cuMemAlloc_v2 &a {GIB}"),
        "cuIpcGetMemHandle &handle $a",
    ]);
    let handle: String = maker.bytes("handle")[..64]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let opens = |uuid: &str| {
        let mut importer = on(&machine, uuid);
        importer.start();
        importer.ok(&[&format!("bytes handle {handle}")]);
        importer.call("cuIpcOpenMemHandle_v2 &p 1 0 0 0 0 %handle")
    };
    assert_eq!(opens(&uuids[1]), 0);
    assert_ne!(opens(&uuids[2]), 0);
    assert_eq!(maker.call("cuMemAlloc_v2 &nothing 0"), INVALID_VALUE);
}

#[test]
fn what_the_info_of_a_compute_instance_names_is_the_gpu_unless_it_is_configured() {
    let (machine, uuids) = three();
    let named = |config: &str| {
        let mut monitor = monitor(&machine.with_config(config));
        monitor.ok(&[
            "nvmlDeviceGetGpuInstanceById $gpu 7 &instance",
            "nvmlGpuInstanceGetComputeInstanceById $instance 0 &compute",
            "nvmlComputeInstanceGetInfo_v2 $compute &info",
        ]);
        let device = monitor.value("info");
        monitor.ok(&[&format!("nvmlDeviceGetUUID {device} &named 96")]);
        (text(&monitor.bytes("named")), uuid(&mut monitor, "gpu"))
    };
    let (device, gpu) = named(THREE);
    assert_eq!(device, gpu);
    let otherwise = THREE.replace("[mig]", "[mig]\ninfo_names_mig_device = true");
    assert_eq!(named(&otherwise).0, uuids[1]);
}

/// What a capability file says.
fn said(path: &std::path::Path) -> [u32; 3] {
    let text = std::fs::read_to_string(path).expect("there");
    let number = |line: &str| line.split(": ").nth(1)?.parse().ok();
    let numbers: Vec<u32> = text.lines().filter_map(number).collect();
    numbers.try_into().expect("three lines")
}

#[test]
fn capability_files_have_the_drivers_minors_and_modes() {
    use std::os::unix::fs::PermissionsExt;
    let machine = Machine::new("a100-40gb:1");
    let root = machine.path("root");
    let environment = machine
        .with_config(
            "[mig]\nenabled = [0]\n[[mig.instance]]\ngpu = 0\nprofile = '3g.20gb'\nstart = 0\n",
        )
        .with("DIVVY_SIM_ROOT", root.to_str().expect("text"));
    let mut monitor = monitor(&environment);
    let caps = root.join("proc/driver/nvidia/capabilities");
    let nodes = root.join("dev/nvidia-caps");
    let mode = |minor: u32| {
        let node = nodes.join(format!("nvidia-cap{minor}"));
        node.metadata().expect("there").permissions().mode() & 0o777
    };
    assert_eq!(said(&caps.join("mig/config")), [1, 0o400, 1]);
    assert_eq!(said(&caps.join("mig/monitor")), [2, 0o444, 1]);
    assert_eq!((mode(1), mode(2)), (0o400, 0o444));
    // A 3g at the left is GPU instance 1.
    assert_eq!(said(&caps.join("gpu0/mig/gi1/access")), [12, 0o444, 1]);
    assert_eq!(said(&caps.join("gpu0/mig/gi1/ci0/access")), [13, 0o444, 1]);
    assert_eq!((mode(12), mode(13)), (0o444, 0o444));
    let minors = std::fs::read_to_string(root.join("proc/driver/nvidia-caps/mig-minors"));
    let minors = minors.expect("there");
    for line in [
        "config 1",
        "monitor 2",
        "gpu0/gi1/access 12",
        "gpu0/gi1/ci0/access 13",
        "gpu0/gi1/ci1/access 14",
        "gpu0/gi1/ci2/access 15",
        "gpu31/gi14/ci7/access 4322",
    ] {
        assert!(minors.lines().any(|found| found == line), "{line}");
    }

    monitor.ok(&[
        "nvmlDeviceGetGpuInstanceById $gpu 1 &instance",
        "nvmlGpuInstanceGetComputeInstanceById $instance 0 &compute",
        "nvmlComputeInstanceDestroy $compute",
    ]);
    assert!(!caps.join("gpu0/mig/gi1/ci0").exists() && caps.join("gpu0/mig/gi1/access").exists());
    monitor.ok(&["nvmlGpuInstanceDestroy $instance"]);
    assert!(!caps.join("gpu0/mig/gi1").exists());
}

#[test]
fn an_instance_without_device_files_or_the_right_to_open_them_cannot_be_used() {
    let (machine, uuids) = three();
    let root = machine.path("root");
    let folder = root.to_str().expect("text");
    // Nobody has run nvidia-modprobe.
    let config = THREE.replace("enabled = [0]", "enabled = [0]\nwithout_modprobe = true");
    let environment = |uuid: &str| {
        machine
            .with_config(&config)
            .with("DIVVY_SIM_ROOT", folder)
            .with("CUDA_VISIBLE_DEVICES", uuid)
    };
    drop(monitor(&environment("")));
    let init = |uuid: &str| environment(uuid).client().call("cuInit 0");
    assert_eq!(init(&uuids[1]), NO_DEVICE);
    let nodes = root.join("dev/nvidia-caps");
    std::fs::create_dir_all(&nodes).expect("a folder");
    let caps = root.join("proc/driver/nvidia/capabilities/gpu0/mig/gi7");
    let [gpu_instance, _, _] = said(&caps.join("access"));
    let [compute_instance, _, _] = said(&caps.join("ci0/access"));
    let node = |minor| nodes.join(format!("nvidia-cap{minor}"));
    std::fs::write(node(gpu_instance), "").expect("written");
    assert_eq!(init(&uuids[1]), NO_DEVICE, "both rights are needed");
    std::fs::write(node(compute_instance), "").expect("written");
    assert_eq!(init(&uuids[1]), 0);
    assert_eq!(
        init(&uuids[2]),
        NO_DEVICE,
        "the other instance's are its own"
    );
    // Without the variable, what may be used is there.
    let all = machine.with_config(&config).with("DIVVY_SIM_ROOT", folder);
    assert_eq!(shown(&all).len(), 1);
    // SAFETY: has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        use std::os::unix::fs::PermissionsExt;
        let closed = std::fs::Permissions::from_mode(0o0);
        std::fs::set_permissions(node(compute_instance), closed).expect("ours");
        assert_eq!(init(&uuids[1]), NO_DEVICE);
    }
}

#[test]
fn an_instance_made_again_is_the_same_device() {
    let (machine, uuids) = three();
    let mut monitor = monitor(&machine.with_config(THREE));
    monitor.ok(&[
        "nvmlDeviceGetGpuInstanceById $gpu 8 &instance",
        "nvmlGpuInstanceGetComputeInstanceById $instance 0 &compute",
        "nvmlComputeInstanceDestroy $compute",
        "nvmlGpuInstanceDestroy $instance",
    ]);
    assert_eq!(on(&machine, &uuids[2]).call("cuInit 0"), NO_DEVICE);
    monitor.ok(&["bytes at 0100000001000000"]);
    monitor.ok(&[
        "nvmlDeviceCreateGpuInstanceWithPlacement $gpu 19 &at &instance",
        "nvmlGpuInstanceCreateComputeInstance $instance 0 &compute",
    ]);
    assert_eq!(on(&machine, &uuids[2]).call("cuInit 0"), 0);
}
