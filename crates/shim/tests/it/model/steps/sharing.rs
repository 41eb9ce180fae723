//! Memory that goes to another process of the slice: counted once, for as long as anybody has it.

use super::*;

/// Another actor than this one.
fn other(world: &mut World, at: usize) -> usize {
    let others = world.actors.len() as u64 - 1;
    (at + 1 + world.random.below(others) as usize) % world.actors.len()
}

/// A handle goes to another process by descriptor.
pub fn hand_over(world: &mut World, at: usize) -> Option<()> {
    const POSIX_FILE_DESCRIPTOR: u64 = 1;
    if !world.shares {
        return None;
    }
    let references = &world.actors[at].holds.references;
    let shareable: Vec<Reference> = references
        .iter()
        .filter(|reference| reference.is_shareable)
        .copied()
        .collect();
    let reference = shareable[world.random.index(shareable.len())?];
    let to = other(world, at);
    let giver = &mut world.actors[at];
    let [handle, kind, flags] = [reference.handle, POSIX_FILE_DESCRIPTOR, 0].map(Arg::Value);
    let arguments = [Arg::Out, handle, kind.clone(), flags];
    let exported = giver.must("cuMemExportToShareableHandle", &arguments);
    // An `int` was written.
    let descriptor = exported.out[0] & 0xffff_ffff;
    let (giver, pid) = (at, giver.pid);
    let taker = &mut world.actors[to];
    let taken = taker
        .call("TAKE", &[pid, descriptor].map(Arg::Value))
        .result;
    world.actors[giver].must("CLOSE", &[Arg::Value(descriptor)]);
    let taker = &mut world.actors[to];
    let imported = taker.must(
        "cuMemImportFromShareableHandle",
        &[Arg::Out, Arg::Value(taken), kind],
    );
    taker.must("CLOSE", &[Arg::Value(taken)]);
    taker.holds.references.push(Reference {
        handle: imported.place().expect("granted"),
        ..reference
    });
    Some(())
}

/// Linear memory is opened by another process.
pub fn open(world: &mut World, at: usize) -> Option<()> {
    const LAZY_ENABLE_PEER_ACCESS: u64 = 1;
    if !world.shares {
        return None;
    }
    // Small ones share their page with others that are not meant.
    let linear = &world.actors[at].holds.linear;
    let whole: Vec<u64> = linear
        .iter()
        .filter(|linear| linear.is_plain && linear.bytes >= MIB)
        .map(|linear| linear.address)
        .collect();
    let address = whole[world.random.index(whole.len())?];
    let to = other(world, at);
    ready(world, to)?;
    let arguments = [Arg::Words(vec![0; 8]), Arg::Value(address)];
    let handle = world.actors[at].must("cuIpcGetMemHandle", &arguments).out;
    let flags = Arg::Value(LAZY_ENABLE_PEER_ACCESS);
    let arguments = [Arg::Out, Arg::ByValue(handle), flags];
    let taker = &mut world.actors[to];
    let opened = taker.must("cuIpcOpenMemHandle_v2", &arguments);
    taker.holds.opened.extend(opened.place());
    Some(())
}

pub fn close(world: &mut World, at: usize) -> Option<()> {
    let opened = pick(&mut world.random, &mut world.actors[at].holds.opened)?;
    world.actors[at].must("cuIpcCloseMemHandle", &[Arg::Value(opened)]);
    Some(())
}
