//! Names of MIG profiles: `1g.5gb`, `1g.5gb+me`.
//!
//! A name is a label. Its gigabytes are nominal (a `1g.23gb` may have 20.50 GiB) and differ between drivers for the
//! same profile. The memory of an instance is a field of [`Profile`](super::Profile).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// A profile's name, as data: compute slices, nominal gigabytes, attribute. `1g.5gb`, `1g.5gb+me`, `2g.48gb+gfx`,
/// `1g.24gb+me.all`, `1g.24gb-me`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MigProfile {
    compute_slices: u8,
    gigabytes: u16,
    attribute: Attribute,
}

/// What sets a profile apart from the plain one of its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    #[default]
    None,
    /// `+me`: media extensions (a JPEG and an optical-flow engine); at most one such instance on a GPU.
    Media,
    /// `+gfx`: can draw.
    Graphics,
    /// `+me.all`: all media engines of the GPU; beside it only instances without any.
    AllMedia,
    /// `-me`: no media engines.
    NoMedia,
}

impl Attribute {
    const ALL: [Self; 5] = [
        Self::None,
        Self::Media,
        Self::Graphics,
        Self::AllMedia,
        Self::NoMedia,
    ];

    /// What stands behind the size in a name.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Media => "+me",
            Self::Graphics => "+gfx",
            Self::AllMedia => "+me.all",
            Self::NoMedia => "-me",
        }
    }

    /// The attribute of the profile that NVML numbers so: the argument of `nvmlDeviceGetGpuInstanceProfileInfo`, not
    /// the id that comes back. `None` for a number that nvml.h (API 13) does not have.
    pub fn of_driver_number(number: u32) -> Option<Self> {
        Some(match number {
            // 1, 2, 3, 4, 7, 8 and 6 slices; 9 is the one slice with double memory.
            0..=6 | 9 => Self::None,
            7 | 8 => Self::Media,
            10..=12 | 17 => Self::Graphics,
            13 | 14 => Self::NoMedia,
            15 | 16 => Self::AllMedia,
            _ => return None,
        })
    }
}

impl MigProfile {
    /// A name put together; zero slices or gigabytes make none.
    pub fn new(compute_slices: u8, gigabytes: u16, attribute: Attribute) -> Option<Self> {
        (compute_slices > 0 && gigabytes > 0).then_some(Self {
            compute_slices,
            gigabytes,
            attribute,
        })
    }

    /// The name that NVIDIA's tools compute where the driver gives none: the part of the GPU's memory, rounded up to
    /// eighths, of the GPU's total in whole GiB, rounded up, to nearest (go-nvlib `pkg/nvlib/device/mig_profile.go`).
    /// `None` for a GPU without memory, or an instance with none or more than there is.
    pub fn computed(
        compute_slices: u8,
        memory: Bytes,
        total: Bytes,
        attribute: Attribute,
    ) -> Option<Self> {
        if total == Bytes::ZERO || memory > total {
            return None;
        }
        let eighths = (u128::from(memory.get()) * 8).div_ceil(u128::from(total.get()));
        let gib = u128::from(total.get()).div_ceil(u128::from(Bytes::GIB.get()));
        let gigabytes = (eighths * gib * 2 + 8) / 16;
        Self::new(compute_slices, u16::try_from(gigabytes).ok()?, attribute)
    }

    /// The driver's own name, which it writes `MIG 1g.5gb`; without the first word too.
    ///
    /// # Errors
    /// As for any text that is not a profile.
    pub fn from_driver_name(name: &str) -> Result<Self, MigProfileError> {
        name.strip_prefix("MIG ").unwrap_or(name).parse()
    }

    /// The number before the `g`.
    pub fn compute_slices(self) -> u8 {
        self.compute_slices
    }

    /// The nominal size: the number before `gb`, taken as GiB. What an instance has is usually a little less.
    pub fn nominal(self) -> Bytes {
        Bytes::gib(u64::from(self.gigabytes))
    }

    pub fn attribute(self) -> Attribute {
        self.attribute
    }

    /// Whether the names may be those of one profile under two drivers: the gigabytes differ by one.
    pub(super) fn differs_by_rounding(self, other: Self) -> bool {
        (self.compute_slices, self.attribute) == (other.compute_slices, other.attribute)
            && self.gigabytes.abs_diff(other.gigabytes) == 1
    }
}

impl fmt::Display for MigProfile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!(
            "{}g.{}gb{}",
            self.compute_slices,
            self.gigabytes,
            self.attribute.suffix()
        );
        out.pad(&text)
    }
}

impl FromStr for MigProfile {
    type Err = MigProfileError;

    fn from_str(text: &str) -> Result<Self, MigProfileError> {
        let parts = || {
            let (compute, rest) = text.split_once("g.")?;
            let (gigabytes, suffix) = rest.split_once("gb")?;
            let attribute = Attribute::ALL
                .into_iter()
                .find(|attribute| attribute.suffix() == suffix)?;
            Self::new(whole(compute)?, whole(gigabytes)?, attribute)
        };
        parts().ok_or_else(|| MigProfileError(text.to_owned()))
    }
}

/// Digits alone, without a leading zero.
fn whole<N: FromStr>(text: &str) -> Option<N> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    plain.then(|| text.parse().ok()).flatten()
}

impl TryFrom<String> for MigProfile {
    type Error = MigProfileError;

    fn try_from(text: String) -> Result<Self, MigProfileError> {
        text.parse()
    }
}

impl From<MigProfile> for String {
    fn from(name: MigProfile) -> Self {
        name.to_string()
    }
}

/// The text is not the name of a MIG profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown MIG profile `{0}`")]
pub struct MigProfileError(String);

impl MigProfileError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        let lower = self.0.to_ascii_lowercase();
        let found = lower
            .char_indices()
            .filter(|(_, letter)| letter.is_ascii_digit())
            .find_map(|(at, _)| lower[at..].parse::<MigProfile>().ok());
        match found {
            Some(profile) => format!("write {profile}"),
            None => {
                "write compute slices and memory as nvidia-smi does, like 1g.5gb, 2g.10gb or 1g.5gb+me"
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        for name in [
            "1g.5gb",
            "1g.5gb+me",
            "2g.48gb+gfx",
            "1g.24gb+me.all",
            "1g.24gb-me",
            "7g.141gb",
        ] {
            assert_eq!(name.parse::<MigProfile>().unwrap().to_string(), name);
        }
        let profile: MigProfile = "1g.24gb+me.all".parse().unwrap();
        assert_eq!(
            (
                profile.compute_slices(),
                profile.nominal(),
                profile.attribute()
            ),
            (1, Bytes::gib(24), Attribute::AllMedia)
        );
        assert_eq!(
            format!("{:>7}", "1g.5gb".parse::<MigProfile>().unwrap()),
            " 1g.5gb"
        );
    }

    #[test]
    fn what_is_not_a_name_is_refused_with_what_to_write() {
        for text in [
            "",
            "1g",
            "1g.gb",
            "g.5gb",
            "0g.5gb",
            "1g.0gb",
            "01g.5gb",
            "1g.5gb+",
            "1g.5gb+xx",
            "1g.5GB",
            "300g.5gb",
            "1g.70000gb",
            "+1g.5gb",
            "1g.5gb ",
            "１g.5gb",
        ] {
            assert!(text.parse::<MigProfile>().is_err(), "{text}");
        }
        let hint = |text: &str| text.parse::<MigProfile>().unwrap_err().hint();
        assert_eq!(hint("1c.2g.10gb"), "write 2g.10gb");
        assert_eq!(hint("nvidia.com/mig-1g.10gb"), "write 1g.10gb");
        assert_eq!(hint("MIG 1G.5GB+ME"), "write 1g.5gb+me");
        assert!(hint("big").contains("like 1g.5gb"));
    }

    #[test]
    fn the_driver_writes_a_word_before_the_name() {
        let name = MigProfile::from_driver_name("MIG 1g.5gb+me").unwrap();
        assert_eq!(name.to_string(), "1g.5gb+me");
    }

    #[test]
    fn computed_names_are_those_of_nvidias_tools() {
        let name = |slices, mib, total| {
            MigProfile::computed(slices, Bytes::mib(mib), Bytes::mib(total), Attribute::None)
                .map(|name| name.to_string())
        };
        // A100 40GB: 40960 MiB in all.
        assert_eq!(name(1, 4_864, 40_960).as_deref(), Some("1g.5gb"));
        assert_eq!(name(1, 9_856, 40_960).as_deref(), Some("1g.10gb"));
        assert_eq!(name(3, 19_968, 40_960).as_deref(), Some("3g.20gb"));
        assert_eq!(name(7, 40_192, 40_960).as_deref(), Some("7g.40gb"));
        assert_eq!(name(1, 1, 0), None);
        assert_eq!(name(1, 2, 1), None);
    }
}
