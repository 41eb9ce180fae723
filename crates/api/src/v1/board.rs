//! The board: one small picture of the node for viewers, and the changes between two pictures.
//!
//! A board holds no field that redaction would remove, so that the daemon renders it once for all viewers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::gpu::GpuProcess;
use super::{Folded, GpuAvailable, GpuHeldElsewhere, JobState, LatencyTime, MigSlice, ReasonCode};

/// Most pending jobs of [`BoardWaiting::first`]. The top of the queue on a screen of 24 lines, below its GPUs; a longer
/// list would be computed for each poll of the board.
pub const FIRST_WAITING: usize = 8;

/// Most entries of [`Board::users`] and [`Board::projects`]. The daemon lists the largest ones. One screen. The rest of
/// a large site is in `GET /v1/usage`, so that the board stays small for clients that poll it.
pub const MOST_SHARES: usize = 16;

/// Answer of `GET /v1/board`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Board {
    pub hostname: String,
    pub version: String,
    /// Time of the last change of this board.
    pub changed_at: Timestamp,
    /// Number of the last event.
    pub last_event: u64,
    /// Every GPU, by index.
    pub gpus: Vec<BoardGpu>,
    /// Jobs that hold slices, by number.
    pub jobs: Vec<BoardJob>,
    pub waiting: BoardWaiting,
    /// Queues, in the order in which the daemon serves them.
    pub queues: Vec<BoardQueue>,
    /// Users with jobs; at most 16, the largest shares first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<BoardShare>,
    /// Projects with jobs; at most 16, the largest shares first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub projects: Vec<BoardShare>,
}

/// One GPU of a board.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardGpu {
    pub index: u32,
    pub model: String,
    /// GPU mode: `shared`, `mig`, `exclusive` or `unmanaged`.
    pub mode: String,
    pub usable_bytes: u64,
    /// Memory in use, according to the driver, in bytes.
    pub used_bytes: u64,
    /// Memory allocated to slices, in bytes.
    pub allocated_bytes: u64,
    /// Memory of processes outside any slice, in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unmanaged_bytes: u64,
    /// Share allocated to slices, in thousandths.
    pub share: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization_percent: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<u32>,
    /// The GPU is powered down. The daemon leaves it asleep, and the figures are the last known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asleep: bool,
    /// The largest job that would get room on this GPU now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<GpuAvailable>,
    /// Problem that keeps the GPU from its configured use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Processes outside any slice, the largest first; at most 4.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<GpuProcess>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_elsewhere: Vec<GpuHeldElsewhere>,
    /// MIG instances by slot; absent if the GPU is not in MIG mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<BoardMig>,
}

/// The memory slots of a GPU in MIG mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardMig {
    /// Number of memory slots.
    pub slots: u32,
    pub instances: Vec<BoardInstance>,
}

/// One MIG instance of a board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardInstance {
    /// `2g.10gb`.
    pub profile: String,
    /// First memory slot, from 0.
    pub start: u32,
    /// Number of memory slots.
    pub size: u32,
    /// `held`, `idle`, `unmanaged`, `quarantined` or another state of `MigState`.
    pub state: String,
    /// Job that holds the instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// A job that holds slices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardJob {
    pub id: String,
    /// Handle such as `12_3`, for a job of an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub name: String,
    pub user: String,
    /// Absent: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Absent: `running`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<JobState>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspended: bool,
    /// As in `Brief`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub parked: bool,
    /// Time of its start, or of its submission while it starts; whole seconds.
    pub since: Timestamp,
    /// Division of compute time. Absent: `fair`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// Requests of the last minute, for a job with a latency goal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyTime>,
    pub slices: Vec<BoardSlice>,
    /// Number of refused allocations.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denials: u64,
    /// A process of the job holds memory outside the limiter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bypass: bool,
    /// Time limit: the daemon stops the job at this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_by: Option<Timestamp>,
}

/// A slice of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardSlice {
    /// Index of the GPU.
    pub gpu: u32,
    pub label: String,
    pub limit_bytes: u64,
    pub used_bytes: u64,
    /// Largest use so far, in bytes. Absent: `used_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Share, in thousandths.
    pub share: u16,
    /// Share of the GPU's time that the job used, in thousandths. Absent if it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_used: Option<u16>,
    /// Difference between the driver's figure and the slice's account, in bytes. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mismatch_bytes: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigSlice>,
}

/// Jobs that wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardWaiting {
    pub count: u64,
    /// Number of jobs by the code of their reason; see `ReasonCode`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reasons: BTreeMap<String, u64>,
    /// The first jobs in the order in which the daemon serves them, at most 8. Queued tasks of an array are one item.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first: Vec<BoardWaitingJob>,
}

/// A job that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardWaitingJob {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    pub name: String,
    pub user: String,
    /// Absent: `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// The request as a user types it: `0.25`, `4GiB`, `2`, `2g.10gb`.
    pub request: String,
    /// Time of its submission; whole seconds.
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_code: Option<ReasonCode>,
    /// Expected start, from time limits and earlier runs. The daemon renews it every few seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_start: Option<Timestamp>,
    /// Latest start, from time limits alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_start: Option<Timestamp>,
    /// The tasks of an array that this item stands for; the other fields show the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folded: Option<Folded>,
}

/// A queue of a board.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardQueue {
    pub name: String,
    pub waiting: u32,
    pub running: u32,
}

/// Holdings of a user or a project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardShare {
    pub name: String,
    pub running: u32,
    pub waiting: u32,
    /// Allocated GPUs, in thousandths of one GPU.
    pub share: u64,
    /// Used GPU time, in thousandths of one GPU. Absent if it is not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_used: Option<u64>,
    pub limit_bytes: u64,
    pub used_bytes: u64,
    /// Quota of a project, in thousandths of one GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
}

/// Message of `GET /v1/board?follow=true`: what changed since the message before. The first one is a [`Board`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct BoardChange {
    pub changed_at: Timestamp,
    pub last_event: u64,
    /// GPUs that changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<BoardGpu>,
    /// Indices of GPUs that are no longer there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus_gone: Vec<u32>,
    /// Jobs that are new or changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<BoardJob>,
    /// Numbers of jobs that hold no slice any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs_gone: Vec<String>,
    /// Absent: unchanged, like the fields below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<BoardWaiting>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<BoardQueue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<BoardShare>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub projects: Option<Vec<BoardShare>>,
}

impl Board {
    /// The change that turns `before` into this board; `None` if only the time changed. Both are of one daemon.
    pub fn change_since(&self, before: &Self) -> Option<BoardChange> {
        let change = BoardChange {
            changed_at: self.changed_at,
            last_event: self.last_event,
            gpus: new_in(&self.gpus, &before.gpus, |gpu| gpu.index),
            gpus_gone: gone_from(&self.gpus, &before.gpus, |gpu| gpu.index),
            jobs: new_in(&self.jobs, &before.jobs, |job| job.number()),
            jobs_gone: gone_from(&self.jobs, &before.jobs, |job| job.number())
                .iter()
                .map(u64::to_string)
                .collect(),
            waiting: changed(&self.waiting, &before.waiting),
            queues: changed(&self.queues, &before.queues),
            users: changed(&self.users, &before.users),
            projects: changed(&self.projects, &before.projects),
        };
        let has_changed = self.last_event != before.last_event || !change.is_empty();
        has_changed.then_some(change)
    }

    /// Takes a change of the stream into this board.
    pub fn apply(&mut self, change: BoardChange) {
        (self.changed_at, self.last_event) = (change.changed_at, change.last_event);
        let gone = change.jobs_gone.iter().filter_map(|id| id.parse().ok());
        merge(
            &mut self.jobs,
            change.jobs,
            &gone.collect::<Vec<u64>>(),
            BoardJob::number,
        );
        merge(&mut self.gpus, change.gpus, &change.gpus_gone, |gpu| {
            gpu.index
        });
        put(&mut self.waiting, change.waiting);
        put(&mut self.queues, change.queues);
        put(&mut self.users, change.users);
        put(&mut self.projects, change.projects);
    }
}

impl BoardChange {
    /// Whether it has no figure besides the time and the number of the last event.
    fn is_empty(&self) -> bool {
        let Self {
            changed_at: _,
            last_event: _,
            gpus,
            gpus_gone,
            jobs,
            jobs_gone,
            waiting,
            queues,
            users,
            projects,
        } = self;
        let has_lists =
            !(gpus.is_empty() && gpus_gone.is_empty() && jobs.is_empty() && jobs_gone.is_empty());
        let has_rest =
            waiting.is_some() || queues.is_some() || users.is_some() || projects.is_some();
        !has_lists && !has_rest
    }
}

impl BoardSlice {
    /// Largest use so far, in bytes.
    pub fn peak(&self) -> u64 {
        self.peak_bytes.unwrap_or(self.used_bytes)
    }
}

impl BoardJob {
    /// The handle of this job alone.
    pub fn reference(&self) -> &str {
        self.task.as_deref().unwrap_or(&self.id)
    }

    fn number(&self) -> u64 {
        self.id.parse().unwrap_or(0)
    }
}

impl BoardWaitingJob {
    /// Number of jobs that this item stands for.
    pub fn count(&self) -> u64 {
        self.folded.as_ref().map_or(1, |folded| folded.count.into())
    }

    /// The handle of this job alone.
    pub fn reference(&self) -> &str {
        self.task.as_deref().unwrap_or(&self.id)
    }
}

fn is_zero(figure: &u64) -> bool {
    *figure == 0
}

fn changed<T: Clone + PartialEq>(now: &T, before: &T) -> Option<T> {
    (now != before).then(|| now.clone())
}

fn put<T>(place: &mut T, new: Option<T>) {
    if let Some(new) = new {
        *place = new;
    }
}

fn new_in<T: Clone + PartialEq, K: Ord>(now: &[T], before: &[T], key: impl Fn(&T) -> K) -> Vec<T> {
    let known: BTreeMap<K, &T> = before.iter().map(|one| (key(one), one)).collect();
    let new = now.iter().filter(|one| known.get(&key(one)) != Some(one));
    new.cloned().collect()
}

fn gone_from<T, K: Ord>(now: &[T], before: &[T], key: impl Fn(&T) -> K) -> Vec<K> {
    let now: BTreeMap<K, ()> = now.iter().map(|one| (key(one), ())).collect();
    before
        .iter()
        .map(&key)
        .filter(|key| !now.contains_key(key))
        .collect()
}

fn merge<T, K: Ord + Copy>(all: &mut Vec<T>, new: Vec<T>, gone: &[K], key: impl Fn(&T) -> K) {
    let replaced: Vec<K> = new.iter().map(&key).chain(gone.iter().copied()).collect();
    all.retain(|one| !replaced.contains(&key(one)));
    all.extend(new);
    all.sort_by_key(key);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A board with these GPUs' utilisations, these jobs' used bytes, and so many waiting jobs.
    fn board(gpus: &[u32], jobs: &[(u64, u64)], waiting: u64) -> Board {
        let gpus = gpus.iter().enumerate().map(|(index, utilization)| {
            json!({ "index": index, "model": "A", "mode": "shared", "usable_bytes": 9, "used_bytes": 1,
                "allocated_bytes": 2, "share": 0, "utilization_percent": utilization })
        });
        let jobs = jobs.iter().map(|(id, used)| {
            json!({ "id": id.to_string(), "name": "n", "user": "ana", "since": "2026-01-02T03:04:05Z", "slices": [
                { "gpu": 0, "label": "gpu0", "limit_bytes": 9, "used_bytes": used, "peak_bytes": 9, "share": 100 }
            ] })
        });
        let board = json!({
            "hostname": "lab", "version": "1", "changed_at": "2026-01-02T03:04:05Z", "last_event": 7,
            "gpus": gpus.collect::<Vec<Value>>(), "jobs": jobs.collect::<Vec<Value>>(),
            "waiting": { "count": waiting }, "queues": [{ "name": "default", "waiting": waiting, "running": 1 }],
        });
        serde_json::from_value(board).unwrap()
    }

    #[test]
    fn a_change_turns_any_board_into_any_other_of_the_daemon() {
        let boards = [
            board(&[], &[], 0),
            board(&[0, 5], &[(7, 1), (9, 1), (10, 1)], 0),
            board(&[0, 6], &[(7, 2), (10, 1), (100, 1)], 3),
            board(&[1], &[(2, 2)], 3),
        ];
        for before in &boards {
            for after in &boards {
                let mut seen = before.clone();
                match after.change_since(before) {
                    Some(change) => seen.apply(change),
                    None => assert_eq!(before, after),
                }
                assert_eq!(&seen, after);
            }
        }
    }

    /// Bytes of a full board: 8 GPUs, 64 jobs, waiting jobs. `words`: what each job names besides its name and user.
    fn bytes_of_full_board(name: &str, words: &Value, peak: Option<u64>) -> usize {
        let time = "2026-01-02T03:04:05Z";
        let gpu = |index| {
            json!({ "index": index, "model": "NVIDIA A100-SXM4-80GB", "mode": "shared", "usable_bytes": 84_900_000_000_u64,
                "used_bytes": 80_000_000_000_u64, "allocated_bytes": 84_900_000_000_u64, "share": 1000,
                "utilization_percent": 100, "temperature_celsius": 60, "power_watts": 350 })
        };
        let with_words = |mut job: Value| {
            let words = words.as_object().unwrap().clone();
            job.as_object_mut().unwrap().extend(words);
            job
        };
        let job = |id| {
            with_words(
                json!({ "id": id, "name": name, "user": "ana.lee", "since": time, "slices": [{ "gpu": 7,
                "label": "gpu7.125h", "limit_bytes": 10_600_000_000_u64, "used_bytes": 10_100_000_000_u64, "peak_bytes": peak,
                "share": 125, "share_used": 101 }] }),
            )
        };
        let waiting = |id| {
            with_words(
                json!({ "id": id, "name": name, "user": "ana.lee", "request": "0.25", "since": time,
                "reason": "needs 0.25 of a GPU; at most 0.1 is free", "reason_code": "insufficient", "expected_start": time,
                "latest_start": time }),
            )
        };
        let many = |of: &dyn Fn(String) -> Value, count: u32| -> Vec<Value> {
            (0..count).map(|at| of((10_000 + at).to_string())).collect()
        };
        let share = |name| {
            json!({ "name": name, "running": 8, "waiting": 1000, "share": 1000, "share_used": 900,
                "limit_bytes": 84_900_000_000_u64, "used_bytes": 80_000_000_000_u64 })
        };
        let board: Board = serde_json::from_value(json!({
            "hostname": "lab-1", "version": "0.1.0", "changed_at": time, "last_event": 123_456,
            "gpus": (0..8).map(gpu).collect::<Vec<_>>(), "jobs": many(&job, 64),
            "waiting": { "count": 10_000, "reasons": { "insufficient": 1, "behind": 9_999 },
                "first": many(&waiting, 8) },
            "queues": [{ "name": "default", "waiting": 10_000, "running": 64 }],
            "users": many(&share, 8),
        }))
        .unwrap();
        serde_json::to_vec(&board).unwrap().len()
    }

    #[test]
    fn a_board_of_eight_gpus_and_64_jobs_has_at_most_20_kb() {
        let plain = bytes_of_full_board("train", &json!({}), None);
        assert!(plain <= 20_000, "{plain}");
        // Long names, and jobs that name a queue and a project and use less than before.
        let words = json!({ "queue": "quarter_gpu", "project": "vision" });
        let long = bytes_of_full_board("train-resnet-50-a", &words, Some(10_200_000_000));
        assert!(long <= 25_000, "{long}");
    }

    #[test]
    fn a_change_holds_only_new_figures() {
        let before = board(&[0, 5], &[(7, 1), (9, 1)], 4);
        let after = board(&[0, 6], &[(7, 1), (9, 2)], 4);
        let change = serde_json::to_value(after.change_since(&before)).unwrap();
        assert_eq!(change["gpus"].as_array().unwrap().len(), 1);
        assert_eq!(change["jobs"][0]["id"], "9");
        assert_eq!(
            (&change["waiting"], &change["queues"]),
            (&Value::Null, &Value::Null)
        );
    }
}
