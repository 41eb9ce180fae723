//! NVML: structures by version, lists, what is and what is not supported.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::nvml::*;

const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const VERSION_MISMATCH: u32 = 25;

fn watcher(machine: &Machine) -> Client {
    let mut client = machine.client();
    client.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &device"]);
    client
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[test]
fn memory_comes_in_two_versions_that_agree() {
    let machine = Machine::new("h100-80gb:1");
    let (mut client, mut watcher) = (machine.client(), watcher(&machine));
    client.start();
    client.ok(&["cuMemAlloc_v2 &a 1073741824"]);
    watcher.ok(&["nvmlDeviceGetMemoryInfo $device &one"]);
    assert_eq!(
        watcher.call("nvmlDeviceGetMemoryInfo_v2 $device &two"),
        VERSION_MISMATCH
    );
    watcher.set("two", struct_version::<nvmlMemory_v2_t>(2));
    watcher.ok(&["nvmlDeviceGetMemoryInfo_v2 $device &two"]);
    let (one, two) = (watcher.bytes("one"), watcher.bytes("two"));
    let [total, free, used] = [0, 8, 16].map(|at| word(&one, at));
    let [total_2, reserved, free_2, used_2] = [8, 16, 24, 32].map(|at| word(&two, at));
    assert_eq!((total, free), (total_2, free_2));
    assert_eq!((total, used), (81_559 * MIB, used_2 + reserved));
    assert_eq!(total, used + free);
    assert_eq!(used_2, (523 + 1024) * MIB);
    assert_eq!((free, total - reserved), client.memory());
}

#[test]
fn process_lists_come_in_three_versions_with_their_own_strides() {
    let machine = Machine::new("h100-80gb:2");
    let (mut one, mut two, mut watcher) = (machine.client(), machine.client(), watcher(&machine));
    one.start();
    two.start();
    two.ok(&["cuMemAlloc_v2 &a 1073741824"]);
    for (version, stride) in [
        ("", size_of::<nvmlProcessInfo_v1_t>()),
        ("_v2", size_of::<nvmlProcessInfo_v2_t>()),
        ("_v3", size_of::<nvmlProcessInfo_t>()),
    ] {
        let list = format!("nvmlDeviceGetComputeRunningProcesses{version} $device &count &list");
        watcher.set("count", 0u64);
        assert_eq!(watcher.call(&list), INSUFFICIENT_SIZE);
        assert_eq!(watcher.value("count"), 2);
        watcher.set("count", 1u64);
        assert_eq!(watcher.call(&list), INSUFFICIENT_SIZE);
        watcher.set("count", 7u64);
        watcher.ok(&[&list]);
        assert_eq!(watcher.value("count"), 2);
        let bytes = watcher.bytes("list");
        let entry = |at: usize| {
            (
                word(&bytes, at * stride) as u32,
                word(&bytes, at * stride + 8),
            )
        };
        assert_eq!(
            [entry(0), entry(1)],
            [(one.pid(), 523 * MIB), (two.pid(), 1547 * MIB)],
            "{version}"
        );
        if stride == 24 {
            assert_eq!(word(&bytes, 16), u64::MAX, "neither is in an instance");
        }
        watcher.set("count", 7u64);
        watcher.ok(&[&format!(
            "nvmlDeviceGetGraphicsRunningProcesses{version} $device &count &list"
        )]);
        assert_eq!(watcher.value("count"), 0);
    }
    one.kill();
    watcher.set("count", 7u64);
    watcher.ok(&["nvmlDeviceGetComputeRunningProcesses_v3 $device &count &list"]);
    assert_eq!(
        (watcher.value("count"), watcher.value("list") as u32),
        (1, two.pid())
    );
    watcher.ok(&["nvmlDeviceGetHandleByIndex_v2 1 &second"]);
    watcher.set("count", 7u64);
    watcher.ok(&["nvmlDeviceGetComputeRunningProcesses_v3 $second &count 0"]);
    assert_eq!(watcher.value("count"), 0);
}

#[test]
fn a_process_without_a_context_is_not_listed() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, mut watcher) = (machine.client(), watcher(&machine));
    client.ok(&["cuInit 0"]);
    watcher.set("count", 7u64);
    watcher.ok(&["nvmlDeviceGetComputeRunningProcesses_v3 $device &count &list"]);
    assert_eq!(watcher.value("count"), 0);
}

#[test]
fn devices_are_found_by_index_uuid_bus_and_serial() {
    let machine = Machine::new("a100-40gb:3");
    let mut watcher = watcher(&machine);
    watcher.ok(&[
        "nvmlDeviceGetCount_v2 &count",
        "nvmlDeviceGetHandleByIndex_v2 2 &third",
    ]);
    assert_eq!(watcher.value("count"), 3);
    let third = watcher.value("third");
    watcher.ok(&[
        "nvmlDeviceGetUUID $third &uuid 96",
        "nvmlDeviceGetHandleByUUID &uuid &found",
    ]);
    assert_eq!(watcher.value("found"), third);
    watcher.ok(&[
        "nvmlDeviceGetSerial $third &serial 30",
        "nvmlDeviceGetHandleBySerial &serial &found",
    ]);
    assert_eq!(watcher.value("found"), third);
    watcher.ok(&["nvmlDeviceGetPciInfo_v3 $third &pci"]);
    let info = watcher.bytes("pci");
    let text = |at: usize| {
        String::from_utf8_lossy(&info[at..])
            .split('\0')
            .next()
            .expect("text")
            .to_owned()
    };
    let (legacy, full) = (text(0), text(std::mem::offset_of!(nvmlPciInfo_t, busId)));
    assert_eq!(full, format!("0000{legacy}"));
    for bus in [&legacy, &full, &full.to_lowercase()] {
        watcher.ok(&[&format!(
            "nvmlDeviceGetHandleByPciBusId_v2 \"{bus}\" &found"
        )]);
        assert_eq!(watcher.value("found"), third);
    }
    assert_eq!(
        watcher
            .call("nvmlDeviceGetHandleByUUID \"GPU-00000000-0000-0000-0000-000000000000\" &found"),
        NOT_FOUND
    );
    assert_eq!(
        watcher.call("nvmlDeviceGetHandleByIndex_v2 3 &found"),
        INVALID_ARGUMENT
    );
    assert_eq!(
        watcher.call("nvmlDeviceGetName 1234 &name 96"),
        INVALID_ARGUMENT
    );
    assert_eq!(
        watcher.call("nvmlDeviceGetName $third &name 3"),
        INSUFFICIENT_SIZE
    );
}

#[test]
fn old_versions_of_pci_info_do_not_write_past_their_structure() {
    let machine = Machine::new("l4-24gb:1");
    let mut watcher = watcher(&machine);
    for call in ["nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2"] {
        watcher.set("pci", [0xaau8; 68]);
        watcher.ok(&[&format!("{call} $device &pci")]);
        let bytes = watcher.bytes("pci");
        assert_ne!(bytes[0], 0xaa);
        assert!(bytes[36..68].iter().all(|byte| *byte == 0xaa), "{call}");
    }
}

#[test]
fn server_boards_lack_fans_and_gaming_boards_lack_ecc_and_mig() {
    let server = Machine::new("h100-80gb:1");
    let mut watcher_of_server = watcher(&server);
    assert_eq!(
        watcher_of_server.call("nvmlDeviceGetFanSpeed $device &percent"),
        NOT_SUPPORTED
    );
    watcher_of_server.set("mode", u64::MAX);
    watcher_of_server.ok(&[
        "nvmlDeviceGetEccMode $device &a &b",
        "nvmlDeviceGetMigMode $device &mode &pending",
        "nvmlDeviceGetMaxMigDeviceCount $device &most",
    ]);
    assert_eq!(
        (
            watcher_of_server.value("mode") as u32,
            watcher_of_server.value("most")
        ),
        (0, 0)
    );
    assert_eq!(
        watcher_of_server.call("nvmlDeviceGetMigDeviceHandleByIndex $device 0 &mig"),
        NOT_FOUND
    );

    let gaming = Machine::new("rtx4090-24gb:1");
    let mut watcher = watcher(&gaming);
    watcher.ok(&["nvmlDeviceGetFanSpeed $device &percent"]);
    for order in [
        "nvmlDeviceGetEccMode $device &a &b",
        "nvmlDeviceGetMigMode $device &a &b",
        "nvmlDeviceGetSerial $device &serial 30",
    ] {
        assert_eq!(watcher.call(order), NOT_SUPPORTED, "{order}");
    }
}

#[test]
fn nvml_wants_to_be_initialised_and_counts_its_users() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    assert_eq!(
        [
            client.call("nvmlDeviceGetCount_v2 &count"),
            client.call("nvmlShutdown")
        ],
        [1, 1]
    );
    client.ok(&[
        "nvmlInit_v2",
        "nvmlInitWithFlags 0",
        "nvmlShutdown",
        "nvmlDeviceGetCount_v2 &count",
        "nvmlShutdown",
    ]);
    assert_eq!(client.call("nvmlDeviceGetCount_v2 &count"), 1);
}
