//! Registration of the DRA driver at kubelet, through a socket in `plugins_registry`.

use std::path::{Path, PathBuf};

use tonic::{Request, Response, Status};

use crate::claim::DRIVER;
use crate::node::protocol::registration::registration_server::Registration;
use crate::node::protocol::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The plugin type of DRA drivers in kubelet's plugin manager (`DRAPlugin`, pluginregistration/v1).
const TYPE: &str = "DRAPlugin";
/// The services behind the driver's socket, as kubelet names versions.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Where kubelet finds the driver: `plugins_registry/gpu.divvy.dev@reg.sock`.
///
/// Kubelet dials a registration socket by its path alone, so that its gRPC library sends the path, percent-encoded, as
/// `:authority`; the HTTP/2 library here takes that for no authority and resets the stream. An `@` is left as it is, and what
/// is before it may be percent-encoded (RFC 3986: it is user information). With `gpu.divvy.dev-reg.sock`, as others name
/// theirs, registration fails. Seen with kubelet 1.36.2.
pub fn registration_socket(kubelet: &Path) -> PathBuf {
    kubelet
        .join("plugins_registry")
        .join(format!("{DRIVER}@reg.sock"))
}

/// Where the driver itself is served: `plugins/gpu.divvy.dev/dra.sock`.
pub fn driver_socket(kubelet: &Path) -> PathBuf {
    kubelet.join("plugins").join(DRIVER).join("dra.sock")
}

/// Answers kubelet's question for the driver's name and socket.
#[derive(Debug)]
pub struct Registrar {
    endpoint: String,
}

impl Registrar {
    /// For a driver that is served on `endpoint`, a path as kubelet sees it.
    pub fn new(endpoint: &Path) -> Self {
        Self {
            endpoint: endpoint.display().to_string(),
        }
    }
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: TYPE.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        match status.plugin_registered {
            true => tracing::info!("registered with kubelet"),
            // It tries again by itself.
            false => tracing::error!("kubelet refused to register this driver: {}", status.error),
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
