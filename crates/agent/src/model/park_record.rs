//! The record that a driver has passed `divvy selftest --park`: before, no job is parked.

use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;

use divvy_api::home::Home;
use divvy_core::JobId;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What passed, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkRecord {
    pub driver_version: String,
    /// Models of the GPUs.
    pub models: Vec<String>,
    pub at: Timestamp,
}

impl ParkRecord {
    fn path(home: &Home) -> PathBuf {
        home.state().join("park.json")
    }

    /// The record, if there is one that can be read.
    pub fn read(home: &Home) -> Option<Self> {
        let text = fs::read(Self::path(home)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// # Errors
    /// Those of the file system.
    pub fn write(&self, home: &Home) -> io::Result<()> {
        // A daemon reads it at any time.
        let path = Self::path(home);
        let draft = path.with_extension("json.new");
        fs::write(&draft, serde_json::to_vec(self)?)?;
        fs::rename(&draft, path)
    }

    /// Why no job is parked on GPUs of this model by this driver.
    pub fn obstacle(record: Option<&Self>, driver_version: &str, model: &str) -> Option<String> {
        match record {
            None => Some(format!(
                "driver {driver_version} has not passed the test of parking on this machine"
            )),
            Some(record) if record.driver_version != driver_version => Some(format!(
                "driver {} passed the test of parking on {}, and this is driver {driver_version}",
                record.driver_version,
                record.at.strftime("%Y-%m-%d")
            )),
            Some(record) if !record.models.iter().any(|passed| passed == model) => Some(format!(
                "driver {driver_version} has not passed the test of parking on {model}"
            )),
            Some(_) => None,
        }
    }
}

/// A driver that ended a program while it locked it: no job is parked until the driver has passed the test again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParkOff {
    pub driver_version: String,
    pub job: JobId,
    pub at: Timestamp,
}

impl ParkOff {
    /// The journal's setting that has it.
    pub const SETTING: &str = "park_off";

    pub fn of_setting(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub fn to_setting(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for ParkOff {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            driver_version,
            job,
            ..
        } = self;
        write!(
            out,
            "job {job} died while driver {driver_version} locked it"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_parked_only_by_the_driver_that_has_passed_on_its_model() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::under(folder.path().join("home")).unwrap();
        home.create().unwrap();
        assert_eq!(ParkRecord::read(&home), None);
        let record = ParkRecord {
            driver_version: "580.159".to_owned(),
            models: vec!["NVIDIA H200".to_owned()],
            at: Timestamp::UNIX_EPOCH,
        };
        record.write(&home).unwrap();
        let record = ParkRecord::read(&home);
        let obstacle = |version, model| ParkRecord::obstacle(record.as_ref(), version, model);
        assert_eq!(obstacle("580.159", "NVIDIA H200"), None);
        let updated = obstacle("590.1", "NVIDIA H200").unwrap();
        assert!(
            updated.contains("580.159") && updated.contains("1970-01-01"),
            "{updated}"
        );
        assert!(obstacle("580.159", "NVIDIA L40S").is_some());
        assert!(ParkRecord::obstacle(None, "580.159", "NVIDIA H200").is_some());
    }
}
