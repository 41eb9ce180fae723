//! C programs, headers and folders of links of the tests, made once for all test processes of a build.
//!
//! Each lies in the target folder under a name made of everything it depends on, so that a changed source is compiled anew and an unchanged one
//! is not. Several processes may make the same one at the same time: each replaces it as a whole.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Bounded as _;

/// Path of the program (or the library, where `name` ends in `.so`) that `cc` makes of `source` with these flags.
///
/// # Panics
/// When the source does not compile.
#[must_use]
pub fn compiled(source: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let mut hash = DefaultHasher::new();
    (name, flags).hash(&mut hash);
    hash_sources(source, &mut hash);
    made(name, &hash, |fresh| {
        let mut cc = Command::new("cc");
        cc.args(["-Wall", "-pthread", "-o"])
            .arg(fresh)
            .arg(source)
            .arg("-ldl")
            .args(flags);
        if name.ends_with(".so") {
            cc.args(["-shared", "-fPIC"]);
        }
        let ended = cc.wait_bounded().expect("cc starts");
        assert!(ended.success(), "{} does not compile", source.display());
    })
}

/// Path of a file `name` with this text, for a compiler to include.
#[must_use]
pub fn written(name: &str, text: &str) -> PathBuf {
    let mut hash = DefaultHasher::new();
    (name, text).hash(&mut hash);
    made(name, &hash, |fresh| {
        fs::write(fresh, text).expect("the target folder can be written");
    })
}

/// Path of a folder `name` with these symbolic links: the name of each, and what it points to.
#[must_use]
pub fn links(name: &str, links: &[(&str, &Path)]) -> PathBuf {
    filled(name, links, |folder| {
        for (link, target) in links {
            symlink(target, folder.join(link)).expect("the folder is new");
        }
    })
}

/// Path of a folder `name` with what `fill` puts into it, which depends on `key` alone.
pub fn filled(name: &str, key: impl Hash, fill: impl FnOnce(&Path)) -> PathBuf {
    let mut hash = DefaultHasher::new();
    (name, key).hash(&mut hash);
    made(name, &hash, |fresh| {
        fs::create_dir_all(fresh).expect("the target folder can be written");
        fill(fresh);
    })
}

/// Path of `name` in the folder of this hash, which `make` makes at another path unless it is there.
fn made(name: &str, hash: &DefaultHasher, make: impl FnOnce(&Path)) -> PathBuf {
    let folder = folder().join(format!("{:016x}", hash.finish()));
    let result = folder.join(name);
    if result.exists() {
        return result;
    }
    fs::create_dir_all(&folder).expect("the target folder can be written");
    let fresh = folder.join(format!("{name}.{}", std::process::id()));
    make(&fresh);
    if fs::rename(&fresh, &result).is_err() {
        // Another process has made the folder meanwhile, and it is not empty.
        assert!(result.exists(), "{} cannot be made", result.display());
        fs::remove_dir_all(&fresh).expect("it was made here");
    }
    result
}

/// The source, and the headers beside it, which it may include.
fn hash_sources(source: &Path, hash: &mut DefaultHasher) {
    let beside = source.parent().expect("a source lies in a folder");
    let entries = fs::read_dir(beside).expect("the sources' folder can be read");
    let mut headers: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|is| is == "h"))
        .collect();
    headers.sort();
    for path in headers.iter().map(PathBuf::as_path).chain([source]) {
        let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        text.hash(hash);
    }
}

fn folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running program has a path");
    // TARGET/PROFILE/deps/TEST
    let profile = test
        .ancestors()
        .nth(2)
        .expect("a test lies in PROFILE/deps");
    profile.join("test-programs")
}
