//! Access checks (RBAC): whether the current user may do what the other commands do.

use super::facts::Right;
use super::row::{Row, Status};
use crate::base::error_output::few;

const CHECK: &str = "caller.rights";
const READ: &str = "SelfSubjectAccessReviews for the commands admin, submit, doctor and the lists";

pub fn row(access: &Result<Vec<(Right, bool)>, String>) -> Row {
    let rights = match access {
        Ok(rights) => rights,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let denied: Vec<String> = rights
        .iter()
        .filter(|(_, allowed)| !allowed)
        .map(|(right, _)| {
            let part = match right.subresource {
                "" => String::new(),
                part => format!("/{part}"),
            };
            let Right {
                verb,
                resource,
                needed_by,
                ..
            } = right;
            format!("{verb} {resource}{part} ({needed_by})")
        })
        .collect();
    if denied.is_empty() {
        Row::ok(CHECK, READ, "you have the rights for all commands")
    } else {
        Row::ok(CHECK, READ, format!("missing rights: {}", few(&denied))).but(
            Status::Warn,
            "the named commands fail with exit code 4",
            "if you need these commands, ask the cluster's administrator for the rights",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_that_is_missing_is_named_with_the_command_that_needs_it() {
        let right = |verb| Right {
            verb,
            group: "",
            resource: "nodes",
            subresource: "",
            needed_by: "admin set",
        };
        let row = super::row(&Ok(vec![(right("list"), true), (right("patch"), false)]));
        assert_eq!(row.status, Status::Warn);
        assert_eq!(row.found, "missing rights: patch nodes (admin set)");
        assert_eq!(
            super::row(&Ok(vec![(right("list"), true)])).status,
            Status::Ok
        );
        assert_eq!(super::row(&Err("no".to_owned())).status, Status::Unknown);
    }
}
