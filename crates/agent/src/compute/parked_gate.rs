//! The gates of parked jobs: every call that needs the GPU waits there, and the first one wakes the job.
//!
//! The gate of a slice stays parked when the thread ends. Without the daemon's renewals its processes go on to the
//! driver, whose lock holds them, and the next daemon finds their wish in the slice.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_core::JobId;
use divvy_ledger::{Control, DemandReader, Grant, OpenError, boot_time_ns};

use super::{WakeReporter, gate_and_demand};

/// The parked slices.
pub(crate) struct ParkedGates {
    gates: BTreeMap<JobId, ParkedGate>,
    wakes: WakeReporter,
}

struct ParkedGate {
    control: Control,
    demand_reader: DemandReader,
    is_reported: bool,
}

impl ParkedGates {
    pub(crate) fn new(wakes: WakeReporter) -> Self {
        Self {
            gates: BTreeMap::new(),
            wakes,
        }
    }

    /// Parks a slice. One that is parked already reports its next call once more.
    pub(crate) fn begin(&mut self, job: JobId, folder: &Path) {
        match ParkedGate::open(folder) {
            Ok(gate) => {
                gate.control.grant(Grant::Parked, boot_time_ns());
                self.gates.insert(job, gate);
            }
            Err(error) => tracing::warn!(%job, %error, "cannot park the slice of a job"),
        }
    }

    /// Opens the gate of a slice; the compute scheduler may close it again.
    pub(crate) fn end(&mut self, job: JobId) {
        if let Some(gate) = self.gates.remove(&job) {
            gate.control.grant(Grant::Open, boot_time_ns());
        }
    }

    pub(crate) fn has(&self, job: JobId) -> bool {
        self.gates.contains_key(&job)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gates.is_empty()
    }

    pub(crate) fn readers(&self) -> impl Iterator<Item = &DemandReader> {
        self.gates.values().map(|gate| &gate.demand_reader)
    }

    /// Says that the gates still count.
    pub(crate) fn renew(&self, now: u64) {
        for gate in self.gates.values() {
            gate.control.grant(Grant::Parked, now);
        }
    }

    /// Reports the calls that need the memory of a job.
    pub(crate) fn check(&mut self) {
        for (job, gate) in &mut self.gates {
            // A slice without files has no process that could call.
            if let Ok(Some(call)) = gate.demand_reader.wake_call()
                && !std::mem::replace(&mut gate.is_reported, true)
            {
                (self.wakes)(*job, call);
            }
        }
    }
}

impl ParkedGate {
    fn open(folder: &Path) -> Result<Self, OpenError> {
        let (control, demand_reader) = gate_and_demand(folder)?;
        Ok(Self {
            control,
            demand_reader,
            is_reported: false,
        })
    }
}
