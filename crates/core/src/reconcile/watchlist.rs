//! The watchlist of bypass suspects: a process that is suspect in two samples in a row is reported once.
//!
//! ```text
//!            suspect              suspect
//! nothing ───────────► suspected ───────────► bypass ──┐ suspect: figures kept up to date
//!    ▲                    │ not suspect       │    ▲───┘
//!    └────────────────────┴───────────────────┘
//!                   not listed any more, or not suspect for two seconds (unsure: nothing changes)
//! ```
//! One sample is not enough: driver and ledger are read one after the other, and a process may be exiting. A process
//! that is suspect again within two seconds has not stopped. Otherwise a process near the threshold would fill the
//! journal.
//!
//! Where the memory harms other slices, the two samples need not follow each other, nor show the same process: a job
//! that takes memory and gives it back before the next look does so again.

use std::collections::BTreeMap;

use super::{Limiter, Suspect};
use crate::model::job_state::Process;
use crate::units::{GpuUuid, JobId};

/// Nanoseconds since boot.
pub type BootNanos = u64;

/// How long an accused process that is still there must not be suspect.
pub(super) const CALM: BootNanos = 2_000_000_000;

/// How long a harmful look at a job counts towards a second one. A job that holds memory for a twentieth of the time is
/// found by one look in five seconds, at four looks a second. An honest job whose figures disagree once, as when a
/// process exits during a look, does not do so twice in this time.
const RECALL: BootNanos = 10_000_000_000;

/// Suspects of all GPUs.
#[derive(Clone, Debug, Default)]
pub struct Watchlist {
    entries: BTreeMap<(u32, u64, GpuUuid), Entry>,
    /// The last look that found harm, of each job, and the one before. A look at several GPUs is one look.
    harm: BTreeMap<JobId, (BootNanos, Option<BootNanos>)>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    first: BootNanos,
    last: BootNanos,
    accused: bool,
    suspect: Suspect,
    limiter: Limiter,
}

/// News about one process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BypassChange {
    /// It was seen for the second time in a row, or its job did harm for the second time within `RECALL`.
    Detected {
        gpu: GpuUuid,
        suspect: Suspect,
        limiter: Limiter,
        /// When it was seen first.
        since: BootNanos,
    },
    /// It was accused and does it still: its figures as they are now.
    Updated { gpu: GpuUuid, suspect: Suspect },
    /// It was accused, and is seen no more.
    Cleared { gpu: GpuUuid, suspect: Suspect },
}

impl Watchlist {
    /// Applies one sample of a GPU: the suspects, and the other processes `there`, of which some may be `unsure`.
    pub fn update(
        &mut self,
        now: BootNanos,
        gpu: &GpuUuid,
        suspects: &[(Suspect, Limiter)],
        there: &[Process],
        unsure: &[Process],
    ) -> Vec<BypassChange> {
        let key = |process: Process| (process.pid, process.start_time, gpu.clone());
        let mut changes = Vec::new();
        let gone = self.entries.extract_if(.., |(pid, start_time, on), entry| {
            let process = Process {
                pid: *pid,
                start_time: *start_time,
            };
            let seen = suspects
                .iter()
                .any(|(suspect, _)| suspect.process == process);
            let calm = !entry.accused || now.saturating_sub(entry.last) >= CALM;
            let over = !there.contains(&process) || (calm && !unsure.contains(&process));
            on == gpu && !seen && over
        });
        for (_, entry) in gone.collect::<Vec<_>>() {
            if entry.accused {
                changes.push(BypassChange::Cleared {
                    gpu: gpu.clone(),
                    suspect: entry.suspect,
                });
            }
        }
        self.harm
            .retain(|_, (last, _)| now.saturating_sub(*last) < RECALL);
        for (suspect, limiter) in suspects {
            let harm = suspect.harmful.then(|| self.record_harm(suspect.job, now));
            let is_new = !self.entries.contains_key(&key(suspect.process));
            let entry = self.entries.entry(key(suspect.process));
            let entry = entry.or_insert(Entry {
                first: now,
                last: now,
                accused: false,
                suspect: *suspect,
                limiter: *limiter,
            });
            (entry.suspect, entry.last) = (*suspect, now);
            match harm.flatten() {
                Some(before) => entry.first = entry.first.min(before),
                None if is_new => continue,
                None => {}
            }
            changes.push(if std::mem::replace(&mut entry.accused, true) {
                BypassChange::Updated {
                    gpu: gpu.clone(),
                    suspect: *suspect,
                }
            } else {
                BypassChange::Detected {
                    gpu: gpu.clone(),
                    suspect: *suspect,
                    limiter: entry.limiter,
                    since: entry.first,
                }
            });
        }
        changes
    }

    /// Records a look that found a job doing harm; returns the look before it that did, if it was lately.
    fn record_harm(&mut self, job: JobId, now: BootNanos) -> Option<BootNanos> {
        let (last, before) = self.harm.entry(job).or_insert((now, None));
        if *last < now {
            (*before, *last) = (Some(*last), now);
        }
        *before
    }

    /// Puts back what an earlier agent accused, so that it is not accused again.
    pub fn restore(&mut self, gpu: GpuUuid, suspect: Suspect, limiter: Limiter, since: BootNanos) {
        let entry = Entry {
            first: since,
            last: since,
            accused: true,
            suspect,
            limiter,
        };
        let Process { pid, start_time } = suspect.process;
        self.entries.insert((pid, start_time, gpu), entry);
    }

    /// Forgets GPUs that are not there any more; what was accused on them is over.
    pub fn retain(&mut self, is_there: impl Fn(&GpuUuid) -> bool) -> Vec<BypassChange> {
        let gone = self.entries.extract_if(.., |(_, _, gpu), _| !is_there(gpu));
        let accused = gone.filter(|(_, entry)| entry.accused);
        accused
            .map(|((_, _, gpu), entry)| BypassChange::Cleared {
                gpu,
                suspect: entry.suspect,
            })
            .collect()
    }

    /// Whether a process was suspect once and waits for the second sample.
    pub fn is_curious(&self) -> bool {
        self.entries.values().any(|entry| !entry.accused)
    }
}
