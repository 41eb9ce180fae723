//! Incidents: bypasses and refusals of a claim, reported as Kubernetes events on the claim's pods.
//!
//! ```text
//!   agent ── event stream: bypass, tampered ──┐
//!         ── claims: refusals, counted ───────┴─► Journal (pure): one event a minute of a claim and reason ──► events on its pods
//! ```
//! The agent's journal is the record. An event only announces it, and may be lost while this program is away for more
//! than a minute.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode, Event, HeldClaim};
use divvy_core::escape;
use divvy_core::units::Bytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::node::agent::Agent;
use crate::node::events::{EventTarget, Kind};
use crate::node::plugin::DraDriver;

/// Between two looks at what the claims were refused. A user sees the event within seconds; a claim refused in a loop
/// needs no faster look.
const LOOK: Duration = Duration::from_secs(5);
/// Between two tries to follow the agent's events. A daemon restarts within seconds; the events since then are read
/// from its journal, so none is lost.
const AGAIN: Duration = Duration::from_secs(1);
/// Between two events of one claim and reason. A program that is refused in a loop would fill the namespace's events;
/// Kubernetes counts repetitions too.
const BETWEEN: Duration = Duration::from_secs(60);
/// Events of the agent that are older than this program by more are not told: an earlier run has told them. Longer than
/// a restart of this program takes, so that none between two runs is lost.
const BEFORE: SignedDuration = SignedDuration::from_secs(60);
/// Claims and reasons of which news waits; a node has a few claims, each with two reasons. So more would need a fault;
/// the oldest is dropped then.
const MOST: usize = 1024;
/// Pods of a claim that get an event; a claim may be of 256 (`ResourceClaimReservedForMaxSize`). Each event is a call,
/// so 256 would hold up the API server for one fault.
const MOST_PODS: usize = 16;
/// Bytes of a note: an event has 1,024 at most (`NoteLengthLimit`, events.k8s.io/v1).
const MOST_TEXT: usize = 1000;

/// The reason of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// A process holds GPU memory past its slice's account, or its slice is overdrawn.
    Bypass,
    /// Another process than the agent changed the slice's control file.
    Tampered,
    /// The limit refused memory.
    Refused,
}

impl Reason {
    fn of(kind: &str) -> Option<Self> {
        match kind {
            "bypass" => Some(Self::Bypass),
            "tampered" => Some(Self::Tampered),
            _ => None,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Bypass => "GpuMemoryBypass",
            Self::Tampered => "GpuLimitTampered",
            Self::Refused => "GpuMemoryRefused",
        }
    }
}

/// The claim that an incident is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRef {
    uid: String,
    namespace: String,
    name: String,
}

impl ClaimRef {
    fn held(held: &HeldClaim) -> Self {
        Self {
            uid: held.uid.clone(),
            namespace: held.namespace.clone(),
            name: held.name.clone(),
        }
    }
}

/// News of one claim and reason: the newest text, and how many there were.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PendingIncident {
    text: String,
    count: u32,
}

/// Pending and reported incidents.
#[derive(Debug, Default)]
pub struct IncidentLog {
    news: BTreeMap<(ClaimRef, Reason), PendingIncident>,
    told: BTreeMap<(ClaimRef, Reason), Instant>,
    /// Refusals that were told, by the claim's uid.
    refused: BTreeMap<String, u64>,
}

impl IncidentLog {
    fn note(&mut self, claim: ClaimRef, reason: Reason, text: &str) {
        let key = (claim, reason);
        if self.news.len() >= MOST && !self.news.contains_key(&key) {
            tracing::warn!("claim {}/{}: {text}", key.0.namespace, key.0.name);
            return;
        }
        let count = self.news.get(&key).map_or(0, |news| news.count);
        let (text, count) = (plain(text), count.saturating_add(1));
        self.news.insert(key, PendingIncident { text, count });
    }

    /// Notes what the claims were refused since they were last looked at, and forgets claims that are held no more.
    fn count(&mut self, held: &[HeldClaim]) {
        self.refused
            .retain(|uid, _| held.iter().any(|held| held.uid == *uid));
        for held in held {
            self.count_one(held);
        }
    }

    fn count_one(&mut self, held: &HeldClaim) {
        let refused = held.slices.iter().map(|slice| slice.denials).sum();
        let told = self.refused.entry(held.uid.clone()).or_default();
        if refused > *told {
            *told = refused;
            self.note(ClaimRef::held(held), Reason::Refused, &refusals(held));
        }
    }

    /// The events to send now: none for a claim and reason that had one in the last minute.
    fn due(&mut self, now: Instant) -> Vec<(ClaimRef, Reason, String)> {
        self.told
            .retain(|_, told| now.duration_since(*told) < BETWEEN);
        let told = &mut self.told;
        let due = self.news.extract_if(.., |key, _| !told.contains_key(key));
        let due: Vec<_> = due.collect();
        let text = |reason: Reason, news: PendingIncident| match (reason, news.count) {
            // Its figures are of all refusals.
            (Reason::Refused, _) | (_, 1) => news.text,
            (_, count) => format!("{}; {} more since the last event", news.text, count - 1),
        };
        told.extend(due.iter().map(|(key, _)| (key.clone(), now)));
        due.into_iter()
            .map(|((of, reason), news)| (of, reason, text(reason, news)))
            .collect()
    }

    /// The last events of a claim that is about to be released, regardless of the time since the previous ones.
    fn last(&mut self, held: &HeldClaim) -> Vec<(ClaimRef, Reason, String)> {
        self.count_one(held);
        let claim = ClaimRef::held(held);
        self.told.retain(|(told, _), _| *told != claim);
        self.due(Instant::now())
    }
}

/// `GPU 0 refused 12 allocations at the limit of 9.9 GiB, the last of 2.0 GiB; 9.0 GiB are in use`.
fn refusals(held: &HeldClaim) -> String {
    let human = |bytes: u64| Bytes::new(bytes).human();
    let refusing = held.slices.iter().filter(|slice| slice.denials > 0);
    let texts = refusing.map(|slice| {
        let last = slice.last_denied_bytes.map(human);
        let last = last.map_or_else(String::new, |last| format!(", the last of {last}"));
        let allocations = match slice.denials {
            1 => "1 allocation".to_owned(),
            many => format!("{many} allocations"),
        };
        format!(
            "the memory limit of {} on GPU {} refused {allocations}{last}; {} in use now",
            human(slice.memory_limit_bytes),
            slice.gpu_index,
            human(slice.memory_used_bytes)
        )
    });
    texts.collect::<Vec<_>>().join("; ")
}

/// A text that a terminal shows as it is, and that an event can hold: it may have a program's name in it.
fn plain(text: &str) -> String {
    let mut text = text.replace(escape::is_hidden, "\u{fffd}");
    text.truncate(text.floor_char_boundary(MOST_TEXT));
    text
}

/// Tells of incidents for as long as the driver runs.
pub async fn run(plugin: Arc<DraDriver>, mut stop: watch::Receiver<bool>) {
    let told = async {
        tokio::join!(follow(&plugin), poll_refusals(&plugin));
    };
    tokio::select! {
        _ = stop.wait_for(|stop| *stop) => {}
        () = told => {}
    }
}

/// Notes refusals, and tells what is due.
async fn poll_refusals(plugin: &DraDriver) {
    loop {
        if let Ok(held) = plugin.agent().held_now().await {
            journal(plugin).count(&held);
        }
        emit_due(plugin).await;
        sleep(LOOK).await;
    }
}

/// Follows the agent's events, over its restarts.
async fn follow(plugin: &DraDriver) {
    let mut after = 0;
    let mut since = Timestamp::now() - BEFORE;
    loop {
        if !is_kept(plugin.agent(), after).await {
            (after, since) = (0, Timestamp::now() - BEFORE);
        }
        match follow_once(plugin, &mut after, since).await {
            Err(error) if error.code != ErrorCode::NoDaemon => {
                tracing::debug!("cannot follow the daemon's events: {error}");
            }
            _ => {}
        }
        sleep(AGAIN).await;
    }
}

/// Whether the agent's journal has the event of this number: it forgets old ones, and may be another journal than before.
async fn is_kept(agent: &Agent, number: u64) -> bool {
    if number == 0 {
        return true;
    }
    match agent.events_now(number - 1).await {
        Ok(events) => !events.is_empty(),
        Err(error) => error.code != ErrorCode::Gone,
    }
}

async fn follow_once(plugin: &DraDriver, after: &mut u64, since: Timestamp) -> Result<(), Error> {
    let mut events = plugin.agent().follow_events(*after).await?;
    while let Some(event) = events.next().await? {
        let heard = handle_event(plugin, &event, since).await;
        // An agent that went away meanwhile is asked again.
        if !matches!(&heard, Err(error) if error.code == ErrorCode::NoDaemon) {
            *after = event.seq;
        }
        heard?;
    }
    Ok(())
}

async fn handle_event(plugin: &DraDriver, event: &Event, since: Timestamp) -> Result<(), Error> {
    let reason = Reason::of(&event.kind).filter(|_| event.at >= since);
    let (Some(reason), Some(job)) = (reason, &event.job) else {
        return Ok(());
    };
    if let Some(claim) = claim_of(plugin.agent(), job).await? {
        journal(plugin).note(claim, reason, &event.text);
        emit_due(plugin).await;
    }
    Ok(())
}

/// The claim that a job is; `None` for other jobs, and for one that is forgotten.
async fn claim_of(agent: &Agent, job: &str) -> Result<Option<ClaimRef>, Error> {
    match agent.job_now(job).await {
        Ok(job) => Ok(job.claim.map(|claim| ClaimRef {
            uid: claim.uid,
            namespace: claim.namespace,
            name: claim.name,
        })),
        Err(error) if error.code == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A claim is about to be let go: what it was refused since the last look is told.
pub async fn last_look(plugin: &Arc<DraDriver>, uid: &str) {
    let Ok(held) = plugin.agent().held_now().await else {
        return;
    };
    let Some(held) = held.iter().find(|held| held.uid == uid) else {
        return;
    };
    let last = journal(plugin).last(held);
    for (of, reason, text) in last {
        let plugin = Arc::clone(plugin);
        // Kubelet does not wait for it.
        tokio::spawn(async move { tell_one(&plugin, &of, reason, text).await });
    }
}

fn journal(plugin: &DraDriver) -> MutexGuard<'_, IncidentLog> {
    let journal: &Mutex<IncidentLog> = plugin.incidents();
    journal
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

async fn emit_due(plugin: &DraDriver) {
    let due = journal(plugin).due(Instant::now());
    for (of, reason, text) in due {
        tell_one(plugin, &of, reason, text).await;
    }
}

/// An event of a claim that has been deleted.
pub(super) async fn tell_pods(plugin: &DraDriver, held: &HeldClaim, reason: &str, text: String) {
    tell(plugin, &ClaimRef::held(held), reason, text).await;
}

async fn tell_one(plugin: &DraDriver, claim: &ClaimRef, reason: Reason, text: String) {
    tell(plugin, claim, reason.as_str(), text).await;
}

/// An event on each pod that the claim is reserved for, or was before it was deleted; on the claim where these are not
/// known.
async fn tell(plugin: &DraDriver, claim: &ClaimRef, reason: &str, text: String) {
    let found = plugin.claim_at_hand(&claim.namespace, &claim.name).await;
    let found = found.ok().flatten();
    let mut pods = found.map_or_else(Vec::new, |found| pods(&found, &claim.uid));
    if pods.is_empty() {
        pods = plugin.pods().known(&claim.uid);
    }
    let about = |kind, name, uid| EventTarget {
        kind,
        namespace: &claim.namespace,
        name,
        uid,
    };
    let events = plugin.events();
    if pods.is_empty() {
        let about = about(Kind::Claim, &claim.name, &claim.uid);
        events.warn(about, reason, "Enforce", text).await;
        return;
    }
    for (name, uid) in &pods {
        let about = about(Kind::Pod, name, uid);
        events.warn(about, reason, "Enforce", text.clone()).await;
    }
}

/// Name and uid of the pods that a claim is reserved for, unless another claim has its name by now.
pub(super) fn pods(claim: &ResourceClaim, uid: &str) -> Vec<(String, String)> {
    if claim.metadata.uid.as_deref() != Some(uid) {
        return Vec::new();
    }
    let reserved = claim.status.as_ref();
    let reserved = reserved.and_then(|status| status.reserved_for.as_deref());
    let pods = reserved.unwrap_or_default().iter();
    pods.filter(|consumer| consumer.resource == "pods")
        .take(MOST_PODS)
        .map(|consumer| (consumer.name.clone(), consumer.uid.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(uid: &str, denied: u64) -> HeldClaim {
        serde_json::from_value(json!({
            "uid": uid, "job": "7", "state": "running", "cdi_device": "divvy.dev/slice=x", "namespace": "team",
            "name": "train", "pods": [], "devices": [], "processes": 1, "since": "2026-01-02T03:04:05Z",
            "slices": [{
                "label": "gpu0.12a", "gpu_uuid": "GPU-0", "gpu_index": 0, "memory_limit_bytes": 10u64 << 30, "share": 125,
                "memory_used_bytes": 9u64 << 30, "memory_peak_bytes": 9u64 << 30, "processes": 1, "denials": denied,
                "last_denied_bytes": 2u64 << 30, "enforcement": "interposer",
            }],
        }))
        .unwrap()
    }

    fn of(uid: &str) -> ClaimRef {
        ClaimRef::held(&held(uid, 0))
    }

    #[test]
    fn refusals_are_told_once_with_figures_and_again_when_there_are_more() {
        let (mut journal, now) = (IncidentLog::default(), Instant::now());
        journal.count(&[held("a", 0)]);
        assert_eq!(journal.due(now), []);
        journal.count(&[held("a", 3)]);
        let text = "the memory limit of 10.0 GiB on GPU 0 refused 3 allocations, the last of 2.0 GiB; 9.0 GiB in use now";
        assert_eq!(
            journal.due(now),
            [(of("a"), Reason::Refused, text.to_owned())]
        );
        journal.count(&[held("a", 3)]);
        assert_eq!(journal.due(now + BETWEEN), []);
        journal.count(&[held("a", 4)]);
        let [(_, _, text)] = &journal.due(now + BETWEEN)[..] else {
            panic!("the fourth is not told");
        };
        assert!(text.contains("refused 4 allocations"), "{text}");
    }

    #[test]
    fn a_storm_of_bypasses_is_one_event_a_minute_that_counts_them() {
        let (mut journal, now) = (IncidentLog::default(), Instant::now());
        let mut told = 0;
        for second in 0..120 {
            for pid in 0..50 {
                journal.note(of("a"), Reason::Bypass, &format!("pid {pid}"));
            }
            let due = journal.due(now + Duration::from_secs(second));
            if let [(_, _, text)] = &due[..] {
                let more = if second == 0 { 49 } else { 60 * 50 - 1 };
                assert_eq!(*text, format!("pid 49; {more} more since the last event"));
            }
            told += due.len();
        }
        assert_eq!(told, 2);
    }

    #[test]
    fn news_has_a_bound_in_number_and_length_and_no_control_characters() {
        let (mut journal, now) = (IncidentLog::default(), Instant::now());
        for claim in 0..MOST + 10 {
            journal.note(
                of(&claim.to_string()),
                Reason::Bypass,
                &"ä\u{1b}".repeat(2000),
            );
        }
        let due = journal.due(now);
        assert_eq!(due.len(), MOST);
        assert!(due[0].2.len() <= MOST_TEXT && !due[0].2.contains('\u{1b}'));
        assert_eq!(plain("a\u{202e}b\n"), "a\u{fffd}b\u{fffd}");
    }

    #[test]
    fn the_last_look_at_a_claim_tells_what_is_left_within_the_minute() {
        let mut journal = IncidentLog::default();
        journal.count(&[held("a", 1)]);
        assert_eq!(journal.due(Instant::now()).len(), 1);
        assert_eq!(journal.last(&held("a", 1)), []);
        let last = journal.last(&held("a", 5));
        assert!(last[0].2.contains("refused 5 allocations"), "{last:?}");
    }

    #[test]
    fn pods_of_another_claim_of_the_name_are_not_told() {
        let claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": { "name": "c", "uid": "1" }, "spec": {},
            "status": { "reservedFor": [
                { "resource": "pods", "name": "train", "uid": "p" },
                { "apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g" },
            ] },
        }))
        .unwrap();
        assert_eq!(pods(&claim, "1"), [("train".to_owned(), "p".to_owned())]);
        assert_eq!(pods(&claim, "2"), []);
    }
}
