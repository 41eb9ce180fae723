//! Pods that were just scored: they count on the node with the best score until the cluster shows where they went.
//!
//! The scheduler takes the next pod before the claim and the binding of the last one are visible. Without the assumption
//! every pod of a burst would be scored against the same free GPUs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use divvy_packing::Shape;

use super::pod::Requests;

/// After that the scheduler has given up, or tries the pod again and has it scored again. Double would count GPUs twice
/// after a failed bind; half could forget a slow one.
const KEPT: Duration = Duration::from_secs(30);

/// Assumed pods at once. Beyond, the oldest is forgotten: its claim has had the time of thousands of decisions to show
/// up. So fewer would forget pods of a burst, and more only take memory.
const MOST: usize = 4096;

/// A pod that was scored.
#[derive(Clone, Debug)]
pub struct AssumedPod {
    pub node: String,
    /// What the score chose. `node` follows what the cluster shows.
    pub chosen: String,
    pub shape: Shape,
    /// What of it the cluster does not show yet.
    requests: Option<Requests>,
    gpus: bool,
    since: Instant,
    number: u64,
}

impl AssumedPod {
    pub fn requests(&self) -> Requests {
        self.requests.unwrap_or_default()
    }

    pub fn has_gpus(&self) -> bool {
        self.gpus
    }
}

/// What a sighting says of an assumption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// Nodes whose free amounts change with it.
    pub nodes: [String; 2],
    /// Whether the pod went where it was assumed; only of the binding.
    pub is_chosen: Option<bool>,
}

/// By the UID of the pod.
#[derive(Debug, Default)]
pub struct Assumed {
    pods: BTreeMap<String, AssumedPod>,
    next: u64,
}

impl Assumed {
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Assumes a pod on a node. Returns the nodes that this frees or takes from.
    pub fn assume(
        &mut self,
        uid: &str,
        node: &str,
        shape: Shape,
        requests: Requests,
        now: Instant,
    ) -> Vec<String> {
        let mut changed = self.forget(uid);
        if self.pods.len() >= MOST {
            let oldest = self.pods.iter().min_by_key(|(_, pod)| pod.number);
            if let Some(uid) = oldest.map(|(uid, _)| uid.clone()) {
                changed.extend(self.forget(&uid));
            }
        }
        self.next += 1;
        let pod = AssumedPod {
            node: node.to_owned(),
            chosen: node.to_owned(),
            shape,
            requests: Some(requests),
            gpus: true,
            since: now,
            number: self.next,
        };
        self.pods.insert(uid.to_owned(), pod);
        changed.push(node.to_owned());
        changed
    }

    /// Takes an assumption back.
    pub fn forget(&mut self, uid: &str) -> Vec<String> {
        let pod = self.pods.remove(uid);
        pod.map(|pod| pod.node).into_iter().collect()
    }

    /// The pod is bound to a node: its CPU and memory are counted there.
    pub fn bound(&mut self, uid: &str, node: &str) -> Option<Confirmed> {
        let pod = self.pods.get_mut(uid)?;
        pod.requests.take()?;
        let is_chosen = pod.chosen == node;
        Some(self.moved(uid, node, Some(is_chosen)))
    }

    /// The pod's claim has devices of a node: its GPUs are counted there.
    pub fn allocated(&mut self, uid: &str, node: &str) -> Option<Confirmed> {
        let pod = self.pods.get_mut(uid)?;
        if !std::mem::take(&mut pod.gpus) {
            return None;
        }
        Some(self.moved(uid, node, None))
    }

    fn moved(&mut self, uid: &str, node: &str, is_chosen: Option<bool>) -> Confirmed {
        let mut before = node.to_owned();
        if let Some(pod) = self.pods.get_mut(uid) {
            before = std::mem::replace(&mut pod.node, node.to_owned());
            if pod.requests.is_none() && !pod.gpus {
                self.pods.remove(uid);
            }
        }
        Confirmed {
            nodes: [before, node.to_owned()],
            is_chosen,
        }
    }

    /// Forgets pods that the cluster has not shown in time. Returns their nodes.
    pub fn expire(&mut self, now: Instant) -> Vec<String> {
        let is_old = |pod: &AssumedPod| now.duration_since(pod.since) >= KEPT;
        let old = self.pods.extract_if(.., |_, pod| is_old(pod));
        old.map(|(_, pod)| pod.node).collect()
    }

    /// The pods on a node, in the order in which they were scored.
    pub fn on(&self, node: &str) -> Vec<&AssumedPod> {
        let mut pods: Vec<&AssumedPod> =
            self.pods.values().filter(|pod| pod.node == node).collect();
        pods.sort_by_key(|pod| pod.number);
        pods
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assumed(pods: &[(&str, &str)], now: Instant) -> Assumed {
        let mut assumed = Assumed::default();
        for (uid, node) in pods {
            assumed.assume(uid, node, Shape::default(), Requests::default(), now);
        }
        assumed
    }

    #[test]
    fn a_pod_counts_until_both_its_claim_and_its_binding_show() {
        let now = Instant::now();
        let mut pods = assumed(&[("u", "a")], now);
        assert!(pods.on("a")[0].has_gpus());
        let seen = pods.allocated("u", "a").unwrap();
        assert_eq!(seen.is_chosen, None);
        assert!(!pods.on("a")[0].has_gpus());
        assert_eq!(pods.allocated("u", "a"), None, "once");
        assert_eq!(pods.bound("u", "a").unwrap().is_chosen, Some(true));
        assert_eq!(pods.len(), 0);
        assert_eq!(pods.bound("u", "a"), None);
    }

    #[test]
    fn a_pod_that_goes_elsewhere_takes_its_assumption_along() {
        let mut pods = assumed(&[("u", "a")], Instant::now());
        let seen = pods.allocated("u", "b").unwrap();
        assert_eq!(seen.nodes, ["a", "b"]);
        assert!(pods.on("a").is_empty());
        assert_eq!(pods.bound("u", "b").unwrap().is_chosen, Some(false));
        assert_eq!(pods.len(), 0);
    }

    #[test]
    fn what_never_shows_is_forgotten_and_a_second_score_replaces_the_first() {
        let start = Instant::now();
        let mut pods = assumed(&[("u", "a"), ("v", "a")], start);
        let changed = pods.assume("u", "b", Shape::default(), Requests::default(), start);
        assert_eq!(changed, ["a", "b"]);
        pods.assume(
            "w",
            "c",
            Shape::default(),
            Requests::default(),
            start + KEPT,
        );
        assert_eq!(pods.expire(start + KEPT), ["b", "a"]);
        assert_eq!(pods.len(), 1);
    }

    #[test]
    fn assumptions_are_bounded() {
        let now = Instant::now();
        let mut pods = assumed(&[], now);
        for at in 0..=MOST {
            let (shape, requests) = (Shape::default(), Requests::default());
            pods.assume(&format!("{at:05}"), "a", shape, requests, now);
        }
        assert_eq!(pods.len(), MOST);
        assert!(pods.forget("00000").is_empty(), "the oldest has gone");
    }
}
