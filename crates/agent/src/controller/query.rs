//! The state as the API shows it.

pub(super) mod caller;
pub mod estimate;
pub(super) mod exec_target;
pub mod metrics;
pub(super) mod mig_preview;
pub mod reference;
pub mod summary;
pub mod view;
pub mod why;

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::v1::{self, Error, ErrorCode, JobState, ReasonCode};
use divvy_core::{Bytes, Grant, JobId, JobState as Life, Wait};
use divvy_ledger::Snapshot;

use super::mig;
use super::observe::reconcile::SliceUsage;
use super::query::estimate::StartEstimator;
use super::query::metrics::{DaemonStats, Page};
use super::query::reference::JobRef;
use super::query::view::JobView;
use super::{ActiveJob, Controller};
use crate::compute::ComputeUsage;
use crate::gpu::Device;
use crate::host::clock::now;
use crate::journal::StoreError;
use crate::model::bypass::Bypass;
use crate::model::job::Job;
use crate::model::oom;

/// What holds memory limits, where the hardware does not.
pub(super) const ENFORCEMENT: &str = "interposer";

impl Controller {
    /// The newest job of this name; else the newest of this task of a front end, `clearml:4f2…`, which begins the keys under which
    /// its jobs were submitted.
    pub(super) fn named_or_keyed(&self, reference: &str) -> Result<Option<JobId>, StoreError> {
        let named = self.store.newest_named(reference)?;
        match named.is_none() && reference.contains(':') {
            true => self.store.newest_keyed(reference),
            false => Ok(named),
        }
    }

    /// One job, living or ended.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`], and [`ErrorCode::Conflict`] for a name that several have.
    pub fn job(&mut self, reference: &str) -> Result<v1::Job, Error> {
        let id = self.find(reference).map_err(journal_error)??;
        self.job_to_api(id)
    }

    /// The same, with what there is to know about when it starts.
    ///
    /// # Errors
    /// As [`Controller::job`].
    pub fn job_with_estimate(
        &mut self,
        reference: &str,
    ) -> Result<(v1::Job, Option<StartEstimator>), Error> {
        let id = self.find(reference).map_err(journal_error)??;
        let job = self.job_to_api(id)?;
        let waits = job.state == JobState::Queued;
        let foresight = waits.then(|| self.start_estimator(id, |_| {}));
        Ok((job, foresight))
    }

    pub(super) fn job_to_api(&self, id: JobId) -> Result<v1::Job, Error> {
        if let Some(living) = self.jobs.get(&id) {
            return Ok(self.active_job_to_api(living));
        }
        match self.store.job(id).map_err(journal_error)? {
            Some(job) => {
                let records = Some(self.job_dir(id));
                let seen = JobView {
                    records,
                    ..self.view(&job, None, None)
                };
                Ok(seen.into_api(&self.config.home))
            }
            None => Err(Error::new(
                ErrorCode::NotFound,
                format!("there is no job {id}"),
            )),
        }
    }

    /// Numbers of the jobs that [`Controller::glances`] shows, for adding the others to them.
    pub fn living_ids(&self) -> BTreeSet<JobId> {
        self.jobs.keys().copied().collect()
    }

    pub(super) fn active_job_to_api(&self, living: &ActiveJob) -> v1::Job {
        self.active_job_view(living).into_api(&self.config.home)
    }

    pub(super) fn active_job_view(&self, living: &ActiveJob) -> JobView {
        let job = &living.job;
        let now = snapshot(living).map(|account| LiveUsage {
            account,
            ledgers: &living.slice_usage,
        });
        JobView {
            records: (job.state != Life::Queued).then(|| self.job_dir(job.id)),
            idle_s: living.idle_for().map(|idle| idle.as_secs()),
            ..self.view(job, now.as_ref(), self.waits.get(&job.id))
        }
    }

    /// A job in the API's words.
    pub fn to_api(&self, job: &Job, now: Option<&LiveUsage<'_>>, wait: Option<&Wait>) -> v1::Job {
        self.view(job, now, wait).into_api(&self.config.home)
    }

    /// What the cycle knows of a job, living or not.
    pub fn view(&self, job: &Job, now: Option<&LiveUsage<'_>>, wait: Option<&Wait>) -> JobView {
        let holds = !job.state.grants().is_empty();
        let is_away = holds && !job.holds();
        let holdings = job.allocations.iter().filter(|_| !is_away);
        let slices = holdings.enumerate().map(|(gpu, holding)| {
            let usage = now.map(|now| now.account.usage(gpu));
            let ledger = now.and_then(|now| now.ledgers.get(gpu)).copied();
            let traces = holding.stats;
            // An instance's memory is its own, and the driver says how much of it is used.
            let found = self.found_in(&holding.grant).filter(|_| holds);
            let unseen = ledger.unwrap_or_default().unaccounted.get();
            let last =
                |usage: divvy_ledger::Usage| (usage.denied > 0).then_some(usage.last_denied_size);
            v1::Slice {
                label: holding.grant.label.clone(),
                gpu_uuid: holding.grant.gpu.to_string(),
                gpu_index: holding.grant.index,
                memory_limit_bytes: holding.grant.memory.get(),
                share: holding.grant.share.thousandths(),
                memory_used_bytes: match found {
                    Some(found) => found.used().get(),
                    None => usage.map_or(0, |usage| used(&usage, unseen)),
                },
                memory_peak_bytes: usage.map_or(traces.peak.get(), |usage| usage.peak),
                processes: match found {
                    Some(found) => u32::try_from(found.processes()).unwrap_or(u32::MAX),
                    None => now.map_or(0, |now| processes_on(&now.account, gpu)),
                },
                denials: usage.map_or(traces.denied, |usage| usage.denied),
                last_denied_bytes: usage.map_or(traces.last_denied.map(Bytes::get), last),
                enforcement: enforcement(&holding.grant).to_owned(),
                device_uuid: self.migs.visible_uuid(&holding.grant),
                mig: self.mig_slice(&holding.grant),
                memory_driver_bytes: match found {
                    Some(found) => Some(found.used().get()),
                    None => ledger.and_then(|ledger| ledger.driver).map(Bytes::get),
                },
                memory_mismatch_bytes: ledger.and_then(|ledger| ledger.mismatch),
                memory_mismatch_max_bytes: ledger
                    .map_or(traces.mismatch_max, |ledger| ledger.mismatch_max)
                    .get(),
                memory_unaccounted_bytes: unseen,
                memory_target_bytes: holding.goal.map(|goal| goal.memory.get()),
                share_target: holding.goal.map(|goal| goal.share.thousandths()),
            }
        });
        let held_up = || {
            self.block_reason(job)
                .or_else(|| self.confirmation_block_reason(job))
        };
        let held_up = || held_up().or_else(|| self.offload_block_reason(job));
        JobView {
            slices: slices.collect(),
            compute_time: (holds
                .then(|| self.compute_scheduler.usage(job.id))
                .flatten())
            .map(ComputeUsage::to_api),
            alarm_count: now
                .map(|now| now.account.alarms())
                .filter(|count| *count > 0),
            wait: wait.cloned(),
            block_reason: wait.is_none().then(held_up).flatten(),
            idle: self.idle_rule(job),
            idle_s: None,
            records: None,
            claim: self.job_claim(job),
            job: job.clone(),
        }
    }

    /// What a job's refusals of GPU memory looked like.
    ///
    /// # Errors
    /// As [`Controller::job`].
    pub fn oom(&mut self, reference: &str) -> Result<v1::Oom, Error> {
        let id = self.find(reference).map_err(journal_error)??;
        let job = self.job_to_api(id)?;
        let living = self.jobs.get(&id);
        let written = living
            .and_then(|living| Some((living, living.slice.as_ref()?)))
            .and_then(|(living, slice)| {
                let (denials, _) = slice.denials().ok()?;
                Some(oom::to_api(&denials, &living.job.allocations))
            });
        let records = match written {
            Some(records) => records,
            None => self.store.denials(id).map_err(journal_error)?,
        };
        Ok(v1::Oom {
            denials: job
                .slices
                .iter()
                .fold(0, |sum, slice| sum.saturating_add(slice.denials)),
            job: job.id,
            name: job.name,
            state: job.state,
            records,
        })
    }

    /// What a job, or each of an array, runs, without its options.
    ///
    /// # Errors
    /// As [`Controller::job`].
    pub fn program(&mut self, meant: JobRef) -> Result<String, Error> {
        let id = match meant {
            JobRef::Job { id, .. } => id,
            JobRef::Array(array) => self.representative_job(array)?,
        };
        let job = self.job_to_api(id)?;
        Ok(divvy_core::advise::program(&job.command))
    }

    /// The GPUs that are served.
    pub fn served(&self) -> Vec<divvy_core::Gpu> {
        let gpus = self.gpus_now().into_iter();
        gpus.filter(|gpu| gpu.mode != divvy_core::Mode::Unmanaged)
            .collect()
    }

    pub fn gpus(&self) -> Vec<v1::Gpu> {
        let ledgers: Vec<(&ActiveJob, Option<Snapshot>)> = self
            .jobs
            .values()
            .filter(|living| living.job.holds())
            .map(|living| (&**living, snapshot(living)))
            .collect();
        self.devices
            .iter()
            .map(|device| self.gpu_to_api(device, &ledgers))
            .collect()
    }

    pub fn list_queues(&self) -> Vec<v1::Queue> {
        let snapshot = self.snapshot();
        let shown = snapshot.queues.iter().zip(1..).map(|(queue, priority)| {
            let running = snapshot
                .held
                .iter()
                .filter(|held| held.queue == queue.spec.name)
                .count();
            let head = queue.waiting.first().map(|waiting| waiting.job);
            v1::Queue {
                name: queue.spec.name.to_string(),
                priority,
                amount: queue.spec.amount.map(Into::into),
                waiting: u32::try_from(queue.waiting.len()).unwrap_or(u32::MAX),
                running: u32::try_from(running).unwrap_or(u32::MAX),
                head: head.map(|head| head.to_string()),
                reason: head
                    .and_then(|head| self.waits.get(&head))
                    .map(|wait| wait.reason.to_string()),
            }
        });
        shown.collect()
    }

    fn gpu_to_api(
        &self,
        device: &crate::gpu::Device,
        ledgers: &[(&ActiveJob, Option<Snapshot>)],
    ) -> v1::Gpu {
        let (mut slices, mut bypass_pids) = (Vec::new(), Vec::new());
        for (living, account) in ledgers {
            let here = |bypass: &&Bypass| bypass.over.is_none() && bypass.gpu == device.gpu.uuid;
            let lasting = living.job.bypasses.iter().filter(here);
            bypass_pids.extend(lasting.map(|bypass| bypass.process.pid));
            for (gpu, holding) in living.job.allocations.iter().enumerate() {
                if holding.grant.gpu == device.gpu.uuid {
                    let usage = account.as_ref().map(|account| account.usage(gpu));
                    let ledger = living.slice_usage.get(gpu).copied().unwrap_or_default();
                    let found = self
                        .found_in(&holding.grant)
                        .map(|found| found.used().get());
                    slices.push(v1::GpuSlice {
                        job: living.job.id.to_string(),
                        label: holding.grant.label.clone(),
                        memory_limit_bytes: holding.grant.memory.get(),
                        memory_used_bytes: match (found, usage) {
                            (Some(found), _) => found,
                            (None, usage) => {
                                usage.map_or(0, |usage| used(&usage, ledger.unaccounted.get()))
                            }
                        },
                        share: holding.grant.share.thousandths(),
                        memory_driver_bytes: found.or_else(|| ledger.driver.map(Bytes::get)),
                        memory_mismatch_bytes: ledger.mismatch,
                        compute_time: self
                            .compute_scheduler
                            .usage(living.job.id)
                            .map(ComputeUsage::to_api),
                        enforcement: enforcement(&holding.grant).to_owned(),
                        mig: self.mig_slice(&holding.grant),
                        unknown: false,
                    });
                }
            }
        }
        slices.extend(self.slices_of_unknown(&device.gpu.uuid));
        let gpu = &device.gpu;
        v1::Gpu {
            uuid: gpu.uuid.to_string(),
            index: gpu.index,
            model: gpu.model.clone(),
            mode: gpu.mode.name().to_owned(),
            memory_total_bytes: gpu.total.get(),
            memory_usable_bytes: gpu.usable().get(),
            memory_allocated_bytes: slices.iter().map(|slice| slice.memory_limit_bytes).sum(),
            memory_used_bytes: device.used.get(),
            memory_unmanaged_bytes: gpu.foreign.get(),
            share_allocated: slices.iter().map(|slice| slice.share).sum(),
            utilization_percent: device.utilization_percent,
            temperature_celsius: device.temperature_celsius,
            context_overhead_bytes: device.overhead.get(),
            slices,
            unmanaged_pids: device.unmanaged.clone(),
            enforcement: match gpu.mode {
                divvy_core::Mode::Mig => mig::ENFORCEMENT.to_owned(),
                _ => ENFORCEMENT.to_owned(),
            },
            process_memory_known: device.reports_process_memory,
            memory_mismatch_bytes: device.mismatch.map(Bytes::get),
            memory_mismatch_max_bytes: device.mismatch_max.get(),
            bypass_pids,
            mig: self.mig_of(&gpu.uuid),
            problem: match device.gpu.away {
                true => Some("it does not respond".to_owned()),
                false => self.trouble_of(device),
            },
            lost: device.gpu.away.then(|| v1::GpuLost {
                mode: device.assigned.name().to_owned(),
                for_good: device.is_lost,
            }),
        }
    }

    /// Everything that a page of metrics shows.
    pub fn metrics(&self) -> Page {
        Page {
            node: self.node(),
            gpus: self.gpus(),
            jobs: Vec::new(),
            glances: self.job_summaries(),
            queues: self.list_queues(),
            bypasses: self.bypasses,
            migs: self.migs.counts,
            buses: {
                let devices = self.devices.iter();
                devices
                    .map(|device| (device.gpu.index, device.bus.clone()))
                    .collect()
            },
            instances: {
                let made = self.migs.instances().values();
                let made = made.filter_map(|instance| instance.info.as_ref());
                made.map(|made| (made.uuid.to_string(), made.id)).collect()
            },
            power: BTreeMap::new(),
            daemon_stats: self.project_metrics(),
            lost: {
                let lost = self.devices.iter().filter(|device| device.gpu.away);
                lost.map(|device| device.gpu.index).collect()
            },
            now: now(),
        }
    }

    /// Why nothing can be given out; `None` where it can.
    pub fn not_ready_reason(&self) -> Option<String> {
        if let Some(why) = &self.observation_error {
            return Some(format!("the GPUs cannot be observed: {why}"));
        }
        if let Some(why) = self.disk_is_full() {
            return Some(why);
        }
        let lost = |device: &&Device| device.is_managed && device.gpu.away;
        let served = self
            .devices
            .iter()
            .filter(|device| device.is_managed)
            .count();
        let lost = self.devices.iter().filter(lost).count();
        (lost > 0 && lost == served).then(|| "no GPU responds".to_owned())
    }

    fn project_metrics(&self) -> DaemonStats {
        let mut pending = BTreeMap::new();
        for wait in self.waits.values() {
            let word = ReasonCode::from(&wait.reason).name();
            *pending.entry(word).or_default() += 1;
        }
        let on_hold = self.jobs.values();
        let on_hold = on_hold.filter(|living| living.job.on_hold().is_some());
        match on_hold.count() {
            0 => {}
            count => drop(pending.insert(ReasonCode::Held.name(), count as u64)),
        }
        let held = self.jobs.iter();
        DaemonStats {
            projects: self.list_projects(),
            counted: self.counters.clone(),
            held: held
                .map(|(id, living)| (id.to_string(), living.activity.allocated_ns))
                .filter(|(_, held)| *held > 0)
                .collect(),
            pending,
            disk_free: self.disk.free_space().ok().map(|room| room.bytes.get()),
            disk_is_full: self.disk_full.is_some(),
        }
    }

    pub fn node(&self) -> v1::Node {
        v1::Node {
            hostname: self.config.hostname.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            driver_version: self.config.driver_version.clone(),
            simulated: self
                .config
                .simulated
                .as_ref()
                .map(|simulated| simulated.models.clone()),
            order: match self.config.order {
                divvy_core::Order::Strict => "strict".to_owned(),
                divvy_core::Order::Fairness => "fairness".to_owned(),
            },
            backfill: self.config.backfill,
            home: self.config.home.state().display().to_string(),
            system: !self.config.rules.is_private(),
            on_bypass: self.config.on_bypass.to_string(),
            front_end: self.config.front_end.clone(),
            default_image: (self.config.containers.default.as_ref())
                .map(|container| container.image.clone()),
            journal: Some(v1::Journal {
                recovered: self.recovered,
                unknown: self.list_unknown(),
            }),
        }
    }
}

/// What is known of a job's slice besides what is stored.
pub struct LiveUsage<'a> {
    account: Snapshot,
    ledgers: &'a [SliceUsage],
}

/// What counts against a limit.
fn used(usage: &divvy_ledger::Usage, unseen: u64) -> u64 {
    let charged = usage.charged.saturating_add(usage.overhead);
    charged.saturating_add(unseen)
}

/// What a job's slice uses; nothing yet while its program does not run.
fn snapshot(living: &ActiveJob) -> Option<Snapshot> {
    if matches!(living.job.state, Life::Starting { .. }) {
        return None;
    }
    living.slice.as_ref()?.read().ok()
}

/// What holds a grant's limit.
fn enforcement(grant: &Grant) -> &'static str {
    match grant.mig {
        Some(_) => mig::ENFORCEMENT,
        None => ENFORCEMENT,
    }
}

fn processes_on(ledger: &Snapshot, gpu: usize) -> u32 {
    let used = |process: &divvy_ledger::ProcessUsage| {
        process.state == divvy_ledger::ProcessState::Live
            && process
                .gpus
                .get(gpu)
                .is_some_and(|gpu| gpu.charged > 0 || gpu.overhead > 0)
    };
    u32::try_from(
        ledger
            .processes()
            .iter()
            .filter(|process| used(process))
            .count(),
    )
    .unwrap_or(u32::MAX)
}

pub(super) fn journal_error(error: StoreError) -> Error {
    Error::new(ErrorCode::Internal, crate::host::error::error_chain(&error))
}
