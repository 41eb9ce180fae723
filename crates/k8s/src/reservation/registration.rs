//! Registration of the device plugin at kubelet, repeated when kubelet restarts.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::Endpoint;

use super::RESOURCE;
use super::protocol::plugin::registration_client::RegistrationClient;
use super::protocol::plugin::{DevicePluginOptions, RegisterRequest};

/// How often kubelet's socket is looked at: after a restart it is another file.
const LOOK: Duration = Duration::from_secs(1);
/// The plugin's socket, in the folder of kubelet's own.
const SOCKET: &str = "divvy-carrier.sock";

/// Where the plugin listens.
pub fn plugin_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("device-plugins").join(SOCKET)
}

/// Registers once for each new socket of ours (`made` counts them) and of kubelet's, for good.
pub async fn keep(kubelet: PathBuf, mut made: watch::Receiver<u64>) {
    let socket = kubelet.join("device-plugins/kubelet.sock");
    let mut known = None;
    loop {
        let now = (*made.borrow_and_update(), identity(&socket));
        if now.0 > 0 && now.1.is_some() && known != Some(now) {
            match register(&socket).await {
                Ok(()) => {
                    tracing::info!("registered {RESOURCE} with kubelet");
                    known = Some(now);
                }
                Err(error) => tracing::warn!("kubelet does not register {RESOURCE}: {error}"),
            }
        }
        tokio::select! {
            changed = made.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep(LOOK) => {}
        }
    }
}

fn identity(socket: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(socket).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

async fn register(socket: &Path) -> Result<(), String> {
    let said = |error: &dyn std::error::Error| crate::cluster::chain(error);
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let channel = endpoint.map_err(|error| said(&error))?.connect().await;
    let mut kubelet = RegistrationClient::new(channel.map_err(|error| said(&error))?);
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: SOCKET.to_owned(),
        resource_name: RESOURCE.to_owned(),
        options: Some(options()),
    };
    kubelet
        .register(request)
        .await
        .map(drop)
        .map_err(|error| said(&error))
}

/// Kubelet asks before each start of a container, which is when a claim that a reboot took away is made anew.
pub fn options() -> DevicePluginOptions {
    DevicePluginOptions {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    }
}
