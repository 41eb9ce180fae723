//! The leader's reconcile loop: device classes, claim templates, and events for waiting pods.
//!
//! Level, not edge: whenever something has changed everything is looked at anew, and what is not as it should be is mended, one call at a
//! time. A call that fails is made again next time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::capacity::capacity;
use super::holders::Holders;
use super::informers::{Cache, ChangeSignal, LeaderCache};
use super::inventory::SharedInventory;
use super::owner::OwnerRef;
use super::pending::Pending;
use super::reason::why;
use super::{classes, templates};
use crate::cluster::{chain, error_message};
use crate::slices;

/// Nothing is looked at more often than this, however much happens.
const PAUSE: Duration = Duration::from_millis(500);
/// And everything at least so often: time itself removes templates.
const ROUND: Duration = Duration::from_secs(30);
/// A pod is told another reason at most so often.
const BETWEEN_EVENTS: Duration = Duration::from_secs(60);
/// The reporter's name in events.
const REPORTER: &str = "gpu.divvy.dev/controller";

/// The leader's handles and settings.
#[derive(Clone)]
pub struct LeaderContext {
    pub client: Client,
    pub seen: Arc<Cache>,
    pub known: Arc<SharedInventory>,
    pub owner: Arc<OwnerRef>,
    pub identity: String,
    /// Whether `nvidia.com/gpu` is served too.
    pub nvidia_gpu: bool,
}

/// Works while this replica leads.
pub async fn lead(work: LeaderContext, bell: ChangeSignal, mut leads: watch::Receiver<bool>) {
    while leads.wait_for(|leads| *leads).await.is_ok() {
        let mut tasks = JoinSet::new();
        tokio::select! {
            () = rounds(&work, &bell, &mut tasks) => {}
            _ = leads.wait_for(|leads| !*leads) => {}
        }
        tasks.shutdown().await;
    }
}

async fn rounds(work: &LeaderContext, bell: &ChangeSignal, tasks: &mut JoinSet<()>) {
    let leaders = LeaderCache::watch(&work.client, bell, tasks);
    let holders = Holders::watch(&work.client, bell, tasks);
    work.seen.wait_until_synced().await;
    leaders.wait_until_synced().await;
    let mut rung = bell.subscribe();
    let reporter = Reporter {
        controller: REPORTER.to_owned(),
        instance: Some(work.identity.clone()),
    };
    let mut memory = ReconcileState {
        idle_classes: classes::IdleSince::new(),
        idle_templates: templates::IdleSince::new(),
        told: BTreeMap::new(),
        recorder: Recorder::new(work.client.clone(), reporter),
    };
    loop {
        rung.mark_unchanged();
        reconcile(work, &leaders, &holders, &mut memory).await;
        sleep(PAUSE).await;
        // Err says that nothing has rung.
        let _ = timeout(ROUND, rung.changed()).await;
    }
}

/// The state that is carried from one round to the next.
struct ReconcileState {
    idle_classes: classes::IdleSince,
    idle_templates: templates::IdleSince,
    /// The last event of each pod, by uid, with its time.
    told: BTreeMap<String, (String, Instant)>,
    recorder: Recorder,
}

async fn reconcile(
    work: &LeaderContext,
    leaders: &LeaderCache,
    holders: &Holders,
    memory: &mut ReconcileState,
) {
    let published = work.seen.slices.state();
    let published = || published.iter().map(AsRef::as_ref);
    work.known
        .see(Instant::now(), &slices::inventory_of(published()));
    let (claims, templates) = (leaders.claims.state(), work.seen.templates.state());
    let (claims, templates) = (
        || claims.iter().map(AsRef::as_ref),
        || templates.iter().map(AsRef::as_ref),
    );
    let (inventory, now) = (work.known.inventory(), Timestamp::now());

    let named = classes::named(claims(), templates());
    let wanted = slices::classes(&inventory, work.nvidia_gpu);
    let (there, owner) = (leaders.classes.state(), work.owner.reference());
    let there = there.iter().map(AsRef::as_ref);
    let idle = &mut memory.idle_classes;
    for step in classes::steps(there, wanted, &named, owner.as_ref(), now, idle) {
        if let Err(error) = step.run(&work.client).await {
            warn!(
                error = error_message(&error),
                ?step,
                "cannot update a DeviceClass; retrying"
            );
        }
    }

    let pods = leaders.pods.state();
    let pods: Vec<Pending> = pods.iter().filter_map(|pod| Pending::of(pod)).collect();
    let idle = &mut memory.idle_templates;
    let held = holders.held();
    for step in templates::steps(templates(), &pods, &held, &inventory, now, idle) {
        if let Err(error) = step.run(&work.client, &work.owner).await {
            warn!(
                error = error_message(&error),
                ?step,
                "cannot update a ResourceClaimTemplate; retrying"
            );
        }
    }

    let offered = capacity(published(), claims());
    memory.forget_others(&pods);
    for pod in &pods {
        let claim = pod.claim.as_ref().and_then(|name| {
            let claim = ObjectRef::new(name).within(&pod.namespace);
            leaders.claims.get(&claim)
        });
        if let Some(text) = why(pod, claim.as_deref(), &offered, &inventory) {
            memory.emit_event(pod, text).await;
        }
    }
}

impl ReconcileState {
    fn forget_others(&mut self, pods: &[Pending]) {
        let waits = |uid: &String| pods.iter().any(|pod| pod.uid == *uid);
        self.told.retain(|uid, _| waits(uid));
    }

    async fn emit_event(&mut self, pod: &Pending, text: String) {
        let now = Instant::now();
        if let Some((told, when)) = self.told.get(&pod.uid)
            && (*told == text || now.duration_since(*when) < BETWEEN_EVENTS)
        {
            return;
        }
        let event = Event {
            type_: EventType::Warning,
            reason: "WaitsForGpu".to_owned(),
            note: Some(text.clone()),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            ..ObjectReference::default()
        };
        match self.recorder.publish(&event, &regarding).await {
            Ok(()) => {
                self.told.insert(pod.uid.clone(), (text, now));
            }
            Err(error) => warn!(
                pod = pod.name,
                error = chain(&error),
                "cannot write an event"
            ),
        }
    }
}
