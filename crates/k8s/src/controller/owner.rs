//! The owner reference of the controller's objects: the webhook configuration, which is part of the chart. When the
//! configuration is deleted, Kubernetes deletes the rest.

use std::sync::RwLock;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// `None` until the configuration has been observed.
#[derive(Debug, Default)]
pub struct OwnerRef(RwLock<Option<OwnerReference>>);

impl OwnerRef {
    pub fn set(&self, configuration: &MutatingWebhookConfiguration) {
        let metadata = &configuration.metadata;
        let (Some(name), Some(uid)) = (metadata.name.clone(), metadata.uid.clone()) else {
            return;
        };
        let reference = OwnerReference {
            api_version: "admissionregistration.k8s.io/v1".to_owned(),
            kind: "MutatingWebhookConfiguration".to_owned(),
            name,
            uid,
            ..OwnerReference::default()
        };
        *self
            .0
            .write()
            .unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(reference);
    }

    pub fn reference(&self) -> Option<OwnerReference> {
        let owner = self
            .0
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        owner.clone()
    }
}
