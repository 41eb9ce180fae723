//! The explanation of a pod, a Job or a Workload: from its facts to the first thing that holds it.

use divvy_core::units::{Bytes, gpus};
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt as _;
use serde::Serialize;
use serde_json::Value;

use super::facts::{Facts, Quota, Subject, in_gpus};
use crate::base::claim::DRIVER;
use crate::base::inject::OPT_IN;
use crate::base::objects::allocated;
use crate::base::pod_request::{FRACTION, Steps, parse_pod_request};
use crate::base::slices::{MEMORY, inventory_of};
use crate::controller::capacity::{self, ClaimFacts, capacity};
use crate::controller::pending::{self, Pending};
use crate::controller::reason;
use crate::teams::kueue::status::{self, WorkloadState};
use crate::teams::kueue::{GATE, quota};
use crate::teams::project::workload_name;

/// Events that are shown. The newest tell the state; a longer list hides the reason above.
const EVENTS: usize = 3;
/// Projects that are named. A line; a longer list hides the reason.
const NAMED: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Waiting,
    /// It has its GPU, and its containers do not run yet.
    Starting,
    Running,
    Finished,
}

/// The component that has to act before the pod goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    Nothing,
    /// Kueue: a quota, a queue or a check.
    Kueue,
    /// Another scheduling gate.
    Gate,
    /// Its claim template, or the webhook that writes it.
    Webhook,
    Scheduler,
    Node,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    pub topic: &'static str,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    pub state: State,
    pub held_by: HeldBy,
    pub summary: String,
    pub lines: Vec<Line>,
    pub suggestions: Vec<String>,
}

/// What was found, before it has a name.
struct Finding {
    state: State,
    held_by: HeldBy,
    summary: String,
    lines: Vec<Line>,
    suggestions: Vec<String>,
}

impl Finding {
    fn waits(held_by: HeldBy, summary: impl Into<String>) -> Self {
        Self {
            state: State::Waiting,
            held_by,
            summary: summary.into(),
            lines: Vec::new(),
            suggestions: Vec::new(),
        }
    }

    fn state(mut self, state: State) -> Self {
        self.state = state;
        self
    }

    fn line(mut self, topic: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.lines.push(Line { topic, text });
        }
        self
    }

    fn option(mut self, text: impl Into<String>) -> Self {
        self.suggestions.push(text.into());
        self
    }
}

/// The first pod that does not run.
pub(super) fn first_waiting(pods: &[Pod]) -> Option<&Pod> {
    let phase = |pod: &&Pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            == Some("Pending")
    };
    pods.iter().find(phase)
}

/// Explains what holds the object.
pub fn explain(facts: &Facts) -> Explanation {
    let (kind, name, finding) = match &facts.subject {
        Subject::Pod(pod) => ("pod", pod.name_any(), of_pod(pod, facts)),
        Subject::Job(job, pods) => {
            let spec = job.spec.as_ref();
            let status = job.status.clone().unwrap_or_default();
            let suspended = spec.and_then(|spec| spec.suspend) == Some(true);
            let done = status.completion_time.is_some();
            let failed = status
                .conditions
                .iter()
                .flatten()
                .find(|one| one.type_ == "Failed" && one.status == "True");
            let finding = match (failed, first_waiting(pods)) {
                (Some(failed), _) => {
                    let why = failed.message.clone().unwrap_or_default();
                    Finding::waits(HeldBy::Nothing, format!("it failed: {why}"))
                        .state(State::Finished)
                }
                _ if done => Finding::waits(HeldBy::Nothing, "all its pods have succeeded")
                    .state(State::Finished),
                _ if suspended => of_suspended(facts),
                (None, Some(pod)) => {
                    let mut finding = of_pod(pod, facts);
                    finding.summary = format!("its pod {}: {}", pod.name_any(), finding.summary);
                    finding
                }
                (None, None) => {
                    let (active, done) =
                        (status.active.unwrap_or(0), status.succeeded.unwrap_or(0));
                    Finding::waits(
                        HeldBy::Nothing,
                        format!("{active} pods run, {done} have succeeded"),
                    )
                    .state(State::Running)
                }
            };
            ("job", job.name_any(), finding)
        }
        Subject::Workload(workload) => {
            let finding = of_workload(workload, facts).unwrap_or_else(|| {
                Finding::waits(HeldBy::Nothing, "Kueue has admitted it").state(State::Running)
            });
            (
                "workload",
                status::name(workload),
                finding.line("workload", workload_name(workload)),
            )
        }
    };
    Explanation {
        kind,
        namespace: facts.namespace.clone(),
        name,
        state: finding.state,
        held_by: finding.held_by,
        summary: finding.summary,
        lines: finding.lines,
        suggestions: finding.suggestions,
    }
}

fn of_suspended(facts: &Facts) -> Finding {
    match &facts.workload {
        Some(workload) => of_workload(workload, facts).unwrap_or_else(|| {
            Finding::waits(HeldBy::Kueue, "Kueue has admitted it, and its Job is about to be resumed")
        }),
        None => Finding::waits(HeldBy::Gate, "it is suspended, and has no Workload of Kueue")
            .option("kubectl patch job NAME --type merge -p '{\"spec\":{\"suspend\":false}}' starts it, unless another controller suspends it"),
    }
}

/// What Kueue holds a workload for; `None` if it does not.
fn of_workload(workload: &Value, facts: &Facts) -> Option<Finding> {
    let queue = status::text(&workload["spec"]["queueName"]);
    let quota = facts.quota.as_ref();
    let project = quota.map_or_else(
        || format!("queue {queue}"),
        |quota| format!("project {}", quota.project.name),
    );
    let asked = status::workload_memory(workload);
    let finding = match status::workload_state(workload) {
        WorkloadState::Admitted | WorkloadState::Finished => return None,
        WorkloadState::Deactivated => Finding::waits(HeldBy::Kueue, "its Workload was deactivated").option(format!(
            "kubectl patch workload {} -n {} --type merge -p '{{\"spec\":{{\"active\":true}}}}' queues it again",
            status::name(workload),
            facts.namespace
        )),
        WorkloadState::Reserved { message } => {
            Finding::waits(HeldBy::Kueue, "it has quota, and waits for an admission check of Kueue").line("kueue", message)
        }
        WorkloadState::Stopping { message } => {
            Finding::waits(HeldBy::Kueue, format!("Kueue stops it: {message}")).line("kueue", "it waits again when its pods have ended")
        }
        WorkloadState::Pending { .. } if facts.queue_exists == Some(false) => {
            Finding::waits(HeldBy::Kueue, format!("the namespace has no LocalQueue {queue}"))
                .option(format!("divvy-k8s project add NAME --quota 1 --namespace {}", facts.namespace))
        }
        WorkloadState::Pending { message, inadmissible, evicted } => {
            let mut finding = match (quota.and_then(|quota| quota.usage.inactive.as_ref()), inadmissible) {
                (Some(why), _) => Finding::waits(HeldBy::Kueue, format!("the {project} admits nothing: {why}")),
                (None, true) => Finding::waits(HeldBy::Kueue, format!("Kueue cannot admit it to the {project} as it is")),
                (None, false) => Finding::waits(HeldBy::Kueue, waits_for_quota(&project, quota, asked)),
            };
            if let Some(why) = evicted {
                finding = finding.line("evicted", why);
            }
            finding.line("kueue", message)
        }
    };
    Some(with_quota(finding, quota, asked))
}

fn waits_for_quota(project: &str, quota: Option<&Quota>, asked: Option<Bytes>) -> String {
    let asks = asked.map(|memory| in_gpus(quota, memory));
    match (quota, asks) {
        (Some(quota), Some(asks)) => {
            format!(
                "it needs {asks}, and the {project} has no quota left: {}",
                held(quota)
            )
        }
        (None, Some(asks)) => format!("it needs {asks}, and the {project} has no quota left"),
        (_, None) => format!("Kueue holds it until the {project} has quota"),
    }
}

/// `2 of 2 GPUs in use, 0.5 of them over quota`.
fn held(quota: &Quota) -> String {
    let usage = &quota.usage;
    let mut text = format!(
        "{} of {} in use",
        gpus(usage.used),
        quota::words(quota.project.quota)
    );
    if usage.borrowed > 0 {
        text += &format!(", {} over quota", gpus(usage.borrowed));
    }
    text
}

fn with_quota(mut finding: Finding, quota: Option<&Quota>, asked: Option<Bytes>) -> Finding {
    let Some(quota) = quota else { return finding };
    let project = &quota.project;
    let limit = match project.limit {
        Some(limit) if limit == project.quota => "never over quota".to_owned(),
        Some(limit) => format!("limit {}", gpus(limit)),
        None => "no limit".to_owned(),
    };
    let usage = &quota.usage;
    finding = finding.line(
        "project",
        format!(
            "{}: quota {}, {limit}; {} in use, {} over quota, {} running, {} pending",
            project.name,
            quota::words(project.quota),
            gpus(usage.used),
            gpus(usage.borrowed),
            usage.running,
            usage.waiting
        ),
    );
    if !quota.borrowers.is_empty() {
        let named = quota
            .borrowers
            .iter()
            .take(NAMED)
            .map(|(name, over)| format!("{name} {}", gpus(*over)));
        let more = quota.borrowers.len().saturating_sub(NAMED);
        let mut text = format!("over quota: {}", named.collect::<Vec<_>>().join(", "));
        if more > 0 {
            text += &format!(" and {more} more projects");
        }
        finding = finding.line("others", text);
    }
    let needed = asked.map(|memory| quota::thousandths(memory, project.gpu_memory));
    match (needed, project.limit) {
        (Some(needed), Some(limit)) if needed > limit => {
            finding = finding.option(format!(
                "divvy-k8s project set {} --limit {}",
                project.name,
                gpus(needed)
            ));
        }
        (Some(needed), _) if usage.used.saturating_add(needed) > project.quota => {
            let more = usage.used.saturating_add(needed);
            finding = finding.option(format!(
                "divvy-k8s project set {} --quota {}",
                project.name,
                gpus(more)
            ));
        }
        _ => {}
    }
    finding
}

fn of_pod(pod: &Pod, facts: &Facts) -> Finding {
    let status = pod.status.clone().unwrap_or_default();
    let phase = status.phase.as_deref().unwrap_or("Pending");
    match phase {
        "Succeeded" | "Failed" => {
            let ended = terminated(status.container_statuses.as_deref());
            let why = status
                .message
                .or(status.reason)
                .or(ended)
                .unwrap_or_default();
            let summary = match (phase, why.is_empty()) {
                ("Succeeded", _) => "its containers have succeeded".to_owned(),
                (_, true) => "it failed".to_owned(),
                (_, false) => format!("it failed: {why}"),
            };
            return events(
                Finding::waits(HeldBy::Nothing, summary).state(State::Finished),
                facts,
            );
        }
        "Running" => return running(pod, facts),
        _ => {}
    }
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    let gates: Vec<&str> = gates
        .into_iter()
        .flatten()
        .map(|gate| gate.name.as_str())
        .collect();
    if gates.contains(&GATE) {
        return gated(facts);
    }
    if let Some(gate) = gates.first() {
        return Finding::waits(HeldBy::Gate, format!("the scheduling gate {gate} holds it"))
            .line("gates", gates.join(", "));
    }
    if pod
        .spec
        .as_ref()
        .is_some_and(|spec| spec.node_name.is_none())
    {
        return events(unscheduled(pod, facts), facts);
    }
    events(starting(pod, facts), facts)
}

/// Held by Kueue's gate.
fn gated(facts: &Facts) -> Finding {
    match &facts.workload {
        Some(workload) => of_workload(workload, facts).unwrap_or_else(|| {
            Finding::waits(
                HeldBy::Kueue,
                "Kueue has admitted it, and is about to remove its gate",
            )
        }),
        None => Finding::waits(
            HeldBy::Kueue,
            format!("Kueue's gate {GATE} holds it, and it has no Workload that you may read"),
        )
        .option(format!("kubectl get workloads -n {}", facts.namespace)),
    }
}

fn unscheduled(pod: &Pod, facts: &Facts) -> Finding {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let scheduled = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled");
    let scheduler = scheduled
        .and_then(|condition| condition.message.clone())
        .unwrap_or_default();
    let claims = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.resource_claims.as_ref());
    if claims.is_none_or(|claims| claims.is_empty()) && asks_for_a_part(pod) {
        let finding = Finding::waits(
            HeldBy::Webhook,
            "it requests a GPU fraction, and has no claim: the webhook did not see it",
        );
        return match facts.served {
            Some(false) => finding
                .line(
                    "webhook",
                    format!("the namespace lacks the label {}={}", OPT_IN.0, OPT_IN.1),
                )
                .option(format!(
                    "kubectl label namespace {} {}={}, then create the pod again",
                    facts.namespace, OPT_IN.0, OPT_IN.1
                )),
            _ => finding.option("create the pod again; `divvy-k8s doctor` checks the webhook"),
        };
    }
    if facts.template_exists == Some(false) && facts.claim.is_none() {
        return Finding::waits(HeldBy::Webhook, "its claim template is missing, so it gets no claim")
            .line("scheduler", scheduler)
            .option("wait a minute: the controller creates the template again; `divvy-k8s doctor` checks the controller");
    }
    if let (Some(pending), Some(slices), Some(claims)) = (
        Pending::of(&pending::fields(pod)),
        &facts.slices,
        &facts.claims,
    ) && let Some(text) = reason::why(
        &pending,
        facts.claim.as_ref().and_then(ClaimFacts::of).as_ref(),
        &capacity(slices, &capacity::held(claims)),
        &inventory_of(slices),
    ) {
        let text = text
            .strip_prefix("waits for ")
            .map_or(text.clone(), |rest| format!("it needs {rest}"));
        return Finding::waits(HeldBy::Scheduler, text).line("scheduler", scheduler);
    }
    if let Some(event) = last(&facts.events, "WaitsForGpu") {
        return Finding::waits(HeldBy::Scheduler, event.message.clone().unwrap_or_default())
            .line("scheduler", scheduler);
    }
    if scheduler.is_empty() {
        Finding::waits(
            HeldBy::Scheduler,
            "the scheduler has not tried to place it yet",
        )
    } else {
        Finding::waits(HeldBy::Scheduler, scheduler)
    }
}

fn asks_for_a_part(pod: &Pod) -> bool {
    let labelled = pod.labels().contains_key(FRACTION) || pod.annotations().contains_key(FRACTION);
    let object = serde_json::to_value(pod).unwrap_or_default();
    labelled || matches!(parse_pod_request(&object, Steps::Any), Ok(Ok(_)))
}

/// Bound to a node, and not running.
fn starting(pod: &Pod, facts: &Facts) -> Finding {
    let node = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default();
    let claims = facts.claim.is_some();
    let publishes = |node: &str| {
        let slices = facts.slices.as_ref()?;
        let of_node = |slice: &&k8s_openapi::api::resource::v1::ResourceSlice| {
            slice.spec.driver == DRIVER && slice.spec.node_name.as_deref() == Some(node)
        };
        Some(slices.iter().any(|slice| of_node(&slice)))
    };
    if let Some(why) = &facts.node_problem {
        return Finding::waits(HeldBy::Node, format!("its node {node} is not ready: {why}"))
            .state(State::Starting)
            .line("gpu", placed(facts.claim.as_ref()))
            .option(format!("kubectl describe node {node}"));
    }
    if let Some(event) = last(&facts.events, "FailedPrepareDynamicResources") {
        let said = event.message.clone().unwrap_or_default();
        // Kubelet read the claim before the API server's Node authorizer knew of the pod.
        if said.contains("no relationship found between node") {
            let summary = format!("kubelet of {node} read its claim too early");
            return Finding::waits(HeldBy::Node, summary)
                .state(State::Starting)
                .line("node", "kubelet tries again 60 to 90 s later")
                .line("gpu", placed(facts.claim.as_ref()));
        }
        let summary = if said.contains("not registered") {
            format!("the DRA driver of the node {node} does not run")
        } else {
            format!("the node {node} cannot prepare its GPU")
        };
        return Finding::waits(HeldBy::Node, summary)
            .state(State::Starting)
            .line("node", said)
            .option(format!(
                "kubectl get pods -n divvy-system --field-selector spec.nodeName={node}"
            ));
    }
    if claims && publishes(&node) == Some(false) {
        return Finding::waits(
            HeldBy::Node,
            format!("the node {node} publishes no GPUs: its DRA driver does not run"),
        )
        .state(State::Starting)
        .option(format!(
            "kubectl get pods -n divvy-system --field-selector spec.nodeName={node}"
        ));
    }
    let status = pod.status.clone().unwrap_or_default();
    let inits = status.init_container_statuses.unwrap_or_default();
    let mut containers = inits
        .iter()
        .chain(status.container_statuses.iter().flatten());
    let waiting = containers.find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.clone().unwrap_or_default();
        (!matches!(
            reason.as_str(),
            "" | "ContainerCreating" | "PodInitializing"
        ))
        .then(|| {
            let detail = waiting.message.clone().unwrap_or_default();
            (container.name.clone(), reason, detail)
        })
    });
    let place = placed(facts.claim.as_ref());
    match waiting {
        Some((container, reason, detail)) => Finding::waits(
            HeldBy::Node,
            format!("its container {container} on {node} does not start: {reason}"),
        )
        .state(State::Starting)
        .line("node", detail)
        .line("gpu", place),
        None => Finding::waits(
            HeldBy::Node,
            format!("the node {node} creates its containers"),
        )
        .state(State::Starting)
        .line("gpu", place),
    }
}

fn running(pod: &Pod, facts: &Facts) -> Finding {
    let node = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default();
    let place = placed(facts.claim.as_ref());
    let finding = match (&facts.node_problem, place.is_empty()) {
        (Some(why), _) => lost(&node, why).line("gpu", place),
        (None, true) => Finding::waits(HeldBy::Nothing, format!("on {node}, without a GPU claim")),
        (None, false) => Finding::waits(HeldBy::Nothing, format!("on {node}")).line("gpu", place),
    };
    let finding = match facts.served {
        Some(false) if facts.claim.is_none() && asks_for_a_part(pod) => finding.line(
            "webhook",
            format!(
                "the namespace lacks the label {}={}, so its request counted for nothing",
                OPT_IN.0, OPT_IN.1
            ),
        ),
        _ => finding,
    };
    let evicted =
        facts
            .workload
            .as_ref()
            .and_then(|workload| match status::workload_state(workload) {
                WorkloadState::Stopping { message } => Some(format!("Kueue stops it: {message}")),
                _ => None,
            });
    finding
        .state(State::Running)
        .line("kueue", evicted.unwrap_or_default())
}

/// Its node does not report. The claim keeps its GPU, because the containers may still run there.
fn lost(node: &str, why: &str) -> Finding {
    let summary = format!("on {node}, which is not ready: {why}");
    Finding::waits(HeldBy::Node, summary)
        .line("node", "the GPU stays allocated until the node is back, or is removed")
        .option(format!("kubectl describe node {node}"))
        .option(format!(
            "kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute deletes the pods of a node that is switched off"
        ))
}

/// `gpu-0 (19.8 GiB)`, for each device of a claim.
fn placed(claim: Option<&ResourceClaim>) -> String {
    let devices = claim.into_iter().flat_map(allocated).map(|result| {
        let memory = result
            .consumed_capacity
            .as_ref()
            .and_then(|all| all.get(MEMORY));
        match memory.and_then(crate::base::slices::bytes) {
            Some(memory) => format!("{} of {} ({})", result.device, result.pool, memory.human()),
            None => format!("{} of {}", result.device, result.pool),
        }
    });
    devices.collect::<Vec<_>>().join(", ")
}

fn terminated(containers: Option<&[ContainerStatus]>) -> Option<String> {
    containers.into_iter().flatten().find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        (ended.exit_code != 0).then(|| {
            let reason = ended.reason.clone().unwrap_or_default();
            format!(
                "container {} ended with exit code {} ({reason})",
                container.name, ended.exit_code
            )
        })
    })
}

fn last<'e>(events: &'e [Event], reason: &str) -> Option<&'e Event> {
    events
        .iter()
        .filter(|event| event.reason.as_deref() == Some(reason))
        .max_by_key(|event| at(event))
}

fn at(event: &Event) -> Option<jiff::Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|series| series.last_observed_time.as_ref())
        .map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    series
        .or(last)
        .or(event.event_time.as_ref().map(|time| time.0))
}

/// Adds the newest warnings that say something new.
fn events(mut finding: Finding, facts: &Facts) -> Finding {
    let mut warnings: Vec<&Event> = facts
        .events
        .iter()
        .filter(|event| event.type_.as_deref() == Some("Warning"))
        .collect();
    warnings.sort_by_key(|event| std::cmp::Reverse(at(event)));
    let mut shown = 0;
    for event in warnings {
        let text = event.message.clone().unwrap_or_default();
        let is_told = finding.lines.iter().any(|line| line.text.contains(&text))
            || finding.summary.contains(&text);
        if is_told || event.reason.as_deref() == Some("FailedScheduling") || shown == EVENTS {
            continue;
        }
        finding = finding.line(
            "event",
            format!("{}: {text}", event.reason.clone().unwrap_or_default()),
        );
        shown += 1;
    }
    finding
}
