//! Blocks, pools, and allocations during a capture.

use divvy_driver::probe::{Pool, Taken, during_capture};

use crate::replay::stage::{MIB, PIECE, SLACK, Stage, counted, difference, near};
use crate::replay::step::{Amount, Seen, Trouble, judged};

/// Allocations of one act, at most.
const CALLS: usize = 8192;

pub fn take(stage: &Stage, way: &str, amount: Amount) -> Seen {
    let bytes = stage.bytes(amount)?;
    let before = stage.info()?.free;
    let taken = stage.take(way, bytes)?;
    let held = stage.info()?.free;
    drop(taken);
    counted(bytes, before, held, stage.info()?.free)
}

/// A server asks for a part of the total, and starts only if that much is free. The rest is its context.
pub fn utilisation(stage: &Stage, default: u64) -> Seen {
    let info = stage.info()?;
    let highest = (info.free.saturating_mul(100) / info.total.max(1)).min(default);
    let bytes = stage.bytes(Amount::OfTotal(highest * 10))?;
    let taken = stage.take("cuMemAlloc_v2", bytes)?;
    let held = stage.info()?.free;
    drop(taken);
    let from = info.total.saturating_sub(info.free) * 100 / (100 - default) / MIB;
    let hint = if highest < default {
        format!("; 0.{default} needs a limit of {from} MiB")
    } else {
        String::new()
    };
    counted(bytes, info.free, held, stage.info()?.free)
        .map(|seen| format!("up to 0.{highest:02} starts{hint}: {seen}"))
}

pub fn as_neighbour(stage: &Stage, part: u64) -> Seen {
    let bytes = stage.bytes(Amount::OfTotal(part))?;
    let neighbour = &stage.around.neighbour;
    let taken = stage.take("cuMemAlloc_v2", bytes)?;
    let right = taken.bytes() == neighbour.preallocated_bytes && bytes <= stage.limit;
    let seen = format!(
        "{bytes} bytes, while the neighbour holds {}",
        neighbour.preallocated_bytes
    );
    judged(right, seen)
}

pub fn fill(stage: &Stage, way: &str, block: u64) -> Seen {
    let before = stage.info()?.free;
    let mut held: Vec<Taken<'_>> = Vec::new();
    let mut got = 0;
    let refused = loop {
        if got > stage.limit || held.len() == CALLS {
            break false;
        }
        match stage.try_take(way, block)? {
            Some(taken) => {
                got += taken.bytes();
                held.push(taken);
            }
            None => break true,
        }
    };
    let (blocks, left) = (held.len(), stage.info()?.free);
    drop(held);
    let after = stage.info()?.free;
    // Allocators free their cache after a refusal, and try again.
    let again = stage.try_take(way, block)?.is_some();
    let nearly_all = before.saturating_sub(got) <= block + SLACK;
    let right = refused && got <= stage.limit && nearly_all && again && near(before, after);
    let end = if refused {
        format!("out of memory with {left} free")
    } else {
        "not refused".to_owned()
    };
    let seen = format!(
        "{blocks} blocks, {got} of {before} free bytes, then {end}; afterwards {}",
        difference(before, after)
    );
    judged(right, seen)
}

pub fn back_off(stage: &Stage, way: &str, from: Amount, keeps: u64) -> Seen {
    let (before, asked) = (stage.info()?.free, stage.bytes(from)?);
    let (mut bytes, mut refusals) = (asked, 0);
    let granted = loop {
        match stage.try_take(way, bytes)? {
            Some(taken) => break taken,
            None if bytes > PIECE => refusals += 1,
            None => return Err(Trouble::Failed("nothing was granted".to_owned())),
        }
        bytes = (bytes / 1000 * keeps / PIECE * PIECE).max(PIECE);
    };
    let held = stage.info()?.free;
    let got = granted.bytes();
    drop(granted);
    let after = stage.info()?.free;
    let right = got <= before + SLACK && got <= stage.limit && near(before - held.min(before), got);
    let seen = format!(
        "asked for {asked}, refused {refusals} times, granted {got} of {before} free; afterwards {}",
        difference(before, after)
    );
    judged(right && near(before, after), seen)
}

pub fn layers(stage: &Stage, layer: u64, margin: u64) -> Seen {
    let free = stage.info()?.free;
    let fit = free.saturating_sub(margin.min(free / 2)) / layer;
    if free > stage.limit {
        return Err(Trouble::Failed(format!(
            "{free} bytes are shown as free; the limit is {}",
            stage.limit
        )));
    }
    let mut held = Vec::new();
    for _ in 0..fit {
        match stage.try_take("cuMemAlloc_v2", layer)? {
            Some(taken) => held.push(taken),
            None => break,
        }
    }
    let seen = format!(
        "{fit} layers of {} MiB fit {free} free bytes; {} granted",
        layer / MIB,
        held.len()
    );
    judged(fit > 0 && held.len() as u64 == fit, seen)
}

pub fn pool(stage: &Stage, own: bool, amount: Amount) -> Seen {
    let bytes = stage.bytes(amount)?;
    let before = stage.info()?.free;
    let pool = if own {
        Pool::create(&stage.session)?
    } else {
        Pool::of_device(&stage.session)?
    };
    // The same memory, freed and taken again: it stays in the pool.
    drop(pool.alloc(bytes)?);
    let kept = stage.info()?.free;
    let again = pool.alloc(bytes)?;
    let reserved = pool.reserved()?;
    let beyond = match pool.alloc(stage.limit) {
        Ok(_) => Err(Trouble::Failed(
            "memory beyond the limit was granted".to_owned(),
        )),
        Err(error) if error.is_out_of_memory() => Ok(()),
        Err(error) => Err(error.into()),
    };
    drop(again);
    beyond?;
    pool.trim()?;
    let after = stage.info()?.free;
    let fell = before.saturating_sub(kept);
    let right = near(fell, bytes) && near(reserved, bytes) && near(before, after);
    let seen = format!(
        "{bytes} bytes freed into the pool, which holds {reserved}: free fell by {fell}; trimmed: {}",
        difference(before, after)
    );
    judged(right, seen)
}

pub fn capture(stage: &Stage) -> Seen {
    let before = stage.info()?.free;
    let captured = during_capture(&stage.session, stage.limit)?;
    let refused = matches!(&captured.allocation, Err(error) if error.is_out_of_memory());
    let words = |result: &Result<(), divvy_driver::Error>| match result {
        Ok(()) => "ok".to_owned(),
        Err(error) => error.to_string(),
    };
    let allocation = match &captured.allocation {
        Ok(bytes) => format!("granted {bytes}"),
        Err(error) => error.to_string(),
    };
    let after = stage.info()?.free;
    let right = refused && captured.capture.is_ok() && captured.launch.is_ok();
    let seen = format!(
        "{} bytes: {allocation}; capture {}, launch {}, {}",
        stage.limit,
        words(&captured.capture),
        words(&captured.launch),
        difference(before, after)
    );
    judged(right && near(before, after), seen)
}
