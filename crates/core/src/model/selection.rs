//! GPU selection: the GPUs that `--gpus` gives to the daemon.

use std::collections::BTreeSet;
use std::fmt;

use crate::units::GpuUuid;

/// The GPUs that `--gpus` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelection {
    All,
    /// In ascending order, none twice, at least one.
    Indices(Vec<u32>),
    /// By UUID, none twice, at least one.
    Uuids(Vec<GpuUuid>),
}

/// As `--gpus` reads it: `all`, `0,2`.
impl fmt::Display for GpuSelection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = match self {
            Self::All => vec!["all".to_owned()],
            Self::Indices(indices) => indices.iter().map(u32::to_string).collect(),
            Self::Uuids(uuids) => uuids.iter().map(GpuUuid::to_string).collect(),
        };
        out.write_str(&words.join(","))
    }
}

/// Reads the words after `--gpus`: `0-2`, `0,1,2`, `0-2,5`, `all`, UUIDs, and the `0, 1` of the documentation, which
/// arrives as two words.
///
/// # Errors
/// [`SelectionError`]: nothing named, something that is not an index, a range that goes down, an index named twice.
pub fn parse_gpus<S: AsRef<str>>(words: &[S]) -> Result<GpuSelection, SelectionError> {
    let words = words.iter().map(AsRef::as_ref);
    let items: Vec<&str> = words
        .flat_map(|word| word.split([',', ' ']))
        .filter(|item| !item.is_empty())
        .collect();
    match items[..] {
        [] => return Err(SelectionError::Empty),
        ["all"] => return Ok(GpuSelection::All),
        [first, ..] if first.starts_with("GPU-") => return uuids(&items),
        _ => {}
    }
    let mut indices = BTreeSet::new();
    for item in items {
        for index in range(item)? {
            if !indices.insert(index) {
                return Err(SelectionError::Twice(index));
            }
        }
    }
    Ok(GpuSelection::Indices(indices.into_iter().collect()))
}

fn uuids(items: &[&str]) -> Result<GpuSelection, SelectionError> {
    let mut uuids: Vec<GpuUuid> = Vec::new();
    for item in items {
        let uuid = item.parse();
        let uuid = uuid.map_err(|_| SelectionError::NotAUuid((*item).to_owned()))?;
        if uuids.contains(&uuid) {
            return Err(SelectionError::UuidTwice(uuid));
        }
        uuids.push(uuid);
    }
    Ok(GpuSelection::Uuids(uuids))
}

/// More GPUs than a node has, so that `0-4294967295` is an error and not a list.
const MAX_INDEX: u32 = 1023;

fn range(item: &str) -> Result<std::ops::RangeInclusive<u32>, SelectionError> {
    let index = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let index = if digits { text.parse().ok() } else { None };
        index.filter(|index| *index <= MAX_INDEX)
    };
    let wrong = || match item.split_once(':') {
        Some((gpu, slice)) if index(gpu).is_some() && index(slice).is_some() => {
            SelectionError::Mig(item.to_owned())
        }
        _ => SelectionError::NotAnIndex(item.to_owned()),
    };
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let (first, last) = index(first).zip(index(last)).ok_or_else(wrong)?;
    if first > last {
        return Err(SelectionError::Backwards(item.to_owned()));
    }
    Ok(first..=last)
}

impl GpuSelection {
    /// Whether it names the GPU with this index and UUID.
    pub fn names(&self, index: u32, uuid: &GpuUuid) -> bool {
        match self {
            Self::All => true,
            Self::Indices(indices) => indices.contains(&index),
            Self::Uuids(uuids) => uuids.contains(uuid),
        }
    }

    /// How many GPUs it names; `None` for all.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Indices(indices) => Some(indices.len()),
            Self::Uuids(uuids) => Some(uuids.len()),
        }
    }

    /// Refuses a selection that names a GPU which is not there.
    ///
    /// # Errors
    /// [`SelectionError::Unknown`] with the first that is not there.
    pub fn check<'a>(
        &self,
        there: impl IntoIterator<Item = (u32, &'a GpuUuid)>,
    ) -> Result<(), SelectionError> {
        let (mut indices, uuids): (Vec<u32>, Vec<&GpuUuid>) = there.into_iter().unzip();
        indices.sort_unstable();
        let absent = match self {
            Self::All => None,
            Self::Indices(named) => {
                let mut named = named.iter();
                named.find(|one| !indices.contains(one)).map(u32::to_string)
            }
            Self::Uuids(named) => {
                let mut named = named.iter();
                named
                    .find(|one| !uuids.contains(one))
                    .map(GpuUuid::to_string)
            }
        };
        match absent {
            Some(gpu) => Err(SelectionError::Unknown {
                gpu,
                there: indices,
            }),
            None => Ok(()),
        }
    }
}

/// Why a selection of GPUs is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    #[error("--gpus is empty")]
    Empty,
    #[error("--gpus: `{0}` is neither an index nor a range")]
    NotAnIndex(String),
    #[error("--gpus: `{0}` is a MIG slice, but a daemon manages whole GPUs")]
    Mig(String),
    #[error("--gpus: the range `{0}` is empty")]
    Backwards(String),
    #[error("--gpus names GPU {0} twice")]
    Twice(u32),
    #[error("--gpus: `{0}` is not the UUID of a GPU")]
    NotAUuid(String),
    #[error("--gpus names {0} twice")]
    UuidTwice(GpuUuid),
    #[error("there is no GPU {gpu} here: {}", present(there))]
    Unknown { gpu: String, there: Vec<u32> },
}

fn present(there: &[u32]) -> String {
    match there {
        [] => "there are none".to_owned(),
        [only] => format!("the only one is {only}"),
        _ => format!(
            "there are {}",
            there
                .iter()
                .map(u32::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}

impl SelectionError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { .. } => {
                "list them: nvidia-smi -L; `--gpus all` uses every GPU".to_owned()
            }
            Self::Backwards(_) => "write the smaller index first, as in 0-2".to_owned(),
            Self::Twice(_) | Self::UuidTwice(_) => "name each GPU once".to_owned(),
            Self::NotAUuid(_) => {
                "write indices alone, or UUIDs alone as `nvidia-smi -L` shows them".to_owned()
            }
            Self::Empty | Self::NotAnIndex(_) | Self::Mig(_) => {
                "write indices and ranges, such as 0-2, 0,1,2 or 0-2,5, or all".to_owned()
            }
        }
    }
}
