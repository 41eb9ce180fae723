//! The system's instance, which serves every user of the machine.
//!
//! ```text
//! /run/divvy      0755   divvy.sock (0666: peer credentials decide)  sim/  slices/ID/  claims/UID/
//! /var/lib/divvy  0711   state.db  daemon.lock  jobs/ID/
//! ```
//! Other users can open their own files below these folders, and list none of them.
//!
//! The system's daemon counts as installed if one of these exists, root owns it, and no other user can write it:
//!
//! ```text
//! /var/lib/divvy       a folder with state.db or daemon.lock in it: a system's daemon has served here
//! divvy.service        a unit in /etc/systemd/system, or one that is enabled there. A package brings its unit, and the
//!                      administrator enables it: until then, users start daemons of their own
//! ```
//! Only root can create either, so a user cannot prevent the private daemon of another user. The rule does not apply to
//! an instance in `DIVVY_HOME`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};

use super::lock::{LockFile, locked_by};
use super::{Home, HomeError, me, private_dir};

const RUNTIME: &str = "/run/divvy";
const STATE: &str = "/var/lib/divvy";
const SOCKET: &str = "/run/divvy/divvy.sock";

/// Below `/`.
const UNITS: [&str; 2] = [
    "etc/systemd/system/divvy.service",
    "etc/systemd/system/multi-user.target.wants/divvy.service",
];
const JOURNALS: [&str; 2] = ["var/lib/divvy/state.db", "var/lib/divvy/daemon.lock"];

/// Whether this is the socket of the system's daemon.
pub(crate) fn is_socket(path: &Path) -> bool {
    path == Path::new(SOCKET)
}

/// The rule above, below a root and for an owner.
fn is_installed_under(root: &Path, owner: u32) -> bool {
    let is_owned = |path: &str, is_kind: fn(&fs::Metadata) -> bool| {
        // The name and what it leads to: the owner of a link decides where it leads.
        let path = root.join(path);
        let both = [fs::symlink_metadata(&path), fs::metadata(&path)];
        let [Ok(name), Ok(meta)] = both else {
            return false;
        };
        name.uid() == owner && meta.uid() == owner && meta.mode() & 0o022 == 0 && is_kind(&meta)
    };
    let has_served = is_owned("var/lib/divvy", fs::Metadata::is_dir)
        && JOURNALS
            .iter()
            .any(|file| is_owned(file, fs::Metadata::is_file));
    has_served
        || UNITS
            .iter()
            .any(|unit| is_owned(unit, fs::Metadata::is_file))
}

impl Home {
    /// Whether a daemon for every user is installed on this machine; see the rule above.
    pub fn is_system_installed() -> bool {
        is_installed_under(Path::new("/"), 0)
    }

    /// The process of the system's daemon, running or hung: it holds the lock, or it is root's and listens on the
    /// socket.
    pub fn system_daemon() -> Option<u32> {
        locked_by(&Path::new(STATE).join("daemon.lock")).or_else(|| {
            match listener(Path::new(SOCKET)) {
                Some(Listener { pid, uid: 0 }) => Some(pid),
                _ => None,
            }
        })
    }

    /// Whether this is the system's, not a user's own and not a private instance.
    pub fn is_systems(&self) -> bool {
        self.state == Path::new(STATE)
    }

    /// Whether a user's own instance is served although the system's daemon is installed, so that there are two
    /// ledgers.
    pub fn is_beside_system(&self) -> bool {
        std::env::var_os("DIVVY_HOME").is_none()
            && !self.is_systems()
            && self.answers()
            && Self::is_system_installed()
    }

    /// The owner of this home, if that is another user: the owner starts its daemon.
    pub fn others(&self) -> Option<u32> {
        let owner = fs::metadata(&self.state).ok()?.uid();
        (owner != me()).then_some(owner)
    }

    /// The system's, or with `DIVVY_HOME` the one under that folder.
    ///
    /// # Errors
    /// As [`Home::from_env`].
    pub fn of_system() -> Result<Self, HomeError> {
        match std::env::var_os("DIVVY_HOME") {
            Some(root) => Self::under(root),
            None => Ok(Self::of_machine()),
        }
    }

    /// The system's, whatever `DIVVY_HOME` says.
    fn of_machine() -> Self {
        let runtime = Path::new(RUNTIME);
        Self {
            runtime: runtime.to_owned(),
            slices: runtime.join("slices"),
            state: STATE.into(),
            socket: SOCKET.into(),
            machines: None,
        }
    }

    /// The one that this process's user is served by: what `DIVVY_HOME` names, else a daemon of their own that answers,
    /// else the system's if it answers or is installed, else their own. Unless `DIVVY_HOME` names it, it must not be
    /// another user's: any user may write in `/tmp`, could have made it, and would be sent environments and secrets.
    ///
    /// # Errors
    /// As [`Home::from_env`], and [`HomeError::Owner`].
    pub fn to_call() -> Result<Self, HomeError> {
        let own = Self::from_env();
        if std::env::var_os("DIVVY_HOME").is_some() {
            return own;
        }
        let own = own.and_then(|own| own.belongs_to(me()).map(|()| own));
        let (own, answers) = match own.map(Self::find) {
            Ok((own, answers)) => (Ok(own), answers),
            Err(error) => (Err(error), false),
        };
        if answers {
            return own;
        }
        let system = Self::of_machine();
        if system.answers() || Self::is_system_installed() {
            Ok(system)
        } else {
            own
        }
    }

    /// The same, with the socket that the daemon of this home has now: its own environment may have been another, and a
    /// logout may have taken the folder that it had first.
    #[must_use]
    pub fn found(self) -> Self {
        self.find().0
    }

    /// The same, and whether a process listens there. Each look is a connection.
    fn find(mut self) -> (Self, bool) {
        if self.answers() {
            return (self, true);
        }
        let lock = self.lock_file().ok().flatten();
        let is_moved = |lock: &LockFile| self.machines.is_some() && lock.is_alive();
        let Some(lock) = lock.filter(is_moved) else {
            return (self, false);
        };
        self.socket = lock.socket;
        let answers = self.answers();
        (self, answers)
    }

    /// Whether the runtime folder and the socket, as far as they are there, are this user's or root's.
    fn belongs_to(&self, me: u32) -> Result<(), HomeError> {
        for path in [self.runtime.clone(), self.socket()] {
            // Check the link itself: its owner decides its target.
            let Ok(owner) = fs::symlink_metadata(&path).map(|meta| meta.uid()) else {
                // What is not there, or not to be looked at, is not reached either.
                continue;
            };
            if owner != me && owner != 0 {
                return Err(HomeError::Owner { path, owner, me });
            }
        }
        Ok(())
    }

    /// Whether a process listens on the socket; it may hang.
    pub fn answers(&self) -> bool {
        listener(&self.socket()).is_some()
    }

    /// Makes the folders as [`Home::create`] does, and lets other users pass to what is theirs.
    ///
    /// # Errors
    /// As [`Home::create`].
    pub fn create_for_all(&self) -> Result<(), HomeError> {
        self.create()?;
        let open = |path: &Path, mode| {
            private_dir(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|source| {
                HomeError::Create {
                    path: path.to_owned(),
                    source,
                }
            })
        };
        // The state first: in a private instance it is the runtime folder too, which needs the wider mode.
        open(&self.state, 0o711)?;
        open(&self.jobs(), 0o711)?;
        open(&self.runtime, 0o755)?;
        open(&self.slices, 0o711)?;
        open(&self.claims(), 0o711)?;
        open(&self.sim(), 0o755)
    }
}

/// The process that listens on a socket.
struct Listener {
    /// Zero where it is in a PID namespace that this process does not see, or takes no connection.
    pid: u32,
    uid: u32,
}

/// `None` where none listens. A process that hangs is found too, and not waited for.
fn listener(path: &Path) -> Option<Listener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    match connect(&socket, &SocketAddrUnix::new(path).ok()?) {
        Ok(()) => {
            let peer = sockopt::socket_peercred(&socket).ok()?;
            let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
            let uid = peer.uid.as_raw();
            Some(Listener { pid, uid })
        }
        // Its queue of connections is full.
        Err(Errno::AGAIN) => Some(Listener {
            pid: 0,
            uid: u32::MAX,
        }),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A root folder with these files in it, for an owner that this test can be.
    fn root(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    #[test]
    fn the_systems_daemon_is_installed_where_its_journal_or_its_unit_is_roots() {
        assert!(!is_installed_under(root(&[]).path(), me()));
        for file in UNITS.iter().chain(&JOURNALS) {
            let root = root(&[file]);
            assert!(is_installed_under(root.path(), me()), "{file}");
            // Another user made it, or may write it.
            assert!(!is_installed_under(root.path(), me() + 1), "{file}");
            let path = root.path().join(file);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            assert!(!is_installed_under(root.path(), me()), "{file}");
        }
        // A folder that was made and never served from, and a unit that is masked.
        let empty = root(&["var/lib/divvy/jobs/1/log"]);
        assert!(!is_installed_under(empty.path(), me()));
        // A package's unit that the administrator has not enabled.
        let packaged = root(&["usr/lib/systemd/system/divvy.service"]);
        assert!(!is_installed_under(packaged.path(), me()));
        let masked = root(&["etc/systemd/system/other.service"]);
        let unit = masked.path().join(UNITS[0]);
        std::os::unix::fs::symlink("/dev/null", unit).unwrap();
        assert!(!is_installed_under(masked.path(), me()));
    }

    #[test]
    fn a_socket_answers_while_a_process_listens_whether_it_takes_connections_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path()).unwrap();
        assert!(!home.answers(), "no socket");
        let listening = UnixListener::bind(home.socket()).unwrap();
        let found = listener(&home.socket()).unwrap();
        assert_eq!((found.pid, found.uid), (std::process::id(), me()));
        // More connections than the kernel queues: `connect` would block.
        rustix::net::listen(&listening, 0).unwrap();
        let queued: Vec<_> = (0..3).map(|_| listener(&home.socket())).collect();
        assert!(queued.iter().all(Option::is_some));
        drop(listening);
        assert!(!home.answers(), "its process has gone, the file has not");
    }

    #[test]
    fn a_home_that_another_user_made_is_not_called() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path().join("h")).unwrap();
        assert!(home.belongs_to(me()).is_ok(), "nobody has made it yet");
        home.create().unwrap();
        assert!(home.belongs_to(me()).is_ok());
        if me() != 0 {
            // All users trust root, so only the home of another user is foreign.
            let error = home.belongs_to(me() + 1).unwrap_err();
            assert!(matches!(error, HomeError::Owner { owner, .. } if owner == me()));
            return;
        }
        let stranger = 60_101;
        std::os::unix::fs::chown(home.socket().parent().unwrap(), Some(stranger), None).unwrap();
        let error = home.belongs_to(me()).unwrap_err();
        assert!(matches!(error, HomeError::Owner { owner, .. } if owner == stranger));
        std::os::unix::fs::chown(home.socket().parent().unwrap(), Some(0), None).unwrap();
        // A link that another user made leads where that one likes.
        std::os::unix::fs::symlink("/nowhere", home.socket()).unwrap();
        std::os::unix::fs::lchown(home.socket(), Some(stranger), None).unwrap();
        assert!(home.belongs_to(me()).is_err());
        assert!(home.belongs_to(stranger).is_ok());
    }

    #[test]
    fn others_pass_through_the_systems_folders_and_write_in_none() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path().join("h")).unwrap();
        home.create_for_all().unwrap();
        home.create_for_all()
            .expect("a second time changes nothing");
        for (path, mode) in [
            (home.state().to_owned(), 0o755),
            (home.jobs(), 0o711),
            (home.slices().to_owned(), 0o711),
            (home.sim(), 0o755),
            (home.solo(), 0o700),
            (home.mounts(), 0o700),
        ] {
            let found = fs::metadata(&path).unwrap().mode() & 0o777;
            assert_eq!(found, mode, "{}", path.display());
        }
    }
}
