//! Memory that comes as a descriptor from another interface.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const NOT_SUPPORTED: u32 = 801;
const INVALID_HANDLE: u32 = 400;
const CONTEXT: u64 = 262 * MIB;
/// From fcntl.h and linux/memfd.h.
const ADD_SEALS: u32 = 1033;

/// A descriptor of `bytes` in memory, and the description of it in the variable `memory`.
fn give_memory(client: &mut Client, bytes: u64) -> u32 {
    let fd = client.call("memfd_create \"vulkan\" 0");
    client.ok(&[&format!("ftruncate {fd} {bytes}")]);
    describe(client, fd, bytes);
    fd
}

fn describe(client: &mut Client, fd: u32, bytes: u64) {
    client.set(
        "memory",
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
            type_: CUexternalMemoryHandleType::OPAQUE_FD,
            handle: [u64::from(fd), 0],
            size: bytes,
            ..Default::default()
        },
    );
}

fn part(client: &mut Client, offset: u64, size: u64) {
    client.set(
        "part",
        CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
            offset,
            size,
            ..Default::default()
        },
    );
}

fn started(machine: &Machine) -> (Client, u64) {
    let mut client = machine.client();
    client.start();
    let free = client.memory().0;
    (client, free)
}

#[test]
fn imported_memory_is_mapped_and_counted_until_the_last_of_it_is_gone() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, free) = started(&machine);
    give_memory(&mut client, 4 * MIB);
    client.ok(&["cuImportExternalMemory &e &memory"]);
    assert_eq!(free - client.memory().0, 4 * MIB);
    part(&mut client, 0, 4 * MIB);
    client.ok(&["cuExternalMemoryGetMappedBuffer &all $e &part"]);
    part(&mut client, MIB + 256, 512);
    client.ok(&[
        "cuExternalMemoryGetMappedBuffer &some $e &part",
        "cuMemsetD8_v2 $all 1 4194304",
        "cuMemsetD8_v2 $some 7 512",
    ]);
    let seen = client.value("all") + MIB + 256;
    client.ok(&[&format!("cuMemcpyDtoH_v2 &byte {seen} 1")]);
    assert_eq!(client.bytes("byte")[0], 7, "two looks at the same bytes");
    assert_eq!(free - client.memory().0, 4 * MIB);

    client.ok(&["cuDestroyExternalMemory $e", "cuMemFree_v2 $all"]);
    assert_eq!(free - client.memory().0, 4 * MIB, "a buffer is left");
    client.ok(&["cuMemFree_v2 $some"]);
    assert_eq!(client.memory().0, free);
    assert_eq!(client.call("cuDestroyExternalMemory $e"), INVALID_HANDLE);
}

#[test]
fn the_same_memory_in_two_processes_is_counted_once() {
    let machine = Machine::new("l4-24gb:1");
    let (mut one, _) = started(&machine);
    let (mut two, free) = started(&machine);
    let fd = give_memory(&mut one, 2 * MIB);
    let path = format!("/proc/{}/fd/{fd}", one.pid());
    let other = two.call(&format!("open \"{path}\" 2"));
    describe(&mut two, other, 2 * MIB);
    one.ok(&["cuImportExternalMemory &e &memory"]);
    two.ok(&["cuImportExternalMemory &e &memory"]);
    assert_eq!(free - two.memory().0, 2 * MIB);
    for client in [&mut one, &mut two] {
        part(client, 0, 2 * MIB);
        client.ok(&["cuExternalMemoryGetMappedBuffer &p $e &part"]);
    }
    one.ok(&["cuMemsetD8_v2 $p 9 2097152"]);
    two.ok(&["cuMemcpyDtoH_v2 &byte $p 1"]);
    assert_eq!(two.bytes("byte")[0], 9);
    one.kill();
    assert_eq!(free + CONTEXT - two.memory().0, 2 * MIB);
    two.ok(&["cuDevicePrimaryCtxReset_v2 0"]);
    two.start();
    assert_eq!(two.memory().0, free + CONTEXT);
}

#[test]
fn what_cumemcreate_made_is_the_same_memory_when_it_comes_back_as_external() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, free) = started(&machine);
    client.set(
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
    client.ok(&[
        "cuMemCreate &h 2097152 &properties 0",
        "cuMemExportToShareableHandle &fd $h 1 0",
    ]);
    let fd = client.small_value("fd");
    describe(&mut client, fd, 2 * MIB);
    client.ok(&["cuImportExternalMemory &e &memory"]);
    assert_eq!(free - client.memory().0, 2 * MIB);
    client.ok(&["cuMemRelease $h"]);
    assert_eq!(free - client.memory().0, 2 * MIB);
    client.ok(&["cuDestroyExternalMemory $e"]);
    assert_eq!(client.memory().0, free);
}

#[test]
fn mipmapped_arrays_lie_in_imported_memory() {
    let machine = Machine::new("a100-80gb:1");
    let (mut client, free) = started(&machine);
    give_memory(&mut client, 8 * MIB);
    client.ok(&["cuImportExternalMemory &e &memory"]);
    let described = CUDA_ARRAY3D_DESCRIPTOR {
        Width: 1024,
        Height: 1024,
        Format: CUarray_format::FLOAT,
        NumChannels: 1,
        ..Default::default()
    };
    client.set(
        "mip",
        CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
            offset: MIB,
            arrayDesc: described,
            numLevels: 3,
            ..Default::default()
        },
    );
    client.ok(&[
        "cuExternalMemoryGetMappedMipmappedArray &m $e &mip",
        "cuMipmappedArrayGetLevel &a $m 0",
        "cuMemcpyHtoA_v2 $a 0 &mip 4",
    ]);
    assert_eq!(free - client.memory().0, 8 * MIB);
    client.set(
        "mip",
        CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC {
            offset: 9 * MIB,
            arrayDesc: described,
            numLevels: 1,
            ..Default::default()
        },
    );
    assert_eq!(
        client.call("cuExternalMemoryGetMappedMipmappedArray &n $e &mip"),
        INVALID_VALUE
    );
    client.ok(&["cuDestroyExternalMemory $e"]);
    assert_eq!(free - client.memory().0, 8 * MIB);
    client.ok(&["cuMipmappedArrayDestroy $m"]);
    assert_eq!(client.memory().0, free);
}

#[test]
fn what_is_no_memory_is_refused_and_its_descriptor_left_alone() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, free) = started(&machine);
    let fd = give_memory(&mut client, 2 * MIB);
    let right = CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
        type_: CUexternalMemoryHandleType::OPAQUE_FD,
        handle: [u64::from(fd), 0],
        size: 2 * MIB,
        ..Default::default()
    };
    let wrong = [
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC { size: 0, ..right },
            INVALID_VALUE,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                size: 4 * MIB,
                ..right
            },
            INVALID_HANDLE,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                size: u64::MAX,
                ..right
            },
            INVALID_HANDLE,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC { flags: 2, ..right },
            INVALID_VALUE,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                handle: [u64::MAX, 0],
                ..right
            },
            INVALID_VALUE,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                handle: [9999, 0],
                ..right
            },
            INVALID_HANDLE,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                handle: [0, 0],
                ..right
            },
            INVALID_HANDLE,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                type_: CUexternalMemoryHandleType::OPAQUE_WIN32,
                ..right
            },
            NOT_SUPPORTED,
        ),
        (
            CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
                type_: CUexternalMemoryHandleType(99),
                ..right
            },
            INVALID_VALUE,
        ),
    ];
    for (described, error) in wrong {
        client.set("memory", described);
        assert_eq!(
            client.call("cuImportExternalMemory &e &memory"),
            error,
            "{described:?}"
        );
    }
    assert_eq!(
        client.call(&format!("fcntl {fd} {ADD_SEALS} 0")) as i32,
        -1,
        "open, and unsealable"
    );
    assert_eq!(client.call("cuImportExternalMemory &e 0"), INVALID_VALUE);
    client.set("memory", right);
    assert_eq!(
        client.call("cuImportExternalMemory 0 &memory"),
        INVALID_VALUE
    );
    client.ok(&["cuMemAlloc_v2 &most 23068672000"]);
    let left = client.memory().0;
    let large = client.call("memfd_create \"vulkan\" 0");
    client.ok(&[&format!("ftruncate {large} {}", left + MIB)]);
    describe(&mut client, large, left + MIB);
    assert_eq!(
        client.call("cuImportExternalMemory &e &memory"),
        OUT_OF_MEMORY
    );
    client.ok(&["cuMemFree_v2 $most"]);

    client.set("memory", right);
    client.ok(&["cuImportExternalMemory &e &memory"]);
    for (offset, size) in [
        (0, 0),
        (0, 2 * MIB + 1),
        (MIB, MIB + 1),
        (u64::MAX, 2),
        (1, u64::MAX),
    ] {
        part(&mut client, offset, size);
        let map = "cuExternalMemoryGetMappedBuffer &p $e &part";
        assert_eq!(client.call(map), INVALID_VALUE);
    }
    part(&mut client, 0, MIB);
    assert_eq!(
        client.call("cuExternalMemoryGetMappedBuffer &p 0 &part"),
        INVALID_HANDLE
    );
    assert_eq!(
        client.call("cuExternalMemoryGetMappedBuffer 0 $e &part"),
        INVALID_VALUE
    );
    assert_eq!(
        client.call("cuExternalMemoryGetMappedBuffer &p $e 0"),
        INVALID_VALUE
    );
    client.ok(&["cuDestroyExternalMemory $e"]);
    assert_eq!(client.call("cuDestroyExternalMemory 0"), INVALID_HANDLE);
    assert_eq!(client.memory().0, free);
}
