//! Removal of a container, and of one that was left over under the job's name.

use std::collections::HashMap;

use bollard::Docker;
use bollard::models::ContainerStateStatusEnum;
use bollard::query_parameters::RemoveContainerOptions;
use jiff::Timestamp;

use super::follow::CreatedContainer;
use super::make::ContainerCreation;
use super::{AGAIN, LOOKS};
use crate::container::engine::EngineFailure;
use crate::container::gc::{FoundContainer, Journal};
use crate::container::{cdi, engine, inspect};
use crate::job_dir::container_spec::{INSTANCE, JOB, JOURNAL, Plan};

impl ContainerCreation<'_> {
    /// Takes the container away, and what was made for it.
    pub(super) async fn clear(&mut self, made: Option<&CreatedContainer<'_>>) {
        while let Err(trouble) = self.take_away(made).await {
            // No client waits for a supervisor in the background.
            if matches!(trouble, EngineFailure::Unavailable(_)) && self.job.may_wait() {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            let (name, why) = (&self.job.plan.name, trouble.message());
            self.job
                .print(&format!("cannot remove the container {name}: {why}"));
            break;
        }
        if let Some(folder) = &self.job.plan.cdi
            && let Err(error) = cdi::remove(folder, &self.job.plan.name)
        {
            self.job
                .print(&format!("cannot remove the container's CDI file: {error}"));
        }
    }

    /// The container, or what became of asking for one.
    async fn take_away(
        &mut self,
        made: Option<&CreatedContainer<'_>>,
    ) -> Result<(), EngineFailure> {
        if let Some(made) = made {
            remove(&made.docker, &made.id).await?;
        } else if self.asked {
            let docker = engine::connect(&self.job.plan.socket).await?;
            for _ in 0..LOOKS {
                if self.clear_leftover(&docker).await? {
                    break;
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
        self.asked = false;
        Ok(())
    }

    /// Takes away what there is by the container's name and is left over; whether there was something.
    pub(super) async fn clear_leftover(&self, docker: &Docker) -> Result<bool, EngineFailure> {
        let name = &self.job.plan.name;
        let found = match inspect::inspect(&self.job.plan.socket, docker, name).await {
            Ok(found) => found,
            Err(error) if engine::status(&error) == Some(404) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let labels = found.config.and_then(|config| config.labels);
        let has_run = found.state.as_ref().is_some_and(inspect::has_run_before);
        let status = found.state.and_then(|state| state.status);
        // As it is after a restart of the machine by what newer releases of Podman say.
        let status = if has_run {
            Some(ContainerStateStatusEnum::EXITED)
        } else {
            status
        };
        let created = found.created.and_then(|at| at.parse::<Timestamp>().ok());
        if !is_left_over(
            &labels.unwrap_or_default(),
            status,
            created.map(Timestamp::as_second),
            &self.job.spec.job,
            self.job.plan,
        ) {
            let why = format!(
                "a container named {name} exists already, and it does not belong to this job"
            );
            return Err(why.into());
        }
        // By its number: the name may be another's by now.
        remove(docker, found.id.as_ref().unwrap_or(name)).await?;
        Ok(true)
    }
}

/// Takes a container away, running or not.
///
/// # Errors
/// When it stays; that it is gone already is no failure.
async fn remove(docker: &Docker, id: &str) -> Result<(), bollard::errors::Error> {
    let options = RemoveContainerOptions {
        v: true,
        force: true,
        ..RemoveContainerOptions::default()
    };
    match docker.remove_container(id, Some(options)).await {
        // 409: another client removes it.
        Err(error) if !matches!(engine::status(&error), Some(404 | 409)) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the container with the name of this job's is a leftover: from a supervisor that died before it started
/// anything, or, once stopped, from a job with the same number in an earlier journal. Any other container that has run
/// is not removed here.
fn is_left_over(
    labels: &HashMap<String, String>,
    status: Option<ContainerStateStatusEnum>,
    created: Option<i64>,
    job: &str,
    plan: &Plan,
) -> bool {
    let says = |label: &str| labels.get(label).map(String::as_str);
    let is_ours = says(JOB) == Some(job) && says(INSTANCE) == Some(plan.instance.as_str());
    let found = FoundContainer {
        journal: says(JOURNAL),
        job: says(JOB),
        created,
        state: status.into(),
    };
    let journal = Journal {
        name: plan.journal.as_deref(),
        began: plan.began,
    };
    let is_fresh = status == Some(ContainerStateStatusEnum::CREATED);
    is_ours && found.is_left_by_another(journal).unwrap_or(is_fresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_has_the_containers_name_only_what_is_nobodys_goes() {
        use ContainerStateStatusEnum as Status;
        let plan = crate::container::create_request::tests::plan("");
        let began = plan.began.unwrap();
        let made = |created, job: &str, instance: &str, journal: Option<&str>, status| {
            let journal = journal.map(|journal| (JOURNAL, journal));
            let labels = [(JOB, job), (INSTANCE, instance)]
                .into_iter()
                .chain(journal);
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
            is_left_over(&labels.collect(), Some(status), created, "7", &plan)
        };
        let goes = |job: &str, instance: &str, journal: Option<&str>, status| {
            made(Some(began - 1), job, instance, journal, status)
        };
        let (ours, another) = (plan.journal.as_deref(), Some("another"));
        let instance = plan.instance.as_str();
        for (journal, status, expected) in [
            (ours, Status::CREATED, true),
            (another, Status::CREATED, true),
            (None, Status::CREATED, true),
            (ours, Status::EXITED, false),
            (another, Status::EXITED, true),
            (None, Status::EXITED, false),
            (another, Status::RUNNING, false),
            (another, Status::PAUSED, false),
        ] {
            let gone = goes("7", instance, journal, status);
            assert_eq!(gone, expected, "{journal:?} {status:?}");
            assert!(!goes("7", "0badf00d", journal, status), "another daemon's");
            assert!(!goes("8", instance, journal, status), "another job's");
        }
        // Another daemon may be about to start it, or to read its log.
        for created in [Some(began), None] {
            assert!(!made(created, "7", instance, another, Status::CREATED));
            assert!(!made(created, "7", instance, another, Status::EXITED));
            assert!(made(created, "7", instance, ours, Status::CREATED));
        }
        assert!(!is_left_over(
            &HashMap::new(),
            Some(Status::CREATED),
            Some(began - 1),
            "7",
            &plan
        ));
    }
}
