//! Whether a slice launches anything at all, while that is asked: a launch through an open gate is seen by nobody, so the gate
//! is left ajar (`Bounded`: nobody waits, and the first launch of a process is looked at, later ones one in 64 at least).

use std::collections::BTreeMap;
use std::path::Path;

use divvy_core::JobId;
use divvy_ledger::{Control, Demand, Grant, Lookout, OpenError, Slice, boot_time_ns};

/// The slices that are watched.
#[derive(Default)]
pub(super) struct Watched(BTreeMap<JobId, Watch>);

struct Watch {
    control: Control,
    lookout: Lookout,
    before: Option<Demand>,
}

impl Watched {
    pub(super) fn begin(&mut self, job: JobId, folder: &Path) {
        match Watch::open(folder) {
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

    /// Those that have wanted something since they were last looked at.
    pub(super) fn look(&mut self, now: u64) -> Vec<JobId> {
        let wants = |(job, watch): (&JobId, &mut Watch)| watch.wants(now).then_some(*job);
        self.0.iter_mut().filter_map(wants).collect()
    }

    /// Leaves the gates ajar of those that are open: of the others every launch is seen.
    pub(super) fn hold(&self, now: u64) {
        for watch in self.0.values() {
            if watch.control.granted() == Grant::Open {
                watch.control.grant(Grant::Bounded, now);
            }
        }
    }
}

impl Watch {
    fn open(folder: &Path) -> Result<Self, OpenError> {
        let slice = Slice::open(folder)?;
        Ok(Self {
            control: Control::open_writable(folder)?,
            lookout: Lookout::new(&slice)?,
            before: None,
        })
    }

    fn wants(&mut self, now: u64) -> bool {
        let Ok(demand) = self.lookout.demand(now) else {
            return false;
        };
        let is_news = |before: &Demand| {
            (before.put, before.asked, before.device_time)
                != (demand.put, demand.asked, demand.device_time)
        };
        let wants = demand.waiting || demand.busy || self.before.as_ref().is_some_and(is_news);
        self.before = Some(demand);
        wants
    }
}

/// Opens the gate of a slice that takes no turns.
pub(super) fn open(job: JobId, folder: &Path) {
    match Control::open_writable(folder) {
        Ok(control) => control.grant(Grant::Open, boot_time_ns()),
        Err(error) => tracing::debug!(%job, %error, "the slice does not exist any more"),
    }
}
