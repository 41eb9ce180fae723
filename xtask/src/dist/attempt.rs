//! Installs a release as users would after a download, and uses it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::build::BUILT;
use super::platform::Platform;
use super::roots;
use super::{CLEARML, PYTEST, RAY, VERSION, shipped_file};
use crate::cargo::{root, target};
use crate::steps::{answer, run};

pub fn all(platform: &Platform, dist: &Path, name: &str) -> Result<()> {
    run(Command::new("sha256sum")
        .args(["--check", "--quiet", "SHA256SUMS"])
        .current_dir(dist))?;
    let place = target().join("dist-try");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    fs::create_dir_all(&place)?;
    let is_native = platform.cross.is_none();
    // In the other root its own, by the PATH there.
    let python = if is_native {
        environment(&place)?
    } else {
        PathBuf::from("python3")
    };
    archive(platform, dist, name, &place, &python)?;
    if is_native {
        wheel(dist, &place, &python)?;
        clearml(dist, &place, &python)?;
        ray(dist, &python)?;
        pytest(dist, &python)?;
    } else {
        foreign_wheel(platform, dist, &place, &python)?;
    }
    deb(platform, dist, &place, &python)?;
    rpm(platform, dist, &place, &python)?;
    if is_native {
        roots::all(dist, &dist.join(name), &place)?;
    }
    fs::remove_dir_all(&place)?;
    Ok(())
}

fn archive(
    platform: &Platform,
    dist: &Path,
    name: &str,
    place: &Path,
    python: &Path,
) -> Result<()> {
    run(Command::new("tar")
        .args(["--extract", "--file"])
        .arg(dist.join(format!("{name}.tar.gz")))
        .arg("--directory")
        .arg(place))?;
    let bin = place.join(name).join("bin");
    refuses(&mut platform.job(&bin.join("divvy"), place)?, python, place)?;
    for name in ["divvy-k8s", "divvy-slurm"] {
        let said = answer(platform.run(&bin.join(name)).arg("--version"));
        ensure!(
            said.is_some_and(|said| said.contains(VERSION)),
            "{name} of the archive does not run"
        );
    }
    Ok(())
}

/// `divvy` runs a job that takes more memory than it has, and the driver refuses it.
pub fn refuses(divvy: &mut Command, python: &Path, place: &Path) -> Result<()> {
    divvy.args([
        "run",
        "--no-daemon",
        "--sim",
        "a100-80gb:1",
        "-g",
        "0.5",
        "--",
    ]);
    divvy.arg(python).args(["-c", &example()?]);
    // Without the compiler and the build's programs.
    let said = answer(alone(divvy, place).env("PATH", roots::PATH));
    let said = said.context("the program cannot run a job")?;
    eprintln!("   {}", said.lines().last().unwrap_or_default());
    ensure!(said.contains(REFUSED), "no memory was refused: {said}");
    Ok(())
}

/// The wheel for another architecture. pip of this machine refuses its platform, and with `--target` drops its
/// libraries; so it gets the same file under a name for any platform.
fn foreign_wheel(platform: &Platform, dist: &Path, place: &Path, python: &Path) -> Result<()> {
    let wheel = shipped_file(dist, "divvy_gpu-", ".whl")?;
    let any = place.join(format!("divvy_gpu-{VERSION}-py3-none-any.whl"));
    fs::copy(&wheel, &any)?;
    let here = environment(place)?;
    install(&here, &any)?;
    let divvy = here
        .parent()
        .context("a program lies in a folder")?
        .join("divvy");
    refuses(&mut platform.job(&divvy, place)?, python, place)
}

/// A command with an instance of its own, and without what this machine has set.
fn alone<'a>(command: &'a mut Command, place: &Path) -> &'a mut Command {
    command
        .env("DIVVY_HOME", place.join("home"))
        .env_remove("DIVVY_LIB_DIR")
}

/// A new Python environment; its Python.
fn environment(place: &Path) -> Result<PathBuf> {
    let folder = place.join("venv");
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    Ok(folder.join("bin/python"))
}

fn install(python: &Path, wheel: &Path) -> Result<()> {
    run(Command::new(python)
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ])
        .arg(wheel))
}

/// The program of docs/install.md.
fn example() -> Result<String> {
    let page = fs::read_to_string(root().join("docs/install.md"))?;
    let code = page.split("```python\n").nth(1);
    let code = code.and_then(|rest| rest.split("```").next());
    Ok(code
        .context("docs/install.md has no Python program")?
        .to_owned())
}

/// `CUDA_ERROR_OUT_OF_MEMORY`, as that program prints it.
const REFUSED: &str = "then CUDA error 2";

/// `pip install divvy-gpu`, a job that exceeds its limit, and the removal.
fn wheel(dist: &Path, place: &Path, python: &Path) -> Result<()> {
    let wheel = shipped_file(dist, "divvy_gpu-", ".whl")?;
    install(python, &wheel)?;
    let bin = python.parent().context("a program lies in a folder")?;
    // A link, as `uv tool install` and pipx make it.
    let link = place.join("divvy-link");
    std::os::unix::fs::symlink(bin.join("divvy"), &link)?;
    refuses(&mut Command::new(&link), python, place)?;
    let unit = place.join("venv").join(super::wheel::USER_UNIT.1);
    ensure!(unit.is_file(), "the wheel has no {}", unit.display());
    run(Command::new(python).args(["-m", "pip", "uninstall", "--quiet", "--yes", "divvy-gpu"]))?;
    let environment = place.join("venv");
    let left = super::tree::files(&environment)?;
    let left: Vec<&String> = left.iter().filter(|file| file.contains("divvy")).collect();
    ensure!(left.is_empty(), "pip left {left:?}");
    Ok(())
}

/// The package for the ClearML agent.
fn clearml(dist: &Path, place: &Path, python: &Path) -> Result<()> {
    install(python, &shipped_file(dist, "clearml_", ".whl")?)?;
    unit_tests(python, CLEARML)?;
    let program = place.join("venv/bin/clearml-agent-fractional-gpu");
    let said = answer(Command::new(program).arg("--help"));
    ensure!(
        said.is_some_and(|said| said.contains("ExecStartPre")),
        "the wheel's program printed no help"
    );
    Ok(())
}

/// The package for Ray, without Ray.
fn ray(dist: &Path, python: &Path) -> Result<()> {
    install(python, &shipped_file(dist, "divvy_ray-", ".whl")?)?;
    unit_tests(python, RAY)?;
    let hook = "import sys; assert '_divvy_ray' in sys.modules, 'the .pth file was not read'";
    run(Command::new(python).args(["-c", hook]))
}

/// The plugin of pytest, without pytest and pytest-xdist: no index is asked, so pip installs none of them.
fn pytest(dist: &Path, python: &Path) -> Result<()> {
    let wheel = shipped_file(dist, "pytest_divvy-", ".whl")?;
    let pip = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"];
    run(Command::new(python).args(pip).arg(wheel))?;
    unit_tests(python, PYTEST)
}

/// The tests of a package, with the installed package.
fn unit_tests(python: &Path, package: &str) -> Result<()> {
    run(Command::new(python)
        .args([
            "-W", "error", "-m", "unittest", "discover", "--quiet", "-t", ".", "-s", "tests",
        ])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root().join(package)))
}

/// Files that a package must have, from the root.
fn wanted() -> Vec<String> {
    let built = BUILT.iter();
    let mut wanted: Vec<String> = built
        .map(|(_, file, place)| format!("usr/{place}/{file}"))
        .collect();
    wanted.extend(
        [
            "usr/lib/systemd/system/divvy.service",
            "usr/lib/systemd/user/divvy.service",
            "usr/lib/tmpfiles.d/divvy.conf",
            "usr/lib/systemd/system/divvy-forkserver.service",
            "usr/lib/systemd/system/divvy-forkserver.socket",
            "usr/share/bash-completion/completions/divvy",
            "usr/share/man/man1/divvy.1.gz",
            "usr/share/man/man1/divvy-admin-mig-plan.1.gz",
            "usr/share/man/man1/divvy-k8s.1.gz",
            "usr/share/man/man1/divvy-k8s-doctor.1.gz",
            "usr/share/man/man1/divvy-slurm.1.gz",
            "usr/share/divvy/grafana/divvy.json",
            "usr/share/divvy/prometheus/rules.yml",
            "usr/share/divvy/prometheus/scrape.yml",
            "usr/share/divvy/slurm/epilog",
            "usr/share/divvy/slurm/plugstack.conf",
            "usr/share/divvy/slurm/prolog",
            "usr/share/doc/divvy/README.md",
        ]
        .map(str::to_owned),
    );
    wanted
}

/// Fails if a file is missing, or if one lies outside the places of a distribution's package.
fn check_files(kind: &str, files: &[String]) -> Result<()> {
    for wanted in wanted() {
        ensure!(files.contains(&wanted), "the {kind} has no /{wanted}");
    }
    for file in files {
        ensure!(
            file.starts_with("usr/"),
            "the {kind} has /{file}, outside /usr"
        );
        // `divvy-k8s probe` has a page of the manual.
        let is_page = file.starts_with("usr/share/man/");
        for test in ["probe", "testkit", "bench"] {
            ensure!(
                is_page || !file.contains(test),
                "the {kind} has /{file} of the tests"
            );
        }
    }
    eprintln!("   {kind}: {} files", files.len());
    Ok(())
}

/// Unpacks a package and runs its program there.
fn deb(platform: &Platform, dist: &Path, place: &Path, python: &Path) -> Result<()> {
    let package = shipped_file(dist, "divvy_", ".deb")?;
    if answer(Command::new("dpkg-deb").arg("--version")).is_none() {
        eprintln!("   SKIPPED: the .deb is not unpacked: no dpkg-deb");
        return Ok(());
    }
    let to = place.join("deb");
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(&package)
        .arg(&to))?;
    check_files("deb", &super::tree::files(&to)?)?;
    check_zsh(&to, "vendor-completions")?;
    let scripts = place.join("deb-control");
    run(Command::new("dpkg-deb")
        .arg("--control")
        .arg(&package)
        .arg(&scripts))?;
    for script in ["postinst", "prerm", "postrm"] {
        let text = fs::read_to_string(scripts.join(script))?;
        for mark in ["#UNITS#", "#UPGRADE#"] {
            ensure!(!text.contains(mark), "{script} has {mark} in it");
        }
    }
    use_tree(platform, &to, place, python)
}

/// As on RHEL: Debian's rpm has its own database in a user's home.
const RPM_DATABASE: [&str; 2] = ["--dbpath", "/var/lib/rpm"];

fn rpm(platform: &Platform, dist: &Path, place: &Path, python: &Path) -> Result<()> {
    let package = shipped_file(dist, "divvy-", ".rpm")?;
    if answer(Command::new("rpm").arg("--version")).is_none() {
        eprintln!("   SKIPPED: the .rpm is not installed: no rpm");
        return Ok(());
    }
    let to = place.join("rpm");
    fs::create_dir_all(&to)?;
    // Into an empty root: scripts have no shell there, and what it requires is not installed.
    run(Command::new("rpm")
        .args(["--install", "--nodeps", "--noscripts", "--ignorearch"])
        .args(RPM_DATABASE)
        .arg("--root")
        .arg(&to)
        .arg(&package))?;
    let mut files = super::tree::files(&to)?;
    files.retain(|file| !file.starts_with("var/lib/") && !file.starts_with("usr/lib/sysimage"));
    check_files("rpm", &files)?;
    check_zsh(&to, "site-functions")?;
    use_tree(platform, &to, place, python)?;
    run(Command::new("rpm")
        .args(["--erase", "--nodeps", "--noscripts"])
        .args(RPM_DATABASE)
        .arg("--root")
        .arg(&to)
        .arg("divvy"))?;
    let left = super::tree::files(&to)?;
    if let Some(file) = left.iter().find(|file| file.contains("divvy")) {
        bail!("rpm left /{file}");
    }
    Ok(())
}

/// Whether zsh of the distribution finds its completion in an unpacked package.
fn check_zsh(package: &Path, folder: &str) -> Result<()> {
    let file = package.join("usr/share/zsh").join(folder).join("_divvy");
    ensure!(file.is_file(), "there is no {}", file.display());
    Ok(())
}

/// Runs the program of an unpacked package.
fn use_tree(platform: &Platform, package: &Path, place: &Path, python: &Path) -> Result<()> {
    let mut divvy = platform.job(&package.join("usr/bin/divvy"), place)?;
    divvy.args([
        "run",
        "--no-daemon",
        "--sim",
        "l4-24gb:1",
        "-g",
        "0.5",
        "--",
    ]);
    divvy.arg(python).arg("--version");
    run(alone(&mut divvy, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_without_a_library_or_with_a_test_is_refused() {
        let whole = wanted();
        assert!(check_files("deb", &whole).is_ok());
        let page = "usr/share/man/man1/divvy-k8s-probe.1.gz".to_owned();
        assert!(check_files("deb", &[&whole[..], &[page]].concat()).is_ok());
        for at in 0..whole.len() {
            let mut less = whole.clone();
            let missing = less.remove(at);
            let error = check_files("deb", &less).expect_err("a file is missing");
            assert!(error.to_string().contains(&missing), "{error}");
        }
        for more in ["usr/bin/cudarc_probe", "etc/divvy/config.toml"] {
            let mut files = whole.clone();
            files.push(more.to_owned());
            assert!(check_files("deb", &files).is_err(), "{more}");
        }
    }
}
