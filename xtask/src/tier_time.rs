//! The recorded time of the first tier, `xtask/first-tier.toml`: a run prints its own beside it, so that growth is seen in
//! the issue that brings it.
//!
//! Seconds of the processor depend little on other work of the machine, and seconds of the clock on its cores: both are
//! recorded, with the cores. Neither fails a run, because machines differ by more than an issue may add.

use std::fs;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cargo::root;

/// Seconds that an issue may add to the first tier (CONTRIBUTING.md). Thirty issues at this rate add five minutes,
/// which CI and each newcomer wait for; less than a second or two is noise.
const MAY_ADD: f64 = 10.0;

/// The time that the tests of one run took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierTime {
    /// Tests that passed.
    pub tests: usize,
    /// Seconds from the first test to the last one.
    pub seconds: f64,
    /// Seconds of the processor that the tests and their programs took. Processes that outlive their test, such as
    /// daemons, and the container engine are not counted.
    pub processor_seconds: f64,
    pub cores: usize,
}

impl TierTime {
    fn read(text: &str) -> Result<Self> {
        toml::from_str(text).context("xtask/first-tier.toml is no record of a run")
    }

    /// The recorded time.
    pub fn recorded() -> Result<Self> {
        Self::read(&fs::read_to_string(root().join("xtask/first-tier.toml"))?)
    }

    /// Records this time.
    pub fn record(&self) -> Result<()> {
        let text = format!(
            "# The time of the first tier's tests on idle cores. `cargo xtask test --record` writes this file.\n{}",
            toml::to_string(&self.rounded())?
        );
        fs::write(root().join("xtask/first-tier.toml"), text)?;
        Ok(())
    }

    fn rounded(self) -> Self {
        Self {
            seconds: self.seconds.round(),
            processor_seconds: self.processor_seconds.round(),
            ..self
        }
    }

    /// `tests 301 s, processor 540 s on 2 cores; recorded …`.
    pub fn beside(&self, recorded: &Self) -> String {
        let one = |time: &Self| {
            format!(
                "{} tests in {:.0} s, {:.0} s of the processor, {} cores",
                time.tests, time.seconds, time.processor_seconds, time.cores
            )
        };
        let more = self.processor_seconds - recorded.processor_seconds;
        // Cores that wait for each other share what the tests add.
        let allowed = MAY_ADD * recorded.cores as f64;
        let remark = if more > allowed {
            format!(
                "; {more:.0} s of the processor more than recorded, and an issue may add {allowed:.0} s"
            )
        } else {
            String::new()
        };
        format!(
            "this run: {}{remark}\nrecorded: {}",
            one(self),
            one(recorded)
        )
    }
}

/// Seconds of the processor of all processes that this one has waited for, and that these have, by proc(5).
pub fn processor_seconds_of_children() -> f64 {
    /// `USER_HZ` of Linux on every architecture that Divvy is built for.
    const TICKS_A_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may contain spaces. `cutime` and `cstime` are the fields 16 and 17 of all.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    let times = fields.split(' ').skip(13).take(2);
    times
        .filter_map(|ticks| ticks.parse::<f64>().ok())
        .sum::<f64>()
        / TICKS_A_SECOND
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: TierTime = TierTime {
        tests: 3_600,
        seconds: 300.0,
        processor_seconds: 500.0,
        cores: 2,
    };

    #[test]
    fn a_run_is_printed_beside_the_recorded_time_and_growth_is_named() {
        let within = TierTime {
            processor_seconds: 519.0,
            ..RECORDED
        };
        let line = within.beside(&RECORDED);
        assert!(
            line.contains("3600 tests in 300 s, 519 s of the processor, 2 cores\n"),
            "{line}"
        );
        assert!(
            line.contains("recorded: 3600 tests in 300 s, 500 s"),
            "{line}"
        );
        let beyond = TierTime {
            processor_seconds: 521.0,
            ..RECORDED
        };
        let line = beyond.beside(&RECORDED);
        assert!(
            line.contains("21 s of the processor more than recorded, and an issue may add 20 s"),
            "{line}"
        );
    }

    #[test]
    fn the_record_is_read_as_it_is_written() {
        let text = toml::to_string(&RECORDED).unwrap();
        assert_eq!(TierTime::read(&text).unwrap(), RECORDED);
        TierTime::recorded().expect("the repository has a record");
        assert!(TierTime::read("seconds = 1").is_err());
    }

    #[test]
    fn time_of_children_is_read_from_the_kernel() {
        let before = processor_seconds_of_children();
        let loops = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let ended = std::process::Command::new("sh")
            .args(["-c", loops])
            .status();
        assert!(ended.unwrap().success());
        assert!(processor_seconds_of_children() > before);
    }
}
