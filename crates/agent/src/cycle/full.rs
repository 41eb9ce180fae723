//! A full disk: reads are answered, jobs that run go on and end, and nothing begins that would have to be written down.
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

/// What the round is to write about the disk.
pub(super) enum Change {
    Full,
    Room,
}

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
            return self.fills(why).map(drop);
        }
        match self.store.reserve() {
            Err(error) if error.is_full() => self.fills(chain(&error)).map(drop),
            done => done,
        }
    }

    /// Looks at the disk before a round writes; what has changed is still to be told.
    ///
    /// # Errors
    /// When the journal fails for another reason than a full disk.
    pub(super) fn look_at_disk(&mut self, ticks: bool) -> Result<Option<Change>, StoreError> {
        // A file system that says nothing of its room shows in a commit that it is full.
        let Ok(room) = self.disk.room() else {
            return Ok(None);
        };
        match &mut self.full {
            None => {
                if let Some(why) = room.lacks(Bytes::ZERO) {
                    return self.fills(why).map(Some);
                }
                if ticks && self.reserves && self.store.reserve_is_low()? {
                    return match self.store.reserve() {
                        Err(error) if error.is_full() => self.fills(chain(&error)).map(Some),
                        done => done.map(|()| None),
                    };
                }
                Ok(None)
            }
            Some(full) if full.tried.elapsed() < AGAIN => Ok(None),
            Some(full) => {
                full.tried = Instant::now();
                if let Some(why) = room.still_lacks() {
                    full.why = why;
                    return Ok(None);
                }
                match self.reserves.then(|| self.store.reserve()).transpose() {
                    Err(error) if error.is_full() => {
                        full.why = chain(&error);
                        return Ok(None);
                    }
                    done => done?,
                };
                self.full = None;
                self.round.replan = true;
                tracing::info!(free = %room.bytes, "the disk has room again");
                Ok(Some(Change::Room))
            }
        }
    }

    fn fills(&mut self, why: String) -> Result<Change, StoreError> {
        let folder = self.config.home.state().display().to_string();
        tracing::error!(%folder, %why, "the disk is full: nothing new is taken on until it has room");
        self.full = Some(Full::of(why));
        // Jobs that wait have another reason now.
        self.round.replan = true;
        // The log begins again with all of its length before it.
        match self.store.checkpoint() {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(Change::Full),
        }
    }

    /// Tells what has become of the disk; the round's transaction has begun.
    pub(super) fn tell_of_disk(&mut self, change: Change) -> Result<(), StoreError> {
        match (change, &self.full) {
            (Change::Full, Some(full)) => {
                let text = format!("the disk is full: {}", full.why);
                self.tell(None, "disk_full", &text)
            }
            _ => self.tell(None, "disk_has_room", "the disk has room again"),
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
        Error::new(ErrorCode::DiskFull, why).hint(format!("make room: df -h {folder}"))
    }

    /// Why no job starts, whatever is free.
    pub(super) fn disk_is_full(&self) -> Option<String> {
        let full = self.full.as_ref()?;
        Some(format!("the disk is full: {}", full.why))
    }
}
