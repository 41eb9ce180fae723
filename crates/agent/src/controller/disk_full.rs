//! Disk-full mode: the daemon answers reads and ends running jobs, but starts no new work.
//!
//! ```text
//! room below 4 MiB ──► full: new work is refused, no job starts; the journal lives on its reserve
//! room above 8 MiB and the reserve is whole again ──► the plan is made anew
//! ```
//! Meanwhile the journal grows little: by ends, cancels, released claims and bypass events of the jobs that still run.

use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode, Submit};
use divvy_core::Bytes;

use crate::controller::effects::Effects;
use crate::controller::io::Io;
use crate::controller::state::DiskState;
use crate::controller::state::disk::DiskFull;
use crate::host::disk;
use crate::host::error::error_chain;
use crate::journal::StoreError;
use crate::model::validate::limits;

/// The delay before the daemon checks a full disk again. A user who frees room waits no longer than that; a shorter
/// delay would be busy waiting.
const AGAIN: Duration = Duration::from_secs(1);

/// Each byte of a submission is written three times: to the log, to the database and to the job record. So less room
/// than that could fail between two of them.
const COPIES: u64 = 3;

/// Creates the journal's reserve, so that a job's end can be journaled on a full disk.
///
/// # Errors
/// When the journal fails for another reason than a full disk.
pub fn reserve(disk: &mut DiskState, fx: &mut Effects, io: &Io) -> Result<(), StoreError> {
    disk.has_reserve = true;
    let lacks = io
        .sensors
        .free_space()
        .ok()
        .and_then(|room| room.shortage(Bytes::ZERO));
    if let Some(why) = lacks {
        return enter_disk_full(disk, fx, io, why);
    }
    match lacks_reserve(io)? {
        Some(why) => enter_disk_full(disk, fx, io, why),
        None => Ok(()),
    }
}

/// Checks the free space before a round writes. True if the disk became full or has room again; the round then records
/// an event.
///
/// # Errors
/// When the journal fails for another reason than a full disk.
pub(super) fn check_disk(
    disk: &mut DiskState,
    fx: &mut Effects,
    io: &Io,
    ticks: bool,
) -> Result<bool, StoreError> {
    // If statvfs(3) fails, a failed commit still shows that the disk is full.
    let Ok(room) = io.sensors.free_space() else {
        return Ok(false);
    };
    match &disk.full {
        None => {
            let mut lacks = room.shortage(Bytes::ZERO);
            if lacks.is_none() && ticks && disk.has_reserve && io.store.reserve_is_low()? {
                lacks = lacks_reserve(io)?;
            }
            lacks.map_or(Ok(false), |why| {
                enter_disk_full(disk, fx, io, why).map(|()| true)
            })
        }
        Some(full) if full.tried.elapsed() < AGAIN => Ok(false),
        Some(_) => {
            let mut lacks = room.remaining_shortage();
            if lacks.is_none() && disk.has_reserve {
                lacks = lacks_reserve(io)?;
            }
            if let Some(why) = lacks {
                disk.full = Some(DiskFull::of(why));
                return Ok(false);
            }
            disk.full = None;
            fx.replan = true;
            tracing::info!(free = %room.bytes, "the disk has room again");
            Ok(true)
        }
    }
}

/// Creates the reserve; returns the reason if the disk has no room for it.
fn lacks_reserve(io: &Io) -> Result<Option<String>, StoreError> {
    match io.store.reserve() {
        Err(error) if error.is_full() => Ok(Some(error_chain(&error))),
        done => done.map(|()| None),
    }
}

fn enter_disk_full(
    disk: &mut DiskState,
    fx: &mut Effects,
    io: &Io,
    why: String,
) -> Result<(), StoreError> {
    let folder = io.config.home.state().display().to_string();
    tracing::error!(%folder, %why, "the disk is full: the daemon accepts no jobs until it has room");
    disk.full = Some(DiskFull::of(why));
    // The reason of pending jobs has changed.
    fx.replan = true;
    // A checkpoint empties the write-ahead log, so all of its space can be used again.
    match io.store.checkpoint() {
        Err(error) if !error.is_full() => Err(error),
        _ => Ok(()),
    }
}

/// Records an event about the disk; the round's transaction has begun.
pub(super) fn report_disk(disk: &DiskState, fx: &mut Effects, io: &Io) -> Result<(), StoreError> {
    match disk_is_full(disk) {
        Some(why) => fx.record_event(io, None, "disk_full", &why),
        None => fx.record_event(io, None, "disk_has_room", "the disk has room again"),
    }
}

/// The refusal of new work while the disk is full.
pub(super) fn disk_full_error(disk: &DiskState, io: &Io) -> Option<Error> {
    (disk.full.as_ref()).map(|full| refusal(io, &full.why))
}

/// The same for a submission, which may need more space than is left.
pub(super) fn disk_full_error_for(disk: &DiskState, io: &Io, submit: &Submit) -> Option<Error> {
    disk_full_error(disk, io).or_else(|| {
        let room = io.sensors.free_space().ok()?;
        let wanted = COPIES.saturating_mul(limits::written(submit));
        Some(refusal(io, &room.shortage(Bytes::new(wanted))?))
    })
}

fn refusal(io: &Io, why: &str) -> Error {
    let folder = io.config.home.state();
    let hint = disk::hint(why, folder);
    let why = format!("the disk is full: {why} below {}", folder.display());
    Error::new(ErrorCode::DiskFull, why).hint(hint)
}

/// Why no job starts, regardless of free GPUs.
pub(super) fn disk_is_full(disk: &DiskState) -> Option<String> {
    let full = disk.full.as_ref()?;
    Some(format!("the disk is full: {}", full.why))
}
