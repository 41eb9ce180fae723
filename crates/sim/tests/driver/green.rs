//! Parts of a GPU and green contexts; multicast objects.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;
const INVALID_DEVICE: u32 = 101;
const INVALID_CONTEXT: u32 = 201;
const ILLEGAL_STATE: u32 = 401;
const CONTEXT_IS_DESTROYED: u32 = 709;
const NOT_SUPPORTED: u32 = 801;
const INVALID_RESOURCE_TYPE: u32 = 914;
const INVALID_RESOURCE_CONFIGURATION: u32 = 915;
const STREAM_DETACHED: u32 = 917;

/// Multiprocessors, the smallest part and the step of a resource in an array of them.
fn sm(client: &mut Client, name: &str, at: usize) -> [u32; 3] {
    let bytes = client.bytes(name);
    let from = at * size_of::<CUdevResource>() + std::mem::offset_of!(CUdevResource, _oversize);
    let word = |at: usize| u32::from_ne_bytes(bytes[from + at..][..4].try_into().expect("4"));
    [word(0), word(4), word(8)]
}

#[test]
fn a_gpu_is_split_by_the_rules_of_its_architecture() {
    for (model, whole, parts, part, rest) in [
        ("a100-40gb:1", [108, 4, 2], 6, 16, 12),
        ("h100-80gb:1", [132, 8, 8], 6, 16, 36),
        ("l4-24gb:1", [58, 4, 2], 3, 16, 10),
    ] {
        let machine = Machine::new(model);
        let mut client = machine.client();
        client.ok(&["cuInit 0", "cuDeviceGetDevResource 0 &whole 1"]);
        assert_eq!(sm(&mut client, "whole", 0), whole, "{model}");
        client.ok(&["cuDevSmResourceSplitByCount 0 &count &whole 0 0 16"]);
        assert_eq!(client.value("count"), u64::from(whole[0] / 16), "{model}");
        client.set("count", 6u64);
        client.ok(&["cuDevSmResourceSplitByCount &parts &count &whole &rest 0 16"]);
        assert_eq!(client.value("count"), parts, "{model}");
        assert_eq!(sm(&mut client, "parts", 2)[0], part, "{model}");
        assert_eq!(sm(&mut client, "rest", 0)[0], rest, "{model}");
    }
}

#[test]
fn what_cannot_be_split_is_refused() {
    let machine = Machine::new("h100-80gb:2");
    let mut client = machine.client();
    client.ok(&["cuInit 0", "cuDeviceGetDevResource 0 &whole 1"]);
    client.set("count", 2u64);
    client.ok(&["cuDevSmResourceSplitByCount &parts &count &whole &rest 0 8"]);
    client.set("none", CUdevResource::default());
    client.set("forged", [0xffu8; 144]);
    for (order, error) in [
        ("cuDeviceGetDevResource 0 &x 1000", INVALID_RESOURCE_TYPE),
        ("cuDeviceGetDevResource 2 &x 1", INVALID_DEVICE),
        ("cuDeviceGetDevResource 0 0 1", INVALID_VALUE),
        (
            "cuDevSmResourceSplitByCount &x &count &whole 0 0 133",
            INVALID_VALUE,
        ),
        (
            "cuDevSmResourceSplitByCount &x &count &whole 0 0 132",
            INVALID_RESOURCE_CONFIGURATION,
        ),
        (
            "cuDevSmResourceSplitByCount &x &count &whole 0 4 8",
            INVALID_VALUE,
        ),
        (
            "cuDevSmResourceSplitByCount &x &count &parts 0 0 8",
            INVALID_RESOURCE_CONFIGURATION,
        ),
        (
            "cuDevSmResourceSplitByCount &x &count &none 0 0 8",
            INVALID_RESOURCE_TYPE,
        ),
        (
            "cuDevSmResourceSplitByCount &x &count &forged 0 0 8",
            INVALID_RESOURCE_TYPE,
        ),
        (
            "cuDevSmResourceSplitByCount &x &count 0 0 0 8",
            INVALID_VALUE,
        ),
        (
            "cuDevSmResourceSplitByCount &x 0 &whole 0 0 8",
            INVALID_VALUE,
        ),
        (
            "cuDevResourceGenerateDesc &d &none 1",
            INVALID_RESOURCE_TYPE,
        ),
        ("cuDevResourceGenerateDesc &d &parts 0", INVALID_VALUE),
        ("cuDevResourceGenerateDesc &d 0 1", INVALID_VALUE),
        ("cuDevResourceGenerateDesc 0 &parts 1", INVALID_VALUE),
        ("cuGreenCtxCreate &g 0 0 1", INVALID_VALUE),
        ("cuGreenCtxDestroy 0", INVALID_CONTEXT),
        ("cuCtxFromGreenCtx &c 0", INVALID_CONTEXT),
    ] {
        assert_eq!(client.call(order), error, "{order}");
    }
    client.ok(&["cuDevResourceGenerateDesc &d &parts 2"]);
    assert_eq!(client.call("cuGreenCtxCreate &g $d 1 1"), INVALID_DEVICE);
    assert_eq!(client.call("cuGreenCtxCreate &g $d 0 2"), INVALID_VALUE);

    let group = |multiprocessors: u32, flags: u32| CU_DEV_SM_RESOURCE_GROUP_PARAMS {
        smCount: multiprocessors,
        flags,
        ..Default::default()
    };
    client.set("groups", [group(64, 0), group(0, 0)]);
    client.ok(&["cuDevSmResourceSplit &parts 2 &whole &rest 0 &groups"]);
    let (first, second) = (
        sm(&mut client, "parts", 0)[0],
        sm(&mut client, "parts", 1)[0],
    );
    assert_eq!((first, second, sm(&mut client, "rest", 0)[0]), (64, 64, 4));
    client.set("groups", [group(64, 0), group(72, 0)]);
    let order = "cuDevSmResourceSplit &parts 2 &whole &rest 0 &groups";
    assert_eq!(client.call(order), INVALID_RESOURCE_CONFIGURATION);
    client.set("groups", [group(10, 0), group(8, 0)]);
    assert_eq!(client.call(order), INVALID_VALUE);
}

#[test]
fn a_green_context_is_the_primary_one_with_fewer_multiprocessors() {
    let machine = Machine::new("a100-40gb:1");
    let (mut client, mut watcher) = (machine.client(), machine.client());
    watcher.start();
    let free = watcher.memory().0;
    client.ok(&["cuInit 0", "cuDeviceGetDevResource 0 &whole 1"]);
    client.set("count", 1u64);
    client.ok(&[
        "cuDevSmResourceSplitByCount &part &count &whole 0 0 20",
        "cuDevResourceGenerateDesc &d &part 1",
        "cuGreenCtxCreate &g $d 0 1",
        "cuCtxFromGreenCtx &c $g",
        "cuCtxSetCurrent $c",
        "cuCtxGetCurrent &current",
        "cuMemAlloc_v2 &a 1048576",
        "cuCtxGetDevResource $c &mine 1",
        "cuGreenCtxGetDevResource $g &same 1",
        "cuGreenCtxStreamCreate &s $g 1 0",
        "cuMemsetD8Async $a 1 64 $s",
        "cuEventCreate &e 0",
        "cuEventRecord $e $s",
        "cuEventSynchronize $e",
    ]);
    assert_eq!(client.value("current"), client.value("c"));
    for name in ["mine", "same"] {
        assert_eq!(sm(&mut client, name, 0), [20, 4, 2], "{name}");
    }
    let taken = free - watcher.memory().0;
    client.ok(&["cuDevicePrimaryCtxRetain &p 0", "cuGreenCtxDestroy $g"]);
    assert_eq!(
        free - watcher.memory().0,
        taken,
        "one context, kept by the primary's reference"
    );
    assert_eq!(client.call("cuStreamSynchronize $s"), STREAM_DETACHED);
    assert_eq!(client.call("cuCtxSetCurrent $c"), INVALID_CONTEXT);
    client.ok(&[
        "cuCtxSetCurrent $p",
        "cuMemcpyDtoH_v2 &byte $a 1",
        "cuStreamDestroy_v2 $s",
    ]);
    assert_eq!(
        client.bytes("byte")[0],
        1,
        "what was made under it is the primary's"
    );
    assert_eq!(
        client.call("cuGreenCtxStreamCreate &s $g 1 0"),
        INVALID_CONTEXT
    );
    client.ok(&["cuDevicePrimaryCtxRelease_v2 0"]);
    assert_eq!(watcher.memory().0, free);

    client.ok(&[
        "cuGreenCtxCreate &g $d 0 1",
        "cuCtxFromGreenCtx &c $g",
        "cuCtxSetCurrent $c",
    ]);
    assert_eq!(
        client.call("cuGreenCtxStreamCreate &s $g 0 0"),
        INVALID_VALUE
    );
    assert_eq!(client.call("cuCtxDestroy_v2 $c"), INVALID_CONTEXT);
    client.ok(&["cuDevicePrimaryCtxReset_v2 0"]);
    assert_eq!(client.call("cuMemAlloc_v2 &a 512"), CONTEXT_IS_DESTROYED);
    client.ok(&["cuGreenCtxDestroy $g"]);
    assert_eq!(watcher.memory().0, free);
}

fn team(gpus: u32, size: u64) -> CUmulticastObjectProp {
    CUmulticastObjectProp {
        numDevices: gpus,
        size: size as usize,
        ..Default::default()
    }
}

#[test]
fn a_multicast_object_keeps_what_is_bound_to_it() {
    let machine = Machine::new("h100-80gb:2");
    let mut client = machine.client();
    client.start();
    let free = client.memory().0;
    client.set("team", team(2, 4 * MIB));
    client.set(
        "properties",
        CUmemAllocationProp {
            type_: CUmemAllocationType::PINNED,
            location: CUmemLocation {
                type_: CUmemLocationType::DEVICE,
                id: 0,
            },
            ..Default::default()
        },
    );
    client.ok(&[
        "cuMulticastGetGranularity &granularity &team 0",
        "cuMulticastCreate &mc &team",
        "cuMulticastAddDevice $mc 0",
        "cuMemCreate &h 4194304 &properties 0",
        "cuMemAddressReserve &a 4194304 0 0 0",
    ]);
    assert_eq!(client.value("granularity"), 2 * MIB);
    assert_eq!(free - client.memory().0, 4 * MIB, "the memory alone");
    for (order, error) in [
        ("cuMulticastBindMem $mc 0 $h 0 4194304 0", ILLEGAL_STATE),
        ("cuMemMap $a 4194304 0 $mc 0", ILLEGAL_STATE),
        ("cuMulticastAddDevice $mc 0", INVALID_VALUE),
        ("cuMulticastAddDevice $mc 2", INVALID_DEVICE),
        ("cuMulticastAddDevice $h 1", INVALID_VALUE),
    ] {
        assert_eq!(client.call(order), error, "{order}");
    }
    client.ok(&[
        "cuMulticastAddDevice $mc 1",
        "cuMulticastBindMem $mc 0 $h 0 2097152 0",
    ]);
    for order in [
        "cuMulticastBindMem $mc 0 $h 0 2097152 0",
        "cuMulticastBindMem $mc 1 $h 0 2097152 0",
        "cuMulticastBindMem $mc 2097152 $h 0 2097152 1",
        "cuMulticastBindMem $mc 4194304 $h 0 2097152 0",
        "cuMulticastBindMem $mc 18446744073707454464 $h 0 4194304 0",
        "cuMulticastBindMem $mc 2097152 $mc 0 2097152 0",
        "cuMulticastBindMem $mc 2097152 $h 0 0 0",
        "cuMulticastBindMem_v2 $mc 1 2097152 $h 0 2097152 0",
        "cuMulticastUnbind $mc 0 2097152 2097152",
        "cuMulticastBindAddr $mc 2097152 4096 2097152 0",
        "cuMulticastCreate 0 &team",
        "cuMulticastCreate &x 0",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    client.ok(&[
        "cuMemMap $a 4194304 0 $h 0",
        "cuMulticastBindAddr $mc 2097152 $a 2097152 0",
        "cuMemUnmap $a 4194304",
        "cuMemRelease $h",
    ]);
    assert_eq!(free - client.memory().0, 4 * MIB, "bound");
    client.ok(&["cuMemMap $a 4194304 0 $mc 0", "cuMemRelease $mc"]);
    client.ok(&["cuMemUnmap $a 4194304"]);
    assert_eq!(client.memory().0, free);

    client.set("team", team(3, 4 * MIB));
    assert_eq!(client.call("cuMulticastCreate &mc &team"), INVALID_VALUE);
    client.set("team", team(2, 4096));
    assert_eq!(client.call("cuMulticastCreate &mc &team"), INVALID_VALUE);
    let older = Machine::new("a100-40gb:2");
    let mut client = older.client();
    client.start();
    client.set("team", team(2, 4 * MIB));
    assert_eq!(client.call("cuMulticastCreate &mc &team"), NOT_SUPPORTED);
}
