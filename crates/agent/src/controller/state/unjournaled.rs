//! Unjournaled jobs: they run, and the journal does not have them.

use std::collections::BTreeMap;

use divvy_api::v1;
use divvy_api::v1::Error;
use divvy_api::v1::ErrorCode;
use divvy_core::AllocatedJob;
use divvy_core::Grant;
use divvy_core::JobId;
use divvy_core::QueueName;

use crate::controller::state::Jobs;
use crate::host::cgroup::Cgroup;

/// A running job that the journal lacks.
pub struct UnjournaledJob {
    /// The GPUs that are reserved for it.
    pub grants: Vec<Grant>,
    pub pids: Vec<u32>,
    /// Its control group, where that is not the one of its number in this journal.
    pub group: Option<Cgroup>,
}

impl UnjournaledJob {
    pub fn describe(&self) -> String {
        let pids: Vec<String> = self.pids.iter().map(u32::to_string).collect();
        let held = self.grants.iter().map(|grant| {
            let (index, memory, share) = (grant.index, grant.memory.human(), grant.share);
            format!("{memory} and {share} of GPU {index}")
        });
        let held = match held.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => "no GPU".to_owned(),
            held => held,
        };
        match pids.is_empty() {
            true => format!("it holds {held}"),
            false => format!("it holds {held}; pid {}", pids.join(", ")),
        }
    }
}

/// The unknown jobs, by number.
pub type Unknowns = BTreeMap<JobId, UnjournaledJob>;

/// What the planner counts for unknown jobs.
pub fn held_by_unknown(jobs: &Jobs) -> impl Iterator<Item = AllocatedJob> {
    let holders = jobs
        .unjournaled
        .iter()
        .filter(|(_, unknown)| !unknown.grants.is_empty());
    holders.map(|(id, unknown)| {
        AllocatedJob::new(*id, QueueName::default_queue(), unknown.grants.clone())
    })
}

/// The refusal of a call about an unknown job.
pub fn refuse_unknown(jobs: &Jobs, id: JobId) -> Option<Error> {
    let unknown = jobs.unjournaled.get(&id)?;
    let why = format!(
        "job {id} runs, but the journal lacks it: {}",
        unknown.describe()
    );
    let pids: Vec<String> = unknown.pids.iter().map(u32::to_string).collect();
    let hint = match pids.is_empty() {
        true => "`divvy doctor` explains how to restore the journal".to_owned(),
        false => format!("end it with: kill {}", pids.join(" ")),
    };
    Some(Error::new(ErrorCode::Conflict, why).hint(hint))
}

/// The unknown jobs, for the API.
pub fn list_unknown(jobs: &Jobs) -> Vec<v1::UnknownJob> {
    let shown = jobs.unjournaled.iter().map(|(id, unknown)| v1::UnknownJob {
        job: id.to_string(),
        pids: unknown.pids.clone(),
        gpus: unknown.grants.iter().map(|grant| grant.index).collect(),
    });
    shown.collect()
}
