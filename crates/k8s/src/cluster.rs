//! The Kubernetes client of all subcommands, and the meaning of its errors.
//!
//! Which cluster is `KUBECONFIG`'s, or `~/.kube/config`'s, word; in a pod without either, that of its service account.

use std::error::Error;

use divvy_api::error_chain::causes;
use kube::{Client, Config};

/// Where our own objects lie, unless the client's context says otherwise.
pub const NAMESPACE: &str = "divvy-system";
/// Marks the objects that Divvy made, and may therefore change and remove.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "divvy");

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
        match line.contains(&text) {
            true => line,
            false => format!("{line}: {text}"),
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
