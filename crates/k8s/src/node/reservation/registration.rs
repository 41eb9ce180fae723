//! Registration of the device plugin at kubelet, repeated when kubelet restarts or drops the plugin.
//!
//! Kubelet has one device plugin of a resource: a later registration replaces an earlier one. When the stream of the
//! earlier plugin ends, kubelet closes the connection to the later one (`runClient`, devicemanager of 1.36.2), so a
//! plugin whose stream ends registers again.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tonic::transport::Endpoint;

use crate::carrier::RESOURCE;
use crate::carrier::protocol::plugin::registration_client::RegistrationClient;
use crate::carrier::protocol::plugin::{DevicePluginOptions, RegisterRequest};
use crate::node::{Instance, suffix};

/// How often kubelet's socket is looked at: after a restart it is another file.
const LOOK: Duration = Duration::from_secs(1);
const SOCKET: (&str, &str) = ("divvy-carrier", ".sock");

/// Where the plugin listens: `device-plugins/divvy-carrier-1a2b3c4d.sock`, in the folder of kubelet's own socket.
pub fn plugin_socket(kubelet: &Path, instance: Option<&Instance>) -> PathBuf {
    let name = format!("{}{}{}", SOCKET.0, suffix(instance), SOCKET.1);
    kubelet.join("device-plugins").join(name)
}

/// Whether a file of `device-plugins` is the socket of a plugin of Divvy.
pub fn is_plugin_socket(name: &str) -> bool {
    name.strip_prefix(SOCKET.0)
        .and_then(|rest| rest.strip_suffix(SOCKET.1))
        .is_some_and(|middle| middle.is_empty() || middle.starts_with('-'))
}

/// Registers `plugin` once for each new socket of kubelet's and each change of `reasons` (a new socket of ours, a stream
/// that ended, the lead of this node), for good.
pub async fn keep(
    plugin: PathBuf,
    mut reasons: watch::Receiver<u64>,
    registered: watch::Sender<bool>,
) {
    let socket = plugin.with_file_name("kubelet.sock");
    let mut known = None;
    loop {
        let now = (*reasons.borrow_and_update(), identity(&socket));
        if now.0 > 0 && now.1.is_some() && known != Some(now) {
            match register(&socket, &plugin).await {
                Ok(()) => {
                    tracing::info!("registered {RESOURCE} with kubelet");
                    registered.send_replace(true);
                    known = Some(now);
                }
                Err(error) => tracing::warn!("kubelet does not register {RESOURCE}: {error}"),
            }
        }
        tokio::select! {
            changed = reasons.changed() => {
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

async fn register(socket: &Path, plugin: &Path) -> Result<(), String> {
    let said = |error: &dyn std::error::Error| crate::base::cluster::chain(error);
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let channel = endpoint.map_err(|error| said(&error))?.connect().await;
    let mut kubelet = RegistrationClient::new(channel.map_err(|error| said(&error))?);
    let request = RegisterRequest {
        version: "v1beta1".to_owned(),
        // Kubelet takes the name of a socket in its own folder.
        endpoint: plugin
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
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
