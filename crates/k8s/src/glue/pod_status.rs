//! The status of a task, derived from its pod's status. Pure.
//!
//! The container that runs the task is the first; others, a mesh's say, may outlive it, so its own state counts before the pod's
//! phase. Reasons are Kubernetes' (`core/v1` types, kubelet's `images` and `eviction` packages) and are passed on in words.

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod, PodStatus};

/// A pod of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPodStatus {
    pub state: PodState,
    /// It has been deleted, and ends.
    pub terminating: bool,
    /// Kueue has taken its quota back, and why.
    pub preempted: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// It has not started; why, where Kubernetes says more than that it is on its way.
    Waits(Option<String>),
    /// It will never start; why.
    Unstartable(String),
    Runs,
    Ended(End),
}

/// How the task's container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// `None`: it never ran, or its exit code is unknown.
    pub exit: Option<i32>,
    /// Why, where that is more than an exit code: `OOMKilled`, `Evicted: The node was low on resource: memory.`
    pub reason: Option<String>,
}

/// Waiting for one of these is in vain. `ImagePullBackOff`: the kubelet has tried and will try again; the stock agent's glue
/// gives up at that as well.
const IN_VAIN: [&str; 3] = ["ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName"];

/// These say nothing but that it is on its way; an image that could not be pulled once is tried again at once.
const ON_ITS_WAY: [&str; 3] = ["ContainerCreating", "PodInitializing", "ErrImagePull"];

pub fn pod_status(pod: &Pod) -> TaskPodStatus {
    let none = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&none);
    TaskPodStatus {
        state: state(pod, status),
        terminating: pod.metadata.deletion_timestamp.is_some(),
        preempted: preempted(status),
    }
}

/// Kueue's mark on a pod before it deletes it (`ConditionTypeTerminationTarget`, pkg/controller/jobs/pod). The reason is
/// `WorkloadEvictedDueTo` and that of the Workload's condition `Evicted` (workload_types.go), as Kueue 0.19 writes it.
fn preempted(status: &PodStatus) -> Option<String> {
    let mark = status
        .conditions
        .iter()
        .flatten()
        .find(|one| one.type_ == "TerminationTarget" && one.status == "True")?;
    let why = mark.reason.as_deref()?.strip_prefix("WorkloadEvicted")?;
    let for_good = FOR_GOOD.iter().any(|word| why.contains(word));
    (!for_good).then(|| mark.message.clone().unwrap_or_default())
}

/// Evictions after which Kueue does not admit the Workload again: a new pod would undo an administrator's decision.
const FOR_GOOD: [&str; 2] = ["Deactivated", "MaximumExecutionTimeExceeded"];

fn state(pod: &Pod, status: &PodStatus) -> PodState {
    let first = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    let name = first
        .map(|container| container.name.as_str())
        .unwrap_or_default();
    let statuses = status.container_statuses.iter().flatten();
    let own = statuses.clone().find(|one| one.name == name);
    let own_state = own.and_then(|own| own.state.as_ref());
    let exited = own_state.and_then(|state| state.terminated.as_ref());
    match status.phase.as_deref() {
        Some("Succeeded") => PodState::Ended(End {
            exit: Some(0),
            reason: None,
        }),
        Some("Failed") => PodState::Ended(End {
            exit: exited.map(|exited| exited.exit_code),
            reason: of_pod(status)
                .or_else(|| exited.and_then(|exited| named(exited.reason.as_deref())))
                .or_else(|| of_init(status)),
        }),
        _ if exited.is_some() => PodState::Ended(End {
            exit: exited.map(|exited| exited.exit_code),
            reason: exited.and_then(|exited| named(exited.reason.as_deref())),
        }),
        _ if own_state.is_some_and(|state| state.running.is_some()) => PodState::Runs,
        _ => waits(status),
    }
}

/// Why the pod as a whole failed: the kubelet's or the scheduler's word.
fn of_pod(status: &PodStatus) -> Option<String> {
    let reason = status
        .reason
        .as_deref()
        .filter(|reason| !reason.is_empty())?;
    Some(with(reason, status.message.as_deref()))
}

/// A container's own reason, unless it only says that there was an exit code.
fn named(reason: Option<&str>) -> Option<String> {
    reason
        .filter(|reason| !["", "Error", "Completed"].contains(reason))
        .map(str::to_owned)
}

fn of_init(status: &PodStatus) -> Option<String> {
    let failed = status
        .init_container_statuses
        .iter()
        .flatten()
        .find_map(|one| {
            let exited = one.state.as_ref()?.terminated.as_ref()?;
            (exited.exit_code != 0).then_some((one, exited))
        });
    failed.map(|(one, exited)| {
        let what = format!(
            "the init container {} ended with exit code {}",
            one.name, exited.exit_code
        );
        with(&what, named(exited.reason.as_deref()).as_deref())
    })
}

fn waits(status: &PodStatus) -> PodState {
    let waiting = |one: &ContainerStatus| {
        let ContainerState {
            waiting: Some(waiting),
            ..
        } = one.state.as_ref()?
        else {
            return None;
        };
        Some((waiting.reason.clone()?, waiting.message.clone()))
    };
    let both = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    for (reason, message) in both.filter_map(waiting) {
        if IN_VAIN.contains(&reason.as_str()) {
            return PodState::Unstartable(with(&reason, message.as_deref()));
        }
        if !ON_ITS_WAY.contains(&reason.as_str()) {
            return PodState::Waits(Some(with(&reason, message.as_deref())));
        }
    }
    let mut conditions = status.conditions.iter().flatten();
    let unscheduled = conditions.find(|one| one.type_ == "PodScheduled" && one.status == "False");
    PodState::Waits(unscheduled.map(|one| {
        with(
            one.reason.as_deref().unwrap_or("Unschedulable"),
            one.message.as_deref(),
        )
    }))
}

/// `Evicted: The node was low on resource: memory.`
fn with(reason: &str, message: Option<&str>) -> String {
    match message.map(str::trim).filter(|message| !message.is_empty()) {
        Some(message) => format!("{reason}: {message}"),
        None => reason.to_owned(),
    }
}

impl End {
    /// In words: `exit code 137 (OOMKilled)`.
    pub fn describe(&self) -> String {
        match (self.exit, &self.reason) {
            (Some(code), Some(reason)) => format!("exit code {code} ({reason})"),
            (Some(code), None) => format!("exit code {code}"),
            (None, Some(reason)) => reason.clone(),
            (None, None) => "the pod failed, and Kubernetes reports no reason".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn seen(status: Value) -> PodState {
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "task"}, {"name": "mesh"}]},
            "status": status,
        });
        pod_status(&serde_json::from_value(pod).unwrap()).state
    }

    fn own(state: Value) -> Value {
        let image = |name: &str, state: &Value| json!({"name": name, "state": state, "image": "", "imageID": "", "ready": false, "restartCount": 0});
        json!([
            image("mesh", &json!({"running": {}})),
            image("task", &state)
        ])
    }

    fn ended(exit: Option<i32>, reason: Option<&str>) -> PodState {
        PodState::Ended(End {
            exit,
            reason: reason.map(str::to_owned),
        })
    }

    #[test]
    fn every_state_of_a_pod_says_something_of_its_task() {
        let waits = |why: &str| PodState::Waits(Some(why.to_owned()));
        let unschedulable = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/2 nodes are available: 2 cannot allocate all claims."}]);
        let terminated = |code: i32, reason: &str| {
            own(json!({"terminated": {"exitCode": code, "reason": reason}}))
        };
        let waiting = |reason: &str, message: &str| {
            own(json!({"waiting": {"reason": reason, "message": message}}))
        };
        for (status, state) in [
            (json!({}), PodState::Waits(None)),
            (json!({"phase": "Pending"}), PodState::Waits(None)),
            (
                json!({"phase": "Pending", "conditions": unschedulable}),
                waits("Unschedulable: 0/2 nodes are available: 2 cannot allocate all claims."),
            ),
            (
                json!({"phase": "Pending", "containerStatuses": waiting("ContainerCreating", "")}),
                PodState::Waits(None),
            ),
            (
                json!({"phase": "Pending", "containerStatuses": waiting("CreateContainerConfigError", "secret x not found")}),
                waits("CreateContainerConfigError: secret x not found"),
            ),
            (
                json!({"phase": "Pending", "containerStatuses": waiting("ImagePullBackOff", "no such image")}),
                PodState::Unstartable("ImagePullBackOff: no such image".into()),
            ),
            (
                json!({"phase": "Running", "containerStatuses": own(json!({"running": {}}))}),
                PodState::Runs,
            ),
            (json!({"phase": "Running"}), PodState::Waits(None)),
            // A mesh's container goes on when the task's has ended.
            (
                json!({"phase": "Running", "containerStatuses": terminated(0, "Completed")}),
                ended(Some(0), None),
            ),
            (
                json!({"phase": "Running", "containerStatuses": terminated(2, "Error")}),
                ended(Some(2), None),
            ),
            (json!({"phase": "Succeeded"}), ended(Some(0), None)),
            (
                json!({"phase": "Failed", "containerStatuses": terminated(137, "OOMKilled")}),
                ended(Some(137), Some("OOMKilled")),
            ),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}),
                ended(None, Some("Evicted: The node was low on resource: memory.")),
            ),
            (json!({"phase": "Failed"}), ended(None, None)),
        ] {
            assert_eq!(seen(status.clone()), state, "{status}");
        }
    }

    #[test]
    fn a_pod_that_kueue_stops_for_another_is_told_from_one_that_it_stops_for_good() {
        let pod = |reason: &str, status: &str| {
            let condition = json!({ "type": "TerminationTarget", "status": status, "reason": reason, "message": "to reclaim" });
            let pod = json!({ "metadata": {}, "status": { "phase": "Running", "conditions": [condition] } });
            pod_status(&serde_json::from_value(pod).unwrap()).preempted
        };
        for reason in ["WorkloadEvictedDueToPreempted", "WorkloadEvicted"] {
            assert_eq!(pod(reason, "True").as_deref(), Some("to reclaim"));
            assert_eq!(pod(reason, "False"), None);
        }
        for reason in [
            "WorkloadDeleted",
            "WorkloadEvictedDueToDeactivated",
            "WorkloadEvictedDueToDeactivatedDueToMaximumExecutionTimeExceeded",
        ] {
            assert_eq!(pod(reason, "True"), None, "{reason}");
        }
    }

    #[test]
    fn an_init_container_that_fails_is_named() {
        let init = json!([{"name": "fetch", "state": {"terminated": {"exitCode": 3, "reason": "Error"}},
            "image": "", "imageID": "", "ready": false, "restartCount": 0}]);
        let state = seen(json!({"phase": "Failed", "initContainerStatuses": init}));
        assert_eq!(
            state,
            ended(
                None,
                Some("the init container fetch ended with exit code 3")
            )
        );
    }

    #[test]
    fn an_end_is_said_in_words() {
        let describe = |exit, reason: Option<&str>| {
            End {
                exit,
                reason: reason.map(str::to_owned),
            }
            .describe()
        };
        assert_eq!(
            describe(Some(137), Some("OOMKilled")),
            "exit code 137 (OOMKilled)"
        );
        assert_eq!(describe(Some(1), None), "exit code 1");
        assert_eq!(describe(None, Some("Evicted")), "Evicted");
    }
}
