//! Submission on behalf of a user: a front end serves users that the machine's user database does not know.

use divvy_api::v1::{Error, ErrorCode};

use crate::auth::{Caller, Role};
use crate::model::validate::usage;

/// The user that a job shows: the one that the submission names, else the caller.
///
/// # Errors
/// [`ErrorCode::NotAllowed`] for a caller below [`Role::Operator`], [`ErrorCode::Usage`] for text that is no user name.
pub(in crate::controller) fn user(named: Option<String>, by: &Caller) -> Result<String, Error> {
    let Some(user) = named else {
        return Ok(by.account.name.clone());
    };
    if by.role < Role::Operator {
        let why = format!(
            "submitting on behalf of {user:?} requires the role {}, but {} (uid {}) has the role {}",
            Role::Operator.name(),
            by.account.name,
            by.account.uid,
            by.role.name()
        );
        return Err(Error::new(ErrorCode::NotAllowed, why)
            .hint("leave `user` out to submit the job as yourself"));
    }
    if user.is_empty() || user.trim() != user || user.contains(char::is_control) {
        return Err(usage(format!("{user:?}: not a valid name of a user"))
            .hint("use one line without blanks at its ends"));
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::account::UserAccount;

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

    #[test]
    fn an_operator_names_the_user_and_others_are_themselves() {
        for role in Role::ALL {
            assert_eq!(user(None, &caller(role)).unwrap(), "ana");
            let named = user(Some("Bob Example".into()), &caller(role));
            match role {
                Role::Operator | Role::Admin => assert_eq!(named.unwrap(), "Bob Example"),
                _ => assert_eq!(named.unwrap_err().code, ErrorCode::NotAllowed, "{role:?}"),
            }
        }
        for wrong in ["", " ", "a ", "a\nb", "\u{1b}[31mroot"] {
            let error = user(Some(wrong.into()), &caller(Role::Admin)).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{wrong:?}");
        }
    }
}
