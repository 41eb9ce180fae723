//! Claims in the API: the held claims, and the MIG placements that a claim may name.

use divvy_api::v1::{self, Error, ErrorCode};
use divvy_core::{JobId, JobState, mig};

use crate::auth::Caller;
use crate::container::cdi;
use crate::controller::claims::files;
use crate::controller::halt::journal_error;
use crate::controller::io::Io;
use crate::controller::query;
use crate::controller::state::{GpuState, Jobs, State};
use crate::gpu::Device;
use crate::model::claim::end::End;
use crate::model::job::Job;

/// Claims that are held and that the caller may see, oldest first.
pub fn list_claims(state: &State, io: &Io, by: &Caller) -> Vec<v1::HeldClaim> {
    let jobs = state.jobs.active.values().map(|active| &active.job);
    let seen = jobs.filter(|job| {
        let maker = job.claim().and_then(|claim| claim.maker);
        by.can_see(job.spec.credentials.uid) || maker == Some(by.account.uid)
    });
    seen.filter_map(|job| held_claim(state, io, job)).collect()
}

/// The claim that a job stands for, active or ended.
///
/// # Errors
/// [`ErrorCode::NotFound`] if the job is no claim.
pub fn get_claim(state: &State, io: &Io, id: JobId) -> Result<v1::HeldClaim, Error> {
    let none = || Error::new(ErrorCode::NotFound, format!("job {id} is not a claim"));
    match state.jobs.active.get(&id) {
        Some(active) => held_claim(state, io, &active.job).ok_or_else(none),
        None => {
            let job = io.store.job(id).map_err(journal_error)?;
            job.and_then(|job| held_claim(state, io, &job))
                .ok_or_else(none)
        }
    }
}

fn held_claim(state: &State, io: &Io, job: &Job) -> Option<v1::HeldClaim> {
    let claim = job.claim()?;
    let active = state.jobs.active.get(&job.id);
    let shown = match active {
        Some(active) => query::active_job_to_api(state, io, active),
        None => query::to_api(state, io, job, None, None),
    };
    let members = active.map_or(0, |active| active.members().len());
    let accounted = shown.slices.iter().map(|slice| slice.processes).max();
    Some(v1::HeldClaim {
        uid: claim.uid.clone(),
        job: job.id.to_string(),
        state: shown.state,
        cdi_device: cdi::device(&files::cdi_name_of(io, claim)),
        namespace: claim.namespace.clone(),
        name: claim.name.clone(),
        owner: job.spec.user.clone(),
        pods: claim.pods.clone(),
        ends: claim.ends.as_ref().map(End::to_api),
        devices: claim.devices.clone(),
        slices: shown.slices,
        processes: u32::try_from(members)
            .unwrap_or(u32::MAX)
            .max(accounted.unwrap_or_default()),
        problem: job
            .reason
            .clone()
            .or_else(|| claim_release_block(&state.jobs, &state.gpus, job)),
        since: job.submitted_at,
    })
}

/// Why a released claim stays allocated while the driver does not list the processes on its GPUs.
fn claim_release_block(jobs: &Jobs, gpus: &GpuState, job: &Job) -> Option<String> {
    let is_given_back = matches!(job.state, JobState::Stopping { .. });
    let why = "the driver does not list the processes on its GPUs; the claim stays allocated until the driver does";
    (is_given_back && jobs.is_unobserved(gpus, job.id)).then(|| why.to_owned())
}

/// The claim of a job, as the API shows it.
pub(in crate::controller) fn job_claim(io: &Io, job: &Job) -> Option<v1::JobClaim> {
    let claim = job.claim()?;
    Some(claim.to_api(cdi::device(&files::cdi_name_of(io, claim))))
}

/// Every placement of an instance on a GPU in MIG mode, in the order in which the planner prefers them. Empty for other
/// GPUs.
///
/// # Errors
/// [`ErrorCode::NotFound`] for a GPU that this node does not have.
pub fn placements(gpus: &GpuState, gpu: &str) -> Result<Vec<v1::MigPlacement>, Error> {
    let index = gpu.parse::<u32>().ok();
    let named =
        |device: &&Device| Some(device.gpu.index) == index || device.gpu.uuid.as_str() == gpu;
    let device = gpus.devices.iter().find(named).ok_or_else(|| {
        Error::new(ErrorCode::NotFound, format!("there is no GPU {gpu}"))
            .hint("list the GPUs: divvy gpus -o wide")
    })?;
    let Some(table) = device.profile_table() else {
        return Ok(Vec::new());
    };
    let shown = |placement: mig::Placement| {
        let profile = table.profile(placement.profile)?;
        Some(v1::MigPlacement {
            profile: profile.name.to_string(),
            profile_id: profile.id,
            memory_bytes: profile.memory.get(),
            start: placement.start,
            memory_slices: profile.memory_slices,
            compute_slices: profile.compute_slices,
        })
    };
    Ok(mig::all_placements(&table)
        .into_iter()
        .filter_map(shown)
        .collect())
}
