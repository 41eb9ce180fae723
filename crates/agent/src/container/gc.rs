//! Garbage collection of containers: removes containers of this instance that belong to no job any more, because a
//! supervisor or a journal was lost. It runs when a daemon starts, and after jobs in containers have
//! ended.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::models::{ContainerStateStatusEnum as Status, ContainerSummaryStateEnum as State};
use bollard::query_parameters::RemoveContainerOptions;
use divvy_core::JobId;

use super::{engine, inspect};
use crate::job_dir::container_spec::{INSTANCE, JOB, JOURNAL, is_name_of};

/// How often an engine that is away is asked before the next job in a container has to end for it, or the daemon to
/// start, and how long after the last time: a quarter of an hour, in which most updates of an engine are over.
const TRIES: u32 = 15;
const BETWEEN: Duration = Duration::from_secs(60);

/// The containers that garbage collection keeps, as of the start of a daemon.
#[derive(Clone, Debug)]
pub struct ContainerGc {
    /// The journal's name.
    pub journal: Option<String>,
    /// When it began, in seconds since 1970, where it is known.
    pub began: Option<i64>,
    /// Jobs that had not ended.
    pub living: BTreeSet<JobId>,
    /// The last that there was. An engine may take long to answer, and has containers of later ones by then.
    pub newest: Option<JobId>,
}

/// A journal of this instance, to tell its containers from those of others by.
#[derive(Clone, Copy, Debug)]
pub struct Journal<'a> {
    pub name: Option<&'a str>,
    /// When it began, in seconds since 1970, where it is known.
    pub began: Option<i64>,
}

/// A container that says that it is of this instance.
#[derive(Clone, Copy, Debug)]
pub struct FoundContainer<'a> {
    /// What its labels say.
    pub journal: Option<&'a str>,
    pub job: Option<&'a str>,
    /// When the engine made it, in seconds since 1970.
    pub created: Option<i64>,
    pub state: ContainerActivity,
}

/// What a container does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerActivity {
    /// Or is held in the middle.
    Running,
    /// It has ended, or has yet to begin.
    Idle,
}

impl From<Option<State>> for ContainerActivity {
    fn from(state: Option<State>) -> Self {
        match state {
            Some(State::CREATED | State::EXITED | State::DEAD) => Self::Idle,
            _ => Self::Running,
        }
    }
}

impl From<Option<Status>> for ContainerActivity {
    fn from(status: Option<Status>) -> Self {
        match status {
            Some(Status::CREATED | Status::EXITED | Status::DEAD) => Self::Idle,
            _ => Self::Running,
        }
    }
}

impl FoundContainer<'_> {
    /// Whether a container is a leftover of another, earlier journal; `None` for this journal's own, and for those of
    /// builds that recorded no journal. Two daemons with the same state path, each in its own namespaces, are one
    /// instance to the engine and have two live journals. So only a container made before this journal began counts,
    /// and only once it has stopped: a running one may do a user's work.
    pub fn is_left_by_another(&self, journal: Journal<'_>) -> Option<bool> {
        let its = self.journal.filter(|its| Some(*its) != journal.name);
        its.map(|_| {
            let times = self.created.zip(journal.began);
            let is_from_before = times.is_some_and(|(created, began)| created < began);
            is_from_before && self.state == ContainerActivity::Idle
        })
    }
}

impl ContainerGc {
    /// Whether a container of this instance is left over: one of another journal, or of a job of this one that has
    /// ended.
    pub fn should_remove(&self, found: FoundContainer<'_>) -> bool {
        let journal = Journal {
            name: self.journal.as_deref(),
            began: self.began,
        };
        found.is_left_by_another(journal).unwrap_or_else(|| {
            let job = found.job.and_then(|job| job.parse::<JobId>().ok());
            let lives =
                job.is_some_and(|job| Some(job) > self.newest || self.living.contains(&job));
            found.state == ContainerActivity::Idle && !lives
        })
    }
}

/// Takes away what is left over, in a thread of its own: an engine may take its time, and nothing waits for it.
///
/// # Errors
/// When there are no more threads.
pub fn start(socket: PathBuf, instance: String, sweep: ContainerGc) -> io::Result<()> {
    engine::engine().collect(socket, instance, sweep)
}

/// The same with the engine that listens at the socket.
pub fn collect(socket: PathBuf, instance: String, sweep: ContainerGc) -> io::Result<()> {
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::warn!(%error, "cannot list containers of ended jobs");
                return;
            }
        };
        match runtime.block_on(carry_out_at_last(&sweep, &socket, &instance)) {
            Ok(removed) if removed.is_empty() => {}
            Ok(removed) => {
                let names = removed.join(", ");
                tracing::info!(names, "removed containers of ended jobs");
            }
            // Without an engine there is nothing to take away either.
            Err(error) => {
                tracing::debug!(
                    error = engine::describe_error(&error),
                    "cannot list containers of ended jobs"
                )
            }
        }
    };
    std::thread::Builder::new()
        .name("containers".into())
        .spawn(work)
        .map(drop)
}

/// The same with an engine that may be away for a while.
async fn carry_out_at_last(
    sweep: &ContainerGc,
    socket: &Path,
    instance: &str,
) -> Result<Vec<String>, bollard::errors::Error> {
    for _ in 1..TRIES {
        match carry_out(sweep, socket, instance).await {
            Err(error) if engine::is_unavailable(&error) => tokio::time::sleep(BETWEEN).await,
            swept => return swept,
        }
    }
    carry_out(sweep, socket, instance).await
}

/// Removes containers of `instance` that are left over; what was removed, by name.
///
/// # Errors
/// When the engine does not answer.
async fn carry_out(
    sweep: &ContainerGc,
    socket: &Path,
    instance: &str,
) -> Result<Vec<String>, bollard::errors::Error> {
    let docker = engine::connect(socket).await?;
    let mut removed = Vec::new();
    let ours = format!("{INSTANCE}={instance}");
    for container in inspect::labelled(socket, &docker, ours).await? {
        let labels = container.labels.unwrap_or_default();
        let says = |label: &str| labels.get(label).map(String::as_str);
        let is_left_over = sweep.should_remove(FoundContainer {
            journal: says(JOURNAL),
            job: says(JOB),
            created: container.created,
            state: container.state.into(),
        });
        let names = container.names.iter().flatten();
        let mut names = names.map(|name| name.trim_start_matches('/'));
        let name = says(JOB).and_then(|job| names.find(|name| is_name_of(name, instance, job)));
        let (Some(id), Some(name), true) = (container.id, name, is_left_over) else {
            continue;
        };
        // Without force: one that was started since it was listed runs on.
        let options = RemoveContainerOptions {
            v: true,
            ..RemoveContainerOptions::default()
        };
        match docker.remove_container(&id, Some(options)).await {
            Ok(()) => removed.push(name.to_owned()),
            // 409: it runs, or another client removes it.
            Err(error) if matches!(engine::status(&error), Some(404 | 409)) => {}
            // The others can go all the same.
            Err(error) => {
                tracing::warn!(
                    name,
                    error = engine::describe_error(&error),
                    "cannot remove a container of an ended job"
                );
            }
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep() -> ContainerGc {
        ContainerGc {
            journal: Some("ours".to_owned()),
            began: Some(100),
            living: BTreeSet::from([JobId(3)]),
            newest: Some(JobId(5)),
        }
    }

    /// What rests since before the journal began.
    fn idle_container<'a>(journal: Option<&'a str>, job: Option<&'a str>) -> FoundContainer<'a> {
        FoundContainer {
            journal,
            job,
            created: Some(99),
            state: ContainerActivity::Idle,
        }
    }

    #[test]
    fn what_belongs_to_a_job_that_came_later_is_not_left_over() {
        // Containers of earlier builds do not say of which journal they are.
        for journal in [Some("ours"), None] {
            let takes = |job: &str| sweep().should_remove(idle_container(journal, Some(job)));
            assert_eq!(["3", "4", "5", "6"].map(takes), [false, true, true, false]);
            assert!(sweep().should_remove(idle_container(journal, None)));
        }
    }

    #[test]
    fn of_a_journal_that_is_no_more_everything_is_left_over() {
        let takes = |job: &str| sweep().should_remove(idle_container(Some("another"), Some(job)));
        assert_eq!(["3", "4", "5", "6"].map(takes), [true; 4]);
    }

    #[test]
    fn of_another_journal_that_may_live_nothing_is_left_over() {
        let another = idle_container(Some("another"), Some("4"));
        for created in [Some(100), Some(101), None] {
            assert!(!sweep().should_remove(FoundContainer { created, ..another }));
        }
        let older = ContainerGc {
            began: None,
            ..sweep()
        };
        assert!(!older.should_remove(another));
        assert!(older.should_remove(idle_container(Some("ours"), Some("4"))));
    }

    #[test]
    fn only_what_was_made_before_a_journal_began_is_left_by_another() {
        let left = |created, began| {
            let rests = idle_container(Some("another"), Some("4"));
            let journal = Journal {
                name: Some("ours"),
                began,
            };
            FoundContainer { created, ..rests }.is_left_by_another(journal)
        };
        assert_eq!(left(Some(6), Some(7)), Some(true));
        for (created, began) in [
            (Some(7), Some(7)),
            (Some(8), Some(7)),
            (None, Some(7)),
            (Some(6), None),
        ] {
            assert_eq!(left(created, began), Some(false));
        }
        let nameless = Journal {
            name: None,
            began: Some(7),
        };
        let before = |journal| idle_container(journal, Some("4")).is_left_by_another(nameless);
        assert_eq!((before(None), before(Some("ours"))), (None, Some(false)));
    }

    #[test]
    fn what_runs_stays_whosever_it_was() {
        for journal in [Some("ours"), Some("another"), None] {
            let state = ContainerActivity::Running;
            let rests = idle_container(journal, Some("4"));
            assert!(!sweep().should_remove(FoundContainer { state, ..rests }));
        }
        let rests = [State::CREATED, State::EXITED, State::DEAD];
        assert!(
            rests.map(|state| ContainerActivity::from(Some(state))) == [ContainerActivity::Idle; 3]
        );
        for state in [Some(State::RUNNING), Some(State::PAUSED), None] {
            assert_eq!(ContainerActivity::from(state), ContainerActivity::Running);
        }
        let rests = [Status::CREATED, Status::EXITED, Status::DEAD];
        assert!(
            rests.map(|status| ContainerActivity::from(Some(status)))
                == [ContainerActivity::Idle; 3]
        );
        for status in [Some(Status::RUNNING), Some(Status::PAUSED), None] {
            assert_eq!(ContainerActivity::from(status), ContainerActivity::Running);
        }
    }
}
