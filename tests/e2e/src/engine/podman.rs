//! Podman with storage, settings and locks of the tests' own, so that it meets nobody else's containers. There is no daemon: what
//! serves the socket may end and come back, and containers run on under a monitor (conmon) each.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use divvy_testkit::Bounded as _;

/// `podman system service` on the folder's socket.
pub fn service(folder: &Path) -> Command {
    write_settings(folder);
    let socket = format!("unix://{}", folder.join("sock").display());
    let mut command = podman(folder);
    // It would end by itself when nobody calls for a while.
    command.args(["system", "service", "--time", "0", &socket]);
    command
}

/// Takes all containers away: nothing else does.
pub fn clear(folder: &Path) {
    // Without its settings it would be somebody else's.
    if !folder.join("containers.conf").is_file() || !folder.join("storage.conf").is_file() {
        return;
    }
    let _ = podman(folder)
        .args(["rm", "--all", "--force", "--time", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .wait_bounded();
}

fn podman(folder: &Path) -> Command {
    let mut command = Command::new("podman");
    command.envs(variables(folder));
    command
}

/// Where its settings are, instead of in all other files (containers.conf(5), containers-storage.conf(5)).
pub fn variables(folder: &Path) -> [(&'static str, String); 2] {
    let at = |name: &str| folder.join(name).display().to_string();
    [
        ("CONTAINERS_CONF", at("containers.conf")),
        ("CONTAINERS_STORAGE_CONF", at("storage.conf")),
    ]
}

fn write_settings(folder: &Path) {
    let at = |name: &str| folder.join(name).display().to_string();
    // The usual ones are higher than somebody may set who cannot raise his own.
    let settings = format!(
        "[containers]\n\
         default_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n\
         [engine]\n\
         runtime = \"runc\"\n\
         cgroup_manager = \"cgroupfs\"\n\
         events_logger = \"file\"\n\
         lock_type = \"file\"\n\
         tmp_dir = \"{}\"\n\
         static_dir = \"{}\"\n\
         volume_path = \"{}\"\n",
        at("tmp"),
        at("data/libpod"),
        at("data/volumes"),
    );
    // Works on any file system, and needs no right of the kernel's.
    let storage = format!(
        "[storage]\n\
         driver = \"vfs\"\n\
         graphroot = \"{}\"\n\
         runroot = \"{}\"\n",
        at("data"),
        at("run"),
    );
    for (name, text) in [("containers.conf", settings), ("storage.conf", storage)] {
        fs::write(folder.join(name), text).expect("the folder is ours");
    }
}
