//! Graphs: what launches do and how long they take, what can be asked and changed, what is refused.

use crate::launch::{load, parameters};
use crate::machine::{Client, Machine, tagged};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;

/// A client with a loaded module, its functions by their names, a graph and two events.
fn ready(client: &mut Client, machine: &Machine, kernels: &[&str]) {
    client.start();
    load(client, machine);
    for kernel in kernels {
        client.ok(&[&format!(
            "cuModuleGetFunction &{kernel} $module \"{kernel}\""
        )]);
    }
    client.ok(&[
        "cuGraphCreate &graph 0",
        "cuEventCreate &begin 0",
        "cuEventCreate &end 0",
    ]);
}

/// Sets the variable `name` to the parameters of a node of this kind.
fn node<T: Copy>(client: &mut Client, name: &str, kind: CUgraphNodeType, member: T) {
    client.set(name, tagged(kind, member));
}

/// A node that launches one thread, or as many as `threads`.
fn kernel(client: &mut Client, name: &str, function: &str, threads: u32, arguments: u64) {
    let member = CUDA_KERNEL_NODE_PARAMS {
        func: std::ptr::without_provenance_mut(client.value(function) as usize),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: threads,
        blockDimY: 1,
        blockDimZ: 1,
        kernelParams: std::ptr::without_provenance_mut(arguments as usize),
        ..CUDA_KERNEL_NODE_PARAMS::default()
    };
    node(client, name, CUgraphNodeType::KERNEL, member);
}

fn fill(client: &mut Client, name: &str, address: &str, value: u32, elements: usize) {
    let member = CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: client.value(address),
        value,
        elementSize: 4,
        width: elements,
        height: 1,
        ..CUDA_MEMSET_NODE_PARAMS_v2::default()
    };
    node(client, name, CUgraphNodeType::MEMSET, member);
}

fn copy_to_host(client: &mut Client, name: &str, address: &str, place: &str, bytes: usize) {
    let (from, to) = (client.value(address), client.address(place));
    let copy = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::DEVICE,
        srcDevice: from,
        dstMemoryType: CUmemorytype::HOST,
        dstHost: std::ptr::without_provenance_mut(to as usize),
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    let member = CUDA_MEMCPY_NODE_PARAMS {
        copyParams: copy,
        ..CUDA_MEMCPY_NODE_PARAMS::default()
    };
    node(client, name, CUgraphNodeType::MEMCPY, member);
}

fn call_host(client: &mut Client, name: &str, function: &str, data: u64) {
    client.ok(&[&format!("address &function {function}")]);
    let function = client.value("function");
    node(client, name, CUgraphNodeType::HOST, [function, data]);
}

fn elapsed(client: &mut Client) -> f32 {
    client.ok(&["cuEventElapsedTime &ms $begin $end"]);
    f32::from_ne_bytes(client.bytes("ms")[..4].try_into().expect("four"))
}

/// Launches the executable graph between the two events and waits for it.
fn launch(client: &mut Client) -> f32 {
    client.ok(&[
        "cuEventRecord $begin 0",
        "cuGraphLaunch $exec 0",
        "cuEventRecord $end 0",
        "cuEventSynchronize $end",
    ]);
    elapsed(client)
}

#[test]
fn nodes_run_in_the_order_of_their_edges_and_with_the_arguments_they_were_given() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_fill_u32"]);
    client.ok(&["cuMemAlloc_v2 &z 16", "cuMemsetD8_v2 $z 0 16"]);
    client.set("value", 5u32);
    client.set("count", 2u32);
    parameters(&mut client, &["z", "value", "count"]);
    let arguments = client.address("parameters");
    kernel(&mut client, "node", "sim_fill_u32", 2, arguments);
    fill(&mut client, "set", "z", 9, 4);
    copy_to_host(&mut client, "copy", "z", "seen", 16);
    client.ok(&[
        "cuGraphAddNode &setting $graph 0 0 &set",
        "cuGraphAddNode &filling $graph &setting 1 &node",
        "cuGraphAddNode &copying $graph &filling 1 &copy",
    ]);
    // A node keeps its own copy of the arguments.
    client.set("value", 6u32);
    client.ok(&["cuGraphInstantiateWithFlags &exec $graph 0"]);
    assert_eq!(client.value("seen"), 0, "nothing runs before the launch");
    launch(&mut client);
    assert_eq!(client.value("seen"), 5 << 32 | 5);
    assert_eq!(client.bytes("seen")[8..16], [9, 0, 0, 0, 9, 0, 0, 0]);
}

#[test]
fn a_launch_takes_as_long_as_its_kernels_and_does_not_wait() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine, &["sim_busy_us_250", "sim_busy_ms_5"]);
    kernel(&mut client, "short", "sim_busy_us_250", 1, 0);
    kernel(&mut client, "long", "sim_busy_ms_5", 1, 0);
    // More nodes than the GPU's queue has entries.
    client.ok(&[
        "again 3000 cuGraphAddNode &first $graph 0 0 &short",
        "cuGraphAddNode &second $graph 0 0 &long",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuEventRecord $begin 0",
        "again 100 cuGraphLaunch $exec 0",
        "cuEventRecord $end 0",
    ]);
    assert_eq!(client.call("cuEventQuery $end"), 600);
    client.ok(&["cuEventSynchronize $end"]);
    assert_eq!(elapsed(&mut client), 100.0 * (3000.0 * 0.25 + 5.0));
}

#[test]
fn configured_durations_and_meetings_hold_in_graphs() {
    let machine = Machine::new("l4-24gb:1");
    let config = "clock = 'virtual'\n[[kernel]]\nname = 'configured*'\nns = 3_000_000";
    let mut ranks = [(); 2].map(|()| machine.with_config(config).client());
    for rank in &mut ranks {
        ready(rank, &machine, &["configured_kernel", "sim_rendezvous_2"]);
        kernel(rank, "node", "configured_kernel", 1, 0);
        rank.ok(&["cuGraphAddNode &first $graph 0 0 &node"]);
        kernel(rank, "node", "sim_rendezvous_2", 1, 0);
        rank.ok(&[
            "cuGraphAddNode &second $graph &first 1 &node",
            "cuGraphInstantiateWithFlags &exec $graph 0",
        ]);
    }
    // Both have a context by now, so time stands until both wait.
    for rank in &mut ranks {
        rank.ok(&[
            "cuEventRecord $begin 0",
            "again 3 cuGraphLaunch $exec 0",
            "cuEventRecord $end 0",
        ]);
        rank.tell("cuEventSynchronize $end");
    }
    for rank in &mut ranks {
        assert_eq!(rank.answer(), "0");
        // Both ranks' work, and what one spins while the other has its turn.
        let took = elapsed(rank);
        assert!((18.0..=24.0).contains(&took), "{took} ms");
    }
}

#[test]
fn host_nodes_run_in_their_turn_and_later_nodes_wait_for_them() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_5"]);
    client.ok(&["cuMemAlloc_v2 &z 8"]);
    fill(&mut client, "before", "z", 1, 2);
    fill(&mut client, "after", "z", 2, 2);
    kernel(&mut client, "busy", "sim_busy_ms_5", 1, 0);
    call_host(&mut client, "host", "usleep", 20_000);
    client.ok(&[
        "cuGraphAddNode &first $graph 0 0 &before",
        "cuGraphAddNode &second $graph &first 1 &busy",
        "cuGraphAddNode &third $graph &second 1 &host",
        "cuGraphAddNode &last $graph &third 1 &after",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuEventRecord $begin 0",
        "cuGraphLaunch $exec 0",
        "cuEventRecord $end 0",
        // A copy waits for host functions before it, and so for what comes after them in their graph.
        "cuMemcpyDtoH_v2 &seen $z 8",
    ]);
    assert_eq!(client.value("seen"), 2 << 32 | 2);
    client.ok(&["cuEventSynchronize $end"]);
    let took = elapsed(&mut client);
    assert!(took >= 25.0, "5 ms of work and 20 ms of sleep: {took} ms");
}

#[test]
fn an_executable_graph_outlives_its_graph_and_is_updated_from_another() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &[]);
    client.ok(&["cuMemAlloc_v2 &z 8"]);
    fill(&mut client, "set", "z", 3, 2);
    client.ok(&[
        "cuGraphAddNode &node $graph 0 0 &set",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphDestroy $graph",
    ]);
    launch(&mut client);
    client.ok(&["cuMemcpyDtoH_v2 &seen $z 8"]);
    assert_eq!(client.small_value("seen"), 3);

    fill(&mut client, "set", "z", 4, 2);
    client.ok(&[
        "cuGraphCreate &other 0",
        "cuGraphAddNode &node $other 0 0 &set",
        "cuGraphExecUpdate_v2 $exec $other &result",
    ]);
    launch(&mut client);
    client.ok(&["cuMemcpyDtoH_v2 &seen $z 8"]);
    assert_eq!(client.small_value("seen"), 4, "updated");
    client.ok(&["cuGraphExecDestroy $exec"]);
    assert_eq!(client.call("cuGraphLaunch $exec 0"), INVALID_VALUE);
}

#[test]
fn child_graphs_and_clones_are_copies() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine, &["sim_busy_ms_1"]);
    kernel(&mut client, "short", "sim_busy_ms_1", 1, 0);
    client.ok(&[
        "cuGraphAddNode &inner $graph 0 0 &short",
        "cuGraphCreate &parent 0",
        "cuGraphAddChildGraphNode &one $parent 0 0 $graph",
        "cuGraphAddChildGraphNode &two $parent &one 1 $graph",
        "cuGraphChildGraphNodeGetGraph $two &child",
        "cuGraphClone &clone $parent",
        "cuGraphAddNode &later $graph &inner 1 &short",
        "cuGraphInstantiateWithFlags &exec $parent 0",
    ]);
    assert_eq!(launch(&mut client), 2.0, "the children kept their one node");
    for order in [
        "cuGraphDestroy $child",
        "cuGraphInstantiateWithFlags &other $child 0",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    client.set("count", 1u64);
    client.ok(&[
        "cuGraphGetNodes $child &within &count",
        "cuGraphDestroy $parent",
        "cuGraphInstantiateWithFlags &exec $clone 0",
    ]);
    assert_eq!(launch(&mut client), 2.0, "the clone stays");
    client.ok(&["cuGraphDestroy $clone"]);
    assert_eq!(
        client.call("cuGraphNodeGetType $within &kind"),
        INVALID_VALUE
    );
}

#[test]
fn event_nodes_record_where_they_stand() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine, &["sim_busy_ms_5", "sim_busy_ms_1"]);
    kernel(&mut client, "long", "sim_busy_ms_5", 1, 0);
    kernel(&mut client, "short", "sim_busy_ms_1", 1, 0);
    let [begin, end] = ["begin", "end"].map(|event| client.value(event));
    node(&mut client, "first", CUgraphNodeType::EVENT_RECORD, begin);
    node(&mut client, "last", CUgraphNodeType::EVENT_RECORD, end);
    node(&mut client, "wait", CUgraphNodeType::WAIT_EVENT, begin);
    client.ok(&[
        "cuGraphAddNode &one $graph 0 0 &long",
        "cuGraphAddNode &mark $graph &one 1 &first",
        "cuGraphAddNode &two $graph &mark 1 &short",
        "cuGraphAddNode &other $graph &two 1 &last",
        "cuGraphAddNode &waiting $graph 0 0 &wait",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphLaunch $exec 0",
        "cuStreamSynchronize 0",
    ]);
    assert_eq!(elapsed(&mut client), 1.0);
}

#[test]
fn the_nodes_of_a_graph_can_be_listed() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_1"]);
    kernel(&mut client, "node", "sim_busy_ms_1", 1, 0);
    client.ok(&[
        "cuGraphAddNode &a $graph 0 0 &node",
        "cuGraphAddNode &b $graph &a 1 &node",
    ]);
    client.list("both", &["a", "b"]);
    client.ok(&["cuGraphAddEmptyNode &c $graph &both 2"]);
    let [a, b, c] = ["a", "b", "c"].map(|name| client.value(name));
    let words = |client: &mut Client, name: &str| -> Vec<u64> {
        let bytes = client.bytes(name);
        let words = bytes.chunks(8).take(4);
        words
            .map(|word| u64::from_ne_bytes(word.try_into().expect("eight")))
            .collect()
    };
    // More room than nodes: the rest is NULL.
    client.set("list", [7u64; 4]);
    client.set("count", 4u64);
    client.ok(&["cuGraphGetNodes $graph &list &count"]);
    assert_eq!(
        (client.value("count"), words(&mut client, "list")),
        (3, vec![a, b, c, 0])
    );
    client.ok(&["cuGraphGetNodes $graph 0 &count"]);
    assert_eq!(client.value("count"), 3);
    // Less room: as many as fit.
    client.set("count", 1u64);
    client.set("list", [7u64; 4]);
    client.ok(&["cuGraphGetNodes $graph &list &count"]);
    assert_eq!(
        (
            client.value("count"),
            words(&mut client, "list")[..2].to_vec()
        ),
        (1, vec![a, 7])
    );
    client.ok(&["cuGraphNodeGetType $c &kind"]);
    assert_eq!(client.small_value("kind"), 5);
}

#[test]
fn a_graph_of_another_shape_does_not_update() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_1"]);
    kernel(&mut client, "node", "sim_busy_ms_1", 1, 0);
    client.ok(&[
        "cuGraphAddNode &a $graph 0 0 &node",
        "cuGraphAddNode &b $graph &a 1 &node",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphCreate &other 0",
        "cuGraphAddNode &x $other 0 0 &node",
    ]);
    let refused = |client: &mut Client, verdict: u32, node: &str| {
        assert_eq!(client.call("cuGraphExecUpdate_v2 $exec $other &info"), 910);
        let at = if node == "0" { 0 } else { client.value(node) };
        let told = u64::from_ne_bytes(client.bytes("info")[8..16].try_into().expect("eight"));
        assert_eq!((client.small_value("info"), told), (verdict, at));
    };
    refused(&mut client, 2, "0");
    client.ok(&["cuGraphAddEmptyNode &y $other &x 1"]);
    refused(&mut client, 3, "y");
    client.ok(&[
        "cuGraphCreate &other 0",
        "cuGraphAddNode &x $other 0 0 &node",
        "cuGraphAddNode &y $other 0 0 &node",
    ]);
    refused(&mut client, 2, "y");
    client.ok(&[
        "cuGraphCreate &other 0",
        "cuGraphAddNode &x $other 0 0 &node",
        "cuGraphAddNode &y $other &x 1 &node",
    ]);
    assert_eq!(
        client.call("cuGraphExecUpdate $exec $other &node &result"),
        0
    );
    assert_eq!(client.small_value("result"), 0);
}

#[test]
fn what_is_not_there_or_of_another_kind_is_an_invalid_value() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_1"]);
    kernel(&mut client, "node", "sim_busy_ms_1", 1, 0);
    kernel(&mut client, "wide", "sim_busy_ms_1", 2048, 0);
    kernel(&mut client, "nothing", "unset", 1, 0);
    fill(&mut client, "stray", "unset", 1, 1);
    node(&mut client, "host", CUgraphNodeType::HOST, [0u64; 2]);
    node(&mut client, "record", CUgraphNodeType::EVENT_RECORD, 1u64);
    client.set("any", [99u64; 32]);
    client.ok(&[
        "cuGraphAddNode &k $graph 0 0 &node",
        "cuGraphCreate &other 0",
        "cuGraphAddEmptyNode &foreign $other 0 0",
        "cuGraphCreate &gone 0",
        "cuGraphDestroy $gone",
    ]);
    client.list("twice", &["k", "k"]);
    for order in [
        "cuGraphCreate 0 0",
        "cuGraphCreate &g 1",
        "cuGraphDestroy 0",
        "cuGraphDestroy $gone",
        "cuGraphDestroy $k",
        "cuGraphClone &g $gone",
        "cuGraphClone 0 $graph",
        "cuGraphGetNodes $gone 0 &count",
        "cuGraphGetNodes $graph 0 0",
        "cuGraphAddEmptyNode 0 $graph 0 0",
        "cuGraphAddEmptyNode &n $gone 0 0",
        "cuGraphAddEmptyNode &n $graph 0 1",
        "cuGraphAddEmptyNode &n $graph &foreign 1",
        "cuGraphAddEmptyNode &n $graph &graph 1",
        "cuGraphAddEmptyNode &n $graph &twice 2",
        "cuGraphAddNode &n $graph 0 0 &wide",
        "cuGraphAddNode &n $graph 0 0 &nothing",
        "cuGraphAddNode &n $graph 0 0 &stray",
        "cuGraphAddNode &n $graph 0 0 0",
        "cuGraphAddNode &n $graph 0 0 &host",
        "cuGraphAddNode &n $graph 0 0 &record",
        "cuGraphAddChildGraphNode &n $graph 0 0 $gone",
        "cuGraphAddNode_v2 &n $graph 0 0 0 0",
        "cuGraphAddNode_v2 &n $graph 0 0 0 &any",
        "cuGraphAddMemFreeNode &n $graph 0 0 4096",
        "cuGraphNodeGetType 0 &kind",
        "cuGraphNodeGetType $graph &kind",
        "cuGraphNodeGetType $k 0",
        "cuGraphMemAllocNodeGetParams $k &out",
        "cuGraphMemFreeNodeGetParams $k &out",
        "cuGraphChildGraphNodeGetGraph $k &out",
        "cuGraphInstantiateWithFlags 0 $graph 0",
        "cuGraphInstantiateWithFlags &e $gone 0",
        "cuGraphInstantiateWithFlags &e $graph 16",
        "cuGraphInstantiateWithFlags &e $graph 2",
        "cuGraphInstantiateWithParams &e $graph 0",
        "cuGraphLaunch 0 0",
        "cuGraphLaunch $graph 0",
        "cuGraphUpload $gone 0",
        "cuGraphExecDestroy 0",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    client.ok(&["cuGraphInstantiateWithFlags &exec $graph 0"]);
    assert_eq!(client.call("cuGraphLaunch $exec 12345"), 400, "no stream");
    client.ok(&["cuModuleUnload $module"]);
    assert_eq!(
        client.call("cuGraphLaunch $exec 0"),
        400,
        "the kernel is gone"
    );
    // Nodes that are not simulated say so.
    client.set("conditional", [13u64; 32]);
    assert_eq!(
        client.call("cuGraphAddNode_v2 &n $graph 0 0 0 &conditional"),
        801
    );
}
