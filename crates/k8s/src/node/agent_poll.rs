//! The poll of the agent's GPUs, for the published ResourceSlices and for the health that kubelet reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use divvy_api::v1;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::base::slices::{self, Health};
use crate::node::plugin::DraDriver;
use crate::node::protocol::health::HealthStatus;

/// Between two questions, each one call on this machine. A GPU that fails is withdrawn so much later at most; half
/// would double the calls for a rare event.
const LOOK: Duration = Duration::from_secs(5);

/// Every device that was there since this program started, and how it is.
pub type Wellness = BTreeMap<String, HealthStatus>;

/// The agent's last list of GPUs; `None` before the first one.
pub type Listed = Option<Vec<v1::Gpu>>;

/// Polls until the last receiver is gone.
pub async fn run(
    plugin: Arc<DraDriver>,
    listed: watch::Sender<Listed>,
    wellness: watch::Sender<Wellness>,
) {
    let mut answered = true;
    loop {
        let gpus = plugin.agent().gpus_now().await;
        match (&gpus, answered) {
            (Err(error), true) => tracing::warn!("the daemon does not respond: {error}"),
            (Ok(_), false) => tracing::info!("the daemon responds again"),
            _ => {}
        }
        answered = gpus.is_ok();
        let offered = gpus.as_deref().ok().map(slices::gpus);
        wellness.send_if_modified(|wellness| {
            let now = after(wellness, offered.as_deref());
            let changed = now != *wellness;
            *wellness = now;
            changed
        });
        // While the agent is away, what was published stays: nothing can be prepared, and nothing has to be taken away.
        if let Ok(gpus) = gpus {
            listed.send_replace(Some(gpus));
        }
        tokio::select! {
            () = listed.closed() => return,
            () = sleep(LOOK) => {}
        }
    }
}

/// Device health after the agent listed its GPUs, or failed to. A missing GPU is unhealthy: it cannot be used.
fn after(known: &Wellness, gpus: Option<&[slices::Gpu]>) -> Wellness {
    let otherwise = match gpus {
        None => HealthStatus::Unknown,
        Some(_) => HealthStatus::Unhealthy,
    };
    let mut now: Wellness = known.keys().map(|name| (name.clone(), otherwise)).collect();
    for gpu in gpus.unwrap_or_default() {
        let health = match gpu.health {
            // A reason that blocks new allocations does no harm to the current holder.
            Health::Well | Health::Troubled | Health::Drained => HealthStatus::Healthy,
            Health::Silent | Health::Lost => HealthStatus::Unhealthy,
        };
        let names = slices::names(gpu).into_iter();
        now.extend(names.map(|name| (name, health)));
    }
    now
}

#[cfg(test)]
mod tests {
    use divvy_core::units::Bytes;

    use super::*;
    use crate::base::slices::{Gpu, Offer};

    fn gpu(uuid: &str, health: Health) -> Gpu {
        Gpu {
            uuid: uuid.to_owned(),
            index: 0,
            model: "H100".to_owned(),
            memory: Bytes::gib(80),
            offer: Offer::Whole,
            health,
        }
    }

    fn health_list(wellness: &Wellness) -> Vec<(&str, HealthStatus)> {
        let words = wellness.iter();
        words
            .map(|(name, health)| (name.as_str(), *health))
            .collect()
    }

    #[test]
    fn devices_are_remembered_when_their_gpu_or_the_agent_is_gone() {
        let both = [gpu("GPU-a", Health::Well), gpu("GPU-b", Health::Lost)];
        let seen = after(&Wellness::new(), Some(&both));
        assert_eq!(
            health_list(&seen),
            [
                ("gpu-a", HealthStatus::Healthy),
                ("gpu-b", HealthStatus::Unhealthy)
            ]
        );
        let one = [gpu("GPU-b", Health::Troubled)];
        let fewer = after(&seen, Some(&one));
        assert_eq!(
            health_list(&fewer),
            [
                ("gpu-a", HealthStatus::Unhealthy),
                ("gpu-b", HealthStatus::Healthy)
            ]
        );
        let silent = after(&fewer, None);
        assert!(
            silent
                .values()
                .all(|health| *health == HealthStatus::Unknown)
        );
        assert_eq!(silent.len(), 2);
    }
}
