//! A container engine of the tests' own: a Docker daemon in a folder of its own, with images made of this machine's files.
//!
//! No network, no registry: an image is a few programs and what they are linked with. The engine needs root and `dockerd`; where root
//! may install it, it is installed.

pub mod door;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::Programs;
use crate::patience::until;

/// An image with glibc, a shell and the probes. Its command is a probe.
pub const IMAGE: &str = "divvy-test";
/// The same for a user who is not root.
pub const USERS_IMAGE: &str = "divvy-test-user";
/// An image whose programs are built for musl, by the look of it.
pub const MUSL_IMAGE: &str = "divvy-test-musl";

const SHELL: &[&str] = &[
    "sh", "cat", "sleep", "ls", "env", "id", "echo", "touch", "test", "mkdir", "ln", "rm", "setsid",
];
const PROBES: &[&str] = &["cudarc_probe", "nvml_probe"];
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// A Docker daemon; gone when dropped, with its containers.
#[derive(Debug)]
pub struct Engine {
    folder: TempDir,
    daemon: Child,
}

impl Engine {
    /// The engine of this test program, started by whoever needs it first. `None`, said loudly, where there can be none.
    ///
    /// # Panics
    /// When it starts and does not work.
    #[must_use]
    pub fn shared() -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Engine>> = Mutex::new(Weak::new());
        static REFUSED: OnceLock<Option<String>> = OnceLock::new();
        if let Some(why) = REFUSED.get_or_init(|| available().err()) {
            eprintln!("SKIPPED, NOT TESTED: containers. {why}");
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = shared.upgrade() {
            return Some(engine);
        }
        let engine = Arc::new(Self::start());
        *shared = Arc::downgrade(&engine);
        Some(engine)
    }

    fn start() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("divvy-docker-")
            .tempdir()
            .expect("a temporary folder can be made");
        let log = fs::File::create(folder.path().join("log")).expect("the folder is new");
        let at = |name: &str| folder.path().join(name);
        let daemon = Command::new("dockerd")
            .arg("--data-root")
            .arg(at("data"))
            .arg("--exec-root")
            .arg(at("exec"))
            .arg("--pidfile")
            .arg(at("pid"))
            .arg("--host")
            .arg(format!("unix://{}", at("sock").display()))
            // Works on any file system, and needs no right of the kernel's.
            .args(["--storage-driver", "vfs"])
            .args(["--bridge", "none", "--iptables=false", "--ip6tables=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be cloned"))
            .stderr(log)
            .spawn()
            .expect("dockerd was found");
        let mut engine = Self { folder, daemon };
        until("the container engine answers", || {
            if let Ok(Some(status)) = engine.daemon.try_wait() {
                panic!("dockerd ended with {status}:\n{}", engine.said());
            }
            engine
                .docker(&["version"])
                .status()
                .is_ok_and(|status| status.success())
                .then_some(())
        });
        engine.make_images();
        engine
    }

    /// `DOCKER_HOST`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// The engine's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// `docker WORDS…` of this engine, ready to start; what it says is not shown.
    #[must_use]
    pub fn docker(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command
            .args(words)
            .env("DOCKER_HOST", self.host())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    /// What `docker WORDS…` prints.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> String {
        let output = self
            .docker(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .output()
            .expect("docker was found");
        assert!(
            output.status.success(),
            "docker {words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Names of the containers of an instance's job, running or not.
    #[must_use]
    #[track_caller]
    pub fn containers_of(&self, job: &str, home: &Path) -> Vec<String> {
        // Two instances number their jobs alike; a container's mounts say whose it is.
        let label = format!("label=divvy.job={job}");
        let format = "{{.Names}} {{.Mounts}}";
        let all = self.ask(&[
            "ps",
            "--all",
            "--no-trunc",
            "--filter",
            &label,
            "--format",
            format,
        ]);
        all.lines()
            .filter(|line| line.contains(home.to_str().unwrap_or_default()))
            .filter_map(|line| line.split(' ').next().map(str::to_owned))
            .collect()
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn make_images(&self) {
        let root = self.folder.path().join("root");
        lay_root(&root);
        self.import(
            &root,
            IMAGE,
            &[r#"CMD ["cudarc_probe","fill","--route","linear"]"#],
        );
        self.import(&root, USERS_IMAGE, &["USER ana", "WORKDIR /tmp"]);
        fs::remove_dir_all(&root).expect("it was made here");
        let musl = root.join("lib/ld-musl-x86_64.so.1");
        fs::create_dir_all(root.join("lib")).expect("the folder is ours");
        fs::write(musl, b"\x7fELF").expect("the folder is ours");
        self.import(&root, MUSL_IMAGE, &[]);
        fs::remove_dir_all(&root).expect("it was made here");
    }

    /// An image of these files.
    ///
    /// # Panics
    /// When the engine does not take it.
    pub fn import(&self, root: &Path, name: &str, changes: &[&str]) {
        let mut tar = Command::new("tar")
            .arg("--directory")
            .arg(root)
            .args(["--create", "."])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tar is there");
        let mut import = self.docker(&["import"]);
        for change in changes {
            import.args(["--change", change]);
        }
        let status = import
            .args(["-", name])
            .stdin(tar.stdout.take().expect("it is a pipe"))
            .status();
        assert!(
            status.expect("docker was found").success(),
            "{name} cannot be imported"
        );
        assert!(tar.wait().expect("a child can be waited for").success());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // It ends its containers, and what it has mounted.
        let _ = kill_process(Pid::from_child(&self.daemon), Signal::TERM);
        let _ = self.daemon.wait();
        if std::thread::panicking() {
            let said = self.said();
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(20)..];
            eprintln!("── what dockerd said last\n{}", last.join("\n"));
        }
    }
}

/// Whether there is an engine to be started, installed where that is possible.
fn available() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("A Docker daemon of the tests' own needs root.".to_owned());
    }
    let has = |program: &str| {
        let found = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        found.is_ok_and(|status| status.success())
    };
    if has("dockerd") && has("docker") {
        return Ok(());
    }
    eprintln!("dockerd is not there: installing it");
    let install = [
        "install",
        "--yes",
        "--no-install-recommends",
        "docker.io",
        "iptables",
    ];
    let apt = |words: &[&str]| {
        Command::new("apt-get")
            .args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    if !apt(&install) {
        // The lists may be old or not there.
        let _ = apt(&["update"]) && apt(&install);
    }
    match has("dockerd") && has("docker") {
        true => Ok(()),
        false => Err(
            "There is no dockerd here, and `apt-get install docker.io iptables` does not bring one."
                .to_owned(),
        ),
    }
}

/// A shell, the probes, and what they are linked with.
fn lay_root(root: &Path) {
    for folder in [LIBRARIES, "usr/bin", "lib64", "etc", "tmp", "run", "root"] {
        fs::create_dir_all(root.join(folder)).expect("the folder is ours");
    }
    for (link, target) in [("bin", "usr/bin"), ("lib", "usr/lib")] {
        symlink(target, root.join(link)).expect("the folder is ours");
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))
        .expect("the folder is ours");
    let passwd = "root:x:0:0::/root:/bin/sh\nana:x:1000:1000::/tmp:/bin/sh\n";
    fs::write(root.join("etc/passwd"), passwd).expect("the folder is ours");
    let programs = Programs::of_this_test();
    let found = |name: &&str| {
        let folders = ["/bin", "/usr/bin"].map(Path::new);
        let file = folders
            .map(|folder| folder.join(name))
            .into_iter()
            .find(|file| file.is_file());
        file.unwrap_or_else(|| panic!("this machine has no {name}"))
    };
    let probes = PROBES.iter().map(|name| programs.path(name));
    let mut libraries = BTreeSet::from([PathBuf::from("/lib/x86_64-linux-gnu/libgcc_s.so.1")]);
    // Images may be given our own program.
    libraries.extend(linked(&programs.path("divvy")));
    for program in SHELL.iter().map(found).chain(probes) {
        let name = program.file_name().expect("it was found by name");
        fs::copy(&program, root.join("usr/bin").join(name)).expect("a program can be read");
        libraries.extend(linked(&program));
    }
    for library in libraries {
        let name = library.file_name().expect("ldd names files");
        let is_loader = name
            .to_str()
            .is_some_and(|name| name.starts_with("ld-linux"));
        let folder = if is_loader { "lib64" } else { LIBRARIES };
        fs::copy(&library, root.join(folder).join(name)).expect("a library can be read");
    }
}

/// The libraries of a program, by ldd.
pub(crate) fn linked(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .expect("ldd is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_ascii_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}
