//! Explanation of one job's wait: the constraints of each GPU, and the changes that would start the job now.
//!
//! A change is listed only if the planner, asked with that change, starts the job. The number of trials is bounded, and
//! the answer says where the bound ended the search.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::explain::plan::{Wait, node_after, plan};
use crate::explain::reason::Reason;
use crate::explain::suggest::smaller_requests;
use crate::mig::occupancy::{MigOccupancy, fit_after_pool_repack};
use crate::mig::{MigProfile, Placement, UnallocatedState};
use crate::model::isolation::Isolation;
use crate::model::order_key::{Top, sort_queue};
use crate::model::queue::Order;
use crate::model::request::{Amount, Request};
use crate::model::slice::{Grant, show_labels};
use crate::model::snapshot::{AllocatedJob, PendingJob, Snapshot};
use crate::placement::fit::{RequestShape, fit, size};
use crate::placement::occupancy::{GpuUsage, Holder, NodeUsage};
use crate::plan::{queue_order, starts};
use crate::units::{Bytes, GpuUuid, JobId, QueueName, Share};

/// The explanation of a job's wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// One line: `needs 1 whole GPU; 2.75 of 3 GPUs in use`.
    pub summary: String,
    /// Every GPU of the node, by index; empty when the job does not wait.
    pub gpus: Vec<WhyGpu>,
    /// The pending jobs ahead of it, in scheduling order.
    pub jobs_ahead: Vec<JobId>,
    /// Changes that would start it now, cheapest first: `would start now with -g 0.25`.
    pub suggestions: Vec<Suggestion>,
}

/// A change that would start a job now, in words and, if it changes the job itself, as data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    pub text: String,
    /// `None` for a change elsewhere: the end of another job, or another flag of the daemon.
    pub change: Option<SuggestedChange>,
}

/// A change of a pending job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuggestedChange {
    /// Request this amount.
    Amount(Amount),
    /// Move to this queue, to the place that its age gives it there, and request this amount.
    Queue(QueueName, Amount),
}

impl Suggestion {
    /// A change that is not one of the job.
    fn other(text: String) -> Self {
        Self { text, change: None }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// One GPU from the point of view of a pending job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyGpu {
    pub index: u32,
    pub uuid: GpuUuid,
    /// Every unmet constraint: `0.75 in use, a whole GPU needed`; empty when the job would fit there.
    pub failed: Vec<String>,
    pub holders: Vec<WhyHolder>,
}

/// A job that holds a GPU or a part of it. `Display` is `#2 quarter_gpu 0.25`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyHolder {
    pub job: JobId,
    pub queue: QueueName,
    pub grant: Grant,
    /// It holds nothing yet: the room is reserved for it, as it resumes.
    pub is_resuming: bool,
}

impl WhyHolder {
    /// The size of its grant: `0.25`, `1g.5gb@3`.
    pub fn size(&self) -> String {
        match &self.grant.mig {
            Some(mig) => format!("{}@{}", mig.profile, mig.placement.start),
            None => self.grant.share.to_string(),
        }
    }
}

impl fmt::Display for WhyHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = if self.is_resuming { ", resuming" } else { "" };
        write!(out, "#{} {} {}{suffix}", self.job, self.queue, self.size())
    }
}

/// Explains a job as of the moment after the plan for this snapshot; `None` for a job that is not in the snapshot.
pub fn why(snapshot: &Snapshot, job: JobId) -> Option<Why> {
    if let Some(held) = snapshot.held.iter().find(|held| held.job == job) {
        let summary = format!("holds {}", labels(&held.grants));
        return Some(Why {
            summary,
            ..Why::default()
        });
    }
    let plan = plan(snapshot);
    if let Some(start) = plan.starts.iter().find(|start| start.job == job) {
        let summary = format!("starts now on {}", labels(&start.grants));
        return Some(Why {
            summary,
            ..Why::default()
        });
    }
    let reason = &plan.waits.iter().find(|wait| wait.job == job)?.reason;
    let (queue, place) = snapshot.place_of(job)?;
    let PendingJob { request, .. } = &snapshot.queues[queue].waiting[place];
    let node = node_after(snapshot, &plan.starts);
    Some(Why {
        summary: format!("{reason}{}", pool_fragmentation(&node, request, reason)),
        gpus: node
            .gpus
            .iter()
            .map(|usage| why_gpu(usage, request, reason))
            .collect(),
        jobs_ahead: jobs_ahead(&plan.waits, job),
        suggestions: suggestions(snapshot, &node, job, request),
    })
}

fn labels(grants: &[Grant]) -> String {
    show_labels(grants.iter().map(|grant| grant.label.as_str()))
}

/// Continues the reason where no single GPU has room in any layout, but all GPUs together would.
fn pool_fragmentation(node: &NodeUsage<'_>, request: &Request, reason: &Reason) -> &'static str {
    let (Reason::Short(short), RequestShape::Parts { count: 1, .. }) =
        (reason, RequestShape::of(request.amount))
    else {
        return "";
    };
    let candidates: Vec<(&MigOccupancy<'_>, MigProfile)> = node
        .gpus
        .iter()
        .filter_map(|usage| {
            let (mig, id) = (usage.mig.as_ref()?, size(usage, request).ok()?.profile?);
            Some((mig, mig.table().profile(id)?.name))
        })
        .collect();
    let gpus: Vec<&MigOccupancy<'_>> = candidates.iter().map(|(mig, _)| *mig).collect();
    match candidates.first() {
        Some((_, profile))
            if !short
                .fragmented
                .iter()
                .any(|(_, obstacle)| obstacle.is_fragmentation)
                && fit_after_pool_repack(&gpus, *profile) =>
        {
            "; another layout of the instances over the GPUs would have room"
        }
        _ => "",
    }
}

/// The jobs considered before this one, without those that delay no other job.
fn jobs_ahead(waits: &[Wait], job: JobId) -> Vec<JobId> {
    let before = waits.iter().take_while(|wait| wait.job != job);
    before
        .filter(|wait| {
            !matches!(
                wait.reason,
                Reason::Never(_) | Reason::Quota(_) | Reason::BehindQuota(_)
            )
        })
        .map(|wait| wait.job)
        .collect()
}

fn why_gpu(usage: &GpuUsage<'_>, request: &Request, reason: &Reason) -> WhyGpu {
    let failed = match (fit(usage, request), reason) {
        (Err(unmet), _) => unmet.iter().map(ToString::to_string).collect(),
        (Ok(_), Reason::WouldDelay(ahead)) => vec![format!("reserved for #{}", ahead.job)],
        (Ok(_), _) => Vec::new(),
    };
    let holder = |holder: &Holder| WhyHolder {
        job: holder.job,
        queue: holder.queue.clone(),
        grant: holder.grant.clone(),
        is_resuming: holder.is_reserved,
    };
    WhyGpu {
        index: usage.gpu.index,
        uuid: usage.gpu.uuid.clone(),
        failed,
        holders: usage.holders.iter().map(holder).collect(),
    }
}

/// The bound of trials for one answer, in GPUs looked at and jobs considered. It covers every trial with 64 GPUs, 300
/// running and 1000 pending jobs, but not many pending jobs of different amounts under backfill. Enough for the sizes
/// of users; each further one is another round of the planner. Each further one takes another round of the planner, and
/// the first ones differ most.
const MOST_TRIED: usize = 2_000_000;

/// Trial plans of changed snapshots, up to a bound.
struct Trials {
    job: JobId,
    left: Cell<usize>,
}

impl Trials {
    /// Whether the job starts in the changed snapshot; `false` beyond the bound.
    fn starts(&self, changed: &Snapshot) -> bool {
        if self.is_over() {
            return false;
        }
        let (starts, work) = starts(changed, self.job);
        let waiting: usize = changed.queues.iter().map(|queue| queue.waiting.len()).sum();
        let work = work + waiting + changed.held.len();
        self.left.update(|left| left.saturating_sub(work));
        starts
    }

    fn is_over(&self) -> bool {
        self.left.get() == 0
    }
}

/// The snapshot without the jobs behind this one, where they make no difference to it. A job that yields may be passed
/// by those that follow it and yield, too: they stay.
fn up_to(snapshot: &Snapshot, job: JobId) -> Snapshot {
    let mut shorter = snapshot.clone();
    if snapshot.order == Order::Strict && snapshot.projects.is_empty() {
        let mut turns = queue_order(snapshot).into_iter();
        let mut counts = vec![0; snapshot.queues.len()];
        for (queue, place) in &mut turns {
            let waiting = &snapshot.queues[queue].waiting;
            let this = &waiting[place];
            counts[queue] = place + 1;
            if this.job == job {
                let passes = |other: &&PendingJob| {
                    this.yields && other.yields && other.owner.priority == this.owner.priority
                };
                counts[queue] += waiting[place + 1..].iter().take_while(passes).count();
                break;
            }
        }
        for (queue, count) in shorter.queues.iter_mut().zip(counts) {
            queue.waiting.truncate(count);
        }
    }
    shorter
}

/// Changes that start the job, cheapest first: of its request, its queue, the daemon, other jobs.
fn suggestions(
    snapshot: &Snapshot,
    node: &NodeUsage<'_>,
    job: JobId,
    request: &Request,
) -> Vec<Suggestion> {
    let trials = Trials {
        job,
        left: Cell::new(MOST_TRIED),
    };
    let starts = |changed: &Snapshot| trials.starts(changed);
    let whole = snapshot;
    let snapshot = &up_to(snapshot, job);
    let mut texts = Vec::new();
    // Behind all others: a program may not run with so little.
    let mut much_smaller = Vec::new();

    let found = smaller_requests(node, request)
        .into_iter()
        .find(|other| starts(&asking(snapshot, job, other)));
    if let Some(amount) = found.map(|other| other.amount) {
        let flag = amount.flag();
        let change = Some(SuggestedChange::Amount(amount));
        if is_less_than_half(amount, request.amount, node) {
            much_smaller.push(Suggestion {
                text: format!(
                    "if less is enough: would start now with {flag}{}",
                    instead(request)
                ),
                change,
            })
        } else {
            texts.push(Suggestion {
                text: format!("would start now with {flag}"),
                change,
            })
        }
    }

    if !request.on.is_empty() {
        let anywhere = Request {
            on: Vec::new(),
            ..request.clone()
        };
        if starts(&asking(snapshot, job, &anywhere)) {
            texts.push(Suggestion::other(
                "would start now without --gpus-on".to_owned(),
            ));
        }
    }
    let starts_with = |request: &Request| starts(&asking(snapshot, job, request));
    if request.isolation != Isolation::Any {
        let any = Request {
            isolation: Isolation::Any,
            ..request.clone()
        };
        if starts_with(&any) {
            let text = format!("would start now without --isolation {}", request.isolation);
            texts.push(Suggestion::other(text));
        }
    }
    if request.exact {
        let nominal = Request {
            exact: false,
            ..request.clone()
        };
        if starts_with(&nominal) {
            let text = "would start now without --gpu-memory-exact".to_owned();
            texts.push(Suggestion::other(text));
        }
    }
    for (index, queue) in snapshot.queues.iter().enumerate() {
        let amount = queue.spec.amount.unwrap_or(request.amount);
        if starts(&moved(whole, job, index, &request.with_amount(amount))) {
            let name = &queue.spec.name;
            let text = if amount != request.amount {
                format!("would start now in queue {name} ({})", amount.describe())
            } else {
                format!("would start now in queue {name}")
            };
            let change = Some(SuggestedChange::Queue(name.clone(), amount));
            if is_less_than_half(amount, request.amount, node) {
                much_smaller.push(Suggestion {
                    text: format!("if less is enough: {text}{}", instead(request)),
                    change,
                })
            } else {
                texts.push(Suggestion { text, change })
            }
        }
    }
    if !snapshot.backfill
        && starts(&Snapshot {
            backfill: true,
            ..snapshot.clone()
        })
    {
        let text = "would start now if the daemon had the key backfill = true".to_owned();
        texts.push(Suggestion::other(text));
    }
    texts.extend(ends(snapshot, node, starts).map(Suggestion::other));
    texts.extend(
        blocking_instances(snapshot, starts)
            .into_iter()
            .map(Suggestion::other),
    );
    texts.extend(much_smaller);
    if trials.is_over() {
        let text = "there may be other ways: too many jobs to try all of them".to_owned();
        texts.push(Suggestion::other(text));
    }
    texts
}

/// `, instead of 4 whole GPUs`.
fn instead(request: &Request) -> String {
    format!(", instead of {}", request.amount.describe())
}

/// Whether an amount is less than half of another, in parts of the largest GPU.
fn is_less_than_half(amount: Amount, of: Amount, node: &NodeUsage<'_>) -> bool {
    let largest = node.gpus.iter().map(|usage| usage.gpu);
    let Some(gpu) = largest.max_by_key(|gpu| gpu.usable()) else {
        return false;
    };
    let share = |memory| u64::from(gpu.share_of(memory).unwrap_or(Share::FULL).thousandths());
    let parts = |amount| match amount {
        Amount::Share(share) => u64::from(share.thousandths()),
        Amount::Memory(memory) => share(memory),
        Amount::Whole(count) | Amount::Range { min: count, .. } => 1000 * u64::from(count.get()),
        Amount::Shares { count, share } => u64::from(share.thousandths()) * u64::from(count.get()),
        Amount::Mig(profile) => share(profile.nominal()),
    };
    2 * parts(amount) < parts(of)
}

/// Unused MIG instances of which the removal alone starts the job.
fn blocking_instances(snapshot: &Snapshot, starts: impl Fn(&Snapshot) -> bool) -> Vec<String> {
    let mut texts = Vec::new();
    for (at, gpu) in snapshot.gpus.iter().enumerate() {
        let Some(inventory) = &gpu.mig else { continue };
        let others = inventory.instances.iter().enumerate();
        for (nth, other) in others.filter(|(_, other)| other.standing != UnallocatedState::Idle) {
            let mut changed = snapshot.clone();
            let left = changed.gpus[at].mig.as_mut();
            left.map(|left| left.instances.remove(nth));
            if starts(&changed) {
                let (standing, label) = (other.standing, inventory.table.label(other.placement));
                let index = gpu.index;
                texts.push(format!(
                    "would start once the {standing} {label} on GPU {index} is destroyed"
                ));
            }
        }
    }
    texts
}

/// What a job holds of one GPU, without its label.
type HeldPart = (GpuUuid, Share, Bytes, Option<Placement>);

fn parts(held: &AllocatedJob) -> Vec<HeldPart> {
    let part = |grant: &Grant| -> HeldPart {
        let placement = grant.mig.map(|mig| mig.placement);
        (grant.gpu.clone(), grant.share, grant.memory, placement)
    };
    held.grants.iter().map(part).collect()
}

/// The ends of other jobs that start the job: of any single one, otherwise of a set.
fn ends(
    snapshot: &Snapshot,
    node: &NodeUsage<'_>,
    starts: impl Fn(&Snapshot) -> bool,
) -> Option<String> {
    let start_it = |jobs: &BTreeSet<JobId>| starts(&without(snapshot, jobs));
    let mut held: Vec<JobId> = snapshot.held.iter().map(|held| held.job).collect();
    held.sort_unstable();
    // Without projects and limits of users only the held parts matter, so equal holders are tried once.
    let mut tried: BTreeMap<Vec<HeldPart>, bool> = BTreeMap::new();
    let mut is_enough = |held: &AllocatedJob| {
        let starts = || start_it(&BTreeSet::from([held.job]));
        if snapshot.projects.is_empty() && snapshot.user_limits.is_empty() {
            *tried.entry(parts(held)).or_insert_with(starts)
        } else {
            starts()
        }
    };
    let mut any: Vec<JobId> = snapshot
        .held
        .iter()
        .filter(|held| is_enough(held))
        .map(|held| held.job)
        .collect();
    any.sort_unstable();
    match any[..] {
        [] => {}
        [one] => return Some(format!("would start when #{one} ends")),
        [a, b, c, _, _, ..] => {
            let others = any.len() - 3;
            return Some(format!(
                "would start when any one of #{a}, #{b}, #{c} or {others} others ends"
            ));
        }
        _ => {
            return Some(format!(
                "would start when any one of {} ends",
                listed(&any, "or")
            ));
        }
    }
    // Start from all jobs and drop each that is not needed. Jobs on crowded GPUs are dropped first, so that few remain.
    let mut together = BTreeSet::from_iter(held.iter().copied());
    if !start_it(&together) {
        return None;
    }
    held.sort_by_key(|job| Reverse(most_neighbours(node, *job)));
    for job in held {
        together.remove(&job);
        if !start_it(&together) {
            together.insert(job);
        }
    }
    let together: Vec<JobId> = together.into_iter().collect();
    Some(format!("would start when {} end", listed(&together, "and")))
}

/// The number of holders on the fullest GPU of a job.
fn most_neighbours(node: &NodeUsage<'_>, job: JobId) -> usize {
    let holds = |usage: &&GpuUsage<'_>| usage.holders.iter().any(|holder| holder.job == job);
    node.gpus
        .iter()
        .filter(holds)
        .map(|usage| usage.holders.len())
        .max()
        .unwrap_or(0)
}

/// `#1, #2 and #3`.
fn listed(jobs: &[JobId], last: &str) -> String {
    let (end, rest) = jobs.split_last().expect("at least two jobs");
    let rest: Vec<String> = rest.iter().map(|job| format!("#{job}")).collect();
    format!("{} {last} #{end}", rest.join(", "))
}

fn asking(snapshot: &Snapshot, job: JobId, request: &Request) -> Snapshot {
    let mut changed = snapshot.clone();
    for waiting in changed
        .queues
        .iter_mut()
        .flat_map(|queue| &mut queue.waiting)
    {
        if waiting.job == job {
            waiting.request = request.clone();
        }
    }
    changed
}

/// The snapshot with the job in this queue instead, without being put first there.
fn moved(snapshot: &Snapshot, job: JobId, to: usize, request: &Request) -> Snapshot {
    let mut changed = snapshot.clone();
    let mut taken = None;
    for queue in &mut changed.queues {
        taken = (queue
            .waiting
            .extract_if(.., |waiting| waiting.job == job)
            .last())
        .or(taken);
    }
    let Some(mut waiting) = taken else {
        return changed;
    };
    let is_other = snapshot.place_of(job).is_none_or(|(queue, _)| queue != to);
    if is_other {
        waiting.turn.top = Top::No;
    }
    waiting.request = request.clone();
    let its = &mut changed.queues[to].waiting;
    its.push(waiting);
    sort_queue(its);
    changed
}

fn without(snapshot: &Snapshot, ended: &BTreeSet<JobId>) -> Snapshot {
    let mut changed = snapshot.clone();
    changed.held.retain(|held| !ended.contains(&held.job));
    changed
}
