//! Workload mix: how often each size of instance is requested.

use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::mig::{MigProfile, Profile, ProfileTable};

/// Sizes, and the relative frequency of each. Written `1g=50,2g.10gb=25`, or by the name of one that is
/// shipped ([`builtin_mixes`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix {
    sizes: Vec<(ProfileSelector, u32)>,
}

/// A mix that comes with the program, from `data/mixes.toml`.
#[derive(Clone, Debug)]
pub struct BuiltinMix {
    pub name: String,
    /// What it is like, in a few words.
    pub about: String,
    pub mix: Mix,
}

/// What is asked for: a profile, or the plain one with so many compute slices, whatever it is called on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileSelector {
    /// `2g`
    Slices(u8),
    /// `2g.10gb`
    Profile(MigProfile),
}

/// A mix on a GPU model: the profiles asked for, and the part of all requests that asks for each.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// In the order of the table. The parts are above 0 and sum to 1.
    pub(super) parts: Vec<(u32, f64)>,
}

static SHIPPED: LazyLock<Vec<BuiltinMix>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        mix: Vec<Row>,
    }
    #[derive(Deserialize)]
    struct Row {
        name: String,
        about: String,
        weights: std::collections::BTreeMap<String, u32>,
    }
    let file: File = toml::from_str(include_str!("../../data/mixes.toml"))
        .expect("data/mixes.toml is part of the program, and tests read it");
    let shipped = |row: Row| {
        let size = |(size, weight): (String, u32)| (size.parse().expect("tests read it"), weight);
        BuiltinMix {
            name: row.name,
            about: row.about,
            mix: Mix {
                sizes: row.weights.into_iter().map(size).collect(),
            },
        }
    };
    file.mix.into_iter().map(shipped).collect()
});

/// The mixes that come with the program.
pub fn builtin_mixes() -> &'static [BuiltinMix] {
    &SHIPPED
}

impl ProfileSelector {
    /// The profile that it means on a GPU with this table.
    pub fn on(self, table: &ProfileTable) -> Option<&Profile> {
        match self {
            Self::Slices(slices) => table.plain().find(|p| p.compute_slices == slices),
            Self::Profile(name) => table.named(name),
        }
    }
}

impl FromStr for ProfileSelector {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, MixError> {
        let slices = text.strip_suffix('g').and_then(|count| count.parse().ok());
        match (slices, text.parse()) {
            (Some(slices @ 1..), _) => Ok(Self::Slices(slices)),
            (_, Ok(profile)) => Ok(Self::Profile(profile)),
            _ => Err(MixError::Size(text.to_owned())),
        }
    }
}

impl fmt::Display for ProfileSelector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slices(slices) => write!(out, "{slices}g"),
            Self::Profile(profile) => profile.fmt(out),
        }
    }
}

impl Mix {
    /// What the mix asks of a GPU with this table.
    ///
    /// # Errors
    /// When the table lacks a profile of the mix.
    pub fn on(&self, table: &ProfileTable) -> Result<Demand, MixError> {
        let mut weights = vec![0_u64; table.profiles.len()];
        for (size, weight) in &self.sizes {
            let wanted = size.on(table).ok_or_else(|| MixError::Absent {
                size: *size,
                offered: names(table),
            })?;
            let at = table
                .profiles
                .iter()
                .position(|profile| profile.id == wanted.id);
            weights[at.expect("it is of the table")] += u64::from(*weight);
        }
        Demand::weighted(table, &weights).ok_or(MixError::Nothing)
    }
}

/// What the table offers, for a message.
fn names(table: &ProfileTable) -> String {
    let names = table
        .profiles
        .iter()
        .map(|profile| profile.name.to_string());
    names.collect::<Vec<_>>().join(", ")
}

impl Demand {
    /// What these requests ask for, by the ids of profiles of the table; `None` without any.
    pub fn of(table: &ProfileTable, asked: impl IntoIterator<Item = u32>) -> Option<Self> {
        let mut counts = vec![0_u64; table.profiles.len()];
        for id in asked {
            let at = table.profiles.iter().position(|profile| profile.id == id);
            counts[at.expect("the profile is of this table")] += 1;
        }
        Self::weighted(table, &counts)
    }

    /// `weights` are those of the table's profiles, in its order.
    fn weighted(table: &ProfileTable, weights: &[u64]) -> Option<Self> {
        let total: u64 = weights.iter().sum();
        let part = |(profile, weight): (&Profile, &u64)| {
            (*weight > 0).then_some((profile.id, *weight as f64 / total as f64))
        };
        let parts = table.profiles.iter().zip(weights).filter_map(part);
        (total > 0).then(|| Self {
            parts: parts.collect(),
        })
    }

    /// The profiles, and the part of all requests that asks for each, in the order of the table.
    pub fn parts<'a>(
        &'a self,
        table: &'a ProfileTable,
    ) -> impl Iterator<Item = (&'a Profile, f64)> {
        let profile = |id| table.profile(id).expect("the demand is of this table");
        self.parts
            .iter()
            .map(move |(id, part)| (profile(*id), *part))
    }

    /// Compute slices that a request takes, on average.
    pub fn compute_slices(&self, table: &ProfileTable) -> f64 {
        self.parts(table)
            .map(|(profile, part)| part * f64::from(profile.compute_slices))
            .sum()
    }
}

impl FromStr for Mix {
    type Err = MixError;

    fn from_str(text: &str) -> Result<Self, MixError> {
        if let Some(shipped) = builtin_mixes().iter().find(|shipped| shipped.name == text) {
            return Ok(shipped.mix.clone());
        }
        if !text.contains('=') {
            return Err(MixError::Unknown(text.to_owned()));
        }
        let mut sizes = Vec::new();
        for item in text.split(',') {
            let (size, weight) = item
                .split_once('=')
                .ok_or_else(|| MixError::Item(item.to_owned()))?;
            let weight = weight
                .parse()
                .map_err(|_| MixError::Item(item.to_owned()))?;
            sizes.push((size.parse()?, weight));
        }
        if sizes.iter().all(|(_, weight)| *weight == 0) {
            return Err(MixError::Nothing);
        }
        Ok(Self { sizes })
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (size, weight)) in self.sizes.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(out, "{comma}{size}={weight}")?;
        }
        Ok(())
    }
}

/// The text is no mix, or the GPU cannot serve it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MixError {
    #[error("unknown mix `{0}`")]
    Unknown(String),
    #[error("`{0}`: not a size and its weight")]
    Item(String),
    #[error("`{0}`: not the size of a MIG instance")]
    Size(String),
    #[error("the mix is empty")]
    Nothing,
    #[error("this GPU has no MIG profile `{size}`")]
    Absent {
        size: ProfileSelector,
        offered: String,
    },
}

impl MixError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown(_) | Self::Item(_) | Self::Nothing => {
                let names: Vec<&str> = builtin_mixes()
                    .iter()
                    .map(|mix| mix.name.as_str())
                    .collect();
                format!(
                    "write {}, or sizes and weights as in 1g=50,2g=25,3g=15",
                    names.join(", ")
                )
            }
            Self::Size(_) => {
                "write compute slices as in 2g, or a whole profile as in 2g.10gb".to_owned()
            }
            Self::Absent { offered, .. } => format!("its profiles are {offered}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a100() -> std::sync::Arc<ProfileTable> {
        ProfileTable::of_model("a100-40gb").unwrap()
    }

    #[test]
    fn every_shipped_mix_can_be_asked_of_a_gpu_with_seven_compute_slices() {
        for shipped in builtin_mixes() {
            let demand = shipped.mix.on(&a100()).unwrap();
            let total: f64 = demand.parts.iter().map(|(_, part)| part).sum();
            assert!((total - 1.0).abs() < 1e-12, "{}", shipped.name);
            assert_eq!(shipped.mix.to_string().parse::<Mix>().unwrap(), shipped.mix);
        }
    }

    #[test]
    fn a_size_is_the_plain_profile_and_a_name_is_that_profile() {
        let mix: Mix = "1g=3,1g.10gb=1,7g=0".parse().unwrap();
        let demand = mix.on(&a100()).unwrap();
        assert_eq!(demand.parts, [(19, 0.75), (15, 0.25)]);
        assert_eq!(demand.compute_slices(&a100()), 1.0);
    }

    #[test]
    fn sizes_that_mean_the_same_profile_are_one() {
        let mix: Mix = "1g=1,1g.5gb=2,2g=1".parse().unwrap();
        assert_eq!(mix.on(&a100()).unwrap().parts, [(19, 0.75), (14, 0.25)]);
    }

    #[test]
    fn what_is_no_mix_is_refused_with_what_to_write() {
        let refused = |text: &str| text.parse::<Mix>().unwrap_err();
        assert_eq!(refused("unifrom"), MixError::Unknown("unifrom".to_owned()));
        assert!(refused("").hint().starts_with("write uniform, small,"));
        assert_eq!(refused("1g=2,2g"), MixError::Item("2g".to_owned()));
        assert_eq!(refused("1g=-1"), MixError::Item("1g=-1".to_owned()));
        assert_eq!(refused("1g=0"), MixError::Nothing);
        assert_eq!(refused("0g=1"), MixError::Size("0g".to_owned()));
        assert_eq!(refused("big=1"), MixError::Size("big".to_owned()));
        let a30 = ProfileTable::of_model("a30-24gb").unwrap();
        let absent = "3g=1".parse::<Mix>().unwrap().on(&a30).unwrap_err();
        assert_eq!(absent.to_string(), "this GPU has no MIG profile `3g`");
        assert!(absent.hint().contains("2g.12gb"), "{}", absent.hint());
    }
}
