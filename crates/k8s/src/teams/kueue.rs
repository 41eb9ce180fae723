//! Kueue: the objects of its API that Divvy writes for projects, and what Divvy reads of them.
//!
//! ```text
//!   Project, Department ──► objects (pure) ──► SSA by `project` and `department`, the same text by the chart
//!   ClusterQueue ──► Project, Usage                Workload ──► WorkloadState
//! ```
//! Kueue admits workloads against quotas; Divvy writes the quotas in GPUs. One logical resource counts every form of a
//! request: [`RESOURCE`], the GPU memory that the claims of a workload request.

pub mod configuration;
pub mod objects;
pub mod quota;
pub mod status;
pub mod store;

pub const GROUP: &str = "kueue.x-k8s.io";
/// The version that the objects are written in. Kueue serves it from 0.15 on; consumable capacity needs 0.19.
pub const VERSION: &str = "v1beta2";
/// The logical resource of Kueue's quotas: GPU memory in bytes.
pub const RESOURCE: &str = "gpu.memory";
/// The ResourceFlavor of [`RESOURCE`].
pub const FLAVOR: &str = "divvy-gpu";
/// The ResourceFlavor of the resources that projects do not limit.
pub const UNLIMITED_FLAVOR: &str = "divvy-unlimited";
/// The root of all cohorts, in which projects lend their unused quota.
pub const ROOT: &str = "divvy";
/// The LocalQueue that Kueue gives to workloads without a queue label (`DefaultLocalQueueName`, Kueue's
/// pkg/controller/constants).
pub const QUEUE: &str = "default";
/// Marks Divvy's objects in Kueue's API, those of the chart among them. The value is the kind of object.
pub const MARK: &str = "divvy.dev/kueue";
/// The memory of one GPU, in which a ClusterQueue's quota is counted.
pub const GPU_MEMORY: &str = "divvy.dev/gpu-memory";
/// The field manager of server-side apply.
pub const MANAGER: &str = "divvy";
/// The gate of a pod that waits for its Workload (`AdmissionGate`, Kueue's pkg/controller/jobs/pod).
pub const GATE: &str = "kueue.x-k8s.io/admission";
