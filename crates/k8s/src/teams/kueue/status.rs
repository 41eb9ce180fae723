//! What ClusterQueues, Cohorts and Workloads say, in Divvy's types.

use divvy_core::Gpus;
use divvy_core::units::Bytes;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::Value;

use super::objects::{Department, LIMIT, Project, QUOTA, WEIGHT};
use super::{FLAVOR, GPU_MEMORY, MARK, RESOURCE, ROOT, quota};
use crate::base::cluster::MANAGED_BY;
use crate::base::inject::{ASKED, parse_request};
use crate::base::pod_request::Size;
use crate::base::quantity::bytes;

/// The owner of an object of Kueue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The commands wrote it.
    Divvy,
    /// Divvy's chart wrote it, in this release.
    Chart(String),
    Other,
}

/// Returns the owner by the labels of an object.
pub fn owner(object: &Value) -> Owner {
    let metadata = &object["metadata"];
    if metadata["labels"][MARK].is_null() {
        return Owner::Other;
    }
    if metadata["labels"][MANAGED_BY.0] == MANAGED_BY.1 {
        return Owner::Divvy;
    }
    let release = metadata["annotations"]["meta.helm.sh/release-name"].as_str();
    Owner::Chart(release.unwrap_or("divvy").to_owned())
}

/// Returns the project of a ClusterQueue; `None` while the ClusterQueue is incomplete, or not Divvy's.
pub fn project(queue: &Value) -> Option<Project> {
    if owner(queue) == Owner::Other {
        return None;
    }
    let gpu_memory = gpu_memory(queue)?;
    let memory = of_resource(&queue["spec"])?;
    let quota = quota::thousandths(quantity(&memory["nominalQuota"])?, gpu_memory);
    let borrowing = quantity(&memory["borrowingLimit"]);
    let selected = &queue["spec"]["namespaceSelector"]["matchExpressions"][0]["values"];
    let namespaces = selected.as_array().into_iter().flatten();
    let cohort = queue["spec"]["cohortName"].as_str();
    Some(Project {
        name: name(queue),
        quota,
        limit: borrowing.map(|over| quota + quota::thousandths(over, gpu_memory)),
        weight: annotation(queue, WEIGHT).and_then(|text| text.parse().ok()),
        namespaces: namespaces
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect(),
        department: cohort.filter(|name| *name != ROOT).map(str::to_owned),
        gpu_memory,
    })
}

/// Returns the department of a Cohort.
pub fn department(cohort: &Value) -> Option<Department> {
    if cohort["metadata"]["labels"][MARK] != "department" {
        return None;
    }
    let amount = |key| {
        let text = annotation(cohort, key)?;
        text.parse::<Gpus>().ok().map(Gpus::thousandths)
    };
    Some(Department {
        name: name(cohort),
        quota: amount(QUOTA),
        limit: amount(LIMIT),
        weight: annotation(cohort, WEIGHT).and_then(|text| text.parse().ok()),
        gpu_memory: gpu_memory(cohort)?,
    })
}

/// What a project holds. Amounts in thousandths of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub used: u64,
    /// The part of `used` that is over quota.
    pub borrowed: u64,
    pub running: u64,
    pub waiting: u64,
    /// Why Kueue admits nothing, where it says so.
    pub inactive: Option<String>,
}

/// Returns what the workloads of a ClusterQueue have reserved.
pub fn usage(queue: &Value, gpu_memory: Bytes) -> Usage {
    let status = &queue["status"];
    let flavors = status["flavorsReservation"]
        .as_array()
        .into_iter()
        .flatten();
    let mut usage = Usage {
        running: status["admittedWorkloads"].as_u64().unwrap_or(0),
        waiting: status["pendingWorkloads"].as_u64().unwrap_or(0),
        ..Usage::default()
    };
    for flavor in flavors.filter(|flavor| flavor["name"] == FLAVOR) {
        let resources = flavor["resources"].as_array().into_iter().flatten();
        for resource in resources.filter(|resource| resource["name"] == RESOURCE) {
            let amount = |field: &str| {
                quantity(&resource[field]).map_or(0, |bytes| quota::thousandths(bytes, gpu_memory))
            };
            usage.used += amount("total");
            usage.borrowed += amount("borrowed");
        }
    }
    let active = condition(queue, "Active");
    usage.inactive = active
        .filter(|active| active["status"] == "False")
        .map(|active| text(&active["message"]).to_owned());
    usage
}

/// How far Kueue is with a Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadState {
    /// It waits for quota.
    Pending {
        /// Empty until Kueue has looked at it.
        message: String,
        /// Whether Kueue reports that it can never be admitted as it is.
        inadmissible: bool,
        /// Why it was stopped before, if it was.
        evicted: Option<String>,
    },
    /// It has quota, and waits for an admission check.
    Reserved {
        message: String,
    },
    Admitted,
    /// Kueue stops it, and its quota is free once its pods are gone.
    Stopping {
        message: String,
    },
    /// An administrator or a policy has deactivated it.
    Deactivated,
    Finished,
}

/// Reasons of `QuotaReserved` that only a change of the workload or of its queue ends (Kueue's workload_types.go).
const INADMISSIBLE: [&str; 4] = [
    "Inadmissible",
    "Misconfigured",
    "ExceedsMaxQuota",
    "NoMatchingFlavor",
];

/// Returns the state of a Workload.
pub fn workload_state(workload: &Value) -> WorkloadState {
    let is = |name| condition(workload, name).is_some_and(|found| found["status"] == "True");
    let part = |name, field: &str| {
        let found = condition(workload, name);
        found.map_or("", |found| text(&found[field])).to_owned()
    };
    let evicted = is("Evicted").then(|| {
        if is("Preempted") {
            part("Preempted", "message")
        } else {
            part("Evicted", "message")
        }
    });
    if is("Finished") {
        return WorkloadState::Finished;
    }
    if workload["spec"]["active"] == false {
        return WorkloadState::Deactivated;
    }
    match evicted {
        Some(message) if is("QuotaReserved") => WorkloadState::Stopping { message },
        None if is("Admitted") => WorkloadState::Admitted,
        None if is("QuotaReserved") => WorkloadState::Reserved {
            message: part("Admitted", "message"),
        },
        evicted => {
            let message = part("QuotaReserved", "message");
            let eviction = part("Evicted", "message");
            WorkloadState::Pending {
                // Until Kueue looks at it again, the message is that of the eviction.
                message: if evicted.is_some() && message == eviction {
                    String::new()
                } else {
                    message
                },
                inadmissible: INADMISSIBLE.contains(&part("QuotaReserved", "reason").as_str()),
                evicted,
            }
        }
    }
}

/// Returns the GPU memory that a Workload has reserved, or asks for while it waits.
pub fn workload_memory(workload: &Value) -> Option<Bytes> {
    let sum = |sets: &Value, field: &str| {
        let each = sets.as_array()?.iter();
        let amounts = each.filter_map(|set| quantity(&set[field][RESOURCE]));
        let amounts: Vec<Bytes> = amounts.collect();
        (!amounts.is_empty()).then(|| amounts.into_iter().sum::<Bytes>())
    };
    let status = &workload["status"];
    sum(&status["admission"]["podSetAssignments"], "resourceUsage")
        .or_else(|| sum(&status["resourceRequests"], "resources"))
}

/// Returns the GPU memory that a Workload asks for by the requests that the webhook recorded in its pod templates, where a
/// GPU has so much. Other requests are known when Kueue has looked at the Workload.
pub fn recorded_memory(workload: &Value, gpu: Bytes) -> Bytes {
    let sets = workload["spec"]["podSets"].as_array().into_iter().flatten();
    let of_set = |set: &Value| {
        let asked = set["template"]["metadata"]["annotations"][ASKED].as_str();
        let sizes = asked.and_then(parse_request).unwrap_or_default();
        let pod = sizes.into_iter().map(|size| match size {
            Size::Whole => gpu,
            Size::Fraction(part) => Bytes::mib(part.mib_of(gpu.get())),
            Size::Memory(mib) => Bytes::new(mib.saturating_mul(1 << 20)),
        });
        let pods = set["count"].as_u64().unwrap_or(1);
        Bytes::new(
            pod.fold(Bytes::new(0), Bytes::saturating_add)
                .get()
                .saturating_mul(pods),
        )
    };
    sets.map(of_set).fold(Bytes::new(0), Bytes::saturating_add)
}

/// Returns a condition of an object.
pub fn condition<'o>(object: &'o Value, name: &str) -> Option<&'o Value> {
    let all = object["status"]["conditions"].as_array()?;
    all.iter().find(|condition| condition["type"] == name)
}

/// Returns an object's name.
pub fn name(object: &Value) -> String {
    text(&object["metadata"]["name"]).to_owned()
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn annotation<'o>(object: &'o Value, key: &str) -> Option<&'o str> {
    object["metadata"]["annotations"][key].as_str()
}

fn gpu_memory(object: &Value) -> Option<Bytes> {
    let text = annotation(object, GPU_MEMORY)?;
    bytes(&ApiQuantity(text.to_owned())).filter(|memory| memory.get() >> 20 > 0)
}

fn of_resource(spec: &Value) -> Option<&Value> {
    let groups = spec["resourceGroups"].as_array()?.iter();
    let flavors = groups.flat_map(|group| group["flavors"].as_array().into_iter().flatten());
    let mut resources =
        flavors.flat_map(|flavor| flavor["resources"].as_array().into_iter().flatten());
    resources.find(|resource| resource["name"] == RESOURCE)
}

/// Quantities of CRDs are text, or a number where they were written as one.
fn quantity(value: &Value) -> Option<Bytes> {
    match value {
        Value::String(text) => bytes(&ApiQuantity(text.clone())),
        Value::Number(number) => number.as_u64().map(Bytes::new),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::objects::tests::project as vision;
    use super::*;

    #[test]
    fn a_project_reads_back_as_it_was_written() {
        for (limit, weight) in [(None, None), (Some(2500), Some(0)), (Some(4250), Some(7))] {
            let written = Project {
                limit,
                weight,
                department: Some("research".into()),
                ..vision("vision", 2500)
            };
            assert_eq!(project(&written.cluster_queue()), Some(written));
        }
        let department = Department {
            name: "research".into(),
            quota: Some(6500),
            limit: Some(8000),
            weight: Some(2),
            gpu_memory: Bytes::mib(81_050),
        };
        assert_eq!(
            super::department(&department.cohort(1000)),
            Some(department)
        );
    }

    #[test]
    fn the_objects_of_others_and_the_chart_are_told_apart() {
        let mut queue = vision("vision", 1000).cluster_queue();
        assert_eq!(owner(&queue), Owner::Divvy);
        queue["metadata"]["labels"][MANAGED_BY.0] = json!("Helm");
        queue["metadata"]["annotations"]["meta.helm.sh/release-name"] = json!("gpus");
        assert_eq!(owner(&queue), Owner::Chart("gpus".into()));
        queue["metadata"]["labels"] = json!({ MANAGED_BY.0: MANAGED_BY.1 });
        assert_eq!(owner(&queue), Owner::Other);
        assert_eq!(project(&queue), None);
    }

    /// Recorded from Kueue itself.
    #[test]
    fn the_workloads_of_a_real_kueue_are_understood() {
        let text = include_str!("../../../tests/fixtures/kueue/workloads.json");
        let recorded: Value = serde_json::from_str(text).unwrap();
        let of = |name: &str| workload_state(&recorded["workloads"][name]);
        let memory = |name: &str| workload_memory(&recorded["workloads"][name]);
        assert_eq!(of("admitted"), WorkloadState::Admitted);
        assert_eq!(of("admitted_pod"), WorkloadState::Admitted);
        assert_eq!(of("deactivated"), WorkloadState::Deactivated);
        assert_eq!(memory("admitted"), Some(Bytes::mib(81_050)));
        assert_eq!(memory("mig"), Some(Bytes::mib(9728)));
        assert_eq!(memory("inadmissible"), None);
        let pending = |name: &str| match of(name) {
            WorkloadState::Pending {
                message,
                inadmissible,
                evicted,
            } => (message, inadmissible, evicted),
            other => panic!("{name}: {other:?}"),
        };
        for (name, inadmissible, part) in [
            ("gated", false, "81050Mi more needed"),
            ("mig", false, "9728Mi more needed"),
            ("preempted", false, "81050Mi more needed"),
            (
                "inadmissible",
                true,
                "FirstAvailable device selection is not supported",
            ),
            ("no_queue", true, "LocalQueue other doesn't exist"),
            (
                "uncovered",
                true,
                "resource rdma/hca unavailable in ClusterQueue",
            ),
            ("exceeds", true, "maximum capacity (162100Mi)"),
        ] {
            let found = pending(name);
            assert_eq!(found.1, inadmissible, "{name}");
            assert!(found.0.contains(part), "{name}: {}", found.0);
            assert_eq!(found.2.is_some(), name == "preempted", "{name}");
        }
        assert!(
            pending("preempted")
                .2
                .unwrap()
                .contains("reclamation within the cohort")
        );
    }

    #[test]
    fn recorded_requests_of_a_workload_count_for_each_of_its_pods() {
        let set = |count: Value, asked: &str| json!({ "count": count, "template": { "metadata": { "annotations": { ASKED: asked } } } });
        let workload = json!({ "spec": { "podSets": [
            set(json!(3), "0.500"), set(json!(2), "1.000,1.000"), set(Value::Null, "4096Mi"), { "count": 9 },
        ] } });
        let gpu = Bytes::gib(80);
        assert_eq!(workload_memory(&workload), None);
        assert_eq!(recorded_memory(&workload, gpu), Bytes::gib(120 + 320 + 4));
        let most = json!({ "spec": { "podSets": [set(json!(u64::MAX), "1.000"), set(json!(1), "1.000")] } });
        assert_eq!(recorded_memory(&most, gpu), Bytes::new(u64::MAX));
    }

    #[test]
    fn usage_is_counted_in_gpus() {
        let queue = json!({ "status": {
            "pendingWorkloads": 2, "admittedWorkloads": 3,
            "flavorsReservation": [{ "name": FLAVOR, "resources": [
                { "name": RESOURCE, "total": "202625Mi", "borrowed": "40525Mi" },
            ] }, { "name": "divvy-unlimited", "resources": [{ "name": "cpu", "total": "3" }] }],
            "conditions": [{ "type": "Active", "status": "False", "message": "stopped" }],
        } });
        let usage = usage(&queue, Bytes::mib(81_050));
        assert_eq!(
            (usage.used, usage.borrowed, usage.running, usage.waiting),
            (2500, 500, 3, 2)
        );
        assert_eq!(usage.inactive.as_deref(), Some("stopped"));
    }
}
