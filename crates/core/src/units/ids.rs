//! Identifiers of GPUs, jobs, queues, projects and users. None of them is a `String`, so none can be mistaken for another.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A GPU's UUID as NVML writes it, `GPU-` and 8-4-4-4-12 hexadecimal digits; letter case is kept. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid(Arc<str>);

impl GpuUuid {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The sixteen bytes of it, as the driver API gives them.
    pub fn to_bytes(&self) -> [u8; 16] {
        let mut digits = self
            .0
            .bytes()
            .skip("GPU-".len())
            .filter(|byte| *byte != b'-')
            .map(hex_digit);
        std::array::from_fn(|_| {
            let mut digit = || {
                digits
                    .next()
                    .flatten()
                    .expect("32 hexadecimal digits, checked when parsed")
            };
            digit() << 4 | digit()
        })
    }

    /// The UUID with these sixteen bytes, in lower case.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let mut text = String::from("GPU");
        for (place, byte) in bytes.into_iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&place) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        Self(text.into())
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

impl FromStr for GpuUuid {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let groups: Option<Vec<&str>> = text
            .strip_prefix("GPU-")
            .map(|rest| rest.split('-').collect());
        let right = groups.is_some_and(|groups| {
            groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
                && groups
                    .iter()
                    .all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
        });
        if right {
            Ok(Self(text.into()))
        } else {
            Err(IdError::GpuUuid(text.to_owned()))
        }
    }
}

/// A job's number, from 1. Written `3`; in sentences `#3`. Both are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

impl fmt::Display for JobId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl FromStr for JobId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let digits = text.strip_prefix('#').unwrap_or(text);
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(IdError::Job(text.to_owned()));
        }
        digits
            .parse()
            .map(Self)
            .map_err(|_| IdError::Job(text.to_owned()))
    }
}

/// A queue's name: any text on one line without blanks at its ends, `=` included. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QueueName(Arc<str>);

impl QueueName {
    /// The queue of jobs that name none.
    pub fn default_queue() -> Self {
        Self("default".into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for QueueName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if is_one_line(text) {
            Ok(Self(text.into()))
        } else {
            Err(IdError::Queue(text.to_owned()))
        }
    }
}

/// A project's name: any text on one line without blanks at its ends. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProjectName(Arc<str>);

impl ProjectName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProjectName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        if is_one_line(text) {
            Ok(Self(text.into()))
        } else {
            Err(IdError::Project(text.to_owned()))
        }
    }
}

/// The name of a user, or their number where they have no name. A front end may name users that the machine does not
/// know, so any text is a name. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct UserName(Arc<str>);

impl UserName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl From<&str> for UserName {
    fn from(name: &str) -> Self {
        Self(name.into())
    }
}

impl From<String> for UserName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl From<UserName> for String {
    fn from(name: UserName) -> Self {
        name.as_str().to_owned()
    }
}

fn is_one_line(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.contains(char::is_control)
}

macro_rules! text_id {
    ($type:ty) => {
        impl fmt::Display for $type {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $type {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(id: $type) -> Self {
                id.as_str().to_owned()
            }
        }
    };
}
text_id!(GpuUuid);
text_id!(QueueName);
text_id!(ProjectName);

/// Why a text names nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("`{0}`: not the UUID of a GPU")]
    GpuUuid(String),
    #[error("`{0}`: not the number of a job")]
    Job(String),
    #[error("{0:?}: not a valid name of a queue")]
    Queue(String),
    #[error("{0:?}: not a valid name of a project")]
    Project(String),
}

impl IdError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::GpuUuid(_) => {
                "write it as `nvidia-smi -L` does: GPU-, then 8-4-4-4-12 hexadecimal digits"
                    .to_owned()
            }
            Self::Job(_) => "write a number such as 3 or #3; `divvy ps -a` lists them".to_owned(),
            Self::Queue(_) | Self::Project(_) => {
                "use one line without blanks at its ends".to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_uuid_keeps_its_letters_and_gives_its_bytes() {
        let uuid: GpuUuid = "GPU-8f1E0d2c-0001-0203-0405-0607080900ff".parse().unwrap();
        assert_eq!(uuid.to_string(), "GPU-8f1E0d2c-0001-0203-0405-0607080900ff");
        assert_eq!(
            uuid.to_bytes(),
            [
                0x8f, 0x1e, 0x0d, 0x2c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0xff
            ]
        );
    }

    #[test]
    fn what_is_not_a_gpu_uuid_is_refused() {
        for text in [
            "",
            "GPU-",
            "8f1e0d2c-0001-0203-0405-0607080900ff",
            "MIG-8f1e0d2c-0001-0203-0405-0607080900ff",
            "GPU-8f1e0d2c-0001-0203-0405-0607080900f",
            "GPU-8f1e0d2c-0001-0203-0405-0607080900fg",
            "GPU-8f1e0d2c00010203-0405-0607-080900ff",
        ] {
            assert!(text.parse::<GpuUuid>().is_err(), "{text}");
        }
    }

    #[test]
    fn jobs_are_read_with_and_without_the_hash() {
        assert_eq!(("3".parse(), "#3".parse()), (Ok(JobId(3)), Ok(JobId(3))));
        for text in ["", "#", "+3", "-3", "3a", "last", "99999999999999999999"] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_queue_name_is_one_line_without_blanks_at_its_ends() {
        for text in ["default", "team=a", "my queue", "größe"] {
            assert_eq!(
                text.parse::<QueueName>().map(String::from),
                Ok(text.to_owned())
            );
        }
        for text in ["", " ", " a", "a ", "a\nb", "a\0"] {
            assert!(text.parse::<QueueName>().is_err(), "{text:?}");
        }
    }
}
