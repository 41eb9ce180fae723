//! The device plugin that serves sixteenths of GPUs to kubelet.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, stream};
use tonic::{Request, Response, Status};

use super::ReservationNode;
use super::registration::options;
use crate::carrier::protocol::plugin::device_plugin_server::DevicePlugin;
use crate::carrier::protocol::plugin::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use crate::carrier::units::Unit;

/// Kubelet's side of the node part.
pub struct DevicePluginService(pub Arc<ReservationNode>);

type Devices = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl DevicePlugin for DevicePluginService {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    type ListAndWatchStream = Devices;

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Devices>, Status> {
        let units = self.0.offered();
        let ended = StreamEnd(Arc::clone(&self.0));
        let lists = stream::unfold(
            (units, true, ended),
            |(mut units, first, ended)| async move {
                if !first {
                    units.changed().await.ok()?;
                }
                let devices = units.borrow_and_update().iter().map(device).collect();
                Some((Ok(ListAndWatchResponse { devices }), (units, false, ended)))
            },
        );
        Ok(Response::new(lists.boxed()))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let mut answers = Vec::new();
        for wish in request.into_inner().container_requests {
            let size = usize::try_from(wish.allocation_size).unwrap_or(0);
            let ids = self
                .0
                .prefer(
                    &wish.available_device_ids,
                    &wish.must_include_device_ids,
                    size,
                )
                .await;
            answers.push(ContainerPreferredAllocationResponse { device_ids: ids });
        }
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: answers,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut answers = Vec::new();
        let _call = self.0.calls().begin();
        for wish in request.into_inner().container_requests {
            let name = self
                .0
                .allocate(&wish.device_ids)
                .await
                .map_err(Status::failed_precondition)?;
            answers.push(ContainerAllocateResponse {
                cdi_devices: vec![CdiDevice { name }],
            });
        }
        Ok(Response::new(AllocateResponse {
            container_responses: answers,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        let _call = self.0.calls().begin();
        let ids = request.into_inner().device_ids;
        self.0
            .ensure(&ids)
            .await
            .map_err(Status::failed_precondition)?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

/// Kubelet no longer reads the list of devices: it restarts, or it dropped this plugin.
struct StreamEnd(Arc<ReservationNode>);

impl Drop for StreamEnd {
    fn drop(&mut self) {
        self.0.register_again();
    }
}

fn device(unit: &Unit) -> Device {
    Device {
        id: unit.to_string(),
        health: "Healthy".to_owned(),
    }
}
