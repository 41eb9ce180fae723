//! The session of the page in the browser: the user, and the verbs that the user's role may use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::daemon::Role;
use crate::version;

/// Answer of `GET /web/session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebSession {
    /// `divvy`.
    pub program: String,
    /// Version of the server that answers.
    pub version: String,
    pub via: WebServer,
    /// Name of the user, as in the user's jobs.
    pub user: String,
    /// Role of the user: `viewer`, `user`, `operator` or `admin`; empty where the daemon does not name it.
    pub role: String,
    /// Whether the server passes on calls that change something.
    pub actions: bool,
    /// Why it does not.
    pub why_no_actions: Option<String>,
    /// Verbs of the command line, and whether the role may use them on jobs of the user.
    pub may: BTreeMap<String, bool>,
    /// The same for jobs of other users.
    pub may_others: BTreeMap<String, bool>,
}

/// The server that the page came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WebServer {
    /// `divvy web`, a client of the daemon.
    Proxy,
    /// The TCP listener of the daemon.
    Listener,
}

/// Verbs that change jobs, or the node for all users, with the least role: for own jobs, and for those of others.
pub const WEB_VERBS: &[(&str, Role, Role)] = &[
    ("cancel", Role::User, Role::Operator),
    ("change", Role::User, Role::Operator),
    ("hold", Role::User, Role::Operator),
    ("move", Role::User, Role::Operator),
    ("release", Role::User, Role::Operator),
    ("requeue", Role::User, Role::Operator),
    ("resize", Role::User, Role::Operator),
    ("resume", Role::User, Role::Operator),
    ("suspend", Role::User, Role::Operator),
    ("submit", Role::User, Role::User),
    ("selftest", Role::User, Role::User),
    ("mig-gc", Role::Operator, Role::Operator),
    ("projects", Role::Admin, Role::Admin),
];

impl WebSession {
    /// The session of a user with this role; without actions where `why_no_actions` says why.
    pub fn new(
        via: WebServer,
        (user, role): (&str, Option<Role>),
        why_no_actions: Option<String>,
    ) -> Self {
        let may = |least: fn(&(&str, Role, Role)) -> Role| {
            let verbs = WEB_VERBS.iter();
            let verbs = verbs.map(|verb| (verb.0.to_owned(), role >= Some(least(verb))));
            verbs.collect()
        };
        let of_role = || {
            let is_viewer = role.is_none_or(|role| role == Role::Viewer);
            is_viewer.then(|| "the role viewer changes nothing".to_owned())
        };
        let why_no_actions = why_no_actions.or_else(of_role);
        Self {
            program: "divvy".to_owned(),
            version: version::program(),
            via,
            user: user.to_owned(),
            role: role.map(Role::name).unwrap_or_default().to_owned(),
            actions: why_no_actions.is_none(),
            why_no_actions,
            may: may(|verb| verb.1),
            may_others: may(|verb| verb.2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_may_no_more_with_others_jobs_than_with_its_own() {
        for role in Role::ALL {
            let session = WebSession::new(WebServer::Proxy, ("ana", Some(role)), None);
            assert_eq!(session.actions, role > Role::Viewer);
            assert_eq!(session.why_no_actions.is_some(), role == Role::Viewer);
            for (verb, others) in &session.may_others {
                assert!(session.may[verb] || !others, "{role:?} {verb}");
            }
            assert_eq!(session.may["cancel"], role >= Role::User);
            assert_eq!(session.may_others["cancel"], role >= Role::Operator);
        }
        let unknown = WebSession::new(WebServer::Proxy, ("ana", None), None);
        assert!(!unknown.actions && !unknown.may.values().any(|may| *may));
        let off = WebSession::new(
            WebServer::Proxy,
            ("ana", Some(Role::Admin)),
            Some("off".to_owned()),
        );
        assert!(!off.actions && off.may["projects"]);
    }
}
