//! A container engine of the tests' own: Docker or Podman in a folder of its own, with images made of this machine's files.
//!
//! No network, no registry: an image is a few programs and what they are linked with. Either is spoken to with `docker`. The engine
//! needs root and its programs; where root may install them, they are installed.

pub mod door;
mod podman;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use divvy_testkit::{Bounded as _, bounded_for, until};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::Programs;

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

/// How long packages may take to come over the network.
const INSTALL: Duration = Duration::from_secs(600);

/// Which engine: they answer the same calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Docker,
    Podman,
}

impl Kind {
    /// Its own program, with which a person starts containers.
    #[must_use]
    pub const fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// The programs that it takes, `docker` to speak to it among them, and the packages that bring them.
    fn needs(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Docker => (&["dockerd", "docker"], &["docker.io", "iptables"]),
            // runc comes with Docker's, and takes every arrangement of control groups.
            Self::Podman => (
                &["podman", "runc", "docker"],
                &["podman", "docker.io", "iptables"],
            ),
        }
    }

    /// Names the folder of an engine that another process serves for all tests of a run: the program `engine`.
    fn variable(self) -> &'static str {
        match self {
            Self::Docker => "DIVVY_TEST_DOCKER",
            Self::Podman => "DIVVY_TEST_PODMAN",
        }
    }

    /// The engine in this folder, ready to start.
    fn service(self, folder: &Path) -> Command {
        match self {
            Self::Docker => dockerd(folder),
            Self::Podman => podman::service(folder),
        }
    }
}

/// An engine; gone when dropped, with its containers, unless another process serves it.
#[derive(Debug)]
pub struct Engine {
    kind: Kind,
    folder: PathBuf,
    /// The same folder, where this process has made it.
    own: Option<TempDir>,
    /// Around its program.
    wrap: fn(Command) -> Command,
    /// None while it is stopped.
    daemon: Mutex<Option<Child>>,
}

impl Engine {
    /// The engine that another process serves for this run; without one, the engine of this test program, started by the first test that needs
    /// it. `None`, said loudly, where there can be none.
    ///
    /// # Panics
    /// When it starts and does not work.
    #[must_use]
    pub fn shared(kind: Kind) -> Option<Arc<Self>> {
        static SHARED: Mutex<Weak<Engine>> = Mutex::new(Weak::new());
        if let Some(folder) = std::env::var_os(kind.variable()) {
            return Some(Arc::new(Self {
                kind,
                folder: folder.into(),
                own: None,
                wrap: |service| service,
                daemon: Mutex::default(),
            }));
        }
        if !is_available(kind) {
            return None;
        }
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = shared.upgrade() {
            assert_eq!(engine.kind, kind, "a test program has one engine");
            return Some(engine);
        }
        let engine = Arc::new(Self::start(kind)?);
        *shared = Arc::downgrade(&engine);
        Some(engine)
    }

    /// An engine of one test's own, which it may stop. `None`, said loudly, where there can be none.
    ///
    /// # Panics
    /// When it starts and does not work.
    #[must_use]
    pub fn alone(kind: Kind) -> Option<Self> {
        if !is_available(kind) {
            return None;
        }
        Self::start(kind)
    }

    /// Docker with control groups of version 2 alone, of which its containers see the machine's. `None`, said loudly,
    /// where there can be none.
    ///
    /// # Panics
    /// When it starts and does not work.
    #[must_use]
    pub fn on_cgroup2() -> Option<Self> {
        if !is_available(Kind::Docker) {
            return None;
        }
        Self::start_with(Kind::Docker, |docker| {
            let mut command = Command::new("unshare");
            let mounts = "umount --lazy --recursive /sys/fs/cgroup && \
                mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"";
            command.args(["--mount", "--propagation", "private", "sh", "-c", mounts]);
            command.arg("sh").arg(docker.get_program());
            command.args(docker.get_args());
            command.arg("--default-cgroupns-mode=host");
            command
        })
    }

    fn start(kind: Kind) -> Option<Self> {
        Self::start_with(kind, |service| service)
    }

    /// `None`, said loudly, where this machine lets it start no container.
    fn start_with(kind: Kind, wrap: fn(Command) -> Command) -> Option<Self> {
        static UNFIT: OnceLock<String> = OnceLock::new();
        let folder = tempfile::Builder::new()
            .prefix("divvy-engine-")
            .tempdir()
            .expect("a temporary folder can be made");
        let engine = Self {
            kind,
            folder: folder.path().to_owned(),
            own: Some(folder),
            wrap,
            daemon: Mutex::default(),
        };
        if UNFIT.get().is_none() {
            engine.serve();
            engine.make_images();
            // It wants a network for its containers, which takes rights of the kernel's.
            if kind == Kind::Podman
                && let Err(why) = engine.runs()
            {
                let _ = UNFIT.set(why);
            }
        }
        match UNFIT.get() {
            Some(why) => {
                eprintln!("SKIPPED, NOT TESTED: containers with {kind:?}. {why}");
                None
            }
            None => Some(engine),
        }
    }

    /// Whether a container runs to its end without any of ours; what it says where none does.
    fn runs(&self) -> Result<(), String> {
        let output = self
            .docker(&["run", IMAGE, "sh", "-c", "exit 0"])
            .stderr(Stdio::piped())
            .output_bounded()
            .expect("docker was found");
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Starts it, or starts it again, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn serve(&self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .expect("the folder is ours");
        let mut daemon = (self.wrap)(self.kind.service(&self.folder))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be cloned"))
            .stderr(log)
            .spawn()
            .expect("its program was found");
        until("the container engine answers", || {
            if let Ok(Some(status)) = daemon.try_wait() {
                panic!("the engine ended with {status}:\n{}", self.said());
            }
            self.docker(&["version"])
                .wait_bounded()
                .is_ok_and(|status| status.success())
                .then_some(())
        });
        *self.daemon() = Some(daemon);
    }

    /// Asks it to end, and waits until it has. Containers outlive Podman's service, and not Docker's.
    pub fn stop(&self) {
        let daemon = self.daemon().take();
        if let Some(mut daemon) = daemon {
            let _ = kill_process(Pid::from_child(&daemon), Signal::TERM);
            let _ = daemon.wait_bounded();
        }
    }

    fn daemon(&self) -> MutexGuard<'_, Option<Child>> {
        self.daemon.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// `DOCKER_HOST`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// What has to be in the environment of whoever is to use it, by its socket or by its own program.
    #[must_use]
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut all = vec![("DOCKER_HOST", self.host())];
        if self.kind == Kind::Podman {
            all.extend(podman::variables(&self.folder));
        }
        all
    }

    /// The engine's socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.join("sock")
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
        answer(self.docker(words))
    }

    /// What its own program prints, where `docker` and it do not understand each other.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    #[track_caller]
    pub fn own(&self, words: &[&str]) -> String {
        let mut command = Command::new(self.kind.program());
        command.args(words).envs(self.variables());
        answer(command)
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

    /// Waits until no container of an instance's job is left.
    #[track_caller]
    pub fn is_rid_of(&self, job: &str, home: &Path) {
        let is_rid = || self.containers_of(job, home).is_empty().then_some(());
        until("its container is gone", is_rid);
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn make_images(&self) {
        let root = self.folder.join("root");
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
            .wait_bounded();
        assert!(
            status.expect("docker was found").success(),
            "{name} cannot be imported"
        );
        assert!(
            tar.wait_bounded()
                .expect("a child can be waited for")
                .success()
        );
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.own.is_none() {
            return;
        }
        // Docker ends its containers.
        self.stop();
        match self.kind {
            // It leaves the host's network namespace mounted, and the folder could not be removed.
            Kind::Docker => {
                let _ = Command::new("umount")
                    .arg(self.folder.join("exec/netns/default"))
                    .stderr(Stdio::null())
                    .wait_bounded();
            }
            Kind::Podman => podman::clear(&self.folder),
        }
        if std::thread::panicking() {
            let said = self.said();
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(20)..];
            eprintln!("── what the engine said last\n{}", last.join("\n"));
        }
    }
}

#[track_caller]
fn answer(mut command: Command) -> String {
    let output = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output_bounded()
        .expect("the engine's program was found");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Docker's daemon in this folder.
fn dockerd(folder: &Path) -> Command {
    let at = |name: &str| folder.join(name);
    let mut command = Command::new("dockerd");
    command
        .arg("--data-root")
        .arg(at("data"))
        .arg("--exec-root")
        .arg(at("exec"))
        .arg("--pidfile")
        .arg(at("pid"))
        .arg("--host")
        .arg(format!("unix://{}", at("sock").display()))
        .args(["--bridge", "none", "--iptables=false", "--ip6tables=false"]);
    command
}

/// Whether this test program, which has one kind of engine, can have it; if not, that is said.
fn is_available(kind: Kind) -> bool {
    static REFUSED: OnceLock<Option<String>> = OnceLock::new();
    let refused = REFUSED.get_or_init(|| available(kind).err());
    if let Some(why) = refused {
        eprintln!("SKIPPED, NOT TESTED: containers with {kind:?}. {why}");
    }
    refused.is_none()
}

/// Whether there is an engine to be started, installed where that is possible.
fn available(kind: Kind) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("A container engine of the tests' own needs root.".to_owned());
    }
    let has = |program: &&str| {
        let found = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .wait_bounded();
        found.is_ok_and(|status| status.success())
    };
    let (programs, packages) = kind.needs();
    if programs.iter().all(has) {
        return Ok(());
    }
    let (programs_are, packages_are) = (programs.join(", "), packages.join(" "));
    eprintln!("of {programs_are} not all are there: installing {packages_are}");
    let install = [&["install", "--yes", "--no-install-recommends"], packages].concat();
    let apt = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(words)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null());
        let what = format!("apt-get {} ends", words.join(" "));
        let ended = bounded_for(INSTALL, what, || apt.status());
        ended.is_ok_and(|status| status.success())
    };
    if !apt(&install) {
        // The lists may be old or not there.
        let _ = apt(&["update"]) && apt(&install);
    }
    if programs.iter().all(has) {
        Ok(())
    } else {
        Err(format!(
            "Of {programs_are} not all are here, and `apt-get install {packages_are}` does not bring them."
        ))
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
        .output_bounded()
        .expect("ldd is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_ascii_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}
