//! The identity of this machine: machine-id, host name, boot id.

use std::fs;
use std::path::Path;

/// Where systemd and D-Bus keep the machine's id: 32 hexadecimal digits (machine-id(5)).
const FILES: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];

/// The folder of machines without an id, as containers are. Their names differ from start to start, so they share one, and
/// the lock tells which of them serves it.
const WITHOUT_ID: &str = "without-machine-id";

/// The name of this machine's folder. `root`: `/`.
pub(super) fn id(root: &Path) -> String {
    let ids = FILES.iter().map(|file| fs::read_to_string(root.join(file)));
    let ids = ids.flatten().map(|text| text.trim().to_owned());
    ids.into_iter()
        .find(|id| is_id(id))
        .unwrap_or_else(|| WITHOUT_ID.to_owned())
}

/// Whether a machine's folder has this name.
pub fn is_folder(name: &str) -> bool {
    name == WITHOUT_ID || is_id(name)
}

/// An empty file and `uninitialized` stand for no id (machine-id(5)).
fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The host's name.
pub fn host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// The id of this start of the kernel, which its containers share; empty where the kernel does not say it.
pub fn boot() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_the_folder_of_its_id_and_one_without_an_id_a_common_one() {
        let id_of = |files: &[(&str, &str)]| {
            let root = tempfile::tempdir().unwrap();
            for (file, text) in files {
                let path = root.path().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            id(root.path())
        };
        let (one, other) = ("0123456789abcdef0123456789abcdef", "f".repeat(32));
        let cases: [(&[(&str, &str)], &str); 6] = [
            (&[(FILES[0], &format!("{one}\n")), (FILES[1], &other)], one),
            (&[(FILES[0], "uninitialized\n"), (FILES[1], &other)], &other),
            (&[(FILES[0], "")], WITHOUT_ID),
            (
                &[(FILES[0], "../../../etc/0123456789abcdef012")],
                WITHOUT_ID,
            ),
            (&[(FILES[0], "uninitialized\n")], WITHOUT_ID),
            (&[], WITHOUT_ID),
        ];
        for (files, expected) in cases {
            assert_eq!(id_of(files), expected, "{files:?}");
            assert!(is_folder(&id_of(files)));
        }
        assert!(!is_folder("jobs") && !is_folder("state.db"));
    }
}
