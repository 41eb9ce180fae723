//! Several processes of one slice.

use std::time::{Duration, Instant};

use divvy_driver::probe::{Segment, alloc_for_ipc};
use divvy_testkit::let_pass;

use super::physical::SHAREABLE;
use crate::replay::child::{self, Holder};
use crate::replay::stage::{MIB, PIECE, SLACK, Stage, difference, near};
use crate::replay::step::{Amount, By, Seen, Trouble, judged};

/// Bytes that are exported to another process.
const SHARED: u64 = 256 * MIB;
/// How long memory of a process that has ended may be counted.
const RETURN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until so much is free again; answers what is, and after how long.
fn free_again(stage: &Stage, before: u64) -> Result<(u64, u128), Trouble> {
    let start = Instant::now();
    loop {
        let free = stage.info()?.free;
        if free + SLACK >= before || start.elapsed() > RETURN {
            return Ok((free, start.elapsed().as_millis()));
        }
        let_pass(PAUSE);
    }
}

pub fn sum(stage: &Stage, count: usize, part: u64) -> Seen {
    let each = stage.bytes(Amount::OfTotal(part))?;
    let before = stage.info()?.free;
    let mut holders = Vec::new();
    for _ in 0..count {
        holders.push(Holder::start(each)?);
    }
    let held = stage.info()?.free;
    // A context costs memory too, so it fell by more than the blocks.
    let fell = before.saturating_sub(held);
    let beyond = (held + SLACK).next_multiple_of(PIECE);
    let refused = stage.try_take("cuMemAlloc_v2", beyond)?.is_none();
    drop(holders);
    let (after, took) = free_again(stage, before)?;
    let right =
        fell >= each * count as u64 && fell <= stage.limit && refused && near(after, before);
    let seen = format!(
        "{count} processes with {each} bytes each: free fell by {fell}; {beyond} more {}; {took} ms \
         after their end {}",
        if refused { "refused" } else { "granted" },
        difference(before, after)
    );
    judged(right, seen)
}

pub fn glances(stage: &Stage, count: usize) -> Seen {
    let before = stage.info()?.free;
    let (mut longest, mut totals) = (0, Vec::new());
    for _ in 0..count {
        let start = Instant::now();
        let glance = child::glance()?;
        longest = longest.max(start.elapsed().as_millis());
        totals.push(glance.total);
    }
    let (after, _) = free_again(stage, before)?;
    let right = totals.iter().all(|total| *total == stage.limit) && near(before, after);
    let seen = format!(
        "{count} processes, the longest {longest} ms, all saw {}; afterwards {}",
        totals.first().copied().unwrap_or_default(),
        difference(before, after)
    );
    judged(right, seen)
}

pub fn killed(stage: &Stage) -> Seen {
    let bytes = stage.bytes(Amount::OfTotal(300))?;
    let before = stage.info()?.free;
    let holder = Holder::start(bytes)?;
    let fell = before.saturating_sub(stage.info()?.free);
    holder.kill()?;
    let (after, took) = free_again(stage, before)?;
    let right = fell >= bytes && fell <= stage.limit && near(after, before);
    let seen = format!(
        "a process with {bytes} bytes was killed: free fell by {fell}, {took} ms later {}",
        difference(before, after)
    );
    judged(right, seen)
}

pub fn shared_once(stage: &Stage, by: By) -> Seen {
    let before = stage.info()?.free;
    let glance = match by {
        By::Descriptor => {
            let mut segment = Segment::reserve(&stage.session, SHARED)?;
            segment.grow(SHAREABLE, SHARED)?;
            let descriptor = segment.export()?.ok_or_else(|| {
                Trouble::Failed("the driver has released an exported handle".to_owned())
            })?;
            child::import(descriptor, SHARED)?
        }
        By::Ipc => {
            let (_taken, handle) = alloc_for_ipc(&stage.session, SHARED)?;
            child::open_ipc(&handle, SHARED)?
        }
    };
    let (after, _) = free_again(stage, before)?;
    let fell = glance.free_before.saturating_sub(glance.free);
    // The importer finds free at most what the exporter has left.
    let right = fell <= SLACK && glance.free_before + SHARED <= before && near(after, before);
    let seen = format!(
        "{SHARED} bytes exported; the import took {fell} more; afterwards {}",
        difference(before, after)
    );
    judged(right, seen)
}
