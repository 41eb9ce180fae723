//! Memory in several processes: interprocess handles, pools, descriptors. What one writes the other reads, and the GPU
//! counts it once.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;
use divvy_driver::sys::nvml::nvmlProcessInfo_v2_t;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;

/// An L4's context.
const CONTEXT: u64 = 262 * MIB;

const OPEN: &str = "cuIpcOpenMemHandle_v2 &p 1 0 0 0 0 %handle";

fn started(machine: &Machine) -> Client {
    let mut client = machine.client();
    client.start();
    client
}

/// Gives a variable of one program to another.
fn hand_over(from: &mut Client, to: &mut Client, name: &str) {
    let bytes: [u8; 64] = from.bytes(name)[..64].try_into().expect("64 bytes");
    to.set(name, bytes);
}

/// Opens a descriptor of another program's in this one, as one sent over a socket would be.
fn receive(from: &mut Client, to: &mut Client, name: &str) -> u32 {
    let path = format!("/proc/{}/fd/{}", from.pid(), from.small_value(name));
    to.call(&format!("open \"{path}\" 2"))
}

#[track_caller]
fn read_byte(client: &mut Client, address: &str) -> u8 {
    client.ok(&[&format!("cuMemcpyDtoH_v2 &byte {address} 1")]);
    client.bytes("byte")[0]
}

/// Bytes that NVML shows for each process.
fn rows(client: &mut Client) -> Vec<(u32, u64)> {
    client.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &device"]);
    client.set("count", 8u64);
    client.ok(&["nvmlDeviceGetComputeRunningProcesses_v3 $device &count &list"]);
    let (count, bytes) = (client.value("count") as usize, client.bytes("list"));
    let row = |at: usize| {
        let row = &bytes[at * size_of::<nvmlProcessInfo_v2_t>()..];
        let word = |at: usize| u64::from_ne_bytes(row[at..at + 8].try_into().expect("8"));
        (word(0) as u32, word(8))
    };
    (0..count).map(row).collect()
}

fn used_by(client: &mut Client, pid: u32) -> Option<u64> {
    let rows = rows(client);
    let row = rows.into_iter().find(|(row, _)| *row == pid);
    row.map(|(_, used)| used)
}

#[test]
fn a_handle_shows_the_same_bytes_in_another_process() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    let free = maker.memory().0;
    maker.ok(&[
        "cuMemAlloc_v2 &a 4194304",
        "cuMemsetD8_v2 $a 42 4194304",
        "cuIpcGetMemHandle &handle $a",
    ]);
    assert_eq!(read_byte(&mut maker, "$a"), 42, "kept through the export");
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[OPEN]);
    assert_eq!(read_byte(&mut importer, "$p"), 42);
    importer.ok(&["cuMemsetD8_v2 $p 7 4194304"]);
    assert_eq!(read_byte(&mut maker, "$a"), 7);
    let last = maker.value("a") + 4_194_303;
    assert_eq!(read_byte(&mut maker, &last.to_string()), 7);

    assert_eq!(free - importer.memory().0, 4 * MIB, "counted once");
    let (maker_pid, importer_pid) = (maker.pid(), importer.pid());
    assert_eq!(used_by(&mut importer, maker_pid), Some(CONTEXT + 4 * MIB));
    assert_eq!(used_by(&mut importer, importer_pid), Some(CONTEXT));

    importer.ok(&["cuIpcCloseMemHandle $p"]);
    assert_eq!(importer.call("cuMemcpyDtoH_v2 &byte $p 1"), INVALID_VALUE);
    assert_eq!(importer.call("cuIpcCloseMemHandle $p"), INVALID_VALUE);
    assert_eq!(free - importer.memory().0, 4 * MIB, "the maker has it");
    maker.ok(&["cuMemFree_v2 $a"]);
    assert_eq!(importer.memory().0, free);
}

#[test]
fn small_neighbours_are_shared_with_their_block_and_stay_what_they_are() {
    let machine = Machine::new("a100-40gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    maker.ok(&[
        "cuMemAlloc_v2 &a 512",
        "cuMemAlloc_v2 &b 512",
        "cuMemAlloc_v2 &c 512",
        "cuMemsetD8_v2 $a 1 512",
        "cuMemsetD8_v2 $b 2 512",
        "cuMemsetD8_v2 $c 3 512",
        "cuIpcGetMemHandle &handle $b",
    ]);
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[OPEN]);
    assert_eq!(read_byte(&mut importer, "$p"), 2);
    assert_eq!(read_byte(&mut maker, "$a"), 1);
    assert_eq!(read_byte(&mut maker, "$c"), 3);
    let beyond = importer.value("p") + 512;
    assert_eq!(
        importer.call(&format!("cuMemcpyDtoH_v2 &byte {beyond} 1")),
        INVALID_VALUE,
        "not what was opened"
    );
    // A second one of the same block.
    maker.ok(&["cuIpcGetMemHandle &handle $c"]);
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[
        "cuIpcOpenMemHandle_v2 &q 1 0 0 0 0 %handle",
        "cuMemsetD8_v2 $q 9 512",
    ]);
    assert_eq!(read_byte(&mut maker, "$c"), 9);
    assert_eq!(read_byte(&mut importer, "$p"), 2);
}

#[test]
fn what_is_open_outlives_its_maker_and_what_is_not_does_not() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer, mut late) =
        (started(&machine), started(&machine), started(&machine));
    let free = importer.memory().0;
    maker.ok(&[
        "cuMemAlloc_v2 &a 8388608",
        "cuMemAlloc_v2 &unopened 8388608",
        "cuMemsetD8_v2 $a 5 8388608",
        "cuIpcGetMemHandle &handle $a",
    ]);
    for other in [&mut importer, &mut late] {
        hand_over(&mut maker, other, "handle");
    }
    importer.ok(&[OPEN]);
    maker.kill();
    assert_eq!(free + CONTEXT - importer.memory().0, 8 * MIB);
    assert_eq!(read_byte(&mut importer, "$p"), 5);
    assert_eq!(late.call(OPEN), INVALID_HANDLE, "nobody to open it from");
    assert_eq!(free + CONTEXT - importer.memory().0, 8 * MIB);
    importer.ok(&["cuIpcCloseMemHandle $p"]);
    assert_eq!(importer.memory().0, free + CONTEXT);
}

#[test]
fn freed_by_its_maker_it_stays_while_it_is_open() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    let free = importer.memory().0;
    maker.ok(&[
        "cuMemAlloc_v2 &a 4194304",
        "cuMemsetD8_v2 $a 5 4194304",
        "cuIpcGetMemHandle &handle $a",
    ]);
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[OPEN]);
    maker.ok(&[
        "cuMemFree_v2 $a",
        "cuMemAlloc_v2 &b 4194304",
        "cuMemsetD8_v2 $b 6 4194304",
    ]);
    assert_eq!(free - importer.memory().0, 8 * MIB);
    assert_eq!(
        read_byte(&mut importer, "$p"),
        5,
        "not what came to its place"
    );
    importer.kill();
    assert_eq!(free + CONTEXT - maker.memory().0, 4 * MIB);
}

#[test]
fn opened_twice_it_is_closed_twice() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    maker.ok(&["cuMemAlloc_v2 &a 1048576", "cuIpcGetMemHandle &handle $a"]);
    let first = maker.bytes("handle");
    maker.ok(&["cuIpcGetMemHandle &handle $a"]);
    assert_eq!(maker.bytes("handle")[..64], first[..64]);
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[OPEN, "cuIpcOpenMemHandle_v2 &q 1 0 0 0 0 %handle"]);
    assert_eq!(importer.value("p"), importer.value("q"));
    importer.ok(&["cuIpcCloseMemHandle $p", "cuMemsetD8_v2 $p 1 1048576"]);
    importer.ok(&["cuIpcCloseMemHandle $p"]);
    assert_eq!(importer.call("cuMemsetD8_v2 $p 1 1048576"), INVALID_VALUE);
    // The end of the context closes it too.
    importer.ok(&[OPEN, "cuDevicePrimaryCtxReset_v2 0"]);
    importer.start();
    importer.ok(&[OPEN, "cuIpcCloseMemHandle $p"]);
}

#[test]
fn handles_of_what_cannot_be_shared_and_of_nothing_are_refused() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    maker.ok(&[
        "cuMemAlloc_v2 &a 1048576",
        "cuMemAllocAsync &pooled 1048576 0",
        "cuMemAllocManaged &managed 1048576 1",
        "cuMemHostAlloc &host 1048576 0",
    ]);
    for order in [
        "cuIpcGetMemHandle &handle $pooled",
        "cuIpcGetMemHandle &handle $managed",
        "cuIpcGetMemHandle &handle $host",
        "cuIpcGetMemHandle &handle 0",
        "cuIpcGetMemHandle &handle 18446744073709551615",
        "cuIpcGetMemHandle 0 $a",
    ] {
        assert_eq!(maker.call(order), INVALID_VALUE, "{order}");
    }
    maker.ok(&["cuIpcGetMemHandle &handle $a"]);
    assert_eq!(maker.call(OPEN), INVALID_CONTEXT, "its own");
    hand_over(&mut maker, &mut importer, "handle");
    assert_eq!(
        importer.call("cuIpcOpenMemHandle_v2 &p 0 0 0 0 0 %handle"),
        INVALID_VALUE
    );
    assert_eq!(
        importer.call("cuIpcOpenMemHandle_v2 0 1 0 0 0 0 %handle"),
        INVALID_VALUE
    );
    importer.set("garbage", [0xa5u8; 64]);
    assert_eq!(
        importer.call("cuIpcOpenMemHandle_v2 &p 1 0 0 0 0 %garbage"),
        INVALID_HANDLE
    );
    maker.ok(&["cuMemFree_v2 $a"]);
    assert_eq!(importer.call(OPEN), INVALID_HANDLE, "freed");
    for pointer in ["0", "4096", "18446744073709551615"] {
        let close = format!("cuIpcCloseMemHandle {pointer}");
        assert_eq!(importer.call(&close), INVALID_VALUE);
    }
}

#[test]
fn importers_can_be_shown_with_what_they_import() {
    let machine = Machine::new("l4-24gb:1");
    let mut maker = started(&machine);
    let mut importer = machine.with_config("charge_imports = true").client();
    importer.start();
    let free = importer.memory().0;
    maker.ok(&["cuMemAlloc_v2 &a 4194304", "cuIpcGetMemHandle &handle $a"]);
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[OPEN]);
    let (maker_pid, importer_pid) = (maker.pid(), importer.pid());
    assert_eq!(
        used_by(&mut importer, importer_pid),
        Some(CONTEXT + 4 * MIB)
    );
    assert_eq!(used_by(&mut importer, maker_pid), Some(CONTEXT + 4 * MIB));
    assert_eq!(
        used_by(&mut maker, importer_pid),
        Some(CONTEXT),
        "as configured there"
    );
    assert_eq!(free - importer.memory().0, 4 * MIB);
}

/// Makes a memory pool that can be exported, as `$pool`.
pub fn shareable_pool(client: &mut Client) {
    client.set(
        "properties",
        CUmemPoolProps {
            allocType: CUmemAllocationType::PINNED,
            handleTypes: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            location: CUmemLocation {
                type_: CUmemLocationType::DEVICE,
                id: 0,
            },
            ..Default::default()
        },
    );
    client.ok(&["cuMemPoolCreate &pool &properties"]);
}

#[test]
fn pieces_of_an_exported_pool_are_read_in_another_process() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    let free = importer.memory().0;
    shareable_pool(&mut maker);
    maker.ok(&[
        "cuMemAllocFromPoolAsync &first 1000 $pool 0",
        "cuMemPoolExportToShareableHandle &fd $pool 1 0",
        "cuMemAllocFromPoolAsync &a 1000000 $pool 0",
        "cuMemsetD8_v2 $a 42 1000000",
        "cuMemPoolExportPointer &data $a",
    ]);
    assert_eq!(free - importer.memory().0, 32 * MIB, "a segment");
    let fd = receive(&mut maker, &mut importer, "fd");
    importer.ok(&[&format!(
        "cuMemPoolImportFromShareableHandle &pool {fd} 1 0"
    )]);
    hand_over(&mut maker, &mut importer, "data");
    importer.ok(&["cuMemPoolImportPointer &p $pool &data"]);
    assert_eq!(read_byte(&mut importer, "$p"), 42);
    let last = importer.value("p") + 999_999;
    assert_eq!(read_byte(&mut importer, &last.to_string()), 42);
    importer.ok(&["cuMemsetD8_v2 $p 9 1000000"]);
    assert_eq!(read_byte(&mut maker, "$a"), 9);
    assert_eq!(free - importer.memory().0, 32 * MIB);
    assert_eq!(
        importer.call("cuMemAllocFromPoolAsync &q 512 $pool 0"),
        INVALID_VALUE,
        "nothing can be taken from an imported pool"
    );
    assert_eq!(importer.call("cuDeviceSetMemPool 0 $pool"), INVALID_VALUE);

    // It grows and shrinks as one.
    maker.ok(&["cuMemAllocFromPoolAsync &b 67108864 $pool 0"]);
    assert_eq!(free - importer.memory().0, 96 * MIB);
    maker.ok(&["cuMemFreeAsync $b 0", "cuMemPoolTrimTo $pool 0"]);
    assert_eq!(free - importer.memory().0, 32 * MIB);

    importer.ok(&["cuMemPoolDestroy $pool"]);
    assert_eq!(read_byte(&mut importer, "$p"), 9, "the pointer stays");
    maker.kill();
    assert_eq!(free + CONTEXT - importer.memory().0, 32 * MIB);
    importer.ok(&["cuMemFreeAsync $p 0"]);
    assert_eq!(importer.memory().0, free + CONTEXT);
    assert_eq!(importer.call("cuMemFree_v2 $p"), INVALID_VALUE);
}

#[test]
fn an_exported_pool_cannot_outgrow_the_gpu_and_goes_when_it_is_destroyed() {
    let machine = Machine::new("l4-24gb:1");
    let mut maker = started(&machine);
    let free = maker.memory().0;
    shareable_pool(&mut maker);
    maker.ok(&[
        "cuMemPoolExportToShareableHandle &fd $pool 1 0",
        "cuMemAllocFromPoolAsync &a 17179869184 $pool 0",
    ]);
    assert_eq!(
        maker.call("cuMemAllocFromPoolAsync &b 17179869184 $pool 0"),
        OUT_OF_MEMORY
    );
    assert_eq!(free - maker.memory().0, 16 << 30);
    maker.ok(&["cuMemPoolDestroy $pool", "cuMemFreeAsync $a 0"]);
    assert_eq!(maker.memory().0, free);
}

#[test]
fn mistakes_with_pools_are_invalid_values() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = started(&machine);
    shareable_pool(&mut client);
    client.ok(&[
        "cuMemAllocFromPoolAsync &a 512 $pool 0",
        "cuDeviceGetDefaultMemPool &default 0",
        "cuMemAllocAsync &d 512 0",
    ]);
    for order in [
        "cuMemPoolExportPointer &data $a",
        "cuMemPoolExportPointer &data $d",
        "cuMemPoolExportPointer &data 0",
        "cuMemPoolExportPointer 0 $a",
        "cuMemPoolExportToShareableHandle &fd $default 1 0",
        "cuMemPoolExportToShareableHandle &fd $pool 1 1",
        "cuMemPoolExportToShareableHandle &fd $pool 8 0",
        "cuMemPoolExportToShareableHandle &fd 0 1 0",
        "cuMemPoolExportToShareableHandle 0 $pool 1 0",
        "cuMemPoolImportFromShareableHandle &p 0 1 0",
        "cuMemPoolImportFromShareableHandle &p 99999 1 0",
        "cuMemPoolImportFromShareableHandle &p 18446744073709551615 1 0",
        "cuMemPoolImportFromShareableHandle 0 0 1 0",
        "cuMemPoolImportPointer &p $pool &nothing",
        "cuMemPoolImportPointer &p 0 &nothing",
        "cuMemPoolImportPointer &p $pool 0",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    // A pool imported where it was made is a second look at it.
    client.ok(&[
        "cuMemPoolExportToShareableHandle &fd $pool 1 0",
        "cuMemPoolExportPointer &data $a",
    ]);
    let fd = client.small_value("fd");
    client.ok(&[
        &format!("cuMemPoolImportFromShareableHandle &second {fd} 1 0"),
        "cuMemPoolImportPointer &p $second &data",
        "cuMemsetD8_v2 $p 3 512",
    ]);
    assert_eq!(read_byte(&mut client, "$a"), 3);
    client.set("data", [0xffu8; 64]);
    assert_eq!(
        client.call("cuMemPoolImportPointer &p $second &data"),
        INVALID_VALUE
    );
}

#[test]
fn a_descriptor_keeps_memory_that_its_maker_has_given_up() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    let free = importer.memory().0;
    maker.set(
        "properties",
        CUmemAllocationProp {
            type_: CUmemAllocationType::PINNED,
            requestedHandleTypes: CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
            location: CUmemLocation {
                type_: CUmemLocationType::DEVICE,
                id: 0,
            },
            ..Default::default()
        },
    );
    maker.ok(&[
        "cuMemCreate &h 4194304 &properties 0",
        "cuMemExportToShareableHandle &fd $h 1 0",
        "cuMemRelease $h",
    ]);
    let fd = receive(&mut maker, &mut importer, "fd");
    importer.ok(&[&format!("cuMemImportFromShareableHandle &h {fd} 1")]);
    assert_eq!(free - importer.memory().0, 4 * MIB);
    importer.ok(&["cuMemRelease $h"]);
    assert_eq!(importer.memory().0, free);
    let most = free / (2 * MIB) * (2 * MIB);
    importer.ok(&[&format!("cuMemAlloc_v2 &most {most}")]);
    let again = format!("cuMemImportFromShareableHandle &h {fd} 1");
    assert_eq!(importer.call(&again), OUT_OF_MEMORY, "it was given back");
}

/// A kernel of the client's in the variable of its name.
fn load(client: &mut Client, kernels: &[&str]) {
    let ptx = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/driver/kernels.ptx");
    client.ok(&[&format!("cuModuleLoad &module \"{ptx}\"")]);
    for kernel in kernels {
        client.ok(&[&format!(
            "cuModuleGetFunction &{kernel} $module \"{kernel}\""
        )]);
    }
}

const LAUNCH: &str = "1 1 1 1 1 1 0 0 0 0";
const OPEN_EVENT: &str = "cuIpcOpenEventHandle &event 0 0 0 0 0 %handle";
const NOT_READY: u32 = 600;

#[test]
fn work_of_one_process_waits_for_an_event_of_another() {
    let machine = Machine::new("l4-24gb:1");
    let environment = machine.with_virtual_clock();
    let (mut maker, mut importer) = (environment.client(), environment.client());
    maker.start();
    importer.start();
    load(&mut maker, &["sim_busy_ms_5"]);
    maker.ok(&[
        "cuEventCreate &event 6",
        "cuIpcGetEventHandle &handle $event",
    ]);
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[
        OPEN_EVENT,
        "cuEventQuery $event",
        "cuEventSynchronize $event",
    ]);

    maker.ok(&[
        &format!("cuLaunchKernel $sim_busy_ms_5 {LAUNCH}"),
        "cuEventRecord $event 0",
    ]);
    assert_eq!(
        importer.call("cuEventQuery $event"),
        NOT_READY,
        "time stands still"
    );
    importer.ok(&[
        "cuStreamCreate &stream 1",
        "cuStreamWaitEvent $stream $event 0",
    ]);
    assert_eq!(importer.call("cuStreamQuery $stream"), NOT_READY);
    importer.tell("cuStreamSynchronize $stream");
    maker.ok(&["cuCtxSynchronize"]);
    assert_eq!(importer.answer(), "0");
    importer.ok(&["cuEventQuery $event"]);

    // The other way round, with the maker gone in the middle.
    maker.ok(&[
        &format!("cuLaunchKernel $sim_busy_ms_5 {LAUNCH}"),
        "cuEventRecord $event 0",
    ]);
    importer.tell("cuEventSynchronize $event");
    maker.kill();
    assert_eq!(importer.answer(), "0");
    importer.ok(&["cuEventDestroy_v2 $event"]);
    assert_eq!(importer.call(OPEN_EVENT), INVALID_HANDLE);
}

#[test]
fn events_that_cannot_be_shared_have_no_handle() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (started(&machine), started(&machine));
    assert_eq!(
        maker.call("cuEventCreate &event 4"),
        INVALID_VALUE,
        "with timing"
    );
    maker.ok(&["cuEventCreate &plain 2", "cuEventCreate &event 6"]);
    for (order, error) in [
        ("cuIpcGetEventHandle &handle $plain", INVALID_HANDLE),
        ("cuIpcGetEventHandle &handle 0", INVALID_HANDLE),
        ("cuIpcGetEventHandle 0 $event", INVALID_VALUE),
    ] {
        assert_eq!(maker.call(order), error, "{order}");
    }
    maker.ok(&["cuIpcGetEventHandle &handle $event"]);
    assert_eq!(maker.call(OPEN_EVENT), INVALID_CONTEXT, "its own");
    hand_over(&mut maker, &mut importer, "handle");
    importer.ok(&[OPEN_EVENT]);
    maker.ok(&["cuEventDestroy_v2 $event"]);
    assert_eq!(importer.call(OPEN_EVENT), INVALID_HANDLE);
    importer.ok(&["cuEventQuery $event", "cuEventDestroy_v2 $event"]);
    importer.set("handle", [0x5au8; 64]);
    assert_eq!(importer.call(OPEN_EVENT), INVALID_HANDLE);
}
