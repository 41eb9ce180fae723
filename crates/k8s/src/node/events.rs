//! Kubernetes events on claims, pods and nodes.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::base::claim::DRIVER;

/// Tells.
#[derive(Clone)]
pub struct Events(Recorder);

/// The kind of object that an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Claim,
    Pod,
    Node,
}

impl Kind {
    /// Version and kind of the API, and what a log calls it.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Claim => ["resource.k8s.io/v1", "ResourceClaim", "claim"],
            Self::Pod => ["v1", "Pod", "pod"],
            Self::Node => ["v1", "Node", "node"],
        }
    }
}

/// Which object an event is about.
#[derive(Clone, Copy, Debug)]
pub struct EventTarget<'a> {
    pub kind: Kind,
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl Events {
    /// As the driver on this node.
    pub fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter {
            controller: DRIVER.to_owned(),
            instance: Some(node.to_owned()),
        };
        Self(Recorder::new(client, reporter))
    }

    /// Warns; an event that cannot be written is in the log all the same, and stops nothing.
    ///
    /// `reason` is one word in capitals and small letters, `action` what was being done, the same way.
    pub async fn warn(&self, about: EventTarget<'_>, reason: &str, action: &str, note: String) {
        let EventTarget {
            kind,
            namespace,
            name,
            uid,
        } = about;
        let [version, kind, word] = kind.names();
        tracing::warn!("{word} {namespace}/{name}: {note}");
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some(version.to_owned()),
            kind: Some(kind.to_owned()),
            // The event of an object without a namespace is in `default`.
            namespace: (!namespace.is_empty()).then(|| namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        if let Err(error) = self.0.publish(&event, &reference).await {
            tracing::warn!("cannot write the event on {word} {namespace}/{name}: {error}");
        }
    }
}
