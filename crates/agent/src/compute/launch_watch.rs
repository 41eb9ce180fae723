//! The launch watch: detects whether a slice launches anything, by leaving its gate ajar (`Bounded`), because a launch
//! through an open gate is invisible.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_core::JobId;
use divvy_ledger::{Control, Demand, DemandReader, Grant, OpenError, boot_time_ns};

use super::gate_and_demand;

/// The slices that are watched.
#[derive(Default)]
pub(super) struct LaunchWatches(BTreeMap<JobId, LaunchWatch>);

struct LaunchWatch {
    control: Control,
    demand_reader: DemandReader,
    before: Option<Demand>,
}

impl LaunchWatches {
    pub(super) fn begin(&mut self, job: JobId, folder: &Path) {
        match LaunchWatch::open(folder) {
            Ok(watch) => {
                self.0.insert(job, watch);
            }
            Err(error) => tracing::debug!(%job, %error, "cannot watch the launches of a job"),
        }
    }

    pub(super) fn end(&mut self, job: JobId) {
        self.0.remove(&job);
    }

    pub(super) fn open_all(&self, now: u64) {
        for watch in self.0.values() {
            watch.control.grant(Grant::Open, now);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Slices that have wanted something since the last check.
    pub(super) fn poll_launches(&mut self, now: u64) -> Vec<JobId> {
        let wants =
            |(job, watch): (&JobId, &mut LaunchWatch)| watch.has_demand(now).then_some(*job);
        self.0.iter_mut().filter_map(wants).collect()
    }

    /// Leaves the gates ajar of those that are open: of the others every launch is seen.
    pub(super) fn bound_open_gates(&self, now: u64) {
        for watch in self.0.values() {
            if watch.control.granted() == Grant::Open {
                watch.control.grant(Grant::Bounded, now);
            }
        }
    }
}

impl LaunchWatch {
    fn open(folder: &Path) -> Result<Self, OpenError> {
        let (control, demand_reader) = gate_and_demand(folder)?;
        Ok(Self {
            control,
            demand_reader,
            before: None,
        })
    }

    fn has_demand(&mut self, now: u64) -> bool {
        let Ok(demand) = self.demand_reader.demand(now) else {
            return false;
        };
        let is_news = |before: &Demand| {
            (before.submitted, before.requests, before.device_time)
                != (demand.submitted, demand.requests, demand.device_time)
        };
        let wants = demand.waiting || demand.busy || self.before.as_ref().is_some_and(is_news);
        self.before = Some(demand);
        wants
    }
}

/// Opens the gate of a slice that takes no turns.
pub(super) fn open_gate(job: JobId, folder: &Path) {
    match Control::open_writable(folder) {
        Ok(control) => control.grant(Grant::Open, boot_time_ns()),
        Err(error) => tracing::debug!(%job, %error, "the slice does not exist any more"),
    }
}
