//! Why a job waits, GPU by GPU, and what would start it now.
//!
//! Nothing here is guessed: a change is listed only if the plan, made again with that change, starts the job. How much is
//! tried has a bound, and where that ends the search it is said.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::explain::plan::{Wait, plan, usage_after};
use crate::explain::reason::Reason;
use crate::explain::suggest::smaller_requests;
use crate::mig::occupancy::{MigOccupancy, fit_anew_together};
use crate::mig::{MigProfile, Placement, UnallocatedState};
use crate::model::isolation::Isolation;
use crate::model::order_key::{Top, sort_queue};
use crate::model::queue::Order;
use crate::model::request::{Amount, Request};
use crate::model::slice::Grant;
use crate::model::snapshot::{AllocatedJob, PendingJob, Snapshot};
use crate::placement::fit::{RequestShape, fit, size};
use crate::placement::occupancy::{GpuUsage, Holder, NodeUsage};
use crate::plan::{queue_order, starts};
use crate::units::{Bytes, GpuUuid, JobId, QueueName, Share};

/// All that is known about a job's wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// One line: `needs 1 whole GPU; 2.75 of 3 GPUs in use`.
    pub summary: String,
    /// Every GPU of the node, by index; empty when the job does not wait.
    pub gpus: Vec<WhyGpu>,
    /// The waiting jobs that are served before it, in that order.
    pub jobs_ahead: Vec<JobId>,
    /// Changes that would start it now, cheapest first: `would start now with -g 0.25`.
    pub suggestions: Vec<Suggestion>,
}

/// Something that would start a job now, in words, and the change of the job that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    pub text: String,
    /// `None` for what is no change of the job: the end of another, or another way to start the daemon.
    pub change: Option<SuggestedChange>,
}

/// A change of a waiting job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuggestedChange {
    /// It asks for this amount.
    Amount(Amount),
    /// It waits in this queue, at the place that its age gives it there, and asks for this amount.
    Queue(QueueName, Amount),
}

impl Suggestion {
    /// What no change of the job brings about.
    fn other(text: String) -> Self {
        Self { text, change: None }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

/// One GPU, seen from a waiting job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyGpu {
    pub index: u32,
    pub uuid: GpuUuid,
    /// Every cause that rules it out: `0.75 in use, a whole GPU is needed`; empty when the job would fit there.
    pub failed: Vec<String>,
    pub holders: Vec<WhyHolder>,
}

/// Who holds a GPU or a part of it. `Display` is `#2 quarter_gpu 0.25`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhyHolder {
    pub job: JobId,
    pub queue: QueueName,
    pub grant: Grant,
    /// It holds nothing yet: the room is kept for it, as it is to go on.
    pub is_resuming: bool,
}

impl WhyHolder {
    /// How much it holds there: `0.25`, `1g.5gb@3`.
    pub fn size(&self) -> String {
        match &self.grant.mig {
            Some(mig) => format!("{}@{}", mig.profile, mig.placement.start),
            None => self.grant.share.to_string(),
        }
    }
}

impl fmt::Display for WhyHolder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let due = if self.is_resuming { ", resuming" } else { "" };
        write!(out, "#{} {} {}{due}", self.job, self.queue, self.size())
    }
}

/// Explains a job, as things stand once the plan for this snapshot is carried out; `None` for a job that is not in it.
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
    let board = usage_after(snapshot, &plan.starts);
    Some(Why {
        summary: format!("{reason}{}", disorder(&board, request, reason)),
        gpus: board
            .gpus
            .iter()
            .map(|tile| why_gpu(tile, request, reason))
            .collect(),
        jobs_ahead: behind(&plan.waits, job),
        suggestions: suggestions(snapshot, &board, job, request),
    })
}

fn labels(grants: &[Grant]) -> String {
    grants
        .iter()
        .map(|grant| grant.label.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Where no GPU has room however its instances lay, whether all of them together would have.
fn disorder(board: &NodeUsage<'_>, request: &Request, reason: &Reason) -> &'static str {
    let (Reason::Short(short), RequestShape::Parts { count: 1, .. }) =
        (reason, RequestShape::of(request.amount))
    else {
        return "";
    };
    let carved: Vec<(&MigOccupancy<'_>, MigProfile)> = board
        .gpus
        .iter()
        .filter_map(|tile| {
            let (seats, id) = (tile.mig.as_ref()?, size(tile, request).ok()?.profile?);
            Some((seats, seats.table().profile(id)?.name))
        })
        .collect();
    let seats: Vec<&MigOccupancy<'_>> = carved.iter().map(|(seats, _)| *seats).collect();
    match carved.first() {
        Some((_, profile))
            if !short
                .fragmented
                .iter()
                .any(|(_, obstacle)| obstacle.is_fragmentation)
                && fit_anew_together(&seats, *profile) =>
        {
            "; another layout of the instances over the GPUs would have room"
        }
        _ => "",
    }
}

/// Who is served before the job, less those that hold nobody up.
fn behind(waits: &[Wait], job: JobId) -> Vec<JobId> {
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

fn why_gpu(tile: &GpuUsage<'_>, request: &Request, reason: &Reason) -> WhyGpu {
    let failed = match (fit(tile, request), reason) {
        (Err(misses), _) => misses.iter().map(ToString::to_string).collect(),
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
        index: tile.gpu.index,
        uuid: tile.gpu.uuid.clone(),
        failed,
        holders: tile.holders.iter().map(holder).collect(),
    }
}

/// So much is tried for one answer, in GPUs looked at and jobs asked. With 64 GPUs, 300 jobs on them and 1000 that wait it is enough for
/// everything; where many wait for different amounts under `--backfill` it is not.
const MOST_TRIED: usize = 2_000_000;

/// Plans with changes.
struct Trials {
    job: JobId,
    left: Cell<usize>,
}

impl Trials {
    /// Whether the job starts then; not known to, once enough was tried.
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

/// The snapshot without those who are asked after the job, where they make no difference to it.
fn up_to(snapshot: &Snapshot, job: JobId) -> Snapshot {
    let mut shorter = snapshot.clone();
    if snapshot.order == Order::Strict && snapshot.projects.is_empty() {
        let mut turns = queue_order(snapshot).into_iter();
        let mut counts = vec![0; snapshot.queues.len()];
        for (queue, place) in &mut turns {
            counts[queue] = place + 1;
            if snapshot.queues[queue].waiting[place].job == job {
                break;
            }
        }
        for (queue, count) in shorter.queues.iter_mut().zip(counts) {
            queue.waiting.truncate(count);
        }
    }
    shorter
}

/// Changes that start the job, cheapest first: to its request, to its queue, to the daemon, to other jobs.
fn suggestions(
    snapshot: &Snapshot,
    board: &NodeUsage<'_>,
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

    let found = smaller_requests(board, request)
        .into_iter()
        .find(|other| starts(&asking(snapshot, job, other)));
    texts.extend(found.map(|other| Suggestion {
        text: format!("would start now with {}", other.amount.flag()),
        change: Some(SuggestedChange::Amount(other.amount)),
    }));

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
            let text = match amount != request.amount {
                true => format!("would start now in queue {name} ({})", amount.describe()),
                false => format!("would start now in queue {name}"),
            };
            let change = Some(SuggestedChange::Queue(name.clone(), amount));
            texts.push(Suggestion { text, change });
        }
    }
    if !snapshot.backfill
        && starts(&Snapshot {
            backfill: true,
            ..snapshot.clone()
        })
    {
        let text = "would start now if the daemon ran with --backfill".to_owned();
        texts.push(Suggestion::other(text));
    }
    texts.extend(ends(snapshot, board, starts).map(Suggestion::other));
    texts.extend(
        blocking_instances(snapshot, starts)
            .into_iter()
            .map(Suggestion::other),
    );
    if trials.is_over() {
        let text = "there may be other ways: too many jobs to try all of them".to_owned();
        texts.push(Suggestion::other(text));
    }
    texts
}

/// The MIG instances that nobody here holds and that are in the way: each whose going is enough.
fn blocking_instances(snapshot: &Snapshot, starts: impl Fn(&Snapshot) -> bool) -> Vec<String> {
    let mut texts = Vec::new();
    for (at, gpu) in snapshot.gpus.iter().enumerate() {
        let Some(carving) = &gpu.mig else { continue };
        let others = carving.instances.iter().enumerate();
        for (nth, other) in others.filter(|(_, other)| other.standing != UnallocatedState::Idle) {
            let mut changed = snapshot.clone();
            let left = changed.gpus[at].mig.as_mut();
            left.map(|left| left.instances.remove(nth));
            if starts(&changed) {
                let (standing, label) = (other.standing, carving.table.label(other.placement));
                let index = gpu.index;
                texts.push(format!(
                    "would start once the {standing} {label} on GPU {index} is destroyed"
                ));
            }
        }
    }
    texts
}

/// What a job holds of one GPU.
type HeldPart = (GpuUuid, Share, Bytes, Option<Placement>);

fn parts(held: &AllocatedJob) -> Vec<HeldPart> {
    let part = |grant: &Grant| -> HeldPart {
        let placement = grant.mig.map(|mig| mig.placement);
        (grant.gpu.clone(), grant.share, grant.memory, placement)
    };
    held.grants.iter().map(part).collect()
}

/// The ends of other jobs that start it: of any one, else of some together.
fn ends(
    snapshot: &Snapshot,
    board: &NodeUsage<'_>,
    starts: impl Fn(&Snapshot) -> bool,
) -> Option<String> {
    let start_it = |jobs: &BTreeSet<JobId>| starts(&without(snapshot, jobs));
    let mut held: Vec<JobId> = snapshot.held.iter().map(|held| held.job).collect();
    held.sort_unstable();
    // Outside of projects it is all the same who holds something.
    let mut tried: BTreeMap<Vec<HeldPart>, bool> = BTreeMap::new();
    let mut is_enough = |held: &AllocatedJob| {
        let starts = || start_it(&BTreeSet::from([held.job]));
        match snapshot.projects.is_empty() {
            true => *tried.entry(parts(held)).or_insert_with(starts),
            false => starts(),
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
    // All of them, less each that is not needed; those on crowded GPUs are spared first, so that few are left.
    let mut together = BTreeSet::from_iter(held.iter().copied());
    if !start_it(&together) {
        return None;
    }
    held.sort_by_key(|job| Reverse(crowd(board, *job)));
    for job in held {
        together.remove(&job);
        if !start_it(&together) {
            together.insert(job);
        }
    }
    let together: Vec<JobId> = together.into_iter().collect();
    Some(format!("would start when {} end", listed(&together, "and")))
}

/// Among how many holders a job is on the fullest of its GPUs.
fn crowd(board: &NodeUsage<'_>, job: JobId) -> usize {
    let holds = |tile: &&GpuUsage<'_>| tile.holders.iter().any(|holder| holder.job == job);
    board
        .gpus
        .iter()
        .filter(holds)
        .map(|tile| tile.holders.len())
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

/// The snapshot in which the job waits in this queue instead; nothing puts it first there.
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
