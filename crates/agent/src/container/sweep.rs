//! Takes away containers of this instance that belong to no job any more: a supervisor died between its last record and that, or the
//! journal that had the job is gone.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use bollard::models::ContainerSummaryStateEnum as State;
use bollard::query_parameters::ListContainersOptions;
use divvy_core::JobId;

use super::plan::{INSTANCE, JOB, JOURNAL};
use super::{engine, run};

/// Whose containers are to stay, as of the start of a daemon.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The journal's name.
    pub journal: Option<String>,
    /// Jobs that had not ended.
    pub living: BTreeSet<JobId>,
    /// The last that there was. An engine may take long to answer, and has containers of later ones by then.
    pub newest: Option<JobId>,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Or is held in the middle.
    Runs,
    /// It has ended, or has yet to begin.
    Rests,
}

impl From<Option<State>> for Standing {
    fn from(state: Option<State>) -> Self {
        match state {
            Some(State::CREATED | State::EXITED | State::DEAD) => Self::Rests,
            _ => Self::Runs,
        }
    }
}

impl Sweep {
    /// Whether a container of this journal's job, by its labels, is left over. Builds before this one gave no journal.
    pub fn takes(&self, journal: Option<&str>, job: Option<&str>, standing: Standing) -> bool {
        let is_known = journal.is_none() || journal == self.journal.as_deref();
        let job = job.filter(|_| is_known);
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
        let says = |label: &str| labels.get(label).map(String::as_str);
        let is_left_over = sweep.takes(says(JOURNAL), says(JOB), container.state.into());
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

    fn sweep() -> Sweep {
        Sweep {
            journal: Some("ours".to_owned()),
            living: BTreeSet::from([JobId(3)]),
            newest: Some(JobId(5)),
        }
    }

    #[test]
    fn what_belongs_to_a_job_that_came_later_is_not_left_over() {
        // Containers of earlier builds do not say of which journal they are.
        for journal in [Some("ours"), None] {
            let takes = |job: &str| sweep().takes(journal, Some(job), Standing::Rests);
            assert_eq!(["3", "4", "5", "6"].map(takes), [false, true, true, false]);
            assert!(sweep().takes(journal, None, Standing::Rests));
        }
    }

    #[test]
    fn of_a_journal_that_is_no_more_everything_is_left_over() {
        let takes = |job: &str| sweep().takes(Some("another"), Some(job), Standing::Rests);
        assert_eq!(["3", "4", "5", "6"].map(takes), [true; 4]);
    }

    #[test]
    fn what_runs_stays_whosever_it_was() {
        for journal in [Some("ours"), Some("another"), None] {
            assert!(!sweep().takes(journal, Some("4"), Standing::Runs));
        }
        let rests = [State::CREATED, State::EXITED, State::DEAD];
        assert!(rests.map(|state| Standing::from(Some(state))) == [Standing::Rests; 3]);
        for state in [Some(State::RUNNING), Some(State::PAUSED), None] {
            assert_eq!(Standing::from(state), Standing::Runs);
        }
    }
}
