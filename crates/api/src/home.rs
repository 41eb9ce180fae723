//! Paths of an instance: state folder, runtime folder, socket. One type for the agent and its clients.
//!
//! With `DIVVY_HOME` all files are under that folder: a private instance, for tests and several daemons side by side.
//! Without it, files that a reboot may delete are in the runtime folder, all others in the state folder. Several machines
//! may share a home folder, so the state of each is in a folder of its own ([`machine`]):
//!
//! ```text
//! runtime: $XDG_RUNTIME_DIR/divvy, else /run/user/UID/divvy, else /tmp/divvy-UID     divvy.sock  sim/  mounts/  claims/
//! slices:  the runtime folder where that is memory, else /dev/shm/divvy-UID          slices/ID/
//! state:   $XDG_STATE_HOME/divvy/MACHINE, else ~/.local/state/divvy/MACHINE          state.db  daemon.lock  daemon.log  jobs/ID/  solo/  mig/
//! ```
//! A logout removes the first two. The daemon's lock names the socket, so that clients of any environment find it.

mod lock;
pub mod machine;
pub mod session;
pub(crate) mod system;

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::v1::{Error, ErrorCode};

pub use lock::{Holder, LockFile};

/// Longest path a unix socket can have on Linux (`sockaddr_un.sun_path` less its closing zero).
const SOCKET_PATH_MAX: usize = 107;

/// The file's name in its folder.
const SOCKET: &str = "divvy.sock";

/// `statfs` type of tmpfs, from `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The folders of one instance. Computing it touches nothing; [`Home::create`] makes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    runtime: PathBuf,
    slices: PathBuf,
    state: PathBuf,
    socket: PathBuf,
    /// The folder of this user's machines, where the state is one of a machine.
    machines: Option<PathBuf>,
}

/// Why an instance has no usable home.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error(
        "neither DIVVY_HOME nor XDG_STATE_HOME nor HOME is set, so Divvy has no folder for its state"
    )]
    NoPlace,
    #[error("DIVVY_HOME must not be empty")]
    Empty,
    #[error("the socket path {path} has {length} bytes, but the kernel allows {SOCKET_PATH_MAX}")]
    SocketPath { path: PathBuf, length: usize },
    #[error("cannot make the folder {path}")]
    Create { path: PathBuf, source: io::Error },
    #[error("{path} belongs to uid {owner}, not to uid {me}")]
    Owner { path: PathBuf, owner: u32, me: u32 },
    #[error("{path} is writable by other users (mode {mode:o}); make it private: chmod 700 {path}")]
    Open { path: PathBuf, mode: u32 },
    #[error("{path} is not a folder")]
    NotAFolder { path: PathBuf },
}

impl From<&HomeError> for Error {
    /// A wrong environment is an error of the caller; an unsuitable machine is not.
    fn from(error: &HomeError) -> Self {
        let mut text = error.to_string();
        if let Some(cause) = std::error::Error::source(error) {
            text.push_str(": ");
            text.push_str(&cause.to_string());
        }
        match error {
            HomeError::NoPlace | HomeError::Empty | HomeError::SocketPath { .. } => {
                Self::new(ErrorCode::Usage, text).hint("set DIVVY_HOME to a short, private folder")
            }
            HomeError::Create { .. } => Self::new(ErrorCode::Internal, text)
                .hint("make it writable, or set DIVVY_HOME to a private folder that you can write"),
            HomeError::Owner { .. } | HomeError::Open { .. } | HomeError::NotAFolder { .. } => {
                Self::new(ErrorCode::Internal, text)
            }
        }
    }
}

impl Home {
    /// The home that this process's environment names.
    ///
    /// # Errors
    /// When no variable names a place, or the socket's path would be too long for a unix socket.
    pub fn from_env() -> Result<Self, HomeError> {
        Self::locate(
            &|name| std::env::var_os(name),
            rustix::process::getuid().as_raw(),
            &is_memory,
            &machine::id(Path::new("/")),
        )
    }

    /// The private instance under `root`, made absolute against the working directory.
    ///
    /// # Errors
    /// As [`Home::from_env`].
    pub fn under(root: impl Into<PathBuf>) -> Result<Self, HomeError> {
        let root: PathBuf = root.into();
        if root.as_os_str().is_empty() {
            return Err(HomeError::Empty);
        }
        let root = std::path::absolute(&root).unwrap_or(root);
        Self {
            slices: root.join("slices"),
            runtime: root.clone(),
            socket: root.join(SOCKET),
            state: root,
            machines: None,
        }
        .checked()
    }

    fn locate(
        var: &dyn Fn(&str) -> Option<OsString>,
        uid: u32,
        is_memory: &dyn Fn(&Path) -> bool,
        machine: &str,
    ) -> Result<Self, HomeError> {
        if let Some(root) = var("DIVVY_HOME") {
            return Self::under(root);
        }
        let absolute = |name| absolute_folder(var, name);
        let run_user = PathBuf::from(format!("/run/user/{uid}"));
        let given = absolute("XDG_RUNTIME_DIR");
        // A shell keeps the variable when a logout has removed its folder, which only root makes again.
        let runtime = match given.filter(|dir| *dir != run_user || run_user.is_dir()) {
            Some(dir) => dir.join("divvy"),
            None if run_user.is_dir() => run_user.join("divvy"),
            None => without_session(uid),
        };
        let machines = absolute("XDG_STATE_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
            .ok_or(HomeError::NoPlace)?
            .join("divvy");
        let parent = runtime.parent().unwrap_or(&runtime);
        let slices = if is_memory(parent) || !is_memory(Path::new("/dev/shm")) {
            runtime.join("slices")
        } else {
            PathBuf::from(format!("/dev/shm/divvy-{uid}/slices"))
        };
        Self {
            socket: runtime.join(SOCKET),
            runtime,
            slices,
            state: machines.join(machine),
            machines: Some(machines),
        }
        .checked()
    }

    fn checked(self) -> Result<Self, HomeError> {
        let path = self.socket();
        let length = path.as_os_str().len();
        if length > SOCKET_PATH_MAX {
            Err(HomeError::SocketPath { path, length })
        } else {
            Ok(self)
        }
    }

    /// Creates the folders with mode 0700. Refuses folders of another user, or that other users can write.
    ///
    /// # Errors
    /// One for each way a folder can be unusable; see [`HomeError`].
    pub fn create(&self) -> Result<(), HomeError> {
        let slices_root = self.slices.parent().unwrap_or(&self.slices);
        let folders = [
            Some(self.runtime.as_path()),
            self.machines.as_deref(),
            Some(&self.state),
            Some(slices_root),
            Some(&self.slices),
        ];
        folders.into_iter().flatten().try_for_each(private_dir)?;
        for dir in [
            self.jobs(),
            self.sim(),
            self.solo(),
            self.mounts(),
            self.claims(),
        ] {
            private_dir(&dir)?;
        }
        Ok(())
    }

    /// The agent's socket.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// Where the agent listens while the folder of its socket cannot be: after the user's last logout. `None` where no
    /// logout takes that folder.
    pub fn socket_without_session(&self) -> Option<PathBuf> {
        let other = without_session(me()).join(SOCKET);
        (self.machines.is_some() && other != self.socket).then_some(other)
    }

    /// The folder of this user's machines; `None` where all files are in one folder.
    pub fn machines(&self) -> Option<&Path> {
        self.machines.as_deref()
    }

    /// The path by which containers and control groups know the instance: that of its state before machines had folders
    /// of their own in it.
    pub fn instance(&self) -> &Path {
        self.machines.as_deref().unwrap_or(&self.state)
    }

    /// Parent of the slice folders.
    pub fn slices(&self) -> &Path {
        &self.slices
    }

    /// Parent of the staged mounts of containers. Nothing below it may be removed recursively: a crash can leave users'
    /// folders mounted there.
    pub fn mounts(&self) -> PathBuf {
        self.runtime.join("mounts")
    }

    /// Entries of slices: `UID/NAME.json` tells a process of that user how to enter the slice with that name.
    pub fn claims(&self) -> PathBuf {
        self.runtime.join("claims")
    }

    /// Slice folder of a job.
    pub fn slice(&self, job: &str) -> PathBuf {
        self.slices.join(job)
    }

    /// The folder that keeps what must survive a reboot; also what `GET /v1/node` calls home.
    pub fn state(&self) -> &Path {
        &self.state
    }

    pub fn database(&self) -> PathBuf {
        self.state.join("state.db")
    }

    /// Locked by the one daemon of this home.
    pub fn daemon_lock(&self) -> PathBuf {
        self.state.join("daemon.lock")
    }

    /// Log file of a detached daemon.
    pub fn daemon_log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }

    pub fn jobs(&self) -> PathBuf {
        self.state.join("jobs")
    }

    /// Folder of a job: what to start, its records, its log.
    pub fn job(&self, job: &str) -> PathBuf {
        self.state.join("jobs").join(job)
    }

    /// Folder of the simulated driver.
    pub fn sim(&self) -> PathBuf {
        self.runtime.join("sim")
    }

    /// Links through which programs find the simulated driver.
    pub fn sim_lib(&self) -> PathBuf {
        self.runtime.join("sim/lib")
    }

    /// State file of the simulated driver.
    pub fn sim_state(&self) -> PathBuf {
        self.runtime.join("sim/state")
    }

    /// The ring of past figures.
    pub fn history(&self) -> PathBuf {
        self.state.join("history")
    }

    /// Locks of GPUs with a change of MIG instances under way.
    pub fn migs(&self) -> PathBuf {
        self.state.join("mig")
    }

    /// The limiter's libraries as jobs load them: `NUMBER/FILE`, a number for each content.
    pub fn limiters(&self) -> PathBuf {
        self.state.join("limiters")
    }

    /// Folder of `run --no-daemon`. Not in the runtime folder, which a logout removes while runs go on.
    pub fn solo(&self) -> PathBuf {
        self.state.join("solo")
    }
}

fn is_memory(path: &Path) -> bool {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the field's type differs between architectures"
    )]
    rustix::fs::statfs(path).is_ok_and(|stat| stat.f_type as i64 == TMPFS_MAGIC)
}

/// The runtime folder of a user without a session: no logout takes it.
fn without_session(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/divvy-{uid}"))
}

/// Creates the folder with mode 0700. Refuses one of another user, or that other users can write.
///
/// # Errors
/// One for each way a folder can be unusable; see [`HomeError`].
pub fn private_dir(path: &Path) -> Result<(), HomeError> {
    let create = |source| HomeError::Create {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        // Parents keep the user's umask; only the folder itself is ours to close.
        fs::create_dir_all(parent).map_err(create)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(create(error)),
        _ => {}
    }
    // `/tmp` is shared, so another user may have created a link or a folder with this name first.
    let meta = fs::symlink_metadata(path).map_err(create)?;
    let meta = if meta.is_symlink() && meta.uid() == me() {
        fs::metadata(path).map_err(create)?
    } else {
        meta
    };
    if !meta.is_dir() {
        return Err(HomeError::NotAFolder {
            path: path.to_owned(),
        });
    }
    if meta.uid() != me() {
        return Err(HomeError::Owner {
            path: path.to_owned(),
            owner: meta.uid(),
            me: me(),
        });
    }
    if meta.mode() & 0o022 != 0 {
        return Err(HomeError::Open {
            path: path.to_owned(),
            mode: meta.mode() & 0o7777,
        });
    }
    Ok(())
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The folder that a variable names. A relative one does not count (XDG Base Directory Specification).
pub(crate) fn absolute_folder(
    var: &dyn Fn(&str) -> Option<OsString>,
    name: &str,
) -> Option<PathBuf> {
    var(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn locate(vars: &[(&str, &str)], memory: &[&str]) -> Result<Home, HomeError> {
        let var = |name: &str| {
            vars.iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        let is_memory = |path: &Path| memory.contains(&path.to_str().unwrap());
        Home::locate(&var, 4242, &is_memory, "0123")
    }

    #[test]
    fn a_private_home_holds_everything() {
        let home = locate(&[("DIVVY_HOME", "/x/h"), ("HOME", "/home/u")], &[]).unwrap();
        assert_eq!(home.socket(), Path::new("/x/h/divvy.sock"));
        assert_eq!(home.database(), Path::new("/x/h/state.db"));
        assert_eq!(home.job("7"), Path::new("/x/h/jobs/7"));
        assert_eq!(home.slice("7"), Path::new("/x/h/slices/7"));
        assert_eq!(home.sim_lib(), Path::new("/x/h/sim/lib"));
    }

    #[test]
    fn without_one_the_xdg_folders_are_used() {
        let home = locate(
            &[("XDG_RUNTIME_DIR", "/run/me"), ("HOME", "/home/u")],
            &["/run/me", "/dev/shm"],
        )
        .unwrap();
        assert_eq!(home.socket(), Path::new("/run/me/divvy/divvy.sock"));
        assert_eq!(home.slice("7"), Path::new("/run/me/divvy/slices/7"));
        assert_eq!(
            home.database(),
            Path::new("/home/u/.local/state/divvy/0123/state.db")
        );
        assert_eq!(home.instance(), Path::new("/home/u/.local/state/divvy"));
        // A run without a daemon outlives a logout.
        assert!(home.solo().starts_with(home.state()));
    }

    #[test]
    fn slices_move_to_memory_when_the_runtime_folder_is_a_disk() {
        let home = locate(&[("HOME", "/home/u")], &["/dev/shm"]).unwrap();
        assert_eq!(home.socket(), Path::new("/tmp/divvy-4242/divvy.sock"));
        assert_eq!(home.slice("7"), Path::new("/dev/shm/divvy-4242/slices/7"));
    }

    #[test]
    fn a_home_without_any_variable_is_refused() {
        assert!(matches!(locate(&[], &[]), Err(HomeError::NoPlace)));
        assert!(matches!(
            locate(&[("DIVVY_HOME", "")], &[]),
            Err(HomeError::Empty)
        ));
    }

    #[test]
    fn what_the_environment_says_wrongly_is_a_mistake_of_usage() {
        let code = |error: HomeError| Error::from(&error).code;
        let path = PathBuf::from("/x");
        assert_eq!(code(HomeError::NoPlace), ErrorCode::Usage);
        assert_eq!(code(HomeError::Empty), ErrorCode::Usage);
        let long = HomeError::SocketPath {
            path: path.clone(),
            length: 200,
        };
        assert_eq!(code(long), ErrorCode::Usage);
        let open = HomeError::Open { path, mode: 0o777 };
        assert_eq!(code(open), ErrorCode::Internal);
    }

    #[test]
    fn a_socket_path_that_no_socket_can_have_is_refused() {
        let long = format!("/{}", "x".repeat(120));
        let error = locate(&[("DIVVY_HOME", &long)], &[]).unwrap_err();
        assert!(error.to_string().contains("132 bytes"), "{error}");
    }

    #[test]
    fn a_folder_that_others_may_write_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("h");
        let home = Home::under(&root).unwrap();
        home.create().unwrap();
        home.create().expect("a second time changes nothing");
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(home.create(), Err(HomeError::Open { .. })));
    }
}
