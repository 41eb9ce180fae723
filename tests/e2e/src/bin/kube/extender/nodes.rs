//! Nodes that are objects alone: no kubelet sends heartbeats, so the pods tolerate nodes that are not ready.

use anyhow::Result;
use serde_json::{Value, json};

use super::post;
use crate::api::Proxy;
use crate::stage::{RUN, Stage};

/// The label of these nodes and their slices.
pub const PACKING: &str = "divvy.dev/suite-packing";
/// MiB of a GPU.
pub const GPU_MIB: u64 = 80 << 10;

/// Nodes, GPUs of each, and cores: 17 for each GPU, as the trace's cluster has, and some nodes with fewer.
const KINDS: [(usize, u64, u64); 4] = [(19, 16, 192), (19, 16, 336), (6, 12, 144), (6, 12, 288)];

/// GPUs of all nodes.
pub fn gpus() -> u64 {
    KINDS
        .iter()
        .map(|(nodes, gpus, _)| *nodes as u64 * gpus)
        .sum()
}

/// The nodes of a run; dropped, they go.
pub struct Nodes<'s> {
    stage: &'s Stage,
}

impl<'s> Nodes<'s> {
    pub fn make(stage: &'s Stage) -> Result<Self> {
        let proxy = Proxy::start(stage)?;
        let made = Self { stage };
        let mut number = 0;
        for (nodes, gpus, cores) in KINDS {
            for _ in 0..nodes {
                let name = format!("{}-pack-{number:02}", stage.release);
                post(&proxy, "/api/v1/nodes", &node(stage, &name, gpus, cores))?;
                let slice = slice(stage, &name, gpus, number);
                post(&proxy, "/apis/resource.k8s.io/v1/resourceslices", &slice)?;
                number += 1;
            }
        }
        Ok(made)
    }
}

impl Drop for Nodes<'_> {
    fn drop(&mut self) {
        let label = format!("{PACKING}={}", self.stage.run);
        for kind in ["resourceslices", "nodes"] {
            let words = ["delete", kind, "-l", &label, "--wait=false"];
            let _ = self.stage.cluster.call(&words, "");
        }
    }
}

fn node(stage: &Stage, name: &str, gpus: u64, cores: u64) -> Value {
    let amounts =
        json!({ "cpu": cores.to_string(), "memory": format!("{}Gi", gpus * 64), "pods": "200" });
    let taints = if stage.alone {
        json!([])
    } else {
        json!([{ "key": RUN, "effect": "NoSchedule" }])
    };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": name, "labels": {
            RUN: stage.run, PACKING: stage.run, "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
        } },
        "spec": { "taints": taints },
        "status": {
            "capacity": amounts, "allocatable": amounts,
            "conditions": [{ "type": "Ready", "status": "True", "reason": "Suite", "message": "an object alone" }],
        },
    })
}

/// Its GPUs, as Divvy's driver publishes them.
fn slice(stage: &Stage, node: &str, gpus: u64, number: usize) -> Value {
    let amount = format!("{}Mi", GPU_MIB);
    let device = |gpu: u64| {
        let uuid = format!("{number:08}-0000-0000-0000-{gpu:012}");
        json!({
            "name": format!("gpu-{uuid}"),
            "attributes": {
                "type": { "string": "fraction" }, "uuid": { "string": format!("GPU-{uuid}") },
                "model": { "string": "NVIDIA A100-SXM4-80GB" }, "index": { "int": gpu },
            },
            "allowMultipleAllocations": true,
            "capacity": { "memory": { "value": amount, "requestPolicy": {
                "default": amount, "validRange": { "min": "82Mi", "max": amount, "step": "2Mi" },
            } } },
        })
    };
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": { "name": format!("{node}-gpu.divvy.dev-000"), "labels": { PACKING: stage.run } },
        "spec": {
            "driver": "gpu.divvy.dev", "nodeName": node,
            "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 },
            "devices": (0..gpus).map(device).collect::<Vec<_>>(),
        },
    })
}
