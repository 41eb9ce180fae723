//! UUIDs of MIG devices. A UUID names a slot: an instance that is created again in the same slot has the same UUID.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A MIG device's UUID as NVML writes it: `MIG-` and 8-4-4-4-12 hexadecimal digits, or, by drivers before 470,
/// `MIG-GPU-<uuid>/1/0`. Never a GPU's. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MigUuid(Arc<str>);

/// The text is no MIG device's UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: not the UUID of a MIG device")]
pub struct MigUuidError(String);

impl MigUuid {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MigUuid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl FromStr for MigUuid {
    type Err = MigUuidError;

    fn from_str(text: &str) -> Result<Self, MigUuidError> {
        let hexadecimal = |group: &str, length: usize| {
            group.len() == length && group.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let uuid = |text: &str| {
            let groups: Vec<&str> = text.split('-').collect();
            let lengths = [8, 4, 4, 4, 12];
            groups.len() == lengths.len()
                && groups
                    .iter()
                    .zip(lengths)
                    .all(|(group, length)| hexadecimal(group, length))
        };
        let number = |text: &str| text.parse::<u8>().is_ok();
        let is_one = match text.strip_prefix("MIG-") {
            Some(rest) => match rest.strip_prefix("GPU-") {
                Some(old) => {
                    let parts: Vec<&str> = old.split('/').collect();
                    matches!(parts[..], [gpu, instance, compute] if uuid(gpu) && number(instance) && number(compute))
                }
                None => uuid(rest),
            },
            None => false,
        };
        is_one
            .then(|| Self(text.into()))
            .ok_or_else(|| MigUuidError(text.to_owned()))
    }
}

impl TryFrom<String> for MigUuid {
    type Error = MigUuidError;

    fn try_from(text: String) -> Result<Self, MigUuidError> {
        text.parse()
    }
}

impl From<MigUuid> for String {
    fn from(uuid: MigUuid) -> Self {
        uuid.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read_and_written_alike() {
        for text in [
            "MIG-c7384736-a75d-5afc-978f-d2f1294409fd",
            "MIG-GPU-c7384736-a75d-5afc-978f-d2f1294409fd/7/0",
        ] {
            assert_eq!(text.parse::<MigUuid>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_could_mean_something_else_is_refused() {
        for text in [
            "",
            "MIG-",
            "GPU-c7384736-a75d-5afc-978f-d2f1294409fd",
            "MIG-c7384736-a75d-5afc-978f-d2f1294409fd,GPU-0",
            "MIG-c7384736-a75d-5afc-978f-d2f1294409f",
            "MIG-GPU-c7384736-a75d-5afc-978f-d2f1294409fd/7",
            "MIG-GPU-c7384736-a75d-5afc-978f-d2f1294409fd/7/0/0",
            "MIG-GPU-c7384736-a75d-5afc-978f-d2f1294409fd/x/0",
        ] {
            assert!(text.parse::<MigUuid>().is_err(), "{text}");
        }
    }
}
