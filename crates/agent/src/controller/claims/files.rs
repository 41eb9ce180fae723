//! Claim files: the slice of a claim, the files that its containers mount, and its CDI device.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use divvy_core::JobId;

use crate::container::edits::{Edits, JobFiles, edits};
use crate::container::{cdi, job_files};
use crate::controller::actuators::Actuators;
use crate::controller::claims::entries;
use crate::controller::io::Io;
use crate::controller::lifecycle::container::slice_of_job;
use crate::controller::lifecycle::start::{overheads, slice_layout};
use crate::controller::lifecycle::start_failure::StartError;
use crate::controller::run_as::run_as;
use crate::controller::state::mig::{MigManager, is_divided};
use crate::controller::state::{Jobs, State};
use crate::gpu::slice::{HeldSlice, chown_to_user, make_world_accessible};
use crate::gpu::watched_jobs::WatchedJob;
use crate::host::clock::Instant;
use crate::host::failpoint::reach;
use crate::host::process::mounts::MountSource;
use crate::host::run_as::Identity;
use crate::job_dir::container_spec;
use crate::model::claim::Claim;
use crate::model::job::Job;

/// The default folder of CDI devices in root's container engines (CDI specification, "CDI Specs": files that exist until the
/// machine stops).
const CDI_FOLDER: &str = "/var/run/cdi";

/// Keeps NVIDIA's container runtime from adding GPUs by itself, as the CDI device has everything. NVIDIA's own CDI
/// specifications contain the same variable.
const NO_OTHERS: (&str, &str) = ("NVIDIA_VISIBLE_DEVICES", "void");

/// Creates the slice, its files and its CDI device, or the missing ones of them.
pub(in crate::controller) fn create_claim_files(
    state: &mut State,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) -> Result<(), StartError> {
    let folder = io.config.home.slice(&id.to_string());
    let Some(active) = state.jobs.active.get(&id) else {
        return Ok(());
    };
    let (job, grants) = (&active.job, active.job.state.grants());
    let is_whole = active.slice().is_some() && HeldSlice::exists(&folder);
    if !is_divided(grants) && !is_whole {
        let overheads = overheads(&state.gpus.devices, grants);
        let slice = HeldSlice::create(&folder, &slice_layout(&id.to_string(), job, &overheads))?;
        match owner_of_slice(job) {
            Some(owner) => chown_to_user(&folder, &owner)?,
            // The programs may run as any user; they see the file only through a mount.
            None => make_world_accessible(&folder)?,
        }
        if let Some(placed) = (state.jobs.active.get_mut(&id)).and_then(|one| one.placed_mut()) {
            placed.slice = Some(slice);
            placed.slice_usage.clear();
            placed.since = Instant::now();
        }
    }
    reach("start.slice");
    let files = JobFiles::of(state.jobs.dir(&io.config.home, id).path());
    let edits = edits_of_claim(&state.jobs, &state.mig, io, id, &files)?;
    job_files::write(&edits, &files)?;
    reach("claim.laid");
    let name = device_of(&state.jobs, io, id).unwrap_or_default();
    match cdi::keep(&cdi_folder(io), &name, &cdi::cdi(&name, &edits)) {
        Ok(()) => {}
        // Its programs need no container engine.
        Err(error) if is_slice(&state.jobs, id) => {
            tracing::warn!(job = %id, %error, "cannot write the slice's CDI file, which containers need");
        }
        Err(error) => return Err(StartError::Cdi(error)),
    }
    reach("claim.cdi");
    entries::write(state, io, id).map_err(StartError::Entry)?;
    register_claim(&state.jobs, io, actuators, id);
    Ok(())
}

/// The owner of a slice, where that is not the daemon's user.
fn owner_of_slice(job: &Job) -> Option<Identity> {
    job.claim().filter(|claim| claim.is_slice())?;
    run_as(job)
}

fn is_slice(jobs: &Jobs, id: JobId) -> bool {
    let job = jobs.active.get(&id).map(|active| &active.job);
    job.and_then(Job::claim).is_some_and(Claim::is_slice)
}

/// The changes to a container that uses the claim.
fn edits_of_claim(
    jobs: &Jobs,
    mig: &MigManager,
    io: &Io,
    id: JobId,
    files: &JobFiles,
) -> Result<Edits, StartError> {
    let Some(active) = jobs.active.get(&id) else {
        return Ok(Edits::default());
    };
    let (job, grants) = (&active.job, active.job.state.grants());
    let visible = grants.iter().map(|grant| mig.visible_uuid(grant));
    let visible: Vec<String> = visible
        .collect::<Option<_>>()
        .ok_or(StartError::NoInstance)?;
    let mut held = slice_of_job(io, mig, job, &visible, !is_divided(grants))?;
    let (name, value) = NO_OTHERS;
    held.variables.insert(name.to_owned(), value.to_owned());
    Ok(edits(&held, files))
}

/// Registers a claim that has its files with the observer and the compute scheduler.
pub(in crate::controller) fn register_claim(
    jobs: &Jobs,
    io: &Io,
    actuators: &Actuators,
    id: JobId,
) {
    let files = JobFiles::of(jobs.dir(&io.config.home, id).path());
    let folder = io.config.home.slice(&id.to_string());
    let Some(active) = jobs.active.get(&id) else {
        return;
    };
    let entry = match active.slice() {
        Some(slice) => {
            let (limits, compute) = (active.job.limits(), active.job.compute());
            actuators
                .compute_scheduler
                .add_slice(id, &folder, &limits, compute);
            slice.to_watched_job(Vec::new())
        }
        None => WatchedJob::without_ledger(),
    };
    actuators.observer.register(
        id,
        WatchedJob {
            // Containers have the first, and programs that enter the slice the second.
            mounts: [files.folder, folder.join("slots")]
                .iter()
                .filter_map(|source| MountSource::of(source))
                .collect(),
            cgroup: (active.job.claim())
                .and_then(|claim| claim.ends.as_ref()?.cgroup())
                .map(Path::to_owned),
            pods: active
                .job
                .claim()
                .map_or_else(Vec::new, |claim| claim.pods.clone()),
            ..entry
        },
    );
}

pub(in crate::controller) fn cdi_folder(io: &Io) -> PathBuf {
    let configured = io.config.containers.cdi.clone();
    configured.unwrap_or_else(|| match rustix::process::geteuid().is_root() {
        true => CDI_FOLDER.into(),
        // A user's engine finds the devices with `podman --cdi-spec-dir`.
        false => io.config.home.state().join("cdi"),
    })
}

/// The name of a claim's device and of the file that defines it. It does not depend on the job's number: the client may
/// remember the name over a reboot.
pub(in crate::controller) fn cdi_name_of(io: &Io, claim: &Claim) -> String {
    let uid = format!("{}{}", claim.uid, cdi::OF_CLAIM);
    container_spec::name(&cdi_instance(io), &uid, 0)
}

fn cdi_instance(io: &Io) -> String {
    container_spec::instance(io.config.home.instance())
}

/// Removes CDI files of jobs and claims that hold nothing any more. The process that had to remove them may have died
/// or failed.
pub(in crate::controller) fn remove_stale_cdi_files(jobs: &Jobs, io: &Io) {
    let instance = cdi_instance(io);
    let prefix = container_spec::name(&instance, "", 0);
    let jobs = jobs.active.values().map(|active| &active.job);
    let holds = jobs.filter(|job| job.claim().is_some() || !job.state.grants().is_empty());
    let held = holds.map(|job| match job.claim() {
        Some(claim) => cdi_name_of(io, claim),
        None => container_spec::name(&instance, &job.id.to_string(), job.run_state.runs),
    });
    let held: BTreeSet<String> = held.collect();
    let goes = |name: &str| cdi::is_over(name, &prefix, &held);
    if let Err(error) = cdi::sweep(&cdi_folder(io), goes) {
        tracing::warn!(%error, "cannot remove outdated CDI files");
    }
}

/// The name of a claim's CDI device.
pub(in crate::controller) fn device_of(jobs: &Jobs, io: &Io, id: JobId) -> Option<String> {
    let claim = jobs.active.get(&id)?.job.claim()?;
    Some(cdi_name_of(io, claim))
}

/// Removes the CDI device and the entry of a claim that has ended, before its slice.
pub(in crate::controller) fn remove_files(jobs: &Jobs, io: &Io, id: JobId) {
    let Some(name) = device_of(jobs, io, id) else {
        return;
    };
    if let Err(error) = cdi::remove(&cdi_folder(io), &name) {
        tracing::warn!(job = %id, %error, "cannot remove the claim's CDI file; it stays until the next start");
    }
    entries::remove(jobs, io, id);
    reach("claim.freed");
}
