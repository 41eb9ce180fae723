//! The stage of a pod for a client that waits for its output: waiting, running or ended. Pure.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};

use super::object::CONTAINER;

/// The stage of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// And why.
    Waits(String),
    Runs,
    /// Its program ended with this code.
    Ended(u8),
    /// Its program never ran, or its exit code is unknown.
    Lost(String),
}

/// Reasons of a waiting container that do not go away by themselves (kubelet `images` and `kuberuntime` packages).
const FINAL: [&str; 5] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "InvalidImageName",
    "RunContainerError",
];

/// The stage of a pod, from its status alone.
pub fn stage(pod: &Pod) -> Stage {
    let Some(status) = &pod.status else {
        return Stage::Waits("Kubernetes has not processed the pod yet".to_owned());
    };
    let ours = status
        .container_statuses
        .iter()
        .flatten()
        .find(|container| container.name == CONTAINER);
    if let Some(stage) = ours.and_then(of_container) {
        return stage;
    }
    let said = [status.reason.as_deref(), status.message.as_deref()];
    let said: Vec<&str> = said.into_iter().flatten().collect();
    match status.phase.as_deref() {
        Some("Failed") => Stage::Lost(or(said.join(": "), "the pod failed")),
        Some("Succeeded") => Stage::Ended(0),
        _ => Stage::Waits(or(unscheduled(pod), "the pod is starting")),
    }
}

fn of_container(container: &ContainerStatus) -> Option<Stage> {
    match container.state.as_ref()? {
        ContainerState {
            terminated: Some(end),
            ..
        } => {
            let Ok(code) = u8::try_from(end.exit_code) else {
                return Some(Stage::Lost(format!(
                    "the container ended with exit code {}",
                    end.exit_code
                )));
            };
            let never_ran = matches!(
                end.reason.as_deref(),
                Some("ContainerCannotRun" | "StartError")
            );
            Some(if never_ran {
                Stage::Lost(or(
                    end.message.clone().unwrap_or_default(),
                    "the container's program could not start",
                ))
            } else {
                Stage::Ended(code)
            })
        }
        ContainerState {
            running: Some(_), ..
        } => Some(Stage::Runs),
        ContainerState {
            waiting: Some(waiting),
            ..
        } => {
            let reason = waiting
                .reason
                .as_deref()
                .filter(|reason| *reason != "ContainerCreating")?;
            let text = match &waiting.message {
                Some(message) => format!("{reason}: {message}"),
                None => reason.to_owned(),
            };
            Some(if FINAL.contains(&reason) {
                Stage::Lost(text)
            } else {
                Stage::Waits(text)
            })
        }
        _ => None,
    }
}

/// Why it has no node yet, in the scheduler's words.
fn unscheduled(pod: &Pod) -> String {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let waits = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    waits
        .and_then(|condition| condition.message.clone().or(condition.reason.clone()))
        .unwrap_or_default()
}

fn or(text: String, otherwise: &str) -> String {
    if text.is_empty() {
        otherwise.to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(status: Value) -> Stage {
        stage(&serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap())
    }

    fn container(state: Value) -> Stage {
        of(json!({ "phase": "Pending", "containerStatuses": [
            { "name": "sidecar", "image": "", "imageID": "", "ready": true, "restartCount": 0,
              "state": { "terminated": { "exitCode": 99 } } },
            { "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state },
        ] }))
    }

    #[test]
    fn why_it_waits_is_the_schedulers_word() {
        let said = "0/3 nodes are available: 3 cannot allocate all claims.";
        let condition = json!([{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said }]);
        let waits = of(json!({ "phase": "Pending", "conditions": condition }));
        assert_eq!(waits, Stage::Waits(said.to_owned()));
        assert_eq!(
            of(json!({ "phase": "Pending" })),
            Stage::Waits("the pod is starting".to_owned())
        );
    }

    #[test]
    fn the_programs_code_is_the_main_containers() {
        assert_eq!(container(json!({ "running": {} })), Stage::Runs);
        assert_eq!(
            container(json!({ "terminated": { "exitCode": 3 } })),
            Stage::Ended(3)
        );
        assert_eq!(
            container(json!({ "terminated": { "exitCode": 137, "reason": "OOMKilled" } })),
            Stage::Ended(137)
        );
    }

    #[test]
    fn what_will_never_start_is_told_from_what_may() {
        let waiting =
            |reason: &str| container(json!({ "waiting": { "reason": reason, "message": "why" } }));
        assert_eq!(
            waiting("InvalidImageName"),
            Stage::Lost("InvalidImageName: why".to_owned())
        );
        assert_eq!(
            waiting("ImagePullBackOff"),
            Stage::Waits("ImagePullBackOff: why".to_owned())
        );
        assert_eq!(
            waiting("ContainerCreating"),
            Stage::Waits("the pod is starting".to_owned())
        );
        let start = json!({ "terminated": { "exitCode": 128, "reason": "StartError", "message": "no such file" } });
        assert_eq!(container(start), Stage::Lost("no such file".to_owned()));
        let refused =
            of(json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no" }));
        assert_eq!(
            refused,
            Stage::Lost("UnexpectedAdmissionError: no".to_owned())
        );
    }
}
