//! A kubelet, as far as a driver sees one: it finds sockets in `plugins_registry`, registers what is behind them, and calls.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_k8s::node::protocol::dra::dra_plugin_client::DraPluginClient;
use divvy_k8s::node::protocol::dra::{
    Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use divvy_k8s::node::protocol::health::dra_resource_health_client::DraResourceHealthClient;
use divvy_k8s::node::protocol::health::{
    HealthStatus, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};
use divvy_k8s::node::protocol::registration::registration_client::RegistrationClient;
use divvy_k8s::node::protocol::registration::{InfoRequest, PluginInfo, RegistrationStatus};
use divvy_testkit::until_async as until;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use crate::kubelet::raw::authority;

pub struct Kubelet {
    dir: PathBuf,
}

impl Kubelet {
    pub fn new(dir: &Path) -> Self {
        let kubelet = Self {
            dir: dir.to_owned(),
        };
        fs::create_dir_all(kubelet.registry()).unwrap();
        fs::create_dir_all(dir.join("plugins")).unwrap();
        kubelet
    }

    pub fn registry(&self) -> PathBuf {
        self.dir.join("plugins_registry")
    }

    /// Sockets that a plugin has put where kubelet looks.
    pub fn found(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(self.registry()) else {
            return Vec::new();
        };
        let entries = entries.map(Result::unwrap);
        let sockets = entries.filter(|entry| entry.file_type().unwrap().is_socket());
        let named = sockets.filter(|entry| !entry.file_name().to_str().unwrap().starts_with('.'));
        named.map(|entry| entry.path()).collect()
    }

    /// Waits for a plugin, asks who it is, dialling as kubelet does, and tells it that it is registered.
    pub async fn register(&self) -> PluginInfo {
        until("a plugin is found and answers", async || {
            let [socket] = &self.found()[..] else {
                return None;
            };
            // Kubelet waits so long for an answer, and tries again.
            timeout(Duration::from_secs(1), greet(socket)).await.ok()?
        })
        .await
    }

    /// The driver of this instance, of several that serve the node, once it is registered.
    pub async fn driver_of(&self, instance: &str) -> Driver {
        let end = format!("-{instance}@reg.sock");
        let info = until("the instance is found and answers", async || {
            let found = self.found().into_iter();
            let mut found = found.filter(|socket| socket.to_str().unwrap().ends_with(&end));
            let socket = found.next()?;
            timeout(Duration::from_secs(1), greet(&socket)).await.ok()?
        })
        .await;
        let endpoint = unix(Path::new(&info.endpoint));
        Driver {
            channel: endpoint.connect_lazy(),
        }
    }

    /// The driver that registered.
    pub async fn driver(&self) -> Driver {
        let info = self.register().await;
        let endpoint = unix(Path::new(&info.endpoint));
        Driver {
            channel: endpoint.connect_lazy(),
        }
    }
}

/// A driver, over a connection that is made again when it breaks, as kubelet's is.
#[derive(Clone)]
pub struct Driver {
    channel: Channel,
}

impl Driver {
    /// What it says to one claim.
    pub async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>, String> {
        let request = NodePrepareResourcesRequest {
            claims: vec![claim.clone()],
        };
        let answer = DraPluginClient::new(self.channel.clone())
            .node_prepare_resources(request)
            .await;
        let mut claims = answer.map_err(|status| said(&status))?.into_inner().claims;
        let answer = claims.remove(&claim.uid).expect("every claim is answered");
        if answer.error.is_empty() {
            Ok(answer.devices)
        } else {
            Err(answer.error)
        }
    }

    pub async fn unprepare(&self, claim: &Claim) -> Result<(), String> {
        let request = NodeUnprepareResourcesRequest {
            claims: vec![claim.clone()],
        };
        let answer = DraPluginClient::new(self.channel.clone())
            .node_unprepare_resources(request)
            .await;
        let mut claims = answer.map_err(|status| said(&status))?.into_inner().claims;
        let answer = claims.remove(&claim.uid).expect("every claim is answered");
        if answer.error.is_empty() {
            Ok(())
        } else {
            Err(answer.error)
        }
    }

    /// Tries again until it is prepared, as kubelet does.
    pub async fn prepared(&self, claim: &Claim) -> Vec<Device> {
        until("the claim is prepared", async || {
            self.prepare(claim).await.ok()
        })
        .await
    }

    /// Tries again until it is unprepared, as kubelet does.
    pub async fn unprepared(&self, claim: &Claim) {
        until("the claim is unprepared", async || {
            self.unprepare(claim).await.ok()
        })
        .await;
    }

    pub async fn watch(&self) -> Watch {
        let answer = DraResourceHealthClient::new(self.channel.clone())
            .node_watch_resources(NodeWatchResourcesRequest {})
            .await;
        Watch(answer.unwrap().into_inner())
    }
}

/// What a driver says of its devices.
pub struct Watch(Streaming<NodeWatchResourcesResponse>);

impl Watch {
    /// The next word, by device; `None` at its end.
    pub async fn next(&mut self) -> Option<BTreeMap<String, HealthStatus>> {
        let answer = self.0.message().await.ok()??;
        let devices = answer.devices.into_iter();
        let all = devices.map(|one| {
            let health = one.health();
            (one.device.unwrap().device_name, health)
        });
        Some(all.collect())
    }
}

/// Who is behind a socket; told that it is registered.
async fn greet(socket: &Path) -> Option<PluginInfo> {
    let origin = format!("http://{}", authority(socket)).parse().unwrap();
    let channel = unix(socket).origin(origin).connect().await.ok()?;
    let mut client = RegistrationClient::new(channel);
    let info = client.get_info(InfoRequest {}).await.ok()?.into_inner();
    let status = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    client.notify_registration_status(status).await.ok()?;
    Some(info)
}

fn unix(socket: &Path) -> Endpoint {
    Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap()
}

fn said(status: &Status) -> String {
    format!("{}: {}", status.code(), status.message())
}
