//! Users and groups that the options name, with their keys. Only the machine's user database knows whether they exist.

use std::collections::BTreeSet;

use super::check::Violation;
use super::{Configured, DaemonOptions, PerUser, Principal};

/// A user or a group, and its place in the options.
struct Named {
    principal: Principal,
    path: Vec<String>,
    /// Its element, if the key has a list.
    index: Option<usize>,
}

impl Configured {
    /// The users and groups that the options name.
    pub fn principals(&self) -> BTreeSet<Principal> {
        let named = named(&self.options).into_iter();
        named.map(|named| named.principal).collect()
    }

    /// A warning for each place that names one of these, with the line and column, or the flag. They may exist in a
    /// directory that is away, so this is no reason to refuse the options.
    pub fn warn_of_absent(&self, absent: &BTreeSet<Principal>) -> Vec<String> {
        let named = named(&self.options).into_iter();
        let named = named.filter(|named| absent.contains(&named.principal));
        let warning = |named: Named| {
            let what = match &named.principal {
                Principal::Uid(uid) => format!("no user with the number {uid}"),
                Principal::User(name) => format!("no user {name}"),
                Principal::Group(name) => format!("no group {name}"),
            };
            self.at_its_place(Violation {
                path: named.path,
                index: named.index,
                message: format!("the user database has {what}"),
                hint: String::new(),
            })
        };
        named.map(warning).collect()
    }
}

fn named(options: &DaemonOptions) -> Vec<Named> {
    let mut found = Vec::new();
    if let Some(roles) = &options.roles {
        let lists = roles.lists().map(|(role, list)| (role.name(), list));
        for (key, list) in lists.into_iter().chain([("engine", &*roles.engine)]) {
            found.extend(elements(&["roles", key], list.iter().cloned()));
        }
    }
    for (name, project) in &options.projects {
        let members = project.members.iter().map(|name| Principal::named(name));
        found.extend(elements(&["projects", name.as_str(), "members"], members));
    }
    let rules = &options.project_rules;
    found.extend(entries("default-project", &rules.default_project));
    found.extend(entries("max-gpus", &rules.max_gpus));
    found
}

fn elements(key: &[&str], list: impl Iterator<Item = Principal>) -> Vec<Named> {
    let path: Vec<String> = key.iter().map(|part| (*part).to_owned()).collect();
    let named = |(index, principal)| Named {
        principal,
        path: path.clone(),
        index: Some(index),
    };
    list.enumerate().map(named).collect()
}

fn entries<T>(key: &str, rule: &PerUser<T>) -> Vec<Named> {
    let named = |principal: &Principal| Named {
        path: vec![
            "project-rules".to_owned(),
            key.to_owned(),
            principal.to_string(),
        ],
        principal: principal.clone(),
        index: None,
    };
    rule.principals().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Source, file};
    use super::*;

    #[test]
    fn a_user_or_group_that_does_not_exist_is_a_warning_with_line_and_column() {
        let text = "[roles]\nadmin = [\"ana\", \"anna\", 1004]\nengine = [\"@rays\"]\n\
            [projects.vision]\nquota = 1\nmembers = [\n  \"ana\",\n  \"@visoin\",\n]\n\
            [project-rules]\ndefault-project = { others = \"vision\", \"@visoin\" = \"vision\" }\n\
            max-gpus = { ana = 1, anna = 2 }\n";
        let flags = super::super::DaemonOptions {
            listen: super::super::ListenOptions {
                system: true,
                ..Default::default()
            },
            ..Default::default()
        };
        let source = Source::new(flags, Vec::new(), Some("/c.toml".into()));
        let configured = source.merge(file::parse(text.as_bytes()).unwrap()).unwrap();
        let all: Vec<String> = configured
            .principals()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(all, ["1004", "ana", "anna", "@rays", "@visoin"]);
        let absent = ["anna", "@rays", "@visoin"].map(Principal::named).into();
        assert_eq!(
            configured.warn_of_absent(&absent),
            [
                "/c.toml:2:17: roles.admin: the user database has no user anna",
                "/c.toml:3:11: roles.engine: the user database has no group rays",
                "/c.toml:8:3: projects.vision.members: the user database has no group visoin",
                "/c.toml:11:40: project-rules.default-project.\"@visoin\": the user database has no group visoin",
                "/c.toml:12:23: project-rules.max-gpus.anna: the user database has no user anna",
            ]
        );
        let absent = [Principal::Uid(1004)].into();
        assert_eq!(
            configured.warn_of_absent(&absent),
            ["/c.toml:2:25: roles.admin: the user database has no user with the number 1004"]
        );
        assert_eq!(configured.warn_of_absent(&BTreeSet::new()), [""; 0]);
    }
}
