//! The programs and libraries of this workspace that tests run.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::geteuid;

/// What the tests of all crates run: the daemon, the limiter in both forms, the simulated driver, and clients.
const PACKAGES: [&str; 8] = [
    "divvy",
    "divvy-driver",
    "divvy-preload",
    "divvy-wrapper-cuda",
    "divvy-wrapper-nvml",
    "divvy-sim",
    "divvy-slurm",
    "divvy-clients",
];

/// Names a folder of built programs, which are then run as they are.
pub const VARIABLE: &str = "DIVVY_TEST_PROGRAMS";

/// The folder that [`VARIABLE`] names (an installed release, say). Without it the folder of the programs that are built like this test, brought
/// up to date first, so that a test that is started alone never runs an old library.
///
/// # Panics
/// When they do not build.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(named) = std::env::var_os(VARIABLE) {
            return reachable(PathBuf::from(named));
        }
        let test = std::env::current_exe().expect("a running program has a path");
        // TARGET/PROFILE/deps/TEST
        let profile = test
            .ancestors()
            .nth(2)
            .expect("a test lies in PROFILE/deps");
        let target = profile.parent().expect("a profile lies in TARGET");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build
            .args([
                "build",
                "--quiet",
                "--lib",
                "--bins",
                "--example",
                "client",
                "--example",
                "gpu_facts",
            ])
            .arg("--target-dir")
            .arg(target)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        for package in PACKAGES {
            build.args(["--package", package]);
        }
        if profile.ends_with("release") {
            build.arg("--release");
        }
        // Without a bound: a build from nothing takes minutes.
        let built = build.status().expect("cargo starts");
        assert!(built.success(), "the programs under test do not build");
        reachable(profile.to_owned())
    })
}

/// The folder, or one with the same files in the temporary folder where other users cannot reach this one: a clone in
/// `/root`, whose mode is 0700 on Debian, say. Tests of several users run as root.
fn reachable(folder: PathBuf) -> PathBuf {
    let is_open = |place: &Path| {
        let mode = fs::metadata(place).map(|about| about.permissions().mode());
        mode.is_ok_and(|mode| mode & 0o001 != 0)
    };
    if !geteuid().is_root() || folder.ancestors().all(is_open) {
        return folder;
    }
    let mut hash = DefaultHasher::new();
    folder.hash(&mut hash);
    let mirror = std::env::temp_dir().join(format!("divvy-programs-{:016x}", hash.finish()));
    for part in ["", "examples"] {
        mirror_files(&folder.join(part), &mirror.join(part));
    }
    mirror
}

/// Links or copies the programs and libraries of a folder. Several test processes may do so at the same time: each file is
/// replaced as a whole.
fn mirror_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the temporary folder can be written");
    let owner = fs::metadata(to).expect("it was created").uid();
    assert_eq!(owner, 0, "{} belongs to another user", to.display());
    fs::set_permissions(to, PermissionsExt::from_mode(0o755)).expect("it is root's");
    let Ok(entries) = fs::read_dir(from) else {
        return;
    };
    for entry in entries.flatten() {
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let Ok(about) = entry.metadata() else {
            continue;
        };
        if !about.is_file() || about.permissions().mode() & 0o111 == 0 {
            continue;
        }
        let is_current = fs::metadata(&to).is_ok_and(|there| {
            there.ino() == about.ino()
                || (there.len(), there.mtime(), there.mtime_nsec())
                    == (about.len(), about.mtime(), about.mtime_nsec())
        });
        if is_current {
            continue;
        }
        let fresh = to.with_file_name(format!(".{}", std::process::id()));
        // A killed process of this number may have left it, as a link to a program that the copy would overwrite.
        let _ = fs::remove_file(&fresh);
        let linked = fs::hard_link(&from, &fresh).or_else(|_| {
            fs::copy(&from, &fresh)?;
            let time = about.modified()?;
            fs::File::options()
                .write(true)
                .open(&fresh)?
                .set_modified(time)
        });
        linked.expect("the temporary folder has room for the programs");
        fs::rename(&fresh, &to).expect("both lie in one folder");
        // Where another process has made the same link, rename(2) does nothing and leaves both names.
        let _ = fs::remove_file(&fresh);
    }
}

/// The program under test.
///
/// # Panics
/// As [`folder`].
#[must_use]
pub fn divvy() -> PathBuf {
    folder().join("divvy")
}

/// A folder of built programs and libraries: `target/debug` or `target/release`.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// The ones in [`folder`].
    ///
    /// # Panics
    /// When they do not build.
    #[must_use]
    pub fn of_this_test() -> Self {
        Self::at(folder().to_owned())
    }

    /// The ones in `folder`, as they are.
    #[must_use]
    pub fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Path of the program `name`.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
