//! Replicas: the journal's rows of one job as its folder keeps them, so that a journal that was lost or is older can be completed.

use std::fs;

use divvy_core::JobId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{JobDir, RecordError};

const REPLICA: &str = "replica";

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

    /// Keeps the journal's rows of the job beside its record. Not synced: a power cut that takes the file also ends the
    /// job.
    pub fn write(&self, dir: &JobDir) -> Result<(), RecordError> {
        dir.write_file(REPLICA, self)
    }

    /// Returns the replica that was written last; `None` where there is none or it is not whole.
    pub fn read(dir: &JobDir) -> Option<Self> {
        let text = fs::read(dir.path().join(REPLICA)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub fn remove(dir: &JobDir) {
        // Most jobs have none.
        let _ = fs::remove_file(dir.path().join(REPLICA));
    }
}
