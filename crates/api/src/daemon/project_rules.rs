//! Rules of projects and users: the default project, whether a job needs one, and the most GPUs of each user.
//!
//! ```toml
//! [project-rules]
//! require-project = true
//! default-project = { others = "lab", ana = "vision", "@staff" = "nlp" }
//! max-gpus = { others = 2, ana = 4, "@staff" = 8.5, 1004 = "none" }   # or max-gpus = 2
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use divvy_core::{Gpus, ProjectName};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Principal;

/// The key of all users without an entry of their own.
const OTHERS: &str = "others";

/// The number of entries of one rule, which bounds the time of a look-up. More than a site has by hand; a larger table
/// would slow each plan.
const MOST_ENTRIES: usize = 10_000;

/// Rules for submissions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct ProjectRules {
    /// Refuse a job without a project.
    pub require_project: bool,
    /// The project of jobs that name none.
    #[serde(skip_serializing_if = "PerUser::is_empty")]
    pub default_project: PerUser<ProjectName>,
    /// The most GPUs that the jobs of one user hold together.
    #[serde(skip_serializing_if = "PerUser::is_empty")]
    pub max_gpus: PerUser<GpuLimit>,
}

/// The most GPUs of a user: `2`, `0.5`, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuLimit {
    Most(Gpus),
    /// No limit; the largest of all.
    None,
}

/// The user of a job, for a rule.
#[derive(Clone, Debug)]
pub struct UserKey<'a> {
    pub name: &'a str,
    /// `None` for a user without an account on the machine.
    pub uid: Option<u32>,
    /// Numbers and names of the user's groups.
    pub groups: Vec<(u32, &'a str)>,
}

/// A value for users, for members of groups, and for all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerUser<T> {
    others: Option<T>,
    entries: BTreeMap<Principal, T>,
}

impl<T> Default for PerUser<T> {
    fn default() -> Self {
        Self {
            others: None,
            entries: BTreeMap::new(),
        }
    }
}

/// Why a text is no entry of a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("{0:?}: not a user, a user's number, or a group with @")]
    Principal(String),
    #[error("{0} is there twice")]
    Twice(String),
    #[error("more than {MOST_ENTRIES} entries")]
    TooMany,
}

impl<T> PerUser<T> {
    /// Whether the rule has no value for any user.
    pub fn is_empty(&self) -> bool {
        self.others.is_none() && self.entries.is_empty()
    }

    /// Whether there is an entry for a user or a group.
    pub fn has_exceptions(&self) -> bool {
        !self.entries.is_empty()
    }

    /// Whether an entry is for a group, so that a user's groups matter.
    pub fn has_groups(&self) -> bool {
        let mut keys = self.entries.keys();
        keys.any(|key| matches!(key, Principal::Group(_)))
    }

    /// The users and groups with an entry.
    pub fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.entries.keys()
    }

    /// The value for a user: that of the user, by number or name; otherwise the largest one of the user's groups;
    /// otherwise that of all others.
    pub fn largest(&self, user: &UserKey<'_>) -> Option<&T>
    where
        T: Ord,
    {
        self.find(user, |of_groups| of_groups.max())
    }

    /// The same, with the value of the first of the user's groups that has one. The primary group comes first.
    pub fn first(&self, user: &UserKey<'_>) -> Option<&T> {
        self.find(user, |of_groups| of_groups.next())
    }

    fn find<'s>(
        &'s self,
        user: &UserKey<'_>,
        choose: impl FnOnce(&mut dyn Iterator<Item = &'s T>) -> Option<&'s T>,
    ) -> Option<&'s T> {
        let by_uid = user
            .uid
            .and_then(|uid| self.entries.get(&Principal::Uid(uid)));
        let own = by_uid.or_else(|| self.entries.get(&Principal::User(user.name.to_owned())));
        let of_groups = || {
            let groups = user.groups.iter().filter(|_| self.has_groups());
            let found = groups.flat_map(|(gid, name)| {
                let keys = [(*name).to_owned(), gid.to_string()].map(Principal::Group);
                keys.map(|key| self.entries.get(&key))
            });
            choose(&mut found.flatten())
        };
        own.or_else(of_groups).or(self.others.as_ref())
    }

    /// Adds an entry: `key` as in the file.
    ///
    /// # Errors
    /// [`RuleError`] for a key that names nothing, or a second value of one key.
    pub fn insert(&mut self, key: &str, value: T) -> Result<(), RuleError> {
        if self.entries.len() >= MOST_ENTRIES {
            return Err(RuleError::TooMany);
        }
        let before = match key {
            OTHERS => self.others.replace(value),
            key => self.entries.insert(principal(key)?, value),
        };
        match before {
            Some(_) => Err(RuleError::Twice(key.to_owned())),
            None => Ok(()),
        }
    }
}

/// The key of a table. Keys of TOML are texts, so a number is one as a text.
fn principal(text: &str) -> Result<Principal, RuleError> {
    if !divvy_core::is_account_name(text) {
        return Err(RuleError::Principal(text.to_owned()));
    }
    Ok(text
        .parse()
        .map_or_else(|_| Principal::named(text), Principal::Uid))
}

impl GpuLimit {
    /// The limit; `None` where there is none.
    pub fn gpus(self) -> Option<Gpus> {
        match self {
            Self::Most(gpus) => Some(gpus),
            Self::None => None,
        }
    }
}

impl FromStr for GpuLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            _ => text
                .parse()
                .map(Self::Most)
                .map_err(|error: divvy_core::units::GpusError| {
                    format!("{error}; {}", error.hint())
                }),
        }
    }
}

impl fmt::Display for GpuLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Most(gpus) => gpus.fmt(out),
            Self::None => out.write_str("none"),
        }
    }
}

impl Serialize for GpuLimit {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A number or a text.
impl<'de> Deserialize<'de> for GpuLimit {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Limit;
        impl Visitor<'_> for Limit {
            type Value = GpuLimit;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a number of GPUs such as 2 or 0.5, or \"none\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<GpuLimit, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<GpuLimit, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<GpuLimit, E> {
                self.visit_str(&number.to_string())
            }

            // The shortest text of a float is the text that the file has, up to zeros at its end.
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<GpuLimit, E> {
                self.visit_str(&number.to_string())
            }
        }
        from.deserialize_any(Limit)
    }
}

impl<T: Serialize> Serialize for PerUser<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if let (Some(others), true) = (&self.others, self.entries.is_empty()) {
            return others.serialize(to);
        }
        let mut map = to.serialize_map(None)?;
        if let Some(others) = &self.others {
            map.serialize_entry(OTHERS, others)?;
        }
        for (key, value) in &self.entries {
            map.serialize_entry(&key.to_string(), value)?;
        }
        map.end()
    }
}

/// A value alone, or a table.
impl<'de, T: Deserialize<'de>> Deserialize<'de> for PerUser<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Rule<T>(std::marker::PhantomData<T>);

        impl<T> Rule<T> {
            fn alone(value: T) -> PerUser<T> {
                PerUser {
                    others: Some(value),
                    entries: BTreeMap::new(),
                }
            }
        }

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Rule<T> {
            type Value = PerUser<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a value, or a table of users, @groups and others")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PerUser<T>, E> {
                T::deserialize(serde::de::value::StrDeserializer::new(text)).map(Self::alone)
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<PerUser<T>, E> {
                T::deserialize(serde::de::value::I64Deserializer::new(number)).map(Self::alone)
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<PerUser<T>, E> {
                T::deserialize(serde::de::value::F64Deserializer::new(number)).map(Self::alone)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PerUser<T>, A::Error> {
                let entries = BTreeMap::<String, T>::deserialize(MapAccessDeserializer::new(map))?;
                let mut rule = PerUser::default();
                for (key, value) in entries {
                    rule.insert(&key, value).map_err(A::Error::custom)?;
                }
                Ok(rule)
            }
        }
        from.deserialize_any(Rule(std::marker::PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Result<ProjectRules, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    fn key<'a>(name: &'a str, uid: Option<u32>, groups: &[&'a str]) -> UserKey<'a> {
        UserKey {
            name,
            uid,
            groups: (100..).zip(groups.iter().copied()).collect(),
        }
    }

    fn limit(rules: &ProjectRules, name: &str, uid: u32, groups: &[&str]) -> String {
        let most = rules.max_gpus.largest(&key(name, Some(uid), groups));
        most.map_or_else(String::new, GpuLimit::to_string)
    }

    #[test]
    fn a_value_alone_is_for_all_users_and_a_table_has_exceptions() {
        for (value, shown) in [
            ("2", "2"),
            ("0.5", "0.5"),
            ("\"1.5\"", "1.5"),
            ("\"none\"", "none"),
        ] {
            let rules = rules(&format!("max-gpus = {value}")).unwrap();
            assert_eq!(limit(&rules, "ana", 1000, &[]), shown);
        }
        let text = "max-gpus = { others = 2, ana = 4, 1004 = \"none\", \"@staff\" = 8.5, \"@101\" = 9, max = 1 }";
        let rules = rules(text).unwrap();
        for (name, uid, groups, most) in [
            ("bob", 1000, &[][..], "2"),
            ("ana", 1001, &["staff"], "4"),
            ("lee", 1004, &["staff"], "none"),
            ("joe", 1005, &["staff"], "8.5"),
            ("joe", 1005, &["users", "x"], "9"),
            ("joe", 1005, &["staff", "x"], "9"),
            ("max", 1006, &["staff"], "1"),
            ("@staff", 1007, &[], "2"),
            ("others", 1008, &[], "2"),
        ] {
            assert_eq!(limit(&rules, name, uid, groups), most, "{name} {groups:?}");
        }
        assert!(rules.max_gpus.has_groups() && !rules.default_project.has_groups());
        let file = toml::to_string(&rules).unwrap();
        assert_eq!(
            toml::from_str::<ProjectRules>(&file).unwrap(),
            rules,
            "{file}"
        );
    }

    #[test]
    fn the_default_project_is_that_of_the_first_group_that_has_one() {
        let text = "default-project = { ana = 'own', '@b' = 'x', '@a' = 'y', others = 'z' }";
        let rules = rules(text).unwrap();
        let of = |name: &str, groups: &[&str]| {
            let project = rules.default_project.first(&key(name, None, groups));
            project.unwrap().to_string()
        };
        assert_eq!(of("ana", &["a"]), "own");
        assert_eq!(of("bob", &["c", "b", "a"]), "x");
        assert_eq!(of("bob", &["a", "b"]), "y");
        assert_eq!(of("bob", &["c"]), "z");
    }

    #[test]
    fn what_is_no_rule_is_refused_with_what_it_should_be() {
        for (wrong, why) in [
            ("max-gpus = -1", "not a number of GPUs"),
            ("max-gpus = 0.0005", "thousandth"),
            ("max-gpus = true", "a value, or a table"),
            ("max-gpus = [1]", "a value, or a table"),
            ("max-gpus = { ana = true }", "a number of GPUs such as 2"),
            ("max-gpus = { \"a b\" = 1 }", "not a user"),
            ("max-gpus = { \"@\" = 1 }", "not a user"),
            ("default-project = 3", "project"),
            ("default-project = \"\"", "not a valid name"),
            ("require-projects = true", "unknown field"),
        ] {
            let error = rules(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_rule_has_a_bounded_number_of_entries() {
        let mut rule = PerUser::default();
        for nth in 0..MOST_ENTRIES {
            rule.insert(&format!("u{nth}"), GpuLimit::None).unwrap();
        }
        let error = rule.insert("last", GpuLimit::None).unwrap_err();
        assert_eq!(error, RuleError::TooMany);
        let mut rule = PerUser::default();
        rule.insert("ana", GpuLimit::None).unwrap();
        let error = rule.insert("ana", GpuLimit::None).unwrap_err();
        assert_eq!(error, RuleError::Twice("ana".into()));
    }
}
