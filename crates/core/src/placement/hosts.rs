//! Hosts: the machines that the GPUs of a simulated set of nodes belong to.
//!
//! A daemon knows one machine, and counts only its GPUs. A simulation places jobs on several, with the CPU and the main
//! memory of each. A job never spans hosts: its GPUs are on one, which has room for its CPU and memory too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use crate::placement::Offer;
use crate::placement::fit::RequestShape;
use crate::placement::occupancy::NodeUsage;
use crate::units::{Bytes, JobId};

/// What a job takes of its host beside GPUs, and which GPUs it accepts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostNeed {
    /// Thousandths of a core.
    pub(crate) cpu_milli: u64,
    pub(crate) memory: Bytes,
    /// Accepted GPU models, one bit each; 0: every model.
    pub(crate) models: u64,
}

/// A machine as it is when empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Positions in [`NodeUsage::gpus`].
    pub(crate) gpus: Range<usize>,
    /// `u64::MAX`: not counted.
    pub(crate) cpu_milli: u64,
    pub(crate) memory: Bytes,
}

/// The machines, and what the jobs need of them. It does not change while jobs come and go.
pub(crate) struct HostTable<'a> {
    pub(crate) hosts: Vec<Host>,
    /// Of each GPU by position: the bit of its model.
    pub(crate) models: Vec<u64>,
    /// Of each job by number.
    pub(crate) needs: &'a [HostNeed],
    pub(crate) choice: &'a dyn HostChoice,
}

/// Chooses among hosts on which a job fits.
pub(crate) trait HostChoice {
    /// The index in `candidates`, which is not empty: hosts in ascending order, each with the GPUs that the job would
    /// get.
    fn choose(&self, node: &NodeUsage<'_>, job: JobId, candidates: &[(usize, Vec<Offer>)])
    -> usize;
}

/// What is free of the hosts beside GPUs.
#[derive(Clone)]
pub(crate) struct HostUsage<'a> {
    table: &'a HostTable<'a>,
    free: Vec<(u64, Bytes)>,
    jobs: BTreeMap<JobId, HostHold>,
    holds: u64,
}

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostHold {
    pub(crate) host: usize,
    /// No other hold has this number, not even a later one of the same job.
    pub(crate) number: u64,
}

impl<'a> HostUsage<'a> {
    pub(crate) fn new(table: &'a HostTable<'a>) -> Self {
        Self {
            table,
            free: table.empty(),
            jobs: BTreeMap::new(),
            holds: 0,
        }
    }

    pub(crate) fn table(&self) -> &'a HostTable<'a> {
        self.table
    }

    pub(crate) fn need(&self, job: JobId) -> HostNeed {
        self.table.need(job)
    }

    /// The jobs that hold GPUs.
    pub(crate) fn jobs(&self) -> &BTreeMap<JobId, HostHold> {
        &self.jobs
    }

    /// What is free of a host: CPU and memory.
    pub(crate) fn free(&self, host: usize) -> (u64, Bytes) {
        self.free[host]
    }

    /// A job holds the GPU at this position.
    pub(crate) fn hold(&mut self, job: JobId, position: usize) {
        let host = self.table.host_of(position);
        self.holds += 1;
        let hold = HostHold {
            host,
            number: self.holds,
        };
        if let Entry::Vacant(entry) = self.jobs.entry(job) {
            entry.insert(hold);
            let need = self.need(job);
            let (cpu, memory) = &mut self.free[host];
            *cpu = cpu.saturating_sub(need.cpu_milli);
            *memory = memory.saturating_sub(need.memory);
        }
    }

    /// A job has ended.
    pub(crate) fn release(&mut self, job: JobId) {
        if let Some(HostHold { host, .. }) = self.jobs.remove(&job) {
            let need = self.need(job);
            let (cpu, memory) = &mut self.free[host];
            *cpu = cpu.saturating_add(need.cpu_milli);
            *memory = memory.saturating_add(need.memory);
        }
    }

    /// No job holds anything.
    pub(crate) fn vacate(&mut self) {
        self.free = self.table.empty();
        self.jobs.clear();
    }

    pub(crate) fn has_room(&self, host: usize, need: HostNeed) -> bool {
        let (cpu, memory) = self.free(host);
        need.cpu_milli <= cpu && need.memory <= memory
    }

    /// Whether a new job on the host of this GPU could keep the job ahead from the host's CPU or memory. Which jobs end
    /// first is unknown, so both must fit as things are.
    pub(crate) fn delays(&self, position: usize, new: HostNeed, ahead: JobId) -> bool {
        let ahead = self.need(ahead);
        let (cpu, memory) = self.free(self.table.host_of(position));
        let cpu_is_short = new.cpu_milli > 0 && new.cpu_milli.saturating_add(ahead.cpu_milli) > cpu;
        let memory_is_short =
            new.memory > Bytes::ZERO && new.memory.saturating_add(ahead.memory) > memory;
        cpu_is_short || memory_is_short
    }

    /// Whether a job could ever use the GPU at this position: its model is accepted, and its empty host has enough GPUs
    /// of accepted models, CPU and memory.
    pub(crate) fn could_use(&self, position: usize, job: JobId, shape: RequestShape) -> bool {
        let need = self.need(job);
        let host = &self.table.hosts[self.table.host_of(position)];
        let count = match shape {
            RequestShape::Whole { min: count, .. } | RequestShape::Parts { count, .. } => count,
        };
        let mut accepted = host.gpus.clone().filter(|gpu| self.accepts(need, *gpu));
        self.accepts(need, position)
            && need.cpu_milli <= host.cpu_milli
            && need.memory <= host.memory
            && usize::try_from(count)
                .ok()
                .and_then(|count| accepted.nth(count.saturating_sub(1)))
                .is_some()
    }

    pub(crate) fn accepts(&self, need: HostNeed, position: usize) -> bool {
        need.models == 0 || need.models & self.table.models[position] != 0
    }

    /// The hosts with room for the job beside GPUs, and the GPUs that it gets there of those that are found.
    pub(crate) fn place(
        &self,
        node: &NodeUsage<'_>,
        job: JobId,
        find: impl Fn(Range<usize>, &dyn Fn(usize) -> bool) -> Option<Vec<Offer>>,
    ) -> Option<Vec<Offer>> {
        let need = self.need(job);
        let accepts = |position: usize| self.accepts(need, position);
        let hosts = self.table.hosts.iter().enumerate();
        let mut candidates: Vec<(usize, Vec<Offer>)> = hosts
            .filter(|(host, _)| self.has_room(*host, need))
            .filter_map(|(at, host)| Some((at, find(host.gpus.clone(), &accepts)?)))
            .collect();
        match candidates.len() {
            0 => None,
            1 => candidates.pop().map(|(_, offers)| offers),
            _ => {
                let chosen = self.table.choice.choose(node, job, &candidates);
                Some(candidates.swap_remove(chosen).1)
            }
        }
    }
}

impl HostTable<'_> {
    fn empty(&self) -> Vec<(u64, Bytes)> {
        let hosts = self.hosts.iter();
        hosts.map(|host| (host.cpu_milli, host.memory)).collect()
    }

    pub(crate) fn need(&self, job: JobId) -> HostNeed {
        let nth = usize::try_from(job.0).ok();
        nth.and_then(|nth| self.needs.get(nth).copied())
            .unwrap_or_default()
    }

    pub(crate) fn host_of(&self, position: usize) -> usize {
        self.hosts.partition_point(|host| host.gpus.end <= position)
    }

    /// The positions of a host's GPUs.
    pub(crate) fn gpus_of(&self, host: usize) -> Range<usize> {
        self.hosts[host].gpus.clone()
    }
}
