//! What a look means for each job: errors of its account, what its limit counts besides, and who got past the limiter.

use divvy_core::memory::Memory;
use divvy_core::reconcile::{
    self, Change, Granted, Limiter, Policy, Sight, SliceBalance, Suspect, Way, balance,
};
use divvy_core::{Bytes, GpuUuid, JobId};
use jiff::SignedDuration;
use rustix::process::Signal;

use super::{Cycle, Living, container};
use crate::bypass::Bypass;
use crate::clock::now;
use crate::gpu::kin::Kinship;
use crate::gpu::look::{Look, Seen};
use crate::gpu::slice::HeldSlice;
use crate::process::{Process, inside};
use crate::store::StoreError;
use crate::supervise::below;
use crate::supervise::cgroup::Group;

/// What the last look found of one slice on one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// What its processes hold by the driver's word.
    pub driver: Option<Bytes>,
    /// The account's error.
    pub mismatch: Option<i64>,
    /// The largest error that lasted from one look to the next.
    pub mismatch_max: Bytes,
    /// What the limit has to count besides the account.
    pub unseen: Bytes,
    /// What was told to the slice's processes.
    told: Bytes,
    granted: Granted,
}

impl Ledger {
    fn update(&mut self, found: &SliceBalance) {
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
        self.unseen = match found.steady {
            true => found.unseen,
            false => found.unseen.max(self.unseen),
        };
    }

    /// Its memory is elsewhere, or on its way: the account is compared with nothing.
    fn leave(&mut self, found: &SliceBalance) {
        self.driver = found.driver;
        self.mismatch = None;
    }

    /// Tells the slice's processes what to count besides; where memory is denied, all there is.
    fn tell(&mut self, slice: &HeldSlice, gpu: usize, limit: Bytes, denied: bool) {
        let unseen = if denied {
            self.unseen.max(limit)
        } else {
            self.unseen
        };
        if std::mem::replace(&mut self.told, unseen) != unseen {
            slice.set_unseen(gpu, unseen);
        }
    }
}

impl Living {
    /// The slice's allocations are refused while one of its processes is past the limiter and that is the policy.
    fn is_denied(&self) -> bool {
        let mut lasting = self
            .job
            .bypasses
            .iter()
            .filter(|found| found.over.is_none());
        lasting.any(|found| found.action >= Policy::Deny)
    }

    /// What is kept of its slice on a GPU, where its memory is, and what it holds there in the planner's sums.
    fn ledger_on(&mut self, gpu: &GpuUuid) -> Option<(Memory, &mut Ledger, Bytes)> {
        self.ledgers
            .resize(self.job.holdings.len(), Ledger::default());
        let mut holdings = self.job.holdings.iter();
        let place = holdings.position(|holding| holding.grant.gpu == *gpu)?;
        let granted = self.job.holdings.get(place)?.grant.memory;
        let memory = self.job.course.aside.memory;
        Some((memory, self.ledgers.get_mut(place)?, granted))
    }

    /// One of its processes was killed, and the rest is to follow.
    pub fn is_killed(&self) -> bool {
        self.job.bypasses.iter().any(Bypass::is_killed)
    }
}

impl Cycle {
    /// Compares every GPU's processes with the accounts, and draws the consequences.
    pub(super) fn reconcile(&mut self, look: &Look) -> Result<(), StoreError> {
        let unseen = self.unseen.clone().unwrap_or_default();
        let forget = |living: &mut Living| {
            let mut held = living.job.life.grants().iter();
            match held.any(|grant| unseen.contains(&grant.gpu)) {
                // Whom the look before has shown is there until he is gone, or one shows that he is not.
                true => living.members.retain(|member| member.is_alive()),
                false => living.members.clear(),
            }
        };
        self.each_busy(|_, living| forget(living));
        let whose = || {
            let people = look.people.values();
            people.filter_map(|person| Some((person.kinship.job()?, person.process)))
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
        for id in self.busy() {
            let awake = self.jobs.get(&id).is_some_and(|living| {
                !living.job.course.aside.memory.holds() && !living.members.is_empty()
            });
            if awake {
                // Somebody has woken what is not to use a GPU now.
                self.round.pauses.push(id);
            }
        }
        for seen in &look.gpus {
            match seen.observed.divided() {
                Some(_) => self.divided(seen)?,
                None => {
                    self.undivided(seen)?;
                    self.weigh(look, seen)?;
                }
            }
        }
        self.keeper.used(&self.percentages(look));
        let gone = self
            .watchlist
            .retain(|gpu| look.gpus.iter().any(|seen| seen.observed.uuid == *gpu));
        for change in gone {
            self.changed(look, 0, change)?;
        }
        let mut dying = Vec::new();
        self.each_busy(|id, living| {
            if living.is_killed() {
                dying.push(id);
            }
            let denied = living.is_denied();
            let Some(slice) = &living.slice else { return };
            let ledgers = living.ledgers.iter_mut().zip(&living.job.holdings);
            for (gpu, (ledger, holding)) in ledgers.enumerate() {
                ledger.tell(slice, gpu, holding.grant.memory, denied);
            }
        });
        if self.watchlist.is_curious() {
            self.observer.hurry();
        }
        // What a dying tree has started meanwhile.
        self.round.kills.extend(dying);
        Ok(())
    }

    /// What the driver saw of each GPU's use, where it is shared in slices.
    fn percentages(&self, look: &Look) -> Vec<(u32, u32)> {
        let of = |seen: &Seen| {
            let mut devices = self.devices.iter();
            let device = devices.find(|device| device.gpu.uuid == seen.observed.uuid)?;
            Some((device.gpu.index, device.utilization_percent?))
        };
        let shared = |seen: &&Seen| seen.observed.divided().is_none();
        look.gpus.iter().filter(shared).filter_map(of).collect()
    }

    fn weigh(&mut self, look: &Look, seen: &Seen) -> Result<(), StoreError> {
        let uuid = &seen.observed.uuid;
        let balance = balance(&self.granted(look, seen));
        let mut errors = Vec::new();
        for found in &balance.slices {
            let Some((memory, ledger, _)) = self
                .jobs
                .get_mut(&found.job)
                .and_then(|living| living.ledger_on(uuid))
            else {
                continue;
            };
            match memory {
                Memory::Kept => ledger.update(found),
                // The account keeps what the GPU does not hold.
                _ => ledger.leave(found),
            }
            errors.extend(ledger.mismatch.map(|error| (error, ledger.mismatch_max)));
        }
        if let Some(device) = self
            .devices
            .iter_mut()
            .find(|device| device.gpu.uuid == *uuid)
        {
            self.round.replan |= device.update(seen, balance.foreign);
            let error = errors
                .iter()
                .map(|(error, _)| Bytes::new(error.unsigned_abs()));
            device.mismatch = (!errors.is_empty()).then(|| error.sum());
            let largest = errors.iter().map(|(_, largest)| *largest).max();
            device.mismatch_max = device.mismatch_max.max(largest.unwrap_or_default());
        }
        self.tell_of_accounts_alone(seen)?;
        let suspects: Vec<(Suspect, Limiter)> = balance
            .suspects
            .iter()
            .map(|suspect| {
                let inside = look.insides.get(&suspect.process.pid);
                let limiter = inside.map_or(Limiter::Loaded, |inside| inside.limiter);
                (*suspect, limiter)
            })
            .collect();
        let there: Vec<_> = seen
            .sight
            .processes
            .iter()
            .map(|seen| seen.process)
            .collect();
        let changes = self
            .watchlist
            .look(look.at, uuid, &suspects, &there, &balance.unsure);
        for change in changes {
            self.changed(look, seen.observed.index, change)?;
        }
        Ok(())
    }

    /// What was seen of a GPU, with what the journal has granted of it: a limit that lies in a job's own file says nothing. A job that is
    /// to shrink keeps what it holds in the planner's sums until it has given it up, and one whose memory is aside holds nothing.
    fn granted(&mut self, look: &Look, seen: &Seen) -> Sight {
        let mut sight = seen.sight.clone();
        for slice in &mut sight.slices {
            let Some(living) = self.jobs.get_mut(&slice.job) else {
                continue;
            };
            slice.tampered = living.tampered;
            let holds = living.job.holds();
            let Some((memory, ledger, granted)) = living.ledger_on(&seen.observed.uuid) else {
                continue;
            };
            slice.granted = if holds { granted } else { Bytes::ZERO };
            let lately = ledger.granted.lately(look.at, slice.granted);
            slice.lately = (memory == Memory::Kept).then_some(lately);
        }
        sight
    }

    /// Says once, for each GPU, that the driver does not tell whose memory is whose.
    fn tell_of_accounts_alone(&mut self, seen: &Seen) -> Result<(), StoreError> {
        let uuid = &seen.observed.uuid;
        let processes = &seen.observed.processes;
        let unknown = processes.iter().any(|process| process.used.is_none());
        if unknown && self.unspoken.insert(uuid.clone()) {
            let index = seen.observed.index;
            let text = format!(
                "the driver does not report the memory of each process on GPU {index}: limits there rely on the slices' ledgers"
            );
            tracing::warn!("{text}");
            self.tell(None, "process_memory_unknown", &text)?;
        }
        Ok(())
    }

    fn changed(&mut self, look: &Look, gpu_index: u32, change: Change) -> Result<(), StoreError> {
        match change {
            Change::Accused {
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
                    program: inside::name(process.pid),
                    way: suspect.way,
                    limiter,
                    used: suspect.used,
                    charged: suspect.charged,
                    first_seen: detected - before,
                    detected,
                    over: None,
                    action: self.policy_about(look, &suspect),
                };
                self.accuse(suspect.job, bypass)
            }
            Change::GoesOn { gpu, suspect } => self.goes_on(look, &gpu, &suspect),
            Change::Over { gpu, suspect } => self.over(&gpu, &suspect),
        }
    }

    /// What is to be done about a suspect. Nobody is killed who is not of a job's tree, by the kernel's word.
    fn policy_about(&self, look: &Look, suspect: &Suspect) -> Policy {
        let person = look.people.get(&suspect.process.pid);
        let descends = person.is_some_and(|person| {
            person.process == suspect.process.into()
                && person.kinship == Kinship::Descends(suspect.job)
        });
        match self.config.on_bypass.about(suspect) {
            Policy::Kill if !descends => Policy::Deny,
            policy => policy,
        }
    }

    fn accuse(&mut self, id: JobId, bypass: Bypass) -> Result<(), StoreError> {
        let Some(living) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let after = bypass.detected.duration_since(bypass.first_seen);
        let overdraw = living
            .ledger_on(&bypass.gpu)
            .filter(|_| bypass.way == Way::Overdrawn)
            .map(|(_, ledger, granted)| {
                let held = ledger.driver.map(|held| format!("{} of ", held.human()));
                format!(" ({}{})", held.unwrap_or_default(), granted.human())
            });
        let text = format!(
            "{}: {}{}; detected {} ms after its first observation{}",
            bypass.what(),
            bypass.cause(),
            overdraw.unwrap_or_default(),
            after.as_millis(),
            match bypass.action {
                Policy::Warn => "",
                Policy::Deny => "; further allocations of its slice are refused",
                Policy::Kill => "; the daemon kills it and its job",
            }
        );
        tracing::warn!(job = %id, "{text}");
        self.bypasses[place(bypass.way)] += 1;
        if bypass.is_killed() {
            self.round.shots.push(bypass.process);
        }
        self.store.add_bypass(id, &bypass)?;
        living.job.bypasses.push(bypass);
        self.tell(Some(id), "bypass", &text)
    }

    fn goes_on(&mut self, look: &Look, gpu: &GpuUuid, suspect: &Suspect) -> Result<(), StoreError> {
        let policy = self.policy_about(look, suspect);
        let Some((id, bypass)) = self.lasting(gpu, suspect) else {
            return Ok(());
        };
        bypass.grow(suspect);
        if policy <= bypass.action {
            return Ok(());
        }
        // It has come to take from others what it held within its limit before.
        bypass.action = policy;
        let bypass = bypass.clone();
        self.store.save_bypass(id, &bypass)?;
        if bypass.is_killed() {
            self.round.shots.push(bypass.process);
        }
        let text = format!(
            "{}: {}; the daemon kills it now",
            bypass.what(),
            bypass.cause()
        );
        self.tell(Some(id), "bypass", &text)
    }

    fn over(&mut self, gpu: &GpuUuid, suspect: &Suspect) -> Result<(), StoreError> {
        let Some((id, bypass)) = self.lasting(gpu, suspect) else {
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
        self.tell(Some(id), "bypass_ended", &text)
    }

    fn lasting(&mut self, gpu: &GpuUuid, suspect: &Suspect) -> Option<(JobId, &mut Bypass)> {
        let living = self.jobs.get_mut(&suspect.job)?;
        let same = |bypass: &&mut Bypass| {
            bypass.over.is_none() && bypass.gpu == *gpu && bypass.process == suspect.process.into()
        };
        let found = living.job.bypasses.iter_mut().find(same);
        found.map(|bypass| (suspect.job, bypass))
    }

    /// What an earlier agent found of the jobs that it left.
    pub(super) fn remember_bypasses(&mut self) {
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
                    way: bypass.way,
                    used: bypass.used,
                    charged: bypass.charged,
                    harmful: bypass.is_killed(),
                };
                self.watchlist
                    .remember(bypass.gpu.clone(), suspect, bypass.limiter, 0);
            }
        }
    }

    /// The job is at its end: nothing of it goes on.
    pub(super) fn close_bypasses(&mut self, id: JobId) -> Result<(), StoreError> {
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
    pub(super) fn carry_out(&mut self) {
        for process in std::mem::take(&mut self.round.shots) {
            // Gone by itself is just as well.
            let _ = process.signal(Signal::KILL);
        }
        let mut jobs = std::mem::take(&mut self.round.kills);
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
        let mut tree = below(&dir, launch.process);
        tree.extend(container::processes(&dir));
        tree.extend(dir.group().iter().flat_map(Group::members));
        tree.sort_unstable_by_key(|process| process.pid);
        tree.dedup();
        tree.retain(|process| self.observer.job_of(*process) == Some(id));
        tree
    }
}

/// A way's place among all of them.
pub(super) fn place(way: Way) -> usize {
    reconcile::Way::ALL
        .iter()
        .position(|known| *known == way)
        .unwrap_or_default()
}
