//! Graphs: what launches do and how long they take, what can be asked and changed, what is refused.

use crate::launch::{load, parameters};
use crate::machine::{Client, Machine};
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

/// Parameters of a node that launches one thread, or as many as `threads`, in the variable `name`.
fn kernel(client: &mut Client, name: &str, function: &str, threads: u32, arguments: u64) {
    let node = CUDA_KERNEL_NODE_PARAMS {
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
    client.set(name, node);
}

fn fill(client: &mut Client, name: &str, address: &str, value: u32, elements: usize) {
    let dst = client.value(address);
    client.set(
        name,
        CUDA_MEMSET_NODE_PARAMS {
            dst,
            value,
            elementSize: 4,
            width: elements,
            height: 1,
            ..CUDA_MEMSET_NODE_PARAMS::default()
        },
    );
}

fn copy_to_host(client: &mut Client, name: &str, address: &str, place: &str, bytes: usize) {
    let (from, to) = (client.value(address), client.address(place));
    client.set(
        name,
        CUDA_MEMCPY3D {
            srcMemoryType: CUmemorytype::DEVICE,
            srcDevice: from,
            dstMemoryType: CUmemorytype::HOST,
            dstHost: std::ptr::without_provenance_mut(to as usize),
            WidthInBytes: bytes,
            Height: 1,
            Depth: 1,
            ..CUDA_MEMCPY3D::default()
        },
    );
}

fn call_host(client: &mut Client, name: &str, function: &str, data: u64) {
    client.ok(&[&format!("address &function {function}")]);
    let function = client.value("function");
    client.set(name, [function, data]);
}

/// Sets the variable `name` to the parameters of a node of this kind, from those in the variable `of`.
pub fn tagged(client: &mut Client, name: &str, kind: CUgraphNodeType, of: &str) {
    let mut parameters = CUgraphNodeParams {
        type_: kind,
        ..CUgraphNodeParams::default()
    };
    let given = client.bytes(of);
    for (place, word) in parameters.reserved1.iter_mut().zip(given.chunks_exact(8)) {
        *place = i64::from_ne_bytes(word.try_into().expect("eight bytes"));
    }
    client.set(name, parameters);
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
    // Added in the wrong order; the edges say: set, fill, copy.
    client.ok(&[
        "cuGraphAddMemcpyNode &copying $graph 0 0 &copy $context",
        "cuGraphAddKernelNode_v2 &filling $graph 0 0 &node",
        "cuGraphAddMemsetNode &setting $graph 0 0 &set $context",
    ]);
    client.list("from", &["setting", "filling"]);
    client.list("to", &["filling", "copying"]);
    client.ok(&["cuGraphAddDependencies $graph &from &to 2"]);
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
        "again 3000 cuGraphAddKernelNode_v2 &first $graph 0 0 &short",
        "cuGraphAddKernelNode_v2 &second $graph 0 0 &long",
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
        rank.ok(&["cuGraphAddKernelNode_v2 &first $graph 0 0 &node"]);
        kernel(rank, "node", "sim_rendezvous_2", 1, 0);
        rank.ok(&[
            "cuGraphAddKernelNode_v2 &second $graph &first 1 &node",
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
        "cuGraphAddMemsetNode &first $graph 0 0 &before $context",
        "cuGraphAddKernelNode_v2 &second $graph &first 1 &busy",
        "cuGraphAddHostNode &third $graph &second 1 &host",
        "cuGraphAddMemsetNode &last $graph &third 1 &after $context",
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
fn an_executable_graph_outlives_its_graph_and_does_not_follow_its_changes() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &[]);
    client.ok(&["cuMemAlloc_v2 &z 8"]);
    fill(&mut client, "set", "z", 3, 2);
    client.ok(&[
        "cuGraphAddMemsetNode &node $graph 0 0 &set $context",
        "cuGraphInstantiateWithFlags &exec $graph 0",
    ]);
    fill(&mut client, "set", "z", 4, 2);
    tagged(&mut client, "any", CUgraphNodeType::MEMSET, "set");
    client.ok(&["cuGraphNodeSetParams $node &any"]);
    launch(&mut client);
    client.ok(&["cuMemcpyDtoH_v2 &seen $z 8"]);
    assert_eq!(client.small_value("seen"), 3);

    client.ok(&["cuGraphExecUpdate_v2 $exec $graph &result"]);
    launch(&mut client);
    client.ok(&["cuMemcpyDtoH_v2 &seen $z 8"]);
    assert_eq!(client.small_value("seen"), 4, "updated");

    fill(&mut client, "set", "z", 5, 2);
    tagged(&mut client, "any", CUgraphNodeType::MEMSET, "set");
    client.ok(&["cuGraphExecNodeSetParams $exec $node &any"]);
    client.ok(&["cuGraphDestroyNode $node", "cuGraphDestroy $graph"]);
    launch(&mut client);
    client.ok(&["cuMemcpyDtoH_v2 &seen $z 8"]);
    assert_eq!(
        client.small_value("seen"),
        5,
        "set in the executable graph alone"
    );
    assert_eq!(
        client.call("cuGraphExecNodeSetParams $exec $node &any"),
        INVALID_VALUE,
        "the node is gone"
    );
    client.ok(&["cuGraphExecDestroy $exec"]);
    assert_eq!(client.call("cuGraphLaunch $exec 0"), INVALID_VALUE);
}

#[test]
fn nodes_of_an_executable_graph_can_be_switched_off_and_on() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine, &["sim_busy_ms_5", "sim_busy_ms_1"]);
    kernel(&mut client, "long", "sim_busy_ms_5", 1, 0);
    kernel(&mut client, "short", "sim_busy_ms_1", 1, 0);
    client.ok(&[
        "cuGraphAddKernelNode_v2 &one $graph 0 0 &long",
        "cuGraphAddKernelNode_v2 &two $graph &one 1 &short",
        "cuGraphAddEmptyNode &none $graph 0 0",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphNodeSetEnabled $exec $one 0",
        "cuGraphNodeGetEnabled $exec $one &on",
    ]);
    assert_eq!((client.small_value("on"), launch(&mut client)), (0, 1.0));
    tagged(&mut client, "any", CUgraphNodeType::KERNEL, "long");
    client.ok(&[
        "cuGraphNodeSetEnabled $exec $one 1",
        "cuGraphExecNodeSetParams $exec $two &any",
    ]);
    assert_eq!(launch(&mut client), 10.0);
    assert_eq!(
        client.call("cuGraphNodeSetEnabled $exec $none 0"),
        INVALID_VALUE
    );
}

#[test]
fn child_graphs_and_clones_are_copies() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client, &machine, &["sim_busy_ms_1", "sim_busy_ms_5"]);
    kernel(&mut client, "short", "sim_busy_ms_1", 1, 0);
    kernel(&mut client, "long", "sim_busy_ms_5", 1, 0);
    tagged(&mut client, "any", CUgraphNodeType::KERNEL, "long");
    client.ok(&[
        "cuGraphAddKernelNode_v2 &inner $graph 0 0 &short",
        "cuGraphCreate &parent 0",
        "cuGraphAddChildGraphNode &one $parent 0 0 $graph",
        "cuGraphAddChildGraphNode &two $parent &one 1 $graph",
        "cuGraphChildGraphNodeGetGraph $two &child",
        "cuGraphClone &clone $parent",
        "cuGraphNodeFindInClone &copy $one $clone",
        "cuGraphNodeSetParams_v2 $inner &any",
        "cuGraphInstantiateWithFlags &exec $parent 0",
    ]);
    assert_eq!(
        launch(&mut client),
        2.0,
        "the children kept the short kernel"
    );
    for order in [
        "cuGraphDestroy $child",
        "cuGraphInstantiateWithFlags &other $child 0",
        "cuGraphNodeFindInClone &copy $inner $clone",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    // The nodes of a child can be changed in the executable graph by their own handles.
    client.set("count", 1u64);
    client.ok(&[
        "cuGraphGetNodes $child &within &count",
        "cuGraphExecNodeSetParams $exec $within &any",
    ]);
    assert_eq!(launch(&mut client), 6.0);
    tagged(&mut client, "child", CUgraphNodeType::GRAPH, "graph");
    client.ok(&["cuGraphExecNodeSetParams $exec $one &child"]);
    assert_eq!(launch(&mut client), 10.0);
    client.ok(&["cuGraphDestroy $parent", "cuGraphDestroy $clone"]);
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
    client.ok(&[
        "cuGraphAddKernelNode_v2 &one $graph 0 0 &long",
        "cuGraphAddEventRecordNode &mark $graph &one 1 $begin",
        "cuGraphAddKernelNode_v2 &two $graph &mark 1 &short",
        "cuGraphAddEventRecordNode &other $graph &two 1 $end",
        "cuGraphAddEventWaitNode &waiting $graph 0 0 $begin",
        "cuGraphEventRecordNodeGetEvent $other &event",
        "cuGraphEventWaitNodeGetEvent $waiting &awaited",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphLaunch $exec 0",
        "cuStreamSynchronize 0",
    ]);
    assert_eq!(client.value("event"), client.value("end"));
    assert_eq!(client.value("awaited"), client.value("begin"));
    assert_eq!(elapsed(&mut client), 1.0);
    assert_eq!(
        client.call("cuGraphEventWaitNodeGetEvent $other &event"),
        INVALID_VALUE
    );
}

#[test]
fn the_shape_of_a_graph_can_be_read_back() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_1"]);
    kernel(&mut client, "node", "sim_busy_ms_1", 1, 0);
    client.ok(&[
        "cuGraphAddKernelNode_v2 &a $graph 0 0 &node",
        "cuGraphAddKernelNode_v2 &b $graph &a 1 &node",
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
    client.set("count", 3u64);
    client.ok(&["cuGraphGetEdges_v2 $graph &from &to 0 &count"]);
    assert_eq!(words(&mut client, "from")[..3], [a, a, b]);
    assert_eq!(words(&mut client, "to")[..3], [b, c, c]);
    client.set("count", 2u64);
    client.ok(&["cuGraphNodeGetDependencies $c &from &count"]);
    assert_eq!(words(&mut client, "from")[..2], [a, b]);
    client.set("count", 2u64);
    client.ok(&["cuGraphNodeGetDependentNodes_v2 $a &to 0 &count"]);
    assert_eq!(words(&mut client, "to")[..2], [b, c]);
    client.ok(&["cuGraphNodeGetType $c &kind"]);
    assert_eq!(client.small_value("kind"), 5);

    // Edges that say more than their ends are not passed over in silence.
    let data = CUgraphEdgeData {
        from_port: 1,
        type_: 1,
        ..CUgraphEdgeData::default()
    };
    client.set("data", data);
    client.ok(&["cuGraphRemoveDependencies $graph &a &b 1"]);
    assert_eq!(
        client.call("cuGraphRemoveDependencies $graph &a &b 1"),
        INVALID_VALUE
    );
    client.ok(&["cuGraphAddDependencies_v2 $graph &a &b &data 1"]);
    client.set("count", 3u64);
    assert_eq!(client.call("cuGraphGetEdges $graph &from &to &count"), 402);
    client.ok(&["cuGraphGetEdges_v2 $graph &from &to &edges &count"]);
    assert_eq!(client.bytes("edges")[..3], [1, 0, 1]);
    let path = machine.path("graph.dot");
    client.ok(&[&format!(
        "cuGraphDebugDotPrint $graph \"{}\" 0",
        path.display()
    )]);
    let text = std::fs::read_to_string(path).expect("written");
    assert_eq!(text.matches("->").count(), 3, "{text}");
    // Removing a node removes its edges.
    client.ok(&[
        "cuGraphDestroyNode $a",
        "cuGraphGetEdges_v2 $graph 0 0 0 &count",
    ]);
    assert_eq!(client.value("count"), 1);
}

#[test]
fn parameters_of_nodes_are_kept_as_they_were_given() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_fill_u32"]);
    client.ok(&["cuMemAlloc_v2 &z 16"]);
    client.set("value", 0x1234_5678u32);
    client.set("count", 4u32);
    parameters(&mut client, &["z", "value", "count"]);
    let arguments = client.address("parameters");
    kernel(&mut client, "node", "sim_fill_u32", 4, arguments);
    fill(&mut client, "set", "z", 9, 4);
    copy_to_host(&mut client, "copy", "z", "seen", 16);
    call_host(&mut client, "host", "abs", 7);
    client.ok(&[
        "cuGraphAddKernelNode_v2 &k $graph 0 0 &node",
        "cuGraphAddMemsetNode &s $graph 0 0 &set $context",
        "cuGraphAddMemcpyNode &c $graph 0 0 &copy $context",
        "cuGraphAddHostNode &h $graph 0 0 &host",
        "cuGraphKernelNodeGetParams_v2 $k &node2",
        "cuGraphMemsetNodeGetParams $s &set2",
        "cuGraphMemcpyNodeGetParams $c &copy2",
        "cuGraphHostNodeGetParams $h &host2",
    ]);
    for (name, bytes) in [("set", 40), ("copy", 200), ("host", 16)] {
        let (given, kept) = (client.bytes(name), client.bytes(&format!("{name}2")));
        assert_eq!(given[..bytes], kept[..bytes], "{name}");
    }
    assert_eq!(client.bytes("node2")[..32], client.bytes("node")[..32]);
    // The arguments are the node's own copies: a node made from what it says does the same.
    client.ok(&[
        "cuGraphCreate &other 0",
        "cuGraphAddKernelNode_v2 &again $other 0 0 &node2",
        "cuGraphInstantiateWithFlags &exec $other 0",
        "cuGraphLaunch $exec 0",
        "cuMemcpyDtoH_v2 &seen $z 16",
    ]);
    assert_eq!(client.value("seen"), 0x1234_5678_1234_5678);
    // The tagged union says the same.
    client.ok(&[
        "cuGraphNodeGetParams $s &any",
        "cuGraphAddNode_v2 &t $graph 0 0 0 &any",
    ]);
    client.ok(&["cuGraphMemsetNodeGetParams $t &set3"]);
    assert_eq!(client.bytes("set3")[..40], client.bytes("set")[..40]);
    // A kernel that was launched without attributes has none.
    client.set("attribute", [1u64; 8]);
    client.ok(&["cuGraphKernelNodeGetAttribute $k 2 &attribute"]);
    assert_eq!(client.value("attribute"), 0);
}

#[test]
fn a_graph_of_another_shape_does_not_update() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &["sim_busy_ms_1"]);
    kernel(&mut client, "node", "sim_busy_ms_1", 1, 0);
    client.ok(&[
        "cuGraphAddKernelNode_v2 &a $graph 0 0 &node",
        "cuGraphAddKernelNode_v2 &b $graph &a 1 &node",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphCreate &other 0",
        "cuGraphAddKernelNode_v2 &x $other 0 0 &node",
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
        "cuGraphDestroyNode $y",
        "cuGraphAddKernelNode_v2 &y $other 0 0 &node",
    ]);
    refused(&mut client, 2, "y");
    client.ok(&["cuGraphAddDependencies $other &x &y 1"]);
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
    client.set("host", CUDA_HOST_NODE_PARAMS::default());
    client.set("any", [99u64; 32]);
    tagged(&mut client, "launching", CUgraphNodeType::KERNEL, "node");
    tagged(&mut client, "empty", CUgraphNodeType::EMPTY, "any");
    client.ok(&[
        "cuGraphAddKernelNode_v2 &k $graph 0 0 &node",
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
        "cuGraphGetEdges_v2 $graph &from 0 0 &count",
        "cuGraphAddEmptyNode 0 $graph 0 0",
        "cuGraphAddEmptyNode &n $gone 0 0",
        "cuGraphAddEmptyNode &n $graph 0 1",
        "cuGraphAddEmptyNode &n $graph &foreign 1",
        "cuGraphAddEmptyNode &n $graph &graph 1",
        "cuGraphAddEmptyNode &n $graph &twice 2",
        "cuGraphAddKernelNode_v2 &n $graph 0 0 0",
        "cuGraphAddKernelNode_v2 &n $graph 0 0 &wide",
        "cuGraphAddKernelNode_v2 &n $graph 0 0 &nothing",
        "cuGraphAddMemsetNode &n $graph 0 0 &stray $context",
        "cuGraphAddMemcpyNode &n $graph 0 0 0 $context",
        "cuGraphAddHostNode &n $graph 0 0 &host",
        "cuGraphAddEventRecordNode &n $graph 0 0 $k",
        "cuGraphAddChildGraphNode &n $graph 0 0 $gone",
        "cuGraphAddNode_v2 &n $graph 0 0 0 0",
        "cuGraphAddNode_v2 &n $graph 0 0 0 &any",
        "cuGraphAddMemFreeNode &n $graph 0 0 4096",
        "cuGraphAddDependencies $graph &k &k 1",
        "cuGraphAddDependencies $graph &k &foreign 1",
        "cuGraphNodeGetType 0 &kind",
        "cuGraphNodeGetType $graph &kind",
        "cuGraphNodeGetType $k 0",
        "cuGraphMemcpyNodeGetParams $k &out",
        "cuGraphKernelNodeGetParams_v2 $foreign &out",
        "cuGraphKernelNodeGetAttribute $foreign 2 &out",
        "cuGraphMemAllocNodeGetParams $k &out",
        "cuGraphMemFreeNodeGetParams $k &out",
        "cuGraphChildGraphNodeGetGraph $k &out",
        "cuGraphDestroyNode $graph",
        "cuGraphInstantiateWithFlags 0 $graph 0",
        "cuGraphInstantiateWithFlags &e $gone 0",
        "cuGraphInstantiateWithFlags &e $graph 16",
        "cuGraphInstantiateWithFlags &e $graph 2",
        "cuGraphInstantiateWithParams &e $graph 0",
        "cuGraphLaunch 0 0",
        "cuGraphLaunch $graph 0",
        "cuGraphUpload $gone 0",
        "cuGraphExecDestroy 0",
        "cuGraphNodeSetParams $k &empty",
        "cuGraphNodeSetParams $foreign &launching",
        "cuGraphExecNodeSetParams $graph $k &launching",
        "cuGraphNodeSetEnabled $graph $k 1",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    client.ok(&["cuGraphInstantiateWithFlags &exec $graph 0"]);
    assert_eq!(client.call("cuGraphLaunch $exec 12345"), 400, "no stream");
    assert_eq!(
        client.call("cuGraphExecNodeSetParams $exec $foreign &launching"),
        INVALID_VALUE
    );
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

#[test]
fn a_cycle_cannot_be_instantiated_and_is_named() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &[]);
    client.ok(&[
        "cuGraphAddEmptyNode &root $graph 0 0",
        "cuGraphAddEmptyNode &a $graph &root 1",
        "cuGraphAddEmptyNode &b $graph &a 1",
        "cuGraphAddDependencies $graph &b &a 1",
    ]);
    client.set("parameters", CUDA_GRAPH_INSTANTIATE_PARAMS::default());
    assert_eq!(
        client.call("cuGraphInstantiateWithParams &exec $graph &parameters"),
        INVALID_VALUE
    );
    let told = client.bytes("parameters");
    let (node, result) = (&told[16..24], &told[24..28]);
    assert_eq!(
        (node, result),
        (&client.value("a").to_ne_bytes()[..], &[2, 0, 0, 0][..])
    );
    assert_eq!(
        client.call("cuGraphInstantiate_v2 &exec $graph &node &log 16"),
        INVALID_VALUE
    );
    assert_eq!(client.value("node"), client.value("a"));
    client.ok(&["cuGraphRemoveDependencies $graph &b &a 1"]);
    client.ok(&["cuGraphInstantiate_v2 &exec $graph &node &log 16"]);
    assert_eq!(client.value("node"), 0);
}

#[test]
fn a_user_object_ends_with_the_last_graph_that_has_it() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client, &machine, &[]);
    client.ok(&[
        "address &end _exit",
        "cuUserObjectCreate &object 7 $end 2 1",
        "cuGraphRetainUserObject $graph $object 1 1",
        "cuUserObjectRelease $object 1",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphClone &clone $graph",
        "cuGraphDestroy $graph",
        "cuGraphReleaseUserObject $clone $object 1",
    ]);
    for order in [
        "cuUserObjectCreate &other 7 0 1 1",
        "cuUserObjectCreate &other 7 $end 1 0",
        "cuGraphRetainUserObject $clone $object 0 0",
        "cuUserObjectRelease $object 2",
        "cuGraphReleaseUserObject $clone $object 1",
        "cuGraphRetainUserObject $clone 12345 1 0",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    client.tell("cuGraphExecDestroy $exec");
    assert_eq!(client.exit_code(), Some(7));
}
