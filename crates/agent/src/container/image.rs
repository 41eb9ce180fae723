//! The image check: inspects a container before its start, to find out whether the limiter can hold its programs and as
//! which user they run.
//!
//! Files are read through the engine, for any storage driver, with the job's own mounts in place. Nothing is run.

use std::path::Path;

use bollard::Docker;
use bollard::errors::Error;
use bollard::models::ImageConfig;
use bollard::query_parameters::DownloadFromContainerOptions;
use futures_util::StreamExt as _;

use super::edits::DEBIAN_LIBRARIES;
use super::elf::{self, Program};
use super::engine;
use super::path_stat::{PathKind, bracketed, is_pattern, stat_path};
use super::resolve_mounts::{MountContext, Resolved, Walk};

/// Where glibc and its companions lie.
const FOLDERS: [&str; 6] = [
    DEBIAN_LIBRARIES,
    DEBIAN_LIBRARIES.split_at("/usr".len()).1,
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
];
/// The loaders of glibc and musl, by architecture (glibc's `shlib-versions`, musl's `LDSO_PATHNAME`).
#[cfg(target_arch = "x86_64")]
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"];
#[cfg(target_arch = "aarch64")]
const LOADERS: [&str; 2] = ["/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"];
const LIBC: &str = "libc.so.6";
const LIBGCC: &str = "libgcc_s.so.1";

/// Enough of a program for its program headers and the name of its loader. Linkers place both within the first pages,
/// so double would be read for nothing.
const HEAD: usize = 64 << 10;
/// More than any libc or passwd has. The bound is for an image that must not fill the daemon's memory.
const WHOLE: usize = 64 << 20;
/// More than a file of accounts has. So 40,000 accounts of 100 bytes fit; a larger file must not fill the daemon's
/// memory.
const MOST_ACCOUNTS: usize = 4 << 20;
/// As the kernel follows them (`MAXSYMLINKS`).
const LINKS: usize = 40;
/// execvp(3)'s path, where the container has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Why the limiter cannot hold it.
    pub unlimited: Option<String>,
    /// The user of its programs; `None` if that is unknown.
    pub user: Option<u32>,
}

/// Who can change something in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    Missing,
    ByRoot,
    /// By others as well, or it is a symlink.
    ByOthers,
}

/// What is to run in the container.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    pub image: &'a ImageConfig,
    pub entrypoint: Option<&'a str>,
    pub command: &'a [String],
    pub user: Option<&'a str>,
    pub workdir: Option<&'a str>,
    /// The newest glibc that the limiter's files need: `GLIBC_2.N`.
    pub needs: Option<u32>,
}

/// A container with readable files.
pub struct ContainerFiles<'a> {
    /// Where the engine listens.
    pub socket: &'a Path,
    pub docker: &'a Docker,
    pub podman: bool,
    pub container: &'a str,
}

/// Inspects the container.
///
/// # Errors
/// When the engine fails; that something is not there is no failure.
pub async fn inspect_image(files: &ContainerFiles<'_>, runs: &Runs<'_>) -> Result<Seen, Error> {
    let unlimited = match libraries(files, runs.needs).await? {
        Some(why) => Some(why),
        None => program(files, runs).await?,
    };
    Ok(Seen {
        unlimited,
        user: user(files, runs).await?,
    })
}

/// What of the limiter's own needs the image lacks.
async fn libraries(
    files: &ContainerFiles<'_>,
    needs: Option<u32>,
) -> Result<Option<String>, Error> {
    let [loader, musl] = LOADERS;
    if files.find(loader).await?.is_none() {
        let why = match files.find(musl).await? {
            Some(_) => "its programs are built for musl",
            None => "it has no glibc",
        };
        return Ok(Some(why.to_owned()));
    }
    let mut libc = None;
    for folder in FOLDERS {
        if let Some(found) = files.find(&format!("{folder}/{LIBC}")).await? {
            libc = files.read(&found, WHOLE).await?;
            break;
        }
    }
    if let (Some(has), Some(needs)) = (libc.as_deref().and_then(elf::glibc), needs)
        && has < needs
    {
        return Ok(Some(format!(
            "the image has glibc 2.{has}; the limiter needs 2.{needs}"
        )));
    }
    for folder in FOLDERS {
        if files.find(&format!("{folder}/{LIBGCC}")).await?.is_some() {
            return Ok(None);
        }
    }
    Ok(Some(format!("it has no {LIBGCC}")))
}

/// Why its first program cannot be held; `None` also where it is not found: then it will not start.
async fn program(files: &ContainerFiles<'_>, runs: &Runs<'_>) -> Result<Option<String>, Error> {
    let Some(mut name) = first_word(runs) else {
        return Ok(None);
    };
    let path = variable(runs.image, "PATH").unwrap_or(DEFAULT_PATH);
    let workdir = runs.workdir.or(runs.image.working_dir.as_deref());
    let workdir = workdir.filter(|folder| !folder.is_empty()).unwrap_or("/");
    // A script's program may be a script.
    for _ in 0..4 {
        let Some(file) = files.program(&name, path, workdir).await? else {
            return Ok(None);
        };
        let head = files.read(&file, HEAD).await?.unwrap_or_default();
        match elf::program(&head) {
            Program::Musl => return Ok(Some(format!("{name} is built for musl"))),
            Program::Static => return Ok(Some(format!("{name} is statically linked"))),
            Program::Glibc | Program::Unknown => return Ok(None),
            Program::Script(interpreter) => name = interpreter,
        }
    }
    Ok(None)
}

/// The word that names the program.
fn first_word(runs: &Runs<'_>) -> Option<String> {
    let image = |words: &Option<Vec<String>>| words.iter().flatten().next().cloned();
    let given = runs.command.first().cloned();
    match runs.entrypoint {
        Some("") => given,
        Some(program) => Some(program.to_owned()),
        None => image(&runs.image.entrypoint)
            .or(given)
            .or_else(|| image(&runs.image.cmd)),
    }
}

fn variable<'a>(image: &'a ImageConfig, name: &str) -> Option<&'a str> {
    let variables = image.env.iter().flatten();
    variables
        .filter_map(|variable| variable.split_once('='))
        .find(|(found, _)| *found == name)
        .map(|(_, value)| value)
}

async fn user(files: &ContainerFiles<'_>, runs: &Runs<'_>) -> Result<Option<u32>, Error> {
    let text = runs.user.or(runs.image.user.as_deref()).unwrap_or_default();
    let name = text.split(':').next().unwrap_or_default();
    if name.is_empty() {
        return Ok(Some(0));
    }
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let passwd = match files.find("/etc/passwd").await? {
        Some(file) => files.read(&file, WHOLE).await?.unwrap_or_default(),
        None => Vec::new(),
    };
    Ok(uid(&String::from_utf8_lossy(&passwd), name))
}

/// A user's number by passwd(5).
fn uid(passwd: &str, name: &str) -> Option<u32> {
    let mut users = passwd.lines().map(|line| line.split(':'));
    let mut found = users.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    found.nth(1)?.parse().ok()
}

impl ContainerFiles<'_> {
    /// Where the path of a mount leads, link by link; what is not there leads nowhere else.
    ///
    /// # Errors
    /// When the engine fails, or would answer about something else.
    pub async fn resolve_mount(&self, path: &Path, is_alone: bool) -> Result<Resolved, Error> {
        let podman = self.podman;
        let mut way = Walk::new(
            path,
            MountContext {
                podman,
                is_only_mount: is_alone,
            },
        );
        while let Some((next, is_own)) = way.next() {
            let next = next.display().to_string();
            let there = match podman && is_own {
                true => {
                    let pattern = bracketed(&next).ok_or_else(|| unsaid(&next))?;
                    stat_path(self.socket, self.docker, self.container, &pattern).await?
                }
                false => self.there(&next).await?,
            };
            if let Some(leads) = way.visit(there) {
                return Ok(leads);
            }
        }
        Ok(Resolved::Unchanged)
    }

    /// Whether only root can change what lies at this very path.
    ///
    /// # Errors
    /// When the engine fails.
    pub async fn owner(&self, path: &str) -> Result<Owned, Error> {
        match self.there(path).await? {
            PathKind::Missing => Ok(Owned::Missing),
            PathKind::Symlink(_) => Ok(Owned::ByOthers),
            PathKind::FileOrDir => {
                let archive = self.archive(path, 0).await?.unwrap_or_default();
                Ok(match is_roots(&archive) {
                    true => Owned::ByRoot,
                    false => Owned::ByOthers,
                })
            }
        }
    }

    /// The contents of a file, wherever its symlinks lead; `None` if it is not there.
    ///
    /// # Errors
    /// When the engine fails, or for what is no file or too large for what it is read for.
    pub async fn contents(&self, path: &str) -> Result<Option<Vec<u8>>, Error> {
        let Some(found) = self.find(path).await? else {
            return Ok(None);
        };
        let contents = self.read(&found, MOST_ACCOUNTS).await?;
        let whole = contents.filter(|contents| contents.len() < MOST_ACCOUNTS);
        let message = || format!("the image's {path} cannot be read as a file of accounts");
        let failed = || Error::DockerResponseServerError {
            status_code: 400,
            message: message(),
        };
        whole.ok_or_else(failed).map(Some)
    }

    /// Where a path leads, if it leads anywhere.
    async fn find(&self, path: &str) -> Result<Option<String>, Error> {
        let mut path = path.to_owned();
        for _ in 0..LINKS {
            match self.there(&path).await? {
                PathKind::FileOrDir => return Ok(Some(path)),
                PathKind::Symlink(target) => path = target,
                PathKind::Missing => return Ok(None),
            }
        }
        Ok(None)
    }

    async fn there(&self, path: &str) -> Result<PathKind, Error> {
        if self.podman && is_pattern(path) {
            return Err(unsaid(path));
        }
        stat_path(self.socket, self.docker, self.container, path).await
    }

    /// The beginning of a file.
    async fn read(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let archive = self.archive(path, most).await?;
        let archive = archive.unwrap_or_default();
        Ok(first_file(&archive).map(|contents| contents[..contents.len().min(most)].to_vec()))
    }

    /// The beginning of a path's archive, with so many bytes of contents.
    async fn archive(&self, path: &str, most: usize) -> Result<Option<Vec<u8>>, Error> {
        let options = DownloadFromContainerOptions {
            path: path.to_owned(),
        };
        let mut stream = self
            .docker
            .download_from_container(self.container, Some(options));
        let mut archive = Vec::new();
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) => archive.extend_from_slice(&chunk),
                Err(error) if engine::status(&error) == Some(404) => return Ok(None),
                Err(error) => return Err(error),
            }
            // One header, and those of long names and times, are a few blocks.
            if archive.len() >= most.saturating_add(16 << 10) {
                break;
            }
        }
        Ok(Some(archive))
    }

    /// The program that `name` means.
    async fn program(
        &self,
        name: &str,
        path: &str,
        workdir: &str,
    ) -> Result<Option<String>, Error> {
        if name.starts_with('/') {
            return self.find(name).await;
        }
        if name.contains('/') {
            return self.find(&format!("{workdir}/{name}")).await;
        }
        for folder in path.split(':').filter(|folder| !folder.is_empty()) {
            if let Some(found) = self.find(&format!("{folder}/{name}")).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// Podman's answer would be about other paths, or that there is nothing.
fn unsaid(path: &str) -> Error {
    Error::DockerResponseServerError {
        status_code: 400,
        message: format!(
            "Podman treats {path} as a pattern and does not report the file at this path"
        ),
    }
}

/// Whether the first entry of an archive belongs to root and others cannot write it: mode, uid and gid in octal digits at
/// 100, 108 and 116 (POSIX ustar). A number that needs an extended header is not root's. The mode's group bits are also
/// the mask of an access control list (acl(5)).
fn is_roots(mut archive: &[u8]) -> bool {
    /// The block of a tar archive (POSIX ustar), so its headers have this size.
    const BLOCK: usize = 512;
    let octal = |field: &[u8]| {
        let digits = String::from_utf8_lossy(field);
        u64::from_str_radix(digits.trim_matches(['\0', ' ']), 8).ok()
    };
    loop {
        let Some(header) = archive.get(..BLOCK) else {
            return false;
        };
        if !matches!(header[156], b'x' | b'g' | b'L' | b'K') {
            let (mode, uid) = (octal(&header[100..108]), octal(&header[108..116]));
            return uid == Some(0) && mode.is_some_and(|mode| mode & 0o022 == 0);
        }
        let size = octal(&header[124..136]).and_then(|size| usize::try_from(size).ok());
        let Some(contents) = size.and_then(|size| archive.get(BLOCK..)?.get(..size)) else {
            return false;
        };
        let is_owner = |key: &[u8]| key == b" uid=" || key == b" gid=";
        if contents.windows(5).any(is_owner) {
            return false;
        }
        let next = contents.len().next_multiple_of(BLOCK);
        archive = archive.get(BLOCK + next..).unwrap_or_default();
    }
}

/// The contents of the first regular file in an archive, as far as they are there: headers of 512 bytes with the size
/// in octal digits at 124 and the kind at 156, contents filled up to 512 (POSIX ustar).
fn first_file(mut archive: &[u8]) -> Option<&[u8]> {
    /// The block of a tar archive (POSIX ustar), so its headers have this size.
    const BLOCK: usize = 512;
    loop {
        let header = archive.get(..BLOCK)?;
        let digits = String::from_utf8_lossy(&header[124..136]);
        let digits = digits.trim_matches(['\0', ' ']);
        let size = usize::from_str_radix(digits, 8).ok()?;
        let contents = archive.get(BLOCK..)?;
        match header[156] {
            b'0' | 0 => return Some(&contents[..contents.len().min(size)]),
            // Long names and times, of what follows.
            b'x' | b'g' | b'L' | b'K' => {
                archive = contents.get(size.checked_next_multiple_of(BLOCK)?..)?;
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs<'a>(image: &'a ImageConfig, command: &'a [String]) -> Runs<'a> {
        Runs {
            image,
            entrypoint: None,
            command,
            user: None,
            workdir: None,
            needs: None,
        }
    }

    #[test]
    fn the_program_is_the_entrypoints_or_the_commands() {
        let words =
            |words: &[&str]| Some(words.iter().map(ToString::to_string).collect::<Vec<_>>());
        let with = ImageConfig {
            entrypoint: words(&["/entry", "-x"]),
            cmd: words(&["serve"]),
            ..ImageConfig::default()
        };
        let without = ImageConfig {
            cmd: words(&["serve"]),
            ..ImageConfig::default()
        };
        let given = words(&["python", "x.py"]).unwrap();
        let first = |runs: Runs<'_>| first_word(&runs);
        assert_eq!(first(runs(&with, &given)).as_deref(), Some("/entry"));
        assert_eq!(first(runs(&without, &given)).as_deref(), Some("python"));
        assert_eq!(first(runs(&without, &[])).as_deref(), Some("serve"));
        let over = Runs {
            entrypoint: Some("/other"),
            ..runs(&with, &given)
        };
        assert_eq!(first(over).as_deref(), Some("/other"));
        let none = Runs {
            entrypoint: Some(""),
            ..runs(&with, &given)
        };
        assert_eq!(first(none).as_deref(), Some("python"));
        assert_eq!(first(runs(&ImageConfig::default(), &[])), None);
    }

    #[test]
    fn a_users_number_is_in_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\njovyan:x:1000:100::/home/j:/bin/sh\nbad\n";
        assert_eq!(uid(passwd, "jovyan"), Some(1000));
        assert_eq!(uid(passwd, "nobody"), None);
        assert_eq!(uid(passwd, "bad"), None);
    }

    fn entry(kind: u8, contents: &[u8]) -> Vec<u8> {
        let mut block = vec![0; 512];
        block[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        block[156] = kind;
        block.extend_from_slice(contents);
        block.resize(block.len().next_multiple_of(512), 0);
        block
    }

    #[test]
    fn a_file_is_found_behind_what_is_said_of_it() {
        let archive = [
            entry(b'x', &[b'p'; 600]),
            entry(b'L', b"name"),
            entry(b'0', b"text"),
        ]
        .concat();
        assert_eq!(first_file(&archive), Some(&b"text"[..]));
        for length in 0..archive.len() {
            let _ = first_file(&archive[..length]);
        }
        assert_eq!(first_file(&entry(b'5', b"")), None);
        assert_eq!(first_file(&[]), None);
    }

    #[test]
    fn what_others_could_change_is_not_roots() {
        let of = |mode: &str, uid: &str, before: Vec<u8>| {
            let mut header = entry(b'5', b"");
            header[100..100 + mode.len()].copy_from_slice(mode.as_bytes());
            header[108..108 + uid.len()].copy_from_slice(uid.as_bytes());
            is_roots(&[before, header].concat())
        };
        let none = Vec::new;
        assert!(of("0000755", "0000000", none()));
        assert!(of("0040755", "0000000", entry(b'x', b"20 mtime=1.5\n")));
        for (mode, uid, before) in [
            ("0000755", "0001751", none()),
            ("0000775", "0000000", none()),
            ("0000757", "0000000", none()),
            ("0001777", "0000000", none()),
            ("0000755", "", none()),
            // Go's writer leaves 0 in the header where the number is in the extended header.
            ("0000755", "0000000", entry(b'x', b"16 uid=3000000\n")),
            (
                "0000755",
                "0000000",
                entry(b'x', b"20 mtime=1.5\n16 gid=3000000\n"),
            ),
        ] {
            assert!(!of(mode, uid, before), "{mode} {uid}");
        }
        assert!(!is_roots(&[]));
    }
}
