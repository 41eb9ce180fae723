//! The limiter's form in a job's record: the form that the daemon wants, and the form that the supervisor found
//! possible.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What the daemon wants, in a job's spec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectionPolicy {
    /// The preload, which the job's environment names, and why nothing better.
    Preload { because: String },
    /// The wrapper if the machine allows it, otherwise the preload.
    Best(Wrapper),
    /// The wrapper, or the job is not started.
    Wrapper(Wrapper),
}

/// Files of the wrapper form, and what stands for it elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wrapper {
    pub cuda: PathBuf,
    pub nvml: PathBuf,
    /// What the environment preloads, and shall not where the wrapper is.
    pub preload: PathBuf,
    /// The slice's folder.
    pub slice: PathBuf,
    /// Whether to mount the two files of the slice instead of its folder: of root's slices, other users can pass
    /// through no folder, and an engine may start its steps as any user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slice_by_file: bool,
    /// The folder of links to the simulated driver, where that is used.
    pub simulated: Option<PathBuf>,
}

/// A job's limiter, as its supervisor found it could be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InjectedLimiter {
    pub form: InjectionMode,
    /// Why it is not the stronger form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Whether an attempt failed. Otherwise the form was not tried, as expected.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InjectionMode {
    Preload,
    Wrapper,
}
