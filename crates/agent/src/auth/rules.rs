//! The roles file: TOML that gives roles to users and groups, read once when the daemon starts.
//!
//! ```toml
//! admin    = ["ana", "@wheel"]      # users by name or number, groups with @
//! operator = [1004]
//! others   = "user"                 # viewer, user, operator, admin, or none: they are refused
//! commands = "owner"                # jobs' commands are visible to owner and operators, or to "all" users
//! containers = "admin"              # the least role that may run any container
//! ```
//! With `containers = { role = "user", as = "submitter", mounts = ["/data", "~"] }`, callers below `admin` run
//! containers as themselves: with their ids and no capabilities, and with mounts below these folders only.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use divvy_api::v1::{Error, ErrorCode};
use divvy_core::docker::paths;
use serde::Deserialize;

use super::{Caller, Role};
use crate::host::account::UserAccount;

/// The roles of users and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The daemon's own user; with root an admin, regardless of the file.
    me: u32,
    is_private: bool,
    file: File,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    admin: Vec<Principal>,
    operator: Vec<Principal>,
    user: Vec<Principal>,
    viewer: Vec<Principal>,
    others: Others,
    commands: Commands,
    containers: Containers,
}

impl Default for File {
    fn default() -> Self {
        Self {
            admin: Vec::new(),
            operator: Vec::new(),
            user: Vec::new(),
            viewer: Vec::new(),
            others: Others::User,
            commands: Commands::Owner,
            // The right to name the folders that a container mounts amounts to root's rights.
            containers: Containers::Any(Role::Admin),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Others {
    None,
    Viewer,
    User,
    Operator,
    Admin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Commands {
    Owner,
    All,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Principal {
    Uid(u32),
    /// A user, or with `@` a group.
    Name(String),
}

impl Principal {
    fn is(&self, account: &UserAccount) -> bool {
        match self {
            Self::Uid(uid) => account.uid == *uid,
            Self::Name(name) => match name.strip_prefix('@') {
                Some(group) => account
                    .groups
                    .iter()
                    .any(|one| one.name == group || one.gid.to_string() == group),
                None => account.name == *name,
            },
        }
    }
}

/// Roles that may run containers, and the rights of these containers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "`containers` is a role, or a table: { role = \"user\", as = \"submitter\", mounts = [\"/data\", \"~\"] }"
)]
enum Containers {
    /// From this role on, with the rights of the engine.
    Any(Role),
    AsSubmitter(SubmitterContainers),
}

/// From this role on as the submitter, and for admins with the rights of the engine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubmitterContainers {
    role: Role,
    #[serde(rename = "as")]
    user: ContainerUser,
    /// Folders below which containers may mount; [`OWN_HOME`] is the home of each user.
    #[serde(default)]
    mounts: Vec<PathBuf>,
}

/// The user of an ordinary caller's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ContainerUser {
    Submitter,
}

/// The home of the caller, in the list of folders for mounts.
pub const OWN_HOME: &str = "~";

/// What a caller's containers may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerAccess<'a> {
    /// What the container engine may do, apart from leaving the slice.
    Any,
    AsSubmitter {
        /// Absolute folders and [`OWN_HOME`].
        folders: &'a [PathBuf],
    },
}

/// Why the file gives no roles.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} belongs to uid {owner}, but the daemon runs as uid {me}")]
    Owner { path: PathBuf, owner: u32, me: u32 },
    #[error("{path} is writable by other users (mode {mode:o})")]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} is not a valid file of roles: {why}")]
    Wrong { path: PathBuf, why: String },
}

impl From<&RulesError> for Error {
    fn from(error: &RulesError) -> Self {
        let hint = match error {
            RulesError::Read { .. } => {
                "give --access the path of a readable file, or leave it out".to_owned()
            }
            RulesError::Owner { path, .. } => format!(
                "change its owner to root or to the daemon's user: chown root {}",
                path.display()
            ),
            RulesError::Open { path, .. } => format!(
                "chmod go-w {}: users who can write the file can make themselves admins",
                path.display()
            ),
            RulesError::Wrong { .. } => {
                "the keys are admin, operator, user and viewer (lists of names, numbers and @groups), others, commands and containers".to_owned()
            }
        };
        Self::new(ErrorCode::Usage, crate::host::error::error_chain(error)).hint(hint)
    }
}

impl Rules {
    /// Of a daemon that serves its own user.
    pub fn private(me: u32) -> Self {
        Self {
            me,
            is_private: true,
            file: File {
                others: Others::None,
                commands: Commands::All,
                ..File::default()
            },
        }
    }

    /// The rules of a daemon that serves every user and has no file.
    pub fn open(me: u32) -> Self {
        Self {
            me,
            is_private: false,
            file: File::default(),
        }
    }

    /// The rules of a daemon that serves every user by this file.
    ///
    /// # Errors
    /// When it cannot be read, is not the daemon's own, others may write it, or it is not understood.
    pub fn read(path: &Path, me: u32) -> Result<Self, RulesError> {
        let failed = |source| RulesError::Read {
            path: path.to_owned(),
            source,
        };
        let file = fs::File::open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if meta.uid() != me && meta.uid() != 0 {
            return Err(RulesError::Owner {
                path: path.to_owned(),
                owner: meta.uid(),
                me,
            });
        }
        if meta.mode() & 0o022 != 0 {
            return Err(RulesError::Open {
                path: path.to_owned(),
                mode: meta.mode() & 0o7777,
            });
        }
        let text = io::read_to_string(file).map_err(failed)?;
        Self::parse(&text, me).map_err(|why| RulesError::Wrong {
            path: path.to_owned(),
            why,
        })
    }

    fn parse(text: &str, me: u32) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        let all = [&file.admin, &file.operator, &file.user, &file.viewer];
        for who in all.into_iter().flatten() {
            if let Principal::Name(name) = who
                && name.trim_start_matches('@').is_empty()
            {
                return Err(format!("{name:?}: not a user or a group"));
            }
        }
        for folder in file.containers.folders() {
            check_mount_folder(folder)?;
        }
        Ok(Self {
            me,
            is_private: false,
            file,
        })
    }

    /// Whether it serves its own user alone.
    pub fn is_private(&self) -> bool {
        self.is_private
    }

    /// The highest role of the account; `None` without one.
    pub fn role(&self, account: &UserAccount) -> Option<Role> {
        if account.uid == self.me || account.uid == 0 {
            return Some(Role::Admin);
        }
        let File {
            admin,
            operator,
            user,
            viewer,
            others,
            ..
        } = &self.file;
        let lists = [
            (admin, Role::Admin),
            (operator, Role::Operator),
            (user, Role::User),
            (viewer, Role::Viewer),
        ];
        let named = lists
            .into_iter()
            .find(|(list, _)| list.iter().any(|who| who.is(account)));
        match (named, others) {
            (Some((_, role)), _) => Some(role),
            (None, Others::None) => None,
            (None, Others::Viewer) => Some(Role::Viewer),
            (None, Others::User) => Some(Role::User),
            (None, Others::Operator) => Some(Role::Operator),
            (None, Others::Admin) => Some(Role::Admin),
        }
    }

    /// What they may do here.
    ///
    /// # Errors
    /// [`ErrorCode::NotAllowed`] for an account without a role.
    pub fn caller(&self, account: UserAccount) -> Result<Caller, Error> {
        let Some(role) = self.role(&account) else {
            let why = format!(
                "this daemon serves only uid {}, but you are uid {}",
                self.me, account.uid
            );
            return Err(
                Error::new(ErrorCode::NotAllowed, why).hint("start your own daemon: divvy daemon")
            );
        };
        Ok(Caller {
            account,
            role,
            can_see_all: self.file.commands == Commands::All,
        })
    }

    /// What their containers may do.
    ///
    /// # Errors
    /// [`ErrorCode::NotAllowed`] for a caller who may run none.
    pub fn container_access(&self, caller: &Caller) -> Result<ContainerAccess<'_>, Error> {
        let (needed, why) = match &self.file.containers {
            _ if caller.role >= Role::Admin => return Ok(ContainerAccess::Any),
            Containers::Any(needed) if caller.role >= *needed => return Ok(ContainerAccess::Any),
            Containers::AsSubmitter(table) if caller.role >= table.role => {
                return Ok(ContainerAccess::AsSubmitter {
                    folders: &table.mounts,
                });
            }
            Containers::Any(needed) => (
                needed,
                ", because a container can give its user root's rights",
            ),
            Containers::AsSubmitter(table) => (&table.role, ""),
        };
        let why = format!(
            "running containers requires the role {} here{why}",
            needed.name()
        );
        Err(Error::new(ErrorCode::NotAllowed, why)
            .hint("submit the job without an image; an admin can change `containers` in the daemon's --access file"))
    }

    /// The folders below which containers that run as their submitters may mount.
    pub fn mount_folders(&self) -> &[PathBuf] {
        self.file.containers.folders()
    }
}

impl Containers {
    fn folders(&self) -> &[PathBuf] {
        match self {
            Self::Any(_) => &[],
            Self::AsSubmitter(table) => &table.mounts,
        }
    }
}

/// A folder for mounts is absolute, plain, and none that holds the container engine, devices or other users' processes.
fn check_mount_folder(folder: &Path) -> Result<(), String> {
    let name = folder.display();
    if folder == Path::new(OWN_HOME) {
        return Ok(());
    }
    if !folder.is_absolute() || paths::plain(folder) != folder {
        return Err(format!(
            "`mounts` has {name:?}: write an absolute path, or {OWN_HOME:?} for the home of each user"
        ));
    }
    paths::source(folder, &[]).map_err(|kept| format!("`mounts` has {name}: {}", kept.why))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::host::account::Group;

    fn account(uid: u32, name: &str, group: (u32, &str)) -> UserAccount {
        UserAccount {
            uid,
            gid: group.0,
            name: name.into(),
            groups: vec![Group {
                gid: group.0,
                name: group.1.into(),
            }],
            home: None,
        }
    }

    #[test]
    fn the_highest_role_counts_and_root_and_the_daemon_are_admins() {
        let text = r#"
            admin = ["ana", "@wheel"]
            operator = [1004, "@2000"]
            viewer = ["@students", "ana"]
            others = "none"
        "#;
        let rules = Rules::parse(text, 990).unwrap();
        for (account, role) in [
            (account(0, "root", (0, "root")), Some(Role::Admin)),
            (account(990, "divvy", (990, "divvy")), Some(Role::Admin)),
            (account(1001, "ana", (100, "users")), Some(Role::Admin)),
            (account(1002, "kim", (10, "wheel")), Some(Role::Admin)),
            (account(1004, "lee", (100, "users")), Some(Role::Operator)),
            (account(1005, "joe", (2000, "ops")), Some(Role::Operator)),
            (account(1006, "max", (300, "students")), Some(Role::Viewer)),
            // A user with the name of a group is not that group.
            (account(1007, "wheel", (100, "users")), None),
            (account(1008, "@wheel", (100, "users")), None),
        ] {
            assert_eq!(rules.role(&account), role, "{account:?}");
        }
    }

    #[test]
    fn without_a_file_others_are_users_and_on_a_private_daemon_nobody() {
        let other = account(1001, "ana", (100, "users"));
        assert_eq!(Rules::open(0).role(&other), Some(Role::User));
        let refused = Rules::private(1000).caller(other.clone()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotAllowed);
        let caller = Rules::open(0).caller(other).unwrap();
        assert!(!caller.can_see(1002));
        assert!(Rules::open(0).container_access(&caller).is_err());
        let rules = Rules::parse("containers = \"user\"\ncommands = \"all\"", 0).unwrap();
        let caller = rules.caller(caller.account).unwrap();
        assert!(caller.can_see(1002));
        assert_eq!(
            rules.container_access(&caller).unwrap(),
            ContainerAccess::Any
        );
    }

    #[test]
    fn containers_of_ordinary_users_run_as_their_submitters_and_those_of_admins_as_before() {
        let text = r#"
            admin = ["ana"]
            viewer = ["max"]
            containers = { role = "user", as = "submitter", mounts = ["/data", "~"] }
        "#;
        let rules = Rules::parse(text, 0).unwrap();
        let access = |name: &str| {
            let caller = rules.caller(account(1001, name, (100, "users"))).unwrap();
            rules.container_access(&caller)
        };
        let folders = ["/data", "~"].map(PathBuf::from);
        assert_eq!(access("ana").unwrap(), ContainerAccess::Any);
        assert_eq!(
            access("lee").unwrap(),
            ContainerAccess::AsSubmitter { folders: &folders }
        );
        assert_eq!(rules.mount_folders(), folders);
        let refused = access("max").unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotAllowed);
        assert!(refused.message.contains("role user"), "{}", refused.message);
    }

    #[test]
    fn a_table_of_containers_is_whole_and_opens_no_folder_of_the_engine() {
        let table = |words: &str| Rules::parse(&format!("containers = {{ {words} }}"), 0);
        assert!(table("role = \"user\", as = \"submitter\"").is_ok());
        for wrong in [
            "role = \"user\"",
            "role = \"user\", mounts = [\"/data\"]",
            "as = \"submitter\"",
            "role = \"user\", as = \"root\"",
            "role = \"user\", as = \"submitter\", mount = [\"/data\"]",
        ] {
            let why = table(wrong).unwrap_err();
            assert!(why.contains("submitter"), "{wrong}: {why}");
        }
        for folder in [
            "data",
            "./data",
            "/data/../etc",
            "~/data",
            "/",
            "/run",
            "/var",
            "/dev/shm",
            "/var/lib/docker",
            "/proc",
        ] {
            let why = table(&format!(
                "role = \"user\", as = \"submitter\", mounts = [\"{folder}\"]"
            ));
            assert!(why.unwrap_err().contains("`mounts`"), "{folder}");
        }
    }

    #[test]
    fn a_file_that_is_not_understood_or_not_safe_is_refused() {
        for wrong in [
            "admins = [\"ana\"]",
            "admin = \"ana\"",
            "others = \"everyone\"",
            "admin = [\"\"]",
            "admin = [\"@\"]",
            "admin = [-1]",
            "containers = \"none\"",
        ] {
            assert!(Rules::parse(wrong, 0).is_err(), "{wrong}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        let me = rustix::process::geteuid().as_raw();
        assert!(matches!(
            Rules::read(&path, me),
            Err(RulesError::Read { .. })
        ));
        fs::write(&path, "others = \"viewer\"").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(Rules::read(&path, me).is_ok());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o664)).unwrap();
        let error = Rules::read(&path, me).unwrap_err();
        assert!(matches!(error, RulesError::Open { .. }));
        let told = Error::from(&error);
        assert_eq!(told.code, ErrorCode::Usage);
        assert!(told.message.contains("access.toml") && told.hint.is_some());
    }
}
