//! What a look means for each job: errors of its account, what its limit counts besides, and who got past the limiter.

use divvy_core::memory::MemoryResidency;
use divvy_core::reconcile::{
    self, BypassChange, BypassKind, BypassPolicy, GrantHistory, Limiter, Sample, SliceComparison,
    Suspect, compare,
};
use divvy_core::{Bytes, GpuUuid, JobId};
use jiff::SignedDuration;
use rustix::process::Signal;

use crate::controller::lifecycle::container;
use crate::controller::{ActiveJob, Controller};
use crate::gpu::attribution::Ownership;
use crate::gpu::sample::{GpuSample, NodeSample};
use crate::gpu::slice::HeldSlice;
use crate::host::cgroup::Cgroup;
use crate::host::clock::now;
use crate::host::process::{Process, evidence};
use crate::job_dir::processes::processes_of;
use crate::journal::StoreError;
use crate::model::bypass::Bypass;

/// What the last look found of one slice on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliceUsage {
    /// What its processes hold by the driver's word.
    pub driver: Option<Bytes>,
    /// The account's error.
    pub mismatch: Option<i64>,
    /// The largest error that lasted from one look to the next.
    pub mismatch_max: Bytes,
    /// What the limit has to count besides the account.
    pub unaccounted: Bytes,
    /// What was told to the slice's processes.
    published: Bytes,
    granted: GrantHistory,
}

impl SliceUsage {
    fn update(&mut self, found: &SliceComparison) {
        self.driver = found.driver;
        let (before, now) = (self.mismatch, found.mismatch());
        // A figure that could not be compared this time stays what it was; one that is not told is unknown.
        self.mismatch = found.driver.and(now.or(before));
        // A single look may fall between a process's last breath and the driver's noticing.
        if let (Some(before), Some(now)) = (before, now)
            && before.signum() == now.signum()
        {
            let lasted = Bytes::new(before.unsigned_abs().min(now.unsigned_abs()));
            self.mismatch_max = self.mismatch_max.max(lasted);
        }
        self.unaccounted = match found.steady {
            true => found.uncounted,
            false => found.uncounted.max(self.unaccounted),
        };
    }

    /// Its memory is elsewhere, or on its way: the account is compared with nothing.
    fn suspend_accounting(&mut self, found: &SliceComparison) {
        self.driver = found.driver;
        self.mismatch = None;
    }

    /// Tells the slice's processes what to count besides; where memory is denied, all there is.
    fn publish(&mut self, slice: &HeldSlice, gpu: usize, limit: Bytes, denied: bool) {
        let unseen = if denied {
            self.unaccounted.max(limit)
        } else {
            self.unaccounted
        };
        if std::mem::replace(&mut self.published, unseen) != unseen {
            slice.set_unaccounted(gpu, unseen);
        }
    }
}

impl ActiveJob {
    /// The slice's allocations are refused while one of its processes is past the limiter and that is the policy.
    fn is_denied(&self) -> bool {
        let mut lasting = self
            .job
            .bypasses
            .iter()
            .filter(|found| found.over.is_none());
        lasting.any(|found| found.action >= BypassPolicy::Deny)
    }

    /// What is kept of its slice on a GPU, where its memory is, and what it holds there in the planner's sums.
    fn usage_on(&mut self, gpu: &GpuUuid) -> Option<(MemoryResidency, &mut SliceUsage, Bytes)> {
        self.slice_usage
            .resize(self.job.allocations.len(), SliceUsage::default());
        let mut holdings = self.job.allocations.iter();
        let place = holdings.position(|holding| holding.grant.gpu == *gpu)?;
        let granted = self.job.allocations.get(place)?.grant.memory;
        let memory = self.job.run_state.aside.memory;
        Some((memory, self.slice_usage.get_mut(place)?, granted))
    }

    /// One of its processes was killed, and the rest is to follow.
    pub fn is_killed(&self) -> bool {
        self.job.bypasses.iter().any(Bypass::is_killed)
    }
}

impl Controller {
    /// Compares every GPU's processes with the accounts, and draws the consequences.
    pub(in crate::controller) fn reconcile(&mut self, look: &NodeSample) -> Result<(), StoreError> {
        let unseen = self.unobserved_gpus.clone().unwrap_or_default();
        let forget = |living: &mut ActiveJob| {
            let mut held = living.job.state.grants().iter();
            match held.any(|grant| unseen.contains(&grant.gpu)) {
                // Whom the look before has shown is there until he is gone, or one shows that he is not.
                true => living.members.retain(|member| member.is_alive()),
                false => living.members.clear(),
            }
        };
        self.for_each_active(|_, living| forget(living));
        let whose = || {
            let people = look.processes.values();
            people.filter_map(|person| Some((person.ownership.job()?, person.process)))
        };
        // Also of a job that waits again.
        for (job, _) in whose() {
            if let Some(living) = self.jobs.get_mut(&job) {
                forget(living);
            }
        }
        for (job, process) in whose() {
            if let Some(living) = self.jobs.get_mut(&job)
                && !living.members.contains(&process)
            {
                living.members.push(process);
            }
        }
        for id in self.active_jobs() {
            let awake = self.jobs.get(&id).is_some_and(|living| {
                !living.job.run_state.aside.memory.holds_gpus() && !living.members.is_empty()
            });
            if awake {
                // Somebody has woken what is not to use a GPU now.
                self.effects.pauses.push(id);
            }
        }
        for seen in &look.gpus {
            match seen.observed.active_mig() {
                Some(_) => self.reconcile_mig_gpu(seen)?,
                None => {
                    self.reconcile_non_mig_gpu(seen)?;
                    self.compare_accounts(look, seen)?;
                }
            }
        }
        self.compute_scheduler
            .report_utilization(&self.percentages(look));
        let gone = self
            .watchlist
            .retain(|gpu| look.gpus.iter().any(|seen| seen.observed.uuid == *gpu));
        for change in gone {
            self.apply_bypass_change(look, 0, change)?;
        }
        let mut dying = Vec::new();
        self.for_each_active(|id, living| {
            if living.is_killed() {
                dying.push(id);
            }
            let denied = living.is_denied();
            let Some(slice) = &living.slice else { return };
            let ledgers = living.slice_usage.iter_mut().zip(&living.job.allocations);
            for (gpu, (ledger, holding)) in ledgers.enumerate() {
                ledger.publish(slice, gpu, holding.grant.memory, denied);
            }
        });
        if self.watchlist.is_curious() {
            self.observer.sample_soon();
        }
        // What a dying tree has started meanwhile.
        self.effects.jobs_to_kill.extend(dying);
        Ok(())
    }

    /// What the driver saw of each GPU's use, where it is shared in slices.
    fn percentages(&self, look: &NodeSample) -> Vec<(u32, u32)> {
        let of = |seen: &GpuSample| {
            let mut devices = self.devices.iter();
            let device = devices.find(|device| device.gpu.uuid == seen.observed.uuid)?;
            Some((device.gpu.index, device.utilization_percent?))
        };
        let shared = |seen: &&GpuSample| seen.observed.active_mig().is_none();
        look.gpus.iter().filter(shared).filter_map(of).collect()
    }

    fn compare_accounts(&mut self, look: &NodeSample, seen: &GpuSample) -> Result<(), StoreError> {
        let uuid = &seen.observed.uuid;
        let balance = compare(&self.sample_with_grants(look, seen));
        let mut errors = Vec::new();
        for found in &balance.slices {
            let Some((memory, ledger, _)) = self
                .jobs
                .get_mut(&found.job)
                .and_then(|living| living.usage_on(uuid))
            else {
                continue;
            };
            match memory {
                MemoryResidency::Kept => ledger.update(found),
                // The account keeps what the GPU does not hold.
                _ => ledger.suspend_accounting(found),
            }
            errors.extend(ledger.mismatch.map(|error| (error, ledger.mismatch_max)));
        }
        if let Some(device) = self
            .devices
            .iter_mut()
            .find(|device| device.gpu.uuid == *uuid)
        {
            self.effects.replan |= device.update(seen, balance.unmanaged);
            let error = errors
                .iter()
                .map(|(error, _)| Bytes::new(error.unsigned_abs()));
            device.mismatch = (!errors.is_empty()).then(|| error.sum());
            let largest = errors.iter().map(|(_, largest)| *largest).max();
            device.mismatch_max = device.mismatch_max.max(largest.unwrap_or_default());
        }
        self.report_accounts_only(seen)?;
        let suspects: Vec<(Suspect, Limiter)> = balance
            .suspects
            .iter()
            .map(|suspect| {
                let inside = look.evidence.get(&suspect.process.pid);
                let limiter = inside.map_or(Limiter::Loaded, |inside| inside.limiter);
                (*suspect, limiter)
            })
            .collect();
        let there: Vec<_> = seen
            .sample
            .processes
            .iter()
            .map(|seen| seen.process)
            .collect();
        let changes =
            self.watchlist
                .update(look.at, uuid, &suspects, &there, &balance.inconclusive);
        for change in changes {
            self.apply_bypass_change(look, seen.observed.index, change)?;
        }
        Ok(())
    }

    /// What was seen of a GPU, with what the journal has granted of it: a limit that lies in a job's own file says nothing. A job that is
    /// to shrink keeps what it holds in the planner's sums until it has given it up, and one whose memory is aside holds nothing.
    fn sample_with_grants(&mut self, look: &NodeSample, seen: &GpuSample) -> Sample {
        let mut sight = seen.sample.clone();
        for slice in &mut sight.slices {
            let Some(living) = self.jobs.get_mut(&slice.job) else {
                continue;
            };
            slice.tampered = living.tampered;
            let holds = living.job.holds();
            let Some((memory, ledger, granted)) = living.usage_on(&seen.observed.uuid) else {
                continue;
            };
            slice.granted = if holds { granted } else { Bytes::ZERO };
            let lately = ledger.granted.record(look.at, slice.granted);
            slice.granted_recently = (memory == MemoryResidency::Kept).then_some(lately);
        }
        sight
    }

    /// Says once, for each GPU, that the driver does not tell whose memory is whose.
    fn report_accounts_only(&mut self, seen: &GpuSample) -> Result<(), StoreError> {
        let uuid = &seen.observed.uuid;
        let processes = &seen.observed.processes;
        let unknown = processes.iter().any(|process| process.used.is_none());
        if unknown && self.accounts_only.insert(uuid.clone()) {
            let index = seen.observed.index;
            let text = format!(
                "the driver does not report the memory of each process on GPU {index}: limits there rely on the slices' ledgers"
            );
            tracing::warn!("{text}");
            self.record_event(None, "process_memory_unknown", &text)?;
        }
        Ok(())
    }

    fn apply_bypass_change(
        &mut self,
        look: &NodeSample,
        gpu_index: u32,
        change: BypassChange,
    ) -> Result<(), StoreError> {
        match change {
            BypassChange::Detected {
                gpu,
                suspect,
                limiter,
                since,
            } => {
                let detected = now();
                let before = look.at.saturating_sub(since) / 1000;
                let before = SignedDuration::from_micros(i64::try_from(before).unwrap_or(i64::MAX));
                let process = Process::from(suspect.process);
                let bypass = Bypass {
                    gpu,
                    gpu_index,
                    process,
                    program: evidence::name(process.pid),
                    way: suspect.kind,
                    limiter,
                    used: suspect.used,
                    charged: suspect.charged,
                    first_seen: detected - before,
                    detected,
                    over: None,
                    action: self.policy_about(look, &suspect),
                };
                self.record_bypass(suspect.job, bypass)
            }
            BypassChange::Updated { gpu, suspect } => self.update_bypass(look, &gpu, &suspect),
            BypassChange::Cleared { gpu, suspect } => self.end_bypass(&gpu, &suspect),
        }
    }

    /// What is to be done about a suspect. Nobody is killed who is not of a job's tree, by the kernel's word.
    fn policy_about(&self, look: &NodeSample, suspect: &Suspect) -> BypassPolicy {
        let person = look.processes.get(&suspect.process.pid);
        let descends = person.is_some_and(|person| {
            person.process == suspect.process.into()
                && person.ownership == Ownership::Descendant(suspect.job)
        });
        match self.config.on_bypass.action_for(suspect) {
            BypassPolicy::Kill if !descends => BypassPolicy::Deny,
            policy => policy,
        }
    }

    fn record_bypass(&mut self, id: JobId, bypass: Bypass) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let after = bypass.detected.duration_since(bypass.first_seen);
        let overdraw = living
            .usage_on(&bypass.gpu)
            .filter(|_| bypass.way == BypassKind::Overdrawn)
            .map(|(_, ledger, granted)| {
                let held = ledger.driver.map(|held| format!("{} of ", held.human()));
                format!(" ({}{})", held.unwrap_or_default(), granted.human())
            });
        let text = format!(
            "{}: {}{}; detected {} ms after its first observation{}",
            bypass.describe(),
            bypass.cause(),
            overdraw.unwrap_or_default(),
            after.as_millis(),
            match bypass.action {
                BypassPolicy::Warn => "",
                BypassPolicy::Deny => "; further allocations of its slice are refused",
                BypassPolicy::Kill => "; the daemon kills it and its job",
            }
        );
        tracing::warn!(job = %id, "{text}");
        self.bypasses[way_index(bypass.way)] += 1;
        if bypass.is_killed() {
            self.effects.processes_to_kill.push(bypass.process);
        }
        self.store.add_bypass(id, &bypass)?;
        living.job.bypasses.push(bypass);
        self.record_event(Some(id), "bypass", &text)
    }

    fn update_bypass(
        &mut self,
        look: &NodeSample,
        gpu: &GpuUuid,
        suspect: &Suspect,
    ) -> Result<(), StoreError> {
        let policy = self.policy_about(look, suspect);
        let Some((id, bypass)) = self.open_bypass(gpu, suspect) else {
            return Ok(());
        };
        bypass.update_peaks(suspect);
        if policy <= bypass.action {
            return Ok(());
        }
        // It has come to take from others what it held within its limit before.
        bypass.action = policy;
        let bypass = bypass.clone();
        self.store.save_bypass(id, &bypass)?;
        if bypass.is_killed() {
            self.effects.processes_to_kill.push(bypass.process);
        }
        let text = format!(
            "{}: {}; the daemon kills it now",
            bypass.describe(),
            bypass.cause()
        );
        self.record_event(Some(id), "bypass", &text)
    }

    fn end_bypass(&mut self, gpu: &GpuUuid, suspect: &Suspect) -> Result<(), StoreError> {
        let Some((id, bypass)) = self.open_bypass(gpu, suspect) else {
            return Ok(());
        };
        bypass.over = Some(now());
        let bypass = bypass.clone();
        self.store.save_bypass(id, &bypass)?;
        let Process { pid, .. } = bypass.process;
        let text = format!(
            "pid {pid} ({}) no longer bypasses the limiter on GPU {}",
            bypass.program, bypass.gpu_index
        );
        self.record_event(Some(id), "bypass_ended", &text)
    }

    fn open_bypass(&mut self, gpu: &GpuUuid, suspect: &Suspect) -> Option<(JobId, &mut Bypass)> {
        let living = self.jobs.get_mut(&suspect.job)?;
        let same = |bypass: &&mut Bypass| {
            bypass.over.is_none() && bypass.gpu == *gpu && bypass.process == suspect.process.into()
        };
        let found = living.job.bypasses.iter_mut().find(same);
        found.map(|bypass| (suspect.job, bypass))
    }

    /// What an earlier agent found of the jobs that it left.
    pub(in crate::controller) fn restore_bypasses(&mut self) {
        for (id, living) in &self.jobs {
            for bypass in living
                .job
                .bypasses
                .iter()
                .filter(|found| found.over.is_none())
            {
                let suspect = Suspect {
                    job: *id,
                    process: bypass.process.into(),
                    kind: bypass.way,
                    used: bypass.used,
                    charged: bypass.charged,
                    harmful: bypass.is_killed(),
                };
                self.watchlist
                    .restore(bypass.gpu.clone(), suspect, bypass.limiter, 0);
            }
        }
    }

    /// The job is at its end: nothing of it goes on.
    pub(in crate::controller) fn close_bypasses(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let lasting = living
            .job
            .bypasses
            .iter_mut()
            .filter(|found| found.over.is_none());
        for bypass in lasting {
            bypass.over = Some(now());
            self.store.save_bypass(id, bypass)?;
        }
        Ok(())
    }

    /// Kills what was journaled to be killed: first who got past the limiter, then what is left of their jobs.
    pub(in crate::controller) fn kill_processes(&mut self) {
        for process in std::mem::take(&mut self.effects.processes_to_kill) {
            // Gone by itself is just as well.
            let _ = process.signal(Signal::KILL);
        }
        let mut jobs = std::mem::take(&mut self.effects.jobs_to_kill);
        jobs.sort_unstable();
        jobs.dedup();
        for id in jobs {
            for process in self.tree(id) {
                let _ = process.signal(Signal::KILL);
            }
        }
    }

    /// What is alive of a job below its supervisor, which has yet to write how it ended, and in its control group; without what programs
    /// of it have started as jobs of their own.
    fn tree(&self, id: JobId) -> Vec<Process> {
        let dir = self.job_dir(id);
        let Some(launch) = dir.launch().ok().flatten() else {
            return Vec::new();
        };
        let mut tree = processes_of(&dir, launch.process);
        tree.extend(container::processes(&dir));
        tree.extend(dir.group().iter().flat_map(Cgroup::members));
        tree.sort_unstable_by_key(|process| process.pid);
        tree.dedup();
        tree.retain(|process| self.observer.job_of(*process) == Some(id));
        tree
    }
}

/// A way's place among all of them.
pub(in crate::controller) fn way_index(way: BypassKind) -> usize {
    reconcile::BypassKind::ALL
        .iter()
        .position(|known| *known == way)
        .unwrap_or_default()
}
