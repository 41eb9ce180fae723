//! Users and groups of the configuration that the user database does not have.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;

use divvy_api::daemon::{Configured, Principal};

use crate::host::account;
use crate::host::clock::Instant;

/// Time for all look-ups of a configuration. A local database answers in microseconds, a directory in milliseconds; one
/// that is away can take 30 s for each name, and a reload must not wait for it.
const PATIENCE: Duration = Duration::from_secs(3);

/// A warning for each place of the configuration that names a user or a group that does not exist. Names without an
/// answer of the database are left out.
pub fn warnings(configured: &Configured) -> Vec<String> {
    configured.warn_of_absent(&absent(configured.principals(), account::exists, PATIENCE))
}

fn absent(
    named: BTreeSet<Principal>,
    exists: fn(&Principal) -> Option<bool>,
    patience: Duration,
) -> BTreeSet<Principal> {
    let end = Instant::now() + patience;
    let (answers, found) = mpsc::channel();
    let ask = move || {
        for principal in named {
            let is_absent = exists(&principal) == Some(false);
            if answers.send(is_absent.then_some(principal)).is_err() {
                return;
            }
        }
    };
    // In a thread of its own: the database may hang.
    let asked = std::thread::Builder::new()
        .name("accounts".into())
        .spawn(ask);
    let mut absent = BTreeSet::new();
    while asked.is_ok() {
        let left = end.saturating_duration_since(Instant::now());
        match found.recv_timeout(left) {
            Ok(principal) => absent.extend(principal),
            Err(_) => break,
        }
    }
    absent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> BTreeSet<Principal> {
        names.iter().map(|name| Principal::named(name)).collect()
    }

    #[test]
    fn users_and_groups_without_an_account_are_absent() {
        let all = named(&["root", "no such user", "@root", "@no such group"]);
        let expected = named(&["no such user", "@no such group"]);
        assert_eq!(absent(all, account::exists, PATIENCE), expected);
        assert_eq!(
            absent(BTreeSet::new(), account::exists, PATIENCE),
            named(&[])
        );
    }

    #[test]
    fn a_user_database_that_hangs_holds_up_no_reload_and_makes_no_warning() {
        let hangs = |principal: &Principal| match principal {
            Principal::User(name) if name == "b" => {
                std::thread::park();
                None
            }
            _ => Some(false),
        };
        let found = absent(named(&["a", "b", "c"]), hangs, Duration::from_millis(50));
        assert_eq!(found, named(&["a"]));
        let no_answer = |_: &Principal| None;
        assert_eq!(absent(named(&["a"]), no_answer, PATIENCE), named(&[]));
    }
}
