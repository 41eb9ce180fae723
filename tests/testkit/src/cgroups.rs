//! Control groups of version 2: where this machine has them.

use std::fs;
use std::path::PathBuf;

/// The folder at which version 2 is mounted; `None` on a machine without it. In a hybrid tree `/sys/fs/cgroup` is a
/// tmpfs, on which a plain file may be called `cgroup.procs`: the type of the file system decides.
pub fn cgroup2_root() -> Option<PathBuf> {
    mounted(&fs::read_to_string("/proc/self/mounts").ok()?)
}

/// By what proc(5) says of `/proc/PID/mounts`.
fn mounted(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (folder, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| folder.into())
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_root_of_control_groups_is_found_by_its_file_system() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let root = |mounts| mounted(mounts);
        assert_eq!(
            root(hybrid).as_deref(),
            Some(Path::new("/sys/fs/cgroup/unified"))
        );
        let unified = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        assert_eq!(root(unified).as_deref(), Some(Path::new("/sys/fs/cgroup")));
        assert_eq!(root("cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n"), None);
    }
}
