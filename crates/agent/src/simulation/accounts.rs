//! Users of the simulated machine.

use crate::auth::{Caller, Role};
use crate::host::account::UserAccount;
use crate::model::job::Credentials;

/// The user that started the daemon, and is its admin.
pub const ME: &str = "ana";
/// A user with the right to run jobs.
pub const OTHER: &str = "lee";
/// No account of a distribution has it.
const OTHER_UID: u32 = 40_001;

/// Only root gives files away, and a daemon that is not root's serves its own user alone.
pub fn all() -> &'static [&'static str] {
    match Credentials::current().uid {
        0 => &[ME, OTHER],
        _ => &[ME],
    }
}

pub fn uid(name: &str) -> u32 {
    match name == OTHER {
        true => OTHER_UID,
        false => Credentials::current().uid,
    }
}

pub fn caller(name: &str) -> Caller {
    let is_other = name == OTHER;
    let uid = uid(name);
    Caller {
        account: UserAccount {
            uid,
            gid: if is_other {
                uid
            } else {
                Credentials::current().gid
            },
            name: name.to_owned(),
            groups: Vec::new(),
            home: None,
        },
        role: if is_other { Role::User } else { Role::Admin },
        can_see_all: !is_other,
        is_engine: false,
    }
}
