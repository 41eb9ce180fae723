//! What people are told beside a claim: Kubernetes' events.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::claim::DRIVER;

/// Tells.
#[derive(Clone)]
pub struct Events(Recorder);

/// Which claim is spoken of.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
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
    pub async fn warn(&self, about: About<'_>, reason: &str, action: &str, note: String) {
        let About {
            namespace,
            name,
            uid,
        } = about;
        tracing::warn!("claim {namespace}/{name}: {note}");
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        let reference = ObjectReference {
            api_version: Some("resource.k8s.io/v1".to_owned()),
            kind: Some("ResourceClaim".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        if let Err(error) = self.0.publish(&event, &reference).await {
            tracing::warn!("the event on claim {namespace}/{name} cannot be written: {error}");
        }
    }
}
