//! The users of jobs with their groups, which rules for users need.
//!
//! A caller's groups come with the call. After a restart, and for users that a front end names, they come from the user
//! database.

use std::collections::{BTreeMap, BTreeSet};

use divvy_api::daemon::UserKey;

use crate::controller::state::Jobs;
use crate::host::account::{UserAccount, UserLookupError};
use crate::model::job::{Credentials, Job};

/// Beyond so many users, those without a job are forgotten.
const MOST_IDLE: usize = 1024;

/// Known accounts, by name.
#[derive(Default)]
pub struct JobUsers(BTreeMap<String, UserAccount>);

impl JobUsers {
    /// Keeps what a call showed of an account, in place of what was known before.
    pub fn remember(&mut self, account: &UserAccount, jobs: &Jobs) {
        if self.0.len() >= MOST_IDLE && !self.0.contains_key(&account.name) {
            let active = names(jobs);
            self.0.retain(|name, _| active.contains(name.as_str()));
        }
        if self.0.get(&account.name) != Some(account) {
            self.0.insert(account.name.clone(), account.clone());
        }
    }

    /// Looks up the users of these jobs. A user that the database does not know has no groups.
    pub fn look_up(&mut self, jobs: &Jobs) {
        let active = counted(jobs).map(|job| (job.spec.user.as_str(), job.spec.credentials));
        for (name, credentials) in active.collect::<BTreeSet<_>>() {
            match account_of(name, credentials) {
                Ok(Some(account)) => drop(self.0.insert(name.to_owned(), account)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(
                        user = name,
                        %error,
                        "rules for groups do not apply to the jobs of this user until its next submission"
                    );
                }
            }
        }
    }

    /// What rules ask of a user.
    pub fn key<'a>(&'a self, name: &'a str) -> UserKey<'a> {
        match self.0.get(name) {
            Some(account) => key(account),
            None => UserKey {
                name,
                uid: name.parse().ok(),
                groups: Vec::new(),
            },
        }
    }
}

/// What rules ask of an account.
pub fn key(account: &UserAccount) -> UserKey<'_> {
    let groups = account.groups.iter();
    UserKey {
        name: &account.name,
        uid: Some(account.uid),
        groups: groups
            .map(|group| (group.gid, group.name.as_str()))
            .collect(),
    }
}

/// The account of a job's user: that of its credentials, or, for a job of a front end, the one of this name.
fn account_of(
    name: &str,
    Credentials { uid, gid }: Credentials,
) -> Result<Option<UserAccount>, UserLookupError> {
    let own = UserAccount::lookup(uid, gid)?;
    match own.name == name {
        true => Ok(Some(own)),
        false => UserAccount::by_name(name),
    }
}

/// The users whose limits the active jobs count for.
pub fn names(jobs: &Jobs) -> BTreeSet<&str> {
    counted(jobs).map(|job| job.spec.user.as_str()).collect()
}

/// The active jobs that count for the limit of their user. Claims count for none.
fn counted(jobs: &Jobs) -> impl Iterator<Item = &Job> {
    let active = jobs.active.values().map(|active| &active.job);
    active.filter(|job| job.claim().is_none())
}
