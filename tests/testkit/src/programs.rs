//! The programs and libraries of this workspace that tests run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

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
            return PathBuf::from(named);
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
        profile.to_owned()
    })
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
