//! Job files: a script that a job runs, and the files that its output goes to.

use serde::{Deserialize, Serialize};

/// The script of a job, copied when it was submitted: what becomes of the file later changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// At most 1 MiB, with `#!` and an interpreter in its first line. The job's command is its name and its arguments.
    pub text: String,
    /// Its environment has the numbers of the job and of its array by the names of Slurm, too: `SLURM_JOB_ID`,
    /// `SLURM_ARRAY_JOB_ID` and `SLURM_ARRAY_TASK_ID`.
    #[serde(default)]
    pub slurm_names: bool,
}

/// Files of a job's output, which its user opens, in place of the job's log.
///
/// In a submission they are patterns: `%j` stands for the job's number, `%A` for its array's, `%a` for its index, `%x` for its
/// name, `%u` for its user, `%N` for the machine, `%%` for a percent sign; `%4j` is filled up with zeros. Of a job they are paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Relative to the working directory; absent: the job's log.
    #[serde(default)]
    pub stdout: Option<String>,
    /// Absent: where the standard output goes.
    #[serde(default)]
    pub stderr: Option<String>,
    /// The first run adds to what the files have; otherwise it begins them anew. Later runs of the job always add.
    #[serde(default)]
    pub append: bool,
}
