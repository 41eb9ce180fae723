//! The private Python environment of the third-party clients, `target/clients-venv`.
//!
//! A stamp in it holds the list of its packages. A second run uses no network, and a changed list builds the environment again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{root, target};
use crate::steps::run;

/// The environment: its Python, and the CUDA headers it brings.
#[derive(Clone, Debug)]
pub struct Venv {
    folder: PathBuf,
}

impl Venv {
    pub fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// A program of one of the packages.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// Folder with `cuda.h` and `nvml.h`.
    ///
    /// # Errors
    /// When the header packages have put them elsewhere.
    pub fn cuda_include(&self) -> Result<PathBuf> {
        let library = self.folder.join("lib");
        let entries =
            fs::read_dir(&library).with_context(|| format!("read {}", library.display()))?;
        let mut found = entries
            .flatten()
            .map(|entry| entry.path().join("site-packages/nvidia/cu13/include"));
        found
            .find(|path| path.join("cuda.h").is_file() && path.join("nvml.h").is_file())
            .context("cuda.h and nvml.h are missing in the environment")
    }
}

/// The environment's Python, where it has been made.
pub fn existing() -> Option<PathBuf> {
    let folder = target().join("clients-venv");
    let python = Venv { folder }.python();
    python.is_file().then_some(python)
}

/// Builds the environment if it is missing or outdated.
pub fn make() -> Result<Venv> {
    let list = root().join("tests/e2e/requirements.txt");
    let wanted = fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
    let folder = target().join("clients-venv");
    let stamp = folder.join("made-from.txt");
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        eprintln!(
            "   {} contains exactly these packages; no download",
            shown(&folder)
        );
        return Ok(Venv { folder });
    }
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        // Python compiles what a test imports; all 5,400 files took 20 s.
        "--no-compile",
        "--requirement",
    ];
    let venv = Venv { folder };
    run(Command::new(venv.python()).args(pip).arg(&list))?;
    fs::write(&stamp, wanted).with_context(|| format!("write {}", stamp.display()))?;
    Ok(venv)
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root())
        .unwrap_or(path)
        .display()
        .to_string()
}
