//! The platform of a release: this machine's, or arm64 on x86-64.
//!
//! For arm64, a Debian of its own has Rust's library and the C compiler of that architecture, and QEMU to run what was built. Its
//! rustc is as new as its release, so it comes from the next one (forky: 1.97). Nothing of it is in a release: Zig links
//! against glibc 2.28, as on x86-64.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::roots::{self, Skipped};
use crate::cargo::{root, target};
use crate::steps::{answer, run};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Architecture {
    #[value(name = "x86_64")]
    X86_64,
    Aarch64,
}

impl Architecture {
    pub const HERE: Self = if cfg!(target_arch = "aarch64") {
        Self::Aarch64
    } else {
        Self::X86_64
    };

    /// As Linux, Rust, wheels and rpm call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As Debian and images call it.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    pub fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// The folder of its releases below Cargo's target folder.
    pub fn dist(self) -> PathBuf {
        target().join(if self == Self::HERE {
            "dist".to_owned()
        } else {
            format!("dist-{}", self.name())
        })
    }
}

/// Where a release is built and run.
pub struct Platform {
    pub architecture: Architecture,
    /// The Debian with the cross compiler.
    pub cross: Option<PathBuf>,
}

/// The suite with the cross compiler.
const SUITE: &str = "forky";
/// Its packages for this machine: Rust, both C compilers, and QEMU.
const TOOLS: &str = "--include=gcc,libc6-dev,gcc-aarch64-linux-gnu,libc6-dev-arm64-cross,rustc,cargo,libstd-rust-dev,qemu-user";
/// Its packages for arm64: Rust's library, and the program and libraries of the jobs that are tried.
const FOREIGN: [&str; 2] = ["libstd-rust-dev:arm64", "python3:arm64"];
/// The Release file of a suite in the making expires within a week, also on a mirror that keeps an older state of it.
const KEPT: &str = "--option=Acquire::Check-Valid-Until=false";

impl Platform {
    /// This machine.
    pub fn here() -> Self {
        Self {
            architecture: Architecture::HERE,
            cross: None,
        }
    }

    /// Installs what is missing.
    ///
    /// # Errors
    /// A release that this machine cannot build, with the reason.
    pub fn prepare(architecture: Architecture) -> Result<Self> {
        if architecture == Architecture::HERE {
            return Ok(Self::here());
        }
        if architecture != Architecture::Aarch64 {
            bail!(
                "a release for {} is built on such a machine",
                architecture.name()
            );
        }
        let ready = |root: &Path| -> Result<()> {
            run(&mut roots::chroot(
                root,
                &["dpkg", "--add-architecture", "arm64"],
            ))?;
            run(&mut roots::chroot(
                root,
                &["apt-get", KEPT, "--quiet=2", "update"],
            ))?;
            // Unpacked alone: a program that configures a package of arm64 may be of arm64 itself.
            let fetch = [
                "apt-get",
                KEPT,
                "--quiet=2",
                "--yes",
                "--no-install-recommends",
            ];
            let fetch = [&fetch[..], &["--download-only", "install"], &FOREIGN].concat();
            run(&mut roots::chroot(root, &fetch))?;
            let unpack = "cd /var/cache/apt/archives\n\
                          for package in *_arm64.deb; do dpkg-deb --extract $package /; done\n\
                          rm *.deb";
            run(&mut roots::chroot(root, &["sh", "-ec", unpack]))
        };
        match roots::debian(SUITE, "-arm64", &[TOOLS], ready) {
            Ok(cross) => Ok(Self {
                architecture,
                cross: Some(cross),
            }),
            Err(Skipped(why)) => bail!("no cross compiler for {}: {why}", architecture.name()),
        }
    }

    /// A program for builds, which sees the repository, Cargo's folders and nothing else of this machine.
    pub fn tool(&self, program: &str) -> Result<Command> {
        let Some(cross) = &self.cross else {
            let mut command = Command::new(program);
            command.current_dir(root());
            return Ok(command);
        };
        let shared = [root(), target(), cargo_home()?];
        let mut command = roots::with_folders(cross, &target(), &shared)?;
        // Where Zig keeps its cache.
        command.arg(program).env("HOME", "/root");
        Ok(command)
    }

    /// The platform's program of binutils.
    pub fn binutils(&self, program: &str) -> Result<Command> {
        let name = self.architecture.name();
        match self.cross {
            Some(_) => self.tool(&format!("{name}-linux-gnu-{program}")),
            None => Ok(Command::new(program)),
        }
    }

    /// A program of the platform that may start others. `place`: a folder that it sees and may write.
    pub fn job(&self, program: &Path, place: &Path) -> Result<Command> {
        let Some(cross) = &self.cross else {
            return Ok(Command::new(program));
        };
        let mut command = roots::emulated(cross, place, &[target()])?;
        command.arg(program);
        Ok(command)
    }

    /// A program of the release, run on this machine. It starts no other program of its platform.
    pub fn run(&self, program: &Path) -> Command {
        let Some(cross) = &self.cross else {
            return Command::new(program);
        };
        let mut command = Command::new(cross.join("usr/bin/qemu-aarch64"));
        command.arg("-L").arg(cross).arg(program);
        command
    }

    /// The path of a library of the platform.
    pub fn library(&self, name: &str) -> Result<PathBuf> {
        let found = match &self.cross {
            Some(cross) => {
                let folder = format!("usr/lib/{}-linux-gnu", self.architecture.name());
                Some(cross.join(folder).join(name)).filter(|path| path.is_file())
            }
            None => answer(Command::new("cc").arg(format!("-print-file-name={name}")))
                .map(PathBuf::from)
                .filter(|path| path.is_absolute()),
        };
        found.with_context(|| format!("the C compiler finds no {name}"))
    }
}

/// Cargo's folder of this user.
pub fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    home.context("neither CARGO_HOME nor HOME is set")
}
