//! A task's record: the Secret that its pod reads its credentials from, made before the task is claimed and removed last.
//!
//! Annotations hold the record; labels hold its owner, and records and pods are found by them. Both objects have the
//! name of the task, so that a second one cannot be made.

use std::collections::BTreeMap;

use divvy_clearml::facts::Facts;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

use super::task_state::ClaimPhase;

/// Labels of the stock agent's glue, by which its users count.
const TASK_LABEL: &str = "clearml-task-id";
const QUEUE_LABEL: &str = "clearml-agent-queue";
const QUEUE_NAME_LABEL: &str = "clearml-agent-queue-name";
/// Of a pipeline's step, its controller: the stock glue has it since commit ac65a93.
const PARENT_LABEL: &str = "clearml-parent-task-id";
const USER_LABEL: &str = "clearml-user";
const PROJECT_LABEL: &str = "clearml-project";

/// Whose it is.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const HOLDER: &str = "glue.divvy.dev/worker";

const TASK: &str = "glue.divvy.dev/task";
const QUEUE: &str = "glue.divvy.dev/queue";
const QUEUE_NAME: &str = "glue.divvy.dev/queue-name";
const TASK_NAME: &str = "glue.divvy.dev/task-name";
const USER: &str = "glue.divvy.dev/user";
const PROJECT: &str = "glue.divvy.dev/project";
const MARK: &str = "glue.divvy.dev/mark";
const WAS_STOPPED: &str = "glue.divvy.dev/was-stopped";
const LOGGED: &str = "glue.divvy.dev/logged";

const MARKS: [(ClaimPhase, &str); 3] = [
    (ClaimPhase::Claiming, "claiming"),
    (ClaimPhase::Ours, "ours"),
    (ClaimPhase::Returning, "returning"),
];

/// A task that is ours, or may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub task: String,
    pub queue_id: String,
    pub queue_name: String,
    pub mark: ClaimPhase,
    /// Its user had stopped it before it was popped.
    pub was_stopped: bool,
    pub logged: Logged,
}

/// How much of a pod's log is on the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Logged {
    #[default]
    Nothing,
    /// Everything up to the line of this time, as the kubelet writes it (RFC 3339, nanoseconds).
    UpTo(String),
    /// The rest of the output is ours to send.
    All,
}

impl Logged {
    const ALL: &str = "all";

    fn of(text: Option<&String>) -> Self {
        match text.map(String::as_str) {
            None | Some("") => Self::Nothing,
            Some(Self::ALL) => Self::All,
            Some(time) => Self::UpTo(time.to_owned()),
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Nothing => "",
            Self::UpTo(time) => time,
            Self::All => Self::ALL,
        }
    }
}

/// Labels of a pod by which its users are told apart: by `kubectl -l`, quotas and bills.
pub fn labels_of(facts: &Facts) -> BTreeMap<String, String> {
    let pairs = [
        (USER_LABEL, &facts.user),
        (PROJECT_LABEL, &facts.project),
        (PARENT_LABEL, &facts.parent_id),
    ];
    let named = pairs.into_iter().filter_map(|(name, value)| {
        let value = label(value.as_deref()?);
        (!value.is_empty()).then(|| (name.to_owned(), value))
    });
    named.collect()
}

/// The names as the server has them, of which a label keeps only a part.
pub fn annotations_of(facts: &Facts) -> BTreeMap<String, String> {
    let pairs = [
        (TASK_NAME, &facts.name),
        (USER, &facts.user),
        (PROJECT, &facts.project),
    ];
    let named = pairs.into_iter();
    named
        .filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)))
        .collect()
}

/// The word for a glue in labels: its worker's id may be anything.
pub fn holder(worker: &str) -> String {
    hex(worker)
}

/// Selects what belongs to this glue.
pub fn selector(holder: &str) -> String {
    format!("{MANAGED_BY}=divvy,{HOLDER}={holder}")
}

/// The name of a task's pod and of its record. The server's ids are hexadecimal, and are left as they are.
pub fn name(task: &str) -> String {
    let plain = |letter: char| letter.is_ascii_digit() || letter.is_ascii_lowercase();
    if !task.is_empty() && task.len() <= 40 && task.chars().all(plain) {
        format!("clearml-id-{task}")
    } else {
        format!("clearml-id-{}", hex(task))
    }
}

fn hex(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A text as a label's value: at most 63 letters, digits, `-`, `_` and `.`, neither of the three at an end.
fn label(text: &str) -> String {
    let safe = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '.' => letter,
        _ => '-',
    };
    let all: String = text.chars().map(safe).take(63).collect();
    all.trim_matches(|letter: char| !letter.is_ascii_alphanumeric())
        .to_owned()
}

impl Record {
    /// Labels of its pod and of its Secret.
    pub fn labels(&self, holder: &str) -> BTreeMap<String, String> {
        let pairs = [
            (MANAGED_BY, "divvy".to_owned()),
            (HOLDER, holder.to_owned()),
            (TASK_LABEL, label(&self.task)),
            (QUEUE_LABEL, label(&self.queue_id)),
            (QUEUE_NAME_LABEL, label(&self.queue_name)),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value)).into()
    }

    /// Labels and annotations on a pod, from which its record can be rebuilt.
    pub fn of_whom(&self) -> BTreeMap<String, String> {
        [
            (TASK, &self.task),
            (QUEUE, &self.queue_id),
            (QUEUE_NAME, &self.queue_name),
        ]
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .into()
    }

    /// How far it is, as an annotation.
    pub fn mark_said(&self) -> (String, String) {
        let mark = MARKS.iter().find(|(mark, _)| *mark == self.mark);
        (
            MARK.to_owned(),
            mark.map(|(_, word)| (*word).to_owned()).unwrap_or_default(),
        )
    }

    /// How much of its log was sent, as an annotation.
    pub fn logged_said(&self) -> (String, String) {
        (LOGGED.to_owned(), self.logged.text().to_owned())
    }

    /// All that it says.
    fn annotations(&self) -> BTreeMap<String, String> {
        let mut all = self.of_whom();
        all.extend([self.mark_said(), self.logged_said()]);
        all.insert(WAS_STOPPED.to_owned(), self.was_stopped.to_string());
        all
    }

    /// The Secret, still without what the pod reads.
    pub fn secret(&self, holder: &str) -> Secret {
        Secret {
            metadata: ObjectMeta {
                name: Some(name(&self.task)),
                labels: Some(self.labels(holder)),
                annotations: Some(self.annotations()),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        }
    }

    /// Of a task whose Secret was deleted: a pod is made of what is ours.
    pub fn of_pod(pod: &Pod) -> Option<Self> {
        Self::of(&pod.metadata)
    }

    /// `None`: no record of ours.
    pub fn of(metadata: &ObjectMeta) -> Option<Self> {
        let said = metadata.annotations.as_ref()?;
        let word = said.get(MARK).map(String::as_str);
        let mark = MARKS.iter().find(|(_, known)| Some(*known) == word);
        Some(Self {
            task: said.get(TASK)?.clone(),
            queue_id: said.get(QUEUE)?.clone(),
            queue_name: said.get(QUEUE_NAME).cloned().unwrap_or_default(),
            mark: mark.map_or(ClaimPhase::Ours, |(mark, _)| *mark),
            was_stopped: said.get(WAS_STOPPED).is_some_and(|flag| flag == "true"),
            logged: Logged::of(said.get(LOGGED)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            task: "9e3779b97f4a7c15".into(),
            queue_id: "q1".into(),
            queue_name: "half GPU (new)".into(),
            mark: ClaimPhase::Claiming,
            was_stopped: true,
            logged: Logged::UpTo("2026-01-01T00:00:00.000000001Z".into()),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let record = record();
        assert_eq!(
            Record::of(&record.secret("h").metadata),
            Some(record.clone())
        );
        for logged in [Logged::Nothing, Logged::All] {
            let record = Record {
                logged,
                mark: ClaimPhase::Returning,
                ..record.clone()
            };
            assert_eq!(Record::of(&record.secret("h").metadata), Some(record));
        }
        assert_eq!(Record::of(&ObjectMeta::default()), None);
    }

    #[test]
    fn a_pod_without_its_record_is_ours() {
        let pod = Pod {
            metadata: ObjectMeta {
                annotations: Some(record().of_whom()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        assert_eq!(Record::of_pod(&pod).unwrap().mark, ClaimPhase::Ours);
    }

    #[test]
    fn names_and_labels_are_ones_that_kubernetes_takes() {
        assert_eq!(name("9e3779b97f4a7c15"), "clearml-id-9e3779b97f4a7c15");
        let odd = name("../A");
        assert!(odd.starts_with("clearml-id-") && odd.len() == 27, "{odd}");
        assert_ne!(odd, name("../a"));
        assert_eq!(label("half GPU (new)"), "half-GPU--new");
        assert_eq!(label(&"x".repeat(100)).len(), 63);
        assert_eq!(label("-"), "");
    }
}
