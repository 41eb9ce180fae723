//! The GPU request of a pod, parsed from its limits, label or annotations, or the reason why it is refused.
//!
//! Limits take precedence over the label, and the label over annotations. If several are present they must agree,
//! because a user could rely on the ignored one. A pod for another scheduler is ignored.

mod fixed_limit;
mod fraction;
mod read;

use divvy_core::Compute;
use divvy_core::units::{Bytes, ComputeModeError};
use serde_json::Value;

pub(crate) use fixed_limit::IMAGES;
pub use fraction::{Fraction, FractionError, Steps};
pub use read::parse_pod_request;
pub(crate) use read::{NO_GPUS, VISIBLE};
pub(crate) use read::{ignored_request, names_container};

/// The label of ClearML's injector: a fraction, or a count of whole GPUs.
pub const FRACTION_LABEL: &str = "clearml-injector/fraction";
/// Run:ai's and KAI's annotations.
pub const FRACTION: &str = "gpu-fraction";
pub const MEMORY: &str = "gpu-memory";
pub const DEVICES: &str = "gpu-fraction-num-devices";
pub const CONTAINER: &str = "gpu-fraction-container-name";
/// Divvy's own annotations: the division of compute time, `fair=0.5`, and the size of GPU of which a fraction is.
pub const COMPUTE: &str = "divvy.dev/compute";
pub const GPU_SIZE: &str = "divvy.dev/gpu-size";
/// The scheduler of a pod that names none.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";
/// The resource name of whole GPUs.
pub const GPU: &str = "nvidia.com/gpu";
/// HAMi's: MiB, per cent of a GPU's memory, and per cent of its compute time.
pub const HAMI_MEMORY: &str = "nvidia.com/gpumem";
pub const HAMI_PERCENT: &str = "nvidia.com/gpumem-percentage";
pub const HAMI_CORES: &str = "nvidia.com/gpucores";

/// As many devices as one claim may ask for, and be given (`DeviceRequestsMaxSize`, `AllocationResultsMaxSize`,
/// resource.k8s.io/v1).
pub(crate) const MOST_GPUS: usize = 32;

/// A pebibyte: more MiB than a GPU has, and few enough to be counted in bytes.
const MOST_MIB: u64 = 1 << 30;

/// The most different GPU requests of one object: each is a claim template that its admission may have to create. An
/// object with more would delay its admission by as many calls.
pub(crate) const MOST_REQUESTS: usize = 32;

/// The parsed request of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodRequest {
    pub container: ContainerRef,
    /// One for each GPU, each another one.
    pub gpus: Vec<Size>,
    /// The GPUs that may serve it, by their memory.
    pub gpu_size: Option<Bytes>,
    /// Its part of the compute time, if it is not that of its memory.
    pub compute: Option<Compute>,
    /// Requests of the pod that are ignored, or unnecessary.
    pub warnings: Vec<String>,
}

/// What the cluster's admin has set for all pods.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    pub steps: Steps,
    /// Schedulers that place claims, beside the default one.
    pub schedulers: &'a [String],
}

impl From<Steps> for Rules<'_> {
    fn from(steps: Steps) -> Self {
        Self {
            steps,
            schedulers: &[],
        }
    }
}

impl Rules<'_> {
    /// Whether the pods of a scheduler are served; `None` for a pod that names none.
    pub fn serves(&self, scheduler: Option<&str>) -> bool {
        match scheduler {
            None | Some("" | DEFAULT_SCHEDULER) => true,
            Some(name) => self.schedulers.iter().any(|served| served == name),
        }
    }
}

/// How much of one GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    Whole,
    Fraction(Fraction),
    /// MiB of its memory.
    Memory(u64),
}

/// Which container of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerRef {
    Container(usize),
    InitContainer(usize),
}

impl ContainerRef {
    /// Where it is in a pod, as a JSON pointer.
    pub fn pointer(self) -> String {
        match self {
            Self::Container(index) => format!("/spec/containers/{index}"),
            Self::InitContainer(index) => format!("/spec/initContainers/{index}"),
        }
    }
}

/// Why a pod is left as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// It asks for no part of a GPU.
    Unmarked,
    /// It is for this scheduler, which has its own way.
    Scheduler(String),
    /// It has its claim already.
    Done,
}

/// Why a pod is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{from}: {error}")]
    Fraction { from: String, error: FractionError },
    #[error(
        "the label {FRACTION_LABEL} requests {label}, but {from} requests {other}; use the same value, or remove one of them"
    )]
    Contradiction {
        label: String,
        from: String,
        other: String,
    },
    #[error(
        "{from}: cannot have both a GPU fraction request and a whole GPU resource request or limit; remove {GPU}"
    )]
    FractionAndWhole { from: &'static str },
    #[error("cannot request both GPU fraction and GPU memory: {0} and {1}; remove one of them")]
    Both(&'static str, &'static str),
    #[error("{MEMORY}: `{0}` is not a positive whole number of MiB in digits, such as 2000")]
    Memory(String),
    #[error("{from}: {value} MiB are more than any GPU has")]
    TooMuch { from: &'static str, value: String },
    #[error("{from}: `{value}` is not a positive count; write digits alone, such as 2")]
    Count { from: String, value: String },
    #[error("{HAMI_PERCENT}: `{0}` is not a whole per cent from 1 to 100")]
    Percent(String),
    #[error("{GPU_SIZE}: `{0}` is not an amount of memory, such as 80Gi")]
    GpuSize(String),
    #[error("{GPU_SIZE}: `{0}` is less than 1Mi; write the memory of the GPU, such as 80Gi")]
    SmallGpu(String),
    #[error("{COMPUTE}: {error}; write fair, strict, fair=0.5 or strict=0.25")]
    Compute {
        #[source]
        error: ComputeModeError,
    },
    #[error(
        "{COMPUTE}: `none` would take compute time from other pods; write fair=1 for as much as a pod can have"
    )]
    NoCompute,
    #[error("{HAMI_CORES}: `{0}` is not a whole per cent from 0 to 100")]
    Cores(String),
    #[error(
        "the annotation {COMPUTE} requests {annotation}, but the limit {HAMI_CORES} requests {limit}; remove one of them"
    )]
    TwoShares { annotation: Compute, limit: Compute },
    #[error("{from}: a pod can have fractions of at most {MOST_GPUS} GPUs")]
    TooMany { from: String },
    #[error(
        "{DEVICES}: cannot request multiple fractional devices without a fraction or memory; add {FRACTION} or {MEMORY}"
    )]
    DevicesAlone,
    #[error("{CONTAINER}: the pod has no container `{0}`")]
    NoContainer(String),
    #[error(
        "containers `{0}` and `{1}` both request GPUs; only one container of a pod can have a GPU fraction"
    )]
    TwoContainers(String, String),
    #[error(
        "container `{0}` is privileged, so it could use every GPU of its node; remove `privileged`"
    )]
    Privileged(String),
    #[error("container `{container}` has {what}, which lets it remove its GPU limit; leave it out")]
    Unheld { container: String, what: String },
    #[error(
        "spec.nodeName is set, so the pod would bypass the scheduler, which allocates fractions; use a nodeSelector"
    )]
    NodeName,
    #[error(
        "container `{container}` sets {variable}, but its claim decides which GPU it sees; remove the variable"
    )]
    Visible {
        container: String,
        variable: &'static str,
    },
    #[error(
        "a pod template can request several GPUs only as fractions of the same size; use equal fractions, or separate pods"
    )]
    Unequal,
    #[error(
        "the object's pod templates have {0} different GPU requests; the maximum is {MOST_REQUESTS}"
    )]
    ManyRequests(usize),
    #[error("the pod has no containers")]
    Empty,
}

/// The value at a key of the metadata's labels or annotations.
fn text<'a>(object: &'a Value, map: &str, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get(map)?.get(key)?.as_str()
}
