//! Device health for the status of pods (`ResourceHealthStatus`).

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::{Request, Response, Status};

use crate::node::agent_poll::Wellness;
use crate::node::protocol::health::dra_resource_health_server::DraResourceHealth;
use crate::node::protocol::health::{
    DeviceHealth, DeviceIdentifier, NodeWatchResourcesRequest, NodeWatchResourcesResponse,
};

/// kubelet treats a device without a report for 30 s as unknown (`DefaultHealthTimeout`). Three times as often, so that
/// one report may be late.
const AGAIN: Duration = Duration::from_secs(10);

/// Tells kubelet.
#[derive(Clone, Debug)]
pub struct HealthService {
    pub node: String,
    pub wellness: watch::Receiver<Wellness>,
    pub stop: watch::Receiver<bool>,
}

#[tonic::async_trait]
impl DraResourceHealth for HealthService {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let mut teller = self.clone();
        // The known health is reported at once.
        teller.wellness.mark_changed();
        let words = unfold(teller, |mut teller| async move {
            tokio::select! {
                // Or a clean end would wait for kubelet to hang up.
                _ = teller.stop.wait_for(|stop| *stop) => return None,
                changed = timeout(AGAIN, teller.wellness.changed()) => {
                    if let Ok(Err(_)) = changed {
                        return None;
                    }
                }
            }
            let word = teller.response(Timestamp::now());
            Some((Ok(word), teller))
        });
        Ok(Response::new(Box::pin(words)))
    }
}

impl HealthService {
    /// All of them each time, as kubelet wants it.
    fn response(&mut self, now: Timestamp) -> NodeWatchResourcesResponse {
        let wellness = self.wellness.borrow_and_update();
        let devices = wellness.iter().map(|(name, health)| DeviceHealth {
            device: Some(DeviceIdentifier {
                pool_name: self.node.clone(),
                device_name: name.clone(),
            }),
            health: (*health).into(),
            last_updated_time: now.as_second(),
        });
        NodeWatchResourcesResponse {
            devices: devices.collect(),
        }
    }
}
