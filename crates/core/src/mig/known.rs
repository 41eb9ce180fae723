//! The profile tables of known GPU models (data/mig.toml), for planning without a GPU and for gaps in the driver's
//! answer.
//!
//! A running daemon asks the driver.

use std::sync::{Arc, LazyLock};

use serde::Deserialize;

use super::{MigProfile, Profile, ProfileTable};
use crate::units::Bytes;

/// A GPU model with known profiles and placements.
#[derive(Clone, Debug)]
pub struct Model {
    /// `a100-40gb`
    pub key: String,
    /// PCI device ids it is sold under; the vendor is 0x10DE.
    pub pci_devices: Vec<u16>,
    /// Names the driver gives it.
    pub names: Vec<String>,
    pub table: Arc<ProfileTable>,
}

/// All known models, in the order of the file.
pub fn models() -> &'static [Model] {
    &MODELS
}

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let file: File = toml::from_str(include_str!("../../../../data/mig.toml"))
        .expect("data/mig.toml is part of the program, and tests read it");
    file.model.into_iter().map(Row::model).collect()
});

impl ProfileTable {
    /// The table of a model by its key, `a100-40gb`.
    pub fn of_model(key: &str) -> Option<Arc<Self>> {
        let model = models().iter().find(|model| model.key == key)?;
        Some(Arc::clone(&model.table))
    }

    /// The table of the model with this PCI device id, 0x20B0.
    pub fn of_pci_device(device: u16) -> Option<Arc<Self>> {
        let model = models()
            .iter()
            .find(|model| model.pci_devices.contains(&device))?;
        Some(Arc::clone(&model.table))
    }
}

#[derive(Deserialize)]
struct File {
    model: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    key: String,
    pci_devices: Vec<u16>,
    names: Vec<String>,
    compute_slices: u8,
    memory_slices: u8,
    profile: Vec<ProfileRow>,
}

#[derive(Deserialize)]
struct ProfileRow {
    name: MigProfile,
    id: u32,
    compute_slices: u8,
    size: u8,
    starts: Vec<u8>,
    most: u8,
    memory_mib: u64,
    #[serde(default)]
    multiprocessors: u32,
}

impl Row {
    fn model(self) -> Model {
        let profiles = self.profile.into_iter().map(ProfileRow::profile).collect();
        let table = ProfileTable::new(profiles)
            .unwrap_or_else(|error| panic!("{} in data/mig.toml: {error}", self.key));
        assert_eq!(
            (table.compute_slices, table.memory_slices),
            (self.compute_slices, self.memory_slices),
            "{} in data/mig.toml",
            self.key
        );
        Model {
            key: self.key,
            pci_devices: self.pci_devices,
            names: self.names,
            table: Arc::new(table),
        }
    }
}

impl ProfileRow {
    fn profile(self) -> Profile {
        Profile {
            id: self.id,
            name: self.name,
            memory: Bytes::mib(self.memory_mib),
            compute_slices: self.compute_slices,
            memory_slices: self.size,
            multiprocessors: self.multiprocessors,
            most: self.most,
            starts: self.starts,
        }
    }
}
