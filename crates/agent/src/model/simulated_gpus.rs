//! The simulated GPUs of a node, as its jobs find them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Simulated GPUs: what jobs need to find them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Simulated {
    /// `a100-80gb:3`.
    pub models: String,
    /// Folder of links through which programs find the simulated libraries.
    pub lib: PathBuf,
    pub state: PathBuf,
}
