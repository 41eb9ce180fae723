//! Memory by address, arrays, and what limits of a context take.

use super::*;

pub fn linear(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?;
    let free = world.free();
    let bytes = size(&mut world.random, free);
    let how = world.random.below(3);
    let actor = &mut world.actors[at];
    let is_plain = how == 0;
    let keep = |actor: &mut Actor, answer: &Answer| {
        let made = answer.place().map(|address| Linear {
            address,
            bytes,
            is_plain,
        });
        actor.holds.linear.extend(made);
    };
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
            keep(actor, &answer);
            return Some(());
        }
    };
    is_fair(&answer, granted(bytes), free);
    keep(actor, &answer);
    Some(())
}

pub fn free(world: &mut World, at: usize) -> Option<()> {
    let Linear { address, .. } = pick(&mut world.random, &mut world.actors[at].holds.linear)?;
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

/// An array of floats, or a mipmapped one. What it takes is the driver's to say, so any refusal may be right that leaves little free.
pub fn array(world: &mut World, at: usize) -> Option<()> {
    const FLOAT: u64 = 0x20;
    ready(world, at)?;
    if world.actors[at].holds.arrays.len() > ENOUGH {
        return None;
    }
    let free = world.free();
    let [width, height, depth] = [2048, 2048, 8].map(|end| 1 + world.random.below(end));
    let channels = 1 << world.random.below(3);
    let levels = world.random.below(3);
    let actor = &mut world.actors[at];
    let description = Arg::Words(vec![width, height, depth, FLOAT | channels << 32, 0]);
    let (name, arguments) = match levels {
        0 => ("cuArray3DCreate_v2", vec![Arg::Out, description]),
        levels => {
            let arguments = vec![Arg::Out, description, Arg::Value(levels)];
            ("cuMipmappedArrayCreate", arguments)
        }
    };
    let answer = actor.call(name, &arguments);
    // Rows and their number are rounded up, by less than to twice as much, and levels come to less than the first again.
    let most = 4 * channels * (width + 16) * (height + 8) * depth * 2 + PAGE;
    is_fair(&answer, most, free);
    let made = answer.place().map(|handle| Array {
        handle,
        is_mipmapped: levels > 0,
    });
    actor.holds.arrays.extend(made);
    Some(())
}

pub fn end_array(world: &mut World, at: usize) -> Option<()> {
    let array = pick(&mut world.random, &mut world.actors[at].holds.arrays)?;
    destroy(&mut world.actors[at], &array);
    Some(())
}

pub fn destroy(actor: &mut Actor, array: &Array) {
    let name = if array.is_mipmapped {
        "cuMipmappedArrayDestroy"
    } else {
        "cuArrayDestroy"
    };
    actor.must(name, &[Arg::Value(array.handle)]);
}

/// The heap of device-side `malloc` grows. It is never made smaller: a driver is believed to keep what it has taken.
pub fn heap(world: &mut World, at: usize) -> Option<()> {
    const MALLOC_HEAP_SIZE: u64 = 2;
    ready(world, at)?;
    let free = world.free();
    let more = world.random.below(64 * MIB);
    let actor = &mut world.actors[at];
    let bytes = actor.heap + more;
    let arguments = [MALLOC_HEAP_SIZE, bytes].map(Arg::Value);
    let answer = actor.call("cuCtxSetLimit", &arguments);
    is_fair(&answer, bytes + PAGE, free);
    if answer.is_granted() {
        actor.heap = bytes;
    }
    Some(())
}
