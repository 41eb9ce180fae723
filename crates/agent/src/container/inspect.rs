//! Tolerant inspect and list calls of the engine, which accept answers of Podman that the client library cannot parse,
//! such as the state `stopped`.

use std::path::Path;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerStateStatusEnum, ContainerSummary,
};
use bollard::query_parameters::ListContainersOptions;
use hyper::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::raw_api::{call, escaped};

/// Podman's word for what has ended and is not cleared up, and the word of either engine that it is read as.
const STOPPED: (&str, &str) = ("stopped", "exited");

/// One container, by its name or number.
///
/// # Errors
/// When the engine fails.
pub async fn inspect(
    socket: &Path,
    docker: &Docker,
    container: &str,
) -> Result<ContainerInspectResponse, Error> {
    match docker.inspect_container(container, None).await {
        Err(error @ Error::JsonDataError { .. }) => {
            let target = format!("/containers/{}/json", escaped(container));
            read_anew(socket, docker, &target, error, |found| {
                rename(&mut found["State"]["Status"]);
            })
            .await
        }
        found => found,
    }
}

/// All containers with this label, in any state.
///
/// # Errors
/// When the engine fails.
pub async fn labelled(
    socket: &Path,
    docker: &Docker,
    label: String,
) -> Result<Vec<ContainerSummary>, Error> {
    let filters = std::collections::HashMap::from([("label".to_owned(), vec![label])]);
    let asked = serde_json::to_string(&filters).unwrap_or_default();
    let options = ListContainersOptions {
        all: true,
        filters: Some(filters),
        ..ListContainersOptions::default()
    };
    match docker.list_containers(Some(options)).await {
        Err(error @ Error::JsonDataError { .. }) => {
            let target = format!("/containers/json?all=true&filters={}", escaped(&asked));
            read_anew(socket, docker, &target, error, |all| {
                let all = all.as_array_mut().into_iter().flatten();
                all.for_each(|found| rename(&mut found["State"]));
            })
            .await
        }
        found => found,
    }
}

/// What could not be read because of `error`, asked again and read with other words.
async fn read_anew<T: DeserializeOwned>(
    socket: &Path,
    docker: &Docker,
    target: &str,
    error: Error,
    rename: impl FnOnce(&mut Value),
) -> Result<T, Error> {
    let answer = call(socket, docker, Method::GET, target).await?;
    if !answer.status.is_success() {
        return Err(Error::DockerResponseServerError {
            status_code: answer.status.as_u16(),
            message: String::from_utf8_lossy(&answer.body).into_owned(),
        });
    }
    reworded(&answer.body, rename).ok_or(error)
}

fn reworded<T: DeserializeOwned>(body: &[u8], rename: impl FnOnce(&mut Value)) -> Option<T> {
    let mut value: Value = serde_json::from_slice(body).ok()?;
    rename(&mut value);
    serde_json::from_value(value).ok()
}

fn rename(state: &mut Value) {
    if state == STOPPED.0 {
        *state = STOPPED.1.into();
    }
}

/// Whether a container has run, though the engine says that it was only made: what Podman 4.3 says of all that ran before a restart of
/// the machine, and the moment of the start with it. Of what never ran that moment is the first of the year 1, with either engine.
pub fn has_run_before(state: &ContainerState) -> bool {
    let started = state.started_at.as_deref().unwrap_or_default();
    state.status == Some(ContainerStateStatusEnum::CREATED)
        && !started.is_empty()
        && !started.starts_with("0001-")
}

#[cfg(test)]
mod tests {
    use bollard::models::ContainerSummaryStateEnum;

    use super::*;

    #[test]
    fn what_podman_calls_stopped_has_ended_with_its_code() {
        let said =
            br#"{"Id": "a", "State": {"Status": "stopped", "Running": false, "ExitCode": 5}}"#;
        let plain: Result<ContainerInspectResponse, _> = serde_json::from_slice(said);
        assert!(plain.is_err(), "the library knows it by now");
        let read = reworded::<ContainerInspectResponse>(said, |found| {
            rename(&mut found["State"]["Status"])
        });
        let state = read.unwrap().state.unwrap();
        assert_eq!(state.status, Some(ContainerStateStatusEnum::EXITED));
        assert_eq!(state.exit_code, Some(5));
        let unknown = br#"{"State": {"Status": "elsewhere"}}"#;
        assert!(reworded::<ContainerInspectResponse>(unknown, |_| ()).is_none());
        let list = br#"[{"Id": "a", "State": "stopped"}, {"Id": "b", "State": "running"}]"#;
        let read = reworded::<Vec<ContainerSummary>>(list, |all| {
            let all = all.as_array_mut().into_iter().flatten();
            all.for_each(|found| rename(&mut found["State"]));
        });
        let states: Vec<_> = read.unwrap().into_iter().map(|one| one.state).collect();
        let expected = [
            ContainerSummaryStateEnum::EXITED,
            ContainerSummaryStateEnum::RUNNING,
        ];
        assert_eq!(states, expected.map(Some));
    }

    #[test]
    fn what_was_started_is_not_new_whatever_the_engine_calls_it() {
        let of = |status, started: Option<&str>| {
            has_run_before(&ContainerState {
                status: Some(status),
                started_at: started.map(str::to_owned),
                ..ContainerState::default()
            })
        };
        let created = ContainerStateStatusEnum::CREATED;
        assert!(of(created, Some("2026-11-22T06:01:02.3+00:00")));
        for never in [None, Some(""), Some("0001-01-01T00:00:00Z")] {
            assert!(!of(created, never), "{never:?}");
        }
        let exited = ContainerStateStatusEnum::EXITED;
        assert!(!of(exited, Some("2026-11-22T06:01:02.3+00:00")));
    }
}
