//! A principal of the configuration file: a user by number or name, or a group, in a list of roles or a rule for users.

use std::fmt;

use serde::de::{Deserializer, Error as DeError, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Principal {
    Uid(u32),
    User(String),
    /// By name or number; with `@` in a text.
    Group(String),
}

impl Principal {
    /// The user `ana`, or the group `@vision`.
    pub fn named(text: &str) -> Self {
        match text.strip_prefix('@') {
            Some(group) => Self::Group(group.to_owned()),
            None => Self::User(text.to_owned()),
        }
    }

    /// Whether the name is empty.
    pub fn is_nameless(&self) -> bool {
        match self {
            Self::Uid(_) => false,
            Self::User(name) | Self::Group(name) => name.trim_start_matches('@').trim().is_empty(),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uid(uid) => uid.fmt(out),
            Self::User(name) => out.write_str(name),
            Self::Group(name) => write!(out, "@{name}"),
        }
    }
}

impl Serialize for Principal {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Uid(uid) => to.serialize_u32(*uid),
            Self::User(_) | Self::Group(_) => to.collect_str(self),
        }
    }
}

impl<'de> Deserialize<'de> for Principal {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyPrincipal)
    }
}

struct AnyPrincipal;

impl Visitor<'_> for AnyPrincipal {
    type Value = Principal;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the name or number of a user, or a group such as \"@vision\"")
    }

    fn visit_i64<E: DeError>(self, number: i64) -> Result<Principal, E> {
        let uid = u32::try_from(number);
        uid.map(Principal::Uid)
            .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_u64<E: DeError>(self, number: u64) -> Result<Principal, E> {
        let uid = u32::try_from(number);
        uid.map(Principal::Uid)
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: DeError>(self, name: &str) -> Result<Principal, E> {
        Ok(Principal::named(name))
    }
}
