//! The documents of a package: their links lead to the installed files, or go.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

use super::tree::{SHARED, files};

/// Where the documents lie.
const DOCUMENTS: &str = "share/doc/divvy";

/// Turns the links of all documents in `tree` from the repository's places to the installed ones. A link to a file that
/// no package has becomes its words.
pub fn link(tree: &Path) -> Result<()> {
    let folder = tree.join(DOCUMENTS);
    for file in files(&folder)? {
        if !file.ends_with(".md") {
            continue;
        }
        let path = folder.join(&file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        fs::write(&path, linked(tree, &format!("{DOCUMENTS}/{file}"), &text))?;
    }
    Ok(())
}

/// The document at `place`, with links that lead somewhere below `tree`.
fn linked(tree: &Path, place: &str, text: &str) -> String {
    let mut done = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let Some((target, tail)) = after.split_once(')') else {
            break;
        };
        match installed(tree, place, target) {
            Some(target) => done.push_str(&format!("{before}]({target})")),
            None => match before.rsplit_once('[') {
                Some((before, words)) => done.push_str(&format!("{before}{words}")),
                None => done.push_str(&format!("{before}]({target})")),
            },
        }
        rest = tail;
    }
    done + rest
}

/// The target of a link once it is installed; `None` for a file that is not.
fn installed(tree: &Path, place: &str, target: &str) -> Option<String> {
    let (path, anchor) = match target.split_once('#') {
        Some((path, anchor)) => (path, format!("#{anchor}")),
        None => (target, String::new()),
    };
    if path.is_empty() || path.contains(':') || path.contains(' ') {
        return Some(target.to_owned());
    }
    let folder = Path::new(place).parent()?;
    if tree.join(folder).join(path).exists() {
        return Some(target.to_owned());
    }
    // In the repository the documents lie at its root.
    let source = plain(&folder.strip_prefix(DOCUMENTS).ok()?.join(path))?;
    let (from, to) = SHARED.iter().find(|(from, _)| source.starts_with(from))?;
    let to = Path::new(to).join(source.strip_prefix(from).ok()?);
    let up = folder.components().map(|_| "..").collect::<PathBuf>();
    let found = tree.join(&to).exists();
    found.then(|| format!("{}{anchor}", up.join(to).display()))
}

/// The path without `..`; `None` if it leaves the repository.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => plain.pop().then_some(())?,
            part => plain.push(part),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::{root, target};
    use crate::dist::tree::copy;

    /// Every link of the packaged documents leads to a file of the package.
    #[test]
    fn links_of_packaged_documents_lead_to_installed_files() {
        let tree = target().join(format!("dist-documents-{}", std::process::id()));
        for (from, to) in SHARED {
            copy(&root().join(from), &tree.join(to)).expect("a copy");
        }
        link(&tree).expect("documents");
        let folder = tree.join(DOCUMENTS);
        let (mut links, mut dead) = (0, Vec::new());
        for file in files(&folder).expect("files") {
            let path = folder.join(&file);
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let targets = text.split("](").skip(1).filter(|_| file.ends_with(".md"));
            for target in targets.filter_map(|rest| Some(rest.split_once(')')?.0)) {
                let target = target.split('#').next().unwrap_or_default();
                if target.is_empty() || target.contains(':') || target.contains(' ') {
                    continue;
                }
                links += 1;
                if !path.with_file_name(target).exists() {
                    dead.push(format!("{file}: {target}"));
                }
            }
        }
        fs::remove_dir_all(&tree).expect("it was made here");
        assert!(links > 300, "{links}");
        assert_eq!(dead, [""; 0]);
    }

    #[test]
    fn a_link_to_a_file_that_no_package_has_becomes_its_words() {
        let text =
            "See [the rules](../CONTRIBUTING.md#tests) and [this](#here), [web](https://x.y).";
        let tree = Path::new("/nonexistent");
        assert_eq!(
            linked(tree, "share/doc/divvy/docs/a.md", text),
            "See the rules and [this](#here), [web](https://x.y)."
        );
    }
}
