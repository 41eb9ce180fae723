//! Calling cargo on this workspace.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::{answer, run, step};

/// Root of the workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_owned()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    // A running program lies at TARGET/PROFILE/NAME, wherever TARGET was put.
    let own = std::env::current_exe()
        .ok()
        .and_then(|path| Some(path.parent()?.parent()?.to_owned()));
    own.unwrap_or_else(|| root().join("target"))
}

/// `cargo WORDS…` in the root.
pub fn cargo(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(words).current_dir(root());
    forget_this_package(&mut command);
    command
}

/// Removes the variables of `cargo run` about this package from a command's environment. Some build scripts (ring's)
/// depend on such a variable: they and their dependents would be built again each time `cargo xtask` runs after a plain
/// `cargo`.
pub fn forget_this_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(name);
        }
    }
}

/// Crates with a library that programs load, and that library: the limiter in its forms, and the simulated driver. The
/// bench counts the instructions of the simulated driver too.
pub const LOADED: [(&str, &str); 4] = [
    ("divvy-preload", "libdivvy_preload.so"),
    ("divvy-wrapper-cuda", "libdivvy_cuda.so"),
    ("divvy-wrapper-nvml", "libdivvy_nvml.so"),
    ("divvy-sim", "libdivvy_sim.so"),
];

/// Optimised builds of packages. The libraries that are loaded into programs have the profile `limiter`, which they
/// alone gain from.
pub struct Optimised {
    /// Cargo's target folder.
    pub target: PathBuf,
    /// Variables of the build.
    pub variables: Vec<(&'static str, String)>,
}

impl Optimised {
    /// Builds in the usual target folder.
    pub fn here() -> Self {
        Self {
            target: target(),
            variables: Vec::new(),
        }
    }

    /// Runs `cargo build --release WORDS…`, then builds the loaded libraries and puts them beside the programs; the
    /// folder of all of them.
    pub fn build(&self, words: &[&[&str]]) -> Result<PathBuf> {
        for words in words {
            self.cargo(&["--release"], words)?;
        }
        let loaded = LOADED.map(|(package, _)| ["--package", package]);
        self.cargo(&["--profile", "limiter"], loaded.as_flattened())?;
        let built = self.target.join("release");
        for (_, library) in LOADED {
            let (from, to) = (
                self.target.join("limiter").join(library),
                built.join(library),
            );
            // What lies there may be a link to Cargo's own file, which is not to be written.
            let _ = fs::remove_file(&to);
            fs::copy(&from, &to)
                .with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
        }
        Ok(built)
    }

    fn cargo(&self, profile: &[&str], words: &[&str]) -> Result<()> {
        let mut build = cargo(&["build", "--locked", "--offline"]);
        build.args(profile).args(words);
        build.env("CARGO_TARGET_DIR", &self.target);
        build.envs(self.variables.iter().map(|(name, value)| (name, value)));
        run(&mut build)
    }
}

/// Compiles the workspace's own crates with clippy's driver, which is rustc with lints; every warning is an error. One
/// compilation then serves lints, programs and tests. `cargo clippy` checks all crates, and all that they depend on, once
/// more without a result that a build can use: 441 s of the processor, of 2,215 s in all.
pub fn lint_while_compiling(command: &mut Command) {
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    // The separator of the words in clippy's own variable, by its `driver.rs`.
    command.env(
        "CLIPPY_ARGS",
        "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
    );
}

/// Builds and lints everything: libraries, programs, examples and tests. Of the whole workspace: a package alone has other
/// features, and would be built anew.
///
/// # Errors
/// When it does not compile, or has a warning.
pub fn build_all() -> Result<()> {
    let mut build = cargo(&[
        "build",
        "--workspace",
        "--all-targets",
        "--locked",
        "--offline",
        "--quiet",
    ]);
    lint_while_compiling(&mut build);
    run(&mut build)
}

/// The first steps of a command: the programs that it needs, and the crates.
pub fn prepare(tools: fn() -> Result<()>) -> Result<()> {
    step("tools", "the programs that this command needs", tools)?;
    step(
        "crates",
        "the Rust crates in Cargo.lock, downloaded if missing",
        fetch,
    )
}

/// Sees to it that every crate of the lockfile is on this machine. The network is used only when one is missing.
pub fn fetch() -> Result<()> {
    if answer(&mut cargo(&["fetch", "--locked", "--offline", "--quiet"])).is_some() {
        eprintln!("   all crates in Cargo.lock are on this machine; no download");
        return Ok(());
    }
    run(&mut cargo(&["fetch", "--locked"]))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// `PACKAGE VERSION [FEATURES]` of what these words of `cargo tree` select.
    fn features(words: &[&str]) -> BTreeSet<String> {
        let format = ["--prefix", "none", "--format", "{p} [{f}]"];
        let mut tree = cargo(&["tree", "--locked", "--offline"]);
        let lines = answer(tree.args(words).args(format)).expect("the crates are on this machine");
        // The mark of what the tree has shown before.
        let lines = lines.lines().map(|line| line.trim_end_matches(" (*)"));
        lines.map(str::to_owned).collect()
    }

    /// `cargo xtask test` compiles xtask alone, and then the workspace. A crate with other features in the workspace is
    /// compiled twice, and with it each crate that depends on it: that was 63 s of the processor.
    #[test]
    fn the_features_of_xtasks_crates_are_those_of_the_workspace() {
        let alone = features(&["--package", "xtask", "--edges", "normal,build"]);
        let workspace = features(&["--workspace", "--edges", "all"]);
        assert!(alone.len() > 50, "{alone:?}");
        let other: Vec<&String> = alone.difference(&workspace).collect();
        assert!(
            other.is_empty(),
            "give these crates the workspace's features in xtask/Cargo.toml: {other:#?}"
        );
    }
}
