//! Embeds the page: the table of the files below `assets`, each with an ETag.
//!
//! `assets/index.html` becomes `/`, every other file `/assets/…`. The modules are joined into `main.js` ([`bundle`]).
//! Notes (`*.md`, `LICENSE…`) are not served. A file of an unknown kind stops the build, so that no browser has to guess
//! a type.

mod bundle;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Scripts that are no modules.
const SCRIPTS: [&str; 1] = ["theme.js"];

fn main() -> io::Result<()> {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by Cargo")).join("assets");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by Cargo"));
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=bundle.rs");
    println!("cargo:rerun-if-changed=assets");
    let mut files = Vec::new();
    collect(&root, &mut files)?;
    files.sort();
    let mut table = String::from("&[\n");
    for (number, file) in files.iter().enumerate() {
        let below = file.strip_prefix(&root).expect("found below it");
        let below = below.to_str().expect("our names are ASCII");
        let path = match below {
            "index.html" => "/".to_owned(),
            _ => format!("/assets/{below}"),
        };
        let Some(bytes) = content(&root, below)? else {
            continue;
        };
        let content = out.join(format!("{number}.content"));
        fs::write(&content, &bytes)?;
        let digest = sha1_smol::Sha1::from(&bytes).digest().to_string();
        let etag = format!("W/\"{}\"", &digest[..16]);
        writeln!(
            table,
            "File {{ path: {path:?}, kind: {:?}, etag: {etag:?}, bytes: include_bytes!({content:?}) }},",
            kind(below),
        )
        .expect("a String takes all");
    }
    table += "]\n";
    fs::write(out.join("files.rs"), table)
}

/// The files that are served, of a folder and its folders.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let is_note = name.starts_with("LICENSE") || name.ends_with(".md") || name.starts_with('.');
        match path.is_dir() {
            true => collect(&path, files)?,
            false if is_note => {}
            false => files.push(path),
        }
    }
    Ok(())
}

/// What is served of a file; nothing of a module that is a part of `main.js`.
fn content(root: &Path, below: &str) -> io::Result<Option<Vec<u8>>> {
    let is_vendored = below.starts_with("vendor/");
    let is_module = below.ends_with(".js") && !SCRIPTS.contains(&below);
    Ok(match below {
        "main.js" => Some(
            bundle::bundle(root, below)
                .map_err(io::Error::other)?
                .into(),
        ),
        "style.css" => Some(bundle::style(&fs::read_to_string(root.join(below))?).into()),
        _ if is_module && !is_vendored => None,
        _ => Some(fs::read(root.join(below))?),
    })
}

/// The content type of a file.
fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("json") => "application/json",
        Some("txt") => "text/plain; charset=utf-8",
        _ => panic!("crates/web/assets/{name}: its kind is unknown; add it to crates/web/build.rs"),
    }
}
