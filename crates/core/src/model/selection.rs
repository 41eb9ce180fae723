//! GPU selection: the GPUs that `--gpus` gives to the daemon.

use std::collections::BTreeSet;

/// The GPUs that `--gpus` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuSelection {
    All,
    /// In ascending order, none twice, at least one.
    Indices(Vec<u32>),
}

/// Reads the words after `--gpus`: `0-2`, `0,1,2`, `0-2,5`, `all`, and the `0, 1` of the documentation, which arrives
/// as two words.
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
    /// The selected ones of the GPUs that are there, ascending.
    ///
    /// # Errors
    /// [`SelectionError::Unknown`] for an index that is not there.
    pub fn resolve(&self, there: &[u32]) -> Result<Vec<u32>, SelectionError> {
        let mut there = there.to_vec();
        there.sort_unstable();
        match self {
            Self::All => Ok(there),
            Self::Indices(indices) => match indices.iter().find(|index| !there.contains(index)) {
                Some(&index) => Err(SelectionError::Unknown { index, there }),
                None => Ok(indices.clone()),
            },
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
    #[error("there is no GPU {index} here: {}", present(there))]
    Unknown { index: u32, there: Vec<u32> },
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
            Self::Twice(_) => "name each GPU once".to_owned(),
            Self::Empty | Self::NotAnIndex(_) | Self::Mig(_) => {
                "write indices and ranges, such as 0-2, 0,1,2 or 0-2,5, or all".to_owned()
            }
        }
    }
}
