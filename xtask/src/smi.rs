//! `nvidia-smi`, in `target/nvidia-smi`, for the tests that look at a slice through it. Divvy may not distribute it, and not every
//! distribution has it. It is unpacked from Debian's non-free packages, from the mirror that the machine uses, not installed. If
//! that fails, those tests are skipped and report it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::target;
use crate::steps::{answer, run};

const PROGRAM: &str = "root/usr/lib/nvidia/current/nvidia-smi";
const SOURCES: [&str; 2] = ["/etc/apt/sources.list.d", "/etc/apt"];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The program, fetched once.
pub fn make() -> Option<PathBuf> {
    let folder = target().join("nvidia-smi");
    let program = folder.join(PROGRAM);
    if program.is_file() {
        eprintln!("   nvidia-smi: downloaded before");
        return Some(program);
    }
    match fetch(&folder) {
        Ok(()) if program.is_file() => Some(program),
        Ok(()) => {
            eprintln!("   MISSING: nvidia-smi (not found in its package); its tests are skipped");
            None
        }
        Err(error) => {
            eprintln!("   MISSING: nvidia-smi ({error:#}); its tests are skipped");
            None
        }
    }
}

fn fetch(folder: &Path) -> Result<()> {
    if answer(Command::new("apt-get").arg("--version")).is_none() {
        bail!("apt-get is missing");
    }
    let (mirror, suite) = SOURCES
        .iter()
        .find_map(|folder| debian(Path::new(folder)))
        .context("the machine uses no Debian mirror")?;
    for part in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(folder.join(part)).with_context(|| format!("make {part}"))?;
    }
    let list = folder.join("sources.list");
    let line = format!("deb [signed-by={KEYS}] {mirror} {suite} non-free\n");
    fs::write(&list, line).context("write sources.list")?;
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        let option = |name: &str, path: &Path| format!("-o{name}={}", path.display());
        command
            .args(words)
            .arg(option("Dir::Etc::SourceList", &list))
            .arg("-oDir::Etc::SourceParts=/dev/null")
            .arg(option("Dir::State::Lists", &folder.join("lists")))
            .arg(option("Dir::Cache", &folder.join("cache")))
            .arg("-oAPT::Sandbox::User=")
            .current_dir(folder);
        run(&mut command)
    };
    apt(&["update", "-qq"])?;
    apt(&["download", "-qq", "nvidia-smi"])?;
    let package = fs::read_dir(folder)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|kind| kind == "deb"))
        .context("apt-get downloaded no package")?;
    run(Command::new("dpkg-deb")
        .arg("--extract")
        .arg(&package)
        .arg(folder.join("root")))
}

/// A Debian mirror and its suite, from the first file of sources in `folder` that names them.
fn debian(folder: &Path) -> Option<(String, String)> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    files.sort();
    files
        .iter()
        .find_map(|file| mirror(&fs::read_to_string(file).ok()?))
}

/// `deb URI SUITE …` lines, or `URIs:` and `Suites:` fields, of an archive named `debian`.
fn mirror(text: &str) -> Option<(String, String)> {
    let is_debian = |uri: &&str| uri.trim_end_matches('/').ends_with("/debian");
    let line = |line: &str| {
        let mut words = line
            .strip_prefix("deb ")?
            .split_whitespace()
            .skip_while(|word| word.starts_with('[') || word.ends_with(']'));
        let uri = words.next().filter(is_debian)?;
        Some((uri.to_owned(), words.next()?.to_owned()))
    };
    let paragraph = |paragraph: &str| {
        let field = |name: &str| {
            let line = paragraph.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next().map(str::to_owned)
        };
        let uri = field("URIs:").filter(|uri| is_debian(&uri.as_str()))?;
        Some((uri, field("Suites:")?))
    };
    text.lines()
        .find_map(line)
        .or_else(|| text.split("\n\n").find_map(paragraph))
}

#[cfg(test)]
mod tests {
    use super::mirror;

    #[test]
    fn a_mirror_is_found_in_either_notation() {
        let found = Some((
            "http://mirror.example/debian".to_owned(),
            "bookworm".to_owned(),
        ));
        for text in [
            "# comment\ndeb http://mirror.example/debian bookworm main contrib\n",
            "deb [arch=amd64 trusted=no] http://mirror.example/debian bookworm main\n",
            "Types: deb\nURIs: http://mirror.example/debian-security\nSuites: bookworm-security\n\n\
             Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n",
        ] {
            assert_eq!(mirror(text), found, "{text}");
        }
        assert_eq!(
            mirror("deb http://mirror.example/ubuntu noble main\n"),
            None
        );
        assert_eq!(mirror(""), None);
    }
}
