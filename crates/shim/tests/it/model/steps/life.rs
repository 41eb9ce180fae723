//! Contexts and processes come and go, race, are killed; limits change.

use super::*;

/// A text as 64-bit words, with its end.
pub fn text(text: &str) -> Arg {
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
pub fn busy(world: &mut World, at: usize) -> Option<()> {
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
pub fn context(world: &mut World, at: usize) -> Option<()> {
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
pub fn reset(world: &mut World, at: usize) -> Option<()> {
    let actor = &mut world.actors[at];
    actor.context?;
    // What the driver does with pools and graphs of a context that is reset is not agreed on: they are given back before.
    give_pools_and_graphs_back(actor);
    end_context(actor);
    Some(())
}

pub fn end_context(actor: &mut Actor) {
    if actor.context.take().is_some() {
        actor.must("cuDevicePrimaryCtxReset_v2", &[Arg::Value(0)]);
        actor.holds.linear.clear();
        actor.holds.arrays.clear();
        actor.holds.opened.clear();
        actor.heap = 0;
    }
}

/// What the driver refuses, and what it takes without giving anything.
pub fn nonsense(world: &mut World, at: usize) -> Option<()> {
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
pub fn race(world: &mut World, _at: usize) -> Option<()> {
    for round in 0..4 {
        let by_handle = round % 2 == 0;
        let free = world.free();
        let mut asked = Vec::new();
        for actor in &mut world.actors {
            let bytes =
                (1 + world.random.below(8)) * PAGE + world.random.below(2) * free / PAGE * PAGE;
            let size = Arg::Value(bytes);
            if by_handle {
                let arguments = [Arg::Out, size, property(false), Arg::Value(0)];
                actor.say("cuMemCreate", &arguments);
            } else {
                actor.say("cuMemAlloc_v2", &[Arg::Out, size]);
            }
            asked.push(bytes);
        }
        for (actor, bytes) in world.actors.iter_mut().zip(asked) {
            let Some(place) = actor.hear().place() else {
                continue;
            };
            if by_handle {
                actor.holds.references.push(Reference {
                    handle: place,
                    bytes,
                    is_shareable: false,
                })
            } else {
                actor.holds.linear.push(Linear {
                    address: place,
                    bytes,
                    is_plain: true,
                })
            }
        }
    }
    Some(())
}

/// A process is killed in the middle of what it is doing.
pub fn kill(world: &mut World, at: usize) -> Option<()> {
    let calls = world.random.below(8);
    for _ in 0..calls {
        let bytes = size(&mut world.random, 64 * MIB);
        let how = world.random.below(3);
        let actor = &mut world.actors[at];
        let size = Arg::Value(bytes);
        match how {
            0 => actor.say("cuMemAlloc_v2", &[Arg::Out, size]),
            1 => actor.say("cuMemAllocAsync", &[Arg::Out, size, Arg::Value(0)]),
            _ => {
                let arguments = [Arg::Out, size, property(false), Arg::Value(0)];
                actor.say("cuMemCreate", &arguments);
            }
        }
    }
    world.actors[at].kill();
    world.replace(at);
    Some(())
}

/// A process ends without giving anything back.
pub fn exit(world: &mut World, at: usize) -> Option<()> {
    let gone = world.actors.swap_remove(at);
    gone.end();
    let fresh = Actor::start(&world.rig);
    world.actors.push(fresh);
    world.rig.settle_the_dead();
    Some(())
}

/// The limit is changed under the programs' hands.
pub fn limit(world: &mut World, _at: usize) -> Option<()> {
    let whole = world.rig.limit / PAGE;
    let limit = whole / 2 + world.random.below(whole);
    world.set_limit(limit * PAGE);
    Some(())
}

pub fn give_pools_and_graphs_back(actor: &mut Actor) {
    while !actor.holds.graphs.is_empty() {
        free_what_is_left(actor, 0);
        let graph = actor.holds.graphs.swap_remove(0);
        actor.must("cuGraphExecDestroy", &[Arg::Value(graph.exec)]);
        actor.must("cuGraphDestroy", &[Arg::Value(graph.handle)]);
    }
    for address in std::mem::take(&mut actor.holds.pooled) {
        actor.must("cuMemFreeAsync", &[Arg::Value(address), Arg::Value(0)]);
    }
    for stream in std::mem::take(&mut actor.holds.captured) {
        actor.call("cuStreamEndCapture", &[Arg::Value(stream), Arg::Out]);
        actor.must("cuStreamDestroy_v2", &[Arg::Value(stream)]);
    }
    for pool in std::mem::take(&mut actor.holds.pools) {
        actor.must("cuMemPoolDestroy", &[Arg::Value(pool)]);
    }
    if actor.context.is_some() {
        actor.must("cuStreamSynchronize", &[Arg::Value(0)]);
        actor.must("cuDeviceGraphMemTrim", &[Arg::Value(0)]);
    }
}

/// Everything but the context and what its limits take.
pub fn give_all_back(actor: &mut Actor) {
    give_pools_and_graphs_back(actor);
    for linear in std::mem::take(&mut actor.holds.linear) {
        actor.must("cuMemFree_v2", &[Arg::Value(linear.address)]);
    }
    for array in std::mem::take(&mut actor.holds.arrays) {
        memory::destroy(actor, &array);
    }
    for opened in std::mem::take(&mut actor.holds.opened) {
        actor.must("cuIpcCloseMemHandle", &[Arg::Value(opened)]);
    }
    for Mapped { address, bytes } in std::mem::take(&mut actor.holds.ranges) {
        actor.must("cuMemUnmap", &[Arg::Value(address), Arg::Value(bytes)]);
    }
    for reference in std::mem::take(&mut actor.holds.references) {
        actor.must("cuMemRelease", &[Arg::Value(reference.handle)]);
    }
}
