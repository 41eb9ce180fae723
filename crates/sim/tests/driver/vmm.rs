//! Virtual memory management: references, mappings, other processes.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;

fn with_properties(machine: &Machine, exportable: bool) -> Client {
    let mut client = machine.client();
    client.start();
    let location = CUmemLocation {
        type_: CUmemLocationType::DEVICE,
        id: 0,
    };
    let handle_types = if exportable {
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR
    } else {
        CUmemAllocationHandleType::NONE
    };
    client.set(
        "properties",
        CUmemAllocationProp {
            type_: CUmemAllocationType::PINNED,
            requestedHandleTypes: handle_types,
            location,
            ..Default::default()
        },
    );
    client.set(
        "access",
        CUmemAccessDesc {
            location,
            flags: CUmemAccess_flags::PROT_READWRITE,
        },
    );
    client
}

#[test]
fn memory_lives_while_a_handle_or_a_mapping_does() {
    let machine = Machine::new("h200-141gb:1");
    let mut client = with_properties(&machine, false);
    let free = client.memory().0;
    client.ok(&["cuMemGetAllocationGranularity &granularity &properties 0"]);
    assert_eq!(client.value("granularity"), 2 * MIB);
    client.ok(&[
        "cuMemAddressReserve &address 4194304 0 0 0",
        "cuMemCreate &handle 4194304 &properties 0",
    ]);
    assert_eq!(free - client.memory().0, 4 * MIB);
    client.ok(&[
        "cuMemMap $address 4194304 0 $handle 0",
        "cuMemRelease $handle",
    ]);
    assert_eq!(free - client.memory().0, 4 * MIB, "mapped");
    assert_eq!(client.call("cuMemRelease $handle"), INVALID_VALUE);

    assert_eq!(
        client.call("cuMemsetD8_v2 $address 7 4194304"),
        INVALID_VALUE,
        "no access yet"
    );
    client.ok(&[
        "cuMemSetAccess $address 4194304 &access 1",
        "cuMemsetD8_v2 $address 7 4194304",
        "cuMemcpyDtoH_v2 &byte $address 1",
    ]);
    assert_eq!(client.bytes("byte")[0], 7);

    client.ok(&[
        "cuMemRetainAllocationHandle &handle $address",
        "cuMemUnmap $address 4194304",
    ]);
    assert_eq!(free - client.memory().0, 4 * MIB, "retained");
    client.ok(&["cuMemRelease $handle", "cuMemAddressFree $address 4194304"]);
    assert_eq!(client.memory().0, free);
}

#[test]
fn the_same_memory_shows_through_two_mappings() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = with_properties(&machine, false);
    client.ok(&[
        "cuMemAddressReserve &a 4194304 0 0 0",
        "cuMemCreate &h 2097152 &properties 0",
        "cuMemMap $a 2097152 0 $h 0",
    ]);
    let second = client.value("a") + 2 * MIB;
    client.set("b", second);
    client.ok(&[
        "cuMemMap $b 2097152 0 $h 0",
        "cuMemSetAccess $a 4194304 &access 1",
        "cuMemsetD32_v2 $a 4660 1",
        "cuMemcpyDtoH_v2 &seen $b 4",
    ]);
    assert_eq!(client.value("seen"), 4660);
}

#[test]
fn mistakes_are_invalid_values() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = with_properties(&machine, false);
    assert_eq!(
        client.call("cuMemCreate &h 1000 &properties 0"),
        INVALID_VALUE
    );
    assert_eq!(client.call("cuMemCreate &h 1099511627776 &properties 0"), 2);
    client.ok(&[
        "cuMemCreate &h 2097152 &properties 0",
        "cuMemAddressReserve &a 4194304 0 0 0",
    ]);
    assert_eq!(
        client.call("cuMemMap $a 4194304 0 $h 0"),
        INVALID_VALUE,
        "larger than the memory"
    );
    assert_eq!(
        client.call("cuMemMap 4096 2097152 0 $h 0"),
        INVALID_VALUE,
        "not reserved"
    );
    client.ok(&["cuMemMap $a 2097152 0 $h 0"]);
    assert_eq!(
        client.call("cuMemMap $a 2097152 0 $h 0"),
        INVALID_VALUE,
        "already mapped"
    );
    assert_eq!(
        client.call("cuMemAddressFree $a 4194304"),
        INVALID_VALUE,
        "still mapped"
    );
    assert_eq!(
        client.call("cuMemUnmap $a 4194304"),
        INVALID_VALUE,
        "half of it is not mapped"
    );
    assert_eq!(
        client.call("cuMemExportToShareableHandle &fd $h 1 0"),
        INVALID_VALUE,
        "not made exportable"
    );
}

#[test]
fn imported_memory_outlives_its_maker_and_is_counted_once() {
    let machine = Machine::new("l4-24gb:1");
    let (mut maker, mut importer) = (
        with_properties(&machine, true),
        with_properties(&machine, true),
    );
    let free = importer.memory().0;
    maker.ok(&[
        "cuMemCreate &h 2097152 &properties 0",
        "cuMemExportToShareableHandle &fd $h 1 0",
    ]);
    maker.ok(&[
        "cuMemAddressReserve &a 2097152 0 0 0",
        "cuMemMap $a 2097152 0 $h 0",
        "cuMemSetAccess $a 2097152 &access 1",
    ]);
    maker.ok(&["cuMemsetD8_v2 $a 42 2097152"]);
    let path = format!("/proc/{}/fd/{}", maker.pid(), maker.value("fd") as u32);
    let fd = importer.call(&format!("open \"{path}\" 2"));
    importer.ok(&[
        &format!("cuMemImportFromShareableHandle &h {fd} 1"),
        "cuMemAddressReserve &a 2097152 0 0 0",
    ]);
    importer.ok(&[
        "cuMemMap $a 2097152 0 $h 0",
        "cuMemSetAccess $a 2097152 &access 1",
        "cuMemcpyDtoH_v2 &seen $a 1",
    ]);
    assert_eq!(importer.bytes("seen")[0], 42);
    assert_eq!(
        free - importer.memory().0,
        2 * MIB,
        "one piece of memory, two holders"
    );

    let context = 262 * MIB;
    maker.kill();
    assert_eq!(
        importer.memory().0,
        free + context - 2 * MIB,
        "the importer still has it"
    );
    importer.ok(&[
        "cuMemcpyDtoH_v2 &seen $a 1",
        "cuMemUnmap $a 2097152",
        "cuMemRelease $h",
    ]);
    assert_eq!(importer.memory().0, free + context);
}

#[test]
fn thousands_of_handles_need_no_descriptors() {
    let machine = Machine::new("a100-80gb:1");
    let mut client = with_properties(&machine, false);
    let free = client.memory().0;
    client.ok(&["again 5000 cuMemCreate &h 2097152 &properties 0"]);
    assert_eq!(free - client.memory().0, 10_000 * MIB);
}

/// As NCCL's and other libraries' buffers on the host: `cuMemCreate` with a location other than the device.
#[test]
fn memory_of_the_host_is_mapped_and_takes_nothing_of_a_gpu() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = with_properties(&machine, false);
    let free = client.memory().0;
    let create = |client: &mut Client, type_, id, handle_types| {
        client.set(
            "host",
            CUmemAllocationProp {
                type_: CUmemAllocationType::PINNED,
                requestedHandleTypes: handle_types,
                location: CUmemLocation { type_, id },
                ..Default::default()
            },
        );
        client.call("cuMemCreate &handle 4194304 &host 0")
    };
    let (none, descriptor) = (
        CUmemAllocationHandleType::NONE,
        CUmemAllocationHandleType::POSIX_FILE_DESCRIPTOR,
    );
    let (host, node) = (CUmemLocationType::HOST, CUmemLocationType::HOST_NUMA);
    assert_eq!(create(&mut client, host, 0, descriptor), INVALID_VALUE);
    assert_eq!(create(&mut client, node, -1, none), INVALID_VALUE);
    for (type_, handle_types) in [(host, none), (node, none), (node, descriptor)] {
        assert_eq!(create(&mut client, type_, 0, handle_types), 0);
        client.ok(&[
            "cuMemAddressReserve &address 4194304 0 0 0",
            "cuMemMap $address 4194304 0 $handle 0",
            "cuMemSetAccess $address 4194304 &access 1",
            "cuMemsetD32_v2 $address 4660 1",
            "cuMemcpyDtoH_v2 &seen $address 4",
        ]);
        assert_eq!(client.value("seen"), 4660);
        assert_eq!(client.memory().0, free);
        client.ok(&[
            "cuMemUnmap $address 4194304",
            "cuMemRelease $handle",
            "cuMemAddressFree $address 4194304",
        ]);
        assert_eq!(client.memory().0, free);
    }
}
