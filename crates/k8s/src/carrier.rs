//! Carrier mode: parts of GPUs where claims for them do not exist, or where GPUs stay with NVIDIA's device plugin.

/// The scheduling gate that a pod has until a GPU is found for it.
pub const GATE: &str = "divvy.dev/carrier";
