//! Physical memory, mapped piece by piece.

use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use divvy_driver::load::Lookup;
use divvy_driver::probe::{Physical, Segment, Session, granularity};

use divvy_testkit::PATIENCE;

use crate::replay::stage::{SLACK, Stage, counted, difference, near};
use crate::replay::step::{Seen, Trouble, judged};

/// Pieces of one act, at most.
const PIECES: u64 = 8192;
/// A refusal comes within this time: the limiter waits for a process that has just ended, and for no other.
const SOON: u128 = 2500;

/// PyTorch makes segments so that another process can import them.
pub const SHAREABLE: Physical = Physical {
    place: divvy_driver::probe::Place::Device,
    shareable: true,
    mapped_only: false,
};

/// The size of a piece in the driver's granularity.
fn whole(session: &Session, physical: Physical, piece: u64) -> Result<u64, Trouble> {
    Ok(piece.next_multiple_of(granularity(session, physical)?.max(1)))
}

/// A segment of so many pieces.
fn grown(
    session: &Session,
    physical: Physical,
    piece: u64,
    pieces: u64,
) -> Result<Segment<'_>, Trouble> {
    let piece = whole(session, physical, piece)?;
    let mut segment = Segment::reserve(session, piece * pieces)?;
    for _ in 0..pieces {
        segment.grow(physical, piece)?;
    }
    Ok(segment)
}

/// The memory is charged to the GPU that the call names: this thread has no context.
pub fn grow_without_context(stage: &Stage, piece: u64, pieces: u64) -> Seen {
    let before = stage.info()?.free;
    let (say, hear) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (held, bytes) = thread::scope(|scope| {
        scope.spawn(move || {
            let grown = Session::without_context(None, Lookup::Handle, 0).map_err(Trouble::from);
            let grown = grown
                .as_ref()
                .map_err(|error| Trouble::Failed(format!("{error:?}")));
            let segment = grown.and_then(|session| self::grown(session, SHAREABLE, piece, pieces));
            let _ = say.send(segment.as_ref().map(Segment::mapped).map_err(worded));
            // The memory stays until it was seen.
            let _ = released.recv_timeout(PATIENCE);
        });
        let mapped = hear.recv_timeout(PATIENCE);
        let mapped = mapped.map_err(|error| Trouble::Failed(error.to_string()));
        let held = stage.info().map(|info| info.free);
        drop(release);
        let mapped = mapped?.map_err(Trouble::Failed)?;
        Ok::<_, Trouble>((held?, mapped))
    })?;
    counted(bytes, before, held, stage.info()?.free)
}

fn worded(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Failed(text) | Trouble::NotAvailable(text) => text.clone(),
    }
}

pub fn grow_until_refused(stage: &Stage, piece: u64) -> Seen {
    let session = &stage.session;
    let piece = whole(session, SHAREABLE, piece)?;
    let before = stage.info()?.free;
    // As PyTorch: addresses for an eighth more than the GPU.
    let most = (stage.limit + stage.limit / 8).div_ceil(piece).min(PIECES);
    let mut segment = Segment::reserve(session, most * piece)?;
    let mut refused = false;
    for _ in 0..most {
        match segment.grow(SHAREABLE, piece) {
            Ok(()) => {}
            Err(error) if error.is_out_of_memory() => {
                refused = true;
                break;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let (mapped, held) = (segment.mapped(), stage.info()?.free);
    segment.shrink()?;
    let again = segment.grow(SHAREABLE, piece);
    drop(segment);
    let after = stage.info()?.free;
    let right = refused
        && mapped <= stage.limit
        && before.saturating_sub(mapped) <= piece + SLACK
        && again.is_ok()
        && near(before, after);
    let seen = format!(
        "{mapped} of {before} free bytes mapped, then {}; {held} were free; unmapped: {}",
        if refused {
            "out of memory"
        } else {
            "not refused"
        },
        difference(before, after)
    );
    judged(right, seen)
}

pub fn grow_mapped_only(stage: &Stage, piece: u64, pieces: u64) -> Seen {
    let before = stage.info()?.free;
    let physical = Physical {
        mapped_only: true,
        ..Physical::default()
    };
    let segment = grown(&stage.session, physical, piece, pieces)?;
    let (bytes, held) = (segment.mapped(), stage.info()?.free);
    drop(segment);
    counted(bytes, before, held, stage.info()?.free)
}

pub fn sleep(stage: &Stage, piece: u64, pieces: u64) -> Seen {
    let before = stage.info()?.free;
    let mut segment = grown(&stage.session, Physical::default(), piece, pieces)?;
    let (bytes, awake) = (segment.mapped(), stage.info()?.free);
    let start = Instant::now();
    for _ in 0..pieces {
        segment.shrink()?;
    }
    let asleep = stage.info()?.free;
    let took = start.elapsed().as_micros();
    let piece = whole(&stage.session, Physical::default(), piece)?;
    for _ in 0..pieces {
        segment.grow(Physical::default(), piece)?;
    }
    let woken = stage.info()?.free;
    let right = near(before.saturating_sub(awake), bytes)
        && near(asleep, before)
        && near(woken, awake)
        && segment.mapped() == bytes;
    let seen = format!(
        "{bytes} bytes mapped; asleep after {took} µs: {}; awake again: {}",
        difference(before, asleep),
        difference(awake, woken)
    );
    judged(right, seen)
}

pub fn refused_soon(stage: &Stage) -> Seen {
    let bytes = whole(&stage.session, SHAREABLE, stage.limit)?;
    let mut segment = Segment::reserve(&stage.session, bytes)?;
    let start = Instant::now();
    let answer = segment.grow(SHAREABLE, bytes);
    let took = start.elapsed().as_millis();
    match answer {
        Err(error) if error.is_out_of_memory() => judged(
            took <= SOON,
            format!("{bytes} bytes refused after {took} ms: {error}"),
        ),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Trouble::Failed(format!("{bytes} bytes were granted"))),
    }
}
