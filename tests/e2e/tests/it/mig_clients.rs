//! A divided GPU under the clients that people have: NVIDIA's own nvidia-smi where there is one, nvidia-ml-py, nvitop, gpustat. The
//! machine is the simulated one without anything of Divvy's on it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use divvy_e2e::{Dialog, GIB, MIB, Programs, client_script, python};
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};
use tempfile::TempDir;

/// GPU 0 has a 3g at memory slice 4, which is GPU instance 2, and a 1g at 1, which is 8. GPU 1 is not divided.
const DIVIDED: &str = "context_mib = 300\n[mig]\nenabled = [0]\n\
    [[mig.instance]]\ngpu = 0\nprofile = '3g.20gb'\nstart = 4\n\
    [[mig.instance]]\ngpu = 0\nprofile = '1g.5gb'\nstart = 1\n";
const SMALL: u64 = 4864 * MIB;
const HELD: u64 = GIB + 300 * MIB;

/// A simulated machine with a divided GPU.
struct Machine {
    folder: TempDir,
    programs: Programs,
}

impl Machine {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let programs = Programs::of_this_test();
        let driver = programs.path("libdivvy_sim.so");
        for name in ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"] {
            symlink(&driver, folder.path().join(name)).expect("the folder is new");
        }
        fs::write(folder.path().join("config.toml"), DIVIDED).expect("the folder is new");
        Self { folder, programs }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = |name| self.folder.path().join(name);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.path())
            .env("TERM", "dumb")
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("DIVVY_SIM", "a100-40gb:2")
            .env("DIVVY_SIM_STATE", path("state"))
            .env("DIVVY_SIM_CONFIG", path("config.toml"));
        command
    }

    /// What a program says that must succeed.
    #[track_caller]
    fn said(&self, program: &str, words: &[&str]) -> String {
        let output = self.command(program).args(words).output_bounded();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program} {words:?}: {said}{complaint}"
        );
        said
    }

    #[track_caller]
    fn looked(&self, words: &[&str]) -> Value {
        let (python, script) = (python(), client_script("mig.py"));
        let words = [&[script.as_str()][..], words].concat();
        let said = self.said(python.to_str().expect("a path"), &words);
        serde_json::from_str(&said).expect("the script prints JSON")
    }

    /// A program that has taken a GiB of a device and keeps it until it is dropped.
    fn holder(&self, device: &str) -> Dialog {
        let probe = self.programs.path("cudarc_probe");
        let gate = self.folder.path().join("never");
        let mut command = self.command(probe.to_str().expect("a path"));
        command
            .args(["hold", "--bytes", "1G", "--until-file"])
            .arg(gate)
            .env("CUDA_VISIBLE_DEVICES", device);
        let mut holder = Dialog::start(&mut command);
        let _ = holder.listen();
        holder
    }
}

/// The lines between the rules of nvidia-smi's tables that have all of the words.
fn rows<'a>(text: &'a str, words: &[&str]) -> Vec<Vec<&'a str>> {
    let has_all = |row: &Vec<&str>| words.iter().all(|word| row.contains(word));
    let row = |line: &'a str| line.split_whitespace().collect::<Vec<_>>();
    text.lines().map(row).filter(has_all).collect()
}

#[test]
fn the_python_clients_list_instances_with_their_memory_and_processes() {
    let machine = Machine::new();
    let before = machine.looked(&[]);
    let uuid = before["devices"][1]["uuid"].as_str().expect("text");
    let holder = machine.holder(uuid);
    let seen = machine.looked(&[]);

    assert_eq!(seen["mode"], json!([1, 1]));
    let entry = json!([holder.pid(), HELD, 8, 0]);
    let described = |index: usize| {
        let device = &seen["devices"][index];
        (
            device["name"].as_str().expect("text"),
            &device["ids"],
            &device["memory"],
            device["multiprocessors"].as_u64().expect("a number"),
            &device["slices"],
            &device["processes"],
        )
    };
    let large = 19_968 * MIB;
    assert_eq!(
        described(0),
        (
            "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
            &json!([2, 0]),
            &json!([large, 0, large]),
            42,
            &json!([3, 3]),
            &json!([]),
        )
    );
    assert_eq!(
        described(1),
        (
            "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
            &json!([8, 0]),
            &json!([SMALL, HELD, SMALL - HELD]),
            14,
            &json!([1, 1]),
            &json!([entry]),
        )
    );
    assert_eq!(seen["devices"].as_array().expect("a list").len(), 2);
    assert!(
        seen["devices"]
            .as_array()
            .expect("a list")
            .iter()
            .all(|device| device["found"] == device["name"])
    );
    assert_eq!(seen["gpu"]["used"], HELD);
    assert_eq!(seen["gpu"]["processes"], json!([entry]));
    assert_eq!(seen["gpu"]["utilization"], "Not Supported");
    // By the placements beside a 3g at 4 and a 1g at 1.
    let left = |id: u64| {
        let profiles = seen["profiles"].as_array().expect("a list").iter();
        let mut found = profiles.filter(|profile| profile[0] == id);
        found.next().expect("listed")[2].as_u64().expect("a number")
    };
    assert_eq!([19, 14, 9, 5, 0].map(left), [3, 1, 0, 0, 0]);

    let text = seen["nvitop_text"].as_str().expect("text");
    assert_eq!(
        seen["nvitop"],
        json!([
            { "name": "NVIDIA A100-SXM4-40GB MIG 3g.20gb", "total": large, "pids": [] },
            { "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "total": SMALL, "pids": [holder.pid()] },
        ])
    );
    assert!(
        text.contains("1g.5gb @ GI/CI: 8/0") && text.contains("3g.20gb @ GI/CI: 2/0"),
        "{text}"
    );
    assert!(text.contains(&holder.pid().to_string()), "{text}");
    // Which knows nothing of MIG, and shows the GPUs.
    assert_eq!(seen["gpustat"].as_array().expect("a list").len(), 2);
}

#[test]
fn nvidia_ml_py_makes_and_destroys_instances() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may divide a GPU");
        return;
    }
    let machine = Machine::new();
    let seen = machine.looked(&["divide"]);
    let name = |profile: &str| format!("NVIDIA A100-SXM4-40GB MIG {profile}");
    assert_eq!(
        seen["divided"],
        json!({
            "names": [name("3g.20gb"), name("1g.5gb"), name("2g.10gb")],
            "busy": "In use by another client",
            "after": 2,
        })
    );
}

#[test]
fn nvidia_smi_lists_makes_and_destroys_instances() {
    let smi = std::env::var_os("DIVVY_TEST_NVIDIA_SMI").map(PathBuf::from);
    let Some(smi) = smi.filter(|program| program.is_file()) else {
        eprintln!("skipped: DIVVY_TEST_NVIDIA_SMI does not name NVIDIA's nvidia-smi");
        return;
    };
    let machine = Machine::new();
    let smi = smi.to_str().expect("a path");
    let look = |words: &[&str]| machine.said(smi, words);

    let list = look(&["-L"]);
    let devices: Vec<&str> = list
        .lines()
        .filter(|line| line.starts_with("  MIG "))
        .collect();
    assert_eq!(devices.len(), 2, "{list}");
    let uuid = devices[1]
        .split("UUID: ")
        .nth(1)
        .expect("a UUID")
        .trim_end_matches(')');
    assert!(
        devices[1].contains("MIG 1g.5gb") && uuid.starts_with("MIG-"),
        "{list}"
    );
    let holder = machine.holder(uuid);

    let table = look(&[]);
    let memory = format!("{}MiB / {:>5}MiB", HELD / MIB, SMALL / MIB);
    assert!(table.contains(&memory), "{table}");
    let pid = holder.pid().to_string();
    let processes = rows(&table, &[&pid]);
    assert_eq!(processes.len(), 1, "{table}");
    assert_eq!(processes[0][1..4], ["0", "8", "0"], "{table}");

    let profiles = look(&["mig", "-lgip"]);
    assert_eq!(
        rows(&profiles, &["1g.5gb", "19", "3/7", "4.75"]).len(),
        1,
        "{profiles}"
    );
    let placements = look(&["mig", "-lgipp"]);
    assert!(
        placements.contains("Profile ID 19 Placements: {0,1,2,3,4,5,6}:1"),
        "{placements}"
    );
    let instances = look(&["mig", "-lgi"]);
    for words in [["1g.5gb", "19", "8", "1:1"], ["3g.20gb", "9", "2", "4:4"]] {
        assert_eq!(rows(&instances, &words).len(), 1, "{instances}");
    }
    let computes = look(&["mig", "-lci"]);
    let row = rows(&computes, &["8", "1g.5gb", "0:1"]);
    assert_eq!(row[0][1], "0", "the GPU's index: {computes}");

    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped in part: only root may divide a GPU");
        return;
    }
    let made = look(&["mig", "-i", "0", "-cgi", "19", "-C"]);
    assert!(
        made.contains("Successfully created GPU instance ID") && made.contains("compute instance"),
        "{made}"
    );
    assert_eq!(
        look(&["-L"])
            .lines()
            .filter(|line| line.starts_with("  MIG "))
            .count(),
        3
    );
    let refused = machine
        .command(smi)
        .args(["mig", "-i", "0", "-dci", "-gi", "8"])
        .output_bounded()
        .expect("it runs");
    let said = String::from_utf8_lossy(&refused.stdout);
    assert!(
        !refused.status.success() && said.contains("In use by another client"),
        "{said}"
    );
    drop(holder);
    look(&["mig", "-i", "0", "-dci"]);
    look(&["mig", "-i", "0", "-dgi"]);
    assert_eq!(look(&["-L"]).lines().count(), 2);
}
