//! A release in roots of other distributions: a clean Debian, and Ubuntu releases with an older glibc. Each root comes from the
//! distribution's archive, once, into `target/roots`. Without root's rights, the tools or the network, a step is skipped and
//! reports the reason.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::build::{GLIBC, glibc_needed};
use super::tree::copy;
use super::{VERSION, guide, shipped_file};
use crate::cargo::target;
use crate::steps::{answer, run};

/// Why a step cannot run here.
pub struct Skipped(pub String);

fn has(program: &str) -> Result<(), Skipped> {
    let found = answer(Command::new("sh").args(["-c", &format!("command -v {program}")]));
    found.map(drop).ok_or(Skipped(format!("no {program}")))
}

fn is_root() -> Result<(), Skipped> {
    let is_root = answer(Command::new("id").arg("-u")).as_deref() == Some("0");
    is_root.then_some(()).ok_or(Skipped("not root".to_owned()))
}

/// Runs both steps, or reports why not.
pub fn all(dist: &Path, tree: &Path, place: &Path) -> Result<()> {
    match debian("bookworm", "", &[], |_| Ok(())) {
        Ok(root) => clean(dist, &root, place)?,
        Err(Skipped(why)) => eprintln!("   SKIPPED: the .deb in a clean Debian: {why}"),
    }
    for suite in ["bookworm", "trixie"] {
        match debian(
            suite,
            "-systemd",
            &["--include=systemd,systemd-sysv"],
            |_| Ok(()),
        ) {
            Ok(root) => guide::follow(dist, suite, &root, place)?,
            Err(Skipped(why)) => eprintln!("   SKIPPED: the guide on Debian {suite}: {why}"),
        }
    }
    for old in &OLD {
        match old.make() {
            Ok(root) => old.check(tree, &root, place)?,
            Err(Skipped(why)) => eprintln!("   SKIPPED: an old glibc, {}: {why}", old.suite),
        }
    }
    Ok(())
}

/// The script by which debootstrap makes every newer suite, and the archive, which the command line then has to name.
const NEWER: [&str; 2] = [
    "http://deb.debian.org/debian",
    "/usr/share/debootstrap/scripts/sid",
];

/// A clean Debian of this suite, kept under the suite's name and this ending. `ready` adds what debootstrap cannot.
pub fn debian(
    suite: &str,
    ending: &str,
    options: &[&str],
    ready: impl Fn(&Path) -> Result<()>,
) -> Result<PathBuf, Skipped> {
    is_root()?;
    for program in ["debootstrap", "unshare", "dpkg-deb"] {
        has(program)?;
    }
    let root = target().join("roots").join(format!("{suite}{ending}"));
    if root.join("made").is_file() {
        return Ok(root);
    }
    let _ = fs::remove_dir_all(&root);
    let mut command = Command::new("debootstrap");
    command.arg("--variant=minbase").args(options);
    command.arg(suite).arg(&root);
    if !Path::new("/usr/share/debootstrap/scripts")
        .join(suite)
        .exists()
    {
        command.args(NEWER);
    }
    let made = command.stdout(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        return Err(Skipped("debootstrap failed".to_owned()));
    }
    ready(&root).map_err(|error| Skipped(format!("{error:#}")))?;
    let marked = fs::write(root.join("made"), "");
    marked.map_err(|error| Skipped(format!("{}: {error}", root.display())))?;
    Ok(root)
}

/// A command with a folder as `/` and nothing else of its own.
pub fn chroot(root: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("chroot");
    command
        .arg(root)
        .args(words)
        .env("PATH", PATH)
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}

pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Files that installation and removal of any package change.
const CHANGED: [&str; 8] = [
    "dev/",
    "run/",
    "var/lib/dpkg/",
    "var/log/",
    "var/cache/",
    "var/lib/systemd/",
    "etc/ld.so.cache",
    "tmp/",
];

fn files(root: &Path) -> Result<BTreeSet<String>> {
    let mut found = Command::new("find");
    found
        .args([".", "-xdev", "-printf", "%P\n"])
        .current_dir(root);
    let found = answer(&mut found).context("find failed")?;
    let is_kept = |path: &&str| !CHANGED.iter().any(|changed| path.starts_with(changed));
    Ok(found.lines().filter(is_kept).map(str::to_owned).collect())
}

/// Install, job, upgrade, remove, purge; no file is left.
fn clean(dist: &Path, root: &Path, place: &Path) -> Result<()> {
    let own = place.join("debian");
    run(Command::new("cp").arg("--archive").args([root, &own]))?;
    let before = files(&own)?;
    let package = shipped_file(dist, "divvy_", ".deb")?;
    copy(&package, &own.join("tmp/one.deb"))?;
    next_version(&package, place, &own.join("tmp/two.deb"))?;
    fs::write(own.join("tmp/test.sh"), include_str!("clean_debian.sh"))?;
    run(&mut inside(&own, place, &["/bin/sh", "/tmp/test.sh"])?)?;
    let after = files(&own)?;
    let left: Vec<&String> = after.difference(&before).collect();
    ensure!(left.is_empty(), "the purged package left {left:?}");
    let lost: Vec<&String> = before.difference(&after).collect();
    ensure!(lost.is_empty(), "the purged package took away {lost:?}");
    eprintln!("   clean Debian: files left 0");
    Ok(())
}

/// A command with a folder as `/`, in namespaces of its own.
pub fn inside(own: &Path, place: &Path, words: &[&str]) -> Result<Command> {
    let mut command = entered(own, place, &[], &[])?;
    command.args(words);
    Ok(command)
}

/// The same with folders of this machine; the caller adds the words.
pub fn with_folders(own: &Path, place: &Path, shared: &[PathBuf]) -> Result<Command> {
    entered(own, place, &[], shared)
}

/// The same where programs of arm64 run, by QEMU of that root.
pub fn emulated(own: &Path, place: &Path, shared: &[PathBuf]) -> Result<Command> {
    let mut command = entered(own, place, &["--user", "--map-root-user"], shared)?;
    command.arg("--emulate");
    Ok(command)
}

fn entered(own: &Path, place: &Path, more: &[&str], shared: &[PathBuf]) -> Result<Command> {
    fs::create_dir_all(place)?;
    let script = place.join("enter_root.sh");
    fs::write(&script, include_str!("enter_root.sh"))?;
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child"])
        .args(more)
        .arg("/bin/sh")
        .args([&script, own]);
    for folder in shared {
        command.arg("--share").arg(folder);
    }
    command.env_clear().env("PATH", PATH);
    Ok(command)
}

/// The same package with a higher version.
fn next_version(package: &Path, place: &Path, to: &Path) -> Result<()> {
    let folder = place.join("next");
    run(Command::new("dpkg-deb")
        .arg("--raw-extract")
        .args([package, &folder]))?;
    let control = folder.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let next = text
        .lines()
        .map(|line| match line.strip_prefix("Version: ") {
            Some(version) => format!("Version: {version}+next\n"),
            None => format!("{line}\n"),
        });
    fs::write(&control, next.collect::<String>())?;
    run(Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Zgzip", "-z1", "--build"])
        .args([&folder, to])
        .stdout(Stdio::null()))
}

/// A release of Ubuntu with an older glibc.
struct Old {
    suite: &'static str,
    /// `2.N`.
    glibc: u32,
    packages: &'static [&'static str],
}

/// Ubuntu 20.04 is new enough, and 18.04 is too old.
const OLD: [Old; 2] = [
    Old {
        suite: "focal",
        glibc: 31,
        packages: &["libc6", "libgcc-s1", "bash", "libtinfo6"],
    },
    Old {
        suite: "bionic",
        glibc: 27,
        packages: &["libc6", "libgcc1", "bash", "libtinfo5"],
    },
];

impl Old {
    /// Its C library and a shell, in a folder.
    fn make(&self) -> Result<PathBuf, Skipped> {
        is_root()?;
        for program in ["apt-get", "dpkg-deb"] {
            has(program)?;
        }
        let root = target().join("roots").join(self.suite);
        if !root.join("made").is_file() {
            let fetched = self.fetch(&root);
            fetched.map_err(|error| Skipped(format!("{error:#}")))?;
        }
        Ok(root)
    }

    fn fetch(&self, root: &Path) -> Result<()> {
        let apt = root.with_extension("apt");
        for folder in [root, &apt] {
            if folder.exists() {
                fs::remove_dir_all(folder)?;
            }
        }
        for folder in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(apt.join(folder))?;
        }
        let suite = self.suite;
        let line = format!("deb [trusted=yes] http://archive.ubuntu.com/ubuntu {suite} main\n");
        fs::write(apt.join("sources.list"), line)?;
        let option = |key: &str, value: &str| format!("--option={key}={value}");
        let below = |key: &str, name: &str| option(key, &apt.join(name).display().to_string());
        let options = [
            below("Dir::Etc::SourceList", "sources.list"),
            option("Dir::Etc::SourceParts", "/dev/null"),
            option("Dir::State::Status", "/dev/null"),
            below("Dir::State::Lists", "lists"),
            below("Dir::Cache", "cache"),
            option("APT::Sandbox::User", "root"),
        ];
        for words in [&["update"][..], &[&["download"], self.packages].concat()] {
            let mut command = Command::new("apt-get");
            command.args(&options).arg("--quiet=2").args(words);
            run(command.current_dir(&apt))?;
        }
        fs::create_dir_all(root)?;
        for name in super::tree::names(&apt)? {
            if name.ends_with(".deb") {
                run(Command::new("dpkg-deb")
                    .arg("--extract")
                    .arg(apt.join(name))
                    .arg(root))?;
            }
        }
        fs::remove_dir_all(&apt)?;
        fs::write(root.join("made"), "")?;
        Ok(())
    }

    /// Loads the limiter and the simulated driver into the root's shell, and runs the self-test where the program can run.
    fn check(&self, tree: &Path, root: &Path, place: &Path) -> Result<()> {
        let own = place.join(self.suite);
        run(Command::new("cp").arg("--archive").args([root, &own]))?;
        for (from, to) in [
            ("bin/divvy", "usr/bin/divvy"),
            ("lib/divvy", "usr/lib/divvy"),
        ] {
            copy(&tree.join(from), &own.join(to))?;
        }
        let loads = self.load(&own)?;
        let expected = self.glibc >= GLIBC;
        ensure!(
            loads == expected,
            "the limiter with glibc 2.{} of {}: loads: {loads}",
            self.glibc,
            self.suite
        );
        let (suite, glibc) = (self.suite, self.glibc);
        eprintln!("   {suite}, glibc 2.{glibc}: the limiter loads: {loads}");
        let program = glibc_needed(&own.join("usr/bin/divvy"))?;
        if program.minor > self.glibc {
            let needs = program.minor;
            eprintln!("   SKIPPED: the self-test in {suite}: the program needs glibc 2.{needs}");
            return Ok(());
        }
        let words = ["/usr/bin/divvy", "selftest", "--sim", "a100-80gb:1"];
        run(inside(&own, place, &words)?.env("DIVVY_HOME", "/tmp/divvy"))
    }

    /// Whether the loader of the root takes the libraries.
    fn load(&self, root: &Path) -> Result<bool> {
        // Set inside: this machine's chroot would load them too.
        let script = "LD_PRELOAD='/usr/lib/divvy/libdivvy_sim.so /usr/lib/divvy/libdivvy_preload.so' exec /bin/bash -c :";
        let output = Command::new("chroot")
            .arg(root)
            .args(["/bin/bash", "-c", script])
            .env_clear()
            .env("PATH", PATH)
            .stdin(Stdio::null())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.is_empty() && output.status.success() {
            return Ok(true);
        }
        match said.contains("version `GLIBC_2.") {
            true => Ok(false),
            false => bail!("divvy {VERSION} in {}: {said}", self.suite),
        }
    }
}
