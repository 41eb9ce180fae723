//! Detection of engines: other schedulers on this node, beside which `divvy run` would be a second door to the GPUs.

use std::fs;
use std::path::Path;

use divvy_api::v1::{Finding, FindingStatus, Node};

/// Each scheduler, and the programs of a node that runs its tasks.
const PROGRAMS: [(&str, &[&str]); 4] = [
    ("Slurm", &["slurmd"]),
    ("Ray", &["raylet"]),
    ("JupyterHub", &["jupyterhub"]),
    ("Kubernetes", &["kubelet", "k3s-server", "k3s-agent"]),
];

/// The file that has Slurm load the plugin, and a name in it.
const PLUGSTACK: (&str, &str) = ("slurm/plugstack.conf", "libspank_divvy");

/// The schedulers that this node runs tasks of.
pub fn found() -> Vec<&'static str> {
    found_in(Path::new("/proc"), Path::new("/etc"))
}

fn found_in(proc: &Path, etc: &Path) -> Vec<&'static str> {
    let names = names(proc);
    let (file, plugin) = PLUGSTACK;
    let has_plugin = fs::read_to_string(etc.join(file)).is_ok_and(|text| {
        let mut lines = text.lines();
        lines.any(|line| !line.trim_start().starts_with('#') && line.contains(plugin))
    });
    let runs = |programs: &[&str]| names.iter().any(|name| programs.contains(&name.as_str()));
    let found = PROGRAMS
        .into_iter()
        .filter(|(engine, programs)| runs(programs) || (*engine == "Slurm" && has_plugin));
    found.map(|(engine, _)| engine).collect()
}

/// Names of all processes: of the program, and of the script or module that it runs, as in `python3 -m jupyterhub`.
fn names(proc: &Path) -> Vec<String> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let words = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let names = words.flat_map(|line| {
        let words = line.split(|byte| *byte == 0).take(3);
        let name = |word: &[u8]| {
            let word = String::from_utf8_lossy(word);
            word.rsplit('/').next().unwrap_or_default().to_owned()
        };
        words.map(name).collect::<Vec<_>>()
    });
    names.collect()
}

/// Whether the system's daemon leaves the GPUs to the schedulers that were found.
pub fn finding(node: &Node, found: &[&str]) -> Option<Finding> {
    if found.is_empty() || !node.system {
        return None;
    }
    let engines = found.join(" and ");
    let (status, found, means, fix) = if node.claims_only {
        (
            FindingStatus::Ok,
            format!("{engines} on this node, and only slices get GPUs"),
            "",
            "",
        )
    } else {
        (
            FindingStatus::Warn,
            format!("{engines} on this node, and the daemon takes jobs of all users"),
            "with `divvy run` a user takes GPUs that the other scheduler counts as free",
            "add claims-only = true at the top of /etc/divvy/config.toml, then: divvy config reload",
        )
    };
    Some(Finding {
        check: "engine".to_owned(),
        status,
        found,
        means: means.to_owned(),
        fix: fix.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_found_by_its_program_its_script_or_the_plugin() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, etc) = (folder.path().join("proc"), folder.path().join("etc"));
        let add = |pid: &str, words: &[&str]| {
            fs::create_dir_all(proc.join(pid)).unwrap();
            fs::write(proc.join(pid).join("cmdline"), words.join("\0")).unwrap();
        };
        fs::create_dir_all(etc.join("slurm")).unwrap();
        let plugstack = etc.join("slurm/plugstack.conf");
        add("1", &["/sbin/init"]);
        add("2", &["grep", "-r", "x", "slurmd"]);
        fs::write(&plugstack, "#required /usr/lib/divvy/libspank_divvy.so\n").unwrap();
        assert_eq!(found_in(&proc, &etc), Vec::<&str>::new());
        add("3", &["/opt/ray/raylet", "--x"]);
        add("4", &["/usr/bin/python3", "-m", "jupyterhub"]);
        fs::write(&plugstack, "required /usr/lib/divvy/libspank_divvy.so\n").unwrap();
        assert_eq!(found_in(&proc, &etc), ["Slurm", "Ray", "JupyterHub"]);
        add(
            "5",
            &["/usr/bin/python3", "/usr/local/bin/jupyterhub-singleuser"],
        );
        add("6", &["/usr/bin/kubelet"]);
        assert_eq!(found_in(&proc, &etc).last(), Some(&"Kubernetes"));
    }
}
