//! Reconciliation: compares the driver's memory figures with the slices' ledgers, and finds bypasses of the limiter.
//!
//! ```text
//! driver's list ─┐
//! ledgers ───────┼─► compare(GPU) ─┬─► per slice: mismatch, and the bytes that its limit has to count besides
//! attribution ───┘                 ├─► memory that belongs to no slice (unmanaged)
//!                                  └─► suspects ─► watchlist ─► bypass, at the second look that finds it
//! ```
//! The job itself writes its ledger, so the driver's figure wins. The agent observes, and acts by [`BypassPolicy`].
//!
//! May use: `units`, `model`.

mod granted;
mod looks;
mod watchlist;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use granted::GrantHistory;
pub use looks::{LONGEST_GAP, MEAN_GAP, random_gap};
pub use watchlist::{BootNanos, BypassChange, Watchlist};

use crate::model::job_state::Process;
use crate::units::{Bytes, JobId};

/// What a process may hold beyond its ledger before its slice's limit counts it: the step in which pools are believed
/// to grow (inferred), so that rounding and slack of small allocations stay below it.
pub const SLACK: Bytes = Bytes::mib(32);

/// What an honest ledger may be short of, at least: a whole context (300 to 500 MB have been seen), in case its cost
/// was never charged. Half would take honest programs for a bypass, and double would hide a whole small model.
pub const HONEST: Bytes = Bytes::mib(512);

/// What may be in use of a GPU and listed for no process before it counts as taken: for each process and once more, as
/// NVML's figure of the GPU was 6 MiB a process above the processes' own (H200, driver 580: docs/hardware.md), and read at
/// another moment. A stricter bound would keep the last job of a full GPU waiting for memory that is there.
pub const UNLISTED_SLACK: Bytes = SLACK;

/// One GPU at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Memory in use by all processes, as the driver reports.
    pub used: Bytes,
    /// What a context costs a process before its first allocation.
    pub context: Bytes,
    pub slices: Vec<SliceSample>,
    pub processes: Vec<ProcessSample>,
}

/// A slice that has a part of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceSample {
    pub job: JobId,
    /// What the planner counts as its: memory beyond this is no part of it, and is not given out.
    pub granted: Bytes,
    /// The most that it was granted lately ([`GrantHistory`]): what it may hold without being accused. `None` while its
    /// memory is put aside or on its way: then no process of it is accused.
    pub granted_recently: Option<Bytes>,
    /// Its job was seen to write over its limit.
    pub tampered: bool,
    /// The driver limits its job's control groups: memory that the limiter does not see harms no other job.
    pub is_walled: bool,
    /// What its ledger says of living processes, listed by the driver or not.
    pub charged: Bytes,
    /// The most that its ledger said before or after the driver was asked, of ended processes too, while the driver gives
    /// their memory back.
    pub charged_at_most: Bytes,
}

/// A process that the driver lists on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    pub process: Process,
    /// `None` where the driver does not say.
    pub used: Option<Bytes>,
    pub owner: ProcessOwner,
}

/// The attribution of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessOwner {
    /// No job's.
    Unmanaged,
    /// It has ended, or was not there yet when the driver was asked: what is listed under its pid is another's, or on
    /// its way out.
    Exited,
    Job {
        job: JobId,
        /// What its slot in the job's slice says of this GPU; `None` without one.
        account: Option<LedgerEntry>,
        limiter: Limiter,
        /// It is in none of the control groups in which the driver limits the job.
        has_escaped: bool,
    },
}

/// What a process's slot says of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    pub charged: Bytes,
    /// Nothing was added between a look before the driver was asked and one after: only then do the two figures speak
    /// of one moment.
    pub steady: bool,
}

/// What a look into a process found of the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limiter {
    Loaded,
    /// Loaded, and told by `DIVVY_SHIM=off` to do nothing.
    Off,
    NotLoaded,
    /// The process does not let itself be looked into.
    Hidden,
}

/// What became of one GPU's sight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Held by no slice, or by a slice beyond what it may have: not to be given out.
    pub unmanaged: Bytes,
    /// The part of it that the driver lists for no process and no ledger explains.
    pub unlisted: Bytes,
    /// In the order of [`Sample::slices`].
    pub slices: Vec<SliceComparison>,
    pub suspects: Vec<Suspect>,
    /// Processes whose ledger changed during the driver's answer: this sample proves nothing about them.
    pub inconclusive: Vec<Process>,
}

/// One slice on one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceComparison {
    pub job: JobId,
    /// What its processes hold by the driver's word; `None` where it does not say.
    pub driver: Option<Bytes>,
    pub charged: Bytes,
    /// What the limit has to count besides the ledger.
    pub uncounted: Bytes,
    /// All figures speak of one moment; else `unseen` is a lower bound and the difference says nothing.
    pub steady: bool,
}

impl SliceComparison {
    /// The ledger's error: the driver's figure less its own, in bytes.
    pub fn mismatch(&self) -> Option<i64> {
        let driver = self.driver.filter(|_| self.steady)?;
        let signed = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
        Some(signed(driver).saturating_sub(signed(self.charged)))
    }
}

/// A process of a job that holds memory in a way that its slice's ledger does not cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    pub job: JobId,
    pub process: Process,
    pub kind: BypassKind,
    pub used: Option<Bytes>,
    pub charged: Bytes,
    /// It harms other slices: the GPU is not its slice's, it has no ledger, or its slice holds more than it was
    /// granted.
    pub harmful: bool,
}

/// How memory is held past the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BypassKind {
    /// It has no slot in its slice: the limiter is not loaded, or is switched off, or never saw it.
    Unlimited,
    /// It uses a GPU that its job does not hold.
    OtherGpu,
    /// It has a slot, and that says much less than the driver.
    Understated,
    /// Its slice holds more than it was granted, whatever its limit says.
    Overdrawn,
    /// It has left the control group in which the driver limits its job.
    Escaped,
}

impl BypassKind {
    pub const ALL: [Self; 5] = [
        Self::Unlimited,
        Self::OtherGpu,
        Self::Understated,
        Self::Overdrawn,
        Self::Escaped,
    ];

    /// The word for it in JSON, metrics and the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::OtherGpu => "other_gpu",
            Self::Understated => "understated",
            Self::Overdrawn => "overdrawn",
            Self::Escaped => "escaped",
        }
    }
}

impl Limiter {
    /// What it says about a process that has no slot.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Loaded => "the limiter is loaded, but the program bypassed it",
            Self::Off => "the limiter is switched off by DIVVY_SHIM=off",
            Self::NotLoaded => "the limiter is not loaded",
            Self::Hidden => "the daemon may not inspect the process",
        }
    }
}

/// What is done about a bypass, from the least to the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BypassPolicy {
    /// It is told, and counted against the slice.
    #[default]
    Warn,
    /// And the slice's further allocations are refused while it lasts.
    Deny,
    /// And the process is killed, and its job with it.
    Kill,
}

impl BypassPolicy {
    pub const ALL: [Self; 3] = [Self::Warn, Self::Deny, Self::Kill];

    /// The word for it on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Deny => "deny",
            Self::Kill => "kill",
        }
    }

    /// What this policy does about one suspect. Memory that no call shows looks like two of them, and for these it
    /// kills no process: an understated ledger while its slice holds no more than it was granted, and a small excess
    /// that the ledger does not show.
    pub fn action_for(self, suspect: &Suspect) -> Self {
        match self {
            Self::Kill if !suspect.harmful => Self::Deny,
            policy => policy,
        }
    }
}

impl fmt::Display for BypassPolicy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for BypassPolicy {
    type Err = BypassPolicyError;

    fn from_str(text: &str) -> Result<Self, BypassPolicyError> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.name() == text)
            .ok_or_else(|| BypassPolicyError(text.to_owned()))
    }
}

/// The word is not a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy for bypasses `{0}`")]
pub struct BypassPolicyError(String);

impl BypassPolicyError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "write warn, deny or kill".to_owned()
    }
}

/// Weighs one GPU.
pub fn compare(sight: &Sample) -> Comparison {
    let mut tally = Totals::default();
    for seen in &sight.processes {
        match seen.owner {
            ProcessOwner::Exited => {}
            ProcessOwner::Unmanaged => tally.stranger(seen.used),
            ProcessOwner::Job {
                job,
                account,
                limiter,
                has_escaped,
            } => match sight.slices.iter().find(|slice| slice.job == job) {
                Some(slice) => tally.member(sight, seen, slice, account, limiter, has_escaped),
                None => {
                    tally.stranger(seen.used);
                    tally.suspect(seen, job, BypassKind::OtherGpu, Bytes::ZERO, true);
                }
            },
        }
    }
    tally.finish(sight)
}

/// What adds up while the list is read.
#[derive(Default)]
struct Totals {
    strangers: Bytes,
    /// The driver does not report the memory of an unmanaged process.
    strangers_unknown: bool,
    members: BTreeMap<JobId, Members>,
    suspects: Vec<Suspect>,
    unsure: Vec<Process>,
}

#[derive(Default)]
struct Members {
    used: Bytes,
    used_unknown: bool,
    /// What they hold, by the driver's word or, where it does not say, the ledgers'.
    held: Bytes,
    /// What of it their ledgers say as well.
    admitted: Bytes,
    unseen: Bytes,
    unsteady: bool,
}

impl Members {
    /// Whether they hold more than their slice was granted, and if so whether other slices are certainly harmed.
    /// `at_most`: what the GPU's own figure leaves for them. Memory that no call shows may take a slice beyond its
    /// grant by as much as an honest ledger may be short of.
    fn overdraw(&self, slice: &SliceSample, at_most: Bytes) -> Option<bool> {
        let granted = slice.granted_recently?;
        let honest = if slice.tampered { SLACK } else { HONEST };
        let excess = self.held.min(at_most).saturating_sub(granted);
        let admitted = self.admitted.saturating_sub(granted);
        let is_admitted = admitted > honest && !self.unsteady;
        let is_large = excess > honest.max(Bytes::new(granted.get() / 4));
        (excess > honest).then_some(slice.tampered || is_admitted || is_large)
    }
}

impl Totals {
    fn stranger(&mut self, used: Option<Bytes>) {
        self.strangers_unknown |= used.is_none();
        self.strangers = self.strangers.saturating_add(used.unwrap_or_default());
    }

    fn suspect(
        &mut self,
        seen: &ProcessSample,
        job: JobId,
        way: BypassKind,
        charged: Bytes,
        harmful: bool,
    ) {
        self.suspects.push(Suspect {
            job,
            process: seen.process,
            kind: way,
            used: seen.used,
            charged,
            harmful,
        });
    }

    fn member(
        &mut self,
        sight: &Sample,
        seen: &ProcessSample,
        slice: &SliceSample,
        account: Option<LedgerEntry>,
        limiter: Limiter,
        has_escaped: bool,
    ) {
        let job = slice.job;
        let charged = account.map_or(Bytes::ZERO, |account| account.charged);
        if slice.is_walled && has_escaped {
            self.suspect(seen, job, BypassKind::Escaped, charged, true);
        }
        let members = self.members.entry(job).or_default();
        members.used_unknown |= seen.used.is_none();
        members.used = members.used.saturating_add(seen.used.unwrap_or_default());
        let held = seen.used.unwrap_or(charged);
        members.held = members.held.saturating_add(held);
        members.admitted = members.admitted.saturating_add(held.min(charged));
        let beyond = seen.used.unwrap_or_default().saturating_sub(charged);
        if account.is_some_and(|account| !account.steady) {
            members.unsteady = true;
            self.unsure.push(seen.process);
            return;
        }
        if slice.is_walled {
            // The driver counts it already, and what the limiter refused besides, the driver would grant.
            return;
        }
        if beyond > SLACK {
            members.unseen = members.unseen.saturating_add(beyond);
        }
        match account {
            Some(_) => {
                let honest = HONEST.max(Bytes::new(seen.used.unwrap_or_default().get() / 4));
                if beyond > honest {
                    self.suspect(seen, job, BypassKind::Understated, charged, false);
                }
            }
            // The runtime has a private way to a context, which is charged with the first allocation in it.
            None if limiter == Limiter::Loaded
                && beyond <= sight.context.saturating_add(HONEST) => {}
            None => self.suspect(seen, job, BypassKind::Unlimited, charged, true),
        }
    }

    /// Accuses every process that holds memory for an overdrawn slice: the driver does not say which of them is the one
    /// too many.
    fn accuse_all(&mut self, sight: &Sample, of: JobId, harmful: bool) {
        for seen in &sight.processes {
            let ProcessOwner::Job { job, account, .. } = seen.owner else {
                continue;
            };
            let charged = account.map_or(Bytes::ZERO, |account| account.charged);
            let is_suspect = |suspect: &Suspect| suspect.process == seen.process;
            let holds = seen.used.unwrap_or(charged) > Bytes::ZERO;
            if job == of && holds && !self.suspects.iter().any(is_suspect) {
                self.suspect(seen, job, BypassKind::Overdrawn, charged, harmful);
            }
        }
    }

    fn finish(mut self, sight: &Sample) -> Comparison {
        let mut excess = Bytes::ZERO;
        let held = self.members.values().map(|members| members.held);
        let by_processes = held.fold(self.strangers, Bytes::saturating_add);
        let mut unlisted = sight.used.saturating_sub(by_processes);
        let slices: Vec<SliceComparison> = sight
            .slices
            .iter()
            .map(|slice| {
                let members = self.members.remove(&slice.job).unwrap_or_default();
                let driver = (!members.used_unknown).then_some(members.used);
                excess = excess.saturating_add(members.held.saturating_sub(slice.granted));
                // A ledger may be wrong, and so it explains no more than the grant, which is not given out anyway.
                let explained = slice.charged_at_most.min(slice.granted);
                unlisted = unlisted.saturating_sub(explained.saturating_sub(members.held));
                // A driver may show memory that processes share with each of them; the GPU's own figure has it once.
                let at_most = sight
                    .used
                    .saturating_sub(by_processes.saturating_sub(members.held));
                let overdraw = members.overdraw(slice, at_most);
                let is_beyond =
                    members.held.min(at_most) > slice.granted_recently.unwrap_or(slice.granted);
                for suspect in &mut self.suspects {
                    suspect.harmful |= suspect.job == slice.job && is_beyond;
                }
                if let Some(harmful) = overdraw {
                    self.accuse_all(sight, slice.job, harmful);
                }
                SliceComparison {
                    job: slice.job,
                    driver,
                    charged: slice.charged,
                    uncounted: members.unseen,
                    steady: !members.unsteady,
                }
            })
            .collect();
        let foreign = if self.strangers_unknown {
            // The driver names an unmanaged process without its memory: all memory that is not ours may be its.
            let ours = |slice: &SliceComparison| slice.driver.unwrap_or(slice.charged);
            let ours = slices
                .iter()
                .map(ours)
                .fold(Bytes::ZERO, Bytes::saturating_add);
            unlisted = Bytes::ZERO;
            sight.used.saturating_sub(ours)
        } else {
            self.strangers
        };
        let slack = UNLISTED_SLACK.get() * (sight.processes.len() as u64 + 1);
        if unlisted <= Bytes::new(slack) {
            unlisted = Bytes::ZERO;
        }
        Comparison {
            unmanaged: foreign.saturating_add(excess).saturating_add(unlisted),
            unlisted,
            slices,
            suspects: self.suspects,
            inconclusive: self.unsure,
        }
    }
}

#[cfg(test)]
mod tests;
