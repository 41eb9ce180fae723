//! Serde forms of the values of a configuration file: the texts that the flags accept.

use std::fmt;
use std::time::Duration;

use serde::de::{Error as DeError, Visitor};

/// Parses a duration: `90s`, `5m`, `2h`, `1h30m`, `30d`. A day has 24 hours.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let span: jiff::Span = text.parse().ok()?;
    let length = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours());
    length.ok()?.try_into().ok()
}

/// Whether the text describes simulated GPUs: `a100-80gb:3`, several joined by commas. The simulator knows the models.
pub fn is_sim(text: &str) -> bool {
    let counted = |item: &str| {
        let count = item.split_once(':').filter(|(model, _)| !model.is_empty());
        count.is_some_and(|(_, count)| count.parse::<u32>().is_ok_and(|count| count > 0))
    };
    text.split(',').all(counted)
}

/// Separates an error from its hint in the message of a conversion, which has one text.
pub(super) const HINT: char = '\u{1f}';

/// An error of a conversion, with what to write instead.
fn refused<E: DeError>(message: impl fmt::Display, hint: impl fmt::Display) -> E {
    E::custom(format_args!("{message}{HINT}{hint}"))
}

/// A text, with the words for what is expected in its place.
struct Text(&'static str);

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }

    fn visit_str<E: DeError>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

pub(super) mod duration {
    use std::time::Duration;

    use jiff::SignedDuration;
    use serde::{Deserializer, Serializer};

    use super::Text;

    /// A day of 24 hours, as in systemd.time(7).
    const DAY_S: u64 = 24 * 3600;

    pub fn serialize<S: Serializer>(length: &Duration, to: S) -> Result<S::Ok, S::Error> {
        let seconds = length.as_secs();
        if length.subsec_nanos() == 0 && seconds >= DAY_S && seconds.is_multiple_of(DAY_S) {
            return to.collect_str(&format_args!("{}d", seconds / DAY_S));
        }
        let length = SignedDuration::try_from(*length).unwrap_or(SignedDuration::MAX);
        to.collect_str(&format_args!("{length:#}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = from.deserialize_str(Text("a duration such as \"90s\" or \"30d\""))?;
        super::parse_duration(&text).ok_or_else(|| {
            super::refused(
                format_args!("{text:?} is not a duration"),
                "use 90s, 2h or 30d",
            )
        })
    }
}

pub(super) mod size {
    use divvy_core::Bytes;
    use serde::{Deserializer, Serializer};

    use super::Text;

    const UNLIMITED: &str = "none";

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(size: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
        match size {
            Some(size) => to.collect_str(&Bytes::new(*size)),
            None => to.serialize_str(UNLIMITED),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
        let text = from.deserialize_str(Text("a size such as \"64M\", or \"none\""))?;
        if text == UNLIMITED {
            return Ok(None);
        }
        let size = text.parse::<Bytes>();
        let size = size.map_err(|error| super::refused(&error, error.hint()))?;
        Ok(Some(size.get()))
    }
}

pub(super) mod wake {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    use super::Text;

    const WHENEVER: &str = "whenever";

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(bound: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        match bound {
            Some(bound) => super::duration::serialize(bound, to),
            None => to.serialize_str(WHENEVER),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        let text = from.deserialize_str(Text("a duration such as \"30s\", or \"whenever\""))?;
        if text == WHENEVER {
            return Ok(None);
        }
        let bound = super::parse_duration(&text).ok_or_else(|| {
            super::refused(
                format_args!("{text:?} is not a duration"),
                "use 30s, or whenever",
            )
        })?;
        Ok(Some(bound))
    }
}

pub(super) mod host_memory {
    use divvy_core::Bytes;
    use serde::{Deserializer, Serializer};

    use super::Text;
    use crate::daemon::HostMemory;

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(most: &HostMemory, to: S) -> Result<S::Ok, S::Error> {
        match most {
            HostMemory::Percent(percent) => to.collect_str(&format_args!("{percent}%")),
            HostMemory::Size(size) => to.collect_str(size),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<HostMemory, D::Error> {
        let text =
            from.deserialize_str(Text("a part such as \"50%\", or a size such as \"64G\""))?;
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|percent| *percent <= 100);
            return percent.map(HostMemory::Percent).ok_or_else(|| {
                super::refused(
                    format_args!("{text:?} is not a part of the host's memory"),
                    "use 0% to 100%",
                )
            });
        }
        let size = text.parse::<Bytes>();
        let size = size.map_err(|error| super::refused(&error, error.hint()))?;
        Ok(HostMemory::Size(size))
    }
}

pub(super) mod share {
    use divvy_core::Share;
    use serde::{Deserialize, Deserializer, Serializer};

    /// `0.5`, as a number or as a text.
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a part of a GPU such as 0.5")]
    enum Entry {
        Whole(u16),
        Part(f64),
        Text(String),
    }

    pub fn serialize<S: Serializer>(share: &Share, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(f64::from(share.thousandths()) / 1000.0)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Share, D::Error> {
        let text = match Entry::deserialize(from)? {
            Entry::Whole(whole) => whole.to_string(),
            Entry::Part(part) => part.to_string(),
            Entry::Text(text) => text,
        };
        text.parse()
            .map_err(|error: divvy_core::units::ShareError| super::refused(&error, error.hint()))
    }
}

pub(super) mod gpus {
    use divvy_core::{GpuSelection, parse_gpus};
    use serde::{Deserializer, Serializer};

    use super::Text;

    pub fn serialize<S: Serializer>(gpus: &GpuSelection, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(gpus)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<GpuSelection, D::Error> {
        let text = from.deserialize_str(Text("\"all\" or a list such as \"0,2\""))?;
        parse_gpus(&[text]).map_err(|error| {
            let words = error.to_string();
            // The error is that of the flag.
            super::refused(
                words.strip_prefix("--gpus: ").unwrap_or(&words),
                error.hint(),
            )
        })
    }
}

pub(super) mod queues {
    use divvy_core::queue::QueueError;
    use divvy_core::{QueueSpec, QueueWords};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// One queue: `NAME`, or `NAME=AMOUNT`; a name with `=` is `{ name = "NAME" }`.
    #[derive(Serialize, Deserialize)]
    #[serde(untagged, expecting = "expected a queue such as \"half=0.5\"")]
    enum Entry {
        Text(String),
        Named { name: String },
    }

    impl Entry {
        fn queue(self) -> Result<QueueSpec, QueueError> {
            match self {
                Self::Text(text) => QueueWords::Any.read(&text),
                Self::Named { name } => QueueWords::Names.read(&name),
            }
        }
    }

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(queues: &[QueueSpec], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(queues.iter().map(|queue| match &queue.amount {
            Some(amount) => Entry::Text(format!("{}={amount}", queue.name)),
            None => match queue.name.to_string() {
                name if name.contains('=') => Entry::Named { name },
                name => Entry::Text(name),
            },
        }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<QueueSpec>, D::Error> {
        let entries = Vec::<Entry>::deserialize(from)?.into_iter();
        let queues = entries.map(|entry| {
            let queue = entry.queue();
            queue.map_err(|error| super::refused(&error, error.hint()))
        });
        queues.collect()
    }
}

pub(super) mod idle {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::time::Duration;

    use crate::v1::{Idle, IdleAction};

    /// `{ after = "2h", action = "suspend" }`.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Entry {
        #[serde(with = "super::duration")]
        after: Duration,
        #[serde(default = "notify")]
        action: IdleAction,
    }

    fn notify() -> IdleAction {
        IdleAction::Notify
    }

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(idle: &Option<Idle>, to: S) -> Result<S::Ok, S::Error> {
        let text = idle.as_ref().map(|idle| Entry {
            after: Duration::from_secs(idle.after_s),
            action: idle.action,
        });
        text.serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Idle>, D::Error> {
        let text = Entry::deserialize(from)?;
        Ok(Some(Idle {
            after_s: text.after.as_secs(),
            action: text.action,
        }))
    }
}

/// GPUs as a number: `2`, `2.5` or `"2.5"`.
mod number {
    use std::fmt;

    use divvy_core::Gpus;
    use serde::de::{Error as DeError, Visitor};

    pub struct Text {
        pub expected: &'static str,
    }

    impl Visitor<'_> for Text {
        type Value = String;

        fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str(self.expected)
        }

        fn visit_i64<E: DeError>(self, number: i64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_u64<E: DeError>(self, number: u64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_f64<E: DeError>(self, number: f64) -> Result<String, E> {
            Ok(number.to_string())
        }

        fn visit_str<E: DeError>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }
    }

    pub fn parse<E: DeError>(text: &str) -> Result<Gpus, E> {
        text.parse()
            .map_err(|error: divvy_core::units::GpusError| super::refused(&error, error.hint()))
    }
}

pub(super) mod quota {
    use divvy_core::Gpus;
    use serde::{Deserializer, Serializer};

    use super::number;

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(gpus: &Gpus, to: S) -> Result<S::Ok, S::Error> {
        let thousandths = gpus.thousandths();
        match (thousandths % 1000, u32::try_from(thousandths)) {
            (0, _) => to.serialize_u64(thousandths / 1000),
            (_, Ok(thousandths)) => to.serialize_f64(f64::from(thousandths) / 1000.0),
            (_, Err(_)) => to.collect_str(gpus),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Gpus, D::Error> {
        let expected = "a number of GPUs, such as 2 or 2.5";
        number::parse(&from.deserialize_any(number::Text { expected })?)
    }
}

pub(super) mod limit {
    use divvy_core::Gpus;
    use serde::{Deserializer, Serializer};

    use super::{number, quota};

    const UNLIMITED: &str = "none";

    // serde passes a reference to the field.
    pub fn serialize<S: Serializer>(limit: &Option<Gpus>, to: S) -> Result<S::Ok, S::Error> {
        match limit {
            Some(gpus) => quota::serialize(gpus, to),
            None => to.serialize_str(UNLIMITED),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Gpus>, D::Error> {
        let expected = "a number of GPUs, such as 2 or 2.5, or \"none\"";
        match from.deserialize_any(number::Text { expected })? {
            text if text == UNLIMITED => Ok(None),
            text => number::parse(&text).map(Some),
        }
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
