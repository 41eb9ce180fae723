//! Requests as often as a real cluster had them.

use serde_json::{Value, json};

use super::nodes::{GPU_MIB, PACKING};
use crate::stage::{IMAGE, RUN, Stage};

/// GPUs, thousandths of each, cores, GiB of memory, and requests in 1,000: Alibaba's cluster-trace-gpu-v2023, list `default`
/// (Weng et al., "Beware of Fragmentation", USENIX ATC 2023), rare shapes joined to the nearest.
const REQUESTS: [(u32, u32, u64, u64, u64); 21] = [
    (0, 0, 8, 30, 51),
    (0, 0, 16, 56, 80),
    (1, 150, 4, 15, 20),
    (1, 250, 4, 30, 20),
    (1, 300, 6, 24, 47),
    (1, 350, 4, 10, 8),
    (1, 450, 6, 20, 60),
    (1, 450, 12, 46, 50),
    (1, 600, 3, 6, 22),
    (1, 650, 12, 46, 32),
    (1, 800, 3, 6, 135),
    (1, 1000, 3, 6, 62),
    (1, 1000, 6, 27, 60),
    (1, 1000, 11, 45, 210),
    (1, 1000, 12, 24, 65),
    (1, 1000, 16, 57, 50),
    (1, 1000, 20, 68, 18),
    (2, 1000, 16, 65, 2),
    (4, 1000, 32, 129, 2),
    (8, 1000, 64, 257, 4),
    (8, 1000, 88, 320, 2),
];

/// What a pod asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub gpus: u32,
    pub share: u32,
    pub cores: u64,
    pub gib: u64,
}

impl Request {
    pub fn gpu_milli(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.share)
    }

    /// MiB of each GPU, in steps of 2 MiB, as Divvy allocates them.
    fn mib(self) -> u64 {
        GPU_MIB * u64::from(self.share) / 1000 / 2 * 2
    }

    pub fn claim(&self, name: &str) -> Value {
        let mut exactly =
            json!({ "deviceClassName": "fraction.gpu.divvy.dev", "count": self.gpus });
        if self.share < 1000 {
            exactly["capacity"] = json!({ "requests": { "memory": format!("{}Mi", self.mib()) } });
        }
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": name },
            "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": exactly }] } },
        })
    }

    pub fn pod(&self, stage: &Stage, name: &str, scheduler: &str) -> Value {
        let requests =
            json!({ "cpu": self.cores.to_string(), "memory": format!("{}Gi", self.gib) });
        let mut container =
            json!({ "name": "main", "image": IMAGE, "resources": { "requests": requests } });
        let mut spec = json!({
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "nodeSelector": { RUN: stage.run, PACKING: stage.run },
            "tolerations": [{ "operator": "Exists" }],
        });
        if self.gpus > 0 {
            container["resources"]["claims"] = json!([{ "name": "gpu" }]);
            spec["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": name }]);
        }
        spec["containers"] = json!([container]);
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
    }
}

/// The same requests in the same order, each time.
pub fn requests(count: usize) -> Vec<Request> {
    let total: u64 = REQUESTS.iter().map(|request| request.4).sum();
    let mut state: u64 = 42;
    let mut draw = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let mut left = (state >> 33) % total;
        let found = REQUESTS.iter().find(|request| {
            let is_it = left < request.4;
            left = left.saturating_sub(request.4);
            is_it
        });
        let (gpus, share, cores, gib, _) = found.copied().unwrap_or(REQUESTS[0]);
        Request {
            gpus,
            share,
            cores,
            gib,
        }
    };
    (0..count).map(|_| draw()).collect()
}

/// The mix as the extender's history has it.
pub fn history() -> String {
    let shapes = REQUESTS.iter().filter(|request| request.0 > 0);
    let counts = shapes.map(|(gpus, share, cores, gib, count)| {
        let request = Request {
            gpus: *gpus,
            share: *share,
            cores: *cores,
            gib: *gib,
        };
        // As a claim says it: whole GPUs by their number, parts by memory.
        let (share, memory) = match request.share {
            1000 => (1000, 0),
            _ => (0, request.mib()),
        };
        json!({ "count": count, "request": {
            "cpu_milli": cores * 1000, "memory_mib": gib << 10, "gpus": gpus, "share": share, "gpu_memory_mib": memory,
        } })
    });
    Value::Array(counts.collect()).to_string()
}
