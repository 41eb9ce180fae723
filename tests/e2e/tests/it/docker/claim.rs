//! Claims of another scheduler, as a node of Kubernetes uses them: the agent holds one, its CDI device is injected by the library of
//! the Container Device Interface, and runc runs what comes of that. Nothing else of Divvy's is in the container's way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use divvy_api::v1::{Claim, ClaimDevice, HeldClaim, JobState};
use divvy_e2e::engine::{Engine, IMAGE};
use divvy_e2e::{GIB, Home, until};
use divvy_testkit::Bounded as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::scenes::{PAST, lay_way_past};
use super::{got, reports, scene};

/// A container of some pod: a root file system and what runc is told.
struct Pod {
    bundle: TempDir,
    id: String,
}

/// Adds a device of a CDI file to what runc is told, as container runtimes do: a variable or a mount replaces the one of the same
/// name or place. What no file of ours has fails.
fn inject(folder: &Path, name: &str, config: &mut Value) {
    let (_, wanted) = name.split_once('=').expect("vendor/class=name");
    let files = fs::read_dir(folder).expect("the folder is there");
    let devices = files.flat_map(|file| {
        let text = fs::read(file.expect("it is listed").path()).expect("it can be read");
        let file: Value = serde_json::from_slice(&text).expect("a CDI file is JSON");
        file["devices"].as_array().cloned().unwrap_or_default()
    });
    let mut devices = devices.filter(|device| device["name"] == wanted);
    let device = devices.next().unwrap_or_else(|| panic!("no device {name}"));
    let edits = device["containerEdits"].as_object().expect("it has edits");
    for (kind, edits) in edits {
        for edit in edits.as_array().expect("a list") {
            match kind.as_str() {
                "env" => {
                    let text = edit.as_str().expect("NAME=VALUE");
                    let (name, _) = text.split_once('=').expect("NAME=VALUE");
                    replace(&mut config["process"]["env"], edit.clone(), |other| {
                        let other = other.as_str().and_then(|other| other.split_once('='));
                        other.is_some_and(|(other, _)| other == name)
                    });
                }
                "mounts" => {
                    let place = &edit["containerPath"];
                    let mount = json!({
                        "destination": place, "source": edit["hostPath"], "type": "bind", "options": edit["options"],
                    });
                    replace(&mut config["mounts"], mount, |other| {
                        other["destination"] == *place
                    });
                }
                other => panic!("{other} is new in our CDI files: {edit}"),
            }
        }
    }
}

/// Puts an item at the end of a list, in place of those like it.
fn replace(list: &mut Value, item: Value, is_like: impl Fn(&Value) -> bool) {
    let list = list
        .as_array_mut()
        .expect("runc's specification has the list");
    list.retain(|other| !is_like(other));
    list.push(item);
}

/// What a pod's author says of its container.
#[derive(Clone, Copy, Default)]
struct Said<'a> {
    variables: &'a [(&'a str, &'a str)],
    uid: u32,
}

impl Pod {
    /// A container of the engine's image with these devices, and what its author says.
    fn new(
        engine: &Engine,
        devices: &Path,
        names: &[&str],
        said: Said<'_>,
        words: &[&str],
    ) -> Self {
        let bundle = tempfile::Builder::new()
            .prefix("divvy-pod-")
            .tempdir()
            .expect("a temporary folder can be made");
        let root = bundle.path().join("rootfs");
        fs::create_dir(&root).expect("the folder is ours");
        let container = engine.ask(&["create", IMAGE]);
        let mut export = engine
            .docker(&["export", &container])
            .stdout(Stdio::piped())
            .spawn()
            .expect("docker was found");
        let status = Command::new("tar")
            .arg("--directory")
            .arg(&root)
            .arg("--extract")
            .stdin(export.stdout.take().expect("it is a pipe"))
            .wait_bounded();
        assert!(status.expect("tar is there").success() && export.wait_bounded().is_ok());
        let _ = engine.ask(&["rm", &container]);
        let id = bundle.path().file_name().and_then(|name| name.to_str());
        let pod = Self {
            id: id.expect("a plain name").to_owned(),
            bundle,
        };
        pod.write(devices, names, said, words);
        pod
    }

    fn write(&self, devices: &Path, names: &[&str], said: Said<'_>, words: &[&str]) {
        let made = Command::new("runc")
            .args(["spec", "--bundle"])
            .arg(self.bundle.path())
            .wait_bounded();
        assert!(made.expect("runc comes with the engine").success());
        let file = self.bundle.path().join("config.json");
        let text = fs::read(&file).expect("runc has made it");
        let mut config: Value = serde_json::from_slice(&text).expect("it is JSON");
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(words);
        config["process"]["user"] = json!({"uid": said.uid, "gid": said.uid});
        config["root"]["readonly"] = json!(false);
        let variables = [("PATH", "/usr/bin")].iter().chain(said.variables);
        let variables: Vec<String> = variables
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        config["process"]["env"] = json!(variables);
        for name in names {
            inject(devices, name, &mut config);
        }
        fs::write(&file, config.to_string()).expect("the folder is ours");
    }

    fn runc(&self, words: &[&str]) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root")
            .arg(self.bundle.path().join("state"))
            .args(words)
            .stdin(Stdio::null());
        runc
    }

    fn command(&self) -> Command {
        let bundle = self.bundle.path().to_str().expect("a plain path");
        self.runc(&["run", "--bundle", bundle, &self.id])
    }

    fn start(&self) -> Child {
        self.command()
            .stdout(Stdio::null())
            .spawn()
            .expect("runc comes with the engine")
    }

    /// Runs it to its end; what it said on its output.
    #[track_caller]
    fn run(&self) -> String {
        let Output { stdout, stderr, .. } = self
            .command()
            .output_bounded()
            .expect("runc comes with the engine");
        let said = String::from_utf8_lossy(&stdout).into_owned();
        assert!(!said.is_empty(), "{}", String::from_utf8_lossy(&stderr));
        said
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self
            .runc(&["delete", "--force", &self.id])
            .stderr(Stdio::null())
            .wait_bounded();
    }
}

/// Where the daemon of a home puts its CDI files.
fn devices(home: &Home) -> PathBuf {
    home.scratch().join("cdi")
}

fn claim(devices: Vec<ClaimDevice>) -> Claim {
    Claim {
        namespace: "team".into(),
        name: "train".into(),
        pods: vec!["pod-1".into()],
        devices,
        ..Claim::default()
    }
}

#[track_caller]
fn put(home: &Home, uid: &str, gpu: usize, bytes: u64) -> HeldClaim {
    let gpus = home.call(home.client().gpus()).expect("the daemon answers");
    let body = claim(vec![ClaimDevice::part(&gpus[gpu].uuid, bytes)]);
    home.call(home.client().put_claim(uid, &body))
        .expect("there is room")
}

fn serve(home: &Home, words: &[&str]) -> divvy_e2e::Daemon {
    let folder = format!("containers.cdi-dir={}", devices(home).display());
    home.daemon(&[&["--set", &folder], words].concat())
}

/// Attempts to be without the claim's limit, in turn; the last is on a GPU that is not the claim's.
const ATTEMPTS: &str = r#"
sim="DIVVY_SIM=$DIVVY_SIM DIVVY_SIM_STATE=$DIVVY_SIM_STATE"
cudarc_probe fill --route linear
DIVVY_SHIM=off cudarc_probe fill --route linear
env -i $sim CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES /usr/bin/cudarc_probe fill --route async
DIVVY_SLICE=/no/such/slice LD_PRELOAD= NVIDIA_VISIBLE_DEVICES=all CUDA_DISABLE_CONTROL=true cudarc_probe fill --route vmm
env -i $sim /usr/bin/cudarc_probe fill --route linear
"#;

#[test]
fn a_pod_is_held_to_its_claim_whatever_its_author_says_and_whichever_user_it_runs_as() {
    let Some((engine, home)) = scene("a100-80gb:2") else {
        return;
    };
    let _daemon = serve(&home, &[]);
    let held = put(&home, "u-1", 1, 4 * GIB);
    let variables = [
        ("DIVVY_SHIM", "off"),
        ("DIVVY_SLICE", "/nowhere"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),
        ("CUDA_VISIBLE_DEVICES", "0"),
        ("LD_PRELOAD", ""),
        ("GPU_MEM_LIMIT", "80"),
    ];
    // Simulated GPUs are a file of the daemon's user.
    let state = home.path().join("sim/state");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(state, everybody).expect("the file is ours");
    for uid in [0, 1000] {
        let said = Said {
            variables: &variables,
            uid,
        };
        // Whoever names the device for each of its requests names it twice.
        let names = [held.cdi_device.as_str(), held.cdi_device.as_str()];
        let script = ["sh", "-c", ATTEMPTS];
        let pod = Pod::new(&engine, &devices(&home), &names, said, &script);
        let text = pod.run();
        let all = reports(&text);
        assert_eq!(all.len(), 5, "uid {uid}: {text}");
        assert_eq!(got(&all[4]), 0, "uid {uid}: {text}");
        for report in &all[..4] {
            assert!(
                (3 * GIB..4 * GIB).contains(&got(report)),
                "uid {uid}: {report}"
            );
            assert_eq!(
                report["before"]["total_bytes"],
                4 * GIB,
                "uid {uid}: {report}"
            );
        }
    }
    // The claim says which GPU, and nobody was on the other.
    let slice = home.job(&held.job).slices.remove(0);
    assert_eq!(slice.gpu_index, 1);
    assert!(slice.memory_peak_bytes > 3 * GIB, "{slice:?}");
    let limits = "echo >/run/divvy-job/slice/control && echo written; rm -f /etc/ld.so.preload && echo gone; echo tried";
    let script = ["sh", "-c", limits];
    let device = [held.cdi_device.as_str()];
    let pod = Pod::new(&engine, &devices(&home), &device, Said::default(), &script);
    assert_eq!(pod.run(), "tried\n");
}

#[test]
fn of_two_claims_that_a_container_names_the_later_one_applies() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = serve(&home, &[]);
    let large = put(&home, "u-1", 0, 4 * GIB);
    let small = put(&home, "u-2", 0, 2 * GIB);
    let fill = ["cudarc_probe", "fill", "--route", "linear"];
    let names = [large.cdi_device.as_str(), small.cdi_device.as_str()];
    let pod = Pod::new(&engine, &devices(&home), &names, Said::default(), &fill);
    let report = &reports(&pod.run())[0];
    assert_eq!(report["before"]["total_bytes"], 2 * GIB, "{report}");
    assert_eq!(home.job(&large.job).slices[0].memory_peak_bytes, 0);
}

#[test]
fn a_claims_processes_are_its_own_with_any_runtime_and_its_limit_holds_without_a_daemon() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let daemon = serve(&home, &[]);
    let held = put(&home, "u-1", 0, 4 * GIB);
    let device = [held.cdi_device.as_str()];
    let hold = [
        "cudarc_probe",
        "hold",
        "--bytes",
        "1073741824",
        "--until-file",
        "/never",
    ];
    let holder = Pod::new(&engine, &devices(&home), &device, Said::default(), &hold);
    let mut running = holder.start();
    let agrees = || {
        let slice = home.job(&held.job).slices.remove(0);
        (slice.memory_used_bytes > GIB && slice.memory_mismatch_bytes == Some(0)).then_some(())
    };
    until("its account is the driver's", agrees);
    let gpu = || {
        home.call(home.client().gpus())
            .expect("the daemon answers")
            .remove(0)
    };
    until("nobody is called foreign", || {
        gpu().unmanaged_pids.is_empty().then_some(())
    });
    let claims = || {
        home.call(home.client().claims())
            .expect("the daemon answers")
    };
    assert_eq!(claims()[0].processes, 1);

    // Another container of the same claim shares what it has, also when nobody serves.
    daemon.crash();
    let fill = ["cudarc_probe", "fill", "--route", "linear"];
    let other = Pod::new(&engine, &devices(&home), &device, Said::default(), &fill);
    let report = &reports(&other.run())[0];
    assert!((GIB..3 * GIB).contains(&got(report)), "{report}");

    let _daemon = serve(&home, &[]);
    assert_eq!(claims()[0].state, JobState::Running);
    until("the next daemon knows them again", agrees);

    // Its container ends as a kubelet ends it, and nothing stays charged, though nobody saw how it went.
    let killed = holder.runc(&["kill", &holder.id, "KILL"]).wait_bounded();
    assert!(killed.expect("runc comes with the engine").success());
    let _ = running.wait_bounded();
    until("nothing is charged any more", || {
        let slice = home.job(&held.job).slices.remove(0);
        (slice.memory_used_bytes == 0).then_some(())
    });
    let next = Pod::new(&engine, &devices(&home), &device, Said::default(), &fill);
    let report = &reports(&next.run())[0];
    assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    let ended = home
        .call(home.client().delete_claim("u-1"))
        .expect("it answers");
    assert_eq!(ended.map(|claim| claim.state), Some(JobState::Ended));
    assert_eq!(
        fs::read_dir(devices(&home)).expect("it is there").count(),
        0
    );
}

#[test]
fn a_bypass_in_a_claim_is_reported_and_killed_where_that_is_the_policy() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let daemon = serve(&home, &["--set", "on-bypass=kill", "--set", "grace=1h"]);
    let held = put(&home, "u-1", 0, 2 * GIB);
    let device = [held.cdi_device.as_str()];
    let script = format!("{PAST}; echo left");
    let pod = Pod::new(
        &engine,
        &devices(&home),
        &device,
        Said::default(),
        &["sh", "-c", &script],
    );
    lay_way_past(&home, &pod.bundle.path().join("rootfs/past"));
    assert_eq!(
        pod.run().lines().last(),
        Some("left"),
        "it was killed, and its container goes on"
    );
    let job = home.job(&held.job);
    assert_eq!(
        job.state,
        JobState::Running,
        "the claim is its pods' to end"
    );
    assert_eq!(job.bypasses.len(), 1, "{job:?}");

    let memory = || {
        let slice = home.job(&held.job).slices.remove(0);
        slice.memory_driver_bytes.unwrap_or_default()
    };
    until("the killed process holds no memory", || memory() < GIB);
    // What is left in a claim that is given back is ended as what is left of any job.
    let hold = [
        "cudarc_probe",
        "hold",
        "--bytes",
        "1073741824",
        "--until-file",
        "/never",
    ];
    let pod = Pod::new(&engine, &devices(&home), &device, Said::default(), &hold);
    let mut running = pod.start();
    until("it holds memory", || memory() > GIB);
    let stopping = home
        .call(home.client().delete_claim("u-1"))
        .expect("it answers");
    assert_eq!(stopping.map(|claim| claim.state), Some(JobState::Stopping));
    let again = home.call(home.client().put_claim("u-1", &claim(held.devices)));
    assert_eq!(
        again.map_err(|error| error.code).err(),
        Some(divvy_api::v1::ErrorCode::WouldWait)
    );
    // The next daemon goes on with that, and has less patience.
    daemon.crash();
    let _daemon = serve(&home, &["--set", "grace=1s"]);
    home.ended(&held.job);
    assert!(!running.wait_bounded().expect("a child").success());
}
