//! Exact non-negative decimal numbers: the digits as written, before a unit interprets them.

/// `digits / 10^scale`, with no trailing zeros after the point: `0.250` is 25 / 10^2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    digits: u64,
    scale: u32,
}

impl Decimal {
    /// Reads `12`, `0.25` or `.25`; no sign, no exponent. `None` for anything else, or beyond 64 bits of digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        let only_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !only_digits(whole) || !only_digits(part) || (whole.is_empty() && part.is_empty()) {
            return None;
        }
        let part = part.trim_end_matches('0');
        let mut digits = 0_u64;
        for digit in whole.bytes().chain(part.bytes()) {
            digits = digits
                .checked_mul(10)?
                .checked_add(u64::from(digit - b'0'))?;
        }
        Some(Self {
            digits,
            scale: u32::try_from(part.len()).ok()?,
        })
    }

    /// The number in units of `1/unit`, when that is whole: 0.25 in thousandths is 250, 1.5 in bytes of a GiB is
    /// 3·2^29.
    pub(crate) fn times(self, unit: u64) -> Option<u64> {
        let (whole, rest) = self.divided(unit)?;
        if rest == 0 { Some(whole) } else { None }
    }

    /// The number in units of `1/unit`, rounded down.
    pub(crate) fn times_rounded_down(self, unit: u64) -> Option<u64> {
        self.divided(unit).map(|(whole, _)| whole)
    }

    fn divided(self, unit: u64) -> Option<(u64, u128)> {
        let product = u128::from(self.digits) * u128::from(unit);
        let divisor = 10_u128.checked_pow(self.scale)?;
        Some((u64::try_from(product / divisor).ok()?, product % divisor))
    }

    pub(crate) fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// Whether the number is above one and has a fractional part, as in `1.25`.
    pub(crate) fn is_broken_above_one(self) -> bool {
        self.scale > 0
            && 10_u64
                .checked_pow(self.scale)
                .is_some_and(|one| self.digits > one)
    }
}
