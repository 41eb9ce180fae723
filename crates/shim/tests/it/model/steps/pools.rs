//! Stream-ordered memory and its pools.

use super::*;

/// `CUmemPoolProps`: pinned memory of device 0.
pub fn pool_properties() -> Vec<u64> {
    let mut words = vec![0; 11];
    (words[0], words[1]) = (1, 1);
    words
}

pub fn make_pool(world: &mut World, at: usize) -> Option<()> {
    let actor = ready(world, at)?;
    if actor.holds.pools.len() > 3 {
        return None;
    }
    let arguments = [Arg::Out, Arg::Words(pool_properties())];
    let answer = actor.must("cuMemPoolCreate", &arguments);
    actor.holds.pools.extend(answer.place());
    Some(())
}

pub fn pooled(world: &mut World, at: usize) -> Option<()> {
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

pub fn free_pooled(world: &mut World, at: usize) -> Option<()> {
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

pub fn synchronize(world: &mut World, at: usize) -> Option<()> {
    ready(world, at)?.must("cuStreamSynchronize", &[Arg::Value(0)]);
    Some(())
}

pub fn trim_pool(world: &mut World, at: usize) -> Option<()> {
    let pool = world.random.index(world.actors[at].holds.pools.len())?;
    let keep = world.random.below(3) * SEGMENT;
    let actor = &mut world.actors[at];
    let pool = actor.holds.pools[pool];
    actor.must("cuMemPoolTrimTo", &[Arg::Value(pool), Arg::Value(keep)]);
    Some(())
}

/// A pool is told to keep what is freed to it, or not to.
pub fn keep(world: &mut World, at: usize) -> Option<()> {
    const RELEASE_THRESHOLD: u64 = 4;
    let pool = world.random.index(world.actors[at].holds.pools.len())?;
    let threshold = [0, SEGMENT, u64::MAX][world.random.below(3) as usize];
    let actor = &mut world.actors[at];
    let [pool, attribute] = [actor.holds.pools[pool], RELEASE_THRESHOLD].map(Arg::Value);
    let arguments = [pool, attribute, Arg::Words(vec![threshold])];
    actor.must("cuMemPoolSetAttribute", &arguments);
    Some(())
}

/// A pool is made, used and destroyed with nothing looking at it meanwhile. Allocations of it are lent, or freed as streams and captures
/// have it, before and after its end.
pub fn short_pool(world: &mut World, at: usize) -> Option<()> {
    const POSIX_FILE_DESCRIPTOR: u64 = 1;
    ready(world, at)?;
    let random = &mut world.random;
    let lends = world.shares && random.once_in(2);
    let sizes: Vec<u64> = (0..2 + random.below(3))
        .map(|_| (1 + random.below(24)) * PAGE)
        .collect();
    let [lent, freed, lost] = [(); 3].map(|()| random.below(sizes.len() as u64) as usize);
    let [waits, invalidates] = [2, 3].map(|times| random.once_in(times));
    let actor = &mut world.actors[at];
    let mut properties = pool_properties();
    properties[0] |= (u64::from(lends) * POSIX_FILE_DESCRIPTOR) << 32;
    let made = actor.must("cuMemPoolCreate", &[Arg::Out, Arg::Words(properties)]);
    let pool = made.place().expect("granted");
    let allocations = sizes.iter().map(|bytes| {
        let [bytes, pool, stream] = [*bytes, pool, 0].map(Arg::Value);
        let arguments = [Arg::Out, bytes, pool, stream];
        actor.call("cuMemAllocFromPoolAsync", &arguments).place()
    });
    let pieces: Vec<Option<u64>> = allocations.collect();
    if lends {
        let [kind, flags] = [POSIX_FILE_DESCRIPTOR, 0].map(Arg::Value);
        let arguments = [Arg::Out, Arg::Value(pool), kind, flags];
        let exported = actor.must("cuMemPoolExportToShareableHandle", &arguments);
        // An `int` was written.
        let descriptor = Arg::Value(exported.out[0] & 0xffff_ffff);
        actor.must("CLOSE", &[descriptor]);
        if let Some(address) = pieces[lent] {
            let data = Arg::Words(vec![0; 8]);
            actor.must("cuMemPoolExportPointer", &[data, Arg::Value(address)]);
        }
    }
    if let Some(address) = pieces[freed] {
        actor.must("cuMemFreeAsync", &[address, 0].map(Arg::Value));
    }
    if waits {
        // The driver takes back what is whole.
        actor.must("cuStreamSynchronize", &[Arg::Value(0)]);
    }
    if invalidates {
        graphs::invalidate(world, at);
    }
    let actor = &mut world.actors[at];
    actor.must("cuMemPoolDestroy", &[Arg::Value(pool)]);
    let mut left: Vec<usize> = (0..pieces.len()).filter(|piece| *piece != freed).collect();
    if let Some(address) = pieces[lost].filter(|_| lost != freed) {
        actor.must("cuMemFree_v2", &[Arg::Value(address)]);
        left.retain(|piece| *piece != lost);
    }
    let left = left.into_iter().filter_map(|piece| pieces[piece]);
    actor.holds.pooled.extend(left);
    Some(())
}

/// The program destroys a pool; its allocations live on.
pub fn end_pool(world: &mut World, at: usize) -> Option<()> {
    let pool = pick(&mut world.random, &mut world.actors[at].holds.pools)?;
    world.actors[at].must("cuMemPoolDestroy", &[Arg::Value(pool)]);
    Some(())
}
