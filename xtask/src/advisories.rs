//! RustSec advisories: checks `Cargo.lock` against a dated copy of the list, `data/advisories.json`.
//!
//! The copy is in the repository, so the test needs no network and its result is reproducible. It lists the affected versions of every
//! advisory that was not withdrawn, for all crates, so that it covers future dependencies. `cargo xtask advisories --renew CLONE`
//! updates it from a clone of <https://github.com/rustsec/advisory-db>. `deny.toml` lists ignored advisories with their reasons.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use jiff::civil::Date;
use semver::{Version, VersionReq};
use serde::{Deserialize, Serialize};

use crate::cargo::root;
use crate::steps::answer;

/// The copy of the list, in the root.
const COPY: &str = "data/advisories.json";

#[derive(clap::Args)]
pub struct Args {
    /// Update the copy from this clone of rustsec/advisory-db before the check
    #[arg(long, value_name = "CLONE")]
    renew: Option<PathBuf>,
}

/// The copy of the list.
#[derive(Serialize, Deserialize)]
struct List {
    source: String,
    licence: String,
    commit: String,
    /// Of the commit.
    date: Date,
    /// By crate, oldest first.
    advisories: BTreeMap<String, Vec<Advisory>>,
}

/// One advisory of a crate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Advisory {
    id: String,
    /// `unmaintained`, `unsound` or `notice`; absent for a vulnerability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// Versions with the fix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    patched: Vec<VersionReq>,
    /// Versions that never had the fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unaffected: Vec<VersionReq>,
}

impl Advisory {
    fn concerns(&self, version: &Version) -> bool {
        let all = self.patched.iter().chain(&self.unaffected);
        !all.into_iter().any(|range| range.matches(version))
    }
}

/// A crate in `Cargo.lock`.
#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: Version,
    /// Absent for crates of the workspace.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    #[serde(default)]
    package: Vec<Package>,
}

/// The part of `deny.toml` about advisories.
#[derive(Default, Deserialize)]
struct Deny {
    #[serde(default)]
    advisories: Ignored,
}

#[derive(Default, Deserialize)]
struct Ignored {
    #[serde(default)]
    ignore: Vec<Ignore>,
}

#[derive(Deserialize)]
struct Ignore {
    id: String,
    reason: String,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(clone) = &args.renew {
        let list = read(clone)?;
        let path = root().join(COPY);
        fs::write(&path, text(&list)?).with_context(|| format!("write {}", path.display()))?;
        eprintln!("   updated {COPY}: commit it");
    }
    check()
}

/// Checks the workspace's `Cargo.lock`.
pub fn check() -> Result<()> {
    let read =
        |name: &str| fs::read_to_string(root().join(name)).with_context(|| format!("read {name}"));
    let list = parse(&read(COPY)?)?;
    let age = jiff::Zoned::now().date().since(list.date)?.get_days();
    eprintln!("   {COPY}: RustSec's list of {}, {age} days old", list.date);
    let ignored: Deny = toml::from_str(&read("deny.toml")?).context("read deny.toml")?;
    let found = judge(&read("Cargo.lock")?, &list, &ignored.advisories.ignore)?;
    if !found.is_empty() {
        bail!("{}", found.join("\n"));
    }
    Ok(())
}

fn parse(text: &str) -> Result<List> {
    serde_json::from_str(text).with_context(|| format!("read {COPY}"))
}

/// The problems of a `Cargo.lock`, one line each.
fn judge(lock: &str, list: &List, ignored: &[Ignore]) -> Result<Vec<String>> {
    let lock: Lock = toml::from_str(lock).context("read Cargo.lock")?;
    let mut found = Vec::new();
    let mut used = vec![false; ignored.len()];
    let outside = lock
        .package
        .iter()
        .filter(|package| package.source.is_some());
    for package in outside {
        let advisories = list.advisories.get(&package.name).into_iter().flatten();
        for advisory in advisories.filter(|advisory| advisory.concerns(&package.version)) {
            match ignored.iter().position(|ignore| ignore.id == advisory.id) {
                Some(at) => used[at] = true,
                None => found.push(describe(package, advisory)),
            }
        }
    }
    for (ignore, _) in ignored.iter().zip(used).filter(|(_, used)| !used) {
        let Ignore { id, reason } = ignore;
        found.push(format!(
            "deny.toml ignores {id} ({reason}), which affects no crate in Cargo.lock: remove it"
        ));
    }
    Ok(found)
}

fn describe(package: &Package, advisory: &Advisory) -> String {
    let Advisory {
        id, kind, patched, ..
    } = advisory;
    let kind = kind.as_deref().unwrap_or("vulnerable");
    let fixed = if patched.is_empty() {
        "no version has a fix".to_owned()
    } else {
        let patched: Vec<_> = patched.iter().map(ToString::to_string).collect();
        format!("fixed in {}", patched.join(" or "))
    };
    let Package { name, version, .. } = package;
    format!("{name} {version} is {kind}, {fixed}: https://rustsec.org/advisories/{id}")
}

/// The list of a clone of rustsec/advisory-db.
fn read(clone: &Path) -> Result<List> {
    let git = |format: &str| {
        let mut git = Command::new("git");
        git.arg("-C")
            .arg(clone)
            .args(["log", "-1", &format!("--format={format}"), "--date=short"]);
        answer(&mut git)
            .with_context(|| format!("{} is not a clone with a commit", clone.display()))
    };
    let mut advisories: BTreeMap<String, Vec<Advisory>> = BTreeMap::new();
    let crates = clone.join("crates");
    let folders = fs::read_dir(&crates).with_context(|| format!("read {}", crates.display()))?;
    for folder in folders {
        for file in fs::read_dir(folder?.path())? {
            let path = file?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !name.starts_with("RUSTSEC-") || path.extension().is_none_or(|is| is != "md") {
                continue;
            }
            let text = fs::read_to_string(&path)?;
            let parsed = of_file(&text).with_context(|| format!("read {}", path.display()))?;
            if let Some((package, advisory)) = parsed {
                advisories.entry(package).or_default().push(advisory);
            }
        }
    }
    ensure!(
        !advisories.is_empty(),
        "{} contains no advisory",
        crates.display()
    );
    for of_crate in advisories.values_mut() {
        of_crate.sort_by(|one, other| one.id.cmp(&other.id));
    }
    Ok(List {
        source: "https://github.com/rustsec/advisory-db".to_owned(),
        licence: "ids and version ranges of advisories; texts are left out (CC0-1.0, some CC-BY-4.0 from GitHub)"
            .to_owned(),
        commit: git("%H")?,
        date: git("%cd")?.parse().context("parse the date of the commit")?,
        advisories,
    })
}

/// Crate and advisory of a Markdown file that begins with TOML; `None` for a withdrawn advisory.
fn of_file(text: &str) -> Result<Option<(String, Advisory)>> {
    #[derive(Deserialize)]
    struct File {
        advisory: Head,
        versions: Versions,
    }
    #[derive(Deserialize)]
    struct Head {
        id: String,
        package: String,
        informational: Option<String>,
        withdrawn: Option<String>,
    }
    #[derive(Deserialize)]
    struct Versions {
        patched: Vec<VersionReq>,
        #[serde(default)]
        unaffected: Vec<VersionReq>,
    }
    let (_, rest) = text.split_once("```toml").context("the file has no TOML")?;
    let (head, _) = rest.split_once("```").context("the TOML has no end")?;
    let File { advisory, versions } = toml::from_str(head)?;
    let kept = advisory.withdrawn.is_none().then(|| {
        let kept = Advisory {
            id: advisory.id,
            kind: advisory.informational,
            patched: versions.patched,
            unaffected: versions.unaffected,
        };
        (advisory.package, kept)
    });
    Ok(kept)
}

/// The list as a file: a line for each advisory, so that a renewal shows what is new.
fn text(list: &List) -> Result<String> {
    let List {
        source,
        licence,
        commit,
        date,
        ..
    } = list;
    let mut crates = Vec::new();
    for (name, advisories) in &list.advisories {
        let lines: Vec<_> = advisories
            .iter()
            .map(serde_json::to_string)
            .collect::<Result<_, _>>()?;
        crates.push(format!(
            "{}: [\n  {}\n ]",
            serde_json::to_string(name)?,
            lines.join(",\n  ")
        ));
    }
    Ok(format!(
        "{{\"source\": {source:?},\n\"licence\": {licence:?},\n\"commit\": {commit:?}, \"date\": \"{date}\",\n\"advisories\": {{\n {}\n}}}}\n",
        crates.join(",\n ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy() -> List {
        parse(&fs::read_to_string(root().join(COPY)).unwrap()).unwrap()
    }

    fn lock(packages: &[(&str, &str)]) -> String {
        let package = |(name, version): &(&str, &str)| {
            format!(
                "[[package]]\nname = {name:?}\nversion = {version:?}\nsource = \"registry+x\"\n"
            )
        };
        packages.iter().map(package).collect()
    }

    #[test]
    fn a_planted_vulnerable_version_is_found_in_the_copy_and_a_fixed_one_is_not() {
        let planted = lock(&[("time", "0.1.43"), ("anyhow", "1.0.104")]);
        let found = judge(&planted, &copy(), &[]).unwrap();
        assert_eq!(
            found,
            [
                "time 0.1.43 is vulnerable, fixed in >=0.2.23: https://rustsec.org/advisories/RUSTSEC-2020-0071"
            ]
        );
        let fixed = lock(&[("time", "0.3.55"), ("smallvec", "1.16.5")]);
        assert_eq!(judge(&fixed, &copy(), &[]).unwrap(), [""; 0]);
        // Between two fixed ranges, and in the version that never had the fault.
        for (version, is_found) in [("0.6.14", false), ("1.6.0", true), ("0.6.2", true)] {
            let found = judge(&lock(&[("smallvec", version)]), &copy(), &[]).unwrap();
            let of_2021 = found.iter().any(|line| line.contains("RUSTSEC-2021-0003"));
            assert_eq!(
                of_2021,
                is_found && version != "0.6.2",
                "{version}: {found:?}"
            );
        }
    }

    #[test]
    fn an_unmaintained_crate_is_found_unless_it_is_ignored_with_a_reason() {
        let planted = lock(&[("serde_yml", "0.0.12")]);
        let found = judge(&planted, &copy(), &[]).unwrap();
        let is_ours = |line: &&String| line.contains("RUSTSEC-2025-0068");
        assert!(found.iter().any(|line| is_ours(&line)), "{found:?}");
        let ignore = |id: &str| Ignore {
            id: id.to_owned(),
            reason: "a test".to_owned(),
        };
        let ignored = [ignore("RUSTSEC-2025-0068")];
        let left = judge(&planted, &copy(), &ignored).unwrap();
        assert_eq!(left.iter().filter(is_ours).count(), 0, "{left:?}");
        let idle = judge(&lock(&[]), &copy(), &ignored).unwrap();
        assert!(idle[0].contains("affects no crate"), "{idle:?}");
    }

    #[test]
    fn a_file_of_the_list_is_read_and_written_and_a_withdrawn_one_left_out() {
        let file = "```toml\n[advisory]\nid = \"RUSTSEC-2020-0001\"\npackage = \"a\"\ndate = \"2020-01-01\"\n\
                    informational = \"unsound\"\nMORE\n[versions]\npatched = [\">= 1.2, < 2\"]\n```\n# Title\n";
        let (package, advisory) = of_file(&file.replace("MORE", "")).unwrap().unwrap();
        assert!(advisory.concerns(&"2.0.0".parse().unwrap()));
        assert!(!advisory.concerns(&"1.2.0".parse().unwrap()));
        let withdrawn = file.replace("MORE", "withdrawn = \"2021-01-01\"");
        assert_eq!(of_file(&withdrawn).unwrap(), None);
        let list = List {
            advisories: [(package, vec![advisory])].into(),
            ..copy()
        };
        let again = parse(&text(&list).unwrap()).unwrap();
        assert_eq!(again.advisories, list.advisories);
        assert_eq!((again.commit, again.date), (list.commit, list.date));
    }
}
