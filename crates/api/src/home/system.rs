//! The instance that serves every user of the machine.
//!
//! ```text
//! /run/divvy      0755   divvy.sock (0666: peer credentials decide)  sim/  slices/ID/
//! /var/lib/divvy  0711   state.db  daemon.lock  jobs/ID/
//! ```
//! Others pass through to what is theirs and list nothing.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{Home, HomeError, me, private_dir};

impl Home {
    /// The system's, or with `DIVVY_HOME` the one under that folder.
    ///
    /// # Errors
    /// As [`Home::from_env`].
    pub fn of_system() -> Result<Self, HomeError> {
        match std::env::var_os("DIVVY_HOME") {
            Some(root) => Self::under(root),
            None => Self {
                runtime: "/run/divvy".into(),
                slices: "/run/divvy/slices".into(),
                state: "/var/lib/divvy".into(),
            }
            .checked(),
        }
    }

    /// The one that this process's user is served by: what `DIVVY_HOME` names, else a daemon of their own that answers, else the
    /// system's if it does, else their own. Where nobody named it, it must not be another user's: who may write in `/tmp` could
    /// have made it, and would be sent environments and secrets.
    ///
    /// # Errors
    /// As [`Home::from_env`], and [`HomeError::Owner`].
    pub fn to_call() -> Result<Self, HomeError> {
        let own = Self::from_env();
        if std::env::var_os("DIVVY_HOME").is_some() {
            return own;
        }
        let own = own.and_then(|own| own.belongs_to(me()).map(|()| own));
        if own.as_ref().is_ok_and(Self::answers) {
            return own;
        }
        match Self::of_system() {
            Ok(system) if system.answers() => Ok(system),
            _ => own,
        }
    }

    /// Whether the runtime folder and the socket, as far as they are there, are this user's or root's.
    fn belongs_to(&self, me: u32) -> Result<(), HomeError> {
        for path in [self.runtime.clone(), self.socket()] {
            // The name itself: whose a link is decides where it leads.
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

    fn answers(&self) -> bool {
        UnixStream::connect(self.socket()).is_ok()
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
        open(&self.sim(), 0o755)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_that_another_user_made_is_not_called() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::under(dir.path().join("h")).unwrap();
        assert!(home.belongs_to(me()).is_ok(), "nobody has made it yet");
        home.create().unwrap();
        assert!(home.belongs_to(me()).is_ok());
        if me() != 0 {
            // What root made is trusted by everybody, so only another user's home can be a stranger's.
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
        ] {
            let found = fs::metadata(&path).unwrap().mode() & 0o777;
            assert_eq!(found, mode, "{}", path.display());
        }
    }
}
