//! The packages for Debian and Ubuntu (cargo-deb) and for RHEL, Fedora and SUSE (cargo-generate-rpm).
//!
//! Both tools read a manifest. Theirs lies in a folder of its own, beside a copy of the release in the layout of a root. It names
//! every file, because the tools' patterns cannot express the folders of a release.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::tree::{self, PAGES};
use super::{SBOM, VERSION};
use crate::cargo::{cargo, root, target};
use crate::steps::run;
use crate::tools;

const DEB: (&str, &str) = ("cargo-deb", "3.8.0");
const RPM: (&str, &str) = ("cargo-generate-rpm", "0.21.1");

const MAINTAINER: &str = "Divvy authors <divvy@users.noreply.github.com>";
const SUMMARY: &str = "fractions of NVIDIA GPUs with hard limits, per job";
const DESCRIPTION: &str = "\
Divvy cuts NVIDIA GPUs into fractions, per job and on the fly. Several jobs share one GPU, and each gets a hard memory limit and a \
share of compute time. Jobs wait in queues.";

/// The name that stands for the system's units in scripts of packages.
const UNITS: &str = "#UNITS#";

/// A folder with the manifest and all files.
pub struct Staged {
    folder: PathBuf,
    /// Paths from `/`, without the leading slash.
    files: Vec<String>,
    /// `2.N` of the newest glibc that a file needs.
    glibc: u32,
    time: i64,
}

impl Staged {
    /// Lays out the files below `/usr`.
    pub fn lay(tree: &Path, sbom: &Path, glibc: u32, time: i64) -> Result<Self> {
        let folder = target().join("dist-package");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let place = folder.join("root");
        for file in tree::files(tree)? {
            // Distributions have their licences elsewhere.
            if file == "share/doc/divvy/LICENSE" {
                continue;
            }
            let to = place.join("usr").join(zsh(&file));
            tree::copy(&tree.join(&file), &to)?;
        }
        let doc = place.join("usr/share/doc/divvy");
        tree::copy(sbom, &doc.join(SBOM))?;
        compress_pages(&place.join("usr").join(PAGES))?;
        let units = tree::units(tree)?.join(" ");
        let scripts = root().join("deploy/packaging");
        for kind in ["deb", "rpm"] {
            for script in tree::names(&scripts.join(kind))? {
                let from = scripts.join(kind).join(&script);
                let text = fs::read_to_string(&from)?.replace(UNITS, &units);
                let to = folder.join(kind).join(&script);
                fs::create_dir_all(folder.join(kind))?;
                fs::write(&to, text)?;
                fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
            }
        }
        fs::write(folder.join("copyright"), COPYRIGHT)?;
        tree::copy(&root().join("LICENSE"), &folder.join("LICENSE"))?;
        tree::copy(&scripts.join("deb.lintian"), &place.join(LINTIAN))?;
        fs::write(folder.join("changelog"), changelog(time)?)?;
        fs::write(folder.join("lib.rs"), "")?;
        let files = tree::files(&place)?;
        let staged = Self {
            folder,
            files,
            glibc,
            time,
        };
        fs::write(staged.folder.join("Cargo.toml"), staged.manifest())?;
        Ok(staged)
    }

    fn mode(file: &str) -> &'static str {
        let below = file.strip_prefix("usr/").unwrap_or(file);
        if tree::is_program(below) {
            "755"
        } else {
            "644"
        }
    }

    fn manifest(&self) -> String {
        let mut text = format!(
            "[package]\nname = \"divvy\"\nversion = \"{VERSION}\"\nedition = \"2024\"\nlicense = \"Apache-2.0\"\n\
             description = \"{SUMMARY}\"\n\n[lib]\npath = \"lib.rs\"\n\n[workspace]\n\n"
        );
        let glibc = self.glibc;
        let _ = write!(
            text,
            "[package.metadata.deb]\nmaintainer = \"{MAINTAINER}\"\ncopyright = \"The Divvy authors\"\n\
             license-file = [\"copyright\", \"0\"]\nchangelog = \"changelog\"\n\
             extended-description = \"{DESCRIPTION}\"\nsection = \"admin\"\npriority = \"optional\"\n\
             depends = \"libc6 (>= 2.{glibc}), libgcc-s1 | libgcc1\"\nmaintainer-scripts = \"deb\"\nassets = [\n"
        );
        for file in &self.files {
            let mode = Self::mode(file);
            let _ = writeln!(text, "  [\"root/{file}\", \"{file}\", \"{mode}\"],");
        }
        text.push_str("]\n\n[package.metadata.generate-rpm]\nassets = [\n");
        for file in self.files.iter().filter(|file| *file != LINTIAN) {
            let mode = Self::mode(file);
            let is_doc = file.starts_with("usr/share/doc/");
            let _ = writeln!(
                text,
                "  {{ source = \"root/{file}\", dest = \"/{file}\", mode = \"{mode}\", doc = {is_doc} }},"
            );
        }
        text.push_str(
            "  { source = \"LICENSE\", dest = \"/usr/share/licenses/divvy/LICENSE\", mode = \"644\" },\n]\n\
             auto-req = \"no\"\nrequire-sh = true\nvendor = \"Divvy authors\"\n",
        );
        for (key, script) in [
            ("post_install_script", "post"),
            ("pre_uninstall_script", "preun"),
            ("post_uninstall_script", "postun"),
        ] {
            let _ = writeln!(text, "{key} = \"rpm/{script}\"");
        }
        let _ = write!(
            text,
            "\n[package.metadata.generate-rpm.requires]\n\"libc.so.6(GLIBC_2.{glibc})(64bit)\" = \"*\"\n\
             \"libgcc_s.so.1()(64bit)\" = \"*\"\n"
        );
        text
    }

    /// Writes the package for Debian and Ubuntu into a folder.
    pub fn deb(&self, dist: &Path, quick: bool) -> Result<()> {
        let (name, version) = DEB;
        tools::crate_program(name, version)?;
        let mut command = self.command("deb");
        // By the machine's gzip and xz: cargo-deb's own are not optimised.
        let kind = if quick { "gzip" } else { "xz" };
        command.args([
            "--quiet",
            "--no-build",
            "--no-strip",
            "--compress-system",
            "--compress-type",
            kind,
        ]);
        command
            .arg("--output")
            .arg(dist.join(format!("divvy_{VERSION}_amd64.deb")));
        run(&mut command)
    }

    /// Writes the package for RHEL, Fedora and SUSE into a folder.
    pub fn rpm(&self, dist: &Path, quick: bool) -> Result<()> {
        let (name, version) = RPM;
        tools::crate_program(name, version)?;
        let mut command = self.command("generate-rpm");
        let kind = if quick { "none" } else { "gzip" };
        command.args(["--payload-compress", kind]);
        command
            .arg("--output")
            .arg(dist.join(format!("divvy-{VERSION}-1.x86_64.rpm")));
        run(&mut command)
    }

    fn command(&self, word: &str) -> Command {
        let mut command = cargo(&[word]);
        let tools = target().join("tools/bin");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::iter::once(tools).chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(path) {
            command.env("PATH", path);
        }
        command.env("SOURCE_DATE_EPOCH", self.time.to_string());
        command.env("CARGO_TARGET_DIR", self.folder.join("target"));
        command.current_dir(&self.folder);
        command
    }
}

/// Debian and Fedora have the folder of zsh's completions at different places; both read this one.
fn zsh(file: &str) -> String {
    file.replace("share/zsh/site-functions", "share/zsh/vendor-completions")
}

/// Compresses manual pages, as distributions do.
fn compress_pages(folder: &Path) -> Result<()> {
    let pages = tree::names(folder)?;
    run(Command::new("gzip")
        .args(["--no-name", "--best"])
        .args(pages)
        .current_dir(folder))
}

/// The licence in the form of Debian, which has the text of Apache-2.0 itself.
const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Divvy

Files: *
Copyright: 2026 The Divvy authors
License: Apache-2.0
 On Debian systems, the text of the licence is in /usr/share/common-licenses/Apache-2.0.
";

/// Where lintian finds the findings that are intended; of Debian alone.
const LINTIAN: &str = "usr/share/lintian/overrides/divvy";

/// Debian's form of a changelog, with one entry.
fn changelog(time: i64) -> Result<String> {
    let time = jiff::Timestamp::from_second(time)?.to_zoned(jiff::tz::TimeZone::UTC);
    let date = time.strftime("%a, %d %b %Y %H:%M:%S +0000");
    Ok(format!(
        "divvy ({VERSION}) unstable; urgency=medium\n\n  * Release {VERSION}.\n\n -- {MAINTAINER}  {date}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(files: &[&str]) -> Staged {
        Staged {
            folder: PathBuf::new(),
            files: files.iter().map(ToString::to_string).collect(),
            glibc: 28,
            time: 0,
        }
    }

    #[test]
    fn the_manifest_names_every_file_for_both_tools() {
        let text = staged(&["usr/bin/divvy", "usr/lib/divvy/libdivvy_sim.so"]).manifest();
        let manifest: toml::Table = toml::from_str(&text).expect("TOML");
        let metadata = &manifest["package"]["metadata"];
        let deb = metadata["deb"]["assets"].as_array().expect("a list");
        assert_eq!(deb[0][2].as_str(), Some("755"));
        assert_eq!(deb[1][2].as_str(), Some("644"));
        let rpm = metadata["generate-rpm"]["assets"]
            .as_array()
            .expect("a list");
        assert_eq!(rpm[0]["dest"].as_str(), Some("/usr/bin/divvy"));
        assert_eq!((deb.len(), rpm.len()), (2, 3));
        let depends = metadata["deb"]["depends"].as_str().expect("text");
        assert!(depends.contains("libc6 (>= 2.28)"), "{depends}");
    }

    #[test]
    fn scripts_of_packages_are_shell_and_fail_nowhere_without_systemd() {
        let folder = root().join("deploy/packaging");
        for kind in ["deb", "rpm"] {
            for script in tree::names(&folder.join(kind)).expect("a folder") {
                let path = folder.join(kind).join(&script);
                let text = fs::read_to_string(&path).expect("readable");
                let text = text.replace(UNITS, "divvy.service");
                let checked = Command::new("sh").args(["-n", "-c", &text]).status();
                assert!(checked.expect("sh runs").success(), "{kind}/{script}");
                // A failed call of systemd must not fail the installation.
                let calls = text.lines().map(str::trim).filter(|line| {
                    line.starts_with("systemctl")
                        || line.starts_with("systemd-")
                        || line.starts_with("deb-systemd-invoke")
                });
                for call in calls {
                    let is_safe = call.ends_with("|| true") || call.ends_with("|| :");
                    assert!(is_safe, "{kind}/{script}: {call}");
                }
            }
        }
    }

    /// A script of the .deb on a root of its own; its code, and what it says.
    fn script(name: &str, word: &str, root: &Path) -> (Option<i32>, String) {
        let text = fs::read_to_string(crate::cargo::root().join("deploy/packaging/deb").join(name));
        let text = text.expect("readable").replace(UNITS, "divvy.service");
        let mut command = Command::new("sh");
        command.args(["-c", &text, name, word]);
        let output = command.env("DPKG_ROOT", root).output().expect("sh runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    }

    /// An empty folder for the test of this name.
    fn stand_in(name: &str) -> PathBuf {
        let folder = target().join("tmp").join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("made");
        folder
    }

    #[test]
    fn a_purge_beside_jobs_lists_their_processes_and_deletes_nothing() {
        let root = stand_in("root-of-a-purge");
        let at = |path: &str| root.join(path);
        let write = |path: &str, text: &str| {
            let path = at(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let unit = "sys/fs/cgroup/divvy.slice/divvy-forkserver.service";
        let job = format!("{unit}/divvy-3ff38f45-0badcafe-1/cgroup.procs");
        let supervisors = format!("{unit}/cgroup.procs");
        write(&job, "4242\n");
        let many: String = (5000..5100).map(|pid| format!("{pid}\n")).collect();
        write(&supervisors, &many);
        write("sys/fs/cgroup/user.slice/cgroup.procs", "7\n");
        fs::create_dir_all(at("proc/4242")).expect("made");
        let kept = [
            "var/lib/divvy/state.db",
            "run/divvy/sock",
            "etc/divvy/config.toml",
            "etc/motd.d/divvy",
        ];
        for file in kept {
            write(file, "");
        }
        let (code, said) = script("postrm", "purge", &root);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("of 101 the first 20"), "{said}");
        assert_eq!(said.lines().count(), 22, "the list has a bound: {said}");
        assert!(
            said.contains("dpkg --purge divvy") && !said.contains("pid 7 "),
            "{said}"
        );
        assert!(kept.iter().all(|file| at(file).exists()));
        write(&supervisors, "");
        let (code, said) = script("postrm", "purge", &root);
        assert_eq!(code, Some(1), "{said}");
        assert!(
            said.contains("pid 4242 of ") && said.contains("in divvy-3ff38f45-0badcafe-1"),
            "{said}"
        );
        write(&job, "");
        // A removal never deletes the state.
        assert_eq!(script("postrm", "remove", &root).0, Some(0));
        assert!(kept.iter().all(|file| at(file).exists()));
        let (code, said) = script("postrm", "purge", &root);
        assert_eq!((code, said.as_str()), (Some(0), ""));
        assert!(kept.iter().all(|file| !at(file).exists()));
        assert!(at("etc/motd.d").is_dir(), "other messages stay");
    }

    #[test]
    fn a_removal_says_that_the_device_filter_stays() {
        let root = stand_in("root-of-a-removal");
        let config = root.join("etc/divvy");
        fs::create_dir_all(&config).expect("made");
        for (text, warns) in [
            ("device-nodes = \"jobs\"\n", true),
            ("  device-nodes=\"jobs\" # why\n", true),
            ("device-nodes = \"open\"\n", false),
            ("# device-nodes = \"jobs\"\n", false),
        ] {
            fs::write(config.join("config.toml"), text).expect("written");
            let (code, said) = script("prerm", "remove", &root);
            assert_eq!(
                (code, said.contains("until the machine restarts")),
                (Some(0), warns),
                "{text}"
            );
            assert!(!script("prerm", "upgrade", &root).1.contains("restarts"));
        }
    }

    #[test]
    fn the_changelog_has_debians_form() {
        let text = changelog(1_700_000_000).expect("a date");
        assert!(
            text.ends_with("  Tue, 14 Nov 2023 22:13:20 +0000\n"),
            "{text}"
        );
        assert!(text.starts_with(&format!("divvy ({VERSION}) ")));
    }
}
