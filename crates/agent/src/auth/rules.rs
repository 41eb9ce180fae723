//! The rules for callers: their roles, from the table `[roles]` of the configuration file or from the file `listen.access` with
//! the same keys.

use std::path::{Path, PathBuf};

use divvy_api::daemon::file::parse_roles;
use divvy_api::daemon::source::read_named;
use divvy_api::daemon::{
    Commands, ConfigError, Containers, DaemonOptions, Others, Principal, Role, RoleOptions,
};
use divvy_api::v1::{Error, ErrorCode};

use super::Caller;
use crate::host::account::UserAccount;

/// The roles of users and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The daemon's own user; with root an admin, regardless of the file.
    me: u32,
    is_private: bool,
    roles: RoleOptions,
}

/// What a caller's containers may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerAccess<'a> {
    /// What the container engine may do, apart from leaving the slice.
    Any,
    AsSubmitter {
        /// Absolute folders and [`divvy_api::daemon::OWN_HOME`].
        folders: &'a [PathBuf],
    },
}

/// Whether the principal of a list is this account, or a group of it.
fn is(principal: &Principal, account: &UserAccount) -> bool {
    match principal {
        Principal::Uid(uid) => account.uid == *uid,
        Principal::User(name) => account.name == *name,
        Principal::Group(group) => account
            .groups
            .iter()
            .any(|one| one.name == *group || one.gid.to_string() == *group),
    }
}

impl Rules {
    /// Of a daemon that serves its own user.
    pub fn private(me: u32) -> Self {
        Self {
            me,
            is_private: true,
            roles: RoleOptions {
                others: Others::None,
                commands: Commands::All,
                ..RoleOptions::default()
            },
        }
    }

    /// The rules of a daemon with these options.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`] for a file `listen.access` that cannot be read, other users may write, or that is wrong.
    pub fn of(options: &DaemonOptions, me: u32) -> Result<Self, Error> {
        let listen = &options.listen;
        match (&listen.access, &options.roles) {
            _ if !listen.system => Ok(Self::private(me)),
            (Some(path), _) => Self::read(path, me).map_err(|error| Error::from(&error)),
            (None, Some(roles)) => Ok(Self::with(roles.clone(), me)),
            (None, None) => Ok(Self::with(RoleOptions::default(), me)),
        }
    }

    /// The rules of a daemon that serves every user by these roles.
    pub fn with(roles: RoleOptions, me: u32) -> Self {
        Self {
            me,
            is_private: false,
            roles,
        }
    }

    /// The rules of a daemon that serves every user by this file.
    ///
    /// # Errors
    /// When it cannot be read, is not the daemon's own, others may write it, or it is wrong.
    pub fn read(path: &Path, me: u32) -> Result<Self, ConfigError> {
        let text = read_named(path, true)?;
        let roles = parse_roles(&text).map_err(|problems| ConfigError {
            path: path.to_owned(),
            code: ErrorCode::Usage,
            problems,
        })?;
        Ok(Self::with(roles, me))
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
        let lists = self.roles.lists();
        let named = lists
            .into_iter()
            .find(|(_, list)| list.iter().any(|who| is(who, account)));
        let role = match named {
            Some((role, _)) => Some(role),
            None => self.roles.others.role(),
        };
        // An engine releases what it holds, which a viewer cannot.
        let least = self.is_engine(account).then_some(Role::User);
        role.max(least)
    }

    fn is_engine(&self, account: &UserAccount) -> bool {
        self.roles.engine.iter().any(|who| is(who, account))
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
            is_engine: self.is_engine(&account),
            account,
            role,
            can_see_all: self.roles.commands == Commands::All,
        })
    }

    /// What their containers may do.
    ///
    /// # Errors
    /// [`ErrorCode::NotAllowed`] for a caller without the right to run one.
    pub fn container_access(&self, caller: &Caller) -> Result<ContainerAccess<'_>, Error> {
        let (needed, why) = match &self.roles.containers {
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
            .hint("submit the job without an image; an admin can change `containers` in the table [roles] of the daemon's configuration file"))
    }

    /// The folders below which containers that run as their submitters may mount.
    pub fn mount_folders(&self) -> &[PathBuf] {
        self.roles.containers.folders()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::host::account::Group;

    fn parsed(text: &str, me: u32) -> Option<Rules> {
        let roles = parse_roles(text.as_bytes()).ok()?;
        Some(Rules::with(roles, me))
    }

    fn open() -> Rules {
        Rules::with(RoleOptions::default(), 0)
    }

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
        let rules = parsed(text, 990).unwrap();
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
    fn an_engine_is_a_user_at_least_and_holds_claims() {
        let text = "engine = [\"ray\", \"@hubs\"]\noperator = [\"ray\"]\nothers = \"none\"";
        let rules = parsed(text, 0).unwrap();
        for (account, role) in [
            (account(1001, "ray", (100, "users")), Role::Operator),
            (account(1002, "hub", (400, "hubs")), Role::User),
        ] {
            let caller = rules.caller(account).unwrap();
            assert_eq!((caller.role, caller.is_engine), (role, true));
        }
        let other = account(1003, "ana", (100, "users"));
        assert!(rules.caller(other.clone()).is_err());
        assert!(!open().caller(other).unwrap().is_engine);
    }

    #[test]
    fn without_a_file_others_are_users_and_on_a_private_daemon_nobody() {
        let other = account(1001, "ana", (100, "users"));
        assert_eq!(open().role(&other), Some(Role::User));
        let refused = Rules::private(1000).caller(other.clone()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotAllowed);
        let caller = open().caller(other).unwrap();
        assert!(!caller.can_see(1002));
        assert!(open().container_access(&caller).is_err());
        let rules = parsed("containers = \"user\"\ncommands = \"all\"", 0).unwrap();
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
        let rules = parsed(text, 0).unwrap();
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
        let table = |words: &str| {
            let text = format!("containers = {{ {words} }}");
            let roles = parse_roles(text.as_bytes()).map_err(|problems| format!("{problems:?}"));
            roles.map(|roles| Rules::with(roles, 0))
        };
        assert!(table("role = \"user\", as = \"submitter\"").is_ok());
        for wrong in [
            "role = \"user\"",
            "role = \"user\", mounts = [\"/data\"]",
            "as = \"submitter\"",
            "role = \"user\", as = \"root\"",
            "role = \"user\", as = \"submitter\", mount = [\"/data\"]",
        ] {
            assert!(table(wrong).is_err(), "{wrong}");
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
            assert!(parsed(wrong, 0).is_none(), "{wrong}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.toml");
        let me = rustix::process::geteuid().as_raw();
        let refused = |path: &Path| Error::from(&Rules::read(path, me).unwrap_err());
        assert!(refused(&path).message.contains("cannot read"));
        std::fs::write(&path, "others = \"viewer\"").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(Rules::read(&path, me).is_ok());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o664)).unwrap();
        let told = refused(&path);
        assert_eq!(told.code, ErrorCode::Usage);
        assert!(told.message.contains("access.toml") && told.message.contains("writable"));
        assert!(told.hint.is_some());
        std::fs::write(&path, "\n  other = \"viewer\"").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let told = refused(&path);
        assert!(
            told.message
                .contains("access.toml:2:3: unknown key `other`"),
            "{told}"
        );
        assert!(told.hint.is_some_and(|hint| hint.contains("`others`")));
    }
}
