//! Replay: a program in a slice makes the calls of a known program, and compares the answers with what that program expects.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LimiterForm;

/// A program whose calls are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub enum KnownProgram {
    #[serde(rename = "pytorch")]
    PyTorch,
    #[serde(rename = "jax")]
    Jax,
    #[serde(rename = "tensorflow")]
    TensorFlow,
    #[serde(rename = "vllm")]
    Vllm,
    #[serde(rename = "sglang")]
    SgLang,
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
    #[serde(rename = "ollama")]
    Ollama,
    #[serde(rename = "triton")]
    Triton,
    #[serde(rename = "nccl")]
    Nccl,
    #[serde(rename = "rapids")]
    Rapids,
}

impl KnownProgram {
    /// Every program, in the order of the documentation.
    pub const ALL: [Self; 10] = [
        Self::PyTorch,
        Self::Jax,
        Self::TensorFlow,
        Self::Vllm,
        Self::SgLang,
        Self::LlamaCpp,
        Self::Ollama,
        Self::Triton,
        Self::Nccl,
        Self::Rapids,
    ];

    /// The name, as on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::PyTorch => "pytorch",
            Self::Jax => "jax",
            Self::TensorFlow => "tensorflow",
            Self::Vllm => "vllm",
            Self::SgLang => "sglang",
            Self::LlamaCpp => "llama.cpp",
            Self::Ollama => "ollama",
            Self::Triton => "triton",
            Self::Nccl => "nccl",
            Self::Rapids => "rapids",
        }
    }
}

impl fmt::Display for KnownProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that stands for no known program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProgram(pub String);

impl fmt::Display for UnknownProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown program {}", self.0)
    }
}

impl std::error::Error for UnknownProgram {}

impl FromStr for KnownProgram {
    type Err = UnknownProgram;

    fn from_str(name: &str) -> Result<Self, UnknownProgram> {
        let found = Self::ALL.into_iter().find(|program| program.name() == name);
        found.ok_or_else(|| UnknownProgram(name.to_owned()))
    }
}

/// Replay of one program on one GPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Replay {
    pub program: KnownProgram,
    pub gpu_uuid: String,
    pub gpu_index: u32,
    pub model: String,
    pub driver_version: String,
    /// `13.0`
    pub cuda_version: String,
    /// Model and number of simulated GPUs: `a100-80gb:3`. Absent for a real GPU.
    pub simulated: Option<String>,
    /// Version of Divvy.
    pub version: String,
    pub at: Timestamp,
    /// Whether a daemon placed the slice. Without one, it was placed as by `run --no-daemon`.
    pub daemon: bool,
    /// Memory limit of the slice in bytes.
    pub memory_limit_bytes: u64,
    /// Enforcement of the limit: `interposer`, or `mig` if the driver held it for an instance.
    pub enforcement: String,
    /// Form of the limiter in the programs. Absent if the limiter was not loaded.
    pub form: Option<LimiterForm>,
    /// Whether no step failed.
    pub passed: bool,
    /// The steps, in the order in which they ran.
    pub steps: Vec<ReplayStep>,
}

/// One step: calls of the program, and what they answered here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ReplayStep {
    /// Functions in the order of their calls: `cuMemCreate, cuMemMap`.
    pub calls: String,
    /// Expectation of the program.
    pub expects: String,
    /// File and function of the program that makes the calls.
    pub source: String,
    pub result: ReplayResult,
    /// Observation, with its figures.
    pub seen: String,
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReplayResult {
    /// The program would find what it expects.
    Ok,
    /// The program would find something else.
    Failed,
    /// This machine, driver or GPU lacks what the step needs.
    NotAvailable,
}

/// Programs beside the replayed ones. The command that creates their slice starts them, and passes this on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    pub neighbour: Beside<Neighbour>,
    /// Figures of a job with equal parts of two GPUs, one for each GPU.
    pub pair: Beside<Vec<GpuFigures>>,
}

/// Something beside the replayed programs, or why it is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Beside<T> {
    Present(T),
    Absent(String),
}

/// A program in another slice of the same GPU, with the same limit. It allocates and frees memory all the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    pub gpu_uuid: String,
    pub gpu_index: u32,
    /// Total memory that its slice shows, in bytes.
    pub total_bytes: u64,
    /// Bytes that it has taken as JAX does at its start.
    pub preallocated_bytes: u64,
}

/// Memory of one GPU as programs in a slice see it, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFigures {
    pub gpu_uuid: String,
    /// By `cuMemGetInfo`.
    pub cuda_total_bytes: u64,
    /// By NVML.
    pub nvml_total_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::KnownProgram;

    #[test]
    fn names_are_those_of_the_json_and_are_found_again() {
        for program in KnownProgram::ALL {
            let name = serde_json::to_value(program).unwrap();
            assert_eq!(name, program.name());
            assert_eq!(program.name().parse(), Ok(program));
        }
        assert!("PyTorch".parse::<KnownProgram>().is_err());
    }
}
