//! The UUID of a GPU: sixteen bytes for CUDA and the ledger, `GPU-` and text for NVML and people.

use std::fmt;
use std::str::FromStr;

/// A GPU's UUID. Written `GPU-3d0cf39b-8a4b-9d0c-5c0e-0123456789ab`, in lower case, as NVML does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// Text that is no GPU's UUID; a MIG device's is not one either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a GPU's UUID (GPU- and 32 hexadecimal digits in groups of 8-4-4-4-12)")]
pub struct BadUuid(String);

/// Digits in each group.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

impl FromStr for Uuid {
    type Err = BadUuid;

    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid(text.to_owned());
        let groups: Vec<&str> = text
            .strip_prefix("GPU-")
            .ok_or_else(bad)?
            .split('-')
            .collect();
        let is_hex = |group: &str| group.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !groups.iter().map(|group| group.len()).eq(GROUPS) || !groups.iter().all(|g| is_hex(g)) {
            return Err(bad());
        }
        let value = u128::from_str_radix(&groups.concat(), 16).map_err(|_| bad())?;
        Ok(Self(value.to_be_bytes()))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        f.write_str("GPU")?;
        let mut rest = digits.as_str();
        for length in GROUPS {
            let (group, after) = rest.split_at(length);
            write!(f, "-{group}")?;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_the_same_uuid() {
        let text = "GPU-00112233-4455-6677-8899-aabbccddeeff";
        let uuid: Uuid = text.parse().expect("a UUID");
        assert_eq!(uuid.0[..4], [0x00, 0x11, 0x22, 0x33]);
        assert_eq!(uuid.0[15], 0xff);
        assert_eq!(uuid.to_string(), text);
        assert_eq!(text.to_uppercase().parse::<Uuid>(), Ok(uuid));
    }

    #[test]
    fn what_is_not_a_gpus_uuid_is_refused() {
        for text in [
            "",
            "GPU-",
            "00112233-4455-6677-8899-aabbccddeeff",
            "MIG-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-00112233445566778899aabbccddeeff",
            "GPU-00112233-4455-6677-8899-aabbccddeefg",
            "GPU-+0112233-4455-6677-8899-aabbccddeeff",
            "GPU-00112233-4455-6677-8899-aabbccddeeff-",
        ] {
            assert_eq!(text.parse::<Uuid>(), Err(BadUuid(text.to_owned())));
        }
    }
}
