//! The files that Divvy leaves on a node: the daemon's state and sockets, CDI files, and the sockets in kubelet's folders.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use divvy_api::v1::{Error, ErrorCode};
use tokio::time::{Instant, sleep};

use crate::node::reservation::registration::is_plugin_socket;
use crate::node::{DRIVERS, is_registration_socket};

/// Between two looks whether the daemon has ended. A daemon ends within seconds; so the wait is half a second too long
/// at most.
const LOOK: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
pub struct Args {
    /// Where the node's file system is mounted
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// kubelet's directory on the node
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Keeps the daemon's state: /var/lib/divvy
    #[arg(long)]
    keep_state: bool,
    /// Seconds to wait for the end of the daemon
    #[arg(long, value_name = "SECONDS", default_value_t = 90)]
    seconds: u64,
}

/// Removes the files; says which folders are gone.
///
/// # Errors
/// The daemon or the driver still runs, or a file cannot be removed.
pub async fn run(args: &Args) -> Result<String, Error> {
    let until = Instant::now() + Duration::from_secs(args.seconds);
    while let Some(living) = living(&args.root, &args.kubelet_dir) {
        if Instant::now() >= until {
            let why = format!("cannot remove the files of Divvy: a process still serves {living}");
            return Err(Error::new(ErrorCode::Conflict, why)
                .hint("delete the node's pod of Divvy, then repeat"));
        }
        sleep(LOOK).await;
    }
    let removed = remove(&args.root, &args.kubelet_dir, args.keep_state)?;
    Ok(if removed.is_empty() {
        "nothing to remove".to_owned()
    } else {
        format!("removed {}", removed.join(", "))
    })
}

/// A socket of the daemon or of a driver that a process still serves. Such a process would create its files again.
fn living(root: &Path, kubelet: &Path) -> Option<String> {
    let drivers = driver_folders(kubelet).into_iter().flat_map(|folder| {
        let entries = fs::read_dir(at(root, &folder)).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        names.map(|name| folder.join(name)).collect::<Vec<_>>()
    });
    let mut sockets = [PathBuf::from("/run/divvy/divvy.sock")]
        .into_iter()
        .chain(drivers);
    let living = sockets.find(|socket| UnixStream::connect(at(root, socket)).is_ok())?;
    Some(living.display().to_string())
}

fn driver_folders(kubelet: &Path) -> [PathBuf; 2] {
    DRIVERS.map(|driver| kubelet.join("plugins").join(driver))
}

/// Removes everything of Divvy below `root`; returns the paths, as the node sees them.
fn remove(root: &Path, kubelet: &Path, keep_state: bool) -> Result<Vec<String>, Error> {
    let mut removed = Vec::new();
    let mut folders = vec![Path::new("/run/divvy").to_owned()];
    folders.extend(driver_folders(kubelet));
    if !keep_state {
        folders.push(Path::new("/var/lib/divvy").to_owned());
    }
    for folder in folders {
        match fs::remove_dir_all(at(root, &folder)) {
            Ok(()) => removed.push(folder.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A mount point: it is empty now, and belongs to the node's administrator.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                removed.push(format!("{}/*", folder.display()));
            }
            Err(error) => return Err(failed(&folder, &error)),
        }
    }
    let in_folders: [(PathBuf, NameTest); 3] = [
        (PathBuf::from("/run/cdi"), is_cdi_file),
        (kubelet.join("plugins_registry"), is_registration_socket),
        (kubelet.join("device-plugins"), is_plugin_socket),
    ];
    for (folder, is_ours) in in_folders {
        for entry in fs::read_dir(at(root, &folder))
            .into_iter()
            .flatten()
            .flatten()
        {
            let name = entry.file_name();
            if !name.to_str().is_some_and(is_ours) {
                continue;
            }
            let path = folder.join(&name);
            match fs::remove_file(entry.path()) {
                Ok(()) => removed.push(path.display().to_string()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&path, &error)),
            }
        }
    }
    Ok(removed)
}

/// Whether a file of this name is Divvy's.
type NameTest = fn(&str) -> bool;

/// A CDI file of the daemon: `divvy-0badcafe-7.json`, with the digest of the daemon's home.
fn is_cdi_file(name: &str) -> bool {
    let Some((home, _)) = name
        .strip_prefix("divvy-")
        .and_then(|rest| rest.split_once('-'))
    else {
        return false;
    };
    home.len() == 8 && home.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The node's path, below the place where its file system is mounted.
fn at(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot remove {}: {error}", path.display());
    Error::new(ErrorCode::Internal, message)
        .hint("remove it on the node by hand; no container needs it any more")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A node with the files of Divvy and of others.
    fn node() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "var/lib/divvy/journal",
            "var/lib/divvy/node/0123456789abcdef/bin/divvy",
            "run/divvy/slices/7/slots",
            "run/cdi/divvy-0badcafe-7.json",
            "run/cdi/nvidia.json",
            "run/cdi/divvy-mine.json",
            "var/lib/kubelet/plugins/gpu.divvy.dev/lock",
            "var/lib/kubelet/plugins/other.dev/dra.sock",
            "var/lib/kubelet/plugins_registry/gpu.divvy.dev-1a2b3c4d@reg.sock",
            "var/lib/kubelet/plugins_registry/other.dev-reg.sock",
            "var/lib/kubelet/device-plugins/divvy-carrier-1a2b3c4d.sock",
            "var/lib/kubelet/device-plugins/kubelet.sock",
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        root
    }

    fn left(root: &Path) -> Vec<String> {
        let mut left = Vec::new();
        let mut folders = vec![root.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path)
                } else {
                    left.push(path.strip_prefix(root).unwrap().display().to_string())
                }
            }
        }
        left.sort();
        left
    }

    const OTHERS: [&str; 5] = [
        "run/cdi/divvy-mine.json",
        "run/cdi/nvidia.json",
        "var/lib/kubelet/device-plugins/kubelet.sock",
        "var/lib/kubelet/plugins/other.dev/dra.sock",
        "var/lib/kubelet/plugins_registry/other.dev-reg.sock",
    ];

    #[test]
    fn everything_of_divvy_goes_and_everything_of_others_stays() {
        let root = node();
        let kubelet = Path::new("/var/lib/kubelet");
        let removed = remove(root.path(), kubelet, false).unwrap();
        assert_eq!(removed.len(), 6, "{removed:?}");
        assert_eq!(left(root.path()), OTHERS);
        assert!(
            remove(root.path(), kubelet, false).unwrap().is_empty(),
            "twice"
        );
        let root = node();
        remove(root.path(), kubelet, true).unwrap();
        let mut kept = left(root.path());
        kept.retain(|path| path.starts_with("var/lib/divvy/"));
        assert_eq!(kept.len(), 2);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn nothing_is_removed_while_the_daemon_runs() {
        let root = node();
        let _daemon = UnixListener::bind(root.path().join("run/divvy/divvy.sock")).unwrap();
        let before = left(root.path());
        let args = Args {
            root: root.path().to_owned(),
            kubelet_dir: "/var/lib/kubelet".into(),
            keep_state: false,
            seconds: 0,
        };
        let error = run(&args).await.unwrap_err();
        assert_eq!(
            error.message,
            "cannot remove the files of Divvy: a process still serves /run/divvy/divvy.sock"
        );
        assert_eq!(left(root.path()), before);
    }
}
