//! Takes away containers of this instance that belong to no job any more: a supervisor died between its last record and that.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::ListContainersOptions;
use divvy_core::JobId;

use super::plan::{INSTANCE, JOB};
use super::{engine, run};

/// Whose containers are to stay, as of the start of a daemon.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Jobs that had not ended.
    pub living: BTreeSet<JobId>,
    /// The last that there was. An engine may take long to answer, and has containers of later ones by then.
    pub newest: Option<JobId>,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Runs,
    /// It has ended, or has yet to begin.
    Rests,
}

impl Sweep {
    /// Whether a container of this job, by its label, is left over.
    pub fn takes(&self, job: Option<&str>, standing: Standing) -> bool {
        let job = job.and_then(|job| job.parse::<JobId>().ok());
        let is_kept = job.is_some_and(|job| Some(job) > self.newest || self.living.contains(&job));
        // One that runs may be somebody's work, whatever became of the journal.
        standing == Standing::Rests && !is_kept
    }
}

/// Takes away what is left over, in a thread of its own: an engine may take its time, and nothing waits for it.
pub fn start(socket: PathBuf, instance: String, sweep: Sweep) -> io::Result<()> {
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let swept = runtime.map(|runtime| runtime.block_on(carry_out(&sweep, &socket, &instance)));
        match swept {
            Ok(Ok(removed)) if removed.is_empty() => {}
            Ok(Ok(removed)) => {
                let names = removed.join(", ");
                tracing::info!(names, "containers of jobs that have ended were taken away");
            }
            // Without an engine there is nothing to take away either.
            Ok(Err(error)) => {
                tracing::debug!(error = engine::words(&error), "no containers looked for")
            }
            Err(error) => tracing::warn!(%error, "no containers looked for"),
        }
    };
    std::thread::Builder::new()
        .name("containers".into())
        .spawn(work)
        .map(drop)
}

/// Removes containers of `instance` that are left over; what was removed, by name.
///
/// # Errors
/// When the engine does not answer.
async fn carry_out(
    sweep: &Sweep,
    socket: &Path,
    instance: &str,
) -> Result<Vec<String>, bollard::errors::Error> {
    let docker = engine::connect(socket).await?;
    let ours = vec![format!("{INSTANCE}={instance}")];
    let options = ListContainersOptions {
        all: true,
        filters: Some(HashMap::from([("label".to_owned(), ours)])),
        ..ListContainersOptions::default()
    };
    let mut removed = Vec::new();
    for container in docker.list_containers(Some(options)).await? {
        let labels = container.labels.unwrap_or_default();
        let standing = match container.state {
            Some(ContainerSummaryStateEnum::RUNNING) => Standing::Runs,
            _ => Standing::Rests,
        };
        let is_left_over = sweep.takes(labels.get(JOB).map(String::as_str), standing);
        let (Some(id), true) = (container.id, is_left_over) else {
            continue;
        };
        let name = container.names.unwrap_or_default().join(" ");
        run::remove(&docker, &id).await?;
        removed.push(name.trim_start_matches('/').to_owned());
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_job_that_came_later_is_not_left_over() {
        let sweep = Sweep {
            living: BTreeSet::from([JobId(3)]),
            newest: Some(JobId(5)),
        };
        let takes = |job: &str| sweep.takes(Some(job), Standing::Rests);
        assert_eq!(["3", "4", "5", "6"].map(takes), [false, true, true, false]);
        assert!(sweep.takes(None, Standing::Rests));
        assert!(!sweep.takes(Some("4"), Standing::Runs));
    }
}
