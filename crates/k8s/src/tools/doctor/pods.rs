//! Checks of pods that have parts of GPUs.

use k8s_openapi::api::core::v1::Pod;

use super::facts::ClusterFacts;
use super::row::{Row, Status};
use crate::base::error_output::few;
use crate::base::objects::has_ended;
use crate::base::pod_request::FRACTION_LABEL;
use crate::tools::submit::object::is_held;

pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    vec![host_pid(facts), past_the_claim(facts)]
}

pub fn called(pod: &Pod) -> String {
    let word = |text: &Option<String>| text.clone().unwrap_or_default();
    format!(
        "{}/{}",
        word(&pod.metadata.namespace),
        word(&pod.metadata.name)
    )
}

fn living(facts: &ClusterFacts, wanted: impl Fn(&Pod) -> bool) -> Vec<String> {
    let pods = facts.pods.as_deref().unwrap_or_default();
    let these = pods.iter().filter(|pod| !has_ended(pod) && wanted(pod));
    these.map(called).collect()
}

/// Pods of older setups that see all of their node's processes, for a reason that is gone.
fn host_pid(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "pods.host-pid";
    const READ: &str = "pods";
    if let Err(why) = &facts.pods {
        return Row::unknown(CHECK, READ, why);
    }
    let these = living(facts, |pod| {
        let labels = pod.metadata.labels.as_ref();
        let marked = labels.is_some_and(|labels| labels.contains_key(FRACTION_LABEL));
        let host_pid = pod.spec.as_ref().and_then(|spec| spec.host_pid);
        (marked || is_held(pod)) && host_pid == Some(true)
    });
    if these.is_empty() {
        Row::ok(CHECK, READ, "no pod with a GPU fraction has hostPID")
    } else {
        Row::ok(
            CHECK,
            READ,
            format!("hostPID is set, but not needed: {}", few(&these)),
        )
        .but(
            Status::Warn,
            "these pods see every process of their node, and Pod Security Standards reject them",
            "remove hostPID from these pods",
        )
    }
}

/// Pods that take GPUs by a variable, which no claim limits.
fn past_the_claim(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "pods.gpus-by-variable";
    const READ: &str = "environment variables of the pods' containers (not of their images)";
    if let Err(why) = &facts.pods {
        return Row::unknown(CHECK, READ, why);
    }
    let these = living(facts, |pod| {
        let elsewhere = pod.metadata.namespace.as_deref() != Some(facts.system.as_str());
        elsewhere && !has_gpus(pod) && sets_gpus(pod)
    });
    if these.is_empty() {
        Row::ok(
            CHECK,
            READ,
            "no pod requests GPUs through an environment variable",
        )
    } else {
        Row::ok(
            CHECK,
            READ,
            format!(
                "NVIDIA_VISIBLE_DEVICES is set without a GPU request: {}",
                few(&these)
            ),
        )
        .but(
            Status::Warn,
            "if the container toolkit allows it, these pods use GPUs that the scheduler allocates to other pods",
            "monitoring pods are fine; otherwise turn the variable off, see nodes.gpus-by-variable",
        )
    }
}

fn has_gpus(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else {
        return false;
    };
    let limits = spec
        .containers
        .iter()
        .filter_map(|one| one.resources.as_ref()?.limits.as_ref());
    is_held(pod)
        || limits
            .into_iter()
            .any(|limits| limits.keys().any(|key| key.starts_with("nvidia.com/")))
}

fn sets_gpus(pod: &Pod) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers
        .flat_map(|container| container.env.iter().flatten())
        .any(|one| {
            let value = one.value.as_deref().unwrap_or_default();
            one.name == "NVIDIA_VISIBLE_DEVICES" && !matches!(value, "" | "none" | "void")
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::doctor::facts::tests::facts;
    use serde_json::{Value, json};

    fn pod(name: &str, host_pid: bool, env: Value, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "team", "labels": { "clearml-injector/fraction": "0.5" } },
            "spec": { "hostPID": host_pid, "containers": [{ "name": "c", "env": env }] },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn host_pid_is_told_of_pods_that_live_and_have_a_part() {
        let mut facts = facts();
        assert!(rows(&facts).iter().all(|row| row.status == Status::Ok));
        facts.pods = Ok(vec![
            pod("old", true, json!([]), "Running"),
            pod("over", true, json!([]), "Succeeded"),
        ]);
        let row = host_pid(&facts);
        assert_eq!(
            (row.status, row.found.contains("team/old")),
            (Status::Warn, true)
        );
        assert!(!row.found.contains("over"));
        facts.pods = Err("forbidden".to_owned());
        assert_eq!(host_pid(&facts).status, Status::Unknown);
    }

    #[test]
    fn pods_that_take_gpus_by_a_variable_are_named() {
        let mut facts = facts();
        let with = |value: &str| json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": value }]);
        facts.pods = Ok(vec![
            pod("all", false, with("all"), "Running"),
            pod("void", false, with("void"), "Running"),
        ]);
        let row = past_the_claim(&facts);
        assert!(row.found.ends_with("team/all"), "{}", row.found);
    }
}
