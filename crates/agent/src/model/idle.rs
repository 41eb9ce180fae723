//! The idle rule: when a job that does not use its GPUs counts as idle, and the action then. Pure.

use divvy_api::v1::{self, Error, ErrorCode, IdleAction};
use serde::{Deserialize, Serialize};

use crate::auth::{Caller, Role};
use crate::model::policy::LONGEST_S;
use crate::model::validate::usage;

/// What is done with a job that has done nothing for so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// 0: nothing is ever done.
    pub after_s: u64,
    pub action: IdleAction,
}

impl Rule {
    /// # Errors
    /// [`ErrorCode::Usage`] for more than anything lasts.
    pub fn of(idle: v1::Idle) -> Result<Self, Error> {
        if idle.after_s > LONGEST_S {
            return Err(usage("the idle timeout is longer than 100 years"));
        }
        Ok(Self {
            after_s: idle.after_s,
            action: idle.action,
        })
    }

    pub fn to_api(self) -> v1::Idle {
        v1::Idle {
            after_s: self.after_s,
            action: self.action,
        }
    }

    fn is_off(self) -> bool {
        self.after_s == 0
    }

    /// Whether every job under this rule is under the other one too.
    fn is_as_strict_as(self, other: Self) -> bool {
        other.is_off()
            || (!self.is_off() && self.after_s <= other.after_s && self.action >= other.action)
    }
}

/// The rule that a job is under: its own, or the daemon's.
pub fn rule(own: Option<Rule>, daemons: Option<Rule>) -> Option<Rule> {
    own.or(daemons).filter(|rule| !rule.is_off())
}

/// A job may be stricter with itself than the daemon; to be milder takes an operator.
///
/// # Errors
/// [`ErrorCode::NotAllowed`], with the role that would do.
pub fn check(own: Option<Rule>, daemons: Option<Rule>, by: &Caller) -> Result<(), Error> {
    let (Some(own), Some(daemons)) = (own, daemons) else {
        return Ok(());
    };
    if by.role >= Role::Operator || own.is_as_strict_as(daemons) {
        return Ok(());
    }
    let why = format!(
        "the daemon's rule for idle jobs is {} after {} s: a milder rule requires the role {}, but {} (uid {}) has the role {}",
        action_name(daemons.action),
        daemons.after_s,
        Role::Operator.name(),
        by.account.name,
        by.account.uid,
        by.role.name()
    );
    Err(Error::new(ErrorCode::NotAllowed, why)
        .hint("leave --idle-timeout and --idle-action out, or ask an operator to submit it"))
}

/// What an action is called on the command line.
pub fn action_name(action: IdleAction) -> &'static str {
    match action {
        IdleAction::Notify => "notify",
        IdleAction::Park => "park",
        IdleAction::Suspend => "suspend",
        IdleAction::Cancel => "cancel",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::account::UserAccount;

    fn on(after_s: u64, action: IdleAction) -> Rule {
        Rule { after_s, action }
    }

    #[test]
    fn a_jobs_own_rule_comes_before_the_daemons_and_0_is_none() {
        let daemons = on(60, IdleAction::Suspend);
        let own = on(30, IdleAction::Cancel);
        assert_eq!(rule(None, None), None);
        assert_eq!(rule(None, Some(daemons)), Some(daemons));
        assert_eq!(rule(Some(own), Some(daemons)), Some(own));
        let none = on(0, IdleAction::Notify);
        assert_eq!(rule(Some(none), Some(daemons)), None);
        assert_eq!(rule(None, Some(none)), None);
    }

    #[test]
    fn a_milder_rule_than_the_daemons_takes_an_operator() {
        let caller = |role| Caller {
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
        };
        let daemons = Some(on(60, IdleAction::Suspend));
        for (own, allowed) in [
            (on(60, IdleAction::Suspend), true),
            (on(5, IdleAction::Cancel), true),
            (on(61, IdleAction::Cancel), false),
            (on(60, IdleAction::Notify), false),
            (on(0, IdleAction::Cancel), false),
        ] {
            let answer = check(Some(own), daemons, &caller(Role::User));
            assert_eq!(answer.is_ok(), allowed, "{own:?}");
            assert!(check(Some(own), daemons, &caller(Role::Operator)).is_ok());
            assert!(check(Some(own), None, &caller(Role::User)).is_ok());
            if let Err(error) = answer {
                assert_eq!(error.code, ErrorCode::NotAllowed);
                assert!(error.message.contains("suspend after 60 s"), "{error}");
            }
        }
    }
}
