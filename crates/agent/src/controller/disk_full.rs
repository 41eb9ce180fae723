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

use super::Controller;
use crate::host::clock::Instant;
use crate::host::error::error_chain;
use crate::journal::StoreError;
use crate::model::validate::limits;

/// How often a full disk is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Each byte of a submission is written to the log, to the database and to the job's record.
const COPIES: u64 = 3;

/// Why nothing new is written.
pub(super) struct DiskFull {
    pub why: String,
    tried: Instant,
}

impl DiskFull {
    fn of(why: String) -> Self {
        Self {
            why,
            tried: Instant::now(),
        }
    }
}

impl Controller {
    /// Makes the journal's reserve, so that a full disk takes no job's end from it.
    ///
    /// # Errors
    /// When the journal fails for another reason than a full disk.
    pub fn reserve(&mut self) -> Result<(), StoreError> {
        self.has_reserve = true;
        let lacks = self
            .disk
            .free_space()
            .ok()
            .and_then(|room| room.shortage(Bytes::ZERO));
        if let Some(why) = lacks {
            return self.enter_disk_full(why);
        }
        match self.lacks_reserve()? {
            Some(why) => self.enter_disk_full(why),
            None => Ok(()),
        }
    }

    /// Looks at the disk before a round writes. Whether it is full now and was not, or the other way about; the round tells so.
    ///
    /// # Errors
    /// When the journal fails for another reason than a full disk.
    pub(super) fn check_disk(&mut self, ticks: bool) -> Result<bool, StoreError> {
        // Where statvfs(3) fails, a commit that fails shows that the disk is full.
        let Ok(room) = self.disk.free_space() else {
            return Ok(false);
        };
        match &self.disk_full {
            None => {
                let mut lacks = room.shortage(Bytes::ZERO);
                if lacks.is_none() && ticks && self.has_reserve && self.store.reserve_is_low()? {
                    lacks = self.lacks_reserve()?;
                }
                lacks.map_or(Ok(false), |why| self.enter_disk_full(why).map(|()| true))
            }
            Some(full) if full.tried.elapsed() < AGAIN => Ok(false),
            Some(_) => {
                let mut lacks = room.remaining_shortage();
                if lacks.is_none() && self.has_reserve {
                    lacks = self.lacks_reserve()?;
                }
                if let Some(why) = lacks {
                    self.disk_full = Some(DiskFull::of(why));
                    return Ok(false);
                }
                self.disk_full = None;
                self.effects.replan = true;
                tracing::info!(free = %room.bytes, "the disk has room again");
                Ok(true)
            }
        }
    }

    /// Makes the reserve; why the disk has no room for it.
    fn lacks_reserve(&self) -> Result<Option<String>, StoreError> {
        match self.store.reserve() {
            Err(error) if error.is_full() => Ok(Some(error_chain(&error))),
            done => done.map(|()| None),
        }
    }

    fn enter_disk_full(&mut self, why: String) -> Result<(), StoreError> {
        let folder = self.config.home.state().display().to_string();
        tracing::error!(%folder, %why, "the disk is full: the daemon accepts no jobs until it has room");
        self.disk_full = Some(DiskFull::of(why));
        // Jobs that wait have another reason now.
        self.effects.replan = true;
        // The log begins again with all of its length before it.
        match self.store.checkpoint() {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(()),
        }
    }

    /// Tells what has become of the disk; the round's transaction has begun.
    pub(super) fn report_disk(&mut self) -> Result<(), StoreError> {
        match self.disk_is_full() {
            Some(why) => self.record_event(None, "disk_full", &why),
            None => self.record_event(None, "disk_has_room", "the disk has room again"),
        }
    }

    /// Why nothing begins on the disk as it is.
    pub(super) fn disk_full_error(&self) -> Option<Error> {
        (self.disk_full.as_ref()).map(|full| self.refusal(&full.why))
    }

    /// The same for a submission, which may be larger than what is left.
    pub(super) fn disk_full_error_for(&self, submit: &Submit) -> Option<Error> {
        self.disk_full_error().or_else(|| {
            let room = self.disk.free_space().ok()?;
            let wanted = COPIES.saturating_mul(limits::written(submit));
            Some(self.refusal(&room.shortage(Bytes::new(wanted))?))
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
        let full = self.disk_full.as_ref()?;
        Some(format!("the disk is full: {}", full.why))
    }
}
