//! The leader's reconcile loop: device classes, claim templates, and events for waiting pods.
//!
//! Level, not edge: whenever something has changed everything is looked at anew, and what is not as it should be is mended, one call at a
//! time. A call that fails is made again next time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
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
use super::workloads::{WaitingWorkload, WaitingWorkloads};
use super::{classes, reports, templates};
use crate::base::cluster::{chain, error_message};
use crate::base::metrics::controller::{METRICS, Object, WaitingPods};
use crate::base::slices;

/// The shortest interval between two rounds of the controller. A burst of events becomes one round; a longer pause
/// would delay the start of pods.
const PAUSE: Duration = Duration::from_millis(500);
/// And everything at least so often: time itself removes templates.
const ROUND: Duration = Duration::from_secs(30);
/// A pod is told another reason at most so often.
const BETWEEN_EVENTS: Duration = Duration::from_secs(60);
/// Events on Jobs and the like in one round: thousands may wait for a quota, and classes and templates come first.
/// Rounds are half a second apart, so more would delay them, and fewer the thousands.
const JOB_EVENTS: usize = 50;
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
    let leaders = Arc::new(LeaderCache::watch(&work.client, bell, tasks));
    tasks.spawn(reports::keep(
        work.client.clone(),
        Arc::clone(&work.seen),
        Arc::clone(&leaders),
    ));
    let waiting = Arc::new(WaitingWorkloads::default());
    {
        let (waiting, client, bell) = (Arc::clone(&waiting), work.client.clone(), bell.clone());
        tasks.spawn(async move { waiting.watch(&client, &bell).await });
    }
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
        reconcile(work, &leaders, (&holders, &waiting), &mut memory).await;
        sleep(PAUSE).await;
        // Err says that nothing has rung.
        let _ = timeout(ROUND, rung.changed()).await;
    }
}

/// The state that is carried from one round to the next.
struct ReconcileState {
    idle_classes: classes::IdleSince,
    idle_templates: templates::IdleSince,
    /// The last event of each pod or Job, by uid, with its time.
    told: BTreeMap<String, (String, Instant)>,
    recorder: Recorder,
}

async fn reconcile(
    work: &LeaderContext,
    leaders: &LeaderCache,
    (holders, waiting): (&Holders, &WaitingWorkloads),
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
            METRICS.reconcile_failed(Object::DeviceClass);
        }
    }

    let pods = leaders.pods.state();
    let idle = &mut memory.idle_templates;
    let held = holders.held();
    for step in templates::steps(templates(), &pods, &held, &inventory, now, idle) {
        if let Err(error) = step.run(&work.client, &work.owner).await {
            warn!(
                error = error_message(&error),
                ?step,
                "cannot update a ResourceClaimTemplate; retrying"
            );
            METRICS.reconcile_failed(Object::ClaimTemplate);
        }
    }

    let offered = capacity(published(), claims());
    let queued = waiting.all();
    let by_owner: BTreeMap<&str, &WaitingWorkload> = queued
        .iter()
        .filter_map(|one| Some((one.owner.uid.as_deref()?, &**one)))
        .collect();
    memory.forget_others(&pods, &by_owner);
    let mut counts = WaitingPods::default();
    for pod in &pods {
        let claim = pod.claim.as_ref();
        let claim = claim.and_then(|name| leaders.claims.get(&pod.namespace, name));
        // Kueue's gate comes before the scheduler.
        let queue = by_owner.get(pod.uid.as_str()).map(|one| one.text.clone());
        let is_queued = queue.is_some();
        let text = queue.or_else(|| why(pod, claim.as_deref(), &offered, &inventory));
        match (&text, pod.has_no_place) {
            (Some(_), _) if is_queued => counts.queued += 1,
            (Some(_), _) => counts.no_room += 1,
            (None, true) => counts.unschedulable += 1,
            (None, false) => counts.pending += 1,
        }
        if let Some(text) = text {
            memory.emit_event(&regarding(pod), text).await;
        }
    }
    METRICS.waiting(counts);
    // A suspended Job has no pod: its event is on the Job.
    let of_others = queued.iter().filter(|one| {
        let uid = one.owner.uid.as_deref().unwrap_or_default();
        one.owner.kind.as_deref() != Some("Pod") && memory.is_due(uid, &one.text)
    });
    let due: Vec<&Arc<WaitingWorkload>> = of_others.take(JOB_EVENTS).collect();
    for one in due {
        memory.emit_event(&one.owner, one.text.clone()).await;
    }
}

fn regarding(pod: &Pending) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(pod.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

impl ReconcileState {
    fn forget_others(&mut self, pods: &[Arc<Pending>], queued: &BTreeMap<&str, &WaitingWorkload>) {
        let pods: BTreeSet<&str> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        self.told
            .retain(|uid, _| pods.contains(uid.as_str()) || queued.contains_key(uid.as_str()));
    }

    fn is_due(&self, uid: &str, text: &str) -> bool {
        let fresh = |when: &Instant| when.elapsed() < BETWEEN_EVENTS;
        !self
            .told
            .get(uid)
            .is_some_and(|(told, when)| told.as_str() == text || fresh(when))
    }

    async fn emit_event(&mut self, regarding: &ObjectReference, text: String) {
        let uid = regarding.uid.clone().unwrap_or_default();
        if !self.is_due(&uid, &text) {
            return;
        }
        let event = Event {
            type_: EventType::Warning,
            reason: "WaitsForGpu".to_owned(),
            note: Some(text.clone()),
            action: "Scheduling".to_owned(),
            secondary: None,
        };
        match self.recorder.publish(&event, regarding).await {
            Ok(()) => {
                self.told.insert(uid, (text, Instant::now()));
            }
            Err(error) => {
                METRICS.reconcile_failed(Object::Event);
                warn!(
                    object = regarding.name,
                    error = chain(&error),
                    "cannot write an event"
                );
            }
        }
    }
}
