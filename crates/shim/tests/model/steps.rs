//! What can happen. Each step is what programs do, with sizes around those that matter: small, around a page, around what is
//! left, beyond it, absurd.

use crate::actor::{Actor, Answer, Arg, Graph, Mapped, Reference};
use crate::random::Random;
use crate::support::MIB;
use crate::world::World;

const PAGE: u64 = 2 * MIB;
/// Pools and graphs are charged by segments until the driver has said how much they took.
const SEGMENT: u64 = 32 * MIB;
/// More than this many of a kind are freed before another is made.
const ENOUGH: usize = 12;

/// A step that one process takes by itself; `None` when there is nothing to take it with.
type Step = fn(&mut World, usize) -> Option<()>;

/// The steps, and how often each is chosen, relative to the others.
const STEPS: &[(&str, u64, Step)] = &[
    ("linear", 6, linear),
    ("free", 5, free),
    ("create", 4, create),
    ("map", 4, map),
    ("retain", 2, retain),
    ("unmap", 3, unmap),
    ("release", 4, release),
    ("make pool", 1, make_pool),
    ("pooled", 6, pooled),
    ("free pooled", 5, free_pooled),
    ("synchronize", 2, synchronize),
    ("trim pool", 1, trim_pool),
    ("keep", 1, keep),
    ("end pool", 1, end_pool),
    ("graph", 4, graph),
    ("capture", 2, capture),
    ("launch", 6, launch),
    ("trim graphs", 1, trim_graphs),
    ("end graph", 3, end_graph),
    ("busy", 2, busy),
    ("context", 1, context),
    ("reset", 1, reset),
    ("nonsense", 2, nonsense),
    ("race", 4, race),
    ("kill", 1, kill),
    ("exit", 1, exit),
    ("limit", 1, limit),
];

/// Takes one step that can be taken, and says which, and who took it.
pub fn take(world: &mut World) -> (&'static str, u64) {
    let total = STEPS.iter().map(|(_, weight, _)| weight).sum();
    loop {
        let mut at = world.random.below(total);
        let actor = world.random.below(world.actors.len() as u64) as usize;
        let (name, _, step) = STEPS
            .iter()
            .find(|(_, weight, _)| match at.checked_sub(*weight) {
                None => true,
                Some(rest) => {
                    at = rest;
                    false
                }
            })
            .expect("`at` is below the sum of all weights");
        let who = world.actors[actor].pid;
        if step(world, actor).is_some() {
            return (name, who);
        }
    }
}

fn size(random: &mut Random, free: u64) -> u64 {
    match random.below(12) {
        0..3 => 1 + random.below(4096),
        3..6 => 1 + random.below(4 * MIB),
        6..9 => (1 + random.below(32)) * PAGE,
        9 => free.max(1),
        10 => free + 1 + random.below(64 * MIB),
        _ => u64::MAX - random.below(4) * PAGE,
    }
}

/// What the driver takes for one allocation, as the limiter believes too.
fn granted(bytes: u64) -> u64 {
    let unit = if bytes >= MIB { PAGE } else { 512 };
    bytes.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
}

/// A refusal is right only if it did not fit, and no other failure is right at all.
#[track_caller]
fn is_fair(answer: &Answer, most: u64, free: u64) {
    assert!(
        answer.is_granted() || answer.is_refused(),
        "the driver answered {}",
        answer.result
    );
    assert!(
        !answer.is_refused() || most > free,
        "{most} of {free} bytes were refused"
    );
}

fn segments(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(SEGMENT).unwrap_or(u64::MAX)
}

/// The process, with a context to work in; makes one if there is room for it.
fn ready(world: &mut World, at: usize) -> Option<&mut Actor> {
    if world.actors[at].context.is_none() {
        context(world, at)?;
    }
    let actor = &mut world.actors[at];
    actor.context.is_some().then_some(actor)
}

fn pick<T>(random: &mut Random, from: &mut Vec<T>) -> Option<T> {
    let index = random.index(from.len())?;
    Some(from.swap_remove(index))
}

fn linear(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?;
    let free = world.free();
    let bytes = size(&mut world.random, free);
    let how = world.random.below(3);
    let actor = &mut world.actors[at];
    let answer = match how {
        0 => actor.call("cuMemAlloc_v2", &[Arg::Out, Arg::Value(bytes)]),
        1 => {
            let arguments = [Arg::Out, Arg::Value(bytes), Arg::Value(1)];
            actor.call("cuMemAllocManaged", &arguments)
        }
        _ => {
            let (width, height) = (bytes.min(1 << 40) % 5000 + 1, bytes.div_ceil(5000));
            let [width, height] = [width, height].map(Arg::Value);
            let arguments = [Arg::Out, Arg::Out, width, height, Arg::Value(4)];
            let answer = actor.call("cuMemAllocPitch_v2", &arguments);
            actor.holds.linear.extend(answer.place());
            return Some(());
        }
    };
    is_fair(&answer, granted(bytes), free);
    actor.holds.linear.extend(answer.place());
    Some(())
}

fn free(world: &mut World, at: usize) -> Option<()> {
    let address = pick(&mut world.random, &mut world.actors[at].holds.linear)?;
    let by_async = world.random.once_in(8);
    let actor = &mut world.actors[at];
    if by_async {
        // The driver may take only its own pools' memory; what it refuses is still there.
        let arguments = [Arg::Value(address), Arg::Value(0)];
        if actor.call("cuMemFreeAsync", &arguments).is_granted() {
            return Some(());
        }
    }
    actor.must("cuMemFree_v2", &[Arg::Value(address)]);
    Some(())
}

/// `CUmemAllocationProp`: pinned memory of device 0.
fn property() -> Arg {
    Arg::Words(vec![1, 1, 0, 0])
}

fn create(world: &mut World, at: usize) -> Option<()> {
    let free = world.free();
    let bytes = granted(size(&mut world.random, free).max(MIB)).min(1 << 50);
    let actor = &mut world.actors[at];
    let arguments = [Arg::Out, Arg::Value(bytes), property(), Arg::Value(0)];
    let answer = actor.call("cuMemCreate", &arguments);
    is_fair(&answer, bytes, free);
    if let Some(handle) = answer.place() {
        actor.holds.references.push(Reference { handle, bytes });
    }
    Some(())
}

fn map(world: &mut World, at: usize) -> Option<()> {
    let index = world
        .random
        .index(world.actors[at].holds.references.len())?;
    let actor = &mut world.actors[at];
    let Reference { handle, bytes } = actor.holds.references[index];
    let [zero, size, handle] = [0, bytes, handle].map(Arg::Value);
    let arguments = [
        Arg::Out,
        size.clone(),
        zero.clone(),
        zero.clone(),
        zero.clone(),
    ];
    let reserved = actor.must("cuMemAddressReserve", &arguments);
    let address = reserved.place().expect("granted");
    let arguments = [Arg::Value(address), size, zero.clone(), handle, zero];
    actor.must("cuMemMap", &arguments);
    actor.holds.ranges.push(Mapped { address, bytes });
    Some(())
}

fn retain(world: &mut World, at: usize) -> Option<()> {
    let index = world.random.index(world.actors[at].holds.ranges.len())?;
    let actor = &mut world.actors[at];
    let Mapped { address, bytes } = actor.holds.ranges[index];
    let arguments = [Arg::Out, Arg::Value(address)];
    let answer = actor.must("cuMemRetainAllocationHandle", &arguments);
    let handle = answer.place().expect("granted");
    actor.holds.references.push(Reference { handle, bytes });
    Some(())
}

fn unmap(world: &mut World, at: usize) -> Option<()> {
    let Mapped { address, bytes } = pick(&mut world.random, &mut world.actors[at].holds.ranges)?;
    let arguments = [Arg::Value(address), Arg::Value(bytes)];
    world.actors[at].must("cuMemUnmap", &arguments);
    Some(())
}

fn release(world: &mut World, at: usize) -> Option<()> {
    let reference = pick(&mut world.random, &mut world.actors[at].holds.references)?;
    world.actors[at].must("cuMemRelease", &[Arg::Value(reference.handle)]);
    Some(())
}

/// `CUmemPoolProps`: pinned memory of device 0.
fn pool_properties() -> Vec<u64> {
    let mut words = vec![0; 11];
    (words[0], words[1]) = (1, 1);
    words
}

fn make_pool(world: &mut World, at: usize) -> Option<()> {
    let actor = ready(world, at)?;
    if actor.holds.pools.len() > 3 {
        return None;
    }
    let arguments = [Arg::Out, Arg::Words(pool_properties())];
    let answer = actor.must("cuMemPoolCreate", &arguments);
    actor.holds.pools.extend(answer.place());
    Some(())
}

fn pooled(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?;
    let free = world.free();
    let bytes = size(&mut world.random, free);
    let pool = world.random.index(world.actors[at].holds.pools.len());
    let by_default = world.random.once_in(2);
    let actor = &mut world.actors[at];
    let answer = match pool.filter(|_| !by_default) {
        None => {
            let arguments = [Arg::Out, Arg::Value(bytes), Arg::Value(0)];
            actor.call("cuMemAllocAsync", &arguments)
        }
        Some(pool) => {
            let [bytes, pool] = [bytes, actor.holds.pools[pool]].map(Arg::Value);
            let arguments = [Arg::Out, bytes, pool, Arg::Value(0)];
            actor.call("cuMemAllocFromPoolAsync_ptsz", &arguments)
        }
    };
    is_fair(&answer, segments(bytes), free);
    actor.holds.pooled.extend(answer.place());
    Some(())
}

fn free_pooled(world: &mut World, at: usize) -> Option<()> {
    let address = pick(&mut world.random, &mut world.actors[at].holds.pooled)?;
    let by_async = !world.random.once_in(4);
    let actor = &mut world.actors[at];
    if by_async {
        actor.must("cuMemFreeAsync", &[Arg::Value(address), Arg::Value(0)]);
    } else {
        actor.must("cuMemFree_v2", &[Arg::Value(address)]);
    }
    Some(())
}

fn synchronize(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?.must("cuStreamSynchronize", &[Arg::Value(0)]);
    Some(())
}

fn trim_pool(world: &mut World, at: usize) -> Option<()> {
    let pool = world.random.index(world.actors[at].holds.pools.len())?;
    let keep = world.random.below(3) * SEGMENT;
    let actor = &mut world.actors[at];
    let pool = actor.holds.pools[pool];
    actor.must("cuMemPoolTrimTo", &[Arg::Value(pool), Arg::Value(keep)]);
    Some(())
}

/// A pool is told to keep what is freed to it, or not to.
fn keep(world: &mut World, at: usize) -> Option<()> {
    const RELEASE_THRESHOLD: u64 = 4;
    let pool = world.random.index(world.actors[at].holds.pools.len())?;
    let threshold = [0, SEGMENT, u64::MAX][world.random.below(3) as usize];
    let actor = &mut world.actors[at];
    let [pool, attribute] = [actor.holds.pools[pool], RELEASE_THRESHOLD].map(Arg::Value);
    let arguments = [pool, attribute, Arg::Words(vec![threshold])];
    actor.must("cuMemPoolSetAttribute", &arguments);
    Some(())
}

/// The program destroys a pool; its allocations live on.
fn end_pool(world: &mut World, at: usize) -> Option<()> {
    let pool = pick(&mut world.random, &mut world.actors[at].holds.pools)?;
    world.actors[at].must("cuMemPoolDestroy", &[Arg::Value(pool)]);
    Some(())
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`, and where the address comes to stand in it.
fn node_parameters(bytes: u64) -> Vec<u64> {
    [pool_properties(), vec![0, 0, bytes, 0]].concat()
}
const ADDRESS: usize = 14;

fn instantiate(world: &mut World, at: usize, graph: u64, leaves: Vec<u64>) {
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
fn graph(world: &mut World, at: usize) -> Option<()> {
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
fn capture(world: &mut World, at: usize) -> Option<()> {
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

fn launch(world: &mut World, at: usize) -> Option<()> {
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

fn free_what_is_left(actor: &mut Actor, index: usize) {
    let graph = &mut actor.holds.graphs[index];
    if std::mem::take(&mut graph.is_left) {
        for address in graph.leaves.clone() {
            actor.must("cuMemFreeAsync", &[Arg::Value(address), Arg::Value(0)]);
        }
    }
}

fn trim_graphs(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?.must("cuDeviceGraphMemTrim", &[Arg::Value(0)]);
    Some(())
}

fn end_graph(world: &mut World, at: usize) -> Option<()> {
    let index = world.random.index(world.actors[at].holds.graphs.len())?;
    let actor = &mut world.actors[at];
    free_what_is_left(actor, index);
    let graph = actor.holds.graphs.swap_remove(index);
    actor.must("cuGraphExecDestroy", &[Arg::Value(graph.exec)]);
    actor.must("cuGraphDestroy", &[Arg::Value(graph.handle)]);
    Some(())
}

/// A text as 64-bit words, with its end.
fn text(text: &str) -> Arg {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    let words = bytes.chunks_exact(8);
    Arg::Words(
        words
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight")))
            .collect(),
    )
}

/// The GPU is kept busy for a while, so that what is asked for next is still under way at the step after.
fn busy(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?;
    let name = format!("sim_busy_us_{}", 100 << world.random.below(8));
    let ptx = format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry {name}()\n{{\n    ret;\n}}\n"
    );
    let actor = &mut world.actors[at];
    let loaded = actor.must("cuModuleLoadData", &[Arg::Out, text(&ptx)]);
    let module = Arg::Value(loaded.place().expect("granted"));
    let found = actor.must("cuModuleGetFunction", &[Arg::Out, module, text(&name)]);
    let mut arguments = vec![Arg::Value(found.place().expect("granted"))];
    arguments.extend([1, 1, 1, 1, 1, 1, 0, 0, 0, 0].map(Arg::Value));
    actor.must("cuLaunchKernel", &arguments);
    Some(())
}

/// The primary context is retained, if it is not there and there is room for it.
fn context(world: &mut World, at: usize) -> Option<()> {
    let actor = &mut world.actors[at];
    if actor.context.is_some() {
        return None;
    }
    let answer = actor.call("cuDevicePrimaryCtxRetain", &[Arg::Out, Arg::Value(0)]);
    actor.context = answer.place();
    let current = Arg::Value(actor.context?);
    actor.must("cuCtxSetCurrent", &[current]);
    Some(())
}

/// Everything that lives in the context goes with it; memory by handle stays.
fn reset(world: &mut World, at: usize) -> Option<()> {
    let actor = &mut world.actors[at];
    actor.context?;
    // What the driver does with pools and graphs of a context that is reset is not agreed on: they are given back before.
    give_pools_and_graphs_back(actor);
    actor.must("cuDevicePrimaryCtxReset_v2", &[Arg::Value(0)]);
    actor.holds.linear.clear();
    actor.context = None;
    Some(())
}

/// What the driver refuses, and what it takes without giving anything.
fn nonsense(world: &mut World, at: usize) -> Option<()> {
    let which = world.random.below(6);
    let actor = &mut world.actors[at];
    let [zero, odd] = [0, 0xdead_beef].map(Arg::Value);
    let answer = match which {
        0 => actor.call("cuMemFree_v2", &[odd]),
        1 => actor.call("cuMemAlloc_v2", &[zero.clone(), Arg::Value(PAGE)]),
        2 => actor.call("cuMemAlloc_v2", &[Arg::Out, zero]),
        3 => actor.call("cuMemRelease", &[odd]),
        4 => actor.call("cuGraphLaunch", &[odd, zero]),
        _ => actor.call("cuMemUnmap", &[odd, Arg::Value(PAGE)]),
    };
    assert!(!answer.is_granted(), "nonsense was granted");
    Some(())
}

/// All ask for memory at once.
fn race(world: &mut World, _at: usize) -> Option<()> {
    for round in 0..4 {
        let by_handle = round % 2 == 0;
        let free = world.free();
        for actor in &mut world.actors {
            let bytes =
                (1 + world.random.below(8)) * PAGE + world.random.below(2) * free / PAGE * PAGE;
            let size = Arg::Value(bytes);
            if by_handle {
                let arguments = [Arg::Out, size, property(), Arg::Value(0)];
                actor.say("cuMemCreate", &arguments);
                // Remembered by size, for the answer that comes below.
                actor.holds.references.push(Reference { handle: 0, bytes });
            } else {
                actor.say("cuMemAlloc_v2", &[Arg::Out, size]);
            }
        }
        for actor in &mut world.actors {
            let answer = actor.hear();
            match by_handle {
                true => {
                    let asked = actor.holds.references.pop().expect("pushed above");
                    let granted = answer.place();
                    let reference = granted.map(|handle| Reference { handle, ..asked });
                    actor.holds.references.extend(reference);
                }
                false => actor.holds.linear.extend(answer.place()),
            }
        }
    }
    Some(())
}

/// A process is killed in the middle of what it is doing.
fn kill(world: &mut World, at: usize) -> Option<()> {
    let calls = world.random.below(8);
    for _ in 0..calls {
        let bytes = size(&mut world.random, 64 * MIB);
        let how = world.random.below(3);
        let actor = &mut world.actors[at];
        let size = Arg::Value(bytes);
        match how {
            0 => actor.say("cuMemAlloc_v2", &[Arg::Out, size]),
            1 => actor.say("cuMemAllocAsync", &[Arg::Out, size, Arg::Value(0)]),
            _ => actor.say("cuMemCreate", &[Arg::Out, size, property(), Arg::Value(0)]),
        }
    }
    world.actors[at].kill();
    world.replace(at);
    Some(())
}

/// A process ends without giving anything back.
fn exit(world: &mut World, at: usize) -> Option<()> {
    let gone = world.actors.swap_remove(at);
    gone.end();
    let fresh = Actor::start(&world.rig);
    world.actors.push(fresh);
    world.rig.settle_the_dead();
    Some(())
}

/// The limit is changed under the programs' hands.
fn limit(world: &mut World, _at: usize) -> Option<()> {
    let whole = world.rig.limit / PAGE;
    let limit = whole / 2 + world.random.below(whole);
    world.set_limit(limit * PAGE);
    Some(())
}

fn give_pools_and_graphs_back(actor: &mut Actor) {
    while !actor.holds.graphs.is_empty() {
        free_what_is_left(actor, 0);
        let graph = actor.holds.graphs.swap_remove(0);
        actor.must("cuGraphExecDestroy", &[Arg::Value(graph.exec)]);
        actor.must("cuGraphDestroy", &[Arg::Value(graph.handle)]);
    }
    for address in std::mem::take(&mut actor.holds.pooled) {
        actor.must("cuMemFreeAsync", &[Arg::Value(address), Arg::Value(0)]);
    }
    for pool in std::mem::take(&mut actor.holds.pools) {
        actor.must("cuMemPoolDestroy", &[Arg::Value(pool)]);
    }
    if actor.context.is_some() {
        actor.must("cuStreamSynchronize", &[Arg::Value(0)]);
        actor.must("cuDeviceGraphMemTrim", &[Arg::Value(0)]);
    }
}

/// Everything but the context.
pub fn give_all_back(actor: &mut Actor) {
    give_pools_and_graphs_back(actor);
    for address in std::mem::take(&mut actor.holds.linear) {
        actor.must("cuMemFree_v2", &[Arg::Value(address)]);
    }
    for Mapped { address, bytes } in std::mem::take(&mut actor.holds.ranges) {
        actor.must("cuMemUnmap", &[Arg::Value(address), Arg::Value(bytes)]);
    }
    for reference in std::mem::take(&mut actor.holds.references) {
        actor.must("cuMemRelease", &[Arg::Value(reference.handle)]);
    }
}
