//! Roles of users: the table `[roles]` of the configuration file, and the whole of the file `listen.access`.
//!
//! ```toml
//! admin    = ["ana", "@wheel"]      # users by name or number, groups with @
//! operator = [1004]
//! others   = "user"                 # viewer, user, operator, admin, or none: they are refused
//! engine   = ["ray"]                # these hold claims, such as slices, besides admins
//! commands = "owner"                # jobs' commands are visible to owner and operators, or to "all" users
//! containers = "admin"              # the least role that may run any container
//! ```
//! With `containers = { role = "user", as = "submitter", mounts = ["/data", "~"] }`, callers below `admin` run
//! containers as themselves: with their ids and no capabilities, and with mounts below these folders only.

use std::fmt;
use std::path::{Path, PathBuf};

use divvy_core::docker::paths;
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Deserializer, Error as DeError, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::Principal;

/// The role of a caller. Each role includes the permissions of the roles before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// See GPUs, queues and waiting jobs.
    Viewer,
    /// Run jobs, and do with them as they like.
    User,
    /// Read and stop the jobs of all users.
    Operator,
    /// Change GPUs and projects.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Viewer, Self::User, Self::Operator, Self::Admin];

    pub fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::User => "user",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// The roles of users and groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct RoleOptions {
    pub admin: Vec<Principal>,
    pub operator: Vec<Principal>,
    pub user: Vec<Principal>,
    pub viewer: Vec<Principal>,
    /// Users that hold claims besides admins: other schedulers. Each has at least the role user.
    pub engine: Vec<Principal>,
    /// The role of users without one.
    pub others: Others,
    /// The users that see the commands of jobs.
    pub commands: Commands,
    pub containers: Containers,
}

impl Default for RoleOptions {
    fn default() -> Self {
        Self {
            admin: Vec::new(),
            operator: Vec::new(),
            user: Vec::new(),
            viewer: Vec::new(),
            engine: Vec::new(),
            others: Others::User,
            commands: Commands::Owner,
            // The right to name the folders that a container mounts amounts to root's rights.
            containers: Containers::Any(Role::Admin),
        }
    }
}

impl RoleOptions {
    /// The lists by role, the highest first.
    pub fn lists(&self) -> [(Role, &[Principal]); 4] {
        [
            (Role::Admin, self.admin.as_slice()),
            (Role::Operator, &self.operator),
            (Role::User, &self.user),
            (Role::Viewer, &self.viewer),
        ]
    }
}

/// The role of users that no list names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Others {
    None,
    Viewer,
    User,
    Operator,
    Admin,
}

impl Others {
    pub fn role(self) -> Option<Role> {
        match self {
            Self::None => None,
            Self::Viewer => Some(Role::Viewer),
            Self::User => Some(Role::User),
            Self::Operator => Some(Role::Operator),
            Self::Admin => Some(Role::Admin),
        }
    }
}

/// The users that see the commands of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Commands {
    Owner,
    All,
}

/// Roles that may run containers, and the rights of these containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Containers {
    /// From this role on, with the rights of the engine.
    Any(Role),
    AsSubmitter(SubmitterContainers),
}

/// From this role on as the submitter, and for admins with the rights of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubmitterContainers {
    pub role: Role,
    #[serde(rename = "as")]
    pub user: ContainerUser,
    /// Folders below which containers may mount; [`OWN_HOME`] is the home of each user.
    #[serde(default)]
    pub mounts: Vec<PathBuf>,
}

/// The user of an ordinary caller's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContainerUser {
    Submitter,
}

/// The home of the caller, in the list of folders for mounts.
pub const OWN_HOME: &str = "~";

impl Containers {
    /// The folders below which containers that run as their submitters may mount.
    pub fn folders(&self) -> &[PathBuf] {
        match self {
            Self::Any(_) => &[],
            Self::AsSubmitter(table) => &table.mounts,
        }
    }
}

/// Checks a folder for mounts: absolute, plain, and none with the container engine, devices or other users' processes.
///
/// # Errors
/// Why containers of ordinary users may not mount below it.
pub fn check_mount_folder(folder: &Path) -> Result<(), String> {
    let name = folder.display();
    if folder == Path::new(OWN_HOME) {
        return Ok(());
    }
    if !folder.is_absolute() || paths::plain(folder) != folder {
        return Err(format!("`mounts` has {name:?}: not a plain absolute path"));
    }
    paths::source(folder, &[]).map_err(|kept| format!("`mounts` has {name}: {}", kept.why))
}

impl<'de> Deserialize<'de> for Containers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyContainers)
    }
}

struct AnyContainers;

impl<'de> Visitor<'de> for AnyContainers {
    type Value = Containers;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(
            "a role, or a table such as { role = \"user\", as = \"submitter\", mounts = [\"/data\", \"~\"] }",
        )
    }

    fn visit_str<E: DeError>(self, role: &str) -> Result<Containers, E> {
        Role::deserialize(StrDeserializer::new(role)).map(Containers::Any)
    }

    fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Containers, A::Error> {
        let table = MapAccessDeserializer::new(table);
        SubmitterContainers::deserialize(table).map(Containers::AsSubmitter)
    }
}
