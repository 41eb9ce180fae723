//! Kubernetes quantities, exactly: `0.5`, `500m`, `62500u`, `3`, `2Gi`.
//!
//! The API server writes each quantity in a canonical form (`0.5` becomes `500m`). [`Quantity`] reads both forms, and
//! [`of_bytes`] writes the canonical one, so that the server returns what it received.

use std::str::FromStr;

use divvy_core::units::Bytes;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::Value;

/// An amount in thousand-millionths, the smallest unit that the API has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(i128);

const ONE: i128 = 1_000_000_000;

/// Suffix and what it stands for, in thousand-millionths.
const SUFFIXES: [(&str, i128); 16] = [
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("", ONE),
    ("k", ONE * 1_000),
    ("M", ONE * 1_000_000),
    ("G", ONE * 1_000_000_000),
    ("T", ONE * 1_000_000_000_000),
    ("P", ONE * 1_000_000_000_000_000),
    ("E", ONE * 1_000_000_000_000_000_000),
    ("Ki", ONE << 10),
    ("Mi", ONE << 20),
    ("Gi", ONE << 30),
    ("Ti", ONE << 40),
    ("Pi", ONE << 50),
    ("Ei", ONE << 60),
];

/// The largest amount: the API server takes none above 2^63 - 1.
const MOST: i128 = i64::MAX as i128 * ONE;

/// Of a number with more digits than those of the largest amount, the later ones count as zeros.
const MOST_DIGITS: i128 = ONE * ONE * 100;

/// The text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a quantity such as 1, 0.5 or 500m")]
pub struct QuantityError(String);

impl Quantity {
    pub const ZERO: Self = Self(0);

    /// Of a resource list: a text, or a number as YAML has it.
    ///
    /// # Errors
    /// The value is neither, or no quantity.
    pub fn of(value: &Value) -> Result<Self, QuantityError> {
        match value {
            Value::String(text) => text.parse(),
            Value::Number(number) => number.to_string().parse(),
            other => Err(QuantityError(other.to_string())),
        }
    }

    /// In millionths; `None` where it is negative, too much, or not a whole number of them.
    pub fn millionths(self) -> Option<u64> {
        (self.0 >= 0 && self.0 % 1_000 == 0).then(|| self.millionths_rounded_down())
    }

    /// In millionths, rounded down; 0 where it is negative.
    pub fn millionths_rounded_down(self) -> u64 {
        u64::try_from(self.0.max(0) / 1_000).unwrap_or(u64::MAX)
    }

    /// As a count, rounded down; 0 where it is negative.
    pub fn rounded_down(self) -> u64 {
        u64::try_from(self.0.max(0) / ONE).unwrap_or(u64::MAX)
    }

    /// In thousandths, rounded up; 0 where it is negative.
    pub fn milli_rounded_up(self) -> u64 {
        self.units_rounded_up(1_000_000)
    }

    /// In MiB, of an amount of bytes, rounded up; 0 where it is negative.
    pub fn mib_rounded_up(self) -> u64 {
        self.units_rounded_up(ONE << 20)
    }

    fn units_rounded_up(self, unit: i128) -> u64 {
        let positive = self.0.max(0);
        u64::try_from((positive + unit - 1) / unit).unwrap_or(u64::MAX)
    }

    /// The same text for equal amounts, in thousand-millionths.
    pub fn text(self) -> String {
        format!("{}n", self.0)
    }

    /// As a count; `None` where it is negative, too much, or not whole.
    pub fn count(self) -> Option<u64> {
        (self.0 % ONE == 0)
            .then(|| u64::try_from(self.0 / ONE).ok())
            .flatten()
    }
}

impl FromStr for Quantity {
    type Err = QuantityError;

    /// As the API server reads it: an exponent may take the place of a suffix, and an amount above [`MOST`] is `MOST`.
    /// What is finer than the smallest unit is rounded down, and never to nothing.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let error = || QuantityError(text.to_owned());
        let end = text
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')))
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (unit, exponent) = match SUFFIXES.into_iter().find(|(name, _)| *name == suffix) {
            Some((_, unit)) => (unit, 0),
            None => {
                let exponent = suffix.strip_prefix(['e', 'E']).ok_or_else(error)?;
                (ONE, exponent.parse::<i32>().map_err(|_| error())?)
            }
        };
        let (sign, number) = match number.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, number.strip_prefix('+').unwrap_or(number)),
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let mut digits = whole.bytes().chain(decimals.bytes());
        if whole.is_empty() && decimals.is_empty() || !digits.clone().all(|b| b.is_ascii_digit()) {
            return Err(error());
        }
        let mut power = i64::from(exponent) - i64::try_from(decimals.len()).unwrap_or(i64::MAX);
        let mut value: i128 = 0;
        for digit in digits.by_ref() {
            if value < MOST_DIGITS {
                value = value * 10 + i128::from(digit - b'0')
            } else {
                power = power.saturating_add(1)
            }
        }
        let tens = u32::try_from(power.unsigned_abs()).unwrap_or(u32::MAX);
        let tens = 10_i128.checked_pow(tens);
        let all = match (power < 0, tens) {
            _ if value == 0 => 0,
            (true, None) => 1,
            (true, Some(tens)) => match value.checked_mul(unit) {
                Some(all) => (all / tens).max(1),
                None => (value / tens).saturating_mul(unit),
            },
            (false, None) => MOST,
            (false, Some(tens)) => value.saturating_mul(tens).saturating_mul(unit),
        };
        Ok(Self(sign * all.min(MOST)))
    }
}

/// Returns whole MiB in the largest binary unit without a fraction: `80Gi`, `81559Mi`.
pub fn of_bytes(bytes: Bytes) -> ApiQuantity {
    let mib = bytes.get() >> 20;
    ApiQuantity(match mib {
        0 => "0".to_owned(),
        _ if mib.is_multiple_of(1 << 20) => format!("{}Ti", mib >> 20),
        _ if mib.is_multiple_of(1 << 10) => format!("{}Gi", mib >> 10),
        _ => format!("{mib}Mi"),
    })
}

pub fn of_count(count: u32) -> ApiQuantity {
    ApiQuantity(count.to_string())
}

/// Returns the bytes of a quantity; `None` if it is malformed, negative or no whole number.
pub fn bytes(quantity: &ApiQuantity) -> Option<Bytes> {
    count(quantity).map(Bytes::new)
}

/// Returns the same amount without a unit: `1Gi` and `1024Mi` become equal. A malformed quantity stays unchanged.
pub fn plain(quantity: &ApiQuantity) -> ApiQuantity {
    count(quantity).map_or_else(|| quantity.clone(), |count| ApiQuantity(count.to_string()))
}

fn count(quantity: &ApiQuantity) -> Option<u64> {
    quantity.0.parse().ok().and_then(Quantity::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_fraction_are_the_same() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(quantity("0.5"), quantity("500m"));
        assert_eq!(quantity("0.0625"), quantity("62500u"));
        assert_eq!(quantity("0.0625").millionths(), Some(62_500));
        assert_eq!(Quantity::of(&1.into()).unwrap(), quantity("1.000"));
        assert_eq!(quantity("2k").count(), Some(2000));
        assert_eq!(quantity("1Ki").count(), Some(1024));
        assert_eq!(quantity("500m").count(), None);
        assert_eq!(quantity("-1").millionths(), None);
    }

    #[test]
    fn what_is_rounded_is_rounded_up() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        assert_eq!(quantity("1500u").milli_rounded_up(), 2);
        assert_eq!(quantity("2").milli_rounded_up(), 2000);
        assert_eq!(quantity("1Gi").mib_rounded_up(), 1024);
        assert_eq!(quantity("1").mib_rounded_up(), 1);
        assert_eq!(quantity("-3Gi").mib_rounded_up(), 0);
    }

    #[test]
    fn what_is_no_quantity_is_refused_by_name() {
        for text in [
            "",
            ".",
            "half",
            "1x",
            "--1",
            "1-1",
            "1.2.3",
            "1 ",
            "1e",
            "1e1.5",
            "1e99999999999",
            "1GiB",
        ] {
            let error = text.parse::<Quantity>().unwrap_err();
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(Quantity::of(&Value::Null).is_err());
    }

    /// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>
    #[test]
    fn quantities_have_exponents_and_a_largest_amount() {
        let quantity = |text: &str| text.parse::<Quantity>().unwrap();
        for (text, same) in [
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("5e-1", "500m"),
            ("1E", "1000P"),
            ("1Ei", "1024Pi"),
            ("1e18", "1E"),
            ("1e40", "100E"),
            ("99999999999999999999999", "100E"),
            ("1.5Ei", "1536Pi"),
            ("-1e40", "-100E"),
            ("0e9", "0"),
            ("0.3333333333", "333333333n"),
            ("0.9999999999", "999999999n"),
            ("0.00000000001", "1n"),
            ("1e-400", "1n"),
            ("0.0000000000000000000001Ei", "115292n"),
        ] {
            assert_eq!(quantity(text), quantity(same), "{text}");
        }
        let long = format!("0.{}", "3".repeat(100_000));
        assert_eq!(quantity(&long).millionths_rounded_down(), 333_333);
        assert_eq!(quantity("1.9").rounded_down(), 1);
    }

    #[test]
    fn amounts_are_written_as_the_api_server_writes_them() {
        for (mib, text) in [
            (80 << 10, "80Gi"),
            (81_559, "81559Mi"),
            (1 << 20, "1Ti"),
            (1, "1Mi"),
        ] {
            let quantity = of_bytes(Bytes::mib(mib));
            assert_eq!(quantity.0, text);
            assert_eq!(bytes(&quantity), Some(Bytes::mib(mib)));
        }
    }

    #[test]
    fn one_amount_is_one_however_it_is_written() {
        let quantity = |text: &str| ApiQuantity(text.to_owned());
        assert_eq!(plain(&quantity("1Gi")), plain(&quantity("1024Mi")));
        assert_ne!(plain(&quantity("1G")), plain(&quantity("1Gi")));
        assert_eq!(plain(&quantity("much")), quantity("much"));
        assert_eq!(bytes(&quantity("500m")), None);
    }
}
