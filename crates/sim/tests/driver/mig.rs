//! MIG through the C ABI: profiles, instances and modes, as the conformance cases of the simulator have them. Cases are
//! named after what they show; the comments say where what is expected was read.

mod compute;
mod fault;
mod instance;
mod mode;
mod profile;

use crate::machine::{Client, Environment, Machine};
use divvy_driver::sys::nvml::*;

const INVALID_ARGUMENT: u32 = 2;
const NOT_SUPPORTED: u32 = 3;
const NO_PERMISSION: u32 = 4;
const NOT_FOUND: u32 = 6;
const RESET_REQUIRED: u32 = 16;
const IN_USE: u32 = 19;
const INSUFFICIENT_RESOURCES: u32 = 23;

const ENABLED: &str = "[mig]\nenabled = [0]\n";

/// Whether these tests may change a GPU.
fn is_root() -> bool {
    // SAFETY: has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

/// One who divides GPU 0, the handle of which is in the variable `device`.
struct Admin(Client);

/// A GPU instance: its handle, its id, its first memory slice and how many it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    handle: u64,
    id: u32,
    start: u32,
    size: u32,
}

impl Admin {
    /// `None` where these tests are not allowed to divide anything.
    fn of(environment: &Environment<'_>) -> Option<Admin> {
        Admin::on(environment.client()).filter(|_| is_root())
    }

    fn on(mut client: Client) -> Option<Admin> {
        client.ok(&["nvmlInit_v2", "nvmlDeviceGetHandleByIndex_v2 0 &device"]);
        Some(Admin(client))
    }

    /// GPU 0 divided from the beginning, and whoever may go on with it.
    fn with(machine: &Machine) -> Option<Admin> {
        Admin::of(&machine.with_config(ENABLED))
    }

    fn words<const N: usize>(&mut self, name: &str) -> [u32; N] {
        let bytes = self.0.bytes(name);
        std::array::from_fn(|at| {
            u32::from_ne_bytes(bytes[4 * at..4 * at + 4].try_into().expect("four bytes"))
        })
    }

    fn value(&mut self, order: &str, name: &str) -> Result<u64, u32> {
        // What was there before is not to be taken for an answer.
        self.0.set(name, u64::MAX);
        match self.0.call(order) {
            0 => Ok(self.0.value(name)),
            error => Err(error),
        }
    }

    /// A number of 32 bits.
    fn number(&mut self, order: &str, name: &str) -> Result<u32, u32> {
        self.value(order, name).map(|value| value as u32)
    }

    fn part(&mut self, handle: u64) -> Result<Part, u32> {
        match self
            .0
            .call(&format!("nvmlGpuInstanceGetInfo {handle} &info"))
        {
            0 => {
                // The GPU's handle, the id, the profile, the place.
                let [_, _, id, _profile, start, size] = self.words("info");
                Ok(Part {
                    handle,
                    id,
                    start,
                    size,
                })
            }
            error => Err(error),
        }
    }

    /// A GPU instance where the driver wants it.
    fn create(&mut self, profile: u32) -> Result<Part, u32> {
        let order = format!("nvmlDeviceCreateGpuInstance $device {profile} &made");
        let handle = self.value(&order, "made")?;
        self.part(handle)
    }

    fn create_at(&mut self, profile: u32, start: u32, size: u32) -> Result<Part, u32> {
        self.0.set("at", nvmlGpuInstancePlacement_t { start, size });
        let order = format!("nvmlDeviceCreateGpuInstanceWithPlacement $device {profile} &at &made");
        let handle = self.value(&order, "made")?;
        self.part(handle)
    }

    fn destroy(&mut self, part: Part) -> Result<(), u32> {
        match self
            .0
            .call(&format!("nvmlGpuInstanceDestroy {}", part.handle))
        {
            0 => Ok(()),
            error => Err(error),
        }
    }

    fn create_compute(&mut self, part: Part, profile: u32) -> Result<u64, u32> {
        let handle = part.handle;
        let order = format!("nvmlGpuInstanceCreateComputeInstance {handle} {profile} &compute");
        self.value(&order, "compute")
    }

    /// The MIG device that a compute instance is: the one with its ids.
    fn device_of(&mut self, compute: u64) -> Result<u64, u32> {
        let order = format!("nvmlComputeInstanceGetInfo_v2 {compute} &own");
        let parent = self.value(&order, "own")?;
        // The GPU's handle, that of the GPU instance, the id.
        let [_, _, low, high, id] = self.words("own");
        let part = self.part(u64::from(high) << 32 | u64::from(low))?;
        let found = (0..8).find_map(|index| {
            let order = format!("nvmlDeviceGetMigDeviceHandleByIndex {parent} {index} &mig");
            let device = self.value(&order, "mig").ok()?;
            let mut number =
                |function: &str| self.number(&format!("{function} {device} &number"), "number");
            let own = [
                number("nvmlDeviceGetGpuInstanceId"),
                number("nvmlDeviceGetComputeInstanceId"),
            ];
            (own == [Ok(part.id), Ok(id)]).then_some(device)
        });
        Ok(found.expect("every compute instance is a MIG device"))
    }

    fn text(&mut self, function: &str, device: u64) -> Result<String, u32> {
        match self.0.call(&format!("{function} {device} &text 96")) {
            0 => {
                let bytes = self.0.bytes("text");
                let end = bytes.iter().position(|byte| *byte == 0).expect("an end");
                Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
            }
            error => Err(error),
        }
    }

    /// Handles of a profile's instances.
    fn list(&mut self, profile: u32) -> Vec<Part> {
        self.0.ok(&[&format!(
            "nvmlDeviceGetGpuInstances $device {profile} &all &count"
        )]);
        let count = self.0.small_value("count") as usize;
        let bytes = self.0.bytes("all");
        let handles = bytes.chunks(8).take(count);
        let handles: Vec<u64> = handles
            .map(|bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
            .collect();
        let parts = handles.into_iter().map(|handle| self.part(handle));
        parts.collect::<Result<_, _>>().expect("just listed")
    }

    fn capacity(&mut self, profile: u32) -> Result<u32, u32> {
        let order =
            format!("nvmlDeviceGetGpuInstanceRemainingCapacity $device {profile} &capacity");
        self.number(&order, "capacity")
    }

    fn mode(&mut self) -> (u32, u32) {
        self.0
            .ok(&["nvmlDeviceGetMigMode $device &current &pending"]);
        (self.0.small_value("current"), self.0.small_value("pending"))
    }

    /// The activation status, when the call itself succeeded.
    fn set_mode(&mut self, mode: u32) -> Result<u32, u32> {
        let order = format!("nvmlDeviceSetMigMode $device {mode} &activation");
        self.number(&order, "activation")
    }

    fn control(&mut self, order: &str) -> u32 {
        self.0.call(&format!("divvy_sim_control \"{order}\""))
    }
}

/// Where parts lie.
fn places(parts: &[Part]) -> Vec<(u32, u32)> {
    parts.iter().map(|part| (part.start, part.size)).collect()
}

fn ids(parts: &[Part]) -> Vec<u32> {
    parts.iter().map(|part| part.id).collect()
}
