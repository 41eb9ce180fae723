//! The state of the extender: what it sees, counts and assumes, and the choice of a node.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use divvy_packing::learned::Fallback;

use super::chooser::{BestFitReason, Chooser};
use super::history::{History, RequestKind};
use super::outcome::Outcome;
use super::pod::PodFacts;
use super::status::Status;
use super::trainer::Lesson;
use super::view::View;
use crate::extender::metrics::METRICS;

/// A table is trained anew after this time, if requests came meanwhile. Requests follow the day of their users: half a
/// day would learn the night alone, a week would be late.
const OLD: Duration = Duration::from_secs(24 * 3600);

/// Everything that a decision needs.
pub struct State {
    pub view: View,
    pub chooser: Chooser,
    pub history: History,
    /// UIDs of pods that are in the history.
    counted: BTreeSet<String>,
    /// Whether an earlier process left the history.
    pub is_read: bool,
    pub training: TrainingState,
}

/// When a table is due.
pub struct TrainingState {
    is_wanted: bool,
    pub least_history: u64,
    /// Requests that were counted since the last training.
    since: u64,
    last: Option<(Instant, Vec<String>)>,
}

fn little_history(seen: u64, needed: u64) -> BestFitReason {
    BestFitReason::Check(Fallback::TooFewRequests { seen, needed })
}

impl State {
    /// Without objects and history. `is_wanted`: whether the policy may be a learned table.
    pub fn new(is_wanted: bool, least_history: u64) -> Self {
        let reason = if is_wanted {
            little_history(0, least_history)
        } else {
            BestFitReason::Configured
        };
        METRICS.policy(Some(&reason));
        Self {
            view: View::default(),
            chooser: Chooser::new(reason),
            history: History::default(),
            counted: BTreeSet::new(),
            is_read: false,
            training: TrainingState {
                is_wanted,
                least_history,
                since: 0,
                last: None,
            },
        }
    }

    /// All objects are listed: pods that an earlier process has counted are not counted again.
    pub fn begin(&mut self) {
        self.view.cluster(Instant::now());
        if self.is_read {
            let bound = self.view.pods().filter(|pod| pod.node.is_some());
            self.counted = bound.map(|pod| pod.uid.clone()).collect();
        }
        self.count_all();
    }

    pub fn choose(
        &mut self,
        pod: &PodFacts,
        nodes: &[String],
        now: Instant,
    ) -> (Option<String>, Outcome) {
        // Scored again: the scheduler could not do what it wanted to.
        let freed = self.view.assumed.forget(&pod.uid);
        self.view.note_all(freed);
        self.view.cluster(now);
        let shape = match self.view.shape(pod) {
            Ok(shape) => shape,
            Err(why) => return (None, why.into()),
        };
        self.count(&pod.uid, RequestKind::of(&shape, self.view.models()));
        let candidates: Vec<usize> = nodes
            .iter()
            .filter_map(|node| self.view.index_of(node))
            .collect();
        let chosen = self.chooser.choose(
            self.view.last_cluster(),
            self.view.epoch(),
            self.view.models(),
            &shape,
            &candidates,
        );
        let Some(chosen) = chosen else {
            return (None, Outcome::NoRoom);
        };
        let node = self.view.last_cluster().nodes()[chosen].spec.name.clone();
        // A pod that the API server does not know takes no room.
        if self.view.is_waiting(&pod.key, &pod.uid) {
            let changed = self
                .view
                .assumed
                .assume(&pod.uid, &node, shape, pod.requests, now);
            self.view.note_all(changed);
        }
        METRICS.assumed(self.view.assumed.len());
        (Some(node), Outcome::Chosen)
    }

    fn count(&mut self, uid: &str, kind: RequestKind) {
        if self.counted.insert(uid.to_owned()) {
            self.history.count(kind);
            self.training.since += 1;
        }
    }

    /// Counts pods that were not scored: the scheduler calls no extender where at most one node is left.
    fn count_all(&mut self) {
        let models = self.view.models();
        let (mut found, mut there) = (Vec::new(), BTreeSet::new());
        for pod in self.view.pods().filter(|pod| pod.may_want_gpus()) {
            if self.counted.contains(&pod.uid) {
                there.insert(pod.uid.clone());
            } else if let Ok((shape, _)) = self.view.request(pod) {
                found.push((pod.uid.clone(), RequestKind::of(&shape, models)));
            }
        }
        self.counted = there;
        for (uid, kind) in found {
            self.count(&uid, kind);
        }
    }

    /// Looks whether a training is due, and says what it needs.
    pub fn lesson(&mut self, now: Instant) -> Option<Lesson> {
        self.count_all();
        self.view.cluster(now);
        METRICS.assumed(self.view.assumed.len());
        METRICS.history(
            self.history.requests(),
            self.view.last_cluster().nodes().len(),
        );
        if !self.training.is_wanted {
            return None;
        }
        let models = self.view.models().to_vec();
        let mix = self.history.mix(&models);
        let (requests, needed) = (mix.requests(), self.training.least_history);
        let has_table = self.training.last.is_some();
        if requests < needed {
            if !has_table {
                self.chooser.explain(little_history(requests, needed));
            }
            return None;
        }
        let is_due = self.training.last.as_ref().is_none_or(|(at, of)| {
            let is_old = now.duration_since(*at) >= OLD && self.training.since > 0;
            is_old || *of != models || self.training.since >= needed.max(requests / 4)
        });
        if !is_due || models.is_empty() {
            return None;
        }
        if !has_table {
            self.chooser.explain(BestFitReason::Training);
        }
        METRICS.policy(self.chooser.reason());
        self.training.since = 0;
        self.training.last = Some((now, models.clone()));
        let nodes = self.view.last_cluster().nodes().iter();
        Some(Lesson {
            last: self.history.last_mix(&models),
            mix,
            specs: nodes.map(|node| node.spec.clone()).collect(),
            models,
        })
    }

    pub fn status(&self) -> Status {
        let reason = self.chooser.reason();
        let cluster = self.view.last_cluster();
        Status {
            policy: if reason.is_some() {
                "best-fit"
            } else {
                "learned"
            }
            .to_owned(),
            reason: reason.map(ToString::to_string),
            requests: self.history.requests(),
            kinds: self.history.kinds(),
            nodes: cluster.nodes().len(),
            gpu_milli: cluster.capacity_milli(),
            free_gpu_milli: cluster.free_milli(),
            assumed: self.view.assumed.len(),
        }
    }
}
