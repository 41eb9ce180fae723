//! Queue definitions: `NAME=AMOUNT`, in order of priority.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::model::request::{Amount, AmountError};
use crate::units::{IdError, QueueName};

/// A queue and what each of its jobs gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSpec {
    pub name: QueueName,
    /// `None` where each job asks for itself.
    pub amount: Option<Amount>,
}

impl QueueSpec {
    /// A queue that fixes no amount: each of its jobs asks for its own.
    pub fn open(name: QueueName) -> Self {
        Self { name, amount: None }
    }
}

/// In which order queues are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// After each start, back to the first queue.
    #[default]
    Strict,
    /// After each start, on to the next queue (`--order-fairness`).
    Fairness,
}

impl Order {
    /// The word in the API and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Fairness => "fairness",
        }
    }
}

/// Reads `NAME=V` or `NAME=MIN-MAX`, split at the last `=`, so that a name may contain one.
impl FromStr for QueueSpec {
    type Err = QueueError;

    fn from_str(token: &str) -> Result<Self, QueueError> {
        let (name, value) = token
            .rsplit_once('=')
            .ok_or_else(|| QueueError::Format(token.to_owned()))?;
        Ok(Self {
            name: name.parse()?,
            amount: Some(Amount::from_queue_value(value, token)?),
        })
    }
}

/// What a word after `--queue` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueWords {
    /// `NAME=AMOUNT`, or `NAME` where each job asks for itself: Divvy's own words.
    Any,
    /// `NAME=AMOUNT` always, as the stock ClearML agent reads it with `--dynamic-gpus`.
    Amounts,
    /// A name, `=` and all, as the stock ClearML agent reads it without `--dynamic-gpus`.
    Names,
}

impl QueueWords {
    /// Reads one word.
    ///
    /// # Errors
    /// [`QueueError`]: a wrong name, a wrong amount, and no amount where one is required.
    pub fn read(self, word: &str) -> Result<QueueSpec, QueueError> {
        match self {
            Self::Any if !word.contains('=') => Ok(QueueSpec::open(word.parse()?)),
            Self::Any | Self::Amounts => word.parse(),
            Self::Names => Ok(QueueSpec::open(word.parse()?)),
        }
    }
}

/// Reads the words after `--queue`, in priority order.
///
/// Fractions need no container mode (the stock agent demands `--docker`): here plain processes are held to their limits
/// too.
///
/// # Errors
/// [`QueueError`]: a word that cannot be read, a queue listed twice, services mode together with dynamic GPUs. Whether
/// an amount can ever fit the node is checked by `can_ever_fit`, queue by queue.
pub fn parse_queues<S: AsRef<str>>(
    words: &[S],
    kind: QueueWords,
    services_mode: bool,
) -> Result<Vec<QueueSpec>, QueueError> {
    if kind == QueueWords::Amounts && services_mode {
        return Err(QueueError::ServicesMode);
    }
    let mut names = BTreeSet::new();
    let mut specs = Vec::new();
    for word in words.iter().map(AsRef::as_ref) {
        let spec = kind.read(word)?;
        if !names.insert(spec.name.clone()) {
            return Err(QueueError::Twice(spec.name));
        }
        specs.push(spec);
    }
    Ok(specs)
}

/// Why the words after `--queue` are refused. The wording of the first and the last is the stock ClearML agent's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    #[error("queue must be in format <queue_name>=<num_gpus>: \"{0}\"")]
    Format(String),
    #[error(transparent)]
    Name(#[from] IdError),
    #[error(transparent)]
    Amount(#[from] AmountError),
    #[error("queue \"{0}\" is listed twice")]
    Twice(QueueName),
    #[error("Combining --dynamic-gpus and --services-mode is not supported")]
    ServicesMode,
}

impl QueueError {
    /// What to write instead.
    pub fn hint(&self) -> String {
        match self {
            Self::Format(token) => {
                format!("write how much GPU each of its jobs gets, as in {token}=0.5 or {token}=1")
            }
            Self::Name(error) => error.hint(),
            Self::Amount(error) => error.hint(),
            Self::Twice(_) => {
                "give each queue one amount, and list it at the place of its priority".to_owned()
            }
            Self::ServicesMode => "leave one of the two out".to_owned(),
        }
    }
}
