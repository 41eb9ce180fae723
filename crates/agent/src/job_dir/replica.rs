//! Replicas: the journal's rows of one job as its folder keeps them, so that a journal that was lost or is older can be completed.

use divvy_core::JobId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One row: its columns by name.
pub type Row = Map<String, Value>;

/// What the journal said of one job when its folder was written last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    pub seq: i64,
    pub job: Row,
    pub holdings: Vec<Row>,
    /// The MIG instances that it holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<Row>,
}

impl Replica {
    /// The job's number.
    pub fn id(&self) -> Option<JobId> {
        self.job.get("id")?.as_u64().map(JobId)
    }

    /// The last event of the journal when the replica was made: a journal that has fewer is older than the replica. Times
    /// would not do, since a clock can be set back.
    pub fn seq(&self) -> i64 {
        self.seq
    }
}
