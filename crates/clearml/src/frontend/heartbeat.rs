//! The heartbeat: what the server's page of workers shows of the daemon and of its slots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use divvy_api::v1::Gpu;
use serde_json::{Value, json};
use sysinfo::{Disks, Networks, System};

use super::context::{Context, RunningSlot};
use crate::server::{Stats, StatusReport, now_ms};

/// The first report after the start, as the stock agent sends it.
const FIRST: Duration = Duration::from_secs(3);

/// Bytes of a MiB, as the stock agent divides.
const MIB: f64 = 1_048_576.0;

/// Reports until it is dropped.
pub async fn send_heartbeats(context: Arc<Context>) {
    let machine = Machine::new();
    let machine =
        machine.inspect_err(|error| tracing::warn!(%error, "cannot read the machine's statistics"));
    let mut machine = machine.ok();
    let every = context.settings.report;
    tokio::time::sleep(FIRST.min(every)).await;
    loop {
        let gpus = context.client.gpus().await.unwrap_or_default();
        let gpus: Vec<Gpu> = gpus
            .into_iter()
            .filter(|gpu| gpu.mode != "unmanaged")
            .collect();
        let mut stats = machine.as_mut().map(Machine::stats).unwrap_or_default();
        stats.extend(of_gpus(&gpus));
        let report = StatusReport {
            worker: context.daemon.clone(),
            timestamp: now_ms(),
            task: None,
            queues: Some(context.queues.clone()),
            machine_stats: Stats(stats),
            is_daemon: true,
            tags: context.settings.worker_tags.clone(),
        };
        if let Err(error) = context.server.report(&report).await {
            tracing::warn!(%error, "cannot report to the ClearML server");
        }
        for report in of_slots(&context) {
            let _reporting = context.slot_reports.lock().await;
            // It may have ended while another one was reported.
            let task = report.task.as_deref().unwrap_or_default();
            if context
                .slots()
                .get(task)
                .is_none_or(|slot| slot.worker != report.worker)
            {
                continue;
            }
            if let Err(error) = context.server.report(&report).await {
                tracing::debug!(worker = report.worker, %error, "cannot report a slot");
            }
        }
        tokio::time::sleep(every).await;
    }
}

fn of_slots(context: &Context) -> Vec<StatusReport> {
    let slots = context.slots();
    let others = slots
        .iter()
        .filter(|(_, slot)| slot.worker != context.daemon);
    others
        .map(|(task, slot)| of_slot(context, task, slot))
        .collect()
}

/// The share of its GPUs that a slot holds, so that the server's sums never exceed the GPUs there are.
pub fn of_slot(context: &Context, task: &str, slot: &RunningSlot) -> StatusReport {
    let part = |share: &u16| json!(f64::from(*share) / 1000.0);
    let parts = slot.shares.iter().map(part).collect();
    StatusReport {
        worker: slot.worker.clone(),
        timestamp: now_ms(),
        task: Some(task.to_owned()),
        queues: None,
        machine_stats: Stats(BTreeMap::from([("gpu_fraction", Value::Array(parts))])),
        is_daemon: false,
        tags: context.slot_tags.clone(),
    }
}

/// Figures of the GPUs. The daemon itself holds none of them, and says so with a fraction of 0 for each.
fn of_gpus(gpus: &[Gpu]) -> BTreeMap<&'static str, Value> {
    let mut stats = BTreeMap::new();
    if gpus.is_empty() {
        return stats;
    }
    let list = |of: &dyn Fn(&Gpu) -> Value| Value::Array(gpus.iter().map(of).collect());
    let mib = |bytes: u64| json!(rounded(bytes as f64 / MIB));
    stats.insert(
        "gpu_usage",
        list(&|gpu| json!(gpu.utilization_percent.unwrap_or(0))),
    );
    stats.insert(
        "gpu_temperature",
        list(&|gpu| json!(gpu.temperature_celsius.unwrap_or(0))),
    );
    stats.insert("gpu_memory_used", list(&|gpu| mib(gpu.memory_used_bytes)));
    stats.insert(
        "gpu_memory_free",
        list(&|gpu| mib(gpu.memory_total_bytes.saturating_sub(gpu.memory_used_bytes))),
    );
    stats.insert("gpu_fraction", list(&|_| json!(0)));
    stats
}

/// Three digits behind the point, as the stock agent sends them.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// The machine's own figures; rates are over the time since they were last asked for.
struct Machine {
    system: System,
    networks: Networks,
    disks: Disks,
    at: Instant,
}

impl Machine {
    fn new() -> Result<Self, sysinfo::Error> {
        let mut system = System::new()?;
        // Usage is what happened between two looks.
        system.refresh_cpu_usage();
        Ok(Self {
            system,
            networks: Networks::new_with_refreshed_list()?,
            disks: Disks::new_with_refreshed_list()?,
            at: Instant::now(),
        })
    }

    fn stats(&mut self) -> BTreeMap<&'static str, Value> {
        self.system.refresh_cpu_usage();
        self.system.refresh_memory();
        self.networks.refresh(true);
        self.disks.refresh(true);
        let seconds = self.at.elapsed().as_secs_f64().max(0.001);
        self.at = Instant::now();
        let rate = |bytes: u64| json!(rounded(bytes as f64 / MIB / seconds));
        let mib = |bytes: u64| json!(rounded(bytes as f64 / MIB));
        let network = |of: fn(&sysinfo::NetworkData) -> u64| {
            rate(self.networks.values().map(of).fold(0, u64::saturating_add))
        };
        // A disk that is mounted twice is one disk.
        let disks: BTreeMap<_, _> = self
            .disks
            .iter()
            .map(|disk| (disk.name(), disk.usage()))
            .collect();
        let disk = |of: fn(&sysinfo::DiskUsage) -> u64| {
            rate(disks.values().map(of).fold(0, u64::saturating_add))
        };
        let mut stats = BTreeMap::from([
            (
                "cpu_usage",
                json!([rounded(f64::from(self.system.global_cpu_usage()))]),
            ),
            ("memory_used", mib(self.system.used_memory())),
            ("memory_free", mib(self.system.available_memory())),
            ("network_tx", network(sysinfo::NetworkData::transmitted)),
            ("network_rx", network(sysinfo::NetworkData::received)),
            ("disk_read", disk(|usage| usage.read_bytes)),
            ("disk_write", disk(|usage| usage.written_bytes)),
        ]);
        if let Some(free) = self.free_at_home() {
            stats.insert("disk_free_home", json!(rounded(free)));
        }
        stats
    }

    /// Percent free of the disk that the home folder lies on.
    fn free_at_home(&self) -> Option<f64> {
        let home = std::env::var_os("HOME")
            .map(std::path::PathBuf::from)
            .unwrap_or_else(|| "/".into());
        let disk = self
            .disks
            .iter()
            .filter(|disk| home.starts_with(disk.mount_point()))
            .max_by_key(|disk| disk.mount_point().as_os_str().len())?;
        let total = disk.total_space();
        (total > 0).then(|| 100.0 * disk.available_space() as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_figures() {
        let stats = Machine::new().unwrap().stats();
        assert!(stats["memory_used"].as_f64().unwrap() > 0.0, "{stats:?}");
        assert!(stats["memory_free"].as_f64().unwrap() > 0.0, "{stats:?}");
        assert!(stats["cpu_usage"][0].is_number() && stats["network_rx"].is_number());
    }
}
