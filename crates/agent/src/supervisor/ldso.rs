//! Library lookup as ld.so does it: the folders of `LD_LIBRARY_PATH`, then its cache (ld.so(8)).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const CACHE: &str = "/etc/ld.so.cache";

/// The loader's cache, as it was when it was read.
pub struct Cache(Vec<u8>);

impl Cache {
    pub fn read() -> Self {
        Self(fs::read(CACHE).unwrap_or_default())
    }
}

/// Every file that the loader has for `name` in a program with that `LD_LIBRARY_PATH`, the one that it takes first.
/// Links are followed, and a file that several lead to is named once.
pub fn find_library(name: &str, library_path: Option<&str>) -> Vec<PathBuf> {
    find_library_in(&Cache::read(), name, library_path)
}

/// The same by a cache that has been read.
pub fn find_library_in(cache: &Cache, name: &str, library_path: Option<&str>) -> Vec<PathBuf> {
    let folders = library_path.unwrap_or_default().split([':', ';']);
    let on_path = folders
        .filter(|folder| !folder.is_empty())
        .map(|folder| Path::new(folder).join(name));
    let mut found = Vec::new();
    for path in on_path.chain(cached(&cache.0, name)) {
        if let Ok(file) = fs::canonicalize(path)
            && !found.contains(&file)
        {
            found.push(file);
        }
    }
    found
}

/// The same for the cache alone, and only files that root alone can have placed: regular files of root named `name`
/// with any suffix (`libcuda.so.1` is a link to `libcuda.so.580.65.06`). For files that are mounted over with root's
/// rights.
pub fn installed(cache: &Cache, name: &str) -> Vec<PathBuf> {
    let mut found = find_library_in(cache, name, None);
    found.retain(|file| is_installed(file, name));
    found
}

fn is_installed(file: &Path, name: &str) -> bool {
    let (stem, _version) = name.split_once(".so").unwrap_or((name, ""));
    let named = file.file_name().and_then(|file| file.to_str());
    let after = named.and_then(|file| file.strip_prefix(stem)?.strip_prefix(".so"));
    after.is_some_and(|after| after.is_empty() || after.starts_with('.'))
        && fs::symlink_metadata(file).is_ok_and(|meta| meta.is_file() && meta.uid() == 0)
}

/// Every name that the cache has, with its path.
pub fn all_entries() -> Vec<(String, PathBuf)> {
    let cache = fs::read(CACHE).unwrap_or_default();
    let entries = entries(&cache, |_| true);
    entries
        .map(|(name, path)| (name.to_owned(), PathBuf::from(path)))
        .collect()
}

/// What the cache has under `name`.
fn cached(cache: &[u8], name: &str) -> Vec<PathBuf> {
    let named = entries(cache, |found| found == name.as_bytes());
    named.map(|(_, path)| PathBuf::from(path)).collect()
}

/// Names and paths of the cache for this architecture with glibc. Its format is glibc's `elf/cache.h` (`struct
/// cache_file_new`): 48 bytes of header, of which bytes 20 to 24 count the entries; 24 bytes an entry: flags, offset of
/// the name, offset of the path, and what does not matter here.
///
/// `wanted`: by name, as most are read for nothing.
fn entries(cache: &[u8], wanted: impl Fn(&[u8]) -> bool) -> impl Iterator<Item = (&str, &str)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    /// Of glibc's elf/cache.h, as above.
    const HEADER: usize = 48;
    const ENTRY: usize = 24;
    /// `FLAG_ELF_LIBC6 | FLAG_X8664_LIB64`, `FLAG_ELF_LIBC6 | FLAG_AARCH64_LIB64` (glibc's `ldconfig.h`).
    const OURS: u32 = if cfg!(target_arch = "aarch64") {
        0x0a03
    } else {
        0x0303
    };

    let number = |at: usize| {
        let bytes = cache.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    let text = |at: u32| cache.get(at as usize..)?.split(|byte| *byte == 0).next();
    let count = match cache.starts_with(MAGIC) {
        true => number(MAGIC.len()).unwrap_or(0) as usize,
        false => 0,
    };
    let places = (0..count).map(|index| HEADER + index * ENTRY);
    let places = places.take_while(|at| at + ENTRY <= cache.len());
    places.filter_map(move |at| {
        let name = text(number(at + 4)?)?;
        if number(at)? != OURS || !wanted(name) {
            return None;
        }
        let path = text(number(at + 8)?)?;
        Some((
            std::str::from_utf8(name).ok()?,
            std::str::from_utf8(path).ok()?,
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ldconfig itself makes of this machine's cache.
    #[test]
    fn the_cache_is_read_as_ldconfig_reads_it() {
        let said = std::process::Command::new("/sbin/ldconfig")
            .arg("-p")
            .output();
        let (Ok(said), Ok(cache)) = (said, fs::read(CACHE)) else {
            eprintln!("skipped: this machine has no ldconfig or no cache");
            return;
        };
        let said = String::from_utf8(said.stdout).unwrap();
        let ours = if cfg!(target_arch = "aarch64") {
            " (libc6,AArch64) => "
        } else {
            " (libc6,x86-64) => "
        };
        let listed: Vec<(&str, &str)> = said
            .lines()
            .filter_map(|line| line.trim().split_once(ours))
            .collect();
        assert!(listed.iter().any(|(name, _)| *name == "libc.so.6"));
        for (name, _) in &listed {
            let expected: Vec<PathBuf> = listed
                .iter()
                .filter(|(other, _)| other == name)
                .map(|(_, path)| PathBuf::from(path))
                .collect();
            assert_eq!(cached(&cache, name), expected, "{name}");
        }
        assert!(cached(&cache, "libnosuch.so.1").is_empty());
    }

    #[test]
    fn a_cache_that_is_none_has_nothing() {
        for broken in [
            &b""[..],
            b"glibc-ld.so.cache1.1",
            b"glibc-ld.so.cache1.1\xff\xff\xff\xff",
            &[7; 400],
        ] {
            assert!(cached(broken, "libc.so.6").is_empty());
        }
    }

    #[test]
    fn the_library_path_comes_first_and_links_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        for folder in [&one, &two] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(one.join("libx.so.1.2"), "").unwrap();
        std::os::unix::fs::symlink("libx.so.1.2", one.join("libx.so.1")).unwrap();
        std::os::unix::fs::symlink(one.join("libx.so.1"), two.join("libx.so.1")).unwrap();
        let path = format!("/no/such:{}:{}", two.display(), one.display());
        let file = fs::canonicalize(one.join("libx.so.1.2")).unwrap();
        assert_eq!(find_library("libx.so.1", Some(&path)), [file]);
        assert!(find_library("libx.so.1", None).is_empty());
        // The cache is asked too.
        assert_eq!(find_library("libc.so.6", None).len(), 1);
    }

    #[test]
    fn what_is_installed_is_a_file_of_roots_under_its_own_name() {
        let cache = Cache::read();
        assert_eq!(
            installed(&cache, "libc.so.6"),
            find_library("libc.so.6", None)
        );
        assert!(installed(&cache, "libnosuch.so.1").is_empty());
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let file = dir.path().join(name);
            fs::write(&file, "").unwrap();
            file
        };
        let is_root = rustix::process::geteuid().is_root();
        for name in ["libx.so", "libx.so.1", "libx.so.580.65.06"] {
            assert_eq!(is_installed(&file(name), "libx.so.1"), is_root, "{name}");
        }
        for name in ["cgroup.procs", "libx.sox", "liby.so.1", "libx"] {
            assert!(!is_installed(&file(name), "libx.so.1"), "{name}");
        }
        let folder = dir.path().join("libx.so.2");
        fs::create_dir(&folder).unwrap();
        assert!(!is_installed(&folder, "libx.so.1"), "a folder");
        let link = dir.path().join("libx.so.3");
        std::os::unix::fs::symlink("cgroup.procs", &link).unwrap();
        assert!(!is_installed(&link, "libx.so.1"), "a link");
        if is_root {
            let of_a_user = file("libx.so.4");
            std::os::unix::fs::chown(&of_a_user, Some(60_104), None).unwrap();
            assert!(!is_installed(&of_a_user, "libx.so.1"));
        }
    }
}
