//! `divvy-k8s controller`: the admission webhook that turns pod requests into claims, and the reconcile loops of its
//! cluster objects.
//!
//! ```text
//!   API server ──HTTPS──► server ──► webhook ──► review (pure) ──► inject
//!                           │           └──► templates: makes the claim's template first
//!                         tls ──► identity (Secret or files), certificate, registration (CA bundle)
//!   slices, templates ──► informers ──► inventory                              every replica
//!   pods, claims, classes ──► reconcile ──► classes · templates · reason       the holder of the lease
//!   Kueue's Workloads ──► workloads ──┘
//!   Kueue's ClusterQueues, claims ──► reports: quota and GPU time for the members of a project
//! ```
//!
//! With `--only webhook` and `--only reconcile` two processes have one part each. All replicas of the webhook answer; the
//! leader maintains the device classes and templates, and writes events with the reason why a
//! pod waits. All state is in the cluster: any replica may die at any point, and the next call completes what was half
//! done. The scheduler places pods, and the node enforces their limits.

pub(crate) mod capacity;
pub(crate) mod certificate;
mod classes;
mod dispatch;
mod health;
mod holders;
pub(crate) mod identity;
pub(crate) mod informers;
mod inventory;
mod lease;
mod owner;
pub(crate) mod pending;
pub(crate) mod reason;
mod reconcile;
mod registration;
mod reports;
mod reservation;
mod review;
mod templates;
mod tls;
mod webhook;
mod workloads;

use std::future::pending;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::api::Api;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tracing::info;

pub use registration::{PATH, Registration, webhooks};
pub use review::{
    AdmissionDecision, AdmissionRequest, NoReview, RefusedAs, Rejection, answer, judge, question,
};

use crate::base::cluster::{self, ClusterError};
use crate::base::pod_request::Steps;
use crate::base::server;
use crate::base::sharing::{CarrierNodes, Sharing};
use crate::base::slices::inventory_of;
use crate::carrier::pod::ReservationTemplate;
use dispatch::Dispatch;
use identity::CertSource;
use webhook::SharingMode;

/// How often what nodes publish is noted as being there still. The inventory remembers it for an hour (`REMEMBERED`),
/// so a minute loses nothing, and each note reads every slice.
const NOTES: Duration = Duration::from_secs(60);

/// The part of the controller that a process runs. The chart runs each in pods of its own, so that neither the memory nor a
/// fault of the reconcile loops stops admissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Webhook,
    Reconcile,
}

#[derive(clap::Args)]
pub struct Args {
    /// Only the webhook, or only the reconcile loops [default: both]
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// Address of the webhook (HTTPS)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Address of /healthz and /readyz (HTTP)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    health_listen: SocketAddr,
    /// Also serves GET /metrics at --health-listen
    #[arg(long)]
    metrics: bool,
    /// Namespace of its objects [default: that of its pod or kubeconfig]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// Service of the webhook
    #[arg(long, value_name = "NAME", default_value = "divvy-webhook")]
    service: String,
    /// Name of the MutatingWebhookConfiguration
    #[arg(long, value_name = "NAME", default_value = "divvy")]
    webhook: String,
    /// Secret for the certificate that it creates
    #[arg(long, value_name = "NAME", default_value = "divvy-webhook-tls")]
    tls_secret: String,
    /// Additional host name or address in the certificate
    #[arg(long = "tls-name", value_name = "NAME", conflicts_with = "tls_cert")]
    tls_names: Vec<String>,
    /// Certificate file, instead of a certificate that it creates
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// CA bundle of --tls-cert, to write into the webhook configuration
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<PathBuf>,
    /// Lease for leader election
    #[arg(long, value_name = "NAME", default_value = "divvy-controller")]
    lease: String,
    /// Seconds without renewal until another replica leads
    #[arg(long, value_name = "SECONDS", default_value_t = lease::LENGTH.as_secs(), value_parser = clap::value_parser!(u64).range(3..))]
    lease_seconds: u64,
    /// Name of this replica in the Lease [default: the host name]
    #[arg(long, value_name = "NAME")]
    identity: Option<String>,
    /// Accepts any GPU fraction, not only 1/16 and multiples of 1/8
    #[arg(long)]
    any_fraction: bool,
    /// Also serves the pods of this scheduler, which must place claims; repeat it for each
    #[arg(long = "scheduler", value_name = "NAME", value_parser = scheduler)]
    schedulers: Vec<String>,
    /// Also serves nvidia.com/gpu; not together with NVIDIA's device plugin
    #[arg(long)]
    nvidia_gpu: bool,
    /// Carrier mode, for older clusters or with NVIDIA's device plugin
    #[arg(long, requires = "carrier_image")]
    carrier: bool,
    /// With --carrier: image of reservation pods; must contain divvy-k8s
    #[arg(long, value_name = "IMAGE")]
    carrier_image: Option<String>,
    /// With --carrier: only nodes with all of these labels; other nodes have claims
    #[arg(long, value_name = "KEY=VALUE,…", requires = "carrier")]
    carrier_nodes: Option<CarrierNodes>,
    /// With --carrier-nodes: how pods share GPUs that do not say it, nor their namespace
    #[arg(long, value_name = "MODE", default_value = "claims")]
    sharing: Sharing,
    /// Seconds for which it still answers after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    drain_seconds: u64,
    /// Prints the MutatingWebhookConfiguration and exits
    #[arg(long)]
    print_webhook: bool,
    /// With --print-webhook: not only for namespaces with Divvy's label
    #[arg(long, requires = "print_webhook")]
    all_namespaces: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error("{address}")]
    Listen {
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error("cannot wait for signals")]
    Signals(#[source] io::Error),
    #[error("cannot serve TLS")]
    Tls(#[from] rustls::Error),
    #[error("a task of the controller ended unexpectedly")]
    Broken,
    #[error("cannot print the configuration")]
    Print(#[source] io::Error),
}

/// Runs until it is told to end by SIGTERM or SIGINT, and then until what was asked has been answered.
///
/// # Errors
/// No cluster is known, or an address is taken. What fails later is logged, and tried again.
pub async fn run(args: Args) -> Result<(), ControllerError> {
    if args.print_webhook {
        return print(&args);
    }
    let client = cluster::client().await?;
    let namespace = args.namespace.clone();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let (answers, reconciles) = match args.only {
        None => (true, true),
        Some(part) => (part == Part::Webhook, part == Part::Reconcile),
    };
    let failed = |address| move |error| ControllerError::Listen { address, error };
    let health = server::listen(args.health_listen).await;
    let (health, health_address) = health.map_err(failed(args.health_listen))?;
    let door = if answers {
        let door = server::listen(args.listen).await;
        let (door, address) = door.map_err(failed(args.listen))?;
        info!(%address, health = %health_address, namespace, "listening");
        Some(door)
    } else {
        info!(health = %health_address, namespace, "reconciling");
        None
    };

    let (stop, stopped) = watch::channel(false);
    let (leads, leading) = watch::channel(false);
    let ready = Arc::new(health::Ready::default());
    let shown = Arc::new(server::ServingCert::default());
    let owner = Arc::new(owner::OwnerRef::default());
    let mut tasks = JoinSet::new();

    let router = health::router(Arc::clone(&ready), args.metrics);
    tasks.spawn(server::serve_health(health, router));
    if answers {
        let keeper = tls::CertRotator {
            client: client.clone(),
            place: place(&args, &namespace),
            names: names(&args, &namespace),
            configuration: args.webhook.clone(),
            owner: Arc::clone(&owner),
            shown: Arc::clone(&shown),
            ready: Arc::clone(&ready),
        };
        tasks.spawn(keeper.run());
    } else {
        // No certificate is served here.
        ready.certificate(true);
        let follow = Arc::clone(&owner).follow(Api::all(client.clone()), args.webhook.clone());
        tasks.spawn(follow);
    }
    let identity = args.identity.clone().unwrap_or_else(host);
    let steps = if args.any_fraction {
        Steps::Any
    } else {
        Steps::Eighths
    };
    let webhook_of = |mode| webhook::Webhook {
        mode,
        steps,
        schedulers: args.schedulers.clone(),
    };
    let carriers = match &args.carrier_image {
        Some(image) if args.carrier => {
            let (shares, seen) = (reservation::shares(&client, &mut tasks), ready.clone());
            let listed = Arc::clone(&shares);
            tokio::spawn(async move {
                listed.wait_until_listed().await;
                seen.cluster();
            });
            if reconciles {
                let common = ReservationTemplate {
                    image: image.clone(),
                    nodes: args.carrier_nodes.clone().unwrap_or_default(),
                };
                let lead = reservation::lead(client.clone(), common, leading.clone());
                tasks.spawn(lead);
            }
            Some(webhook_of(SharingMode::Reservations(shares)))
        }
        _ => None,
    };
    let claims = if carriers.is_none() || args.carrier_nodes.is_some() {
        let bell = watch::Sender::new(0);
        let known = Arc::new(inventory::SharedInventory::default());
        let seen = Arc::new(informers::Cache::watch(&client, &bell, &mut tasks));
        tasks.spawn(note(
            Arc::clone(&seen),
            Arc::clone(&known),
            bell.subscribe(),
            Arc::clone(&ready),
        ));
        let templates = templates::Templates {
            client: client.clone(),
            seen: Arc::clone(&seen.templates),
            owner: Arc::clone(&owner),
        };
        if reconciles {
            let work = reconcile::LeaderContext {
                client: client.clone(),
                seen,
                known: Arc::clone(&known),
                owner,
                identity: identity.clone(),
                nvidia_gpu: args.nvidia_gpu,
            };
            tasks.spawn(reconcile::lead(work, bell, leading));
        }
        Some(webhook_of(SharingMode::Claims { known, templates }))
    } else {
        None
    };
    let webhook = match (claims, carriers) {
        (Some(claims), Some(carriers)) => Dispatch::Both {
            claims,
            carriers,
            namespaces: reservation::namespaces(&client, &mut tasks),
            default: args.sharing,
        },
        (Some(webhook), None) => Dispatch::One {
            mode: Sharing::Claims,
            webhook,
        },
        (None, Some(webhook)) => Dispatch::One {
            mode: Sharing::Carrier,
            webhook,
        },
        // One of both was made above.
        (None, None) => return Err(ControllerError::Broken),
    };
    let terms = lease::LeaseConfig {
        namespace,
        name: args.lease.clone(),
        me: identity,
        length: Duration::from_secs(args.lease_seconds),
    };
    let mut lease =
        reconciles.then(|| tokio::spawn(lease::keep(client, terms, leads, stopped.clone())));
    let (close, closed) = watch::channel(false);
    let mut serving =
        door.map(|door| tokio::spawn(server::serve(door, Some(shown), Arc::new(webhook), closed)));

    tokio::select! {
        told = told_to_end() => told.map_err(ControllerError::Signals)?,
        broken = one_breaks(&mut tasks, &mut lease, &mut serving) => return Err(broken),
    }
    info!("ending");
    ready.leave();
    stop.send_replace(true);
    if answers {
        // The Service's endpoints change a little later, and until then the API server still sends requests here.
        sleep(Duration::from_secs(args.drain_seconds)).await;
    }
    close.send_replace(true);
    // A task that panicked has said so.
    let served = match serving {
        Some(serving) => serving.await.unwrap_or(Ok(())),
        None => Ok(()),
    };
    if let Some(lease) = lease {
        let _ = lease.await;
    }
    tasks.shutdown().await;
    Ok(served?)
}

/// A scheduler's name, which becomes part of an expression.
fn scheduler(text: &str) -> Result<String, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !text.is_empty() && text.len() <= 253 && text.bytes().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("write the value of a pod's schedulerName, such as volcano".to_owned())
    }
}

/// Returns once a part has ended, which none does by itself. The process then exits, so that kubelet restarts it whole.
async fn one_breaks<A, B>(
    tasks: &mut JoinSet<()>,
    lease: &mut Option<JoinHandle<A>>,
    serving: &mut Option<JoinHandle<B>>,
) -> ControllerError {
    tokio::select! {
        Some(_) = tasks.join_next() => {}
        () = end(lease) => {}
        () = end(serving) => {}
    }
    ControllerError::Broken
}

/// Returns once a part has ended; never for a part that this process does not run.
async fn end<T>(part: &mut Option<JoinHandle<T>>) {
    match part {
        Some(part) => drop(part.await),
        None => pending().await,
    }
}

fn print(args: &Args) -> Result<(), ControllerError> {
    let registration = Registration {
        name: &args.webhook,
        namespace: args.namespace.as_deref().unwrap_or(cluster::NAMESPACE),
        service: &args.service,
        all_namespaces: args.all_namespaces,
        schedulers: &args.schedulers,
    };
    let text = yaml_serde::to_string(&registration.object());
    let text = text.map_err(|error| ControllerError::Print(io::Error::other(error)))?;
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(ControllerError::Print)
}

fn place(args: &Args, namespace: &str) -> CertSource {
    match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => CertSource::Files {
            certificate: certificate.clone(),
            key: key.clone(),
            bundle: args.tls_ca.clone(),
        },
        _ => CertSource::Secret {
            namespace: namespace.to_owned(),
            name: args.tls_secret.clone(),
        },
    }
}

/// As the API server calls a Service's pods, and what else was wanted.
fn names(args: &Args, namespace: &str) -> Vec<String> {
    let service = format!("{}.{namespace}.svc", args.service);
    std::iter::once(service)
        .chain(args.tls_names.iter().cloned())
        .collect()
}

/// A pod's host is called as the pod is, after a restart of its container as well.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(
        |_| "divvy-controller".to_owned(),
        |name| name.trim().to_owned(),
    )
}

/// Keeps what is known of the cluster's GPUs up to what is published.
async fn note(
    seen: Arc<informers::Cache>,
    known: Arc<inventory::SharedInventory>,
    mut rung: watch::Receiver<u64>,
    ready: Arc<health::Ready>,
) {
    seen.wait_until_synced().await;
    loop {
        rung.mark_unchanged();
        let published = seen.slices.state();
        known.see(
            Instant::now(),
            &inventory_of(published.iter().map(AsRef::as_ref)),
        );
        ready.cluster();
        tokio::select! {
            () = sleep(NOTES) => {}
            rung = rung.changed() => if rung.is_err() { return },
        }
    }
}

pub(crate) async fn told_to_end() -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Parts of which the one of this number ends, or panics where it is to.
    async fn breaks(which: usize, panics: bool) -> ControllerError {
        let part = |number| async move {
            if number == which {
                assert!(!panics, "as a bug would")
            } else {
                pending().await
            }
        };
        let mut tasks = JoinSet::new();
        tasks.spawn(part(0));
        tasks.spawn(part(1));
        let mut lease = Some(tokio::spawn(part(2)));
        let mut serving = Some(tokio::spawn(part(3)));
        one_breaks(&mut tasks, &mut lease, &mut serving).await
    }

    #[tokio::test(flavor = "current_thread")]
    async fn any_part_that_ends_ends_it_all() {
        for which in 0..4 {
            for panics in [false, true] {
                let broken = breaks(which, panics).await;
                assert!(matches!(broken, ControllerError::Broken), "{which}");
            }
        }
        assert!(breaks(4, false).now_or_never().is_none());
    }
}
