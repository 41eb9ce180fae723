//! Arrays, mipmapped arrays, textures: what they take, what is in them, what is no array.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;
const INVALID_HANDLE: u32 = 400;
const KIB: u64 = 1 << 10;

fn described(extent: [usize; 3], format: CUarray_format, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    let [width, height, depth] = extent;
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: format,
        NumChannels: 1,
        Flags: flags,
    }
}

fn floats(extent: [usize; 3], flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    described(extent, CUarray_format::FLOAT, flags)
}

fn started(machine: &Machine) -> (Client, u64) {
    let mut client = machine.client();
    client.start();
    let free = client.memory().0;
    (client, free)
}

/// Makes memory that can be bound to arrays.
fn make_tiles(client: &mut Client, name: &str, bytes: u64) {
    let mut properties = CUmemAllocationProp {
        type_: CUmemAllocationType::PINNED,
        location: CUmemLocation {
            type_: CUmemLocationType::DEVICE,
            id: 0,
        },
        ..Default::default()
    };
    properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    client.set("tiles", properties);
    client.ok(&[&format!("cuMemCreate &{name} {bytes} &tiles 0")]);
}

#[test]
fn arrays_take_memory_until_they_are_destroyed_or_their_context_ends() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, free) = started(&machine);
    client.set("flat", floats([1024, 1024, 0], 0));
    client.ok(&["cuArray3DCreate_v2 &a &flat"]);
    assert_eq!(free - client.memory().0, 4 * MIB);
    client.set("mip", floats([1024, 1024, 0], 0));
    client.ok(&["cuMipmappedArrayCreate &m &mip 2"]);
    assert_eq!(free - client.memory().0, 4 * MIB + 5 * MIB);
    client.set(
        "small",
        CUDA_ARRAY_DESCRIPTOR {
            Width: 3,
            Height: 0,
            Format: CUarray_format::UNSIGNED_INT8,
            NumChannels: 1,
        },
    );
    client.ok(&["cuArrayCreate_v2 &s &small"]);
    assert_eq!(free - client.memory().0, 9 * MIB + 64 * KIB);

    client.ok(&["cuArrayDestroy $a", "cuMipmappedArrayDestroy $m"]);
    assert_eq!(free - client.memory().0, 64 * KIB);
    assert_eq!(client.call("cuArrayDestroy $a"), INVALID_HANDLE);
    assert_eq!(client.call("cuMipmappedArrayDestroy $m"), INVALID_HANDLE);
    client.ok(&["cuDevicePrimaryCtxReset_v2 0", "cuCtxSetCurrent 0"]);
    client.start();
    assert_eq!(client.memory().0, free);
    assert_eq!(client.call("cuArrayDestroy $s"), INVALID_HANDLE);
}

#[test]
fn an_array_that_does_not_fit_is_refused_and_a_dead_process_gives_its_arrays_back() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, free) = started(&machine);
    client.set("large", floats([65_536, 65_536, 0], 0));
    client.ok(&["cuArray3DCreate_v2 &a &large"]);
    assert_eq!(free - client.memory().0, 16 << 30);
    assert_eq!(client.call("cuArray3DCreate_v2 &b &large"), OUT_OF_MEMORY);
    assert_eq!(free - client.memory().0, 16 << 30);
    let (mut other, left) = started(&machine);
    client.kill();
    let context = 262 * MIB;
    assert_eq!(other.memory().0, left + (16 << 30) + context);
}

#[test]
fn bytes_go_into_arrays_and_come_out_again_row_by_row() {
    let machine = Machine::new("a100-40gb:1");
    let (mut client, _) = started(&machine);
    client.set(
        "volume",
        described([5, 3, 2], CUarray_format::UNSIGNED_INT8, 0),
    );
    client.ok(&["cuArray3DCreate_v2 &array &volume"]);
    let content: [u8; 30] = std::array::from_fn(|at| at as u8 + 1);
    client.set("from", content);
    let (array, from, to) = (
        client.value("array"),
        client.address("from"),
        client.address("to"),
    );
    let whole = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::HOST,
        srcHost: from as *const _,
        srcPitch: 5,
        srcHeight: 3,
        dstMemoryType: CUmemorytype::ARRAY,
        dstArray: array as *mut _,
        WidthInBytes: 5,
        Height: 3,
        Depth: 2,
        ..Default::default()
    };
    client.set("copy", whole);
    client.ok(&["cuMemcpy3D_v2 &copy"]);
    client.set(
        "copy",
        CUDA_MEMCPY3D {
            srcMemoryType: CUmemorytype::ARRAY,
            srcArray: array as *mut _,
            srcXInBytes: 1,
            srcY: 1,
            srcZ: 1,
            dstMemoryType: CUmemorytype::HOST,
            dstHost: to as *mut _,
            dstPitch: 4,
            dstHeight: 2,
            WidthInBytes: 4,
            Height: 2,
            Depth: 1,
            ..Default::default()
        },
    );
    client.ok(&["cuMemcpy3D_v2 &copy"]);
    assert_eq!(client.bytes("to")[..8], [22, 23, 24, 25, 27, 28, 29, 30]);

    for wrong in [
        CUDA_MEMCPY3D {
            dstXInBytes: 1,
            ..whole
        },
        CUDA_MEMCPY3D { dstY: 1, ..whole },
        CUDA_MEMCPY3D {
            dstZ: usize::MAX,
            ..whole
        },
        CUDA_MEMCPY3D { Depth: 3, ..whole },
    ] {
        client.set("copy", wrong);
        assert_eq!(client.call("cuMemcpy3D_v2 &copy"), INVALID_VALUE);
    }
    client.set(
        "copy",
        CUDA_MEMCPY3D {
            dstArray: from as *mut _,
            ..whole
        },
    );
    assert_eq!(client.call("cuMemcpy3D_v2 &copy"), INVALID_HANDLE);
}

#[test]
fn levels_and_planes_are_looks_at_the_same_bytes() {
    let machine = Machine::new("h100-80gb:1");
    let (mut client, free) = started(&machine);
    client.set(
        "mip",
        described([8, 8, 0], CUarray_format::UNSIGNED_INT8, 0),
    );
    client.ok(&[
        "cuMipmappedArrayCreate &m &mip 99",
        "cuMipmappedArrayGetLevel &first $m 0",
        "cuMipmappedArrayGetLevel &level $m 2",
        "cuMipmappedArrayGetLevel &again $m 2",
        "cuArray3DGetDescriptor_v2 &seen $level",
    ]);
    assert_eq!(client.value("level"), client.value("again"));
    assert_eq!(client.value("seen"), 2, "a quarter as wide");
    assert_eq!(
        client.call("cuMipmappedArrayGetLevel &none $m 4"),
        INVALID_VALUE
    );
    assert_eq!(client.call("cuArrayDestroy $level"), INVALID_HANDLE);
    client.set("four", [9u8, 8, 7, 6]);
    client.ok(&[
        "cuMemcpyHtoA_v2 $level 0 &four 2",
        "cuMemcpyAtoH_v2 &out $level 0 2",
    ]);
    assert_eq!(client.bytes("out")[..2], [9, 8]);
    assert_eq!(
        client.call("cuMemcpyHtoA_v2 $level 1 &four 2"),
        INVALID_VALUE
    );
    client.ok(&["cuMipmappedArrayDestroy $m"]);
    assert_eq!(
        client.call("cuArray3DGetDescriptor_v2 &seen $level"),
        INVALID_HANDLE
    );

    client.set(
        "video",
        CUDA_ARRAY3D_DESCRIPTOR {
            NumChannels: 3,
            ..described([64, 64, 0], CUarray_format::NV12, 0)
        },
    );
    client.ok(&[
        "cuArray3DCreate_v2 &v &video",
        "cuArrayGetPlane &light $v 0",
        "cuArrayGetPlane &colour $v 1",
        "cuArray3DGetDescriptor_v2 &seen $colour",
    ]);
    assert_eq!(client.value("seen"), 32);
    assert_eq!(client.call("cuArrayGetPlane &none $v 2"), INVALID_VALUE);
    assert_eq!(client.call("cuArrayGetPlane &none $light 0"), INVALID_VALUE);
    client.ok(&[
        "cuMemcpyHtoA_v2 $colour 0 &four 4",
        "cuMemcpyAtoH_v2 &out $colour 0 4",
    ]);
    assert_eq!(client.bytes("out")[..4], [9, 8, 7, 6]);
    client.ok(&["cuArrayDestroy $v"]);
    assert_eq!(client.call("cuArrayGetPlane &none $v 0"), INVALID_HANDLE);
    assert_eq!(client.memory().0, free);
}

#[test]
fn a_deferred_array_takes_nothing_and_says_what_it_needs() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, free) = started(&machine);
    client.set(
        "later",
        floats([1024, 1024, 0], CUDA_ARRAY3D_DEFERRED_MAPPING),
    );
    client.set("now", floats([1024, 1024, 0], 0));
    client.ok(&[
        "cuArray3DCreate_v2 &a &later",
        "cuArray3DCreate_v2 &b &now",
        "cuArrayGetMemoryRequirements &needs $a 0",
    ]);
    assert_eq!(client.value("needs"), 4 * MIB);
    assert_eq!(free - client.memory().0, 4 * MIB, "the other one alone");
    assert_eq!(
        client.call("cuArrayGetMemoryRequirements &needs $b 0"),
        INVALID_VALUE
    );
    assert_eq!(client.call("cuArrayGetMemoryRequirements &needs $a 1"), 101);
    assert_eq!(
        client.call("cuMemcpyHtoA_v2 $a 0 &needs 4"),
        INVALID_VALUE,
        "nothing behind it"
    );

    make_tiles(&mut client, "pool", 4 * MIB);
    client.set(
        "copy",
        CUmemAllocationProp {
            type_: CUmemAllocationType::PINNED,
            location: CUmemLocation {
                type_: CUmemLocationType::DEVICE,
                id: 0,
            },
            ..Default::default()
        },
    );
    client.ok(&["cuMemCreate &plain 4194304 &copy 0"]);
    let (array, pool, plain) = (
        client.value("a"),
        client.value("pool"),
        client.value("plain"),
    );
    let map = CUarrayMapInfo {
        resourceType: CUresourcetype::ARRAY,
        resource: array as *mut _,
        memOperationType: CUmemOperationType::MAP,
        memHandle: pool,
        deviceBitMask: 1,
        ..Default::default()
    };
    for wrong in [
        CUarrayMapInfo {
            memHandle: plain,
            ..map
        },
        CUarrayMapInfo {
            deviceBitMask: 3,
            ..map
        },
        CUarrayMapInfo {
            offset: 64 * KIB,
            ..map
        },
        CUarrayMapInfo { flags: 1, ..map },
        CUarrayMapInfo {
            memHandle: 12345,
            ..map
        },
        CUarrayMapInfo {
            memOperationType: CUmemOperationType(9),
            ..map
        },
    ] {
        client.set("info", wrong);
        assert_eq!(client.call("cuMemMapArrayAsync &info 1 0"), INVALID_VALUE);
    }
    client.set("info", map);
    client.ok(&[
        "cuMemRelease $plain",
        "cuMemMapArrayAsync &info 1 0",
        "cuMemRelease $pool",
        "cuMemcpyHtoA_v2 $a 0 &needs 4",
    ]);
    assert_eq!(free - client.memory().0, 8 * MIB, "held by the array");
    client.set(
        "info",
        CUarrayMapInfo {
            memOperationType: CUmemOperationType::UNMAP,
            memHandle: 0,
            ..map
        },
    );
    client.ok(&["cuMemMapArrayAsync &info 1 0"]);
    assert_eq!(free - client.memory().0, 4 * MIB);
    assert_eq!(client.call("cuMemMapArrayAsync 0 1 0"), INVALID_VALUE);
    client.ok(&["cuMemMapArrayAsync 0 0 0"]);
}

#[test]
fn sparse_arrays_hold_what_is_bound_to_their_tiles() {
    let machine = Machine::new("a100-80gb:1");
    let (mut client, free) = started(&machine);
    client.set("sparse", floats([512, 512, 0], CUDA_ARRAY3D_SPARSE));
    client.ok(&[
        "cuArray3DCreate_v2 &a &sparse",
        "cuArrayGetSparseProperties &properties $a",
    ]);
    assert_eq!(client.memory().0, free);
    let bytes = client.bytes("properties");
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!([word(0), word(4), word(8), word(12)], [128, 128, 1, 0]);

    make_tiles(&mut client, "pool", 2 * MIB);
    let (array, pool) = (client.value("a"), client.value("pool"));
    let level = CUarraySparseLevel {
        extentWidth: 256,
        extentHeight: 128,
        extentDepth: 1,
        ..Default::default()
    };
    // SAFETY: the structure is as large as the union.
    let bits = |level: CUarraySparseLevel| unsafe {
        std::mem::transmute::<CUarraySparseLevel, [u64; 4]>(level)
    };
    let map = CUarrayMapInfo {
        resourceType: CUresourcetype::ARRAY,
        resource: array as *mut _,
        subresource: bits(level),
        memOperationType: CUmemOperationType::MAP,
        memHandle: pool,
        deviceBitMask: 1,
        ..Default::default()
    };
    for wrong in [
        CUarraySparseLevel {
            offsetX: 1,
            ..level
        },
        CUarraySparseLevel {
            extentWidth: 100,
            ..level
        },
        CUarraySparseLevel {
            offsetX: 512,
            ..level
        },
        CUarraySparseLevel {
            extentHeight: u32::MAX,
            ..level
        },
        CUarraySparseLevel {
            extentHeight: 0,
            ..level
        },
        CUarraySparseLevel { layer: 1, ..level },
        CUarraySparseLevel { level: 1, ..level },
        CUarraySparseLevel {
            offsetZ: 1,
            ..level
        },
    ] {
        client.set(
            "info",
            CUarrayMapInfo {
                subresource: bits(wrong),
                ..map
            },
        );
        assert_eq!(
            client.call("cuMemMapArrayAsync &info 1 0"),
            INVALID_VALUE,
            "{wrong:?}"
        );
    }
    client.set("info", map);
    client.ok(&["cuMemMapArrayAsync &info 1 0", "cuMemRelease $pool"]);
    assert_eq!(free - client.memory().0, 2 * MIB);
    client.set(
        "info",
        CUarrayMapInfo {
            memOperationType: CUmemOperationType::UNMAP,
            memHandle: 0,
            subresource: bits(CUarraySparseLevel {
                extentWidth: 128,
                ..level
            }),
            ..map
        },
    );
    client.ok(&["cuMemMapArrayAsync &info 1 0"]);
    assert_eq!(free - client.memory().0, 2 * MIB, "the other tile holds it");
    client.ok(&["cuArrayDestroy $a"]);
    assert_eq!(client.memory().0, free);
}

#[test]
fn textures_describe_what_is_there() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, _) = started(&machine);
    client.set("flat", floats([64, 64, 0], CUDA_ARRAY3D_SURFACE_LDST));
    client.ok(&["cuArray3DCreate_v2 &a &flat", "cuMemAlloc_v2 &p 65536"]);
    let (array, pointer) = (client.value("a"), client.value("p"));
    client.set("texture", CUDA_TEXTURE_DESC::default());
    let mut of_array = CUDA_RESOURCE_DESC::default();
    of_array.res[0] = array;
    client.set("resource", of_array);
    client.ok(&[
        "cuTexObjectCreate &t &resource &texture 0",
        "cuSurfObjectCreate &s &resource",
        "cuSurfObjectDestroy $s",
        "cuTexObjectDestroy $t",
    ]);
    assert_eq!(client.call("cuTexObjectDestroy $t"), INVALID_VALUE);
    assert_eq!(
        client.call("cuTexObjectCreate &t &resource 0 0"),
        INVALID_VALUE
    );
    assert_eq!(
        client.call("cuTexObjectCreate 0 &resource &texture 0"),
        INVALID_VALUE
    );

    let linear = |at: u64, bytes: u64| {
        let mut resource = CUDA_RESOURCE_DESC {
            resType: CUresourcetype::LINEAR,
            ..Default::default()
        };
        resource.res[0] = at;
        resource.res[1] = u64::from(CUarray_format::FLOAT.0) | 1 << 32;
        resource.res[2] = bytes;
        resource
    };
    client.set("resource", linear(pointer, 65536));
    client.ok(&["cuTexObjectCreate &t &resource &texture 0"]);
    for wrong in [
        linear(pointer + 4, 64),
        linear(pointer, 65540),
        linear(pointer, 0),
        linear(4096, 64),
    ] {
        client.set("resource", wrong);
        assert_eq!(
            client.call("cuTexObjectCreate &t &resource &texture 0"),
            INVALID_VALUE
        );
    }
    assert_eq!(
        client.call("cuSurfObjectCreate &s &resource"),
        INVALID_VALUE
    );
}

#[test]
fn bad_descriptions_of_arrays_are_refused() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, free) = started(&machine);
    for wrong in [
        floats([0, 0, 0], 0),
        floats([usize::MAX, usize::MAX, usize::MAX], 0),
        floats([16, 16, 16_385], 0),
        floats([16, 8, 6], CUDA_ARRAY3D_CUBEMAP),
        floats([16, 16, 0], CUDA_ARRAY3D_LAYERED),
        floats([16, 16, 0], u32::MAX),
        described([16, 16, 0], CUarray_format(0), 0),
        described([16, 16, 0], CUarray_format(u32::MAX), 0),
        CUDA_ARRAY3D_DESCRIPTOR {
            NumChannels: 3,
            ..floats([16, 16, 0], 0)
        },
        CUDA_ARRAY3D_DESCRIPTOR {
            NumChannels: 0,
            ..floats([16, 16, 0], 0)
        },
    ] {
        client.set("wrong", wrong);
        assert_eq!(
            client.call("cuArray3DCreate_v2 &a &wrong"),
            INVALID_VALUE,
            "{wrong:?}"
        );
        assert_eq!(
            client.call("cuMipmappedArrayCreate &a &wrong 1"),
            INVALID_VALUE,
            "{wrong:?}"
        );
    }
    client.set("right", floats([16, 16, 0], 0));
    for order in [
        "cuArray3DCreate_v2 0 &right",
        "cuArray3DCreate_v2 &a 0",
        "cuArrayCreate_v2 &a 0",
        "cuArrayCreate 0 0",
        "cuMipmappedArrayCreate 0 &right 1",
        "cuMipmappedArrayCreate &a 0 1",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    for order in [
        "cuArrayDestroy 0",
        "cuArray3DGetDescriptor_v2 &a 77",
        "cuMipmappedArrayGetLevel &a 0 0",
        "cuArrayGetPlane &a 0 0",
    ] {
        assert_eq!(client.call(order), INVALID_HANDLE, "{order}");
    }
    client.ok(&["cuCtxSetCurrent 0"]);
    assert_eq!(client.call("cuArray3DCreate_v2 &a &right"), 201);
    client.start();
    assert_eq!(client.memory().0, free);
}
