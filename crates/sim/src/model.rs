//! Device models as data: `models/*.toml`, one file a GPU type, and the text form `MODEL:N[,MODEL:N…]` of DIVVY_SIM.
//!
//! Every figure carries its source as a comment in its file. The code that uses a figure says what it means for the
//! simulation.

pub mod mig;

use serde::Deserialize;

/// The most GPUs one state file can hold: as many as a slice's ledger has (`GPUS`), so that a slice of all of them can
/// be tested.
pub const MAX_GPUS: usize = 16;

/// One GPU type. Memory figures are MiB as NVML reports them, clocks MHz, power watts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub name: String,
    pub architecture: Architecture,
    pub compute_capability: (i32, i32),
    pub multiprocessors: i32,
    pub memory_total_mib: u64,
    pub memory_reserved_mib: u64,
    pub context_mib: u64,
    pub pci_device: u32,
    pub pci_subsystem: u32,
    pub graphics_clock_mhz: u32,
    pub idle_clock_mhz: u32,
    pub memory_clock_mhz: u32,
    pub memory_bus_bits: i32,
    pub l2_cache_mib: i32,
    pub shared_per_multiprocessor_kib: i32,
    pub threads_per_multiprocessor: i32,
    pub blocks_per_multiprocessor: i32,
    pub copy_engines: i32,
    pub power_limit_watts: u32,
    pub power_idle_watts: u32,
    pub pcie_generation: u32,
    /// The key of its table in data/mig.toml, if it can be divided.
    pub mig: Option<String>,
    pub display: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    Ampere,
    Ada,
    Hopper,
    Blackwell,
}

const MIB: u64 = 1 << 20;

impl Model {
    pub fn memory_total(&self) -> u64 {
        self.memory_total_mib * MIB
    }

    pub fn memory_reserved(&self) -> u64 {
        self.memory_reserved_mib * MIB
    }

    /// Bytes that programs can take: what `cuDeviceTotalMem` reports.
    pub fn memory_usable(&self) -> u64 {
        self.memory_total() - self.memory_reserved()
    }

    /// The most of the L2 cache that can be set aside: three quarters of it (inferred).
    pub fn persisting_l2_bytes(&self) -> usize {
        self.l2_cache_mib as usize * MIB as usize * 3 / 4
    }

    pub fn context_bytes(&self) -> u64 {
        self.context_mib * MIB
    }
}

macro_rules! models {
    ($($key:literal)*) => {
        const MODELS: &[(&str, &str)] = &[$(($key, include_str!(concat!("../models/", $key, ".toml")))),*];
    };
}

models! { "a100-40gb" "a100-80gb" "a30-24gb" "b200-180gb" "h100-80gb" "h200-141gb" "l4-24gb" "rtx4090-24gb" "rtxpro6000-96gb" }

/// The model called `key`.
pub fn find(key: &str) -> Option<Model> {
    let (_, text) = MODELS.iter().find(|(known, _)| *known == key)?;
    Some(toml::from_str(text).expect("the embedded models are tested"))
}

/// The keys of all models, as they are written in DIVVY_SIM.
pub fn keys() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(key, _)| *key)
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("`{0}` is not MODEL:N; known models: {known}", known = known())]
    Shape(String),
    #[error("unknown model `{0}`; known models: {known}", known = known())]
    Unknown(String),
    #[error("{0} GPUs requested, but a simulated machine has at most {MAX_GPUS}")]
    TooMany(usize),
}

fn known() -> String {
    keys().collect::<Vec<_>>().join(", ")
}

/// Parses `a100-80gb:2,l4-24gb:1` into one key per GPU, in the order written. A model without `:N` is one GPU.
pub fn parse_spec(text: &str) -> Result<Vec<&'static str>, SpecError> {
    let mut gpus = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (name, count) = part.split_once(':').unwrap_or((part, "1"));
        let shape = || SpecError::Shape(part.to_owned());
        let count: usize = count.trim().parse().map_err(|_| shape())?;
        if name.is_empty() || count == 0 {
            return Err(shape());
        }
        let key = keys()
            .find(|key| *key == name.trim())
            .ok_or_else(|| SpecError::Unknown(name.to_owned()))?;
        if gpus.len().saturating_add(count) > MAX_GPUS {
            return Err(SpecError::TooMany(gpus.len().saturating_add(count)));
        }
        gpus.extend(std::iter::repeat_n(key, count));
    }
    Ok(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_model_parses_and_leaves_room_for_programs() {
        for key in keys() {
            let model = find(key).expect("a listed key is found");
            assert!(model.memory_usable() > 2 * model.context_bytes(), "{key}");
            assert!(model.idle_clock_mhz < model.graphics_clock_mhz, "{key}");
        }
    }

    #[test]
    fn a_spec_lists_its_gpus_in_the_order_written() {
        assert_eq!(
            parse_spec("a100-80gb:2, l4-24gb"),
            Ok(vec!["a100-80gb", "a100-80gb", "l4-24gb"])
        );
    }

    #[test]
    fn a_bad_spec_is_refused_with_the_known_models() {
        for bad in [
            "",
            "a100-80gb:",
            "a100-80gb:0",
            "a100-80gb:x",
            ":2",
            "a100-80gb:2,,",
        ] {
            assert!(matches!(parse_spec(bad), Err(SpecError::Shape(_))), "{bad}");
        }
        let error = parse_spec("v100:1")
            .expect_err("v100 is no model")
            .to_string();
        assert!(
            error.contains("`v100`") && error.contains("h200-141gb"),
            "{error}"
        );
        assert_eq!(parse_spec("l4-24gb:17"), Err(SpecError::TooMany(17)));
    }
}
