//! Two daemons with everything that alerts: one with faulty jobs and GPUs, one on a small and slow disk.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use divvy_e2e::{GIB, Home, MIB, python, until};
use divvy_testkit::{Bounded as _, call, compiled};

use super::server::free_port;
use crate::bypass::{Evader, preloaded};

/// Queues of the second daemon, more than have series.
const QUEUES: usize = 260;

/// A token of the TCP listener, in a file that only its owner reads.
pub fn write_token(path: &Path) {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .expect("the folder can be written");
    write!(file, "{:0>48}", 27).expect("the file can be written");
}

/// The flags of a daemon that listens on a port.
fn listens(port: u16, token: &Path) -> [String; 4] {
    let token = format!("listen.token-file={}", token.display());
    let address = format!("listen.listen=127.0.0.1:{port}");
    ["--set".into(), address, "--set".into(), token]
}

/// A daemon with three shared GPUs and one in MIG mode.
pub struct Lab {
    pub home: Home,
    pub port: u16,
}

impl Lab {
    pub fn start(token: &Path) -> Self {
        let home = preloaded("a100-40gb:4");
        let config = home.scratch().join("sim.toml");
        fs::write(&config, "[mig]\nenabled = [3]\n").expect("the folder is ours");
        let config = config.to_str().expect("a readable name").to_owned();
        let mut home = home.variable("DIVVY_SIM_CONFIG", &config);
        let port = free_port();
        let words = listens(port, token);
        home.start(&words.each_ref().map(String::as_str));
        Self { home, port }
    }

    pub fn page(&self) -> String {
        let (status, page) = call(&self.home.socket(), "GET", "/metrics", "");
        assert_eq!(status, 200, "{page}");
        page
    }

    pub fn project(&self, name: &str, quota: &str) {
        let words = ["admin", "project", "add", name, "--quota", quota];
        let _ = self.home.divvy(&words).ok();
    }

    /// A job on an instance, one on half a GPU, and one that is held.
    pub fn work(&self) {
        self.project("nlp", "1");
        let half = ["-g", "0.5", "-p", "nlp", "--compute", "strict"];
        let half = self.home.submit_holder(&half, 2 * MIB, "half");
        let profile = ["--mig-profile", "1g.5gb"];
        let instance = self.home.submit_holder(&profile, 2 * MIB, "instance");
        let _ = (self.home.running(&half), self.home.running(&instance));
        let _ = self.home.submit(&["-g", "0.1", "--hold"], &["true"]);
    }

    /// A program without the limiter takes 3 GiB.
    pub fn bypass(&self) {
        let (probe, bytes, gate) = (
            self.home.program("cudarc_probe"),
            (3 * GIB).to_string(),
            self.home.gate("bypass"),
        );
        let hold = [&probe, "hold", "--bytes", &bytes, "--until-file", &gate];
        let outside = ["env", "-u", "LD_PRELOAD"];
        let words = [&outside[..], &hold].concat();
        let _ = self.home.submit(&["--gpu-memory", "8G"], &words);
    }

    /// A program calls a function that is newer than its limiter.
    pub fn uncounted_call(&self) {
        let evader = Evader::build(&self.home);
        let _ = evader.submit("newer", Some(&evader.helper()));
    }

    /// Jobs outside projects hold all whole GPUs, and a job waits.
    pub fn fill(&self) {
        for _ in 0..3 {
            let _ = self.home.submit(&["-g", "1"], &["sleep", "1000"]);
        }
    }

    /// A job within the quota of its project waits.
    pub fn wait_within_quota(&self) {
        self.project("vision", "1");
        let _ = self
            .home
            .submit(&["-g", "1", "-p", "vision"], &["sleep", "1000"]);
    }

    /// A job that needs all shared GPUs waits, and one of these is lost.
    pub fn wait_for_all(&self) {
        let _ = self.home.submit(&["-g", "3"], &["sleep", "1000"]);
    }

    pub fn lose_gpu(&self) {
        self.control("lose:2");
    }

    /// The instance cannot be destroyed, because something else holds it.
    pub fn quarantine(&self) {
        let page = self.page();
        let line = page
            .lines()
            .find(|line| line.starts_with("divvy_mig_instance_info{"));
        let (_, rest) = line
            .and_then(|line| line.split_once("GPU_I_ID=\""))
            .expect("an instance");
        let (id, _) = rest.split_once('"').expect("the label has an end");
        self.home.open("instance");
        until("the job on the instance has ended", || {
            let jobs = self.home.items(&["ps"]);
            jobs.iter()
                .all(|job| job["request"]["kind"] != "mig")
                .then_some(())
        });
        self.control(&format!("hold:3/{id}/0"));
        let _ = self.home.divvy(&["admin", "mig", "gc"]).ok();
    }

    /// Has the simulated driver do what no program can ask of it.
    fn control(&self, order: &str) {
        let script = "import ctypes, sys\n\
                      nvml = ctypes.CDLL('libnvidia-ml.so.1')\n\
                      nvml.nvmlInit_v2()\n\
                      sys.exit(nvml.divvy_sim_control(sys.argv[1].encode()))\n";
        let mut command = self
            .home
            .outside(python().to_str().expect("a readable name"));
        let output = command.args(["-c", script, order]).output_bounded();
        let output = output.expect("python starts");
        assert!(output.status.success(), "{order}: {output:?}");
    }
}

/// A daemon with its state on a file system of 32 MiB, and with more queues than have series.
pub struct SmallDisk {
    pub home: Home,
    pub port: u16,
    folder: PathBuf,
}

impl SmallDisk {
    pub fn start(token: &Path) -> Self {
        let mut home = Home::empty();
        let folder = home.path().to_owned();
        let mount = ["-t", "tmpfs", "-o", "size=32m,mode=700", "tmpfs"];
        let mounted = Command::new("mount")
            .args(mount)
            .arg(&folder)
            .wait_bounded();
        assert!(mounted.expect("mount(8) is there").success());
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/c/slow_fsync.c");
        let library = compiled(Path::new(source), "slow_fsync.so", &[]);
        home.set("LD_PRELOAD", library.to_str().expect("a readable name"));
        let slow = folder.join("slow");
        home.set("SLOW_FSYNC", slow.to_str().expect("a readable name"));
        let port = free_port();
        let names: Vec<String> = (0..QUEUES).map(|number| format!("q{number}")).collect();
        let listens = listens(port, token);
        let words = ["--sim", "l4-24gb:1", "--queue"].into_iter();
        let words = words.chain(names.iter().map(String::as_str));
        let words: Vec<&str> = words.chain(listens.iter().map(String::as_str)).collect();
        home.start(&words);
        Self { home, port, folder }
    }

    /// From now on each write to the disk takes 200 ms, and jobs come.
    pub fn slow_down(&self) {
        fs::write(self.folder.join("slow"), "").expect("the disk has room");
        for _ in 0..5 {
            self.submit();
        }
    }

    pub fn submit(&self) {
        let _ = self.home.submit(&["-g", "0.25", "-q", "q0"], &["true"]);
    }

    /// Takes all room.
    pub fn fill(&self) {
        fs::remove_file(self.folder.join("slow")).expect("it was made here");
        let mut file = fs::File::create(self.folder.join("fill")).expect("the disk has room");
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        let _ = unmount.arg("--lazy").arg(&self.folder).wait_bounded();
    }
}
