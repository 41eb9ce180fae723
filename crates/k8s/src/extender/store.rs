//! The ConfigMap with the history and the status, so that both outlive the process.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tracing::{info, warn};

use super::history::History;
use super::status::Status;
use crate::base::cluster::error_message;

/// The key of the history.
const HISTORY: &str = "history.json";
/// The key of the status, which people and `divvy-k8s doctor` read.
const STATUS: &str = "status.json";

pub struct Store {
    api: Api<ConfigMap>,
    name: String,
}

impl Store {
    pub fn new(client: &Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client.clone(), namespace),
            name: name.to_owned(),
        }
    }

    /// The history that an earlier process wrote; none where there is none, or it cannot be read, which is logged.
    pub async fn load(&self) -> Option<History> {
        let name = &self.name;
        let map = match self.api.get_opt(name).await {
            Ok(map) => map?,
            Err(error) => {
                let error = error_message(&error);
                warn!(name, error, "cannot read the history; it begins anew");
                return None;
            }
        };
        let text = map.data?.remove(HISTORY)?;
        match History::from_json(&text) {
            Ok(history) => {
                info!(name, requests = history.requests(), "read the history");
                Some(history)
            }
            Err(error) => {
                warn!(name, %error, "cannot parse the history; it begins anew");
                None
            }
        }
    }

    /// Writes both. A failure is logged, and the next call writes more recent ones.
    pub async fn save(&self, history: &str, status: &Status) {
        let name = &self.name;
        let status = serde_json::to_string(status).unwrap_or_default();
        let patch = json!({ "data": { HISTORY: history, STATUS: status } });
        let patched = self
            .api
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await;
        if let Err(error) = patched {
            warn!(
                name,
                error = error_message(&error),
                "cannot write the history"
            );
        }
    }
}

/// What an extender in this namespace has written of itself; none if there is none, or it cannot be read.
pub async fn written_status(client: &Client, namespace: &str) -> Option<Status> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels("app.kubernetes.io/name=divvy");
    let maps = api.list(&ours).await.ok()?.items.into_iter();
    let mut texts = maps.filter_map(|map| map.data?.remove(STATUS));
    serde_json::from_str(&texts.next()?).ok()
}
