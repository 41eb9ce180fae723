//! CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER: which GPUs a process sees, in which order, as the CUDA programming guide describes them.

use super::state::State;
use crate::model::Model;

/// What a process has for a device.
pub struct Device {
    pub seat: usize,
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

/// The devices of this process, in the order of its ordinals.
pub fn devices(state: &State) -> Vec<Device> {
    let whole = |seat| Device {
        seat,
        compute: 0,
        instance: None,
    };
    gpus(state).into_iter().map(whole).collect()
}

fn gpus(state: &State) -> Vec<usize> {
    let set = |name| std::env::var(name).ok();
    let all = ordered(
        state,
        set("CUDA_DEVICE_ORDER").as_deref() == Some("PCI_BUS_ID"),
    );
    match set("CUDA_VISIBLE_DEVICES") {
        Some(list) => choose(&list, &all, |gpu| state.gpus()[gpu].uuid_text()),
        None => all,
    }
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

/// Entries are ordinals into `all` or beginnings of UUIDs that fit one GPU; the list ends at the first entry that names none.
/// A GPU named twice leaves no device at all.
fn choose(list: &str, all: &[usize], uuid: impl Fn(usize) -> String) -> Vec<usize> {
    let mut chosen = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let gpu = if entry.starts_with("GPU-") {
            let mut fitting = all.iter().filter(|gpu| {
                uuid(**gpu).starts_with(&entry.to_ascii_lowercase().replacen("gpu-", "GPU-", 1))
            });
            fitting.next().filter(|_| fitting.next().is_none())
        } else {
            entry
                .parse::<usize>()
                .ok()
                .and_then(|ordinal| all.get(ordinal))
        };
        let Some(gpu) = gpu else { break };
        if chosen.contains(gpu) {
            return Vec::new();
        }
        chosen.push(*gpu);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(list: &str) -> Vec<usize> {
        choose(list, &[2, 0, 1], |gpu| {
            ["GPU-aa11", "GPU-aa22", "GPU-bb33"][gpu].to_owned()
        })
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
}
