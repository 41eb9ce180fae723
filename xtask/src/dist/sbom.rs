//! The bill of materials of a release, in CycloneDX 1.5: every crate in the programs and libraries, with its licence, checksum
//! and dependencies. Crates that only tests or build scripts use are not in it.
//!
//! It comes from `cargo metadata --offline` and Cargo.lock. cargo-cyclonedx is not used: its identifiers contain the folder of
//! the workspace, so two builds in different folders would differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::{Value, json};

use super::VERSION;
use super::build::BUILT;
use super::platform::Architecture;
use crate::cargo::{cargo, root};
use crate::steps::answer;

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// `null`: a normal dependency; else `dev` or `build`.
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Deserialize)]
struct Locked {
    name: String,
    version: String,
    checksum: Option<String>,
}

/// The document as text.
pub fn document(architecture: Architecture, time: i64) -> Result<String> {
    let filter = format!("--filter-platform={}", architecture.triple());
    let words = [
        "metadata",
        "--format-version=1",
        "--locked",
        "--offline",
        &filter,
    ];
    let metadata = answer(&mut cargo(&words)).context("`cargo metadata` failed")?;
    let lock = fs::read_to_string(root().join("Cargo.lock")).context("read Cargo.lock")?;
    let time = jiff::Timestamp::from_second(time)?;
    let bom = bom(
        &serde_json::from_str(&metadata)?,
        &toml::from_str(&lock)?,
        &time.to_string(),
    );
    Ok(serde_json::to_string_pretty(&bom)? + "\n")
}

fn bom(metadata: &Metadata, lock: &Lock, time: &str) -> Value {
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .map(|package| (&*package.id, package))
        .collect();
    let below: BTreeMap<&str, Vec<&str>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| {
            let normal = node.deps.iter().filter(|dependency| {
                let kinds = &dependency.dep_kinds;
                kinds.iter().any(|kind| kind.kind.is_none())
            });
            (
                &*node.id,
                normal.map(|dependency| &*dependency.pkg).collect(),
            )
        })
        .collect();
    let checksums: BTreeMap<(&str, &str), &str> = lock
        .package
        .iter()
        .filter_map(|locked| {
            let checksum = locked.checksum.as_deref()?;
            Some(((&*locked.name, &*locked.version), checksum))
        })
        .collect();
    let is_shipped = |package: &&Package| BUILT.iter().any(|(name, ..)| *name == package.name);
    let mut open: Vec<&str> = metadata
        .packages
        .iter()
        .filter(is_shipped)
        .map(|package| &*package.id)
        .collect();
    let roots: Vec<String> = open.iter().map(|id| purl(packages[id])).collect();
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if found.insert(id) {
            open.extend(below.get(id).into_iter().flatten());
        }
    }
    let mut used: Vec<&Package> = found.iter().map(|id| packages[id]).collect();
    used.sort_by(|one, next| (&one.name, &one.version).cmp(&(&next.name, &next.version)));
    let components = used.iter().map(|package| {
        let mut component = json!({
            "type": "library",
            "bom-ref": purl(package),
            "name": package.name,
            "version": package.version,
            "purl": purl(package),
        });
        if let Some(license) = &package.license {
            // Old manifests write `MIT/Apache-2.0` for a choice.
            let expression = license.replace('/', " OR ");
            component["licenses"] = json!([{ "expression": expression }]);
        }
        if let Some(checksum) = checksums.get(&(&*package.name, &*package.version)) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        component
    });
    let depends = used.iter().map(|package| {
        let below = below.get(&*package.id).into_iter().flatten();
        let below: BTreeSet<String> = below.map(|id| purl(packages[id])).collect();
        json!({ "ref": purl(package), "dependsOn": below })
    });
    let own = format!("pkg:generic/divvy@{VERSION}");
    let top = json!({ "ref": own, "dependsOn": roots });
    let depends: Vec<Value> = [top].into_iter().chain(depends).collect();
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "divvy",
                "version": VERSION,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": components.collect::<Vec<_>>(),
        "dependencies": depends,
    })
}

/// The package's address. A crate of the workspace is on no registry.
fn purl(package: &Package) -> String {
    let kind = if package.source.is_some() {
        "cargo"
    } else {
        "generic"
    };
    format!("pkg:{kind}/{}@{}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_is_listed_and_what_only_tests_use_is_not() {
        let text = document(Architecture::HERE, 1_700_000_000).expect("a document");
        let bom: Value = serde_json::from_str(&text).expect("JSON");
        let components = bom["components"].as_array().expect("a list");
        let find = |name: &str| components.iter().find(|one| one["name"] == name);
        let serde = find("serde").expect("serde is used");
        assert_eq!(
            serde["hashes"][0]["content"].as_str().map(str::len),
            Some(64)
        );
        assert!(serde["licenses"][0]["expression"].is_string());
        for name in ["divvy-shim", "rusqlite", "kube"] {
            assert!(find(name).is_some(), "{name}");
        }
        for name in ["proptest", "insta", "xtask", "divvy-testkit"] {
            assert!(find(name).is_none(), "{name}");
        }
        let unlicensed = components.iter().find(|one| one["licenses"].is_null());
        assert_eq!(unlicensed, None);
        // Every reference leads to a component.
        let refs: BTreeSet<&str> = components
            .iter()
            .filter_map(|one| one["bom-ref"].as_str())
            .collect();
        for row in bom["dependencies"].as_array().expect("a list") {
            for below in row["dependsOn"].as_array().expect("a list") {
                assert!(refs.contains(below.as_str().expect("text")), "{below}");
            }
        }
        let place = root().display().to_string();
        assert!(!text.contains(&place), "a path of this machine");
    }
}
