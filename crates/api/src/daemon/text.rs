//! Serde forms of durations, sizes and GPU lists in a configuration file: the texts that the flags accept.

use std::time::Duration;

/// Parses a duration: `90s`, `5m`, `2h`, `1h30m`, `30d`. A day has 24 hours.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let length = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours());
    length.ok()?.try_into().ok()
}

pub(super) mod duration {
    use std::time::Duration;

    use jiff::SignedDuration;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(length: &Duration, to: S) -> Result<S::Ok, S::Error> {
        let length = SignedDuration::try_from(*length).unwrap_or(SignedDuration::MAX);
        to.collect_str(&format_args!("{length:#}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        super::parse_duration(&text).ok_or_else(|| {
            D::Error::custom(format!("{text:?} is not a duration; use 90s, 2h or 30d"))
        })
    }
}

pub(super) mod size {
    use divvy_core::Bytes;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    const UNLIMITED: &str = "none";

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(size: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match size {
            Some(size) => to.collect_str(&Bytes::new(*size)),
            None => to.serialize_str(UNLIMITED),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        let text = String::deserialize(from)?;
        if text == UNLIMITED {
            return Ok(None);
        }
        let size: Bytes = text.parse().map_err(D::Error::custom)?;
        Ok(Some(size.get()))
    }
}

pub(super) mod gpus {
    use divvy_core::{GpuSelection, parse_gpus};
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(gpus: &GpuSelection, to: S) -> Result<S::Ok, S::Error> {
        match gpus {
            GpuSelection::All => to.serialize_str("all"),
            GpuSelection::Indices(indices) => {
                let indices: Vec<String> = indices.iter().map(u32::to_string).collect();
                to.serialize_str(&indices.join(","))
            }
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GpuSelection, D::Error> {
        let text = String::deserialize(from)?;
        parse_gpus(&[text]).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(parse_duration("90s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h30m"), Some(Duration::from_secs(5400)));
        for wrong in ["90", "-5s", "soon"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
    }
}
