//! The driver's Xid events: which GPUs are watched for them, and those that no observation has told yet.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use divvy_core::GpuUuid;
use divvy_driver::nvml::health::XidEvents;
use divvy_driver::nvml::{Device, Nvml};
use divvy_driver::{Error, Uuid};

use super::health::{GpuXid, MAX_XIDS};
use crate::host::clock::Instant;
use crate::host::error::error_chain;

/// After a failure the driver is asked again no sooner: each try costs it several calls. So ten seconds: a fault of a
/// GPU is seen so much later at most.
const RETRY: Duration = Duration::from_secs(10);

/// The GPUs that are watched. The driver tells a watcher no earlier event.
#[derive(Default)]
pub struct XidWatch {
    events: Option<XidEvents>,
    /// When a set of events was made last, unless the next is to be made at once.
    made_at: Option<Instant>,
    /// GPUs that could not be watched, and when.
    refused: BTreeMap<GpuUuid, Instant>,
    /// GPUs that were lost: once they answer again, they have had a reset and no set watches them.
    lost: BTreeSet<GpuUuid>,
    /// At most [`MAX_XIDS`]; the rest is still with the driver.
    untold: Vec<GpuXid>,
}

impl XidWatch {
    /// Watches a GPU that answers, unless it is watched or was refused a short time ago.
    pub fn watch(&mut self, nvml: &Arc<Nvml>, device: &Device<'_>, gpu: &GpuUuid, now: Instant) {
        if self.lost.remove(gpu) {
            self.drain();
            self.renew();
        }
        let uuid = Uuid(gpu.to_bytes());
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < RETRY;
        let is_watched = |events: &XidEvents| events.watches(uuid);
        let is_refused = self.refused.get(gpu).is_some_and(is_recent)
            || (self.events.is_none() && self.made_at.as_ref().is_some_and(is_recent));
        if is_refused || self.events.as_ref().is_some_and(is_watched) {
            return;
        }
        self.refused.remove(gpu);
        if let Err(error) = self.try_watch(nvml, device, uuid, now) {
            let error = error_chain(&error);
            tracing::debug!(%gpu, error, "the driver does not tell a GPU's Xid events");
            self.refused.insert(gpu.clone(), now);
        }
    }

    fn try_watch(
        &mut self,
        nvml: &Arc<Nvml>,
        device: &Device<'_>,
        gpu: Uuid,
        now: Instant,
    ) -> Result<(), Error> {
        // After a failure the set may be of no use any more (nvml.h, nvmlDeviceRegisterEvents).
        self.drain();
        let events = match &mut self.events {
            Some(events) => events,
            None => {
                self.made_at = Some(now);
                self.events.insert(XidEvents::new(nvml)?)
            }
        };
        let watched = events.watch(device, gpu);
        if watched.as_ref().is_err_and(|error| !error.is_lost()) {
            self.renew();
        }
        watched
    }

    /// The driver says that a GPU is lost. Its last events may still come.
    pub fn lose(&mut self, gpu: &GpuUuid) {
        self.lost.insert(gpu.clone());
    }

    /// The events since the last call, at most [`MAX_XIDS`].
    pub fn take(&mut self) -> Vec<GpuXid> {
        self.drain();
        std::mem::take(&mut self.untold)
    }

    fn drain(&mut self) {
        while self.untold.len() < MAX_XIDS
            && let Some(events) = &self.events
        {
            match events.poll() {
                Ok(Some(event)) => self.untold.push(GpuXid {
                    gpu: GpuUuid::from_bytes(event.gpu.0),
                    xid: event.xid,
                }),
                Ok(None) => return,
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::debug!(error, "the driver does not tell Xid events");
                    self.events = None;
                }
            }
        }
    }

    /// The next GPU that is watched is in a new set, and the others again when they are observed.
    fn renew(&mut self) {
        self.events = None;
        self.made_at = None;
    }
}
