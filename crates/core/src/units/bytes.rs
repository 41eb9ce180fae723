//! Device memory, in bytes.

use std::fmt;
use std::iter::Sum;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Decimal;

/// Device memory, in bytes. Written with binary units only: `24GiB`, `512MiB`.
///
/// Text in: `4G` = `4Gi` = `4GiB` = 4·2^30, likewise K, M, T, in either case, with decimals (`1.5G`), and `1234B`.
/// Decimals that are no whole number of bytes (`79.2G`) are rounded down: to whole MiB, below 1 MiB to bytes. Bare
/// numbers are refused, because their unit is ambiguous; so is `4GB`, which is 10^9 to some and 2^30 to others. Text
/// out is exact and as short as that allows.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(u64);

/// Largest first: the name a user reads, and its size.
const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

impl Bytes {
    pub const ZERO: Self = Self(0);
    pub const KIB: Self = Self(1 << 10);
    pub const MIB: Self = Self(1 << 20);
    pub const GIB: Self = Self(1 << 30);

    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// So many MiB, or the largest value there is.
    pub const fn mib(count: u64) -> Self {
        Self(count.saturating_mul(1 << 20))
    }

    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// In MiB, rounded down.
    pub const fn whole_mib(self) -> u64 {
        self.0 >> 20
    }

    /// The sum, or the largest value there is: an impossible sum stays larger than any GPU.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The largest multiple of `step` that is not above.
    #[must_use]
    pub const fn round_down(self, step: Self) -> Self {
        Self(self.0 - self.0 % step.0)
    }

    /// The smallest multiple of `step` that is not below; the largest value there is when none can be written.
    #[must_use]
    pub const fn round_up(self, step: Self) -> Self {
        match self.0.checked_next_multiple_of(step.0) {
            Some(bytes) => Self(bytes),
            None => Self(u64::MAX),
        }
    }

    /// For tables: one decimal, rounded to nearest, `4.0 GiB`. Not exact; `Display` is.
    pub fn human(self) -> String {
        let (name, unit) = UNITS
            .into_iter()
            .find(|(_, unit)| self.0 >= *unit)
            .unwrap_or(("B", 1));
        if unit == 1 {
            return format!("{} B", self.0);
        }
        let tenths = (u128::from(self.0) * 10 + u128::from(unit) / 2) / u128::from(unit);
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    }

    /// Exact, for sentences: as [`Display`](fmt::Display) with a space before the unit, `39.25 GiB`.
    pub fn spaced(self) -> String {
        let text = self.to_string();
        let digits = |letter: char| letter.is_ascii_digit() || letter == '.';
        let (number, unit) = text.split_at(text.find(|c| !digits(c)).unwrap_or(text.len()));
        format!("{number} {unit}")
    }

    /// Two values of one message, as [`human`](Self::human) prints them. Values that differ and would print the same
    /// are printed in MiB, or in bytes.
    pub fn human_beside(self, other: Self) -> [String; 2] {
        let both = [self, other];
        let differ = |texts: &[String; 2]| self == other || texts[0] != texts[1];
        let mib = both.map(|bytes| format!("{} MiB", bytes.whole_mib()));
        Some(both.map(Self::human))
            .filter(differ)
            .or(Some(mib).filter(differ))
            .unwrap_or_else(|| both.map(|bytes| format!("{} B", bytes.0)))
    }
}

/// Saturating, as [`Bytes::saturating_add`].
impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = |(name, unit): (&str, u64)| {
            let mut text = (self.0 / unit).to_string();
            let mut rest = u128::from(self.0 % unit);
            if rest > 0 {
                text.push('.');
            }
            while rest > 0 {
                rest *= 10;
                text.push_str(&(rest / u128::from(unit)).to_string());
                rest %= u128::from(unit);
            }
            text + name
        };
        // The first of the shortest, so `1TiB` and not `1024GiB`; never a leading zero, so `512MiB` and not `0.5GiB`.
        let shortest = UNITS
            .into_iter()
            .filter(|(_, unit)| self.0 >= *unit)
            .map(exact)
            .min_by_key(String::len);
        out.write_str(shortest.as_deref().unwrap_or("0B"))
    }
}

impl FromStr for Bytes {
    type Err = BytesError;

    fn from_str(text: &str) -> Result<Self, BytesError> {
        let owned = || text.to_owned();
        let (number, suffix) = text.split_at(
            text.find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(text.len()),
        );
        let suffix = suffix.strip_prefix(' ').unwrap_or(suffix);
        let number = Decimal::parse(number).ok_or_else(|| BytesError::NotANumber(owned()))?;
        let unit = match suffix.to_ascii_lowercase().as_str() {
            "" => return Err(BytesError::NoUnit(owned())),
            "b" => 1,
            "k" | "ki" | "kib" => 1 << 10,
            "m" | "mi" | "mib" => 1 << 20,
            "g" | "gi" | "gib" => 1 << 30,
            "t" | "ti" | "tib" => 1 << 40,
            "kb" | "mb" | "gb" | "tb" => return Err(BytesError::TwoMeanings(owned())),
            _ => {
                return Err(BytesError::UnknownUnit {
                    text: owned(),
                    unit: suffix.to_owned(),
                });
            }
        };
        let below = number.times_rounded_down(unit).map(Self);
        let below = below.ok_or_else(|| BytesError::TooLarge(owned()))?;
        match number.times(unit) {
            Some(bytes) => Ok(Self(bytes)),
            None if below >= Self::MIB => Ok(below.round_down(Self::MIB)),
            None if below == Self::ZERO => Err(BytesError::TooSmall(owned())),
            None => Ok(below),
        }
    }
}

/// Why a text is not an amount of memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    #[error("`{0}`: not an amount of memory")]
    NotANumber(String),
    #[error("`{0}`: add a unit")]
    NoUnit(String),
    #[error("`{0}` is ambiguous: powers of ten or powers of two")]
    TwoMeanings(String),
    #[error("`{unit}` in `{text}` is not a unit of memory")]
    UnknownUnit { text: String, unit: String },
    #[error("`{0}` is less than a byte")]
    TooSmall(String),
    #[error("`{0}` is 16 EiB or more")]
    TooLarge(String),
}

impl BytesError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::NoUnit(text) => format!(
                "write `{text}G` or `{text}GiB` for 2^30 bytes each, `{text}M` for 2^20, `{text}B` for bytes"
            ),
            Self::TwoMeanings(text) => {
                let binary = text.to_uppercase().replace('B', "iB");
                format!("use a binary unit: `{binary}`")
            }
            Self::NotANumber(_)
            | Self::UnknownUnit { .. }
            | Self::TooSmall(_)
            | Self::TooLarge(_) => "write a number and a binary unit: 512M, 4G, 1.5G".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> (String, String) {
        let error = text.parse::<Bytes>().unwrap_err();
        (error.to_string(), error.hint())
    }

    #[test]
    fn units_are_binary_however_they_are_written() {
        for text in [
            "4G",
            "4g",
            "4Gi",
            "4GiB",
            "4 GiB",
            "4.0G",
            "4096M",
            "4194304K",
            "4294967296B",
        ] {
            assert_eq!(text.parse(), Ok(Bytes::gib(4)), "{text}");
        }
        assert_eq!("1.5G".parse(), Ok(Bytes::mib(1536)));
        assert_eq!(Bytes::new((3 << 20) - 1).whole_mib(), 2);
        assert_eq!(Bytes::mib(1 << 44), Bytes::new(u64::MAX));
        assert_eq!(".5T".parse(), Ok(Bytes::gib(512)));
    }

    #[test]
    fn what_could_mean_two_things_is_refused_with_what_to_write() {
        let (error, hint) = refusal("4096");
        assert_eq!(error, "`4096`: add a unit");
        assert!(hint.starts_with("write `4096G` or"), "{hint}");
        assert_eq!(refusal("4GB").1, "use a binary unit: `4GiB`");
        assert_eq!(refusal("4gb").1, "use a binary unit: `4GiB`");
        assert_eq!(refusal("4X").0, "`X` in `4X` is not a unit of memory");
        for text in [
            "", "G", "-4G", "+4G", "4.G.", "1e9B", "4 G ", "0x4G", "4,5G",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn decimals_of_a_unit_of_memory_are_rounded_down_to_mebibytes() {
        for (text, mib) in [
            ("79.2G", 81_100),
            ("79.2 GiB", 81_100),
            ("1.1G", 1126),
            ("2.4G", 2457),
            ("0.1T", 104_857),
            ("0.3G", 307),
            ("4.2M", 4),
            ("7.9999999999G", 8191),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::mib(mib)), "{text}");
        }
        assert_eq!("0.3K".parse(), Ok(Bytes::new(307)));
        assert_eq!("0.3M".parse(), Ok(Bytes::new(314_572)));
        assert_eq!("4000.5K".parse(), Ok(Bytes::new(4_096_512)), "exact");
        assert_eq!(refusal("0.3B").0, "`0.3B` is less than a byte");
        assert_eq!(refusal("16777216T").0, "`16777216T` is 16 EiB or more");
        assert_eq!("18446744073709551615B".parse(), Ok(Bytes::new(u64::MAX)));
    }

    /// Each word in backticks of a hint, and each example, is itself an amount of memory.
    #[test]
    fn hints_for_memory_name_sizes_that_are_taken() {
        for text in [
            "4096",
            "79.2",
            "4GB",
            "79.2gb",
            "1.5tb",
            "512mb",
            "4X",
            "",
            "-4G",
            "4,5G",
            "0.3B",
            "99999999T",
        ] {
            let (_, hint) = refusal(text);
            let quoted = hint.split('`').skip(1).step_by(2);
            let examples = hint
                .split([' ', ',', '`', ':'])
                .filter(|word| word.starts_with(char::is_numeric));
            let names: Vec<&str> = quoted
                .chain(examples.filter(|word| !word.contains('^')))
                .collect();
            assert!(!names.is_empty(), "{text}: {hint}");
            for name in names {
                assert!(name.parse::<Bytes>().is_ok(), "{text}: {name} of {hint}");
            }
        }
    }

    #[test]
    fn text_out_is_exact_and_short() {
        let text = |bytes: u64| Bytes::new(bytes).to_string();
        assert_eq!(
            [text(0), text(1234), text(1 << 30), text(1 << 50)],
            ["0B", "1234B", "1GiB", "1024TiB"]
        );
        assert_eq!(
            [text(512 << 20), text(1536 << 20), text(81_150 << 20)],
            ["512MiB", "1.5GiB", "81150MiB"]
        );
    }

    #[test]
    fn tables_show_one_decimal() {
        let human = |bytes| Bytes::new(bytes).human();
        assert_eq!(
            [human(0), human(1023), human(4 << 30), human(81_150 << 20)],
            ["0 B", "1023 B", "4.0 GiB", "79.2 GiB"]
        );
        assert_eq!(human(u64::MAX), "16777216.0 TiB");
    }
}
