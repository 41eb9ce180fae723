//! Queries: the state in the form of the API.

pub(in crate::controller) mod board;
pub(in crate::controller) mod caller;
pub mod estimate;
pub(in crate::controller) mod exec_target;
pub mod folds;
pub mod job_page;
pub mod job_summary;
pub mod metrics;
pub(in crate::controller) mod mig_preview;
pub mod protocols;
pub mod queries;
pub mod summary;
pub mod view;
pub mod why;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use divvy_api::v1::{self, Error, ErrorCode, ReasonCode};
use divvy_api::version;
use divvy_core::{Bytes, Enforcement, Gpu, GpuUuid, HeldElsewhere, JobId, JobState, Wait, advise};
use divvy_ledger::Snapshot;
use jiff::Timestamp;

use super::query::metrics::{DaemonStats, GpuFacts, NO_CODE, Omitted, Page};
use super::query::view::JobView;
use super::state::estimate::StartEstimator;
use crate::compute::ComputeUsage;
use crate::controller::admission::{array, dependencies, projects};
use crate::controller::effects::Effects;
use crate::controller::halt::journal_error;
use crate::controller::io::Io;
use crate::controller::lifecycle::{confirm, idle, offload, park_policy, planner_input};
use crate::controller::mig::{self, capacity};
use crate::controller::observe::unjournaled;
use crate::controller::reference::{self, JobRef};
use crate::controller::request::Milestone;
use crate::controller::runtime::ActiveJob;
use crate::controller::state::slice_usage::SliceUsage;
use crate::controller::state::{DiskState, GpuState, State};
use crate::controller::{claims, disk_full, state};
use crate::gpu::Device;
use crate::gpu::outside::OutsideProcess;
use crate::host::clock::{Instant, now};
use crate::model::bypass::Bypass;
use crate::model::job::{Allocation, Job};
use crate::model::oom;
use crate::model::usage::GpuTimeTotals;

/// One job, active or ended.
///
/// # Errors
/// [`ErrorCode::NotFound`], and [`ErrorCode::Conflict`] for a name of several jobs.
pub fn job(state: &State, io: &Io, reference: &str) -> Result<v1::Job, Error> {
    let id = reference::find(&state.jobs, io, reference)?;
    job_to_api(state, io, id)
}

/// The same, with the estimator of its start.
///
/// # Errors
/// As `Queries::job`.
pub fn job_with_estimate(
    state: &State,
    io: &Io,
    reference: &str,
) -> Result<(v1::Job, Option<StartEstimator>), Error> {
    let id = reference::find(&state.jobs, io, reference)?;
    let job = job_to_api(state, io, id)?;
    let waits = job.state == v1::JobState::Queued;
    let input = || estimate::input(state, io);
    let estimator = waits.then(|| StartEstimator { id, input: input() });
    Ok((job, estimator))
}

pub(super) fn job_to_api(state: &State, io: &Io, id: JobId) -> Result<v1::Job, Error> {
    if let Some(active) = state.jobs.active.get(&id) {
        return Ok(active_job_to_api(state, io, active));
    }
    match io.store.job(id).map_err(journal_error)? {
        Some(job) => {
            let records = Some(state.jobs.dir(&io.config.home, id));
            let seen = JobView {
                records,
                ..view(state, io, &job, None, None)
            };
            Ok(seen.into_api(&io.config.home))
        }
        None => Err(Error::new(
            ErrorCode::NotFound,
            format!("there is no job {id}"),
        )),
    }
}

pub(super) fn active_job_to_api(state: &State, io: &Io, active: &ActiveJob) -> v1::Job {
    active_job_view(state, io, active).into_api(&io.config.home)
}

pub(super) fn active_job_view(state: &State, io: &Io, active: &ActiveJob) -> JobView {
    active_job_view_of(state, io, active, snapshot(active).as_ref())
}

/// The same with a ledger that was read before.
pub(super) fn active_job_view_of(
    state: &State,
    io: &Io,
    active: &ActiveJob,
    ledger: Option<&Snapshot>,
) -> JobView {
    let job = &active.job;
    let now = ledger.map(|ledger| LiveUsage {
        ledger,
        slice_usage: active.slice_usage(),
    });
    JobView {
        records: (job.state != JobState::Queued).then(|| state.jobs.dir(&io.config.home, job.id)),
        idle_s: active.idle_for().map(|idle| idle.as_secs()),
        ..view(state, io, job, now.as_ref(), state.jobs.waits.get(&job.id))
    }
}

/// A job in the form of the API.
pub fn to_api(
    state: &State,
    io: &Io,
    job: &Job,
    now: Option<&LiveUsage<'_>>,
    wait: Option<&Wait>,
) -> v1::Job {
    view(state, io, job, now, wait).into_api(&io.config.home)
}

/// What the controller knows of a job, active or not.
pub fn view(
    state: &State,
    io: &Io,
    job: &Job,
    now: Option<&LiveUsage<'_>>,
    wait: Option<&Wait>,
) -> JobView {
    let holds = !job.state.grants().is_empty();
    let is_away = holds && !job.holds();
    let holdings = job.allocations.iter().filter(|_| !is_away);
    let slices = holdings.enumerate().map(|(gpu, holding)| {
        let usage = now.map(|now| now.ledger.usage(gpu));
        let slice_usage = now.and_then(|now| now.slice_usage.get(gpu)).copied();
        let traces = holding.stats;
        // A MIG instance has its own memory, and the driver reports its use.
        let found = mig::view::found_in(&state.mig, &holding.grant).filter(|_| holds);
        let unseen = slice_usage.unwrap_or_default().unaccounted.get();
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
                None => now.map_or(0, |now| processes_on(now.ledger, gpu)),
            },
            denials: usage.map_or(traces.denied, |usage| usage.denied),
            last_denied_bytes: usage.map_or(traces.last_denied.map(Bytes::get), last),
            enforcement: enforcement(state, job, holding).to_owned(),
            enforced_since: (holds
                .then(|| state.jobs.limits.in_force(job.id, &holding.grant.gpu))
                .flatten())
            .map(|(_, since)| since),
            device_uuid: state.mig.visible_uuid(&holding.grant),
            mig: mig::view::mig_slice(&state.mig, &state.gpus, &holding.grant),
            memory_driver_bytes: match found {
                Some(found) => Some(found.used().get()),
                None => slice_usage
                    .and_then(|slice_usage| slice_usage.driver)
                    .map(Bytes::get),
            },
            memory_mismatch_bytes: slice_usage.and_then(|slice_usage| slice_usage.mismatch),
            memory_mismatch_max_bytes: slice_usage
                .map_or(traces.mismatch_max, |slice_usage| slice_usage.mismatch_max)
                .get(),
            memory_unaccounted_bytes: unseen,
            memory_unlisted: state.gpus.unlisted_of(&holding.grant.gpu, job.id),
            memory_target_bytes: holding.goal.map(|goal| goal.memory.get()),
            share_target: holding.goal.map(|goal| goal.share.thousandths()),
            memory_recent_peak_bytes: usage.map(|usage| usage.recent_peak.max(usage.used())),
        }
    });
    let held_up = || {
        dependencies::block_reason(&state.jobs, &state.disk, job)
            .or_else(|| confirm::confirmation_block_reason(&state.jobs, job))
    };
    let held_up = || held_up().or_else(|| offload::offload_block_reason(&state.jobs, job));
    JobView {
        slices: slices.collect(),
        compute_time: (holds.then(|| io.sensors.usage(job.id)).flatten()).map(ComputeUsage::to_api),
        alarm_count: now
            .map(|now| now.ledger.alarms())
            .filter(|count| *count > 0),
        wait: wait.cloned(),
        block_reason: wait.is_none().then(held_up).flatten(),
        idle: idle::idle_rule(io, job),
        idle_s: None,
        records: None,
        claim: claims::view::job_claim(io, job),
        job: job.clone(),
    }
}

/// The refused allocations of a job.
///
/// # Errors
/// As `Queries::job`.
pub fn oom(state: &State, io: &Io, reference: &str) -> Result<v1::Oom, Error> {
    let id = reference::find(&state.jobs, io, reference)?;
    let job = job_to_api(state, io, id)?;
    let active = state.jobs.active.get(&id);
    let written = active
        .and_then(|active| Some((active, active.slice()?)))
        .and_then(|(active, slice)| {
            let (denials, _) = slice.denials().ok()?;
            Some(oom::to_api(&denials, &active.job.allocations))
        });
    let records = match written {
        Some(records) => records,
        None => io.store.denials(id).map_err(journal_error)?,
    };
    let needed = records
        .iter()
        .filter_map(|record| record.sufficient_limit_bytes);
    let count = u32::try_from(job.slices.len())
        .ok()
        .and_then(NonZeroU32::new);
    let suggested = needed.max().zip(count).and_then(|(needed, count)| {
        let gpus: Vec<Gpu> = state.gpus.devices.iter().map(Device::unoccupied).collect();
        advise::with_head_room(Bytes::new(needed), count, &gpus)
    });
    Ok(v1::Oom {
        suggested: suggested.map(Into::into),
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

/// The program of a job, or of the jobs of an array, without its options.
///
/// # Errors
/// As `Queries::job`.
pub fn program(state: &State, io: &Io, meant: JobRef) -> Result<String, Error> {
    let id = match meant {
        JobRef::Job { id, .. } => id,
        JobRef::Array(array) => array::representative_job(&state.jobs, io, array)?,
    };
    let job = job_to_api(state, io, id)?;
    Ok(divvy_core::command::program(&job.command))
}

/// The GPUs that Divvy manages and that are available.
pub fn served(state: &State) -> Vec<divvy_core::Gpu> {
    let gpus = capacity::gpus_now(state).into_iter();
    gpus.filter(|gpu| gpu.mode != divvy_core::Mode::Unmanaged)
        .collect()
}

pub fn gpus(state: &State, io: &Io) -> Vec<v1::Gpu> {
    gpus_of(state, io, &ledgers(state))
}

/// The jobs that hold slices, by number, each with its ledger as it is now.
pub(super) fn ledgers(state: &State) -> Vec<JobLedger<'_>> {
    let holders = state.jobs.active.values();
    let holders = holders.filter(|active| active.job.holds());
    holders
        .map(|active| (&**active, snapshot(active)))
        .collect()
}

/// The GPUs, with ledgers that were read before.
pub(super) fn gpus_of(state: &State, io: &Io, ledgers: &[JobLedger<'_>]) -> Vec<v1::Gpu> {
    let available = available(state);
    state
        .gpus
        .devices
        .iter()
        .map(|device| gpu_to_api(state, io, device, ledgers, &available))
        .collect()
}

/// The largest job that each GPU has room for now.
fn available(state: &State) -> BTreeMap<GpuUuid, v1::GpuAvailable> {
    let found = divvy_core::available(capacity::gpus_now(state), planner_input::held(&state.jobs));
    let to_api = |found: divvy_core::Available| {
        let available = v1::GpuAvailable {
            share: found.share.map_or(0, divvy_core::Share::thousandths),
            memory_bytes: found.memory.get(),
        };
        (found.gpu, available)
    };
    found.into_iter().map(to_api).collect()
}

pub fn list_queues(state: &State, io: &Io) -> Vec<v1::Queue> {
    let input = estimate::input(state, io);
    let snapshot = input.snapshot();
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
                .and_then(|head| state.jobs.waits.get(&head))
                .map(|wait| wait.reason.to_string()),
        }
    });
    shown.collect()
}

fn gpu_to_api(
    state: &State,
    io: &Io,
    device: &crate::gpu::Device,
    ledgers: &[JobLedger<'_>],
    available: &BTreeMap<GpuUuid, v1::GpuAvailable>,
) -> v1::Gpu {
    let (mut slices, mut bypass_pids) = (Vec::new(), Vec::new());
    for (active, ledger) in ledgers {
        let here = |bypass: &&Bypass| bypass.over.is_none() && bypass.gpu == device.gpu.uuid;
        let lasting = active.job.bypasses.iter().filter(here);
        bypass_pids.extend(lasting.map(|bypass| bypass.process.pid));
        for (gpu, holding) in active.job.allocations.iter().enumerate() {
            if holding.grant.gpu == device.gpu.uuid {
                let usage = ledger.as_ref().map(|ledger| ledger.usage(gpu));
                let slice_usage = active.slice_usage().get(gpu).copied().unwrap_or_default();
                let found =
                    mig::view::found_in(&state.mig, &holding.grant).map(|found| found.used().get());
                slices.push(v1::GpuSlice {
                    job: active.job.id.to_string(),
                    user: active.job.spec.user.clone(),
                    label: holding.grant.label.clone(),
                    memory_limit_bytes: holding.grant.memory.get(),
                    memory_used_bytes: match (found, usage) {
                        (Some(found), _) => found,
                        (None, usage) => {
                            usage.map_or(0, |usage| used(&usage, slice_usage.unaccounted.get()))
                        }
                    },
                    share: holding.grant.share.thousandths(),
                    memory_driver_bytes: found.or_else(|| slice_usage.driver.map(Bytes::get)),
                    memory_mismatch_bytes: slice_usage.mismatch,
                    compute_time: io.sensors.usage(active.job.id).map(ComputeUsage::to_api),
                    enforcement: enforcement(state, &active.job, holding).to_owned(),
                    mig: mig::view::mig_slice(&state.mig, &state.gpus, &holding.grant),
                    unknown: false,
                });
            }
        }
    }
    slices.extend(unjournaled::slices_of_unknown(
        &state.jobs,
        &device.gpu.uuid,
    ));
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
        memory_unmanaged_bytes: gpu.unmanaged_outside().get(),
        memory_unlisted_bytes: gpu.unlisted_outside().get(),
        memory_unlisted_holder: (device.unlisted_holder)
            .map(|holder| holder.to_api(gpu.unlisted_outside())),
        share_allocated: slices.iter().map(|slice| slice.share).sum(),
        utilization_percent: device.utilization_percent,
        temperature_celsius: device.temperature_celsius,
        context_overhead_bytes: device.overhead.get(),
        slices,
        unmanaged_pids: device.unmanaged.clone(),
        enforcement: match gpu.mode {
            divvy_core::Mode::Mig => Enforcement::Mig.name().to_owned(),
            _ => gpu.enforcement.name().to_owned(),
        },
        enforcement_reason: (device.driver_limit.as_ref().err())
            .filter(|_| gpu.mode != divvy_core::Mode::Mig)
            .map(ToString::to_string),
        process_memory_known: device.reports_process_memory,
        memory_mismatch_bytes: device.ledger_error.sum.map(Bytes::get),
        memory_mismatch_max_bytes: device.ledger_error.max.get(),
        bypass_pids,
        mig: mig::view::mig_of(state, &gpu.uuid),
        problem: match device.gpu.away {
            true => Some("it does not respond".to_owned()),
            false => match &gpu.out_of_service {
                Some(why) => Some(why.clone()),
                None => capacity::trouble_of(&state.mig, device),
            },
        },
        out_of_service: (device.out.as_ref()).map(|out| out.to_api(device.mode.assigned)),
        lost: device.gpu.away.then(|| v1::GpuLost {
            mode: device.mode.assigned.name().to_owned(),
            for_good: device.is_lost,
        }),
        held_elsewhere: gpu
            .elsewhere
            .iter()
            .map(|held| held_elsewhere(gpu, held))
            .collect(),
        power_watts: (io.sensors.power().get(&gpu.index))
            .and_then(|power| Some(power.milliwatts? / 1000)),
        asleep: device.asleep,
        processes: device.outside.iter().map(OutsideProcess::to_api).collect(),
        available: available.get(&gpu.uuid).cloned(),
    }
}

fn held_elsewhere(gpu: &divvy_core::Gpu, held: &HeldElsewhere) -> v1::GpuHeldElsewhere {
    v1::GpuHeldElsewhere {
        holder: held.holder.clone(),
        share: u16::try_from(held.share.min(1000)).unwrap_or(1000),
        memory_bytes: held.memory.min(gpu.usable()).get(),
    }
}

/// The content of the metrics page.
pub fn metrics_page(state: &State, fx: &Effects, io: &Io) -> Page {
    Page {
        node: self::node(state, io),
        gpus: self::gpus(state, io),
        jobs: Vec::new(),
        glances: summary::started_job_summaries(state, io),
        queues: list_queues(state, io),
        bypasses: state.gpus.bypasses,
        migs: state.mig.counts,
        gpu_facts: gpu_facts(state),
        daemon_stats: project_metrics(state, fx, io),
        gpu_time: GpuTimeTotals::default(),
        omitted: Omitted::default(),
        now: now(),
    }
}

fn gpu_facts(state: &State) -> GpuFacts {
    let devices = || state.gpus.devices.iter();
    let faulty = devices().filter(|device| device.gpu.away || device.has_fault());
    let made = state.mig.instances().values();
    let made = made.filter_map(|instance| instance.info.as_ref());
    GpuFacts {
        buses: devices()
            .map(|device| (device.gpu.index, device.bus.clone()))
            .collect(),
        instances: made.map(|made| (made.uuid.to_string(), made.id)).collect(),
        power: BTreeMap::new(),
        faulty: faulty.map(|device| device.gpu.index).collect(),
    }
}

/// Why the node cannot start jobs; `None` if it can.
pub fn not_ready_reason(gpus: &GpuState, disk: &DiskState) -> Option<String> {
    if let Some(why) = &gpus.observation_error {
        return Some(format!("the GPUs cannot be observed: {why}"));
    }
    if let Some(why) = disk_full::disk_is_full(disk) {
        return Some(why);
    }
    let lost = |device: &&Device| device.is_managed && device.gpu.away;
    let served = gpus
        .devices
        .iter()
        .filter(|device| device.is_managed)
        .count();
    let lost = gpus.devices.iter().filter(lost).count();
    (lost > 0 && lost == served).then(|| "no GPU responds".to_owned())
}

/// Whether more free GPUs would let such a job start, once its turn comes. Other jobs wait for users.
fn waits_for_gpus(code: ReasonCode) -> bool {
    use ReasonCode::{ArrayLimit, Confirmation, Dependency, Held};
    !matches!(code, Held | Dependency | ArrayLimit | Confirmation)
}

fn project_metrics(state: &State, fx: &Effects, io: &Io) -> DaemonStats {
    // Every code has a series, also without jobs: a series that appears with its first job has no increase.
    let names = ReasonCode::ALL.map(ReasonCode::name).into_iter();
    let mut pending: BTreeMap<_, _> = names.chain([NO_CODE]).map(|name| (name, 0)).collect();
    let mut oldest = BTreeMap::<String, Timestamp>::new();
    for active in state.jobs.active.values() {
        let job = &active.job;
        if view::state(&job.state) != v1::JobState::Queued {
            continue;
        }
        let code = board::reason_code(state, active);
        *pending
            .entry(code.map_or(NO_CODE, ReasonCode::name))
            .or_default() += 1;
        if code.is_some_and(waits_for_gpus) {
            let since = job.waits_since();
            let first = oldest.entry(job.spec.queue.to_string()).or_insert(since);
            *first = since.min(*first);
        }
    }
    let projects = projects::list_with_entitled(state, io);
    let entitled = projects.iter();
    let entitled = entitled.map(|(project, count)| (project.name.clone(), *count));
    let (held, used) = (state.jobs.active.iter(), state.jobs.active.iter());
    let energy = state.jobs.active.iter();
    let instant = Instant::now();
    DaemonStats {
        entitled: entitled.collect(),
        projects: projects.into_iter().map(|(project, _)| project).collect(),
        counted: fx.counters.clone(),
        held: held
            .map(|(id, active)| (id.to_string(), active.activity.allocated_ns))
            .filter(|(_, held)| *held > 0)
            .collect(),
        energy: energy
            .map(|(id, active)| (id.to_string(), active.activity.millijoules))
            .filter(|(_, millijoules)| *millijoules > 0)
            .collect(),
        recent_use: used
            .filter_map(|(id, active)| {
                let share = active.activity.recent.share(instant)?;
                active.job.holds().then(|| (id.to_string(), share))
            })
            .collect(),
        pending,
        oldest,
        parked: park_policy::parked(&state.jobs),
        disk_free: io.sensors.free_space().ok().map(|room| room.bytes.get()),
        disk_is_full: state.disk.full.is_some(),
    }
}

pub fn node(state: &State, io: &Io) -> v1::Node {
    let jobs = &state.jobs;
    v1::Node {
        hostname: io.config.node.hostname.clone(),
        version: version::program(),
        protocols: protocols::protocols(),
        pid: std::process::id(),
        driver_version: io.config.node.driver_version.clone(),
        simulated: io
            .config
            .node
            .simulated
            .as_ref()
            .map(|simulated| simulated.models.clone()),
        order: io.config.schedule.order.name().to_owned(),
        backfill: io.config.schedule.backfill,
        preemption: io.config.schedule.preemption.name().to_owned(),
        home: io.config.home.state().display().to_string(),
        system: !io.config.rules.get().is_private(),
        on_bypass: io.config.confinement.on_bypass.to_string(),
        claims_only: io.config.claims_only,
        start_warnings: io.config.node.start_warnings.clone(),
        config_warnings: Vec::new(),
        not_ready: not_ready_reason(&state.gpus, &state.disk),
        listen_error: None,
        front_end: io.config.front_end.clone(),
        config_file: (io.config.configured.file()).map(|path| path.display().to_string()),
        default_image: (io.config.containers.default.as_ref())
            .map(|container| container.image.clone()),
        journal: Some(v1::Journal {
            recovered: jobs.recovered,
            unknown: state::unjournaled::list_unknown(jobs),
        }),
        caller: None,
    }
}

/// A job, and the ledger of its slices.
pub(super) type JobLedger<'a> = (&'a ActiveJob, Option<Snapshot>);

/// What the daemon knows of a job's slice besides the journal.
pub struct LiveUsage<'a> {
    ledger: &'a Snapshot,
    slice_usage: &'a [SliceUsage],
}

/// The memory that counts against a limit.
pub(super) fn used(usage: &divvy_ledger::Usage, unseen: u64) -> u64 {
    let charged = usage.charged.saturating_add(usage.overhead);
    charged.saturating_add(unseen)
}

/// The ledger of a job's slice; `None` while its program does not run.
pub(super) fn snapshot(active: &ActiveJob) -> Option<Snapshot> {
    if matches!(active.job.state, JobState::Starting { .. }) {
        return None;
    }
    active.slice()?.read().ok()
}

/// What holds an allocation's limit now, or did until the job ended: the driver's limit of a container comes after its
/// start.
fn enforcement(state: &State, job: &Job, allocation: &Allocation) -> &'static str {
    let limits = &state.jobs.limits;
    let is_coming = allocation.enforcement == Enforcement::Driver
        && !job.state.grants().is_empty()
        && limits.in_force(job.id, &allocation.grant.gpu).is_none();
    match is_coming {
        true => Enforcement::Limiter.name(),
        false => allocation.enforcement.name(),
    }
}

fn processes_on(ledger: &Snapshot, gpu: usize) -> u32 {
    let used = |process: &divvy_ledger::ProcessUsage| {
        process.state != divvy_ledger::ProcessState::Dead
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

/// The job that decides the array's result: one that has not ended, else the first by index that failed, else the
/// first.
///
/// # Errors
/// [`ErrorCode::NotFound`] if the journal has no job of the array.
pub fn verdict_of_array(state: &State, io: &Io, array: JobId) -> Result<v1::Job, Error> {
    if let Some(JobRef::Job { id, .. }) = array::next_of_array(&state.jobs, array, Milestone::Ended)
    {
        return job_to_api(state, io, id);
    }
    let verdict = io.store.verdict_of_array(array).map_err(journal_error)?;
    job_to_api(state, io, verdict.unwrap_or(array))
}
