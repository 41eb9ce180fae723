//! Running as another user: how a system daemon's supervisor starts a program as its submitter.
//!
//! The kernel keeps credentials for each thread, and what a thread starts has the thread's. So a thread gives up root,
//! for good, does what is to be done as the user, and ends; the supervisor stays root and can write down how the
//! program ended.

use std::io;

use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, remove_capability_from_bounding_set, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use serde::{Deserialize, Serialize};

use crate::host::account::{self, AccountError, groups};

/// The user of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// All groups of the program; where they are not named, those of the user database when it is started: asking it
    /// may take long, and the daemon's thread of work waits for nothing.
    #[serde(default)]
    pub groups: Option<Vec<u32>>,
    /// The name that the uid had when the job was submitted; `None` where it does not count. The uid of a deleted
    /// account may belong to another user by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
}

impl Identity {
    /// Does this as the user, without the means to become another: no set-user-id program gives a right from here on.
    ///
    /// # Errors
    /// When this process may not become that user.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let groups = self.groups()?;
        in_thread(|| {
            self.assume(&groups)?;
            Ok(work())
        })
    }

    /// Opens files as the user; `work` starts no program.
    ///
    /// # Errors
    /// When this process may not become that user.
    pub fn open<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        let groups = self.groups()?;
        in_thread(|| {
            self.become_user(&groups)?;
            Ok(work())
        })
    }

    /// With its groups, if this process knows them from the last second: the supervisor then needs no look-up.
    pub fn with_recent_groups(self) -> Self {
        let groups = account::recent_groups(self.uid, self.gid, self.account.as_deref());
        Self { groups, ..self }
    }

    /// With the groups of the database as it is when a program is started.
    pub fn with_present_groups(self) -> Self {
        Self {
            groups: None,
            ..self
        }
    }

    /// Its groups, asked for if need be.
    ///
    /// # Errors
    /// When the user database does not answer, or has another account for the uid.
    pub fn groups(&self) -> io::Result<Vec<u32>> {
        self.known_groups().map_err(io::Error::other)
    }

    /// With its groups: the user database is not asked again.
    ///
    /// # Errors
    /// As [`groups`](Self::groups).
    pub fn with_known_groups(self) -> Result<Self, AccountError> {
        let groups = Some(self.known_groups()?);
        Ok(Self { groups, ..self })
    }

    fn known_groups(&self) -> Result<Vec<u32>, AccountError> {
        match &self.groups {
            Some(groups) => Ok(groups.clone()),
            None => groups(self.uid, self.gid, self.account.as_deref()),
        }
    }

    /// Gives this thread's rights up, for good. Groups first: without root they cannot be changed any more.
    ///
    /// # Errors
    /// When this process may not become that user.
    pub fn assume(&self, groups: &[u32]) -> io::Result<()> {
        empty_bounding_set()?;
        self.become_user(groups)?;
        set_no_new_privs(true)?;
        Ok(())
    }

    fn become_user(&self, groups: &[u32]) -> io::Result<()> {
        if self.uid == u32::MAX || self.gid == u32::MAX {
            // The kernel would take it for "as it is".
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let groups: Vec<Gid> = groups
            .iter()
            .filter(|gid| **gid != u32::MAX)
            .map(|gid| Gid::from_raw(*gid))
            .collect();
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    }
}

/// Does this in a thread of its own, whose credentials end with it.
fn in_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(work);
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Takes every capability from this thread's bounding set, so that no file's capabilities are gained by its programs
/// even where `no_new_privs` had a gap. A new user namespace has a full set of its own (capabilities(7)).
fn empty_bounding_set() -> io::Result<()> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            // Without CAP_SETPCAP, as in some containers, the set stays; `no_new_privs` holds all the same.
            Err(Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    fn other_user() -> Option<Identity> {
        let may = rustix::process::geteuid().is_root();
        if !may {
            eprintln!("SKIPPED: only root can become another user");
        }
        may.then_some(Identity {
            uid: 65_534,
            gid: 65_533,
            groups: Some(vec![65_533, 60_001]),
            account: None,
        })
    }

    #[test]
    fn what_is_started_as_another_user_is_that_user_and_stays_it() {
        let Some(other_user) = other_user() else {
            return;
        };
        let show = "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; grep -E 'Cap(Eff|Bnd)' /proc/self/status";
        let told = other_user.run(|| Command::new("sh").args(["-c", show]).output());
        let told = String::from_utf8(told.unwrap().unwrap().stdout).unwrap();
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[..3], ["65534", "65533", "65533 60001"], "{told}");
        assert_eq!(lines[3].split_whitespace().last(), Some("1"));
        for line in &lines[4..6] {
            assert_eq!(line.split_whitespace().last(), Some("0000000000000000"));
        }
        assert!(
            rustix::process::geteuid().is_root(),
            "only the thread gave up"
        );
    }

    #[test]
    fn files_are_opened_with_the_users_rights() {
        let Some(other_user) = other_user() else {
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        fs::write(&secret, "root's").unwrap();
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
        for read in [
            other_user.run(|| fs::read_to_string(&secret)),
            other_user.open(|| fs::read_to_string(&secret)),
        ] {
            let refused = read.unwrap().unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        assert_eq!(fs::read_to_string(&secret).unwrap(), "root's");
    }

    #[test]
    fn no_process_becomes_the_user_that_means_no_change() {
        let nobody = Identity {
            uid: u32::MAX,
            gid: 1,
            groups: Some(Vec::new()),
            account: None,
        };
        assert!(nobody.run(|| ()).is_err());
    }
}
