//! The GPUs and published devices of each node, read from the cluster's objects.

use std::collections::BTreeSet;

use divvy_api::v1::Error;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use serde::Serialize;

use crate::base::claim::DRIVER;
use crate::base::error_output::{self, Format};
use crate::base::quantity::Quantity;
use crate::base::role::{self, Role};
use crate::base::sharing::Sharing;
use crate::carrier::share::GpuShare;

/// A node, and how pods can use its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeRow {
    pub node: String,
    pub ready: bool,
    /// `dynamic-mig` or `fractions`.
    pub role: &'static str,
    pub role_labels: Vec<&'static str>,
    /// `claims` or `carrier`; none while the node offers nothing.
    pub sharing: Option<&'static str>,
    /// UUIDs of the GPUs that Divvy publishes.
    pub gpus: Vec<String>,
    /// The number of GPUs that are shared in fractions, and of those that can be split into MIG instances.
    pub gpus_in_parts: usize,
    pub gpus_carved: usize,
    pub slices: usize,
    pub devices: usize,
    /// The highest generation of the pool.
    pub generation: i64,
    /// Whether the pool has all its ResourceSlices; the scheduler ignores an incomplete pool.
    pub complete: bool,
    /// The number of GPUs that NVIDIA's device plugin offers on the same node; it would allocate them a second time.
    pub nvidia_plugin_gpus: u64,
}

/// The ResourceSlices of our driver on a node, of their newest generation.
pub struct Pool<'a> {
    pub slices: Vec<&'a ResourceSlice>,
    pub generation: i64,
    pub complete: bool,
}

impl<'a> Pool<'a> {
    pub fn of(node: &str, slices: &'a [ResourceSlice]) -> Self {
        let mine = || {
            slices.iter().filter(|slice| {
                slice.spec.driver == DRIVER && slice.spec.node_name.as_deref() == Some(node)
            })
        };
        let generation = mine().map(|slice| slice.spec.pool.generation).max();
        let newest: Vec<&ResourceSlice> = mine()
            .filter(|slice| Some(slice.spec.pool.generation) == generation)
            .collect();
        let wanted = newest
            .first()
            .map(|slice| slice.spec.pool.resource_slice_count);
        Self {
            complete: wanted.is_some_and(|count| i64::try_from(newest.len()) == Ok(count)),
            generation: generation.unwrap_or_default(),
            slices: newest,
        }
    }

    pub fn devices(&self) -> impl Iterator<Item = &'a Device> + use<'a> {
        let slices: Vec<&ResourceSlice> = self.slices.clone();
        slices
            .into_iter()
            .flat_map(|slice| slice.spec.devices.iter().flatten())
    }
}

/// A device's attribute as text; its name may have the driver's prefix.
pub fn attribute<'a>(device: &'a Device, name: &str) -> Option<&'a str> {
    let attributes = device.attributes.as_ref()?;
    let value = attributes
        .get(name)
        .or_else(|| attributes.get(&format!("{DRIVER}/{name}")))?;
    value.string.as_deref()
}

/// Sorted by name.
pub fn rows(nodes: &[Node], slices: &[ResourceSlice], shares: &[GpuShare]) -> Vec<NodeRow> {
    let mut rows: Vec<NodeRow> = nodes.iter().map(|node| row(node, slices, shares)).collect();
    rows.sort_by(|a, b| a.node.cmp(&b.node));
    rows
}

fn row(node: &Node, slices: &[ResourceSlice], shares: &[GpuShare]) -> NodeRow {
    let name = node.metadata.name.clone().unwrap_or_default();
    let role = role::of(node.metadata.labels.as_ref());
    let pool = Pool::of(&name, slices);
    let with = |wanted: fn(&Device) -> bool| -> BTreeSet<&str> {
        let devices = pool.devices().filter(|device| wanted(device));
        devices
            .filter_map(|device| attribute(device, "uuid"))
            .collect()
    };
    let is_carrier = shares.iter().any(|share| share.spec.node == name);
    NodeRow {
        ready: is_ready(node),
        sharing: match (pool.slices.is_empty(), is_carrier) {
            (false, _) => Some(Sharing::Claims.as_str()),
            (true, true) => Some(Sharing::Carrier.as_str()),
            (true, false) => None,
        },
        role: role.as_str(),
        gpus: with(|_| true).into_iter().map(str::to_owned).collect(),
        gpus_in_parts: with(|device| device.allow_multiple_allocations == Some(true)).len(),
        gpus_carved: with(|device| attribute(device, "profile").is_some()).len(),
        slices: pool.slices.len(),
        devices: pool.devices().count(),
        generation: pool.generation,
        complete: pool.complete,
        nvidia_plugin_gpus: plugin_gpus(node),
        role_labels: match role {
            Role::DynamicMig { by } => by,
            Role::Fractions => Vec::new(),
        },
        node: name,
    }
}

pub fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The allocatable `nvidia.com/gpu` of the node, as NVIDIA's device plugin reported it to kubelet.
pub fn plugin_gpus(node: &Node) -> u64 {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let count = allocatable.and_then(|all| all.get(crate::base::pod_request::GPU));
    count
        .and_then(|count| count.0.parse::<Quantity>().ok())
        .and_then(Quantity::count)
        .unwrap_or_default()
}

/// One line for each node; its last column lists problems.
///
/// # Errors
/// As [`error_output::json`].
pub fn render(rows: Vec<NodeRow>, format: Format) -> Result<String, Error> {
    if format.is_json() {
        return error_output::json("NodeList", rows);
    }
    let lines: Vec<[String; 7]> = rows
        .iter()
        .map(|row| {
            [
                row.node.clone(),
                row.role.to_owned(),
                row.sharing.unwrap_or("-").to_owned(),
                row.gpus.len().to_string(),
                modes(row),
                match row.slices {
                    0 => "nothing".to_owned(),
                    slices => format!("{} devices in {slices} ResourceSlices", row.devices),
                },
                reason(row),
            ]
        })
        .collect();
    let titles = [
        "NODE",
        "ROLE",
        "SHARING",
        "GPUS",
        "MODE",
        "PUBLISHED",
        "REASON",
    ];
    Ok(error_output::table(titles, &lines))
}

fn modes(row: &NodeRow) -> String {
    let whole = row
        .gpus
        .len()
        .saturating_sub(row.gpus_in_parts + row.gpus_carved);
    let modes = [
        (row.gpus_in_parts, "shared"),
        (row.gpus_carved, "mig"),
        (whole, "exclusive"),
    ];
    let words: Vec<String> = modes
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if words.is_empty() {
        "-".to_owned()
    } else {
        words.join(", ")
    }
}

fn reason(row: &NodeRow) -> String {
    let mut reasons = Vec::new();
    if !row.ready {
        reasons.push("the node is not ready".to_owned());
    }
    if row.slices > 0 && !row.complete {
        reasons.push("ResourceSlices of its pool are missing, so the scheduler allocates none of its devices".to_owned());
    }
    if row.slices > 0 && row.nvidia_plugin_gpus > 0 {
        reasons.push(format!(
            "NVIDIA's device plugin allocates the same GPUs ({} {})",
            row.nvidia_plugin_gpus,
            crate::base::pod_request::GPU
        ));
    }
    if row.role != Role::Fractions.as_str() && row.slices > 0 && row.gpus_carved == 0 {
        reasons.push("no GPU is in MIG mode".to_owned());
    }
    reasons.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, labels: Value, gpus: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name, "labels": labels },
            "status": {
                "allocatable": { "nvidia.com/gpu": gpus },
                "conditions": [{ "type": "Ready", "status": "True" }],
            },
        }))
        .unwrap()
    }

    fn slice(node: &str, generation: i64, of: i64, devices: Value) -> ResourceSlice {
        serde_json::from_value(json!({
            "metadata": { "name": format!("{node}-{generation}") },
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": { "name": node, "generation": generation, "resourceSliceCount": of },
                "devices": devices,
            },
        }))
        .unwrap()
    }

    fn part(uuid: &str) -> Value {
        json!({ "name": uuid, "allowMultipleAllocations": true, "attributes": { "uuid": { "string": uuid } } })
    }

    fn instance(uuid: &str, at: u8) -> Value {
        json!({ "name": format!("{uuid}-{at}"), "attributes": {
            "gpu.divvy.dev/uuid": { "string": uuid },
            "profile": { "string": "1g.10gb" },
        } })
    }

    #[test]
    fn a_node_is_what_its_newest_slices_say() {
        let nodes = [
            node("b", json!({ "divvy.dev/dynamic-mig": "true" }), "0"),
            node("a", json!({}), "2"),
            node("c", json!({}), "0"),
        ];
        let slices = [
            slice("b", 1, 1, json!([part("GPU-old")])),
            slice(
                "b",
                2,
                1,
                json!([part("GPU-0"), instance("GPU-1", 0), instance("GPU-1", 1)]),
            ),
            slice("a", 1, 2, json!([part("GPU-2")])),
        ];
        let share: GpuShare = serde_json::from_value(json!({
            "apiVersion": "divvy.dev/v1alpha1", "kind": "GpuShare", "metadata": { "name": "gpu-3" },
            "spec": { "node": "c", "gpu": "GPU-3" },
        }))
        .unwrap();
        let text = render(rows(&nodes, &slices, &[share]), Format::Table).unwrap();
        assert_eq!(
            text,
            "NODE  ROLE         SHARING  GPUS  MODE             PUBLISHED                      REASON\n\
             a     fractions    claims   1     1 shared         1 devices in 1 ResourceSlices  ResourceSlices of its pool are missing, so the scheduler allocates none of its devices; NVIDIA's device plugin allocates the same GPUs (2 nvidia.com/gpu)\n\
             b     dynamic-mig  claims   2     1 shared, 1 mig  3 devices in 1 ResourceSlices\n\
             c     fractions    carrier  0     -                nothing\n"
        );
    }

    #[test]
    fn json_has_what_the_table_has_not() {
        let rows = rows(
            &[node("b", json!({}), "0")],
            &[slice("b", 2, 1, json!([part("GPU-0")]))],
            &[],
        );
        let text = render(rows, Format::Json).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&list["schema"], &list["kind"]),
            (&json!("divvy/v1"), &json!("NodeList"))
        );
        assert_eq!(list["items"][0]["gpus"], json!(["GPU-0"]));
        assert_eq!(list["items"][0]["generation"], 2);
    }
}
