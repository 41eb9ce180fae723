//! The control loop of carrier mode: observe, plan, apply; after any failure, observe again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::base::cluster;
use crate::base::sharing::SHARING;
use crate::carrier::assign::{Failed, ReservationStep, is_empty, plan};
use crate::carrier::cluster_state::cluster_state;
use crate::carrier::kept;
use crate::carrier::pod::{
    RESERVATION_LABEL, ReservationTemplate, reservation_pod, ungated, units,
};
use crate::carrier::share::{Assignment, GpuShare};
use crate::carrier::{LABEL, NAMESPACE};
use crate::controller::informers::{Informer, paged, spawn};

/// At least so often it is looked, as time passes without events: a fraction of what an empty GPU lingers.
const TICK: Duration = Duration::from_secs(10);
/// After a step that failed; longer each time.
const AGAIN: Duration = Duration::from_millis(200);

/// A failed operation, which is retried.
#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error("{}: {}", what, cluster::error_message(source))]
    Cluster { what: String, source: kube::Error },
    #[error("{0} no longer exists")]
    Gone(String),
}

/// The caches of the loop.
struct ReservationCache {
    pods: Arc<Informer<Pod>>,
    carriers: Arc<Informer<Pod>>,
    shares: Arc<Informer<GpuShare>>,
    nodes: Arc<Informer<Node>>,
    changed: Arc<Notify>,
}

/// The records of all GPUs, kept up to date.
pub(crate) fn shares(client: &Client, tasks: &mut JoinSet<()>) -> Arc<Informer<GpuShare>> {
    let api = Api::namespaced(client.clone(), NAMESPACE);
    spawn(api, paged(), || {}, tasks, kept::share)
}

/// The mode of each namespace that names one in its label, kept up to date.
pub(crate) fn namespaces(client: &Client, tasks: &mut JoinSet<()>) -> Arc<Informer<String>> {
    let api: Api<Namespace> = Api::all(client.clone());
    let named = paged().labels(SHARING);
    spawn(
        api,
        named,
        || {},
        tasks,
        |namespace| namespace.metadata.labels?.remove(SHARING),
    )
}

/// Works while this replica leads.
pub(crate) async fn lead(
    client: Client,
    common: ReservationTemplate,
    mut leads: tokio::sync::watch::Receiver<bool>,
) {
    while leads.wait_for(|leads| *leads).await.is_ok() {
        tokio::select! {
            () = run(client.clone(), common.clone()) => {}
            _ = leads.wait_for(|leads| !*leads) => {}
        }
    }
}

/// Keeps carriers and assignments as pods want them, for good. `common` is what all carriers have.
async fn run(client: Client, common: ReservationTemplate) {
    let changed = Arc::new(Notify::new());
    // The watches end with this.
    let tasks = &mut JoinSet::new();
    let carriers = Api::namespaced(client.clone(), NAMESPACE);
    let shares = Api::namespaced(client.clone(), NAMESPACE);
    let labelled = |(key, value): (&str, &str)| paged().labels(&format!("{key}={value}"));
    let notify = || {
        let changed = Arc::clone(&changed);
        move || changed.notify_one()
    };
    let pods = Api::all(client.clone());
    let nodes = Api::all(client.clone());
    let sight = ReservationCache {
        // A pod with the label that lists no sixteenths takes none.
        pods: spawn(pods, labelled(LABEL), notify(), tasks, |pod: Pod| {
            pod.spec.as_ref().and_then(units)?;
            Some(kept::pod(pod))
        }),
        carriers: spawn(
            carriers,
            labelled(RESERVATION_LABEL),
            notify(),
            tasks,
            |pod| Some(kept::pod(pod)),
        ),
        shares: spawn(shares, paged(), notify(), tasks, kept::share),
        nodes: spawn(nodes, paged(), notify(), tasks, kept::node),
        changed,
    };
    sight.ready().await;
    let mut empty_since = BTreeMap::new();
    let mut pause = AGAIN;
    loop {
        let now = Timestamp::now();
        let seen = cluster_state(
            &sight.pods.state(),
            &sight.carriers.state(),
            &sight.shares.state(),
            &sight.nodes.state(),
        );
        empty_since = seen
            .shares
            .iter()
            .filter(|share| is_empty(share))
            .map(|share| {
                (
                    share.name.clone(),
                    *empty_since.get(&share.name).unwrap_or(&now),
                )
            })
            .collect();
        let steps = plan(&seen, &empty_since, now);
        let wait = if apply_steps(&client, &sight, &steps, &common).await {
            pause = AGAIN;
            TICK
        } else {
            // The observed version is outdated, and the new one is on its way; or the write is refused for good.
            tokio::time::sleep(AGAIN).await;
            pause = (pause * 2).min(TICK);
            pause
        };
        tokio::select! {
            () = sight.changed.notified() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
}

impl ReservationCache {
    /// Waits until everything was listed once: what was not seen is not to be taken for gone.
    async fn ready(&self) {
        self.pods.wait_until_listed().await;
        self.carriers.wait_until_listed().await;
        self.shares.wait_until_listed().await;
        self.nodes.wait_until_listed().await;
    }

    fn pod(&self, uid: &str) -> Result<Arc<Pod>, StepError> {
        let found = self
            .pods
            .find(|pod| pod.metadata.uid.as_deref() == Some(uid));
        found.ok_or_else(|| StepError::Gone(format!("pod {uid}")))
    }
}

/// Takes the steps in their order, but for those that one that failed stops; whether none failed.
async fn apply_steps(
    client: &Client,
    sight: &ReservationCache,
    steps: &[ReservationStep],
    common: &ReservationTemplate,
) -> bool {
    // A share that was written here is newer than the one that was looked at.
    let mut written = BTreeMap::new();
    let mut failed = Failed::default();
    let mut whole = true;
    for step in steps {
        if failed.stops(step) {
            continue;
        }
        tracing::info!("{step}");
        if let Err(error) = apply_step(client, sight, &mut written, step, common).await {
            tracing::info!("{error}; retrying");
            failed.add(step);
            whole = false;
        }
    }
    whole
}

async fn apply_step(
    client: &Client,
    sight: &ReservationCache,
    written: &mut BTreeMap<String, GpuShare>,
    step: &ReservationStep,
    common: &ReservationTemplate,
) -> Result<(), StepError> {
    match step {
        ReservationStep::Unassign { share, uid } => {
            write(client, sight, written, share, |spec| {
                spec.assignments.retain(|one| one.uid != *uid);
            })
            .await?;
        }
        ReservationStep::Assign { share, seeker } => {
            let assignment = Assignment {
                uid: seeker.uid.clone(),
                namespace: seeker.namespace.clone(),
                name: seeker.name.clone(),
                units: i64::from(seeker.units),
            };
            write(client, sight, written, share, |spec| {
                spec.assignments.push(assignment)
            })
            .await?;
        }
        ReservationStep::Drain { share, draining } => {
            write(client, sight, written, share, |spec| {
                spec.draining = *draining
            })
            .await?;
        }
        ReservationStep::Ungate { seeker, node } => {
            lift(client, &*sight.pod(&seeker.uid)?, node).await?
        }
        ReservationStep::Reserve { name, seeker } => {
            let pod = sight.pod(&seeker.uid)?;
            if let Some(spec) = &pod.spec {
                make(
                    client,
                    name,
                    serde_json::from_value(reservation_pod(name, spec, common)).ok(),
                )
                .await?;
            }
        }
        ReservationStep::DeleteShare { share } => {
            let shares = Api::<GpuShare>::namespaced(client.clone(), NAMESPACE);
            match shares.delete(share, &DeleteParams::default()).await {
                Err(error) if !cluster::is_missing(&error) => {
                    return Err(failed(format!("cannot delete {share}"), error));
                }
                _ => {}
            }
        }
        ReservationStep::Delete { carrier } => {
            let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
            match pods.delete(carrier, &DeleteParams::default()).await {
                Err(error) if !cluster::is_missing(&error) => {
                    return Err(failed(format!("cannot delete {carrier}"), error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn failed(what: String, source: kube::Error) -> StepError {
    StepError::Cluster { what, source }
}

/// Writes a changed share with the observed version; a concurrent write makes it fail.
async fn write(
    client: &Client,
    sight: &ReservationCache,
    written: &mut BTreeMap<String, GpuShare>,
    name: &str,
    change: impl FnOnce(&mut crate::carrier::share::GpuShareSpec),
) -> Result<(), StepError> {
    let seen = || {
        sight
            .shares
            .find(|share| share.metadata.name.as_deref() == Some(name))
    };
    let mut share = match written.remove(name) {
        Some(share) => share,
        None => (*seen().ok_or_else(|| StepError::Gone(name.to_owned()))?).clone(),
    };
    change(&mut share.spec);
    let api = Api::<GpuShare>::namespaced(client.clone(), NAMESPACE);
    let share = api.replace(name, &PostParams::default(), &share).await;
    let share = share.map_err(|error| failed(format!("cannot write {name}"), error))?;
    written.insert(name.to_owned(), share);
    Ok(())
}

/// For this very pod, as it was looked at.
async fn lift(client: &Client, pod: &Pod, node: &str) -> Result<(), StepError> {
    let (namespace, name) = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    let spec = ungated(pod, node).spec.unwrap_or_default();
    let patch = json!({
        "metadata": { "uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version },
        "spec": { "schedulingGates": spec.scheduling_gates, "affinity": spec.affinity },
    });
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let patched = pods
        .patch(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await;
    patched.map(drop).map_err(|error| {
        failed(
            format!("cannot remove the scheduling gate of {namespace}/{name}"),
            error,
        )
    })
}

async fn make(client: &Client, name: &str, pod: Option<Pod>) -> Result<(), StepError> {
    let Some(pod) = pod else {
        return Err(StepError::Gone(format!(
            "the pod that {name} was created for"
        )));
    };
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    match pods.create(&PostParams::default(), &pod).await {
        Err(error) if !cluster::is_already_exists(&error) => {
            Err(failed(format!("cannot create {name}"), error))
        }
        _ => Ok(()),
    }
}

impl std::fmt::Display for ReservationStep {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unassign { share, uid } => {
                write!(out, "{share}: removing the assignment of pod {uid}")
            }
            Self::Assign { share, seeker } => write!(
                out,
                "{share}: assigning {}/16 to {}/{}",
                seeker.units, seeker.namespace, seeker.name
            ),
            Self::Ungate { seeker, node } => {
                write!(
                    out,
                    "{}/{}: scheduling on {node}",
                    seeker.namespace, seeker.name
                )
            }
            Self::Reserve { name, seeker } => {
                write!(
                    out,
                    "{name}: creating the reservation pod for {}/{}",
                    seeker.namespace, seeker.name
                )
            }
            Self::Drain {
                share,
                draining: true,
            } => write!(
                out,
                "{share}: no longer accepts pods, its GPU will be released"
            ),
            Self::Drain {
                share,
                draining: false,
            } => write!(out, "{share}: accepts pods again"),
            Self::Delete { carrier } => write!(out, "{carrier}: deleting the reservation pod"),
            Self::DeleteShare { share } => write!(out, "{share}: deleting, its node is gone"),
        }
    }
}
