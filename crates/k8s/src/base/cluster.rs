//! The Kubernetes client of all subcommands, and the meaning of its errors.
//!
//! Which cluster is `KUBECONFIG`'s, or `~/.kube/config`'s, word; in a pod without either, that of its service account.

use std::error::Error;
use std::fmt::Debug;

use divvy_api::error_chain::causes;
use kube::api::{Api, ListParams};
use kube::{Client, Config};
use serde::de::DeserializeOwned;

/// Where our own objects lie, unless the client's context says otherwise.
pub const NAMESPACE: &str = "divvy-system";
/// Marks the objects that Divvy made, and may therefore change and remove.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "divvy");

/// Objects of one page of a list of any user's objects. The API server stores 1.5 MiB of an object at most (etcd's
/// `--max-request-bytes`), and a page is in memory twice while it is decoded: 25 of the largest objects take 75 MiB, and
/// kube's default of 500 takes 1.5 GiB.
pub const PAGE: u32 = 25;

/// Hands each object of a list to `take`, page by page.
///
/// # Errors
/// A call fails.
pub async fn for_each<K>(
    api: &Api<K>,
    wanted: ListParams,
    mut take: impl FnMut(K),
) -> Result<(), kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut page = wanted.limit(PAGE);
    loop {
        let list = api.list(&page).await?;
        list.items.into_iter().for_each(&mut take);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error(
        "no cluster configured: found no usable kubeconfig in KUBECONFIG or ~/.kube/config, and no service account of a pod"
    )]
    Unknown(#[source] Box<kube::config::InferConfigError>),
    #[error("cannot use the cluster's configuration")]
    Unusable(#[source] Box<kube::Error>),
}

/// A client of the cluster that this process is told of.
///
/// # Errors
/// There is no cluster configuration, or it is unusable. An unreachable server fails the first call only.
pub async fn client() -> Result<Client, ClusterError> {
    use_ring();
    let config = Config::infer().await;
    let config = config.map_err(|error| ClusterError::Unknown(Box::new(error)))?;
    Client::try_from(config).map_err(|error| ClusterError::Unusable(Box::new(error)))
}

/// Installs ring as the process's cryptography provider; the first call wins.
pub fn use_ring() {
    // Err says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The message of an error in one line, causes behind it.
pub fn error_message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            format!(
                "the API server returned {}: {}",
                status.code, status.message
            )
        }
        other => chain(other),
    }
}

/// Returns an error and its causes in one line, without the causes whose text the line already contains: errors of `kube`
/// repeat the text of their source.
pub fn chain(error: &dyn Error) -> String {
    causes(error).fold(error.to_string(), |line, cause| {
        let text = cause.to_string();
        if line.contains(&text) {
            line
        } else {
            format!("{line}: {text}")
        }
    })
}

/// Whether it is not there.
pub fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Whether the object exists already.
pub fn is_already_exists(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists")
}

/// Whether the object was changed concurrently.
pub fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason != "AlreadyExists")
}

/// Objects of a page: the API server reads a page at once from its store. client-go pages by as many
/// (`defaultPageSize`): more would hold the API server's memory, fewer cost calls.
pub const LIST_PAGE: u32 = 500;
/// Most objects of a kind that a view reads; a cluster of 5,000 nodes has 150,000 pods, and 10,000 claims are many. So
/// it leaves room, and bounds the memory of a view.
const MOST_LISTED: usize = 200_000;

/// Every object, page by page. If the list expires between two pages, it is read again at once and in one piece.
///
/// # Errors
/// A call fails.
pub async fn list_all<K>(api: &Api<K>, labels: Option<&str>) -> Result<Vec<K>, kube::Error>
where
    K: Clone + DeserializeOwned + Debug,
{
    let whole = match labels {
        Some(labels) => ListParams::default().labels(labels),
        None => ListParams::default(),
    };
    let mut all = Vec::new();
    let mut page = whole.clone().limit(LIST_PAGE);
    loop {
        let list = match api.list(&page).await {
            Err(kube::Error::Api(status)) if status.code == 410 && !all.is_empty() => {
                return Ok(api.list(&whole).await?.items);
            }
            list => list?,
        };
        all.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if all.len() < MOST_LISTED => page = page.continue_token(&token),
            _ => return Ok(all),
        }
    }
}
