//! The packages for Debian and Ubuntu (cargo-deb) and for RHEL, Fedora and SUSE (cargo-generate-rpm).
//!
//! Both tools read a manifest. Theirs lies in a folder of its own, beside a copy of the release in the layout of a root. It names
//! every file, because the tools' patterns cannot express the folders of a release.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::platform::Architecture;
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

/// The line that stands for what the scripts of both packages do after an installation.
const UPGRADE: &str = "#UPGRADE#\n";

/// The name that stands for the folders of the package alone, each after those in it.
const FOLDERS: &str = "#FOLDERS#";

/// A folder with the manifest and all files.
pub struct Staged {
    folder: PathBuf,
    /// Paths from `/`, without the leading slash.
    files: Vec<String>,
    architecture: Architecture,
    /// `2.N` of the newest glibc that a file needs.
    glibc: u32,
    time: i64,
}

impl Staged {
    /// Lays out the files below `/usr`.
    pub fn lay(
        tree: &Path,
        sbom: &Path,
        architecture: Architecture,
        glibc: u32,
        time: i64,
    ) -> Result<Self> {
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
            tree::copy(&tree.join(&file), &place.join("usr").join(&file))?;
        }
        let doc = place.join("usr/share/doc/divvy");
        tree::copy(sbom, &doc.join(SBOM))?;
        compress_pages(&place.join("usr").join(PAGES))?;
        let units = tree::units(tree)?.join(" ");
        let scripts = root().join("deploy/packaging");
        fs::write(folder.join("copyright"), COPYRIGHT)?;
        tree::copy(&root().join("LICENSE"), &folder.join("LICENSE"))?;
        tree::copy(&scripts.join("deb.lintian"), &place.join(LINTIAN))?;
        fs::write(folder.join("changelog"), changelog(time)?)?;
        fs::write(folder.join("lib.rs"), "")?;
        let files = tree::files(&place)?;
        let folders = folders(&files).join(" ");
        for kind in ["deb", "rpm"] {
            for script in tree::names(&scripts.join(kind))? {
                let text = script_of(kind, &script, &units, &folders)?;
                let to = folder.join(kind).join(&script);
                fs::create_dir_all(folder.join(kind))?;
                fs::write(&to, text)?;
                fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
            }
        }
        let staged = Self {
            folder,
            files,
            architecture,
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
            let to = debian(file);
            let _ = writeln!(text, "  [\"root/{file}\", \"{to}\", \"{mode}\"],");
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
        let architecture = self.architecture.debian();
        command
            .args(["--target", &self.architecture.triple()])
            .arg("--output")
            .arg(dist.join(format!("divvy_{VERSION}_{architecture}.deb")));
        run(&mut command)
    }

    /// Writes the package for RHEL, Fedora and SUSE into a folder.
    pub fn rpm(&self, dist: &Path, quick: bool) -> Result<()> {
        let (name, version) = RPM;
        tools::crate_program(name, version)?;
        let mut command = self.command("generate-rpm");
        let kind = if quick { "none" } else { "gzip" };
        command.args(["--payload-compress", kind]);
        let architecture = self.architecture.name();
        command
            .args(["--arch", architecture])
            .arg("--output")
            .arg(dist.join(format!("divvy-{VERSION}-1.{architecture}.rpm")));
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

/// The place of a file on Debian, where zsh reads completions of packages from a folder of its own. Others read
/// `site-functions`.
fn debian(file: &str) -> String {
    file.replace("share/zsh/site-functions", "share/zsh/vendor-completions")
}

/// The folders that no other package has, each after those in it.
fn folders(files: &[String]) -> Vec<&str> {
    let all = files.iter().flat_map(|file| {
        let ends = file.match_indices('/');
        ends.map(move |(at, _)| &file[..at])
    });
    let own: BTreeSet<&str> = all
        .chain(["usr/share/licenses/divvy"])
        .filter(|folder| folder.split('/').any(|part| part == "divvy"))
        .collect();
    own.into_iter().rev().collect()
}

/// A script of a package, with the names of the units and folders.
fn script_of(kind: &str, name: &str, units: &str, folders: &str) -> Result<String> {
    let scripts = root().join("deploy/packaging");
    let upgrade = fs::read_to_string(scripts.join("upgrade.sh"))?;
    let text = fs::read_to_string(scripts.join(kind).join(name))?;
    let text = text.replace(UPGRADE, &upgrade).replace(UNITS, units);
    Ok(text.replace(FOLDERS, folders))
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
            architecture: Architecture::HERE,
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
                let text =
                    script_of(kind, &script, "divvy.service", "usr/lib/divvy").expect("readable");
                assert!(!text.contains("#UPGRADE#"), "{kind}/{script}");
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
        let text = script_of("deb", name, "divvy.service", "").expect("readable");
        shell(&text, &[name, word], root)
    }

    /// A text with its name and arguments, by the root's own programs first.
    fn shell(text: &str, words: &[&str], root: &Path) -> (Option<i32>, String) {
        let mut command = Command::new("sh");
        command.args(["-c", text]).args(words);
        let programs = format!("{}:/usr/bin:/bin", root.join("stubs").display());
        command.env("DPKG_ROOT", root).env("PATH", programs);
        let output = command.output().expect("sh runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    }

    /// A program of a root that notes its call in the root's `calls`, says this on stderr and ends with a code.
    fn stub(root: &Path, program: &str, says: &str, code: u8) {
        let path = root.join(program);
        let name = Path::new(program).file_name().expect("a name").display();
        let calls = root.join("calls");
        let calls = calls.display();
        let text = format!("#!/bin/sh\necho \"{name} $*\" >>{calls}\n{says}exit {code}\n");
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, text).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    }

    /// What the stubs of a root were called with since the last question.
    fn calls(root: &Path) -> String {
        let calls = fs::read_to_string(root.join("calls")).unwrap_or_default();
        let _ = fs::remove_file(root.join("calls"));
        calls
    }

    /// An empty folder for the test of this name.
    fn stand_in(name: &str) -> PathBuf {
        let folder = target().join("tmp").join(name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("made");
        folder
    }

    /// A root with systemd, a running daemon and the new program.
    fn upgraded(name: &str) -> PathBuf {
        let root = stand_in(name);
        for program in ["systemctl", "deb-systemd-invoke", "systemd-tmpfiles"] {
            stub(&root, &format!("stubs/{program}"), "", 0);
        }
        stub(&root, "usr/bin/divvy", "", 0);
        for folder in ["run/systemd/system", "etc/divvy", "usr/lib/systemd/system"] {
            fs::create_dir_all(root.join(folder)).expect("made");
        }
        fs::write(root.join("etc/divvy/config.toml"), "").expect("written");
        root
    }

    /// The scripts that run after an upgrade, with their arguments and the program that restarts the daemon. The rpm's
    /// has no other root, so the test names one.
    fn after_upgrade(root: &Path) -> [(String, Vec<&'static str>, &'static str); 2] {
        let deb = script_of("deb", "postinst", "divvy.service", "").expect("readable");
        let rpm = script_of("rpm", "post", "divvy.service", "").expect("readable");
        let place = root.display().to_string();
        let rpm = rpm.replace("root=\n", &format!("root={place}\n"));
        let rpm = rpm.replace("mkdir -p /etc", &format!("mkdir -p {place}/etc"));
        let rpm = rpm.replace("-d /run", &format!("-d {place}/run"));
        [
            (
                deb,
                vec!["postinst", "configure", "0.0.9"],
                "deb-systemd-invoke",
            ),
            (rpm, vec!["post", "2"], "systemctl"),
        ]
    }

    #[test]
    fn an_upgrade_restarts_the_daemon_after_the_new_program_has_read_the_configuration() {
        let root = upgraded("root-of-an-upgrade");
        for (text, words, restarts) in after_upgrade(&root) {
            assert_eq!(shell(&text, &words, &root), (Some(0), String::new()));
            let calls = calls(&root);
            let check = calls.find("divvy config check --system\n");
            let restart = calls.find(&format!("{restarts} try-restart divvy.service\n"));
            assert!(check.is_some() && check < restart, "{calls}");
        }
        // Without a file there is nothing to check, and every key has its default.
        fs::remove_file(root.join("etc/divvy/config.toml")).expect("removed");
        for (text, words, _) in after_upgrade(&root) {
            assert_eq!(shell(&text, &words, &root), (Some(0), String::new()));
            let calls = calls(&root);
            assert!(
                calls.contains("try-restart") && !calls.contains("config check"),
                "{calls}"
            );
        }
        // A daemon that does not run is not restarted, and the first installation starts none.
        stub(
            &root,
            "stubs/systemctl",
            "[ \"$1\" != is-active ] || exit 3\n",
            0,
        );
        for (text, words, _) in after_upgrade(&root) {
            assert_eq!(shell(&text, &words, &root), (Some(0), String::new()));
            assert!(!calls(&root).contains("try-restart"));
        }
        stub(&root, "stubs/systemctl", "", 0);
        for (text, words, _) in after_upgrade(&root) {
            let first = [
                &words[..words.len() - 1],
                &[if words.len() == 2 { "1" } else { "" }],
            ]
            .concat();
            assert_eq!(shell(&text, &first, &root), (Some(0), String::new()));
            assert!(!calls(&root).contains("try-restart"));
        }
    }

    #[test]
    fn an_upgrade_with_a_configuration_that_the_new_program_refuses_leaves_the_old_daemon_running()
    {
        let root = upgraded("root-of-a-refused-configuration");
        let problem = "error: /etc/divvy/config.toml:3:1: unknown key `grase`";
        stub(
            &root,
            "usr/bin/divvy",
            &format!("echo '{problem}' >&2\n").replace('`', ""),
            2,
        );
        for (text, words, _) in after_upgrade(&root) {
            let (code, said) = shell(&text, &words, &root);
            assert_eq!(code, Some(0), "{said}");
            assert!(
                said.starts_with("error: /etc/divvy/config.toml:3:1: "),
                "{said}"
            );
            assert!(
                said.contains("the daemon of the former version serves on"),
                "{said}"
            );
            assert!(said.ends_with("then: systemctl restart divvy\n"), "{said}");
            assert!(!calls(&root).contains("try-restart"));
        }
    }

    #[test]
    fn an_upgrade_with_a_flag_that_became_a_key_leaves_the_old_daemon_running() {
        let root = upgraded("root-of-a-former-flag");
        let unit = "{ path=/usr/bin/divvy ; argv[]=/usr/bin/divvy daemon --system --grace 30s ; ignore_errors=no ; pid=7 }";
        let shows = format!("[ \"$1\" != show ] || echo '{unit}'\n");
        stub(&root, "stubs/systemctl", &shows, 0);
        let refuses = "case \"$*\" in *--status) echo 'error: --grace is the key grace of the file' >&2; exit 2 ;; esac\n";
        stub(&root, "usr/bin/divvy", refuses, 0);
        for (text, words, _) in after_upgrade(&root) {
            let (code, said) = shell(&text, &words, &root);
            assert_eq!(code, Some(0), "{said}");
            assert!(
                said.starts_with("error: --grace is the key grace"),
                "{said}"
            );
            assert!(
                said.contains("the daemon of the former version serves on"),
                "{said}"
            );
            let calls = calls(&root);
            assert!(
                calls.contains("divvy daemon --system --grace 30s --status\n")
                    && !calls.contains("try-restart"),
                "{calls}"
            );
        }
        // Whatever else the flags are wrong in, the restart shows it.
        let other =
            "case \"$*\" in *--status) echo 'error: no daemon answers' >&2; exit 7 ;; esac\n";
        stub(&root, "usr/bin/divvy", other, 0);
        for (text, words, restarts) in after_upgrade(&root) {
            assert_eq!(shell(&text, &words, &root), (Some(0), String::new()));
            assert!(calls(&root).contains(&format!("{restarts} try-restart divvy.service\n")));
        }
    }

    #[test]
    fn an_installation_names_the_units_that_hide_those_of_the_package() {
        let root = upgraded("root-of-an-old-unit");
        let packaged = root.join("usr/lib/systemd/system/divvy.service");
        fs::write(&packaged, "[Unit]\n").expect("written");
        let own = root.join("etc/systemd/system/divvy.service");
        fs::create_dir_all(own.parent().expect("a folder")).expect("made");
        let said = || {
            let all = after_upgrade(&root).map(|(text, words, _)| shell(&text, &words, &root));
            all.map(|(code, said)| {
                assert_eq!(code, Some(0), "{said}");
                said
            })
        };
        assert_eq!(said(), ["", ""], "the package's unit alone");
        fs::write(&own, "[Unit]\n").expect("written");
        let command = format!(
            "rm {} && systemctl daemon-reload && systemctl restart divvy\n",
            own.display()
        );
        for said in said() {
            assert!(said.contains("hides the package's unit"), "{said}");
            assert!(said.ends_with(&command), "{said}");
        }
        // Masked, and linked to the package's.
        for target in [Path::new("/dev/null"), &packaged] {
            fs::remove_file(&own).expect("removed");
            std::os::unix::fs::symlink(target, &own).expect("linked");
            assert_eq!(said(), ["", ""], "{}", target.display());
        }
    }

    #[test]
    fn a_removed_rpm_leaves_no_folder_of_its_own() {
        let files = [
            "usr/lib/divvy/libdivvy_sim.so",
            "usr/lib/systemd/system/divvy.service",
            "usr/share/doc/divvy/docs/decisions/001.md",
            "usr/share/zsh/site-functions/_divvy",
        ]
        .map(str::to_owned);
        let own = folders(&files);
        let expected = [
            "usr/share/licenses/divvy",
            "usr/share/doc/divvy/docs/decisions",
            "usr/share/doc/divvy/docs",
            "usr/share/doc/divvy",
            "usr/lib/divvy",
        ];
        assert_eq!(own, expected);
        let root = stand_in("root-of-a-removed-rpm");
        for folder in &own {
            fs::create_dir_all(root.join(folder)).expect("made");
        }
        fs::write(root.join("usr/lib/divvy/mine"), "").expect("written");
        let text = script_of("rpm", "postun", "", &own.join(" ")).expect("readable");
        let text = text.replace("\"/$folder\"", "\"$DPKG_ROOT/$folder\"");
        let text = text.replace("-d /run", &format!("-d {}/run", root.display()));
        assert_eq!(
            shell(&text, &["postun", "1"], &root),
            (Some(0), String::new())
        );
        assert!(root.join("usr/share/doc/divvy/docs").is_dir(), "an upgrade");
        assert_eq!(
            shell(&text, &["postun", "0"], &root),
            (Some(0), String::new())
        );
        assert!(!root.join("usr/share/doc/divvy").exists());
        assert!(root.join("usr/share/doc").is_dir() && root.join("usr/lib/divvy/mine").is_file());
    }

    #[test]
    fn zsh_of_each_distribution_finds_the_completion() {
        let text = staged(&["usr/share/zsh/site-functions/_divvy"]).manifest();
        for place in [
            "\"usr/share/zsh/vendor-completions/_divvy\"",
            "dest = \"/usr/share/zsh/site-functions/_divvy\"",
        ] {
            assert!(text.contains(place), "{text}");
        }
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
