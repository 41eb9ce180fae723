//! The wheel `divvy-gpu`: `pip install`, `uv tool install` and `pipx` put the program and its libraries into an environment.
//!
//! The form is that of wheels with programs (uv, ruff): files of `.data/scripts` go to `bin`, and those of `.data/data` below the
//! environment. The name `divvy` belongs to another project on PyPI.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::build::{BUILT, glibc_needed};
use super::platform::Architecture;
use super::{EPOCH_OF_ZIP, SBOM, VERSION};
use crate::cargo::root;

/// Files of a release that an environment gets too.
const MORE: [&str; 3] = [
    "share/bash-completion/completions/divvy",
    "share/zsh/site-functions/_divvy",
    "share/fish/vendor_completions.d/divvy.fish",
];

/// The unit of a user's own daemon: in a release, and in an environment. systemd does not look there, because the unit
/// names the program of a package.
pub const USER_UNIT: (&str, &str) = (
    "lib/systemd/user/divvy.service",
    "share/divvy/systemd/user/divvy.service",
);

/// Programs that an environment has no use for: Kubernetes has images, and the nodes of Slurm have packages.
const LEFT_OUT: [&str; 2] = ["divvy-k8s", "divvy-slurm"];

/// Whether a manual page is of a program that the wheel has.
fn is_page_of_wheel(page: &str) -> bool {
    !LEFT_OUT.iter().any(|program| page.starts_with(program))
}

/// A file of the wheel.
struct Entry {
    name: String,
    contents: Vec<u8>,
    is_program: bool,
}

/// Writes the wheel; its path.
pub fn write(
    dist: &Path,
    tree: &Path,
    sbom: &Path,
    architecture: Architecture,
    time: i64,
    quick: bool,
) -> Result<PathBuf> {
    let (data, info) = (
        format!("divvy_gpu-{VERSION}.data"),
        format!("divvy_gpu-{VERSION}.dist-info"),
    );
    let mut entries = Vec::new();
    let mut add = |name: String, from: PathBuf, is_program: bool| -> Result<()> {
        let contents = fs::read(&from).with_context(|| format!("read {}", from.display()))?;
        entries.push(Entry {
            name,
            contents,
            is_program,
        });
        Ok(())
    };
    let files = BUILT
        .iter()
        .filter(|(package, ..)| !LEFT_OUT.contains(package));
    let mut glibc = 0;
    for (_, file, place) in files {
        let from = tree.join(place).join(file);
        glibc = glibc.max(glibc_needed(&from)?.minor);
        let to = match *place {
            "bin" => format!("{data}/scripts/{file}"),
            _ => format!("{data}/data/{place}/{file}"),
        };
        add(to, from, true)?;
    }
    for file in MORE {
        add(format!("{data}/data/{file}"), tree.join(file), false)?;
    }
    let (from, to) = USER_UNIT;
    add(format!("{data}/data/{to}"), tree.join(from), false)?;
    let pages = super::tree::files(&tree.join(super::tree::PAGES))?;
    for page in pages.into_iter().filter(|page| is_page_of_wheel(page)) {
        let file = format!("{}/{page}", super::tree::PAGES);
        add(format!("{data}/data/{file}"), tree.join(&file), false)?;
    }
    add(
        format!("{info}/licenses/LICENSE"),
        root().join("LICENSE"),
        false,
    )?;
    add(format!("{info}/sboms/{SBOM}"), sbom.to_owned(), false)?;
    let tag = format!("py3-none-manylinux_2_{glibc}_{}", architecture.name());
    for (name, text) in [("METADATA", metadata()?), ("WHEEL", about(&tag))] {
        entries.push(Entry {
            name: format!("{info}/{name}"),
            contents: text.into_bytes(),
            is_program: false,
        });
    }
    let record = format!("{info}/RECORD");
    let text = listing(&entries, &record);
    entries.push(Entry {
        name: record,
        contents: text.into_bytes(),
        is_program: false,
    });
    let path = dist.join(format!("divvy_gpu-{VERSION}-{tag}.whl"));
    compress(&path, &entries, time, quick)?;
    Ok(path)
}

/// Core metadata (2.4: PEP 639), with the page for users of pip as its description.
fn metadata() -> Result<String> {
    let page = root().join("docs/install.md");
    let page = fs::read_to_string(&page).with_context(|| format!("read {}", page.display()))?;
    Ok(format!(
        "Metadata-Version: 2.4\n\
         Name: divvy-gpu\n\
         Version: {VERSION}\n\
         Summary: Cut NVIDIA GPUs into fractions with hard memory limits, per job\n\
         License-Expression: Apache-2.0\n\
         License-File: LICENSE\n\
         Keywords: gpu,cuda,nvidia,mig,scheduler,queue\n\
         Classifier: Environment :: Console\n\
         Classifier: Environment :: GPU :: NVIDIA CUDA\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Requires-Python: >=3.8\n\
         Description-Content-Type: text/markdown\n\
         \n\
         {page}"
    ))
}

fn about(tag: &str) -> String {
    format!("Wheel-Version: 1.0\nGenerator: divvy-xtask\nRoot-Is-Purelib: false\nTag: {tag}\n")
}

/// `RECORD`: name, hash and size of each file; of itself the name alone.
fn listing(entries: &[Entry], own: &str) -> String {
    let lines = entries.iter().map(|entry| {
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(&entry.contents));
        format!("{},sha256={hash},{}\n", entry.name, entry.contents.len())
    });
    lines.collect::<String>() + own + ",,\n"
}

fn compress(path: &Path, entries: &[Entry], time: i64, quick: bool) -> Result<()> {
    let time = jiff::Timestamp::from_second(time.max(EPOCH_OF_ZIP))?;
    let time = time.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    let time = DateTime::from_date_and_time(
        u16::try_from(time.year())?,
        u8::try_from(time.month())?,
        u8::try_from(time.day())?,
        u8::try_from(time.hour())?,
        u8::try_from(time.minute())?,
        u8::try_from(time.second())?,
    )?;
    let mut archive = ZipWriter::new(File::create(path)?);
    for entry in entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(if quick { 1 } else { 9 }))
            .last_modified_time(time)
            .unix_permissions(if entry.is_program { 0o755 } else { 0o644 });
        archive.start_file(&entry.name, options)?;
        archive.write_all(&entry.contents)?;
    }
    archive.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, contents: &[u8]) -> Entry {
        Entry {
            name: name.into(),
            contents: contents.to_vec(),
            is_program: name.contains("scripts"),
        }
    }

    #[test]
    fn the_wheel_has_the_manual_pages_of_its_programs() {
        for (page, expected) in [
            ("divvy.1", true),
            ("divvy-admin-mig-plan.1", true),
            ("divvy-k8s.1", false),
            ("divvy-k8s-why.1", false),
            ("divvy-slurm.1", false),
        ] {
            assert_eq!(is_page_of_wheel(page), expected, "{page}");
        }
        let (from, _) = USER_UNIT;
        let unit = root().join("deploy").join(from.trim_start_matches("lib/"));
        assert!(unit.is_file(), "{}", unit.display());
    }

    #[test]
    fn the_record_has_hashes_as_pip_compares_them() {
        let text = listing(&[entry("a/b", b"")], "x/RECORD");
        // SHA-256 of nothing, in base64 for URLs and without padding.
        let empty = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        assert_eq!(text, format!("a/b,sha256={empty},0\nx/RECORD,,\n"));
    }

    #[test]
    fn the_same_files_give_the_same_bytes_and_programs_stay_programs() {
        let folder = std::env::temp_dir().join(format!("divvy-wheel-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let entries = [
            entry("d/scripts/divvy", b"program"),
            entry("d/text", b"text"),
        ];
        let bytes = ["one", "two"].map(|name| {
            let path = folder.join(name);
            compress(&path, &entries, 1_700_000_000, true).expect("written");
            fs::read(path).expect("readable")
        });
        assert_eq!(bytes[0], bytes[1]);
        let file = File::open(folder.join("one")).expect("there");
        let mut archive = zip::ZipArchive::new(file).expect("a zip");
        let mode = |archive: &mut zip::ZipArchive<File>, name| {
            archive.by_name(name).expect("an entry").unix_mode()
        };
        assert_eq!(mode(&mut archive, "d/scripts/divvy"), Some(0o100_755));
        assert_eq!(mode(&mut archive, "d/text"), Some(0o100_644));
        // A time before 1980 has no place in a zip file.
        compress(&folder.join("old"), &entries, 0, true).expect("written");
        fs::remove_dir_all(folder).expect("removed");
    }
}
