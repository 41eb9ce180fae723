//! Jobs that may hold memory which the driver lists for no process: a descriptor of exported memory keeps it, and tells
//! neither its size nor its GPU.
//!
//! The descriptors of all processes are read behind a sample and once in a while, so that no caller waits for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;
use std::time::Duration;

use divvy_api::sync::lock;
use divvy_api::v1;
use divvy_core::reconcile::compare;
use divvy_core::{Bytes, JobId};

use super::sample::NodeSample;
use crate::host::clock::Instant;
use crate::host::process::evidence::{self, KnownFiles};
use crate::host::process::{self, Process};

/// How long a reading stands: it takes some 0.1 s of one core with 2,000 processes, so this costs one per cent of it.
const KEPT: Duration = Duration::from_secs(10);

/// The process of a job with the most descriptors that can hold such memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnlistedHolder {
    pub job: JobId,
    pub pid: u32,
    pub descriptors: usize,
}

impl UnlistedHolder {
    pub fn to_api(self, unlisted: Bytes) -> v1::UnlistedHolder {
        v1::UnlistedHolder {
            job: self.job.to_string(),
            pid: self.pid,
            descriptors: self.descriptors as u64,
            memory_bytes: unlisted.get(),
        }
    }
}

/// What was read while samples have shown such memory.
#[derive(Default)]
pub struct UnlistedHolders(Mutex<Reading>);

#[derive(Default)]
struct Reading {
    /// In how many samples in a row: the memory of an ending process is gone by the second.
    samples: u32,
    read_at: Option<Instant>,
    found: Vec<UnlistedHolder>,
}

impl UnlistedHolders {
    /// Completes a sample by what was read last.
    pub fn add_to(&self, sample: &mut NodeSample) {
        let mut reading = lock(&self.0);
        let mut gpus = sample.gpus.iter();
        if gpus.any(|seen| compare(&seen.sample).unlisted > Bytes::ZERO) {
            reading.samples = reading.samples.saturating_add(1);
            sample.unlisted_holders.clone_from(&reading.found);
        } else {
            *reading = Reading::default();
        }
    }

    /// Reads all descriptors if it is time. `job_of`: the job of a process.
    pub fn read_if_due(&self, marks: &KnownFiles, job_of: impl Fn(Process) -> Option<JobId>) {
        let mut reading = lock(&self.0);
        let is_fresh = (reading.read_at).is_some_and(|read_at| read_at.elapsed() < KEPT);
        if reading.samples < 2 || is_fresh {
            return;
        }
        let mut most: BTreeMap<JobId, UnlistedHolder> = BTreeMap::new();
        for process in process::processes() {
            let descriptors = evidence::memory_descriptors(process.pid, marks);
            let Some(job) = (descriptors > 0).then(|| job_of(process)).flatten() else {
                continue;
            };
            let pid = process.pid;
            let holder = UnlistedHolder {
                job,
                pid,
                descriptors,
            };
            match most.entry(job) {
                Entry::Occupied(known) if known.get().descriptors >= descriptors => {}
                entry => drop(entry.insert_entry(holder)),
            }
        }
        reading.found = most.into_values().collect();
        reading
            .found
            .sort_by_key(|holder| Reverse(holder.descriptors));
        reading.read_at = Some(Instant::now());
    }
}
