//! The owner reference of the controller's objects: the webhook configuration, which is part of the chart. When the
//! configuration is deleted, Kubernetes deletes the rest.

use std::pin::pin;
use std::sync::{Arc, RwLock};

use futures_util::StreamExt as _;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;

use crate::base::cluster::chain;

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

    /// Follows the configuration for as long as the process lives, where no webhook of this process does.
    pub async fn follow(self: Arc<Self>, api: Api<MutatingWebhookConfiguration>, name: String) {
        let mut changes = pin!(watch_object(api, &name).default_backoff());
        while let Some(change) = changes.next().await {
            match change {
                Ok(Some(configuration)) => self.set(&configuration),
                Ok(None) => {}
                Err(error) => tracing::warn!(
                    configuration = name,
                    error = chain(&error),
                    "cannot watch the webhook configuration"
                ),
            }
        }
    }

    pub fn reference(&self) -> Option<OwnerReference> {
        let owner = self
            .0
            .read()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        owner.clone()
    }
}
