//! The client of the node's agent, with retry while the agent restarts: it is updated beside this program, not with it.

use std::path::PathBuf;
use std::time::Duration;

use divvy_api::client::{Client, EventStream};
use divvy_api::v1::{Claim, Error, ErrorCode, Event, Gpu, HeldClaim, Job};
use tokio::time::{Instant, sleep};

/// How long a call waits for an agent that is away. With the 30 s that the agent takes at most to make MIG instances that is
/// less than the 45 s that kubelet waits for an answer (`defaultClientCallTimeout`); then kubelet tries again. One call of an agent that
/// hangs takes the client's 10 s, and another may begin just before the end of these.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries to reach it. A daemon restarts within seconds, and kubelet waits: half would double the tries, a
/// second would be seen in a pod's start.
const PAUSE: Duration = Duration::from_millis(200);

/// Calls the agent.
#[derive(Debug)]
pub struct Agent {
    client: Client,
    patience: Duration,
}

impl Agent {
    /// The one that listens on `socket`.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self {
            client: Client::new(socket),
            patience: PATIENCE,
        }
    }

    /// # Errors
    /// As the agent says; [`ErrorCode::NoDaemon`] at once where it is away, [`ErrorCode::Unresponsive`] after 10 s where it hangs.
    pub async fn gpus_now(&self) -> Result<Vec<Gpu>, Error> {
        self.client.gpus().await
    }

    /// Every claim that is held.
    ///
    /// # Errors
    /// As [`Agent::gpus_now`].
    pub async fn held_now(&self) -> Result<Vec<HeldClaim>, Error> {
        self.client.claims().await.map(of_clusters)
    }

    /// A job by its number, also one that has ended.
    ///
    /// # Errors
    /// As [`Agent::gpus_now`].
    pub async fn job_now(&self, number: &str) -> Result<Job, Error> {
        self.client.job(number).await
    }

    /// The agent's events after this one, as many as it has.
    ///
    /// # Errors
    /// As [`Agent::gpus_now`].
    pub async fn events_now(&self, after: u64) -> Result<Vec<Event>, Error> {
        self.client.events(after).await
    }

    /// The agent's events after this one, and each new one.
    ///
    /// # Errors
    /// As [`Agent::gpus_now`].
    pub async fn follow_events(&self, after: u64) -> Result<EventStream, Error> {
        self.client.follow_events(after).await
    }

    /// # Errors
    /// As the agent says; so for every call here.
    pub async fn gpus(&self) -> Result<Vec<Gpu>, Error> {
        self.patiently(|| self.client.gpus()).await
    }

    /// Has the agent hold a claim; the same again is the same.
    pub async fn hold(&self, uid: &str, claim: &Claim) -> Result<HeldClaim, Error> {
        self.patiently(|| self.client.put_claim(uid, claim)).await
    }

    /// Lets a claim go; one that is not held is let go already.
    pub async fn release(&self, uid: &str) -> Result<(), Error> {
        let released = self.patiently(|| self.client.delete_claim(uid)).await;
        released.map(drop)
    }

    /// Every claim that is held.
    pub async fn held(&self) -> Result<Vec<HeldClaim>, Error> {
        self.patiently(|| self.client.claims())
            .await
            .map(of_clusters)
    }

    /// Retries while the agent does not answer. Every call here is idempotent, so a second one does no harm.
    async fn patiently<T, F>(&self, call: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let until = Instant::now() + self.patience;
        loop {
            match call().await {
                Err(error)
                    if matches!(error.code, ErrorCode::NoDaemon | ErrorCode::Unresponsive)
                        && Instant::now() < until =>
                {
                    sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }
}

/// The claims of a cluster: a slice of `divvy slice` on the node has no namespace, and the cluster does not know it.
pub fn of_clusters(mut claims: Vec<HeldClaim>) -> Vec<HeldClaim> {
    claims.retain(|claim| !claim.namespace.is_empty());
    claims
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_slice_on_a_node_is_no_claim_of_the_cluster() {
        let held = |uid: &str, namespace: &str| -> HeldClaim {
            serde_json::from_value(json!({
                "uid": uid, "job": "7", "state": "running", "cdi_device": "divvy.dev/slice=x", "namespace": namespace,
                "name": "train", "pods": [], "devices": [], "processes": 1, "since": "2026-01-02T03:04:05Z",
                "slices": [],
            }))
            .unwrap()
        };
        // The driver would take it for leaked, and release it.
        let claims = of_clusters(vec![held("u-1", "team"), held("slurm-7", "")]);
        let uids: Vec<&str> = claims.iter().map(|claim| claim.uid.as_str()).collect();
        assert_eq!(uids, ["u-1"]);
    }
}
