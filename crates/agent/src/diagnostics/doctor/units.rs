//! Units of systemd that hide those of a package: an administrator's copy wins, and keeps an upgrade's changes out.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_api::v1::Finding;

use super::warn;

/// The units of a package.
const UNITS: [&str; 3] = [
    "divvy.service",
    "divvy-forkserver.service",
    "divvy-forkserver.socket",
];

/// Where packages put units; distributions without a merged `/usr` have the second.
const PACKAGED: [&str; 2] = ["usr/lib/systemd/system", "lib/systemd/system"];

/// Folders whose units systemd takes before those of packages (systemd.unit(5)).
const BEFORE: [&str; 2] = ["etc/systemd/system", "usr/local/lib/systemd/system"];

/// Units below `root` that hide a packaged one.
pub fn findings(root: &Path) -> Option<Finding> {
    let hidden: Vec<(PathBuf, PathBuf)> =
        UNITS.iter().filter_map(|unit| hides(root, unit)).collect();
    if hidden.is_empty() {
        return None;
    }
    let found = hidden
        .iter()
        .map(|(unit, packaged)| format!("{} hides {}", unit.display(), packaged.display()));
    let files: Vec<String> = (hidden.iter())
        .map(|(unit, _)| unit.display().to_string())
        .collect();
    let fix = format!(
        "rm {} && systemctl daemon-reload && systemctl restart divvy; settings of your own: systemctl edit divvy",
        files.join(" ")
    );
    let means = "systemd does not use the package's unit, nor what an upgrade changes in it";
    Some(warn(
        "units",
        found.collect::<Vec<_>>().join("; "),
        means,
        &fix,
    ))
}

/// The unit that systemd takes, and the package's. A masked unit (`/dev/null`) and a link to the package's hide nothing.
fn hides(root: &Path, unit: &str) -> Option<(PathBuf, PathBuf)> {
    let file = |folder: &str| root.join(folder).join(unit);
    let is_file = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.is_file());
    let packaged = PACKAGED.iter().map(|folder| file(folder)).find(is_file)?;
    let first = BEFORE.iter().map(|folder| file(folder)).find(is_file)?;
    let is_same = fs::canonicalize(&first).ok()? == fs::canonicalize(&packaged).ok()?;
    (!is_same).then_some((first, packaged))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_copy_of_a_unit_that_hides_the_packaged_one_is_named_with_the_command() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "[Unit]\n").unwrap();
        };
        let old = "etc/systemd/system/divvy.service";
        write(old);
        // An installation without a package: its unit is the only one.
        assert!(findings(root.path()).is_none());
        write("usr/lib/systemd/system/divvy.service");
        write("usr/lib/systemd/system/divvy-forkserver.socket");
        write("usr/local/lib/systemd/system/divvy-forkserver.socket");
        let found = findings(root.path()).unwrap();
        let shown = |path: &str| root.path().join(path).display().to_string();
        let (first, second) = (
            shown(old),
            shown("usr/local/lib/systemd/system/divvy-forkserver.socket"),
        );
        assert!(
            found.found.starts_with(&format!("{first} hides ")),
            "{found:?}"
        );
        assert!(
            found.fix.starts_with(&format!("rm {first} {second} && ")),
            "{found:?}"
        );
        fs::remove_file(&second).unwrap();
        // Masked, and linked to the package's unit.
        for target in ["/dev/null", "../../../usr/lib/systemd/system/divvy.service"] {
            fs::remove_file(&first).unwrap();
            symlink(target, &first).unwrap();
            assert!(findings(root.path()).is_none(), "{target}");
        }
    }
}
