//! Authorisation: the caller from the kernel's credentials, its role from the rules, and the calls that a role may
//! make.
//!
//! May use: `host`.
//! Used by: `model`, `config`, `controller`, `http`, `daemon`.
//!
//! ```text
//! peer credentials ──account──► Account ──rules──► Role ─┐
//! method and path ──────────────verb────► Verb ──────────┼──► may
//! the job's submitter ──────────────────► own, another's ┘
//! ```

pub mod absent;
pub mod rules;
pub mod verb;

pub use divvy_api::daemon::Role;
use divvy_api::v1::{Error, ErrorCode};

use crate::host::account::UserAccount;
pub use rules::Rules;
pub use verb::Verb;

/// The owner of the job that a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobRelation {
    /// The call is about no job.
    None,
    Own,
    Others,
}

/// The least role that may do it, if any role is enough.
pub fn required_role(verb: Verb, whose: JobRelation) -> Role {
    match (verb, whose) {
        (Verb::View, _) | (Verb::Read, JobRelation::Own) => Role::Viewer,
        (Verb::Submit | Verb::ChangeSelected, _)
        | (Verb::Change | Verb::Exec, JobRelation::Own) => Role::User,
        (Verb::Read | Verb::Change, JobRelation::Others | JobRelation::None)
        | (Verb::CleanUp, _) => Role::Operator,
        // An operator stops others' jobs, and is not their user.
        (Verb::Exec, JobRelation::Others | JobRelation::None)
        | (Verb::HoldClaim | Verb::Administer, _) => Role::Admin,
    }
}

/// The caller, with the facts that other modules need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub account: UserAccount,
    pub role: Role,
    /// May see what others run.
    pub can_see_all: bool,
    /// May hold claims without the role admin: another scheduler.
    pub is_engine: bool,
}

impl Caller {
    /// # Errors
    /// [`ErrorCode::NotAllowed`], with the role that would do.
    pub fn authorize(&self, verb: Verb, whose: JobRelation) -> Result<(), Error> {
        let needed = required_role(verb, whose);
        if self.role >= needed || (verb == Verb::HoldClaim && self.is_engine) {
            return Ok(());
        }
        let UserAccount { name, uid, .. } = &self.account;
        let denied = match (verb, whose) {
            (Verb::Read, JobRelation::Others) => "the output of this job belongs to another user",
            (Verb::Change | Verb::Exec, JobRelation::Others) => "this job belongs to another user",
            (Verb::Submit, _) => "viewers cannot submit jobs",
            (Verb::ChangeSelected, _) => "viewers cannot change jobs",
            (Verb::HoldClaim, _) => "a slice is placed at once, past queues and quotas",
            (Verb::Administer, _) => "this changes the node for all users",
            _ => "this concerns the jobs of all users",
        };
        let why = format!(
            "{denied}: the role {} is required, but {name} (uid {uid}) has the role {}",
            needed.name(),
            self.role.name()
        );
        let granter = match whose {
            JobRelation::Others => "the job's owner or an admin of this node",
            JobRelation::Own | JobRelation::None => "an admin of this node",
        };
        Err(Error::new(ErrorCode::NotAllowed, why).hint(format!(
            "ask {granter}; admins assign roles in the daemon's configuration file, or its file listen.access"
        )))
    }

    pub fn whose(&self, owner: u32) -> JobRelation {
        match owner == self.account.uid {
            true => JobRelation::Own,
            false => JobRelation::Others,
        }
    }

    /// Whether the commands of all jobs are.
    pub fn can_see_all_users(&self) -> bool {
        self.can_see_all || self.role >= Role::Operator
    }

    /// Whether the commands of this user's jobs are shown to the caller.
    pub fn can_see(&self, owner: u32) -> bool {
        self.can_see_all_users() || owner == self.account.uid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(role: Role) -> Caller {
        Caller {
            account: UserAccount {
                uid: 1000,
                gid: 1000,
                name: "ana".into(),
                groups: Vec::new(),
                home: None,
            },
            role,
            can_see_all: false,
            is_engine: false,
        }
    }

    /// The whole table: a line for each API call and owner, with the permissions of each role (v, u, o, a).
    const TABLE: &str = "
        look    none    vuoa
        look    own     vuoa
        look    others  vuoa
        read    none    --oa
        read    own     vuoa
        read    others  --oa
        submit  none    -uoa
        submit  own     -uoa
        submit  others  -uoa
        change  none    --oa
        change  own     -uoa
        change  others  --oa
        select  none    -uoa
        select  own     -uoa
        select  others  -uoa
        enter   none    ---a
        enter   own     -uoa
        enter   others  ---a
        tidy    none    --oa
        tidy    own     --oa
        tidy    others  --oa
        claim   none    ---a
        claim   own     ---a
        claim   others  ---a
        govern  none    ---a
        govern  own     ---a
        govern  others  ---a
    ";

    #[test]
    fn every_verb_of_every_role_is_as_in_the_table() {
        let mut seen = Vec::new();
        for line in TABLE.lines().filter(|line| !line.trim().is_empty()) {
            let [verb, whose, roles] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            let verb = Verb::ALL
                .into_iter()
                .find(|one| one.name() == verb)
                .unwrap();
            let whose = match whose {
                "none" => JobRelation::None,
                "own" => JobRelation::Own,
                _ => JobRelation::Others,
            };
            seen.push((verb, whose));
            for (role, letter) in Role::ALL.into_iter().zip(roles.chars()) {
                let may = caller(role).authorize(verb, whose);
                assert_eq!(may.is_ok(), letter != '-', "{line}: {role:?}");
                if let Err(error) = may {
                    assert_eq!(error.code.exit_code(), 4);
                    assert!(error.message.contains(required_role(verb, whose).name()));
                    assert!(error.message.contains("ana") && error.hint.is_some());
                }
            }
        }
        assert_eq!(seen.len(), Verb::ALL.len() * 3, "every pair has its line");
    }

    #[test]
    fn an_engine_holds_claims_and_gains_no_other_permission() {
        for role in [Role::User, Role::Operator] {
            let engine = Caller {
                is_engine: true,
                ..caller(role)
            };
            for verb in Verb::ALL {
                let may = engine.authorize(verb, JobRelation::None).is_ok();
                let others = caller(role).authorize(verb, JobRelation::None).is_ok();
                assert_eq!(may, others || verb == Verb::HoldClaim, "{verb:?}");
            }
        }
    }

    #[test]
    fn commands_are_shown_to_their_owner_and_to_operators() {
        assert!(caller(Role::Viewer).can_see(1000));
        assert!(!caller(Role::User).can_see(1001));
        assert!(caller(Role::Operator).can_see(1001));
        let everybody = Caller {
            can_see_all: true,
            ..caller(Role::Viewer)
        };
        assert!(everybody.can_see(1001));
    }
}
