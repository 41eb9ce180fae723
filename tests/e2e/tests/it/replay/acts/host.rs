//! Memory of the host that the GPU can use: it is not the GPU's, and takes nothing of the limit.

use divvy_driver::probe::{Physical, Place, Segment, alloc_pinned, granularity};

use crate::replay::stage::{MIB, Stage};
use crate::replay::step::{Seen, judged};

/// Physical memory of the host, in one piece.
const BYTES: u64 = 128 * MIB;

pub fn physical(stage: &Stage, place: Place) -> Seen {
    let kind = Physical {
        place,
        ..Physical::default()
    };
    let bytes = BYTES.next_multiple_of(granularity(&stage.session, kind)?.max(1));
    let before = stage.info()?.free;
    let mut segment = Segment::reserve(&stage.session, bytes)?;
    segment.grow(kind, bytes)?;
    let held = stage.info()?.free;
    drop(segment);
    uncounted(bytes, before, held)
}

pub fn pinned(stage: &Stage, bytes: u64) -> Seen {
    let before = stage.info()?.free;
    let taken = alloc_pinned(&stage.session, bytes)?;
    let held = stage.info()?.free;
    drop(taken);
    uncounted(bytes, before, held)
}

fn uncounted(bytes: u64, before: u64, held: u64) -> Seen {
    let fell = before.saturating_sub(held);
    judged(
        fell < bytes / 2,
        format!("{bytes} bytes of the host, free fell by {fell}"),
    )
}
