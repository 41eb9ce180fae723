//! Projects of the configuration file: `[projects.vision]`, with the words of `divvy admin project`.

use std::time::Duration;

use divvy_core::project::{Limit, Quota};
use divvy_core::{Bytes, Gpus, Project, ProjectName};
use serde::{Deserialize, Serialize};

use super::text;

/// The settings of a project; its name is the table's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ProjectOptions {
    /// Guaranteed GPUs. Every project of a file has this key.
    #[serde(with = "text::quota")]
    pub quota: Gpus,
    /// Guaranteed bytes of GPU memory; `None`: memory is not divided.
    #[serde(with = "text::size")]
    pub quota_memory: Option<u64>,
    /// Its part of what is over quota; `None`: in proportion to its quota.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Most GPUs; `None`: no limit.
    #[serde(with = "text::limit")]
    pub limit: Option<Gpus>,
    /// Most bytes of GPU memory; `None`: no limit.
    #[serde(with = "text::size")]
    pub limit_memory: Option<u64>,
    pub priority: i32,
    /// Its jobs are not preempted before they have run this long.
    #[serde(with = "text::duration")]
    pub min_runtime: Duration,
    /// Users, and groups with an `@` before them; empty means every user.
    pub members: Vec<String>,
}

impl ProjectOptions {
    /// The project with these settings.
    pub fn project(&self, name: ProjectName) -> Project {
        Project {
            name,
            quota: Quota {
                gpus: self.quota,
                memory: self.quota_memory.map(Bytes::new),
            },
            weight: self.weight,
            limit: Limit {
                gpus: self.limit,
                memory: self.limit_memory.map(Bytes::new),
            },
            priority: self.priority,
            min_runtime_s: self.min_runtime.as_secs(),
            members: self.members.clone(),
        }
    }
}
