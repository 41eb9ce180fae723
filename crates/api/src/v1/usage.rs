//! Usage: allocated and used GPU time.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Answer of `GET /v1/usage`. GPU time is in milliseconds of a whole GPU: a quarter of a GPU for four seconds is
/// 1000. `allocated` is `used` minus `loaned`, plus `idle`, plus `unknown`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Usage {
    /// Day of the row in the caller's time zone, `2026-11-26`. Absent if rows are not grouped by day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// Month of the row, `2026-11`. Absent if rows are not grouped by month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// The row has the energy that no job was charged, and no job. Only callers who see all jobs get such rows. All rows
    /// of an answer together have the energy of the GPUs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub idle: bool,
    /// Absent, like all of these fields, if rows are not grouped by it.
    pub user: Option<String>,
    /// Absent also for jobs without a project.
    pub project: Option<String>,
    pub queue: Option<String>,
    pub gpu_index: Option<u32>,
    pub gpu_uuid: Option<String>,
    pub job: Option<String>,
    /// Name of the job.
    pub name: Option<String>,
    /// Namespace of the claims in the other scheduler (Kubernetes). Absent also for jobs that are no claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Number of different jobs.
    pub jobs: u64,
    /// GPU time that was allocated.
    pub allocated_gpu_ms: u64,
    /// GPU time in which kernels of the jobs ran, from the driver's samples.
    pub used_gpu_ms: u64,
    /// Used GPU time beyond the jobs' shares.
    pub loaned_gpu_ms: u64,
    /// Allocated GPU time that was measured and not used.
    pub idle_gpu_ms: u64,
    /// Allocated GPU time that was not measured.
    pub unknown_gpu_ms: u64,
    /// Allocated GPU time while the jobs were suspended.
    pub suspended_gpu_ms: u64,
    /// Allocated memory, in MiB times seconds.
    pub memory_mib_s: u64,
    /// The part of it beyond the highest use of each job up to then. It counts nothing where no use is measured.
    #[serde(default)]
    pub unused_memory_mib_s: u64,
    /// Energy of the GPUs, divided by share and time.
    #[serde(default)]
    pub energy_joules: Joules,
    /// The part of it that is an estimate: of MIG instances, and of GPUs without an energy counter.
    #[serde(default)]
    pub energy_estimated_joules: Joules,
    /// GPU time of the whole machine in the row's period: its day, or the period of the call, each up to now. It counts
    /// the GPUs that the daemon manages now, and GPUs that jobs held in the period of the call.
    #[serde(default)]
    pub capacity_gpu_ms: u64,
}

/// Energy: a number of joules with at most three decimals, exact to the millijoule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "openapi",
    derive(schemars::JsonSchema),
    schemars(with = "f64")
)]
pub struct Joules {
    millijoules: u64,
}

impl Joules {
    pub const fn from_millijoules(millijoules: u64) -> Self {
        Self { millijoules }
    }

    pub const fn millijoules(self) -> u64 {
        self.millijoules
    }
}

impl Serialize for Joules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Exact below 2^50 mJ, which a GPU of 700 W draws in 50 years.
        serializer.serialize_f64(self.millijoules as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Joules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let joules = f64::deserialize(deserializer)?;
        // Below zero and not a number become zero.
        let millijoules = (joules * 1000.0).round() as u64;
        Ok(Self { millijoules })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_a_number_of_joules_exact_to_the_millijoule() {
        for (millijoules, text) in [
            (0, "0.0"),
            (1, "0.001"),
            (1_234_567, "1234.567"),
            (1_000_000_000_000_001, "1000000000000.001"),
        ] {
            let energy = Joules::from_millijoules(millijoules);
            assert_eq!(serde_json::to_string(&energy).unwrap(), text);
            assert_eq!(serde_json::from_str::<Joules>(text).unwrap(), energy);
        }
        assert_eq!(
            serde_json::from_str::<Joules>("12").unwrap().millijoules(),
            12_000
        );
    }
}
