//! The files of a release in the layout of an installation below `/usr` or `/usr/local`.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};

use super::build::BUILT;
use super::documents;
use super::platform::Platform;
use crate::cargo::root;
use crate::steps::{answer, run};

/// Folders and files of the repository, and where they lie when installed.
pub const SHARED: [(&str, &str); 13] = [
    ("ARCHITECTURE.md", "share/doc/divvy/ARCHITECTURE.md"),
    ("deploy/config.toml", "share/doc/divvy/examples/config.toml"),
    ("deploy/grafana", "share/divvy/grafana"),
    ("deploy/helm", "share/divvy/helm"),
    ("deploy/images", "share/divvy/images"),
    ("deploy/prometheus", "share/divvy/prometheus"),
    ("deploy/slurm", "share/divvy/slurm"),
    ("docs", "share/doc/divvy/docs"),
    ("examples", "share/doc/divvy/examples"),
    ("openapi", "share/doc/divvy/openapi"),
    ("README.md", "share/doc/divvy/README.md"),
    ("LIMITS.md", "share/doc/divvy/LIMITS.md"),
    ("LICENSE", "share/doc/divvy/LICENSE"),
];

/// Shells, and where each looks for what it may complete.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/divvy"),
    ("zsh", "share/zsh/site-functions/_divvy"),
    ("fish", "share/fish/vendor_completions.d/divvy.fish"),
];

/// Manual pages, without names of people; their date is that of the commit.
pub const PAGES: &str = "share/man/man1";

const UNITS: &str = "lib/systemd/system";

/// Files of systemd that are units; others are examples.
const UNIT_KINDS: [&str; 6] = ["mount", "path", "service", "slice", "socket", "target"];

/// Puts all files into a folder.
pub fn gather(
    platform: &Platform,
    built: &Path,
    tree: &Path,
    time: &str,
    quick: bool,
) -> Result<()> {
    for (_, file, place) in BUILT {
        let to = tree.join(place);
        fs::create_dir_all(&to)?;
        let (from, to) = (built.join(file), to.join(file));
        // Debugging information is most of a program, of a quick build too.
        let strip = if quick {
            "--strip-all"
        } else {
            "--strip-debug"
        };
        run(platform
            .binutils("strip")?
            .arg(strip)
            .arg("-o")
            .args([&to, &from]))?;
    }
    for (from, to) in SHARED {
        copy(&root().join(from), &tree.join(to))?;
    }
    documents::link(tree)?;
    systemd(tree)?;
    let divvy = tree.join("bin/divvy");
    for (shell, place) in COMPLETIONS {
        let script = answer(platform.run(&divvy).args(["completion", shell]));
        let script = script.with_context(|| format!("`divvy completion {shell}` failed"))?;
        let to = tree.join(place);
        fs::create_dir_all(to.parent().context("every place has a folder")?)?;
        fs::write(&to, script + "\n")?;
    }
    for (_, program, place) in BUILT.iter().filter(|(.., place)| *place == "bin") {
        run(platform
            .run(&tree.join(place).join(program))
            .arg("manual")
            .arg(tree.join(PAGES))
            .env("SOURCE_DATE_EPOCH", time)
            .stdout(Stdio::null()))?;
    }
    Ok(())
}

/// Units, the file for tmpfiles, and examples.
fn systemd(tree: &Path) -> Result<()> {
    let folder = root().join("deploy/systemd");
    copy(&folder.join("user"), &tree.join("lib/systemd/user"))?;
    for name in names(&folder)?.into_iter().filter(|name| name != "user") {
        let to = match is_unit(&name) {
            true => tree.join(UNITS),
            false => tree.join("share/doc/divvy/examples/systemd"),
        };
        copy(&folder.join(&name), &to.join(&name))?;
    }
    let packaging = root().join("deploy/packaging");
    copy(
        &packaging.join("tmpfiles.conf"),
        &tree.join("lib/tmpfiles.d/divvy.conf"),
    )
}

fn is_unit(name: &str) -> bool {
    let kind = name.rsplit_once('.').map(|(_, kind)| kind);
    kind.is_some_and(|kind| UNIT_KINDS.contains(&kind))
}

/// Names of the system's units.
pub fn units(tree: &Path) -> Result<Vec<String>> {
    names(&tree.join(UNITS))
}

/// Names in a folder, sorted.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Every file below a folder, by its path from there, sorted.
pub fn files(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for name in names(folder)? {
        let path = folder.join(&name);
        if path.is_dir() {
            found.extend(
                files(&path)?
                    .into_iter()
                    .map(|file| format!("{name}/{file}")),
            );
        } else {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a file of a release is a program, as its place shows.
pub fn is_program(file: &str) -> bool {
    let is_script = !file.contains('.') && !file.ends_with("/Dockerfile");
    let has_scripts = [
        "share/divvy/images/",
        "share/divvy/slurm/",
        "share/doc/divvy/examples/divvy-",
    ];
    file.starts_with("bin/")
        || has_scripts.iter().any(|folder| file.starts_with(folder)) && is_script
}

/// Copies a file, or a folder with everything in it.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_dir() {
        for name in names(from)? {
            copy(&from.join(&name), &to.join(&name))?;
        }
        return Ok(());
    }
    fs::create_dir_all(to.parent().context("every place has a folder")?)?;
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_told_from_examples() {
        for (name, expected) in [
            ("divvy.service", true),
            ("divvy-forkserver.socket", true),
            ("71-divvy.rules", false),
            ("modprobe.conf", false),
            ("README", false),
        ] {
            assert_eq!(is_unit(name), expected, "{name}");
        }
    }

    #[test]
    fn programs_are_told_by_their_place() {
        for (file, expected) in [
            ("bin/divvy", true),
            ("share/doc/divvy/examples/divvy-ci", true),
            ("share/doc/divvy/examples/divvy-task", true),
            ("share/doc/divvy/examples/jupyterhub_config.py", false),
            ("share/doc/divvy/examples/systemd/README", false),
            ("share/divvy/images/kubernetes/Dockerfile", false),
            ("share/divvy/images/kubernetes/node-agent", true),
        ] {
            assert_eq!(is_program(file), expected, "{file}");
        }
    }

    /// Debian's Docker builds without BuildKit unless buildx is installed, and stops at such a line.
    #[test]
    fn dockerfiles_of_images_need_no_buildkit() {
        let images = root().join("deploy/images");
        let all = files(&images).expect("a folder of images");
        let all: Vec<String> = all
            .into_iter()
            .filter(|file| file.ends_with("/Dockerfile"))
            .collect();
        assert_eq!(all.len(), 3);
        for file in all {
            let text = fs::read_to_string(images.join(&file)).expect("a Dockerfile");
            for word in ["--chmod", "--mount", "--link", "<<"] {
                assert!(
                    !text
                        .lines()
                        .any(|line| !line.starts_with('#') && line.contains(word)),
                    "{file}: {word}"
                );
            }
        }
    }

    /// The repository has links where the chart and a package have the same file.
    #[test]
    fn what_is_shared_is_copied_as_files() {
        let folder = folder_in_target("dist-shared");
        for (from, to) in SHARED
            .iter()
            .filter(|(from, _)| from.starts_with("deploy/"))
        {
            copy(&root().join(from), &folder.join(to)).expect("a copy");
        }
        for file in [
            "share/divvy/prometheus/rules.yml",
            "share/divvy/grafana/divvy.json",
            "share/divvy/helm/divvy/files/prometheus/rules.yml",
        ] {
            let path = folder.join(file);
            let kind = path.symlink_metadata().expect("it was copied").file_type();
            assert!(kind.is_file(), "{file}");
            assert!(
                fs::read_to_string(&path).expect("text").len() > 1000,
                "{file}"
            );
        }
        fs::remove_dir_all(&folder).expect("it was made here");
    }

    fn folder_in_target(name: &str) -> std::path::PathBuf {
        let folder = crate::cargo::target().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("target can be written");
        folder
    }
}
