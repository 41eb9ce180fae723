//! Metrics of a node: the driver's own, and the daemon's with the namespace and the pod of each claim.
//!
//! ```text
//!   scrape ──► the page of the last second, or:
//!                daemon ── GET /metrics ──┐
//!                       ── GET /v1/claims ┴─► page (pure): node, namespace, claim, pod ──┐
//!                driver's own metrics ───────────────────────────────────────────────────┴─► text
//! ```
//! A claim has series while the daemon holds it. The driver learns the pods of a claim when kubelet prepares it and when
//! the driver compares claims with the cluster: it has no right to read pods.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::v1::HeldClaim;
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::agent::of_clusters;
use super::incidents::pods;
use super::page::{ClaimLabels, labelled};
use crate::base::metrics::driver::{self, ClaimPods};

/// Below the 10 s after which Prometheus gives a scrape up (`scrape_timeout`). So half of it leaves room for the
/// answer.
const PATIENCE: Duration = Duration::from_secs(4);
/// All scrapes within this time get the same page. Two Prometheus servers, as is usual, cost one look; older figures
/// would be seen in graphs of 15 s.
const FRESH: Duration = Duration::from_secs(1);

/// Most claims whose pods are known; the one noted longest ago goes first. A node runs 110 pods at a time (kubelet's default),
/// and the others are claims that were released, for events about processes that they left.
const MOST: usize = 1024;

/// The pods of each claim, by the claim's uid.
#[derive(Debug, Default)]
pub struct PodNames(Mutex<KnownPods>);

#[derive(Debug, Default)]
struct KnownPods {
    /// Name and uid of each pod, by name.
    of_claims: BTreeMap<String, Vec<(String, String)>>,
    /// The claims, oldest first.
    order: VecDeque<String>,
}

impl PodNames {
    /// Notes the pods that a claim is reserved for now.
    pub fn note(&self, uid: &str, claim: &ResourceClaim) {
        let mut pods = pods(claim, uid);
        pods.sort_unstable();
        let mut known = self.lock();
        known.of_claims.insert(uid.to_owned(), pods);
        // A held claim is noted once a minute, and so stays.
        known.order.retain(|one| one != uid);
        known.order.push_back(uid.to_owned());
        if known.order.len() > MOST
            && let Some(oldest) = known.order.pop_front()
        {
            known.of_claims.remove(&oldest);
        }
    }

    /// Name and uid of the pods that a claim was last reserved for.
    pub fn known(&self, uid: &str) -> Vec<(String, String)> {
        self.lock().of_claims.get(uid).cloned().unwrap_or_default()
    }

    /// The pods of each of these claims, and its labels.
    fn of(&self, held: &[HeldClaim]) -> Vec<ClaimPods> {
        let claims = held.iter().map(|held| ClaimPods {
            namespace: held.namespace.clone(),
            claim: held.name.clone(),
            pods: self
                .known(&held.uid)
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
        });
        claims.collect()
    }

    fn lock(&self) -> MutexGuard<'_, KnownPods> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers scrapes of a node.
pub struct NodePage {
    node: String,
    daemon: Client,
    pods: Arc<PodNames>,
    last: AsyncMutex<Option<(Instant, Arc<str>)>>,
}

impl NodePage {
    pub fn new(node: &str, agent: &Path, pods: Arc<PodNames>) -> Self {
        Self {
            node: node.to_owned(),
            daemon: Client::new(agent).answered_within(PATIENCE),
            pods,
            last: AsyncMutex::default(),
        }
    }

    /// The page, at most a second old. Scrapes that come together wait for one page.
    pub async fn text(&self) -> Arc<str> {
        let mut last = self.last.lock().await;
        if let Some((made, text)) = last.as_ref()
            && made.elapsed() < FRESH
        {
            return Arc::clone(text);
        }
        let text: Arc<str> = self.fresh().await.into();
        *last = Some((Instant::now(), Arc::clone(&text)));
        text
    }

    async fn fresh(&self) -> String {
        let asked = async { tokio::try_join!(self.daemon.metrics(), self.daemon.claims()) };
        // Each call has its own deadline until its answer begins. This one is for a daemon that stops within an answer.
        let answered = tokio::time::timeout(PATIENCE, asked).await;
        let Ok(Ok((daemon, held))) = answered else {
            return labelled(&driver::METRICS.text(None), &self.node, &BTreeMap::new());
        };
        let held = of_clusters(held);
        let claims = self.pods.of(&held);
        let jobs = held.iter().zip(&claims);
        let jobs = jobs.map(|(held, claim)| (held.job.clone(), labels(claim)));
        let own = driver::METRICS.text(Some(&claims));
        labelled(&format!("{daemon}{own}"), &self.node, &jobs.collect())
    }
}

/// The labels of the claim's series.
fn labels(claim: &ClaimPods) -> ClaimLabels {
    ClaimLabels {
        namespace: claim.namespace.clone(),
        claim: claim.claim.clone(),
        pod: match claim.pods.as_slice() {
            [pod] => pod.clone(),
            _ => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(uid: &str) -> HeldClaim {
        serde_json::from_value(json!({
            "uid": uid, "job": "7", "state": "running", "cdi_device": "divvy.dev/slice=x", "namespace": "team",
            "name": "train", "pods": [], "devices": [], "processes": 1, "since": "2026-01-02T03:04:05Z", "slices": [],
        }))
        .unwrap()
    }

    fn claim(uid: &str, pods: &[String]) -> ResourceClaim {
        let pods = pods
            .iter()
            .map(|pod| json!({ "resource": "pods", "name": pod, "uid": pod }));
        serde_json::from_value(json!({
            "metadata": { "name": "train", "uid": uid }, "spec": {},
            "status": { "reservedFor": pods.collect::<Vec<_>>() },
        }))
        .unwrap()
    }

    #[test]
    fn a_claim_has_the_pod_that_uses_it_alone_and_each_of_several_as_information() {
        let names = PodNames::default();
        names.note("a", &claim("a", &["train".to_owned()]));
        names.note("b", &claim("b", &["two".to_owned(), "one".to_owned()]));
        let of = names.of(&[held("a"), held("b"), held("c")]);
        let pods: Vec<_> = of.iter().map(|claim| labels(claim).pod).collect();
        assert_eq!(pods, ["train", "", ""]);
        assert_eq!(of[1].pods, ["one", "two"]);
    }

    #[test]
    fn the_pods_of_claims_have_a_bound_in_number_and_for_each_claim() {
        let names = PodNames::default();
        let many: Vec<String> = (0..256).map(|pod| format!("pod-{pod}")).collect();
        names.note("a", &claim("a", &many));
        assert_eq!(names.of(&[held("a")])[0].pods.len(), 16);
        for one in 0..2 * MOST {
            names.note(&one.to_string(), &claim(&one.to_string(), &[]));
        }
        assert_eq!(names.lock().of_claims.len(), MOST);
        assert_eq!(names.known("a"), [], "the oldest one is forgotten");
    }
}
