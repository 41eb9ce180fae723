//! Memory by handle: made, mapped, kept alive by references and mappings.

use super::*;

/// `CUmemAllocationProp`: pinned memory of device 0, which may be handed over by descriptor or not.
pub fn property(is_shareable: bool) -> Arg {
    Arg::Words(vec![1 | u64::from(is_shareable) << 32, 1, 0, 0])
}

pub fn create(world: &mut World, at: usize) -> Option<()> {
    let free = world.free();
    let bytes = granted(size(&mut world.random, free).max(MIB)).min(1 << 50);
    let is_shareable = world.random.once_in(2);
    let actor = &mut world.actors[at];
    let arguments = [
        Arg::Out,
        Arg::Value(bytes),
        property(is_shareable),
        Arg::Value(0),
    ];
    let answer = actor.call("cuMemCreate", &arguments);
    is_fair(&answer, bytes, free);
    if let Some(handle) = answer.place() {
        actor.holds.references.push(Reference {
            handle,
            bytes,
            is_shareable,
        });
    }
    Some(())
}

pub fn map(world: &mut World, at: usize) -> Option<()> {
    let index = world
        .random
        .index(world.actors[at].holds.references.len())?;
    let actor = &mut world.actors[at];
    let Reference { handle, bytes, .. } = actor.holds.references[index];
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

pub fn retain(world: &mut World, at: usize) -> Option<()> {
    let index = world.random.index(world.actors[at].holds.ranges.len())?;
    let actor = &mut world.actors[at];
    let Mapped { address, bytes } = actor.holds.ranges[index];
    let arguments = [Arg::Out, Arg::Value(address)];
    let answer = actor.must("cuMemRetainAllocationHandle", &arguments);
    let handle = answer.place().expect("granted");
    actor.holds.references.push(Reference {
        handle,
        bytes,
        is_shareable: false,
    });
    Some(())
}

pub fn unmap(world: &mut World, at: usize) -> Option<()> {
    let Mapped { address, bytes } = pick(&mut world.random, &mut world.actors[at].holds.ranges)?;
    let arguments = [Arg::Value(address), Arg::Value(bytes)];
    world.actors[at].must("cuMemUnmap", &arguments);
    Some(())
}

pub fn release(world: &mut World, at: usize) -> Option<()> {
    let reference = pick(&mut world.random, &mut world.actors[at].holds.references)?;
    world.actors[at].must("cuMemRelease", &[Arg::Value(reference.handle)]);
    Some(())
}
