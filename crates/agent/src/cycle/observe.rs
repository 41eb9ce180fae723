//! Taking over what the driver says: what is ours, what is a stranger's, what is gone.

use std::collections::HashSet;

use divvy_core::{Bytes, JobId, Mode};
use divvy_ledger::Snapshot;

use super::{Cycle, Living};
use crate::gpu::{Observation, slice};
use crate::store::StoreError;

impl Cycle {
    /// Takes over an observation and tends the slices.
    ///
    /// # Errors
    /// When the journal fails.
    pub fn observed(&mut self, observation: &Observation) -> Result<(), StoreError> {
        self.blind = None;
        let listed: HashSet<u32> = observation
            .gpus
            .iter()
            .flat_map(|gpu| &gpu.processes)
            .map(|process| process.pid)
            .collect();
        let mut members = std::mem::take(&mut self.departed);
        let mut charged = vec![Bytes::ZERO; observation.gpus.len()];
        for (id, living) in &mut self.jobs {
            let Some(snapshot) = tend(*id, living, &listed) else {
                continue;
            };
            members.extend(slice::processes(&snapshot).map(|process| process.pid));
            for (gpu, holding) in living.job.holdings.iter().enumerate() {
                let place = observation
                    .gpus
                    .iter()
                    .position(|observed| observed.uuid == holding.grant.gpu);
                if let Some(sum) = place.and_then(|place| charged.get_mut(place)) {
                    let usage = snapshot.usage(gpu);
                    *sum = sum
                        .saturating_add(Bytes::new(usage.charged.saturating_add(usage.overhead)));
                }
            }
        }
        for device in &mut self.devices {
            let place = observation
                .gpus
                .iter()
                .position(|observed| observed.uuid == device.gpu.uuid);
            if let Some(place) = place {
                self.round.replan |=
                    device.update(&observation.gpus[place], &members, charged[place]);
            }
        }
        // The driver may list a process of ours for a moment longer than its slice exists.
        self.departed = members
            .into_iter()
            .filter(|pid| listed.contains(pid))
            .collect();
        self.lost_and_found(observation)
    }

    /// A GPU that does not answer is given out no more; jobs on it keep what they hold.
    fn lost_and_found(&mut self, observation: &Observation) -> Result<(), StoreError> {
        let mut news = Vec::new();
        for device in &mut self.devices {
            let answers = observation
                .gpus
                .iter()
                .any(|observed| observed.uuid == device.gpu.uuid);
            let mode = if answers {
                device.assigned
            } else {
                Mode::Unmanaged
            };
            if device.lost == answers {
                device.lost = !answers;
                device.gpu.mode = mode;
                let (index, uuid) = (device.gpu.index, &device.gpu.uuid);
                news.push(match answers {
                    true => ("gpu_back", format!("GPU {index} ({uuid}) answers again")),
                    false => (
                        "gpu_lost",
                        format!("GPU {index} ({uuid}) does not answer and is given out no more"),
                    ),
                });
            }
        }
        for (kind, text) in news {
            tracing::warn!("{text}");
            self.tell(None, kind, &text)?;
            self.round.replan = true;
        }
        Ok(())
    }
}

/// What a job's slice uses, its dead processes given back; `None` where there is nothing to read.
fn tend(id: JobId, living: &mut Living, listed: &HashSet<u32>) -> Option<Snapshot> {
    let held = living.slice.as_ref()?;
    let tended = held.tend().and_then(|snapshot| {
        if slice::processes(&snapshot).all(|process| process.is_alive()) {
            return Ok(snapshot);
        }
        held.reap(&|pid| listed.contains(&pid))?;
        held.read()
    });
    match tended {
        Ok(snapshot) => Some(snapshot),
        Err(error) => {
            if !std::mem::replace(&mut living.damaged, true) {
                tracing::error!(job = %id, %error, "its slice cannot be read");
            }
            None
        }
    }
}
