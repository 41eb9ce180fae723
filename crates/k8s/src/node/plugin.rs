//! The DRA plugin service: kubelet's NodePrepareResources and NodeUnprepareResources.
//!
//! ```text
//!   kubelet ── Prepare(namespace, name, uid) ──► the claim, from the API server ──► allocation ──► the agent holds it
//!           ── Unprepare(uid) ─────────────────────────────────────────────────────────────────► the agent lets it go
//! ```
//! The driver keeps no state: the agent's journal records the held claims, and both calls may be repeated at any time.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use divvy_api::v1::{self, JobState};
use futures_util::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::GetParams;
use kube::{Api, Client};
use tonic::{Request, Response, Status};

use crate::base::claim::{DRIVER, TICKETS};
use crate::base::cluster;
use crate::base::metrics::driver::{self, Operation};
use crate::base::slices;
use crate::node::agent::Agent;
use crate::node::allocation::{self, Allocation, Unprepared};
use crate::node::calls::CallCount;
use crate::node::claim_lock::KeyedMutex;
use crate::node::enforcer::{EnforceError, Enforcer};
use crate::node::events::{EventTarget, Events, Kind};
use crate::node::incidents::{self, IncidentLog};
use crate::node::metrics::PodNames;
use crate::node::protocol::dra::dra_plugin_server::DraPlugin;
use crate::node::protocol::dra::{
    Claim, Device, NodePrepareResourceResponse, NodePrepareResourcesRequest,
    NodePrepareResourcesResponse, NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
};

/// The driver on a node.
pub struct DraDriver {
    node: String,
    client: Client,
    agent: Agent,
    /// Finds what other programs allocated, where this driver is that of tickets.
    enforcer: Option<Enforcer>,
    events: Events,
    claim_lock: KeyedMutex,
    incidents: Mutex<IncidentLog>,
    calls: CallCount,
    pods: Arc<PodNames>,
}

/// Why a claim is not prepared or unprepared; kubelet shows it in an event of the pod and tries again.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error("claim {0} does not exist")]
    NoClaim(String),
    #[error("cannot read the claim: {}", cluster::error_message(.0))]
    Unread(kube::Error),
    #[error(transparent)]
    Unprepared(#[from] Unprepared),
    #[error(transparent)]
    Unlimited(#[from] EnforceError),
    #[error("{}", spoken(.0))]
    Agent(#[from] v1::Error),
    #[error("the driver failed internally: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

impl DraDriver {
    pub fn new(node: &str, client: Client, agent: Agent, enforcer: Option<Enforcer>) -> Self {
        Self {
            node: node.to_owned(),
            events: Events::new(client.clone(), node),
            enforcer,
            client,
            agent,
            claim_lock: KeyedMutex::default(),
            incidents: Mutex::default(),
            calls: CallCount::default(),
            pods: Arc::default(),
        }
    }

    /// The driver's name, as claims have it.
    pub(super) fn name(&self) -> &'static str {
        self.enforcer.as_ref().map_or(DRIVER, |_| TICKETS)
    }

    pub(super) fn enforcer(&self) -> Option<&Enforcer> {
        self.enforcer.as_ref()
    }

    /// The calls of kubelet that are in progress.
    pub(super) fn calls(&self) -> &CallCount {
        &self.calls
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    pub(super) fn agent(&self) -> &Agent {
        &self.agent
    }

    pub(super) fn events(&self) -> &Events {
        &self.events
    }

    pub(super) fn claim_lock(&self) -> &KeyedMutex {
        &self.claim_lock
    }

    pub(super) fn incidents(&self) -> &Mutex<IncidentLog> {
        &self.incidents
    }

    /// The pods of the held claims.
    pub(super) fn pods(&self) -> &Arc<PodNames> {
        &self.pods
    }

    /// The claim of that name, as the API server has it now.
    pub(super) async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ResourceClaim>, kube::Error> {
        Api::namespaced(self.client.clone(), namespace)
            .get_opt(name)
            .await
    }

    /// The same as the API server has it at hand: perhaps of a moment ago, and without a question to its store.
    pub(super) async fn claim_at_hand(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ResourceClaim>, kube::Error> {
        let claims = Api::namespaced(self.client.clone(), namespace);
        match claims.get_with(name, &GetParams::any()).await {
            Ok(claim) => Ok(Some(claim)),
            Err(error) if cluster::is_missing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn prepare(&self, asked: &Claim) -> Result<Vec<Device>, PrepareError> {
        let _turn = self.claim_lock.lock(&asked.uid).await;
        let claim = self.claim(&asked.namespace, &asked.name).await;
        let claim = claim
            .map_err(PrepareError::Unread)?
            .ok_or_else(|| PrepareError::NoClaim(format!("{}/{}", asked.namespace, asked.name)))?;
        self.pods.note(&asked.uid, &claim);
        let (allocation, cdi) = match &self.enforcer {
            None => {
                let gpus = slices::gpus(&self.agent.gpus().await?);
                let allocation = allocation::of(&claim, &asked.uid, &self.node, &gpus)?;
                let held = self.hold(asked, &allocation.claim).await?;
                (allocation, vec![held.cdi_device])
            }
            Some(enforcer) => self.enforce(enforcer, asked, &claim).await?,
        };
        for source in &allocation.ignored {
            let about = EventTarget {
                kind: Kind::Claim,
                namespace: &asked.namespace,
                name: &asked.name,
                uid: &asked.uid,
            };
            let note = format!(
                "configuration for this driver ({source}) is ignored, other than one `compute` of the claim; the limits are those that the scheduler allocated"
            );
            self.events
                .warn(about, "ConfigIgnored", "Prepare", note)
                .await;
        }
        Ok(allocation.devices(&cdi))
    }

    async fn hold(&self, asked: &Claim, claim: &v1::Claim) -> Result<v1::HeldClaim, v1::Error> {
        let held = self.agent.hold(&asked.uid, claim).await?;
        tracing::info!(
            "claim {}/{} is allocated to job {}: {}",
            asked.namespace,
            asked.name,
            held.job,
            held.cdi_device
        );
        Ok(held)
    }

    /// A ticket: has the agent hold what others allocated to its pod. What is held stays as it is, as the others' objects
    /// may be gone when kubelet asks again.
    async fn enforce(
        &self,
        enforcer: &Enforcer,
        asked: &Claim,
        claim: &ResourceClaim,
    ) -> Result<(Allocation, Vec<String>), PrepareError> {
        allocation::is_same(claim, &asked.uid)?;
        let held = self.agent.held().await?.into_iter();
        let mut held = held.filter(|held| held.uid == asked.uid && held.state == JobState::Running);
        if let Some(held) = held.next() {
            let allocation = Allocation::of_ticket(claim, &self.node, held.devices)?;
            return Ok((allocation, vec![held.cdi_device]));
        }
        let grant = enforcer.grant(claim, &self.agent).await?;
        let allocation = Allocation::of_ticket(claim, &self.node, grant.devices)?;
        if allocation.claim.devices.is_empty() {
            return Ok((allocation, grant.passed));
        }
        let held = self.hold(asked, &allocation.claim).await?;
        Ok((allocation, vec![held.cdi_device]))
    }

    /// Prepares a held claim for the pods that it is reserved for by now.
    pub(super) async fn prepare_again(&self, held: &v1::HeldClaim) {
        let claim = Claim {
            uid: held.uid.clone(),
            namespace: held.namespace.clone(),
            name: held.name.clone(),
        };
        if let Err(error) = self.prepare(&claim).await {
            tracing::debug!("cannot prepare claim {} again: {error}", held.uid);
        }
    }

    async fn unprepare(self: &Arc<Self>, asked: &Claim) -> Result<(), PrepareError> {
        let _turn = self.claim_lock.lock(&asked.uid).await;
        incidents::last_look(self, &asked.uid).await;
        self.agent.release(&asked.uid).await?;
        tracing::info!("claim {}/{} is released", asked.namespace, asked.name);
        Ok(())
    }
}

/// The agent's error, with its hint.
fn spoken(error: &v1::Error) -> String {
    match &error.hint {
        Some(hint) => format!("{} ({hint})", error.message),
        None => error.message.clone(),
    }
}

/// Kubelet's calls.
pub struct Kubelet(pub Arc<DraDriver>);

#[tonic::async_trait]
impl DraPlugin for Kubelet {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter();
        let prepared = claims.map(|claim| {
            let plugin = Arc::clone(&self.0);
            let uid = claim.uid.clone();
            let call = plugin.calls.begin();
            whole(Operation::Prepare, uid, async move {
                let _call = call;
                plugin.prepare(&claim).await
            })
        });
        let answer = |(uid, prepared): (String, Result<Vec<Device>, PrepareError>)| {
            let (devices, error) = match prepared {
                Ok(devices) => (devices, String::new()),
                Err(failure) => (Vec::new(), log_failure("prepared", &uid, &failure)),
            };
            (uid, NodePrepareResourceResponse { devices, error })
        };
        let claims = join_all(prepared).await.into_iter().map(answer).collect();
        Ok(Response::new(NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter();
        let unprepared = claims.map(|claim| {
            let plugin = Arc::clone(&self.0);
            let uid = claim.uid.clone();
            let call = plugin.calls.begin();
            whole(Operation::Unprepare, uid, async move {
                let _call = call;
                plugin.unprepare(&claim).await
            })
        });
        let answer = |(uid, unprepared): (String, Result<(), PrepareError>)| {
            let failure = unprepared.err();
            let error = failure.map(|failure| log_failure("unprepared", &uid, &failure));
            let error = error.unwrap_or_default();
            (uid, NodeUnprepareResourceResponse { error })
        };
        let claims = join_all(unprepared).await.into_iter().map(answer).collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

/// Work for a claim, to its end: in a task of its own, as a call that kubelet gives up waiting for is dropped where it stands.
async fn whole<T: Send + 'static>(
    operation: Operation,
    uid: String,
    work: impl Future<Output = Result<T, PrepareError>> + Send + 'static,
) -> (String, Result<T, PrepareError>) {
    let begun = Instant::now();
    let done = tokio::spawn(async move {
        let done = work.await;
        driver::METRICS.count(operation, begun.elapsed(), done.is_ok());
        done
    });
    (uid, done.await.unwrap_or_else(|error| Err(error.into())))
}

/// Logs the failure, and returns the error text for kubelet, with the causes.
fn log_failure(done: &str, uid: &str, failure: &PrepareError) -> String {
    let text = failure.to_string();
    tracing::warn!("claim {uid} is not {done}: {text}");
    text
}
