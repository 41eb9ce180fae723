//! Registration of KAI's driver at kubelet.

use std::path::Path;

use tonic::{Request, Response, Status};

use super::DRIVER;
use crate::node::protocol::registration::registration_server::Registration;
use crate::node::protocol::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// Answers kubelet's question for the driver's name and socket.
#[derive(Debug)]
pub(super) struct Registrar {
    endpoint: String,
}

impl Registrar {
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
            r#type: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!("registered with kubelet")
        } else {
            // It tries again by itself.
            tracing::error!("kubelet refused to register this driver: {}", status.error)
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
