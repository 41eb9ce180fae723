//! Enforcement backends: the limiter, the driver or a MIG instance holds a slice's memory limit. The set is closed;
//! each GPU and driver has one of them in force.

use serde::{Deserialize, Serialize};

use crate::model::isolation::Isolation;
use crate::model::slice::Grant;

/// What holds the memory limit of a slice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// The limiter, in the job's own processes.
    #[default]
    #[serde(rename = "interposer")]
    Limiter,
    /// The driver's limit of the job's control group (r615), with the limiter on top.
    Driver,
    /// A MIG instance.
    Mig,
}

impl Enforcement {
    pub const ALL: [Self; 3] = [Self::Limiter, Self::Driver, Self::Mig];

    /// What holds the limit of a grant where the driver holds none of its own.
    pub fn without_driver(grant: &Grant) -> Self {
        match grant.mig {
            Some(_) => Self::Mig,
            None => Self::Limiter,
        }
    }

    /// The word for it in JSON, metrics and the journal.
    pub fn name(self) -> &'static str {
        match self {
            Self::Limiter => "interposer",
            Self::Driver => "driver",
            Self::Mig => "mig",
        }
    }

    /// The word in JSON; `None` for another one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Whether it is as strong as a request wants.
    pub fn satisfies(self, wish: Isolation) -> bool {
        match wish {
            Isolation::Any => true,
            Isolation::Cooperative => self != Self::Mig,
            Isolation::Driver => self != Self::Limiter,
            Isolation::Hardware => self == Self::Mig,
        }
    }

    pub(crate) fn is_limiter(&self) -> bool {
        *self == Self::Limiter
    }
}

/// What the daemon is to choose on GPUs that it shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnforcementPolicy {
    /// The driver's limit where it works, and the limiter alone elsewhere.
    #[default]
    Auto,
    /// No part of a GPU without the driver's limit.
    Driver,
    /// The limiter alone.
    Limiter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_isolation_names_the_backends_that_satisfy_it() {
        let satisfied = |wish| Enforcement::ALL.map(|one| one.satisfies(wish));
        assert_eq!(satisfied(Isolation::Any), [true, true, true]);
        assert_eq!(satisfied(Isolation::Cooperative), [true, true, false]);
        assert_eq!(satisfied(Isolation::Driver), [false, true, true]);
        assert_eq!(satisfied(Isolation::Hardware), [false, false, true]);
    }

    #[test]
    fn a_backend_is_read_as_it_is_written() {
        for one in Enforcement::ALL {
            assert_eq!(Enforcement::from_name(one.name()), Some(one));
        }
        assert_eq!(Enforcement::from_name("wall"), None);
    }
}
