//! Stream capture: what becomes of work, how streams fork and join, what a capture does not survive.

use crate::launch::{load, parameters};
use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;
const ILLEGAL_STATE: u32 = 401;
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const IMPLICIT: u32 = 906;
const CAPTURED_EVENT: u32 = 907;
const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

/// A client with a module, two streams that do not wait for the legacy one, a stream that does, and three events.
fn ready(client: &mut Client, machine: &Machine) {
    client.start();
    load(client, machine);
    client.ok(&[
        "cuModuleGetFunction &fill $module \"sim_fill_u32\"",
        "cuModuleGetFunction &busy $module \"sim_busy_ms_5\"",
        "cuStreamCreate &s 1",
        "cuStreamCreate &t 1",
        "cuStreamCreate &blocking 0",
        "cuEventCreate &e 0",
        "cuEventCreate &f 0",
        "cuEventCreate &begin 0",
        "cuEventCreate &end 0",
        "cuMemAlloc_v2 &z 1024",
    ]);
}

fn begin(client: &mut Client, mode: u32) {
    client.ok(&[&format!("cuStreamBeginCapture_v2 $s {mode}")]);
}

/// 0 none, 1 active, 2 invalidated.
fn status(client: &mut Client, stream: &str) -> u32 {
    client.ok(&[&format!("cuStreamIsCapturing ${stream} &status")]);
    client.small_value("status")
}

const BUSY: &str = "cuLaunchKernel $busy 1 1 1 1 1 1 0 $s 0 0";

#[test]
fn captured_work_waits_for_the_launch_and_is_done_at_each() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine);
    client.set("value", 5u32);
    client.set("count", 2u32);
    client.set("source", [1u32, 2, 3, 4]);
    parameters(&mut client, &["z", "value", "count"]);
    begin(&mut client, GLOBAL);
    assert_eq!((status(&mut client, "s"), status(&mut client, "t")), (1, 0));
    client.ok(&[
        "cuMemcpyHtoDAsync_v2 $z &source 16 $s",
        "cuMemsetD32Async $z 9 3 $s",
        "cuLaunchKernel $fill 1 1 1 2 1 1 0 $s &parameters 0",
        BUSY,
        "cuMemcpyDtoHAsync_v2 &seen $z 16 $s",
        "cuStreamEndCapture $s &graph",
    ]);
    assert_eq!(status(&mut client, "s"), 0);
    assert_eq!(client.value("seen"), 0);
    client.ok(&["cuGraphInstantiateWithFlags &exec $graph 0"]);
    client.set("value", 6u32);
    for third in [9, 9] {
        client.set("seen", [0u32; 4]);
        client.ok(&[
            "cuEventRecord $begin $s",
            "cuGraphLaunch $exec $s",
            "cuEventRecord $end $s",
            "cuStreamSynchronize $s",
            "cuEventElapsedTime &ms $begin $end",
        ]);
        assert_eq!(
            client.value("seen"),
            5 << 32 | 5,
            "the value of the capture"
        );
        assert_eq!(client.bytes("seen")[8..16], [third, 0, 0, 0, 4, 0, 0, 0]);
        let ms = f32::from_ne_bytes(client.bytes("ms")[..4].try_into().expect("four"));
        assert!((5.0..5.1).contains(&ms), "{ms} ms");
    }
}

#[test]
fn streams_fork_and_join_by_events() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    begin(&mut client, GLOBAL);
    client.ok(&[
        BUSY,
        "cuEventRecord $e $s",
        "cuStreamWaitEvent $t $e 0",
        "cuLaunchKernel $busy 1 1 1 1 1 1 0 $t 0 0",
        BUSY,
    ]);
    assert_eq!(status(&mut client, "t"), 1);
    client.ok(&[
        "cuEventRecord $f $t",
        "cuStreamWaitEvent $s $f 0",
        "cuMemsetD8Async $z 0 8 $s",
    ]);
    client.ok(&["cuStreamGetCaptureInfo_v3 $s &status &id &graph &nodes &edges &count"]);
    assert_eq!(
        (client.small_value("status"), client.value("count")),
        (1, 1)
    );
    client.ok(&["cuStreamEndCapture $s &graph2"]);
    assert_eq!(client.value("graph"), client.value("graph2"));
    assert_eq!(status(&mut client, "t"), 0, "it left with the rest");
    for (order, count) in [
        ("cuGraphGetNodes $graph 0 &count", 4),
        ("cuGraphGetEdges $graph 0 0 &count", 4),
    ] {
        client.ok(&[order]);
        assert_eq!(client.value("count"), count, "{order}");
    }
}

#[test]
fn a_stream_that_has_not_joined_again_spoils_the_graph() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    begin(&mut client, GLOBAL);
    client.ok(&[
        "cuEventRecord $e $s",
        "cuStreamWaitEvent $t $e 0",
        "cuLaunchKernel $busy 1 1 1 1 1 1 0 $t 0 0",
    ]);
    assert_eq!(client.call("cuStreamEndCapture $s &graph"), 904);
    assert_eq!(client.value("graph"), 0);
    assert_eq!((status(&mut client, "s"), status(&mut client, "t")), (0, 0));
    // The other stream cannot end what it has not begun, and the attempt is the end of it.
    begin(&mut client, GLOBAL);
    client.ok(&["cuEventRecord $e $s", "cuStreamWaitEvent $t $e 0"]);
    assert_eq!(client.call("cuStreamEndCapture $t &graph"), 903);
    assert_eq!(client.call("cuStreamEndCapture $s &graph"), INVALIDATED);
    // A stream that only joined and did nothing has nothing to bring back.
    begin(&mut client, GLOBAL);
    client.ok(&[
        BUSY,
        "cuEventRecord $e $s",
        "cuStreamWaitEvent $t $e 0",
        "cuStreamEndCapture $s &graph",
    ]);
}

#[test]
fn waiting_for_a_captured_stream_ends_its_capture() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    client.ok(&["address &function abs"]);
    let load = format!(
        "cuModuleLoad &other \"{}\"",
        machine.path("kernels.ptx").display()
    );
    for order in [
        "cuStreamSynchronize $s",
        "cuStreamQuery $s",
        "cuCtxSynchronize",
        "cuStreamAddCallback $s $function 0 0",
        "cuMemAlloc_v2 &a 1024",
        "cuMemAllocManaged &a 1024 1",
        "cuMemAllocHost_v2 &a 1024",
        "cuMemFree_v2 $z",
        "cuMemcpyDtoH_v2 &seen $z 8",
        &*load,
        "cuEventQuery $f",
        "cuEventSynchronize $f",
    ] {
        begin(&mut client, GLOBAL);
        client.ok(&[BUSY]);
        assert_eq!(client.call(order), UNSUPPORTED, "{order}");
        assert_eq!(status(&mut client, "s"), 2, "{order}");
        assert_eq!(client.call(BUSY), INVALIDATED, "{order}");
        client.set("graph", 7u64);
        assert_eq!(client.call("cuStreamEndCapture $s &graph"), INVALIDATED);
        assert_eq!((client.value("graph"), status(&mut client, "s")), (0, 0));
        client.ok(&[BUSY, "cuStreamSynchronize $s"]);
    }
    client.ok(&["cuMemFree_v2 $z"]);
}

#[test]
fn the_modes_of_capture_and_thread_decide_which_capture_an_unsafe_call_ends() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    let here = "cuMemAlloc_v2 &a 1024";
    let elsewhere = "thread cuCtxSetCurrent $context ; cuMemAlloc_v2 &a 1024";
    client.set("relaxed", RELAXED);
    client.set("thread_local", THREAD_LOCAL);
    let [relaxed, local] = ["relaxed", "thread_local"].map(|mode| {
        format!(
            "thread cuCtxSetCurrent $context ; cuThreadExchangeStreamCaptureMode &{mode} ; cuMemAlloc_v2 &a 1024"
        )
    });
    for (mode, order, result) in [
        (GLOBAL, here, UNSUPPORTED),
        (GLOBAL, elsewhere, UNSUPPORTED),
        (GLOBAL, &*relaxed, 0),
        (GLOBAL, &*local, 0),
        (THREAD_LOCAL, here, UNSUPPORTED),
        (THREAD_LOCAL, elsewhere, 0),
        (RELAXED, here, 0),
        (RELAXED, elsewhere, 0),
    ] {
        client.set("relaxed", RELAXED);
        client.set("thread_local", THREAD_LOCAL);
        begin(&mut client, mode);
        assert_eq!(client.call(order), result, "mode {mode}: {order}");
        let ended = client.call("cuStreamEndCapture $s &graph");
        assert_eq!(ended, if result == 0 { 0 } else { INVALIDATED });
    }
    // The modes of a thread are exchanged, and there are three.
    client.set("mode", RELAXED);
    client.ok(&["cuThreadExchangeStreamCaptureMode &mode"]);
    assert_eq!(client.small_value("mode"), GLOBAL);
    begin(&mut client, GLOBAL);
    client.ok(&[here, "cuThreadExchangeStreamCaptureMode &mode"]);
    assert_eq!(client.small_value("mode"), RELAXED);
    client.set("mode", 3u32);
    assert_eq!(
        client.call("cuThreadExchangeStreamCaptureMode &mode"),
        INVALID_VALUE
    );
    assert_eq!(
        client.call("cuThreadExchangeStreamCaptureMode 0"),
        INVALID_VALUE
    );
    // Only a relaxed capture may be ended by another thread.
    assert_eq!(client.call("thread cuStreamEndCapture $s &graph"), 908);
    client.ok(&["cuStreamEndCapture $s &graph"]);
    begin(&mut client, RELAXED);
    client.ok(&["thread cuStreamEndCapture $s &graph"]);
}

#[test]
fn the_legacy_stream_is_barred_while_a_stream_it_would_wait_for_is_captured() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    assert_eq!(client.call("cuStreamBeginCapture_v2 0 0"), UNSUPPORTED);
    assert_eq!(client.call("cuStreamEndCapture 0 &graph"), ILLEGAL_STATE);
    client.ok(&["cuStreamBeginCapture_v2 $blocking 2"]);
    for order in [
        "cuStreamIsCapturing 0 &status",
        "cuStreamGetCaptureInfo_v2 0 &status 0 0 0 0",
    ] {
        assert_eq!(client.call(order), IMPLICIT, "{order}");
    }
    assert_eq!(status(&mut client, "blocking"), 1, "asking does no harm");
    assert_eq!(
        client.call("cuLaunchKernel $busy 1 1 1 1 1 1 0 0 0 0"),
        IMPLICIT
    );
    assert_eq!(status(&mut client, "blocking"), 2);
    assert_eq!(
        client.call("cuStreamEndCapture $blocking &graph"),
        INVALIDATED
    );
    // Streams that do not wait for it do not mind.
    begin(&mut client, GLOBAL);
    client.ok(&[
        "cuLaunchKernel $busy 1 1 1 1 1 1 0 0 0 0",
        "cuMemsetD8_v2 $z 1 8",
        "cuStreamIsCapturing 0 &status",
        "cuStreamEndCapture $s &graph",
    ]);
}

#[test]
fn a_threads_own_default_stream_can_be_captured() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    client.ok(&[
        "cuStreamBeginCapture_v2_ptsz 0 0",
        "cuLaunchKernel_ptsz $busy 1 1 1 1 1 1 0 0 0 0",
        "cuMemsetD8Async $z 3 8 2",
        "cuStreamIsCapturing_ptsz 0 &status",
        "cuStreamEndCapture 2 &graph",
        "cuGraphGetNodes $graph 0 &count",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphLaunch_ptsz $exec 0",
        "cuStreamSynchronize_ptsz 0",
        "cuMemcpyDtoH_v2 &seen $z 8",
    ]);
    assert_eq!(
        (client.small_value("status"), client.value("count")),
        (1, 2)
    );
    assert_eq!(client.value("seen"), 0x0303_0303_0303_0303);
    // It is the thread's: another thread's is not captured.
    client.ok(&["cuStreamBeginCapture_v2_ptsz 0 2"]);
    client.ok(&["thread cuCtxSetCurrent $context ; cuStreamIsCapturing_ptsz 0 &status"]);
    assert_eq!(client.small_value("status"), 0);
    client.ok(&["cuStreamEndCapture_ptsz 0 &graph"]);
}

#[test]
fn captures_do_not_mix_with_each_other_or_with_work_outside() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    client.ok(&["cuEventRecord $e $t", "cuStreamBeginCapture_v2 $s 2"]);
    assert_eq!(client.call("cuStreamWaitEvent $s $e 0"), 905, "isolation");
    assert_eq!(client.call("cuStreamEndCapture $s &graph"), INVALIDATED);

    client.ok(&[
        "cuStreamBeginCapture_v2 $s 2",
        "cuStreamBeginCapture_v2 $t 2",
    ]);
    client.ok(&["cuEventRecord $e $t"]);
    assert_eq!(client.call("cuStreamWaitEvent $s $e 0"), 902, "merge");
    for stream in ["s", "t"] {
        assert_eq!(
            client.call(&format!("cuStreamEndCapture ${stream} &graph")),
            INVALIDATED
        );
    }

    for order in ["cuEventQuery $e", "cuEventSynchronize $e"] {
        client.ok(&["cuStreamBeginCapture_v2 $s 2", "cuEventRecord $e $s"]);
        assert_eq!(client.call(order), CAPTURED_EVENT, "{order}");
        assert_eq!(client.call("cuStreamEndCapture $s &graph"), INVALIDATED);
    }
    // The capture has ended, and the event still stands for nodes of it.
    assert_eq!(client.call("cuStreamWaitEvent $t $e 0"), CAPTURED_EVENT);
    assert_eq!(client.call("cuEventElapsedTime &ms $e $e"), CAPTURED_EVENT);
    client.ok(&["cuEventRecord $e $t", "cuEventSynchronize $e"]);

    client.ok(&["cuStreamBeginCapture_v2 $s 2"]);
    assert_eq!(
        client.call("cuStreamBeginCapture_v2 $s 2"),
        ILLEGAL_STATE,
        "already"
    );
    assert_eq!(client.call("cuStreamEndCapture $s &graph"), INVALIDATED);
    assert_eq!(client.call("cuStreamEndCapture $s &graph"), ILLEGAL_STATE);
    assert_eq!(client.call("cuStreamBeginCapture_v2 $s 3"), INVALID_VALUE);
    assert_eq!(client.call("cuStreamEndCapture $s 0"), INVALID_VALUE);
    assert_eq!(client.call("cuStreamBeginCapture_v2 12345 0"), 400);
    assert_eq!(client.call("cuStreamIsCapturing $s 0"), INVALID_VALUE);
}

#[test]
fn memory_of_a_captured_stream_has_its_address_at_once_and_its_bytes_at_the_launch() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    let free = client.memory().0;
    begin(&mut client, GLOBAL);
    client.ok(&[
        &format!("cuMemAllocAsync &a {} $s", 64 * MIB),
        "cuMemsetD8Async $a 6 8 $s",
        "cuMemcpyDtoDAsync_v2 $z $a 8 $s",
        "cuMemFreeAsync $a $s",
        &format!("cuMemAllocAsync &b {} $s", 32 * MIB),
    ]);
    assert_eq!(client.value("b"), client.value("a"), "behind the free");
    // Only what a graph allocates can be freed by one.
    assert_eq!(client.call("cuMemFreeAsync $z $s"), INVALID_VALUE);
    client.ok(&[
        "cuStreamEndCapture $s &graph",
        "cuGraphInstantiateWithFlags &exec $graph 1",
    ]);
    assert_eq!(client.memory().0, free);
    client.ok(&["again 2 cuGraphLaunch $exec $s", "cuStreamSynchronize $s"]);
    assert_eq!(free - client.memory().0, 64 * MIB);
    client.ok(&["cuMemcpyDtoH_v2 &seen $z 8"]);
    assert_eq!(client.value("seen"), 0x0606_0606_0606_0606);
    client.ok(&[
        "cuMemFreeAsync $b $s",
        "cuGraphExecDestroy $exec",
        "cuDeviceGraphMemTrim 0",
    ]);
    assert_eq!(client.memory().0, free);

    // A pool says on which GPU.
    begin(&mut client, GLOBAL);
    client.ok(&[
        "cuDeviceGetDefaultMemPool &pool 0",
        "cuMemAllocFromPoolAsync &a 1048576 $pool $s",
    ]);
    assert_eq!(
        client.call("cuMemAllocFromPoolAsync &c 1048576 12345 $s"),
        INVALID_VALUE
    );
    assert_eq!(client.call("cuMemAllocAsync &c 0 $s"), INVALID_VALUE);
    client.ok(&["cuStreamEndCapture $s &graph"]);
    client.set("count", 1u64);
    client.ok(&[
        "cuGraphGetNodes $graph &node &count",
        "cuGraphMemAllocNodeGetParams $node &out",
    ]);
    let size = u64::from_ne_bytes(client.bytes("out")[104..112].try_into().expect("eight"));
    assert_eq!(size, MIB);
}

#[test]
fn a_capture_can_be_asked_and_steered() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    client.ok(&[
        "cuGraphCreate &graph 0",
        "cuGraphAddEmptyNode &root $graph 0 0",
    ]);
    client.ok(&["cuStreamBeginCaptureToGraph $s $graph &root 0 1 0", BUSY]);
    for order in [
        "cuGraphDestroy $graph",
        "cuGraphInstantiateWithFlags &exec $graph 0",
    ] {
        assert_eq!(
            client.call(order),
            INVALID_VALUE,
            "{order} while it is filled"
        );
    }
    client.ok(&[
        "cuGraphAddEmptyNode &extra $graph &root 1",
        "cuStreamUpdateCaptureDependencies $s &extra 1 0",
        "cuStreamGetCaptureInfo_v2 $s &status &id &graph2 &nodes &count",
    ]);
    assert_eq!(
        (client.value("count"), client.value("graph2")),
        (2, client.value("graph"))
    );
    client.ok(&[
        "cuStreamUpdateCaptureDependencies_v2 $s &root 0 1 1",
        "cuStreamGetCaptureInfo $s &status &id",
        BUSY,
        "cuStreamEndCapture $s &graph2",
        "cuGraphGetEdges $graph 0 0 &count",
        "cuGraphInstantiateWithFlags &exec $graph 0",
    ]);
    assert_eq!(client.value("count"), 3, "all behind the root");
    assert_eq!(
        client.call("cuStreamUpdateCaptureDependencies $s &root 1 0"),
        ILLEGAL_STATE
    );
    begin(&mut client, GLOBAL);
    for order in [
        "cuStreamUpdateCaptureDependencies $s &root 1 0",
        "cuStreamUpdateCaptureDependencies $s &root 0 2",
        "cuStreamGetCaptureInfo_v3 $s 0 0 0 0 0 0",
        "cuStreamGetCaptureInfo_v3 $s &status 0 0 0 &edges 0",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    let first = client.value("id");
    client.ok(&["cuStreamGetCaptureInfo $s &status &id"]);
    assert_ne!(client.value("id"), first, "each capture has its own");
}

#[test]
fn what_else_can_be_captured_becomes_the_node_of_its_kind() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    begin(&mut client, GLOBAL);
    client.ok(&[BUSY, "cuStreamEndCapture $s &inner"]);
    client.ok(&[
        "cuGraphInstantiateWithFlags &exec $inner 0",
        "address &function abs",
    ]);
    begin(&mut client, GLOBAL);
    client.ok(&[
        "cuLaunchHostFunc $s $function 5",
        "cuGraphLaunch $exec $s",
        "cuEventRecordWithFlags $e $s 1",
        "cuStreamWaitEvent $s $f 1",
        "cuStreamEndCapture $s &graph",
    ]);
    client.set("count", 4u64);
    client.ok(&["cuGraphGetNodes $graph &nodes &count"]);
    let nodes = client.bytes("nodes");
    let kinds = (0..4).map(|at| {
        let node = u64::from_ne_bytes(nodes[8 * at..8 * at + 8].try_into().expect("eight"));
        client.ok(&[&format!("cuGraphNodeGetType {node} &kind")]);
        client.small_value("kind")
    });
    assert_eq!(kinds.collect::<Vec<_>>(), [3, 4, 7, 6]);
    client.ok(&[
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphLaunch $exec $s",
        "cuEventSynchronize $e",
    ]);
    // Outside of a capture there are no such nodes.
    for order in [
        "cuEventRecordWithFlags $e $s 1",
        "cuStreamWaitEvent $s $e 1",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
}

#[test]
fn a_stream_that_goes_takes_its_capture_along() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine);
    begin(&mut client, GLOBAL);
    let beside = "cuLaunchKernel $busy 1 1 1 1 1 1 0 $t 0 0";
    let fork = ["cuEventRecord $e $s", "cuStreamWaitEvent $t $e 0", beside];
    client.ok(&fork);
    client.ok(&["cuStreamDestroy_v2 $t"]);
    assert_eq!(client.call("cuStreamEndCapture $s &graph"), 904, "unjoined");
    // One that has joined again may go.
    client.ok(&["cuStreamCreate &t 1"]);
    begin(&mut client, GLOBAL);
    client.ok(&fork);
    client.ok(&[
        "cuEventRecord $f $t",
        "cuStreamWaitEvent $s $f 0",
        "cuStreamDestroy_v2 $t",
        "cuStreamEndCapture $s &graph",
    ]);
    begin(&mut client, GLOBAL);
    client.ok(&["cuStreamDestroy_v2 $s", "cuMemAlloc_v2 &a 1024"]);
    // A launch with an attribute that names an event records it, in a capture too.
    client.ok(&["cuStreamCreate &s 1"]);
    let event = client.value("e");
    client.set(
        "attribute",
        CUlaunchAttribute {
            id: CUlaunchAttributeID::LAUNCH_COMPLETION_EVENT,
            value: [event, 0, 0, 0, 0, 0, 0, 0],
            ..CUlaunchAttribute::default()
        },
    );
    let config = CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        hStream: std::ptr::without_provenance_mut(client.value("s") as usize),
        attrs: std::ptr::without_provenance_mut(client.address("attribute") as usize),
        numAttrs: 1,
        ..CUlaunchConfig::default()
    };
    client.set("config", config);
    client.ok(&[
        "cuLaunchKernelEx &config $busy 0 0",
        "cuEventSynchronize $e",
    ]);
    begin(&mut client, RELAXED);
    client.ok(&["cuLaunchKernelEx &config $busy 0 0"]);
    assert_eq!(client.call("cuEventQuery $e"), CAPTURED_EVENT);
}
