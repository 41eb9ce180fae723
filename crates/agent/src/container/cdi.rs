//! CDI: a slice as a device of the Container Device Interface, for engines and people that inject devices by name.
//!
//! One file for each slice, made before its container and removed after it. The version is the lowest that has all that
//! is used here (0.6.0 of the specification, SPEC.md "Released versions"), and there are no hooks.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::edits::Edits;

const VERSION: &str = "0.6.0";
const KIND: &str = "divvy.dev/slice";

/// What the names of claims' devices end in, after the claim's uid.
pub const OF_CLAIM: &str = ".claim";

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cdi {
    cdi_version: &'static str,
    kind: &'static str,
    devices: Vec<Device>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: String,
    container_edits: ContainerEdits,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerEdits {
    env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<Node>,
    mounts: Vec<Mount>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    path: String,
    permissions: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<&'static str>,
}

/// What an engine is asked for: `divvy.dev/slice=NAME`.
pub fn device(name: &str) -> String {
    format!("{KIND}={name}")
}

/// These edits as a device of that name.
pub fn cdi(name: &str, edits: &Edits) -> Cdi {
    let variable = |(name, value): (&String, &String)| format!("{name}={value}");
    let nodes = edits.devices.iter().map(|device| Node {
        path: device.path.display().to_string(),
        permissions: device.permissions.clone(),
    });
    let mounts = edits.mounts.iter().map(|bind| {
        let mode = if bind.read_only { "ro" } else { "rw" };
        Mount {
            host_path: bind.host.display().to_string(),
            container_path: bind.container.display().to_string(),
            options: vec![mode, "nosuid", "nodev", "rbind", "rprivate"],
        }
    });
    Cdi {
        cdi_version: VERSION,
        kind: KIND,
        devices: vec![Device {
            name: name.to_owned(),
            container_edits: ContainerEdits {
                env: edits.variables.iter().map(variable).collect(),
                device_nodes: nodes.collect(),
                mounts: mounts.collect(),
            },
        }],
    }
}

fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.json"))
}

/// Writes the file atomically into a folder that engines search.
///
/// # Errors
/// When the folder cannot be written.
pub fn write(folder: &Path, name: &str, cdi: &Cdi) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    // Engines read files that end in .json and .yaml.
    let draft = folder.join(format!(".{name}.new"));
    fs::write(&draft, serde_json::to_vec_pretty(cdi)?)?;
    fs::rename(&draft, file(folder, name))
}

/// The same, unless it is there as it should be.
///
/// # Errors
/// As [`write()`].
pub fn keep(folder: &Path, name: &str, cdi: &Cdi) -> io::Result<()> {
    let text = serde_json::to_vec_pretty(cdi)?;
    if fs::read(file(folder, name)).is_ok_and(|found| found == text) {
        return Ok(());
    }
    write(folder, name, cdi)
}

/// Removes the files with names, without the ending, that are to go; also unfinished files.
///
/// # Errors
/// When one of them is there and stays.
pub fn sweep(folder: &Path, goes: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let draft = || name.strip_prefix('.')?.strip_suffix(".new");
        if let Some(name) = name.strip_suffix(".json").or_else(draft)
            && goes(name)
        {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a file is of an instance with the prefix `prefix`, and of no current holder. Its name is that of a job (`7`,
/// `7.2`) or of a claim, and is not in `held`.
pub fn is_over(name: &str, prefix: &str, held: &BTreeSet<String>) -> bool {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    let is_job = |rest: &str| match rest.split_once('.') {
        Some((job, run)) => is_number(job) && is_number(run),
        None => is_number(rest),
    };
    let rest = name.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.ends_with(OF_CLAIM) || is_job(rest)) && !held.contains(name)
}

/// Removes it; nothing there is just as well.
///
/// # Errors
/// When it is there and stays.
pub fn remove(folder: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(file(folder, name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::container::edits::{edits, tests as added};

    #[test]
    fn a_slice_is_one_device_with_all_that_it_adds() {
        let edits = edits(&added::installed(), &added::files());
        let value = serde_json::to_value(cdi("divvy-0badcafe-7", &edits)).unwrap();
        assert_eq!(value["cdiVersion"], "0.6.0");
        assert_eq!(value["kind"], "divvy.dev/slice");
        let added = &value["devices"][0]["containerEdits"];
        assert_eq!(value["devices"][0]["name"], "divvy-0badcafe-7");
        assert_eq!(
            added["deviceNodes"][2],
            json!({"path": "/dev/nvidia-caps/nvidia-cap12", "permissions": "r"})
        );
        assert_eq!(
            added["mounts"][2],
            json!({"hostPath": "/run/divvy/slices/7/slots", "containerPath": "/run/divvy-job/slice/slots", "options": ["rw", "nosuid", "nodev", "rbind", "rprivate"]})
        );
        assert!(added.get("hooks").is_none());
    }

    /// The schema is the one that the Container Device Interface publishes.
    #[test]
    fn the_file_is_valid_by_the_schema() {
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        let schema = include_str!("../../tests/cdi/schema.json");
        let mut schema = parse(&schema.replace("defs.json#", "#"));
        schema["definitions"] =
            parse(include_str!("../../tests/cdi/defs.json"))["definitions"].clone();
        let schema = jsonschema::draft7::new(&schema).unwrap();
        for held in [added::installed(), added::simulated()] {
            let cdi = cdi("divvy-0badcafe-7", &edits(&held, &added::files()));
            schema
                .validate(&serde_json::to_value(&cdi).unwrap())
                .unwrap();
        }
        schema
            .validate(&parse(r#"{"cdiVersion":"0.6.0"}"#))
            .expect_err("the schema refuses what lacks its fields");
    }

    #[test]
    fn of_an_instances_files_those_go_of_which_nothing_is_held() {
        let held = ["divvy-0badcafe-7.2", "divvy-0badcafe-u-1.claim"];
        let held: BTreeSet<String> = held.map(str::to_owned).into();
        let goes = |name: &str| is_over(name, "divvy-0badcafe-", &held);
        for name in [
            // An earlier run of the job, a number of an earlier journal's, a claim that was given back.
            "divvy-0badcafe-7",
            "divvy-0badcafe-7.3",
            "divvy-0badcafe-8",
            "divvy-0badcafe-u-2.claim",
        ] {
            assert!(goes(name), "{name}");
        }
        for name in [
            "divvy-0badcafe-7.2",
            "divvy-0badcafe-u-1.claim",
            "divvy-0badcafe-mine",
            "divvy-0badcafe-7.mine",
            "divvy-0badf00d-7",
            "nvidia",
        ] {
            assert!(!goes(name), "{name}");
        }
    }

    #[test]
    fn the_file_comes_whole_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("cdi");
        let cdi = cdi("a", &edits(&added::simulated(), &added::files()));
        write(&place, "a", &cdi).unwrap();
        let names: Vec<_> = fs::read_dir(&place)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a.json"]);
        remove(&place, "a").unwrap();
        remove(&place, "a").expect("a second time changes nothing");
    }
}
