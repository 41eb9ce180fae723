//! The memory of graphs: addresses, when the GPU's memory is taken and given back, who may free what.

use crate::launch::load;
use crate::machine::{Client, MIB, Machine};
use divvy_driver::sys::cuda::*;

const INVALID_VALUE: u32 = 1;
const OUT_OF_MEMORY: u32 = 2;

/// A client with a graph and parameters of allocation nodes of 64 MiB on device 0.
fn ready(client: &mut Client) {
    client.start();
    client.ok(&["cuGraphCreate &graph 0"]);
    allocation(client, 64 * MIB);
}

pub fn allocation(client: &mut Client, bytes: u64) {
    let location = CUmemLocation {
        type_: CUmemLocationType::DEVICE,
        id: 0,
    };
    let parameters = CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CUmemAllocationType::PINNED,
            location,
            ..CUmemPoolProps::default()
        },
        bytesize: bytes as usize,
        ..CUDA_MEM_ALLOC_NODE_PARAMS::default()
    };
    client.set("parameters", parameters);
}

/// Adds an allocation node behind `before` (a list and its length); its address goes to the variable `address`.
pub fn add_allocation(client: &mut Client, node: &str, before: &str, address: &str) {
    client.ok(&[&format!(
        "cuGraphAddMemAllocNode &{node} $graph {before} &parameters"
    )]);
    let at = size_of::<CUDA_MEM_ALLOC_NODE_PARAMS>() - 8;
    let bytes = client.bytes("parameters")[at..at + 8].to_vec();
    client.set(
        address,
        u64::from_ne_bytes(bytes.try_into().expect("eight")),
    );
}

/// `(used, reserved)` now, in MiB.
fn memory(client: &mut Client) -> (u64, u64) {
    client.ok(&[
        "cuDeviceGetGraphMemAttribute 0 0 &used",
        "cuDeviceGetGraphMemAttribute 0 2 &reserved",
    ]);
    (client.value("used") / MIB, client.value("reserved") / MIB)
}

#[test]
fn memory_is_taken_at_the_first_launch_and_kept_until_it_is_trimmed() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client);
    let free = client.memory().0;
    add_allocation(&mut client, "a", "0 0", "address");
    client.ok(&[
        "cuGraphAddMemFreeNode &f $graph &a 1 $address",
        "cuGraphInstantiateWithFlags &exec $graph 0",
    ]);
    assert_eq!((client.memory().0, memory(&mut client)), (free, (0, 0)));
    client.ok(&["again 3 cuGraphLaunch $exec 0", "cuCtxSynchronize"]);
    assert_eq!(memory(&mut client), (64, 64));
    assert_eq!(free - client.memory().0, 64 * MIB, "and only once");
    let seen = client.value("address");
    client.ok(&[
        "cuGraphMemAllocNodeGetParams $a &node",
        "cuGraphMemFreeNodeGetParams $f &freed",
    ]);
    assert_eq!(client.value("freed"), seen, "the address is the node's");

    client.ok(&["cuGraphExecDestroy $exec", "cuGraphDestroy $graph"]);
    assert_eq!(memory(&mut client), (0, 64), "nobody uses it, and it stays");
    assert_eq!(free - client.memory().0, 64 * MIB);
    client.ok(&["cuDeviceGraphMemTrim 0"]);
    assert_eq!((client.memory().0, memory(&mut client)), (free, (0, 0)));
    client.ok(&[
        "cuDeviceGetGraphMemAttribute 0 1 &used",
        "cuDeviceGetGraphMemAttribute 0 3 &reserved",
    ]);
    assert_eq!(
        (client.value("used"), client.value("reserved")),
        (64 * MIB, 64 * MIB)
    );
    client.set("zero", 0u64);
    client.ok(&[
        "cuDeviceSetGraphMemAttribute 0 3 &zero",
        "cuDeviceGetGraphMemAttribute 0 3 &reserved",
    ]);
    assert_eq!(client.value("reserved"), 0);
}

#[test]
fn an_upload_takes_the_memory_and_a_trim_makes_the_next_launch_take_it_again() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client);
    add_allocation(&mut client, "a", "0 0", "address");
    client.ok(&[
        "cuGraphAddMemFreeNode &f $graph &a 1 $address",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphUpload $exec 0",
    ]);
    assert_eq!(memory(&mut client), (64, 64));
    client.ok(&["cuDeviceGraphMemTrim 0"]);
    assert_eq!(memory(&mut client), (0, 0));
    client.ok(&["cuGraphLaunch $exec 0", "cuStreamSynchronize 0"]);
    assert_eq!(memory(&mut client), (64, 64));
    client.ok(&["cuGraphExecDestroy $exec"]);
    client.set(
        "instantiate",
        CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: 2,
            ..CUDA_GRAPH_INSTANTIATE_PARAMS::default()
        },
    );
    client.ok(&[
        "cuDeviceGraphMemTrim 0",
        "cuGraphInstantiateWithParams &exec $graph &instantiate",
    ]);
    assert_eq!(memory(&mut client), (64, 64), "uploaded by a flag");
}

#[test]
fn allocations_that_follow_each_other_share_addresses_and_those_that_do_not_do_not() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client);
    add_allocation(&mut client, "a", "0 0", "first");
    client.ok(&["cuGraphAddMemFreeNode &f $graph &a 1 $first"]);
    add_allocation(&mut client, "b", "0 0", "aside");
    add_allocation(&mut client, "c", "&f 1", "behind");
    add_allocation(&mut client, "d", "&f 1", "late");
    let [first, aside, behind, late] =
        ["first", "aside", "behind", "late"].map(|name| client.value(name));
    assert_eq!(behind, first);
    assert!(
        aside.abs_diff(first) >= 64 * MIB,
        "may run at the same time"
    );
    assert!(late.abs_diff(first) >= 64 * MIB, "taken again already");
    // All but the first live at the end, and not all at once.
    client.ok(&[
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphLaunch $exec 0",
    ]);
    assert_eq!(memory(&mut client), (192, 192));
    client.ok(&[
        "cuMemFree_v2 $aside",
        "cuMemFreeAsync $behind 0",
        "cuMemFree_v2 $late",
    ]);
    client.ok(&["cuGraphLaunch $exec 0"]);
}

#[test]
fn graphs_share_memory_unless_they_run_at_once() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.with_virtual_clock().client();
    ready(&mut client);
    load(&mut client, &machine);
    client.ok(&["cuModuleGetFunction &busy $module \"sim_busy_ms_5\""]);
    let node = CUDA_KERNEL_NODE_PARAMS {
        func: std::ptr::without_provenance_mut(client.value("busy") as usize),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 1,
        blockDimY: 1,
        blockDimZ: 1,
        ..CUDA_KERNEL_NODE_PARAMS::default()
    };
    client.set("node", node);
    for exec in ["one", "two"] {
        client.ok(&["cuGraphCreate &graph 0"]);
        add_allocation(&mut client, "a", "0 0", "address");
        client.ok(&[
            "cuGraphAddKernelNode_v2 &k $graph &a 1 &node",
            "cuGraphAddMemFreeNode &f $graph &k 1 $address",
            &format!("cuGraphInstantiateWithFlags &{exec} $graph 0"),
        ]);
    }
    client.ok(&[
        "cuStreamCreate &s 1",
        "cuStreamCreate &t 1",
        "cuGraphLaunch $one $s",
        "cuGraphLaunch $two $s",
    ]);
    assert_eq!(memory(&mut client), (64, 64), "one after the other");
    client.ok(&["cuStreamSynchronize $s", "cuGraphLaunch $one $t"]);
    assert_eq!(memory(&mut client), (64, 64), "the other has ended");
    client.ok(&["cuGraphLaunch $two $s"]);
    assert_eq!(memory(&mut client), (128, 128), "at once");
    client.ok(&["cuDeviceGraphMemTrim 0"]);
    assert_eq!(memory(&mut client).1, 128, "in flight");
    client.ok(&[
        "cuStreamSynchronize $s",
        "cuStreamSynchronize $t",
        "cuDeviceGraphMemTrim 0",
    ]);
    assert_eq!(memory(&mut client), (0, 0));
}

#[test]
fn what_a_graph_leaves_allocated_is_used_and_freed_from_outside() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client);
    add_allocation(&mut client, "a", "0 0", "address");
    client.ok(&["cuGraphInstantiateWithFlags &exec $graph 0"]);
    assert_eq!(
        client.call("cuMemsetD8_v2 $address 7 16"),
        INVALID_VALUE,
        "not yet"
    );
    client.ok(&[
        "cuGraphLaunch $exec 0",
        "cuMemsetD8_v2 $address 7 16",
        "cuMemcpyDtoH_v2 &seen $address 16",
        "cuMemGetAddressRange_v2 &base &size $address",
    ]);
    assert_eq!(client.value("seen"), 0x0707_0707_0707_0707);
    assert_eq!(client.value("size"), 64 * MIB);
    assert_eq!(
        client.call("cuGraphLaunch $exec 0"),
        INVALID_VALUE,
        "unfreed"
    );
    client.ok(&["cuMemFreeAsync $address 0"]);
    assert_eq!(
        client.call("cuMemFreeAsync $address 0"),
        INVALID_VALUE,
        "once"
    );
    assert_eq!(
        client.call("cuMemsetD8_v2 $address 7 16"),
        INVALID_VALUE,
        "freed"
    );
    client.ok(&["cuGraphLaunch $exec 0", "cuDeviceGraphMemTrim 0"]);
    assert_eq!(
        memory(&mut client),
        (64, 64),
        "it lives, and is not trimmed"
    );

    // Nor does it end with the graph.
    client.ok(&["cuGraphExecDestroy $exec", "cuGraphDestroy $graph"]);
    client.ok(&["cuMemsetD8_v2 $address 7 16", "cuDeviceGraphMemTrim 0"]);
    assert_eq!(memory(&mut client), (64, 64));
    client.ok(&["cuMemFree_v2 $address", "cuDeviceGraphMemTrim 0"]);
    assert_eq!(memory(&mut client), (0, 0));
}

#[test]
fn a_graph_can_free_at_its_next_launch_and_another_graph_can_free_for_it() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client);
    add_allocation(&mut client, "a", "0 0", "address");
    client.ok(&[
        "cuGraphInstantiateWithFlags &exec $graph 1",
        "again 5 cuGraphLaunch $exec 0",
    ]);
    assert_eq!(memory(&mut client), (64, 64));
    client.ok(&[
        "cuGraphCreate &other 0",
        "cuGraphAddMemFreeNode &f $other 0 0 $address",
        "cuGraphInstantiateWithFlags &freeing $other 0",
        "cuGraphLaunch $freeing 0",
    ]);
    assert_eq!(
        client.call("cuMemFree_v2 $address"),
        INVALID_VALUE,
        "freed already"
    );
    assert_eq!(
        client.call("cuGraphLaunch $freeing 0"),
        INVALID_VALUE,
        "nothing to free"
    );
    assert_eq!(
        client.call("cuGraphAddMemFreeNode &f $graph &a 1 $address"),
        INVALID_VALUE,
        "another graph frees it"
    );
    assert_eq!(
        client.call("cuGraphAddMemFreeNode &f $other 0 0 $address"),
        INVALID_VALUE,
        "twice in a graph"
    );
}

#[test]
fn memory_that_a_graph_frees_itself_no_call_may_free() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client);
    add_allocation(&mut client, "a", "0 0", "address");
    client.ok(&[
        "cuGraphAddMemFreeNode &f $graph &a 1 $address",
        "cuGraphCreate &other 0",
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuMemAlloc_v2 &plain 1024",
    ]);
    for order in [
        "cuGraphAddMemFreeNode &g $other 0 0 $address",
        "cuGraphAddMemFreeNode &g $graph &f 1 $address",
        "cuGraphAddMemFreeNode &g $graph 0 0 $plain",
        "cuMemFree_v2 $address",
        "cuMemFreeAsync $address 0",
        // Graphs that allocate or free are not copied, taken apart or instantiated twice.
        "cuGraphClone &copy $graph",
        "cuGraphAddChildGraphNode &child $other 0 0 $graph",
        "cuGraphDestroyNode $f",
        "cuGraphRemoveDependencies $graph &a &f 1",
        "cuGraphInstantiateWithFlags &second $graph 0",
    ] {
        assert_eq!(client.call(order), INVALID_VALUE, "{order}");
    }
    client.ok(&[
        "cuGraphExecDestroy $exec",
        "cuGraphInstantiateWithFlags &exec $graph 0",
    ]);
    // Moved, it can be a child.
    client.ok(&["cuGraphExecDestroy $exec"]);
    let mut child = CUgraphNodeParams {
        type_: CUgraphNodeType::GRAPH,
        ..CUgraphNodeParams::default()
    };
    child.reserved1[0] = client.value("graph") as i64;
    child.reserved1[1] = i64::from(CUgraphChildGraphNodeOwnership::MOVE.0);
    client.set("child", child);
    client.ok(&[
        "cuGraphAddNode_v2 &node $other 0 0 0 &child",
        "cuGraphInstantiateWithFlags &exec $other 0",
        "cuGraphLaunch $exec 0",
    ]);
    assert_eq!(memory(&mut client), (64, 64));
    assert_eq!(client.call("cuGraphDestroy $graph"), INVALID_VALUE);
}

#[test]
fn a_launch_on_a_full_gpu_is_out_of_memory_and_changes_nothing() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client);
    add_allocation(&mut client, "a", "0 0", "address");
    client.ok(&["cuGraphInstantiateWithFlags &exec $graph 0"]);
    let hog = client.memory().0 - 63 * MIB;
    client.ok(&[&format!("cuMemAlloc_v2 &hog {hog}")]);
    let free = client.memory().0;
    assert_eq!(client.call("cuGraphLaunch $exec 0"), OUT_OF_MEMORY);
    assert_eq!(client.call("cuGraphUpload $exec 0"), OUT_OF_MEMORY);
    assert_eq!((client.memory().0, memory(&mut client)), (free, (0, 0)));
    assert_eq!(client.call("cuMemsetD8_v2 $address 0 1"), INVALID_VALUE);
    client.ok(&["cuMemFree_v2 $hog", "cuGraphLaunch $exec 0"]);
    // What could never fit is refused where it is asked for.
    allocation(&mut client, 1 << 40);
    assert_eq!(
        client.call("cuGraphAddMemAllocNode &b $graph 0 0 &parameters"),
        OUT_OF_MEMORY
    );
    allocation(&mut client, 0);
    assert_eq!(
        client.call("cuGraphAddMemAllocNode &b $graph 0 0 &parameters"),
        INVALID_VALUE
    );
}

#[test]
fn nvml_shows_the_memory_of_graphs_and_death_gives_it_back() {
    let machine = Machine::new("a100-40gb:1");
    let mut client = machine.client();
    ready(&mut client);
    let mut watcher = machine.client();
    watcher.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &gpu"]);
    let used = |watcher: &mut Client| {
        watcher.ok(&["nvmlDeviceGetMemoryInfo $gpu &info"]);
        u64::from_ne_bytes(watcher.bytes("info")[16..24].try_into().expect("eight"))
    };
    let before = used(&mut watcher);
    add_allocation(&mut client, "a", "0 0", "address");
    client.ok(&[
        "cuGraphInstantiateWithFlags &exec $graph 0",
        "cuGraphLaunch $exec 0",
    ]);
    assert_eq!(used(&mut watcher) - before, 64 * MIB);
    client.stop();
    assert!(used(&mut watcher) < before, "the context went too");
}

#[test]
fn bad_questions_about_graph_memory_are_refused() {
    let machine = Machine::new("l4-24gb:1");
    let mut client = machine.client();
    ready(&mut client);
    client.set("one", 1u64);
    client.set("zero", 0u64);
    for (order, code) in [
        ("cuDeviceGraphMemTrim 7", 101),
        ("cuDeviceGetGraphMemAttribute 7 0 &one", 101),
        ("cuDeviceGetGraphMemAttribute 0 9 &one", INVALID_VALUE),
        ("cuDeviceGetGraphMemAttribute 0 0 0", INVALID_VALUE),
        ("cuDeviceSetGraphMemAttribute 0 1 &one", INVALID_VALUE),
        ("cuDeviceSetGraphMemAttribute 0 0 &zero", INVALID_VALUE),
        ("cuDeviceSetGraphMemAttribute 0 1 &zero", 0),
    ] {
        assert_eq!(client.call(order), code, "{order}");
    }
}
