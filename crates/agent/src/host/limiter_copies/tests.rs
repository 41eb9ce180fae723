//! Tests of the limiter's copies: one for each content, no half file, and the last job of a copy.

use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;

use super::*;

/// The shortest file that counts as a library: a header without sections, and the content.
fn library(content: &str) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(b"\x7fELF");
    bytes.extend(content.as_bytes());
    bytes
}

/// An installation of two libraries, and the folder of its copies.
struct Installation(TempDir);

impl Installation {
    fn new(content: &str) -> Self {
        let this = Self(tempfile::tempdir().unwrap());
        this.install(content);
        this
    }

    fn install(&self, content: &str) {
        for file in self.files() {
            fs::write(file, library(content)).unwrap();
        }
    }

    fn files(&self) -> [PathBuf; 2] {
        ["one.so", "two.so"].map(|name| self.0.path().join(name))
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("limiters")
    }

    fn keep(&self) -> Result<PathBuf, CopyError> {
        let files = self.files();
        keep(&self.root(), &[&files[0], &files[1]])
    }

    /// Names of the copies, after a start with these living jobs.
    fn start(&self, living: &[u64]) -> Vec<String> {
        let current = self.keep().unwrap();
        let living = living.iter().copied().map(JobId).collect();
        remove_unused(&current, &living).unwrap();
        self.copies()
    }

    fn copies(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root()).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }
}

#[test]
fn a_limiter_has_one_copy_for_each_content() {
    let installed = Installation::new("a");
    let first = installed.keep().unwrap();
    assert_eq!(first, installed.root().join("1"));
    assert_eq!(installed.keep().unwrap(), first);
    for path in [&first, &first.join("one.so"), &installed.root()] {
        let mode = path.metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o755, "{}", path.display());
    }
    // A copy is no link: a program that writes into the installed file does not change it.
    installed.install("b");
    assert_eq!(fs::read(first.join("two.so")).unwrap(), library("a"));
    assert_eq!(installed.keep().unwrap(), installed.root().join("2"));
    installed.install("a");
    assert_eq!(installed.keep().unwrap(), first);
    // Of a power cut, for example.
    fs::write(first.join("two.so"), "").unwrap();
    assert_eq!(installed.keep().unwrap(), installed.root().join("3"));
    assert_eq!(installed.copies(), ["1", "2", "3"]);
}

#[test]
fn a_copy_of_a_limiter_goes_with_the_last_job_that_can_load_it() {
    let installed = Installation::new("a");
    assert_eq!(installed.start(&[]), ["1"]);
    installed.install("b");
    assert_eq!(installed.start(&[7, 8]), ["1", "2"]);
    // Job 9 began with the second copy.
    assert_eq!(installed.start(&[8, 9]), ["1", "2"]);
    assert_eq!(installed.start(&[9]), ["2"]);
    installed.install("c");
    assert_eq!(installed.start(&[9]), ["2", "3"]);
    // An older version is back, and a later one takes its place again: job 10 began in between.
    installed.install("b");
    assert_eq!(installed.start(&[9]), ["2", "3"]);
    installed.install("c");
    assert_eq!(installed.start(&[10]), ["2", "3"]);
    assert_eq!(installed.start(&[]), ["3"]);
}

#[test]
fn a_limiter_that_an_installer_is_writing_is_not_copied() {
    let installed = Installation::new("a");
    let [_, file] = installed.files();
    let mut half = library("");
    // 40 section headers of 64 bytes each, from byte 4096.
    half[0x28..0x30].copy_from_slice(&4096u64.to_le_bytes());
    half[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
    half[0x3c..0x3e].copy_from_slice(&40u16.to_le_bytes());
    let whole = 4096 + 40 * 64;
    for (bytes, is_whole) in [(whole, true), (whole - 1, false), (64, false)] {
        let mut content = half.clone();
        content.resize(bytes, 1);
        fs::write(&file, &content).unwrap();
        assert_eq!(installed.keep().is_ok(), is_whole, "{bytes}");
    }
    for content in [&b""[..], b"\x7fEL", &[1; 100]] {
        fs::write(&file, content).unwrap();
        let error = installed.keep().unwrap_err().to_string();
        assert!(error.contains("two.so is not complete"), "{error}");
    }
    fs::remove_file(&file).unwrap();
    assert!(installed.keep().is_err());
    assert_eq!(installed.copies(), ["1"]);
}

#[test]
fn a_folder_that_takes_no_copy_is_named() {
    let installed = Installation::new("a");
    fs::write(installed.root(), "a file").unwrap();
    let error = installed.keep().unwrap_err().to_string();
    assert!(
        error.contains("cannot write in") && error.contains("limiters"),
        "{error}"
    );
    fs::remove_file(installed.root()).unwrap();
    // Left by a process that was killed.
    let draft = installed.root().join(DRAFT);
    fs::create_dir_all(draft.join("one.so")).unwrap();
    assert_eq!(installed.keep().unwrap(), installed.root().join("1"));
    assert_eq!(installed.copies(), ["1"]);
}
