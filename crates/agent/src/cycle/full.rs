//! Disk-full mode: the daemon answers reads, running jobs go on and end, and no new work begins.
//!
//! ```text
//! room below 4 MiB ──► full: new work is refused, no job starts; the journal lives on its reserve
//! room above 8 MiB and the reserve is whole again ──► the plan is made anew
//! ```
//! What is journaled meanwhile is small and bounded by what runs: ends, cancels, claims that are given back, events of bypasses.

use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode, Submit};
use divvy_core::Bytes;

use super::Cycle;
use crate::clock::Instant;
use crate::intake::bounds;
use crate::store::StoreError;
use crate::supervise::chain;

/// How often a full disk is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Each byte of a submission is written to the log, to the database and to the job's record.
const COPIES: u64 = 3;

/// Why nothing new is written.
pub(super) struct Full {
    pub why: String,
    tried: Instant,
}

impl Full {
    fn of(why: String) -> Self {
        Self {
            why,
            tried: Instant::now(),
        }
    }
}

impl Cycle {
    /// Makes the journal's reserve, so that a full disk takes no job's end from it.
    ///
    /// # Errors
    /// When the journal fails for another reason than a full disk.
    pub fn reserve(&mut self) -> Result<(), StoreError> {
        self.reserves = true;
        let lacks = self
            .disk
            .room()
            .ok()
            .and_then(|room| room.lacks(Bytes::ZERO));
        if let Some(why) = lacks {
            return self.fills(why);
        }
        match self.lacks_reserve()? {
            Some(why) => self.fills(why),
            None => Ok(()),
        }
    }

    /// Looks at the disk before a round writes. Whether it is full now and was not, or the other way about; the round tells so.
    ///
    /// # Errors
    /// When the journal fails for another reason than a full disk.
    pub(super) fn look_at_disk(&mut self, ticks: bool) -> Result<bool, StoreError> {
        // Where statvfs(3) fails, a commit that fails shows that the disk is full.
        let Ok(room) = self.disk.room() else {
            return Ok(false);
        };
        match &self.full {
            None => {
                let mut lacks = room.lacks(Bytes::ZERO);
                if lacks.is_none() && ticks && self.reserves && self.store.reserve_is_low()? {
                    lacks = self.lacks_reserve()?;
                }
                lacks.map_or(Ok(false), |why| self.fills(why).map(|()| true))
            }
            Some(full) if full.tried.elapsed() < AGAIN => Ok(false),
            Some(_) => {
                let mut lacks = room.still_lacks();
                if lacks.is_none() && self.reserves {
                    lacks = self.lacks_reserve()?;
                }
                if let Some(why) = lacks {
                    self.full = Some(Full::of(why));
                    return Ok(false);
                }
                self.full = None;
                self.round.replan = true;
                tracing::info!(free = %room.bytes, "the disk has room again");
                Ok(true)
            }
        }
    }

    /// Makes the reserve; why the disk has no room for it.
    fn lacks_reserve(&self) -> Result<Option<String>, StoreError> {
        match self.store.reserve() {
            Err(error) if error.is_full() => Ok(Some(chain(&error))),
            done => done.map(|()| None),
        }
    }

    fn fills(&mut self, why: String) -> Result<(), StoreError> {
        let folder = self.config.home.state().display().to_string();
        tracing::error!(%folder, %why, "the disk is full: the daemon accepts no jobs until it has room");
        self.full = Some(Full::of(why));
        // Jobs that wait have another reason now.
        self.round.replan = true;
        // The log begins again with all of its length before it.
        match self.store.checkpoint() {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(()),
        }
    }

    /// Tells what has become of the disk; the round's transaction has begun.
    pub(super) fn tell_of_disk(&mut self) -> Result<(), StoreError> {
        match self.disk_is_full() {
            Some(why) => self.tell(None, "disk_full", &why),
            None => self.tell(None, "disk_has_room", "the disk has room again"),
        }
    }

    /// Why nothing begins on the disk as it is.
    pub(super) fn lacks_room(&self) -> Option<Error> {
        (self.full.as_ref()).map(|full| self.refusal(&full.why))
    }

    /// The same for a submission, which may be larger than what is left.
    pub(super) fn lacks_room_for(&self, submit: &Submit) -> Option<Error> {
        self.lacks_room().or_else(|| {
            let room = self.disk.room().ok()?;
            let wanted = COPIES.saturating_mul(bounds::written(submit));
            Some(self.refusal(&room.lacks(Bytes::new(wanted))?))
        })
    }

    fn refusal(&self, why: &str) -> Error {
        let folder = self.config.home.state().display();
        let why = format!("the disk is full: {why} below {folder}");
        Error::new(ErrorCode::DiskFull, why)
            .hint(format!("free disk space; check with: df -h {folder}"))
    }

    /// Why no job starts, whatever is free.
    pub(super) fn disk_is_full(&self) -> Option<String> {
        let full = self.full.as_ref()?;
        Some(format!("the disk is full: {}", full.why))
    }
}
