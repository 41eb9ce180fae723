//! Latency goals: the time in which a request of a program should be answered.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The time in which a request should be answered on the GPU: a goal, never a promise. Written `20ms`, `500us`, `2s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LatencyGoal(u32);

/// The least goal, in microseconds. One time slice of the driver is 1,024 µs, so half could never be met beside another
/// program.
const LEAST_US: u64 = 1_000;
/// The largest goal, in microseconds. Neighbours keep as much work ahead beside a goal of 80 ms as without one; a goal of
/// more than ten seconds is a mistake in the unit.
const MOST_US: u64 = 10_000_000;

/// The units of a goal, in microseconds, the largest first.
const UNITS: [(&str, u64); 3] = [("ms", 1_000), ("us", 1), ("s", 1_000_000)];

impl LatencyGoal {
    pub fn duration(self) -> Duration {
        Duration::from_micros(u64::from(self.0))
    }
}

impl fmt::Display for LatencyGoal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = u64::from(self.0);
        if micros.is_multiple_of(1_000_000) {
            write!(out, "{}s", micros / 1_000_000)
        } else if micros.is_multiple_of(1_000) {
            write!(out, "{}ms", micros / 1_000)
        } else {
            write!(out, "{micros}us")
        }
    }
}

impl FromStr for LatencyGoal {
    type Err = LatencyGoalError;

    fn from_str(text: &str) -> Result<Self, LatencyGoalError> {
        let not_one = || LatencyGoalError::NotADuration(text.to_owned());
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))
            .ok_or_else(not_one)?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number: u64 = number
            .parse()
            .ok()
            .filter(|_| is_number)
            .ok_or_else(not_one)?;
        let micros = number.saturating_mul(*unit);
        if !(LEAST_US..=MOST_US).contains(&micros) {
            return Err(LatencyGoalError::OutOfRange(text.to_owned()));
        }
        Ok(Self(u32::try_from(micros).map_err(|_| not_one())?))
    }
}

impl TryFrom<String> for LatencyGoal {
    type Error = LatencyGoalError;

    fn try_from(text: String) -> Result<Self, LatencyGoalError> {
        text.parse()
    }
}

impl From<LatencyGoal> for String {
    fn from(goal: LatencyGoal) -> Self {
        goal.to_string()
    }
}

/// Why a text is no latency goal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LatencyGoalError {
    #[error("`{0}`: not a latency goal")]
    NotADuration(String),
    #[error("latency goal `{0}`: not between 1 ms and 10 s")]
    OutOfRange(String),
}

impl LatencyGoalError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        "write a time from 1ms to 10s: 20ms".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_goal_is_read_as_it_is_written_within_its_bounds() {
        for (text, shown) in [
            ("20ms", "20ms"),
            ("1500us", "1500us"),
            ("2000ms", "2s"),
            ("1ms", "1ms"),
            ("10s", "10s"),
        ] {
            let goal: LatencyGoal = text.parse().unwrap();
            assert_eq!(goal.to_string(), shown);
            assert_eq!(shown.parse(), Ok(goal));
        }
        for text in [
            "", "20", "ms", "1.5ms", "-3ms", "+3ms", "20 ms", "20min", "0x2s",
        ] {
            let error = text.parse::<LatencyGoal>().unwrap_err();
            assert_eq!(error.to_string(), format!("`{text}`: not a latency goal"));
        }
        for text in [
            "999us",
            "0s",
            "11s",
            "99999999999999999999s",
            "18446744073709551615s",
        ] {
            let error = text.parse::<LatencyGoal>().unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
