//! Job files, and the output files of a job.

use serde::{Deserialize, Serialize};

/// Script of a job, copied at submission. Later changes of the file have no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Content of the script: at most 1 MiB, with `#!` and an interpreter in its first line. The job's command is its
    /// name and its arguments.
    pub text: String,
    /// Set the job's numbers in Slurm's variables too: `SLURM_JOB_ID`, `SLURM_ARRAY_JOB_ID` and
    /// `SLURM_ARRAY_TASK_ID`.
    #[serde(default)]
    pub slurm_names: bool,
}

/// Output files of a job, in place of its log. The supervisor opens them as the job's user.
///
/// In a submission they are patterns. `%j` is the job's number, `%A` its array's number, `%a` its index, `%x` its name.
/// `%u` is its user, `%N` the machine, `%%` a percent sign; `%4j` is padded with zeros to four digits. In a job they are paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// File for standard output, relative to the working directory. Absent: the job's log.
    #[serde(default)]
    pub stdout: Option<String>,
    /// File for standard error. Absent: the file of standard output.
    #[serde(default)]
    pub stderr: Option<String>,
    /// Append on the first run; otherwise the first run truncates the files. Later runs always append.
    #[serde(default)]
    pub append: bool,
}
