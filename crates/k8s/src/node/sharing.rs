//! The mode of a node where the labels of nodes decide it, and its change while the node part runs.
//!
//! ```text
//!   labels ask for the other mode ──► in use? an event on the node says what has to end, and the mode stays
//!                                 └─► not in use: withdraw what was offered, serve a moment longer, end
//!   kubelet starts the container again ──► what is in use by then decides, else what is offered, else the labels
//! ```

use std::time::Duration;

use divvy_api::v1::JobState;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::time::{Instant, sleep};

use crate::base::sharing::{CarrierNodes, Sharing, Uses};
use crate::base::slices::publish::Publisher;
use crate::carrier::NAMESPACE;
use crate::carrier::assignment::PREFIX;
use crate::carrier::share::GpuShare;
use crate::node::agent::Agent;
use crate::node::events::{EventTarget, Events, Kind};

/// Between two looks at the labels: a mode changes seldom, and a look is one call. A shorter one would be felt by the
/// API server of a thousand nodes.
const LOOK: Duration = Duration::from_secs(10);
/// Between two events about a mode that cannot change yet. A person has to act, so five minutes remind without filling
/// the list.
const BETWEEN: Duration = Duration::from_secs(300);
/// How long a start waits for the agent to say what is in use. The agent starts within seconds; after it the node
/// publishes what it knows, so longer would keep pods waiting.
const PATIENCE: Duration = Duration::from_secs(20);
/// After the offers are withdrawn, pods that were placed just before still come. The scheduler binds within a second or
/// two of its decision; so twice that.
const SETTLE: Duration = Duration::from_secs(5);

/// What decides the mode of this node.
pub struct NodeSharing<'a> {
    pub client: Client,
    pub agent: &'a Agent,
    pub node: &'a str,
    pub carriers: &'a CarrierNodes,
}

impl NodeSharing<'_> {
    /// The mode to start in. Where the agent or the API server does not respond in time, what is known counts.
    ///
    /// What an earlier driver of this node still offers counts too: pods may be placed by it until [`changes`](Self::changes)
    /// has withdrawn it.
    pub async fn at_start(&self) -> Sharing {
        let until = Instant::now() + PATIENCE;
        let (mut wanted, mut uses, mut offers) = (None, None, None);
        loop {
            wanted = match wanted {
                Some((wanted, _)) => Some((wanted, String::new())),
                None => self.wanted().await,
            };
            uses = match uses {
                Some(uses) => Some(uses),
                None => self.uses().await,
            };
            offers = match offers {
                Some(offers) => Some(offers),
                None => self.offers().await,
            };
            let is_known = wanted.is_some() && uses.is_some() && offers.is_some();
            if is_known || Instant::now() >= until {
                break;
            }
            sleep(Duration::from_millis(500)).await;
        }
        let wanted = wanted.map_or(Sharing::Claims, |(wanted, _)| wanted);
        let offered = offers.unwrap_or_default().mode(wanted);
        let mode = uses.unwrap_or_default().mode(offered);
        tracing::info!("this node shares its GPUs by {}", mode.as_str());
        mode
    }

    /// Waits until the labels ask for the other mode and nothing of this one is in use.
    pub async fn changes(&self, mode: Sharing) {
        let events = Events::new(self.client.clone(), self.node);
        let mut told: Option<Instant> = None;
        loop {
            sleep(LOOK).await;
            let Some((wanted, uid)) = self.wanted().await.filter(|(wanted, _)| *wanted != mode)
            else {
                told = None;
                continue;
            };
            let Some(uses) = self.uses().await else {
                continue;
            };
            let count = uses.of(mode);
            if count == 0 {
                tracing::info!(
                    "this node changes from {} to {}",
                    mode.as_str(),
                    wanted.as_str()
                );
                return;
            }
            if told.is_none_or(|told| told.elapsed() >= BETWEEN) {
                told = Some(Instant::now());
                let about = EventTarget {
                    kind: Kind::Node,
                    namespace: "",
                    name: self.node,
                    uid: &uid,
                };
                let note = refusal(self.node, mode, wanted, count);
                events.warn(about, "SharingNotChanged", "Share", note).await;
            }
        }
    }

    /// Waits for pods that were placed before the offers were withdrawn.
    pub async fn settle(&self) {
        sleep(SETTLE).await;
    }

    async fn wanted(&self) -> Option<(Sharing, String)> {
        let node = Api::<Node>::all(self.client.clone()).get(self.node).await;
        let node = node
            .inspect_err(|error| tracing::debug!("cannot read the node's labels: {error}"))
            .ok()?;
        let mode = self.carriers.mode(node.metadata.labels.as_ref());
        Some((mode, node.metadata.uid.unwrap_or_default()))
    }

    async fn uses(&self) -> Option<Uses> {
        let mut held = self.agent.held_now().await.ok()?;
        held.retain(|held| held.state != JobState::Ended);
        let of_carriers = held
            .iter()
            .filter(|held| held.uid.starts_with(PREFIX))
            .count();
        let shares = self.shares().await?;
        Some(Uses {
            claims: held.len() - of_carriers,
            sixteenths: of_carriers.max(shares.iter().filter(|share| is_in_use(share)).count()),
        })
    }

    /// What this node offers in the API server, by this driver or an earlier one.
    async fn offers(&self) -> Option<Uses> {
        let slices = Publisher::new(self.client.clone(), self.node).list().await;
        let slices = slices
            .inspect_err(|error| tracing::debug!("cannot read the ResourceSlices: {error}"))
            .ok()?;
        Some(Uses {
            claims: slices.len(),
            sixteenths: self.shares().await?.len(),
        })
    }

    /// The GpuShares of this node.
    async fn shares(&self) -> Option<Vec<GpuShare>> {
        let shares = Api::<GpuShare>::namespaced(self.client.clone(), NAMESPACE)
            .list(&ListParams::default())
            .await
            .inspect_err(|error| tracing::debug!("cannot read the GpuShares: {error}"))
            .ok()?;
        let mut shares = shares.items;
        shares.retain(|share| share.spec.node == self.node);
        Some(shares)
    }
}

/// Whether a reservation pod holds the GPU, or pods are assigned to it.
fn is_in_use(share: &GpuShare) -> bool {
    let carrier = share
        .status
        .as_ref()
        .and_then(|status| status.carrier.as_ref());
    carrier.is_some() || !share.spec.assignments.is_empty()
}

fn refusal(node: &str, mode: Sharing, wanted: Sharing, count: usize) -> String {
    let what = match (mode, count) {
        (Sharing::Claims, 1) => "1 claim is".to_owned(),
        (Sharing::Claims, count) => format!("{count} claims are"),
        (Sharing::Carrier, 1) => "1 GPU or pod of carrier mode is".to_owned(),
        (Sharing::Carrier, count) => format!("{count} GPUs or pods of carrier mode are"),
    };
    format!(
        "the labels of node {node} ask for {}, but {what} still in use there; the node keeps {} until they end: \
         kubectl drain {node} --ignore-daemonsets",
        wanted.as_str(),
        mode.as_str()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_change_says_what_is_in_use_and_how_it_ends() {
        assert_eq!(
            refusal("a", Sharing::Claims, Sharing::Carrier, 3),
            "the labels of node a ask for carrier, but 3 claims are still in use there; the node keeps claims until they \
             end: kubectl drain a --ignore-daemonsets"
        );
        let one = refusal("a", Sharing::Carrier, Sharing::Claims, 1);
        assert!(
            one.contains("1 GPU or pod of carrier mode is still in use"),
            "{one}"
        );
    }
}
