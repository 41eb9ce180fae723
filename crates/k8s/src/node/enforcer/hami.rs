//! HAMi's allocation of a pod, from the annotation that its scheduler writes.
//!
//! `hami.io/vgpu-devices-allocated` has a field for each container, ended by `;`. Each device in it is ended by `:` and
//! has UUID, vendor, MiB and percent of cores, separated by commas (pkg/device/devices.go, HAMi 4707fb0 of 2026-08-21).

use super::grant::{Amount, Facts, Part, Refused, annotation};

const ALLOCATED: &str = "hami.io/vgpu-devices-allocated";
const NODE: &str = "hami.io/vgpu-node";
/// The vendor whose devices are GPUs of NVIDIA.
const NVIDIA: &str = "NVIDIA";

/// The parts of a pod of HAMi; `None` for another pod. A pod without an id of HAMi's
/// plugin has no GPU of HAMi, whatever its annotations say.
///
/// # Errors
/// The annotation cannot be read, or says something that cannot be limited.
pub fn parts(facts: &Facts) -> Result<Option<Vec<Part>>, Refused> {
    let Some(text) = annotation(&facts.pod, ALLOCATED) else {
        return Ok(None);
    };
    // `GPU-…-3`; NVIDIA's plugin has `GPU-…` and `GPU-…::3`.
    let is_hamis = |id: &String| !id.contains("::") && !facts.gpus.contains_key(id);
    if facts.ids.is_empty() || !facts.ids.iter().all(is_hamis) {
        return Ok(None);
    }
    if let Some(node) = annotation(&facts.pod, NODE).filter(|node| *node != facts.node) {
        return Err(Refused::HamiElsewhere(node.to_owned()));
    }
    let devices = text.split([';', ':']).filter(|device| !device.is_empty());
    let parts: Result<Vec<Option<Part>>, Refused> =
        devices.map(|device| part(device, text)).collect();
    Ok(Some(parts?.into_iter().flatten().collect()))
}

fn part(device: &str, text: &str) -> Result<Option<Part>, Refused> {
    let unread = || Refused::Hami {
        key: ALLOCATED,
        text: text.chars().take(200).collect(),
    };
    let fields: Vec<&str> = device.split(',').collect();
    let [gpu, vendor, mebibytes, _cores, ..] = fields[..] else {
        return Err(unread());
    };
    if vendor != NVIDIA {
        return Ok(None);
    }
    if gpu.contains('[') || gpu.starts_with("MIG-") {
        return Err(Refused::HamiInstance(gpu.to_owned()));
    }
    let mebibytes = mebibytes.parse().ok().filter(|count| *count > 0);
    let amount = Amount::Mebibytes(mebibytes.ok_or_else(unread)?);
    Ok(Some(Part {
        gpu: gpu.to_owned(),
        amount,
    }))
}
