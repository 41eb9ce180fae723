//! The size of the product: Rust lines that are neither blank, comment nor test, by crate, beside those of the last
//! release.
//!
//! The tree is formatted (`cargo fmt --check` is a step of `cargo xtask test`), so lines compare. A syntax tree says which
//! lines only tests compile: items, statements, fields and arms under `#[cfg(test)]`, and the files of such modules. Their
//! attribute counts. The guards of xtask count too, for they are what it is for.

mod lines;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::cargo::root;
use crate::steps::answer;
use lines::Source;
pub use lines::folder;

/// The folders whose code counts. A crate is a folder below the first and the last, and `xtask` is one.
const FOLDERS: [&str; 3] = ["crates/", "xtask/", "tools/"];

/// The figures of the last release, which `--record` writes.
const RECORD: &str = "xtask/size.toml";

#[derive(clap::Args)]
pub struct Args {
    /// Count the checkout in this folder
    #[arg(long, value_name = "FOLDER")]
    at: Option<PathBuf>,
    /// Write xtask/size.toml, at a release
    #[arg(long, value_name = "COMMIT", conflicts_with = "at")]
    record: Option<String>,
}

/// Lines of each crate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Size {
    /// The commit that was counted.
    commit: String,
    lines: BTreeMap<String, usize>,
}

impl Size {
    fn total(&self) -> usize {
        self.lines.values().sum()
    }
}

/// Prints the table, or writes the record of a release.
///
/// # Errors
/// Git does not list the files, or a file is not Rust.
#[expect(clippy::print_stdout, reason = "the table is this command's data")]
pub fn show(args: &Args) -> Result<()> {
    let folder = args.at.clone().unwrap_or_else(root);
    let lines = count(&folder)?;
    if let Some(commit) = &args.record {
        let size = Size {
            commit: commit.clone(),
            lines,
        };
        let text = format!(
            "# The lines of the last release. `cargo xtask size --record COMMIT` writes this file.\n{}",
            toml::to_string(&size)?
        );
        std::fs::write(root().join(RECORD), text)?;
        return Ok(());
    }
    print!("{}", table(&lines, &recorded()?));
    Ok(())
}

fn recorded() -> Result<Size> {
    let text = std::fs::read_to_string(root().join(RECORD))?;
    toml::from_str(&text).with_context(|| format!("{RECORD} has no lines of a release"))
}

/// The lines of each crate in a checkout.
fn count(folder: &Path) -> Result<BTreeMap<String, usize>> {
    let mut files = BTreeMap::new();
    for path in files_of(folder)? {
        let text =
            std::fs::read_to_string(folder.join(&path)).with_context(|| format!("read {path}"))?;
        let source = Source::read(&path, &text).with_context(|| format!("parse {path}"))?;
        files.insert(path, source);
    }
    Ok(by_crate(&files))
}

/// The lines of these files by crate, without the files that only tests compile.
fn by_crate(files: &BTreeMap<String, Source>) -> BTreeMap<String, usize> {
    let tests: BTreeSet<&str> = files
        .values()
        .flat_map(|source| source.tests.iter().map(String::as_str))
        .collect();
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for (path, source) in files {
        if !is_of(path, &tests) {
            *lines.entry(crate_of(path).to_owned()).or_default() += source.lines;
        }
    }
    lines
}

/// Whether a file is of one of these modules. A module `a/b` is `a/b.rs`, and all below `a/b/`.
pub fn is_of(path: &str, modules: &BTreeSet<&str>) -> bool {
    std::iter::successors(path.strip_suffix(".rs"), |path| {
        path.rsplit_once('/').map(|(above, _)| above)
    })
    .any(|module| modules.contains(module))
}

/// The Rust files of the product in a checkout: those that Git tracks or would add, or all where there is no Git.
pub fn files_of(folder: &Path) -> Result<Vec<String>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = answer(list.current_dir(folder)).context("list the files with git")?;
    let is_counted = |path: &&str| {
        let is_test = path.contains("/tests/") && !path.contains("/src/");
        FOLDERS.iter().any(|folder| path.starts_with(folder))
            && path.ends_with(".rs")
            && !is_test
            && folder.join(path).is_file()
    };
    let files: BTreeSet<String> = listed
        .lines()
        .filter(is_counted)
        .map(str::to_owned)
        .collect();
    Ok(files.into_iter().collect())
}

/// `crates/core/src/lib.rs` → `crates/core`.
pub fn crate_of(path: &str) -> &str {
    let parts = if path.starts_with("xtask/") { 1 } else { 2 };
    let ends = path.match_indices('/').map(|(at, _)| at);
    ends.take(parts).last().map_or(path, |end| &path[..end])
}

/// The table: each crate now, at the release, and the difference.
fn table(now: &BTreeMap<String, usize>, release: &Size) -> String {
    let names: BTreeSet<&String> = now.keys().chain(release.lines.keys()).collect();
    let row = |name: &str, now: usize, then: usize| {
        let more = i64::try_from(now).unwrap_or(0) - i64::try_from(then).unwrap_or(0);
        format!("{name:<22} {now:>8} {then:>8} {more:>+8}\n")
    };
    let commit = release.commit.get(..8).unwrap_or(&release.commit);
    let mut text = format!("{:<22} {:>8} {commit:>8} {:>8}\n", "CRATE", "NOW", "MORE");
    for name in names {
        let of = |lines: &BTreeMap<String, usize>| lines.get(name).copied().unwrap_or(0);
        text += &row(name, of(now), of(&release.lines));
    }
    text + &row("all", now.values().sum(), release.total())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(files: &[(&str, &str)]) -> BTreeMap<String, usize> {
        let read = |(path, text): &(&str, &str)| {
            let source = Source::read(path, text).expect("Rust");
            ((*path).to_owned(), source)
        };
        by_crate(&files.iter().map(read).collect())
    }

    #[test]
    fn the_size_of_a_crate_counts_neither_blank_lines_nor_comments() {
        let text = "//! A crate.\n#![forbid(unsafe_code)]\n\n/// Doc.\n/* a\n b */\npub fn f() -> &'static str {\n    \
                    // why\n    \"a // b\n\n    c\" // more\n}\n";
        let counted = lines(&[
            ("crates/a/src/lib.rs", text),
            ("xtask/src/main.rs", "fn main() {}\n"),
        ]);
        // The attribute, the signature, the two lines of the text that are not blank, the end.
        assert_eq!(counted["crates/a"], 5);
        assert_eq!(counted["xtask"], 1);
    }

    #[test]
    fn the_size_of_a_crate_counts_no_line_that_only_tests_compile() {
        let plants = [
            "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n",
            "#[cfg(all(test, unix))]\nuse std::fs;\n",
            "#[test]\nfn f() {\n    g();\n}\n",
        ];
        for plant in plants {
            let text = format!("pub fn f() {{}}\n{plant}");
            // The function, and the attribute.
            assert_eq!(
                lines(&[("crates/a/src/lib.rs", &text)])["crates/a"],
                2,
                "{plant}"
            );
        }
        let inner = "fn f(x: u8) {\n    #[cfg(test)]\n    g();\n    match x {\n        #[cfg(test)]\n        0 => {}\n        \
                     _ => {}\n    }\n}\nstruct S {\n    #[cfg(test)]\n    a: u8,\n    b: u8,\n}\n";
        assert_eq!(lines(&[("crates/a/src/lib.rs", inner)])["crates/a"], 11);
        let whole = "#![cfg(test)]\nfn f() {}\n";
        assert_eq!(
            lines(&[("crates/a/src/lib.rs", whole)]).get("crates/a"),
            None
        );
        assert_eq!(lines(&[("xtask/src/guards.rs", whole)])["xtask"], 2);
    }

    #[test]
    fn the_files_of_a_module_for_tests_add_nothing_to_the_size() {
        let counted = lines(&[
            (
                "crates/a/src/lib.rs",
                "mod b;\n#[cfg(test)]\nmod tests;\nmod c {\n    #[cfg(test)]\n    mod d;\n}\n",
            ),
            ("crates/a/src/b.rs", "fn f() {}\n#[cfg(test)]\nmod model;\n"),
            ("crates/a/src/b/model.rs", "fn f() {}\n"),
            ("crates/a/src/b/model/deep.rs", "fn f() {}\n"),
            ("crates/a/src/c/d.rs", "fn f() {}\n"),
            ("crates/a/src/tests.rs", "fn f() {}\n"),
        ]);
        // Of lib.rs all but the two modules for tests; of b.rs the function and the attribute.
        assert_eq!(counted["crates/a"], 7);
    }

    #[test]
    fn the_table_of_sizes_names_each_crate_with_the_last_release() {
        let release = Size {
            commit: "0123456789abcdef".to_owned(),
            lines: [("crates/a".to_owned(), 5), ("crates/gone".to_owned(), 3)].into(),
        };
        let now = [("crates/a".to_owned(), 7), ("crates/new".to_owned(), 1)].into();
        let table = table(&now, &release);
        for row in [
            "CRATE                       NOW 01234567     MORE",
            "crates/a                      7        5       +2",
            "crates/gone                   0        3       -3",
            "crates/new                    1        0       +1",
            "all                           8        8       +0",
        ] {
            assert!(table.lines().any(|line| line == row), "{row}\n{table}");
        }
    }

    #[test]
    fn the_recorded_size_is_that_of_a_release() {
        let recorded = recorded().expect("a record");
        assert!(recorded.total() > 100_000, "{recorded:?}");
        // To parse them all takes 14 s; the guards of xtask do, and fail where one is not Rust.
        let files = files_of(&root()).expect("git lists them");
        for name in ["crates/core", "xtask"] {
            let path = files.iter().find(|path| crate_of(path) == name);
            let path = path.unwrap_or_else(|| panic!("{name} has no file: {files:?}"));
            let text = std::fs::read_to_string(root().join(path)).expect("source is text");
            assert!(lines(&[(path, &text)])[name] > 0, "{path}");
        }
    }
}
