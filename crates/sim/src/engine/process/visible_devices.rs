//! Visible devices: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, as the CUDA programming guide and the MIG user guide
//! describe them.
//!
//! A GPU that is divided is no device. Its compute instances are, one of each GPU instance (what drivers from 570 on
//! do), as far as the process has the rights to them.

use crate::engine::machine::state::State;
use crate::engine::mig::MigInstanceId;
use crate::engine::mig::capabilities::{Root, root};
use crate::engine::mig::partition::{gpu_of, instance_of, of_instance};
use crate::model::Model;

/// Compute instances that one process can have (MIG user guide, "CUDA Device Enumeration").
const MOST_INSTANCES: usize = 64;

/// What a process has for a device.
pub struct Device {
    pub partition: usize,
    /// The compute instance's id; 0 on a whole GPU.
    pub compute: u32,
    pub instance: Option<Instance>,
}

/// A compute instance as CUDA shows it.
pub struct Instance {
    pub uuid: [u8; 16],
    /// The GPU's, with the instance's figures.
    pub model: Model,
}

/// A device before anything is known but where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeviceLocation {
    partition: usize,
    compute: u32,
}

impl DeviceLocation {
    fn whole(gpu: usize) -> DeviceLocation {
        DeviceLocation {
            partition: gpu,
            compute: 0,
        }
    }

    fn instance(gpu: usize, place: MigInstanceId) -> DeviceLocation {
        DeviceLocation {
            partition: of_instance(gpu, place.gpu_instance),
            compute: place.compute_instance,
        }
    }

    /// Where in its GPU it is.
    fn place(self) -> Option<MigInstanceId> {
        instance_of(self.partition).map(|gpu_instance| MigInstanceId {
            gpu_instance,
            compute_instance: self.compute,
        })
    }
}

/// The devices of this process, in the order of its ordinals.
pub fn devices(state: &State) -> Vec<Device> {
    let set = |name| std::env::var(name).ok();
    let by_bus = set("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID");
    let usable = usable(state, &ordered(state, by_bus), root().as_ref());
    let chosen = match set("CUDA_VISIBLE_DEVICES") {
        Some(list) => choose(&list, &first_of_each(&usable), &usable, |location| {
            names(state, location)
        }),
        None => first_of_each(&usable),
    };
    let instances = |location: &DeviceLocation| instance_of(location.partition).is_some();
    let beyond = chosen.iter().filter(|location| instances(location));
    let beyond = beyond.count().saturating_sub(MOST_INSTANCES);
    let kept = chosen.len() - beyond;
    chosen[..kept]
        .iter()
        .map(|location| described(state, *location))
        .collect()
}

/// All GPUs by PCI bus, or the fastest first (equal ones by PCI bus).
fn ordered(state: &State, by_bus: bool) -> Vec<usize> {
    let mut gpus: Vec<usize> = (0..state.gpu_count()).collect();
    if !by_bus {
        let speed = |gpu: &usize| {
            u64::from(state.model(*gpu).graphics_clock_mhz)
                * state.model(*gpu).multiprocessors as u64
        };
        gpus.sort_by_key(|gpu| std::cmp::Reverse(speed(gpu)));
    }
    gpus
}

/// Everything that the process may use: whole GPUs, and compute instances by their ids.
fn usable(state: &State, gpus: &[usize], root: Option<&Root>) -> Vec<DeviceLocation> {
    let mut usable = Vec::new();
    for gpu in gpus.iter().copied() {
        let mig = &state.gpus()[gpu].mig;
        if !mig.is_on() {
            usable.push(DeviceLocation::whole(gpu));
            continue;
        }
        let places = mig.compute_instances().map(|instance| instance.place);
        let permitted = places.filter(|place| root.is_none_or(|root| root.may_use(gpu, *place)));
        usable.extend(permitted.map(|place| DeviceLocation::instance(gpu, place)));
    }
    usable
}

/// One compute instance of each GPU instance.
fn first_of_each(usable: &[DeviceLocation]) -> Vec<DeviceLocation> {
    let mut devices: Vec<DeviceLocation> = Vec::new();
    for location in usable {
        if !devices
            .iter()
            .any(|device| device.partition == location.partition)
        {
            devices.push(*location);
        }
    }
    devices
}

/// What a device can be called: its UUID as NVML writes it, and the older form that names GPU and ids.
fn names(state: &State, location: DeviceLocation) -> Vec<String> {
    let (gpu, place) = (gpu_of(location.partition), location.place());
    let uuid = state.gpus()[gpu].uuid_text();
    let Some(place) = place else {
        return vec![uuid];
    };
    let (of, within) = (place.gpu_instance, place.compute_instance);
    let older = format!("MIG-{uuid}/{of}/{within}");
    state
        .mig_uuid_text(gpu, place)
        .into_iter()
        .chain([older])
        .collect()
}

/// Entries are ordinals into `all`, or beginnings of the names of one of `usable` devices; the list ends at the first
/// entry that names none. A device named twice leaves none at all; of several compute instances of one GPU instance the
/// first counts.
fn choose(
    list: &str,
    all: &[DeviceLocation],
    usable: &[DeviceLocation],
    names: impl Fn(DeviceLocation) -> Vec<String>,
) -> Vec<DeviceLocation> {
    let named = |entry: &str| {
        let entry = entry.to_ascii_lowercase();
        let fits = |name: String| name.to_ascii_lowercase().starts_with(&entry);
        let mut fitting = usable
            .iter()
            .filter(|location| names(**location).into_iter().any(fits));
        let first = fitting.next().copied();
        let exact = |location: &DeviceLocation| {
            let own = names(*location);
            own.iter().any(|name| name.eq_ignore_ascii_case(&entry))
        };
        match fitting.next() {
            None => first,
            Some(_) => usable.iter().copied().find(exact),
        }
    };
    let mut chosen: Vec<DeviceLocation> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let location = if entry.starts_with("GPU-") || entry.starts_with("MIG-") {
            named(entry)
        } else {
            let ordinal = entry.parse::<usize>().ok();
            ordinal.and_then(|ordinal| all.get(ordinal).copied())
        };
        let Some(location) = location else { break };
        if chosen.contains(&location) {
            return Vec::new();
        }
        if !chosen
            .iter()
            .any(|other| other.partition == location.partition)
        {
            chosen.push(location);
        }
    }
    chosen
}

fn described(state: &State, location: DeviceLocation) -> Device {
    let instance = location
        .place()
        .and_then(|place| instance(state, gpu_of(location.partition), place));
    Device {
        partition: location.partition,
        compute: location.compute,
        instance,
    }
}

/// The GPU's figures, cut to the instance's. Cache and bus go with the memory (guessed); an instance has what its
/// profile says for itself, and nothing is reserved in it.
fn instance(state: &State, gpu: usize, place: MigInstanceId) -> Option<Instance> {
    let (whole, profile) = (state.model(gpu), state.compute_profile(gpu, place)?);
    let memory = state.mig_memory(gpu, place.gpu_instance);
    let part = |figure: i32| {
        let part = i128::from(figure) * i128::from(memory) / i128::from(whole.memory_total());
        part.max(1) as i32
    };
    let model = Model {
        name: state.mig_name(gpu, place)?,
        multiprocessors: profile.multiprocessors as i32,
        memory_total_mib: memory >> 20,
        memory_reserved_mib: 0,
        memory_bus_bits: part(whole.memory_bus_bits),
        l2_cache_mib: part(whole.l2_cache_mib),
        copy_engines: profile.engines.copy as i32,
        ..whole.clone()
    };
    let uuid = state.mig_uuid(gpu, place)?;
    Some(Instance { uuid, model })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUIDS: [&str; 3] = ["GPU-aa11", "GPU-aa22", "GPU-bb33"];

    /// Of GPUs 2, 0 and 1, in this order.
    fn chosen(list: &str) -> Vec<usize> {
        let all = [2, 0, 1].map(DeviceLocation::whole);
        let chosen = choose(list, &all, &all, |location| {
            vec![UUIDS[location.partition].to_owned()]
        });
        chosen
            .into_iter()
            .map(|location| location.partition)
            .collect()
    }

    #[test]
    fn ordinals_count_in_the_device_order_and_stop_at_the_first_bad_one() {
        assert_eq!(chosen("1,0"), [0, 2]);
        assert_eq!(chosen("0,3,1"), [2]);
        assert_eq!(chosen("0,-1,1"), [2]);
        assert!(chosen("").is_empty() && chosen("NoDevFiles").is_empty());
    }

    #[test]
    fn uuid_beginnings_must_fit_one_gpu() {
        assert_eq!(chosen("GPU-bb,GPU-aa1"), [2, 0]);
        assert!(chosen("GPU-aa").is_empty() && chosen("GPU-cc").is_empty());
    }

    #[test]
    fn a_gpu_named_twice_hides_all() {
        assert!(chosen("0,GPU-bb33").is_empty());
    }

    /// Compute instances 0 and 1 of GPU instance 1, and 0 of GPU instance 10, all on GPU 0; then GPU 1.
    fn among_instances(list: &str) -> Vec<(usize, u32)> {
        let location = |gpu_instance, compute_instance| {
            let place = MigInstanceId {
                gpu_instance,
                compute_instance,
            };
            DeviceLocation::instance(0, place)
        };
        let usable = [
            location(1, 0),
            location(1, 1),
            location(10, 0),
            DeviceLocation::whole(1),
        ];
        let names = |at: DeviceLocation| match at.place() {
            None => vec!["GPU-bb33".to_owned()],
            Some(place) => {
                let (of, within) = (place.gpu_instance, place.compute_instance);
                vec![
                    format!("MIG-c{of}d{within}"),
                    format!("MIG-GPU-aa11/{of}/{within}"),
                ]
            }
        };
        let chosen = choose(list, &first_of_each(&usable), &usable, names);
        let read = |location: DeviceLocation| (location.partition, location.compute);
        chosen.into_iter().map(read).collect()
    }

    #[test]
    fn compute_instances_are_named_by_uuid_or_by_their_ids() {
        let one = of_instance(0, 1);
        assert_eq!(among_instances("MIG-c1d1"), [(one, 1)]);
        assert_eq!(
            among_instances("MIG-GPU-aa11/10/0,GPU-bb"),
            [(of_instance(0, 10), 0), (1, 0)]
        );
        assert_eq!(among_instances("MIG-GPU-aa11/1/1"), [(one, 1)]);
        assert!(
            among_instances("MIG-c1").is_empty() && among_instances("MIG-GPU-aa11/2/0").is_empty()
        );
    }

    #[test]
    fn a_process_gets_one_compute_instance_of_a_gpu_instance() {
        let one = of_instance(0, 1);
        assert_eq!(
            among_instances("MIG-c1d1,MIG-c1d0,MIG-c10d0"),
            [(one, 1), (of_instance(0, 10), 0)]
        );
        assert_eq!(among_instances("0,2"), [(one, 0), (1, 0)]);
    }

    #[test]
    fn a_divided_gpu_is_no_device() {
        assert!(among_instances("GPU-aa11").is_empty());
    }
}
