//! Graphs that allocate when they run.

use super::*;

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, and where the address comes to stand in it.
pub fn node_parameters(bytes: u64) -> Vec<u64> {
    [pool_properties(), vec![0, 0, bytes, 0]].concat()
}

const ADDRESS: usize = 14;

pub fn instantiate(world: &mut World, at: usize, graph: u64, leaves: Vec<u64>) {
    const AUTO_FREE_ON_LAUNCH: u64 = 1;
    let how = world.random.below(3);
    let actor = &mut world.actors[at];
    let graph_argument = Arg::Value(graph);
    let answer = match how {
        0 => {
            let arguments = [Arg::Out, graph_argument, Arg::Value(0)];
            actor.must("cuGraphInstantiateWithFlags", &arguments)
        }
        1 => {
            let flags = Arg::Value(AUTO_FREE_ON_LAUNCH);
            let arguments = [Arg::Out, graph_argument, flags];
            actor.must("cuGraphInstantiateWithFlags", &arguments)
        }
        _ => {
            let parameters = Arg::Words(vec![0; 4]);
            let arguments = [Arg::Out, graph_argument, parameters];
            actor.must("cuGraphInstantiateWithParams", &arguments)
        }
    };
    let exec = answer.place().expect("granted");
    actor.holds.graphs.push(Graph {
        handle: graph,
        exec,
        leaves,
        is_left: false,
    });
}

/// A graph that allocates a few times, one after the other, and frees some of it.
pub fn graph(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?;
    if world.actors[at].holds.graphs.len() > ENOUGH {
        return None;
    }
    let allocations = 1 + world.random.below(3);
    let made = world.actors[at].must("cuGraphCreate", &[Arg::Out, Arg::Value(0)]);
    let graph = made.place().expect("granted");
    let mut leaves = Vec::new();
    let mut last: Option<u64> = None;
    for _ in 0..allocations {
        let bytes = 1 + world.random.below(96 * MIB);
        let is_freed = !world.random.once_in(4);
        let actor = &mut world.actors[at];
        let after = |node: Option<u64>| {
            let count = Arg::Value(node.map_or(0, |_| 1));
            [Arg::Words(vec![node.unwrap_or(0)]), count]
        };
        let [from, count] = after(last);
        let parameters = Arg::Words(node_parameters(bytes));
        let arguments = [Arg::Out, Arg::Value(graph), from, count, parameters];
        let answer = actor.must("cuGraphAddMemAllocNode", &arguments);
        // The node, the one it comes after, and the parameters.
        let (node, address) = (answer.out[0], answer.out[2 + ADDRESS]);
        last = Some(node);
        if is_freed {
            let [from, count] = after(last);
            let arguments = [
                Arg::Out,
                Arg::Value(graph),
                from,
                count,
                Arg::Value(address),
            ];
            last = actor.must("cuGraphAddMemFreeNode", &arguments).place();
        } else {
            leaves.push(address);
        }
    }
    instantiate(world, at, graph, leaves);
    Some(())
}

/// The same by capturing a stream.
pub fn capture(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?;
    if world.actors[at].holds.graphs.len() > ENOUGH {
        return None;
    }
    let bytes = 1 + world.random.below(96 * MIB);
    let is_freed = !world.random.once_in(4);
    let mode = world.random.below(3);
    let actor = &mut world.actors[at];
    let stream = actor.must("cuStreamCreate", &[Arg::Out, Arg::Value(1)]);
    let stream = Arg::Value(stream.place().expect("granted"));
    actor.must(
        "cuStreamBeginCapture_v2",
        &[stream.clone(), Arg::Value(mode)],
    );
    let arguments = [Arg::Out, Arg::Value(bytes), stream.clone()];
    let allocated = actor.must("cuMemAllocAsync", &arguments);
    let address = allocated.place().expect("granted");
    if is_freed {
        actor.must("cuMemFreeAsync", &[Arg::Value(address), stream.clone()]);
    }
    let ended = actor.must("cuStreamEndCapture", &[stream.clone(), Arg::Out]);
    let graph = ended.place().expect("granted");
    actor.must("cuStreamDestroy_v2", &[stream]);
    let leaves = if is_freed { vec![] } else { vec![address] };
    instantiate(world, at, graph, leaves);
    Some(())
}

/// A capture becomes invalid by a call that it forbids, and is left open for long.
pub fn invalidate(world: &mut World, at: usize) -> Option<()> {
    const STREAM_CAPTURE_UNSUPPORTED: u64 = 900;
    const GLOBAL: u64 = 0;
    const NON_BLOCKING: u64 = 1;
    let actor = ready(world, at)?;
    if actor.holds.captured.len() > 3 {
        return None;
    }
    let stream = actor.must("cuStreamCreate", &[Arg::Out, Arg::Value(NON_BLOCKING)]);
    let stream = stream.place().expect("granted");
    let begin = [stream, GLOBAL].map(Arg::Value);
    actor.must("cuStreamBeginCapture_v2", &begin);
    let forbidden = actor.call("cuCtxSynchronize", &[]);
    assert_eq!(forbidden.result, STREAM_CAPTURE_UNSUPPORTED);
    actor.holds.captured.push(stream);
    Some(())
}

pub fn end_capture(world: &mut World, at: usize) -> Option<()> {
    const STREAM_CAPTURE_INVALIDATED: u64 = 901;
    let stream = pick(&mut world.random, &mut world.actors[at].holds.captured)?;
    let actor = &mut world.actors[at];
    let ended = actor.call("cuStreamEndCapture", &[Arg::Value(stream), Arg::Out]);
    assert_eq!(ended.result, STREAM_CAPTURE_INVALIDATED);
    actor.must("cuStreamDestroy_v2", &[Arg::Value(stream)]);
    Some(())
}

pub fn launch(world: &mut World, at: usize) -> Option<()> {
    let index = world.random.index(world.actors[at].holds.graphs.len())?;
    let upload = world.random.once_in(4);
    let actor = &mut world.actors[at];
    let exec = actor.holds.graphs[index].exec;
    if actor.holds.graphs[index].is_left {
        free_what_is_left(actor, index);
    }
    let name = if upload {
        "cuGraphUpload"
    } else {
        "cuGraphLaunch"
    };
    let answer = actor.call(name, &[Arg::Value(exec), Arg::Value(0)]);
    assert!(
        answer.is_granted() || answer.is_refused(),
        "{name} answered {}",
        answer.result
    );
    let graph = &mut actor.holds.graphs[index];
    graph.is_left = answer.is_granted() && !upload && !graph.leaves.is_empty();
    Some(())
}

pub fn free_what_is_left(actor: &mut Actor, index: usize) {
    let graph = &mut actor.holds.graphs[index];
    if std::mem::take(&mut graph.is_left) {
        for address in graph.leaves.clone() {
            actor.must("cuMemFreeAsync", &[Arg::Value(address), Arg::Value(0)]);
        }
    }
}

pub fn trim_graphs(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?.must("cuDeviceGraphMemTrim", &[Arg::Value(0)]);
    Some(())
}

pub fn end_graph(world: &mut World, at: usize) -> Option<()> {
    let index = world.random.index(world.actors[at].holds.graphs.len())?;
    let actor = &mut world.actors[at];
    free_what_is_left(actor, index);
    let graph = actor.holds.graphs.swap_remove(index);
    actor.must("cuGraphExecDestroy", &[Arg::Value(graph.exec)]);
    actor.must("cuGraphDestroy", &[Arg::Value(graph.handle)]);
    Some(())
}
