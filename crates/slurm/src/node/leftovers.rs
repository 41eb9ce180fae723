//! Slices of jobs that Slurm no longer has on the node: their Epilog was lost, or found no daemon.

use spank_divvy::record;

use super::daemon::{Daemon, Trouble, job_of};
use super::programs::Programs;
use super::records;

/// Releases them, and answers their jobs. Slices of others are left alone.
///
/// # Errors
/// When the daemon or slurmctld does not answer; then nothing is released.
pub async fn release(
    daemon: &Daemon,
    programs: &Programs,
    node: &str,
) -> Result<Vec<u32>, Trouble> {
    // First what is there, then what runs: a job that begins between the two is in the second list alone.
    let held: Vec<u32> = daemon
        .client
        .claims()
        .await?
        .iter()
        .filter_map(job_of)
        .collect();
    let folder = records();
    let recorded = record::jobs(&folder);
    if held.is_empty() && recorded.is_empty() {
        return Ok(Vec::new());
    }
    let running = programs.jobs_on(node).map_err(Trouble::Refused)?;
    for job in recorded.iter().filter(|job| !running.contains(job)) {
        record::remove(&folder, *job);
    }
    let mut released = Vec::new();
    for job in held.into_iter().filter(|job| !running.contains(job)) {
        daemon.release(job).await?;
        released.push(job);
    }
    Ok(released)
}
