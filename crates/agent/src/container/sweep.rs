//! Takes away containers of this instance that belong to no job any more: a supervisor died between its last record and that.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use bollard::models::ContainerSummaryStateEnum;
use bollard::query_parameters::ListContainersOptions;

use super::plan::{INSTANCE, JOB};
use super::{engine, run};

/// The same in a thread of its own: an engine may take its time, and nothing waits for it.
pub fn start(socket: PathBuf, instance: String, living: BTreeSet<String>) -> io::Result<()> {
    let work = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let swept = runtime.map(|runtime| runtime.block_on(sweep(&socket, &instance, &living)));
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

/// Removes containers of `instance` that do not run and whose job is none of `living`; what was removed, by name.
///
/// # Errors
/// When the engine does not answer.
async fn sweep(
    socket: &Path,
    instance: &str,
    living: &BTreeSet<String>,
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
        let is_living = labels.get(JOB).is_some_and(|job| living.contains(job));
        // One that runs may be somebody's work, whatever became of the journal.
        let runs = container.state == Some(ContainerSummaryStateEnum::RUNNING);
        let (Some(id), false) = (container.id, is_living || runs) else {
            continue;
        };
        let name = container.names.unwrap_or_default().join(" ");
        run::remove(&docker, &id).await?;
        removed.push(name.trim_start_matches('/').to_owned());
    }
    Ok(removed)
}
