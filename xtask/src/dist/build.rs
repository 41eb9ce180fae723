//! The programs and libraries of a release, and the glibc that each needs.
//!
//! Zig links them against the symbols of glibc 2.28, whatever glibc the machine has. The libraries are mapped into containers, and
//! images with Ubuntu 20.04 (2.31) or RHEL 8 (2.28) are common. cargo-zigbuild would link LLVM's unwinder into each file. A frame
//! of the limiter must unwind by the program's own unwinder, so the machine's libgcc_s is named before it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::platform::{Platform, cargo_home};
use super::roots;
use crate::cargo::{LOADED, build_all, cargo, root, target};
use crate::steps::{answer, run};
use crate::tools;

/// Packages, and the files that each builds.
pub const BUILT: [(&str, &str, &str); 8] = [
    ("divvy", "divvy", "bin"),
    ("divvy-k8s", "divvy-k8s", "bin"),
    ("divvy-slurm", "divvy-slurm", "bin"),
    ("divvy-slurm", "libspank_divvy.so", "lib/divvy"),
    ("divvy-preload", "libdivvy_preload.so", "lib/divvy"),
    ("divvy-wrapper-cuda", "libdivvy_cuda.so", "lib/divvy"),
    ("divvy-wrapper-nvml", "libdivvy_nvml.so", "lib/divvy"),
    // For `--sim`: a first try needs no GPU.
    ("divvy-sim", "libdivvy_sim.so", "lib/divvy"),
];

/// The newest glibc that a released file may need, `GLIBC_2.N`.
pub const GLIBC: u32 = 28;

const ZIGBUILD: (&str, &str) = ("cargo-zigbuild", "0.24.1");
/// Zig, as a package of PyPI.
const ZIG: &str = "ziglang==0.17.1";
const LIBGCC: &str = "libgcc_s.so.1";

/// Builds of Cargo's target folder `dist-build`, or `dist-build-ARCHITECTURE` with another compiler.
pub struct Zig<'a> {
    /// Zig's own program.
    zig: PathBuf,
    cargo_zigbuild: PathBuf,
    target: PathBuf,
    platform: &'a Platform,
}

impl<'a> Zig<'a> {
    /// Installs what is missing.
    pub fn install(platform: &'a Platform) -> Result<Self> {
        let folder = target().join("zig");
        let zig = folder.join("ziglang/zig");
        if answer(Command::new(&zig).arg("version")).is_none() {
            run(Command::new("python3")
                .args(["-m", "pip", "install", "--quiet", "--no-deps"])
                .args(["--disable-pip-version-check", "--upgrade", "--target"])
                .arg(&folder)
                .arg(ZIG))?;
        }
        let (name, version) = ZIGBUILD;
        let folder = match platform.cross {
            Some(_) => format!("dist-build-{}", platform.architecture.name()),
            None => "dist-build".to_owned(),
        };
        Ok(Self {
            zig,
            cargo_zigbuild: tools::crate_program(name, version)?,
            target: target().join(folder),
            platform,
        })
    }

    /// Builds all files; the folder with each of them.
    pub fn all(&self) -> Result<PathBuf> {
        let is_loaded = |package: &str| LOADED.iter().any(|(loaded, _)| *loaded == package);
        let others = BUILT.iter().map(|(package, ..)| *package);
        let others: Vec<&str> = others.filter(|package| !is_loaded(package)).collect();
        self.build("release", &others)?;
        let built = self.built("release");
        self.libraries("limiter", &built)?;
        Ok(built)
    }

    /// Builds the libraries that programs load with a profile, and copies them into a folder.
    pub fn libraries(&self, profile: &str, to: &Path) -> Result<()> {
        self.build(profile, &LOADED.map(|(package, _)| package))?;
        let folder = if profile == "dev" { "debug" } else { profile };
        for (_, library) in LOADED {
            let from = self.built(folder).join(library);
            let to = to.join(library);
            // What lies there may be a link to Cargo's own file, which is not to be written.
            let _ = fs::remove_file(&to);
            fs::copy(&from, &to)
                .with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
        }
        Ok(())
    }

    fn built(&self, folder: &str) -> PathBuf {
        let triple = self.platform.architecture.triple();
        self.target.join(triple).join(folder)
    }

    fn build(&self, profile: &str, packages: &[&str]) -> Result<()> {
        let libgcc = self.target.join("libgcc");
        fs::create_dir_all(&libgcc)?;
        fs::copy(self.platform.library(LIBGCC)?, libgcc.join(LIBGCC))?;
        let home = cargo_home()?;
        let places = [(root(), "/divvy"), (home.clone(), "/cargo")];
        let mut flags: Vec<String> = places
            .iter()
            .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
            .collect();
        // Cargo's hash of a crate, and so names in the files, contain this path. The linker runs in the root.
        let libgcc = libgcc.strip_prefix(root()).unwrap_or(&libgcc);
        flags.push(format!("-Lnative={}", libgcc.display()));
        flags.push(format!("-ldylib:+verbatim={LIBGCC}"));
        // This machine's libgcc_s needs symbols of a newer glibc; the one beside the program at run time has its own.
        flags.push("-Clink-arg=-Wl,--allow-shlib-undefined".to_owned());
        let mut build = match self.platform.cross {
            Some(_) => self.platform.tool("cargo")?,
            None => cargo(&[]),
        };
        build.args(["zigbuild", "--locked", "--offline", "--profile", profile]);
        let triple = self.platform.architecture.triple();
        build.args(["--target", &format!("{triple}.2.{GLIBC}")]);
        build.args(packages.iter().flat_map(|package| ["--package", package]));
        build.env("CARGO_HOME", home);
        build.env("CARGO_TARGET_DIR", &self.target);
        build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        build.env("CARGO_ZIGBUILD_ZIG_PATH", &self.zig);
        // Where cargo finds its command. In the other root, only that root has a compiler.
        let path = match self.platform.cross {
            Some(_) => roots::PATH.into(),
            None => std::env::var_os("PATH").unwrap_or_default(),
        };
        let tools = self.cargo_zigbuild.parent().map(Path::to_owned);
        let path = std::env::join_paths(tools.into_iter().chain(std::env::split_paths(&path)))?;
        run(build.env("PATH", path))
    }
}

/// The build of the tests, with the libraries as a release has them; the folder with all files.
pub fn quickly(zig: &Zig<'_>) -> Result<PathBuf> {
    build_all()?;
    let built = target().join("dist-quick");
    fs::create_dir_all(&built)?;
    let is_loaded = |package: &str| LOADED.iter().any(|(loaded, _)| *loaded == package);
    for (_, file, _) in BUILT.iter().filter(|(package, ..)| !is_loaded(package)) {
        let to = built.join(file);
        let _ = fs::remove_file(&to);
        fs::copy(target().join("debug").join(file), to)?;
    }
    zig.libraries("dev", &built)?;
    Ok(built)
}

/// A symbol of a version of glibc that a file needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Needed {
    /// `2.N`: the `N`.
    pub minor: u32,
    pub symbol: String,
}

/// The newest version of glibc that a file needs, by `objdump -T`, with one of its symbols.
pub fn glibc_needed(file: &Path) -> Result<Needed> {
    let symbols = answer(Command::new("objdump").arg("-T").arg(file));
    let symbols = symbols.with_context(|| format!("`objdump -T {}` failed", file.display()))?;
    newest(&symbols).with_context(|| format!("{} needs no glibc", file.display()))
}

/// The newest version in the output of `objdump -T`: `0… DF *UND* 0… (GLIBC_2.2.5) memcpy`.
fn newest(symbols: &str) -> Option<Needed> {
    let needed = symbols.lines().filter_map(|line| {
        let (_, rest) = line.split_once("*UND*")?;
        let (_, version) = rest.split_once("GLIBC_2.")?;
        let digits = version.split(|letter: char| !letter.is_ascii_digit());
        Some(Needed {
            minor: digits.into_iter().next()?.parse().ok()?,
            symbol: line.split_whitespace().last()?.to_owned(),
        })
    });
    needed.max()
}

/// Fails if a file that Zig linked needs a newer glibc than [`GLIBC`]; the newest that any file needs.
pub fn check_glibc(tree: &Path, quick: bool) -> Result<u32> {
    let mut newest = 0;
    for (package, file, place) in BUILT {
        let needed = glibc_needed(&tree.join(place).join(file))?;
        let Needed { minor, symbol } = &needed;
        eprintln!("   {file}: glibc 2.{minor} ({symbol})");
        newest = newest.max(*minor);
        // Of a quick build, Zig links only the libraries that programs load.
        let is_bound = !quick || LOADED.iter().any(|(loaded, _)| *loaded == package);
        ensure!(
            *minor <= GLIBC || !is_bound,
            "{file} needs {symbol} of glibc 2.{minor}; a release must run with 2.{GLIBC}"
        );
    }
    Ok(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_a_file_is_compared_as_numbers() {
        let symbols = "\
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.2.5) memcpy
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.14)  pthread_create
0000000000000000  w   DF *UND*\t0000000000000000  GLIBC_2.9   other
0000000000000000      DF *UND*\t0000000000000000 (GCC_3.3)     _Unwind_Backtrace
000000000002a3f0 g    DF .text\t0000000000000020 (GLIBC_2.99)  own";
        let expected = Needed {
            minor: 14,
            symbol: "pthread_create".into(),
        };
        assert_eq!(newest(symbols), Some(expected));
        assert_eq!(newest("no symbols"), None);
    }

    #[test]
    fn this_program_needs_what_a_rust_program_needs() {
        let own = std::env::current_exe().expect("it runs");
        // Rust's library needs `GLIBC_2.14` at least (memcpy).
        assert!(glibc_needed(&own).expect("objdump reads it").minor >= 14);
        assert!(glibc_needed(Path::new("/nonexistent")).is_err());
    }
}
