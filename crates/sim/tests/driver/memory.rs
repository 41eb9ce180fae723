//! Device memory between processes: exact limits, nothing lost, nothing left behind.

use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::{
    CUDA_MEMCPY2D, CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps,
    CUmemorytype,
};

const OUT_OF_MEMORY: u32 = 2;
const INVALID_VALUE: u32 = 1;

#[test]
fn two_processes_share_one_gpu() {
    let machine = Machine::new("a100-80gb:1");
    let (mut one, mut two) = (machine.client(), machine.client());
    one.start();
    let (before, total) = one.memory();
    two.start();
    let context = before - one.memory().0;
    assert_eq!(total - before, context, "both contexts cost the same");
    one.ok(&["cuMemAlloc_v2 &a 1073741824"]);
    two.ok(&["cuMemAlloc_v2 &a 2147483648"]);
    assert_eq!(one.memory().0, total - 2 * context - 3072 * MIB);
    assert_eq!(one.memory(), two.memory());
    one.ok(&["cuMemFree_v2 $a"]);
    assert_eq!(two.memory().0, total - 2 * context - 2048 * MIB);
}

#[test]
fn memory_runs_out_exactly_at_the_last_byte_and_failure_changes_nothing() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let (free, _) = client.memory();
    let whole = free / (2 * MIB) * 2 * MIB;
    client.set("a", 0x5555_u64);
    assert_eq!(
        client.call(&format!("cuMemAlloc_v2 &a {}", whole + 2 * MIB)),
        OUT_OF_MEMORY
    );
    assert_eq!(client.value("a"), 0x5555, "the output is untouched");
    client.ok(&[&format!("cuMemAlloc_v2 &a {whole}")]);
    let rest = client.memory().0;
    assert_eq!(rest, free - whole);
    assert_eq!(
        client.call(&format!("cuMemAlloc_v2 &b {}", rest + 1)),
        OUT_OF_MEMORY
    );
    assert_eq!(
        client.call("cuMemAlloc_v2 &b 18446744073709551615"),
        OUT_OF_MEMORY
    );
    assert_eq!(rest, MIB, "an L4 leaves an odd number of MiB");
    assert_eq!(
        client.call(&format!("cuMemAlloc_v2 &b {MIB}")),
        OUT_OF_MEMORY,
        "1 MiB takes 2"
    );
    client.ok(&[
        &format!("cuMemAlloc_v2 &b {}", MIB - 512),
        "cuMemAlloc_v2 &c 1",
    ]);
    assert_eq!(client.memory().0, 0);
    assert_eq!(client.call("cuMemAlloc_v2 &b 1"), OUT_OF_MEMORY);
}

#[test]
fn freeing_twice_and_freeing_the_unknown_are_invalid() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let before = client.memory();
    client.ok(&["cuMemAlloc_v2 &a 4096", "cuMemFree_v2 $a"]);
    assert_eq!(client.call("cuMemFree_v2 $a"), INVALID_VALUE);
    assert_eq!(client.call("cuMemFree_v2 4096"), INVALID_VALUE);
    assert_eq!(client.call("cuMemAlloc_v2 &a 0"), INVALID_VALUE);
    client.ok(&["cuMemFree_v2 0"]);
    assert_eq!(client.memory(), before);
}

#[test]
fn a_killed_process_gives_everything_back() {
    let machine = Machine::new("h100-80gb:1");
    let mut survivor = machine.client();
    survivor.start();
    let before = survivor.memory();
    let mut victim = machine.client();
    victim.start();
    victim.ok(&[
        "cuMemAlloc_v2 &a 8589934592",
        "cuMemAllocAsync &b 1048576 0",
        "cuMemHostAlloc &c 4096 0",
    ]);
    assert!(before.0 - survivor.memory().0 > 8192 * MIB);
    victim.kill();
    assert_eq!(survivor.memory(), before);
}

/// Kills processes in the middle of allocating, again and again: whatever they were doing, no memory is lost and no
/// process hangs.
#[test]
fn processes_killed_at_any_moment_leave_the_machine_whole() {
    let machine = Machine::new("a100-40gb:2");
    let mut survivor = machine.client();
    survivor.start();
    let before = survivor.memory();
    for round in 0..20u64 {
        let mut victims = [machine.client(), machine.client()];
        for victim in &mut victims {
            victim.start();
            victim.ok(&["cuMemAlloc_v2 &a 1048576", "cuMemFree_v2 $a"]);
        }
        for victim in &mut victims {
            victim.tell("again 1000000000 cuMemAlloc_v2 &a 2097152");
            victim.tell("again 1000000000 cuMemAllocAsync &a 4096 0");
        }
        // The survivor works meanwhile; how long differs from round to round. The victims may have all there is by
        // then.
        for _ in 0..round % 7 {
            match survivor.call("cuMemAlloc_v2 &s 512") {
                OUT_OF_MEMORY => {}
                answer => {
                    assert_eq!(answer, 0);
                    survivor.ok(&["cuMemFree_v2 $s"]);
                }
            }
        }
        victims.into_iter().for_each(Client::kill);
        assert_eq!(survivor.memory(), before, "round {round}");
    }
}

#[test]
fn destroying_a_context_frees_what_lived_in_it() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let before = client.memory();
    client.ok(&[
        "cuCtxCreate_v2 &second 0 0",
        "cuMemAlloc_v2 &a 1048576",
        "cuMemAllocManaged &b 1048576 1",
        "cuMemHostAlloc &c 100 0",
    ]);
    assert!(client.memory() < before);
    client.ok(&["cuCtxDestroy_v2 $second", "cuCtxSetCurrent $context"]);
    assert_eq!(client.memory(), before);
    assert_eq!(client.call("cuMemFree_v2 $a"), INVALID_VALUE);
}

#[test]
fn a_primary_context_lives_until_its_last_release() {
    let machine = Machine::new("l4-24gb:1");
    let (mut client, mut watcher) = (machine.client(), machine.client());
    watcher.start();
    let before = watcher.memory();
    client.start();
    client.ok(&[
        "cuDevicePrimaryCtxRetain &again 0",
        "cuMemAlloc_v2 &a 1048576",
        "cuDevicePrimaryCtxRelease_v2 0",
    ]);
    assert_eq!(client.value("again"), client.value("context"));
    assert!(watcher.memory() < before);
    client.ok(&["cuDevicePrimaryCtxRelease_v2 0"]);
    assert_eq!(watcher.memory(), before);
    assert_eq!(
        client.call("cuMemAlloc_v2 &a 1048576"),
        709,
        "the current context is gone"
    );
    assert_eq!(client.call("cuDevicePrimaryCtxRelease_v2 0"), 201);
}

#[test]
fn pools_hold_what_was_freed_until_a_synchronisation_or_their_threshold() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    let (free, _) = client.memory();
    client.ok(&[
        "cuDeviceGetDefaultMemPool &pool 0",
        "cuMemAllocAsync &a 1000 0",
        "cuMemAllocAsync &b 1000 0",
    ]);
    assert_eq!(free - client.memory().0, 32 * MIB, "one segment for both");
    client.ok(&[
        "cuMemPoolGetAttribute $pool 5 &reserved",
        "cuMemPoolGetAttribute $pool 7 &used",
    ]);
    assert_eq!(
        (client.value("reserved"), client.value("used")),
        (32 * MIB, 2048)
    );

    client.ok(&["cuMemFreeAsync $a 0", "cuMemFree_v2 $b"]);
    assert_eq!(free - client.memory().0, 32 * MIB, "still the pool's");
    client.ok(&["cuCtxSynchronize"]);
    assert_eq!(client.memory().0, free, "the threshold is 0");

    client.set("keep", 64 * MIB);
    client.ok(&[
        "cuMemPoolSetAttribute $pool 4 &keep",
        "cuMemAllocAsync &a 1000 0",
        "cuMemFreeAsync $a 0",
        "cuCtxSynchronize",
    ]);
    assert_eq!(free - client.memory().0, 32 * MIB, "below the threshold");
    client.ok(&[
        "cuMemPoolTrimTo $pool 0",
        "cuMemPoolGetAttribute $pool 6 &high",
    ]);
    assert_eq!((client.memory().0, client.value("high")), (free, 32 * MIB));
}

#[test]
fn a_managed_pool_takes_its_memory_from_the_gpu_that_it_prefers_or_the_current_one() {
    let machine = Machine::new("l4-24gb:2");
    let mut client = machine.client();
    client.start();
    let properties = |type_, max_size| CUmemPoolProps {
        allocType: CUmemAllocationType::MANAGED,
        location: CUmemLocation { type_, id: 1 },
        maxSize: max_size,
        ..Default::default()
    };
    let nowhere = CUmemLocationType(0);
    client.set("limited", properties(nowhere, 1));
    client.set("nowhere", properties(nowhere, 0));
    client.set("second", properties(CUmemLocationType::DEVICE, 0));
    assert_eq!(client.call("cuMemPoolCreate &pool &limited"), INVALID_VALUE);
    let (free, _) = client.memory();
    for (name, taken, kind) in [("nowhere", 32 * MIB, 0), ("second", 0, 1)] {
        client.ok(&[
            &format!("cuMemPoolCreate &pool &{name}"),
            "cuMemAllocFromPoolAsync &a 1000 $pool 0",
            "cuMemPoolGetAttribute $pool 9 &type",
            "cuMemPoolGetAttribute $pool 12 &location",
        ]);
        assert_eq!(free - client.memory().0, taken, "{name}");
        assert_eq!((client.value("type"), client.value("location")), (2, kind));
        client.ok(&["cuMemFreeAsync $a 0", "cuMemPoolDestroy $pool"]);
        assert_eq!(client.memory().0, free, "{name}: gone with its last piece");
    }
}

#[test]
fn stream_ordered_memory_is_of_the_streams_gpu() {
    let machine = Machine::new("l4-24gb:2");
    let mut client = machine.client();
    client.ok(&[
        "cuInit 0",
        "cuCtxCreate_v2 &first 0 0",
        "cuStreamCreate &stream 1",
        "cuCtxCreate_v2 &second 0 1",
        "cuDeviceGetMemPool &pool_of_first 0",
        "cuDeviceGetMemPool &pool_of_second 1",
    ]);
    client.ok(&[
        "cuMemAllocAsync &a 4096 $stream",
        "cuMemPoolGetAttribute $pool_of_first 5 &of_first",
        "cuMemPoolGetAttribute $pool_of_second 5 &of_second",
    ]);
    let reserved = ["of_first", "of_second"].map(|bytes| client.value(bytes));
    assert_eq!(reserved, [32 * MIB, 0], "not of the current context's");
}

#[test]
fn copies_arrive_and_stray_ones_are_refused() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    client.ok(&[
        "bytes text 68656c6c6f",
        "cuMemAlloc_v2 &a 5",
        "cuMemAlloc_v2 &b 5",
        "cuMemcpyHtoD_v2 $a &text 5",
    ]);
    client.ok(&[
        "cuMemcpyDtoD_v2 $b $a 5",
        "cuMemsetD8_v2 $a 33 5",
        "cuMemcpyDtoH_v2 &one $a 5",
        "cuMemcpyDtoH_v2 &two $b 5",
    ]);
    assert_eq!(
        (&client.bytes("one")[..5], &client.bytes("two")[..5]),
        (&b"!!!!!"[..], &b"hello"[..])
    );
    assert_eq!(client.call("cuMemcpyHtoD_v2 $a &text 6"), INVALID_VALUE);
    client.ok(&["cuMemFree_v2 $a"]);
    assert_eq!(client.call("cuMemcpyDtoH_v2 &one $a 5"), INVALID_VALUE);
}

#[test]
fn rectangles_are_copied_row_by_row() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    client.start();
    client.ok(&[
        "cuMemAllocPitch_v2 &a &pitch 4 3 4",
        "bytes rows 000102030405060708090a0b",
    ]);
    let pitch = client.value("pitch") as usize;
    assert_eq!(pitch, 512);
    let (device, host) = (client.value("a"), client.address("rows"));
    let to_device = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::HOST,
        srcHost: host as *const _,
        srcPitch: 4,
        dstMemoryType: CUmemorytype::DEVICE,
        dstDevice: device,
        dstPitch: pitch,
        WidthInBytes: 4,
        Height: 3,
        ..Default::default()
    };
    client.set("copy", to_device);
    client.ok(&["cuMemcpy2D_v2 &copy"]);
    // The two bytes in the middle of the last two rows.
    let address = client.address("piece");
    let to_host = CUDA_MEMCPY2D {
        srcMemoryType: CUmemorytype::UNIFIED,
        srcDevice: device,
        srcXInBytes: 1,
        srcY: 1,
        srcPitch: pitch,
        dstMemoryType: CUmemorytype::HOST,
        dstHost: address as *mut _,
        dstPitch: 2,
        WidthInBytes: 2,
        Height: 2,
        ..Default::default()
    };
    client.set("copy", to_host);
    client.ok(&["cuMemcpy2D_v2 &copy"]);
    assert_eq!(&client.bytes("piece")[..4], [5, 6, 9, 10]);
    client.set(
        "copy",
        CUDA_MEMCPY2D {
            Height: 4,
            srcXInBytes: 0,
            srcY: 0,
            ..to_host
        },
    );
    assert_eq!(
        client.call("cuMemcpy2D_v2 &copy"),
        INVALID_VALUE,
        "one row too many"
    );

    client.ok(&[
        "cuMemsetD2D16_v2 $a 512 513 1 3",
        "cuMemcpyDtoH_v2 &seen $a 1024",
    ]);
    let seen = client.bytes("seen");
    assert_eq!(
        (&seen[..4], &seen[512..516]),
        (&[1, 2, 2, 3][..], &[1, 2, 6, 7][..])
    );
}
