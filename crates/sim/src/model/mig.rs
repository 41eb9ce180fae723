//! MIG tables: the profiles and placements of a GPU, from data/mig.toml, which says where each figure comes from.
//!
//! What the data leaves out is filled in here: multiprocessors and engines by compute slices, compute instances by the
//! pattern of the boards that have been seen. Both are guesses.

use serde::Deserialize;
use std::sync::LazyLock;

/// One board's division.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Table {
    key: String,
    pub compute_slices: u32,
    pub memory_slices: u32,
    #[serde(rename = "profile")]
    pub profiles: Vec<GpuProfile>,
    #[serde(default)]
    compute: Vec<ComputeRow>,
}

/// A kind of GPU instance. Sizes and starts count memory slices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuProfile {
    pub name: String,
    /// The argument of `nvmlDeviceGetGpuInstanceProfileInfo`.
    #[serde(rename = "enum")]
    pub number: u32,
    /// What that function answers, and what all others take.
    pub id: u32,
    pub compute_slices: u32,
    pub size: u32,
    pub starts: Vec<u32>,
    pub most: u32,
    pub memory_mib: u64,
    multiprocessors: Option<u32>,
    #[serde(default)]
    engines: EngineRow,
    #[serde(default)]
    attributes: Vec<Attribute>,
    /// In a configuration: the GPUs with a driver that has this profile; all without.
    gpus: Option<Vec<usize>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Attribute {
    DoubleMemory,
    Graphics,
    MediaExtensions,
    AllMedia,
    NoMedia,
    ExcludesAllButNoMediaProfiles,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EngineRow {
    copy: Option<u32>,
    decoder: Option<u32>,
    encoder: Option<u32>,
    jpeg: Option<u32>,
    ofa: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Engines {
    pub copy: u32,
    pub decoder: u32,
    pub encoder: u32,
    pub jpeg: u32,
    pub ofa: u32,
}

/// A kind of compute instance within a GPU instance of `within` compute slices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
struct ComputeRow {
    within: String,
    id: u32,
    #[serde(rename = "enum")]
    number: u32,
    prefix: String,
    compute_slices: u32,
    most: u32,
    multiprocessors: u32,
    starts: Vec<u32>,
}

/// A kind of compute instance within one kind of GPU instance. Starts count compute slices of the GPU instance.
#[derive(Debug, Clone, PartialEq)]
pub struct ComputeProfile {
    pub name: String,
    /// The argument of `nvmlGpuInstanceGetComputeInstanceProfileInfo`.
    pub number: u32,
    pub id: u32,
    pub compute_slices: u32,
    pub starts: Vec<u32>,
    pub most: u32,
    pub multiprocessors: u32,
    /// Those of the GPU instance, which its compute instances share.
    pub engines: Engines,
    pub has_graphics: bool,
}

/// `NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1`: one slice with more multiprocessors, for twice the memory.
const REVISED: u32 = 7;

impl GpuProfile {
    fn is(&self, attribute: Attribute) -> bool {
        self.attributes.contains(&attribute)
    }

    pub fn is_of(&self, gpu: usize) -> bool {
        self.gpus.as_ref().is_none_or(|gpus| gpus.contains(&gpu))
    }

    pub fn memory(&self) -> u64 {
        self.memory_mib << 20
    }

    pub fn has_graphics(&self) -> bool {
        self.is(Attribute::Graphics)
    }

    pub fn has_media_extensions(&self) -> bool {
        self.is(Attribute::MediaExtensions)
    }

    pub fn has_all_media(&self) -> bool {
        self.is(Attribute::AllMedia)
    }

    pub fn has_no_media(&self) -> bool {
        self.is(Attribute::NoMedia)
    }

    pub fn has_double_memory(&self) -> bool {
        self.is(Attribute::DoubleMemory)
    }
}

#[derive(Deserialize)]
struct Tables {
    model: Vec<Table>,
}

static TABLES: LazyLock<Vec<Table>> = LazyLock::new(|| {
    let tables: Tables = toml::from_str(include_str!("../../../../data/mig.toml"))
        .expect("the embedded table is tested");
    tables.model
});

impl Table {
    /// The table called `key` in data/mig.toml.
    pub fn find(key: &str) -> Option<&'static Table> {
        TABLES.iter().find(|table| table.key == key)
    }

    /// The same with some profiles another driver has: those of an id that is there replace it.
    pub fn with(&self, others: &[GpuProfile]) -> Table {
        let mut table = self.clone();
        for other in others {
            match table.profiles.iter_mut().find(|own| own.id == other.id) {
                Some(own) => *own = other.clone(),
                None => table.profiles.push(other.clone()),
            }
        }
        table
    }

    pub fn profile(&self, id: u32) -> Option<&GpuProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    pub fn numbered(&self, number: u32) -> Option<&GpuProfile> {
        self.profiles
            .iter()
            .find(|profile| profile.number == number)
    }

    /// The ordinary profile of one compute slice, by which what is not known is filled in.
    fn smallest(&self) -> &GpuProfile {
        let ordinary = |profile: &&GpuProfile| profile.attributes.is_empty();
        let least = self.profiles.iter().filter(ordinary);
        least
            .min_by_key(|profile| profile.compute_slices)
            .unwrap_or(&self.profiles[0])
    }

    pub fn multiprocessors(&self, profile: &GpuProfile) -> u32 {
        let one = self.smallest().multiprocessors.unwrap_or_default();
        let known = profile.multiprocessors;
        known.unwrap_or(one * profile.compute_slices)
    }

    pub fn engines(&self, profile: &GpuProfile) -> Engines {
        let (own, one) = (profile.engines, self.smallest().engines);
        let figure = |own: Option<u32>, one: Option<u32>| {
            own.unwrap_or(one.unwrap_or_default() * profile.compute_slices)
        };
        Engines {
            copy: figure(own.copy, one.copy),
            decoder: figure(own.decoder, one.decoder),
            encoder: figure(own.encoder, one.encoder),
            jpeg: figure(own.jpeg, one.jpeg),
            ofa: figure(own.ofa, one.ofa),
        }
    }

    /// What a GPU instance can be divided into. One of twice the memory has the revised profile alone where it has more
    /// multiprocessors than an ordinary one (seen on GH200).
    pub fn compute_profiles(&self, within: &GpuProfile) -> Vec<ComputeProfile> {
        let slices = within.compute_slices;
        let revised = self.multiprocessors(within) != self.multiprocessors(self.smallest());
        let fits = |number: u32| slices > 1 || (number == REVISED) == revised;
        let rows = self
            .compute
            .iter()
            .filter(|row| row.within == slices.to_string() && fits(row.number));
        let mut found: Vec<ComputeProfile> = rows
            .map(|row| ComputeProfile {
                name: format!("{}{}", row.prefix, within.name),
                number: row.number,
                id: row.id,
                compute_slices: row.compute_slices,
                starts: starts(row.compute_slices, row.most, &row.starts),
                most: row.most,
                multiprocessors: row.multiprocessors,
                engines: self.engines(within),
                has_graphics: within.has_graphics(),
            })
            .collect();
        if found.is_empty() {
            found = self.usual_compute_profiles(within);
        }
        found
    }

    /// For boards without a published table: as on the A100, in proportion.
    fn usual_compute_profiles(&self, within: &GpuProfile) -> Vec<ComputeProfile> {
        let (slices, multiprocessors) = (within.compute_slices, self.multiprocessors(within));
        let numbers = [(1, 0), (2, 1), (3, 2), (4, 3), (7, 4)];
        let fitting = numbers.into_iter().filter(|(part, _)| *part <= slices);
        let profile = |(part, number): (u32, u32)| {
            let whole = part == slices;
            let revised = slices == 1 && multiprocessors != self.multiprocessors(self.smallest());
            let number = if revised { REVISED } else { number };
            ComputeProfile {
                name: if whole {
                    within.name.clone()
                } else {
                    format!("{part}c.{}", within.name)
                },
                number,
                id: number,
                compute_slices: part,
                starts: starts(part, slices / part, &[]),
                most: slices / part,
                multiprocessors: multiprocessors * part / slices,
                engines: self.engines(within),
                has_graphics: within.has_graphics(),
            }
        };
        fitting.map(profile).collect()
    }
}

/// Those known, or one after the other.
fn starts(size: u32, most: u32, known: &[u32]) -> Vec<u32> {
    if known.is_empty() {
        (0..most).map(|at| at * size).collect()
    } else {
        known.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_that_names_a_table_finds_it_and_its_placements_lie_on_the_gpu() {
        for key in crate::model::keys() {
            let model = crate::model::find(key).expect("listed");
            let Some(table) = model.mig.as_deref() else {
                continue;
            };
            let table = Table::find(table).expect("the table is there");
            for profile in &table.profiles {
                assert!(!profile.starts.is_empty(), "{key} {}", profile.name);
                let ends = profile.starts.iter().map(|start| start + profile.size);
                assert!(
                    ends.max() <= Some(table.memory_slices),
                    "{key} {}",
                    profile.name
                );
                assert!(table.multiprocessors(profile) <= model.multiprocessors as u32);
                assert!(
                    profile.memory() <= model.memory_total(),
                    "{key} {}",
                    profile.name
                );
            }
        }
    }

    #[test]
    fn every_gpu_instance_has_exactly_one_compute_profile_for_all_of_it_unless_twice_as_much_is_on_one_slice()
     {
        for table in TABLES.iter() {
            for profile in &table.profiles {
                let all = table.compute_profiles(profile);
                let whole = all
                    .iter()
                    .filter(|row| row.compute_slices == profile.compute_slices);
                assert_eq!(whole.count(), 1, "{} {}", table.key, profile.name);
                let mut ids: Vec<u32> = all.iter().map(|row| row.id).collect();
                ids.dedup();
                assert_eq!(ids.len(), all.len(), "{} {}", table.key, profile.name);
            }
        }
    }

    #[test]
    fn on_hopper_one_slice_with_twice_the_memory_is_divided_by_the_revised_profile_alone() {
        let ids = |key, id| -> Vec<u32> {
            let table = Table::find(key).expect("listed");
            let profile = table.profile(id).expect("a profile");
            let rows = table.compute_profiles(profile);
            rows.iter().map(|row| row.id).collect()
        };
        assert_eq!(ids("gh200-96gb", 15), [7]);
        assert_eq!(ids("gh200-96gb", 19), [0]);
        assert_eq!(ids("b200-180gb", 15), [7]);
        assert_eq!(ids("a100-40gb", 15), [0]);
        assert_eq!(ids("a100-40gb", 14), [0, 1]);
        assert_eq!(ids("rtxpro6000-96gb", 5), [0, 1]);
    }

    #[test]
    fn another_drivers_profiles_replace_those_of_their_id_and_add_to_the_others() {
        let table = Table::find("a100-40gb").expect("listed");
        let mut renamed = table.profile(9).expect("3g").clone();
        (renamed.name, renamed.memory_mib) = ("3g.39gb".into(), 19_840);
        let mut more = renamed.clone();
        (more.id, more.number) = (77, 17);
        let other = table.with(&[renamed, more]);
        assert_eq!(other.profiles.len(), table.profiles.len() + 1);
        assert_eq!(other.profile(9).expect("3g").name, "3g.39gb");
        assert_eq!(other.numbered(17).expect("added").id, 77);
    }
}
