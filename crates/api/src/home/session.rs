//! Login sessions and lingering, by systemd-logind: whether it ends a user's processes at the last logout.

use std::fs;
use std::path::Path;

/// Whether logind ends services of this user at the last logout, and with `KillUserProcesses=yes` all processes. It spares
/// a lingering user and root (logind.conf(5)), and knows nothing of a user without a session.
pub fn ends_at_logout(uid: u32) -> bool {
    uid != 0 && does_not_linger(Path::new("/"), uid)
}

/// By logind's record of the user, and the file that `loginctl enable-linger` makes.
fn does_not_linger(root: &Path, uid: u32) -> bool {
    let record = root.join(format!("run/systemd/users/{uid}"));
    let record = fs::read_to_string(record).unwrap_or_default();
    let name = record.lines().find_map(|line| line.strip_prefix("NAME="));
    name.is_some_and(|name| !root.join("var/lib/systemd/linger").join(name).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_a_session_lingers_by_the_file_of_loginctl() {
        let root = tempfile::tempdir().unwrap();
        let (users, linger) = ("run/systemd/users", "var/lib/systemd/linger");
        for folder in [users, linger] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        assert!(!does_not_linger(root.path(), 1000), "no session");
        let record = root.path().join(users).join("1000");
        fs::write(record, "# private\nNAME=ana\nSTATE=active\n").unwrap();
        assert!(does_not_linger(root.path(), 1000));
        fs::write(root.path().join(linger).join("ben"), "").unwrap();
        assert!(does_not_linger(root.path(), 1000));
        fs::write(root.path().join(linger).join("ana"), "").unwrap();
        assert!(!does_not_linger(root.path(), 1000));
    }
}
