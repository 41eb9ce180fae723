//! What every test needs: the two libraries, a simulated machine, a slice on it, and a probe to talk to.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use divvy_ledger::{
    Control, GpuSpec, Listed, ProcessIdentity, Slice, SliceSpec, Usage, boot_time_ns,
};
use divvy_testkit::{Bounded as _, bounded, let_pass, links, programs};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;
/// What a context costs on the simulated machine.
pub const CONTEXT: u64 = 256 * MIB;
/// What is left of a limit after one context, in most tests.
pub const ROOM: u64 = 512 * MIB;
pub const OUT_OF_MEMORY: u64 = 2;

pub fn preload() -> PathBuf {
    programs::folder().join("libdivvy_preload.so")
}

/// The files of the other form.
pub fn wrappers() -> [PathBuf; 2] {
    ["libdivvy_cuda.so", "libdivvy_nvml.so"].map(|name| programs::folder().join(name))
}

/// How the limiter gets into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Preload,
    Wrapper,
}

impl Form {
    /// Told to the tests of this run when they are run once more, for the other form.
    pub const VARIABLE: &str = "PROBE_FORM";

    /// The form that most tests are about.
    pub fn of_this_run() -> Self {
        match std::env::var_os(Self::VARIABLE) {
            Some(_) => Form::Wrapper,
            None => Form::Preload,
        }
    }
}

/// The rows of `src/table.rs`, which a unit test compares with the compiled table through the reference page.
pub fn documented_hooks() -> BTreeSet<String> {
    documented_as(|_| true)
}

/// The hooks, and the touch stubs of `src/route/touch/list.rs`, which a unit test compares with the compiled table.
pub fn exported_functions() -> BTreeSet<String> {
    let stubs = include_str!("../../src/route/touch/list.rs");
    let (_, stubs) = stubs.split_once("{ $").expect("the list");
    let stubs = stubs.split_whitespace().filter(|name| *name != "}");
    documented_hooks()
        .into_iter()
        .chain(stubs.map(str::to_owned))
        .collect()
}

/// Those of which the page says something in particular.
pub fn documented_as(is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/enforcement.md");
    let page = std::fs::read_to_string(page).expect("the page is there");
    let table = page
        .split("table.rs: ")
        .nth(1)
        .expect("the page has the table");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split_once(" | "));
    cells
        .filter(|(_, what)| is_meant(what))
        .flat_map(|(names, _)| names.split('`').skip(1).step_by(2))
        .map(str::to_owned)
        .collect()
}

/// A buffer with these bytes, as an argument of `actor.c`.
pub fn buffer(bytes: impl IntoIterator<Item = u8>) -> String {
    let digits = bytes.into_iter().map(|byte| format!("{byte:02x}"));
    format!("+{}", digits.collect::<String>())
}

/// A structure of 64-bit words, likewise.
pub fn structure(words: &[u64]) -> String {
    buffer(words.iter().flat_map(|word| word.to_le_bytes()))
}

/// The folder whose libraries are the simulated driver.
pub fn driver_folder() -> PathBuf {
    let simulator = programs::folder().join("libdivvy_sim.so");
    let names = [
        "libcuda.so.1",
        "libcuda.so",
        "libnvidia-ml.so.1",
        "libnvidia-ml.so",
    ];
    links("driver", &names.map(|name| (name, &*simulator)))
}

/// The folder whose libraries are the wrappers, with the simulated driver behind them.
pub fn wrapper_folder() -> PathBuf {
    let [cuda, nvml] = wrappers();
    let simulator = programs::folder().join("libdivvy_sim.so");
    links(
        "wrapper",
        &[
            ("libcuda.so.1", &*cuda),
            ("libcuda.so", &cuda),
            ("libnvidia-ml.so.1", &nvml),
            ("libcuda_real.so.1", &simulator),
            ("libnvidia-ml_real.so.1", &simulator),
        ],
    )
}

/// Compiles one of `tests/probes` with the given flags, once. Libraries end in `.so`.
pub fn compiled(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let probes = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probes");
    divvy_testkit::compiled(&probes.join(source), name, &[&["-O1"], flags].concat())
}

/// A library that calls the driver itself; opened with RTLD_DEEPBIND it does so past every preload.
pub fn deep_library() -> PathBuf {
    let folder = format!("-L{}", driver_folder().display());
    compiled(
        "deep.c",
        "deep.so",
        &[&folder, "-Wl,--no-as-needed", "-lcuda"],
    )
}

/// How a probe finds the driver's functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Handle,
    Default,
    Next,
    ProcAddress,
    Linked,
    LinkedNow,
}

impl Way {
    pub const ALL: [Way; 6] = [
        Way::Handle,
        Way::Default,
        Way::Next,
        Way::ProcAddress,
        Way::Linked,
        Way::LinkedNow,
    ];

    pub fn program(self) -> PathBuf {
        let folder = format!("-L{}", driver_folder().display());
        // The simulated driver is both libraries and calls itself libcuda; the program shall need both by name.
        let stub = ["-Wl,-soname,libnvidia-ml.so.1"];
        let nvml = || {
            compiled("nvml_stub.c", "nvml-stub.so", &stub)
                .display()
                .to_string()
        };
        let nvml = if matches!(self, Way::Linked | Way::LinkedNow) {
            nvml()
        } else {
            String::new()
        };
        let linked = ["-DLINKED", &folder, "-Wl,--no-as-needed", "-lcuda", &nvml];
        match self {
            Way::Handle => compiled("probe.c", "probe-handle", &[]),
            Way::Default => compiled("probe.c", "probe-default", &["-DDEFAULT"]),
            Way::Next => compiled("probe.c", "probe-next", &["-DNEXT"]),
            Way::ProcAddress => compiled("probe.c", "probe-gpa", &["-DGPA"]),
            Way::Linked => compiled(
                "probe.c",
                "probe-linked",
                &[&linked[..], &["-Wl,-z,lazy"]].concat(),
            ),
            Way::LinkedNow => compiled(
                "probe.c",
                "probe-now",
                &[&linked[..], &["-Wl,-z,now"]].concat(),
            ),
        }
    }
}

/// A simulated machine of two GPUs, and a slice of the first.
pub struct Rig {
    folder: TempDir,
    pub uuids: Vec<[u8; 16]>,
    pub limit: u64,
    /// The simulated GPUs.
    gpus: &'static str,
    /// Bytes in use on the first GPU while nobody is there.
    idle: u64,
}

impl Rig {
    /// A slice with room for `contexts` contexts and `room` bytes.
    pub fn new(contexts: u64, room: u64) -> Self {
        Rig::on("", contexts, room)
    }

    /// The same, with more of the simulator's configuration; by its first GPUs CUDA's first two devices are meant.
    pub fn on(more: &str, contexts: u64, room: u64) -> Self {
        Rig::with("a100-80gb:2", more, contexts, room)
    }

    /// The same on other GPUs.
    pub fn of(gpus: &'static str, contexts: u64, room: u64) -> Self {
        Rig::with(gpus, "", contexts, room)
    }

    fn with(gpus: &'static str, more: &str, contexts: u64, room: u64) -> Self {
        let limit = contexts * CONTEXT + room;
        let mut rig = Rig {
            folder: TempDir::new().expect("a folder"),
            uuids: Vec::new(),
            limit,
            gpus,
            idle: 0,
        };
        let config = format!("context_mib = {}\n{more}", CONTEXT / MIB);
        std::fs::write(rig.path("sim.toml"), config).expect("the simulator's configuration");
        std::fs::write(rig.path("sum"), [0; 4096]).expect("the racers' sum");
        let mut outside = rig.outside();
        assert_eq!(outside.ask("init"), [0]);
        rig.uuids = (0..2)
            .map(|gpu| {
                let said = outside.ask(&format!("uuid {gpu}"));
                std::array::from_fn(|index| said[index + 1] as u8)
            })
            .collect();
        rig.idle = outside.ask("nvml 0")[3];
        drop(outside);
        Control::create(&rig.slice_folder(), &rig.spec(&rig.uuids[..1], limit)).expect("a slice");
        rig
    }

    /// Bytes in use on the first GPU while no program runs.
    pub fn idle(&self) -> u64 {
        self.idle
    }

    /// What a slice of these GPUs with that limit on each is.
    pub fn spec(&self, uuids: &[[u8; 16]], limit: u64) -> SliceSpec {
        let gpu = |uuid: &[u8; 16]| GpuSpec {
            uuid: *uuid,
            limit,
            overhead: CONTEXT,
            weight: 1000,
            ..GpuSpec::default()
        };
        SliceSpec {
            id: "test".into(),
            generation: 1,
            gpus: uuids.iter().map(gpu).collect(),
            ..SliceSpec::default()
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn slice_folder(&self) -> PathBuf {
        self.path("slice")
    }

    pub fn slice(&self) -> Slice {
        Slice::open(&self.slice_folder()).expect("a sound slice")
    }

    pub fn usage(&self) -> Usage {
        self.slice().usage(0).expect("a sound slice")
    }

    /// Bytes charged to the slice on its first GPU, contexts and all.
    pub fn charged(&self) -> u64 {
        let usage = self.usage();
        usage.charged + usage.overhead
    }

    /// Bytes in use by programs on the first GPU, by the driver's own account.
    pub fn truth(&self) -> u64 {
        self.outside().ask("nvml 0")[3] - self.idle
    }

    /// The most in use that `watcher` saw, likewise.
    pub fn peak(&self, watcher: &mut Probe) -> u64 {
        watcher.ask("stop")[0] - self.idle
    }

    /// Forgets dead processes at once, as the agent does when the driver lists them no more.
    pub fn settle_the_dead(&self) {
        self.slice()
            .reap(boot_time_ns(), &|_| Listed::No)
            .expect("a sound slice");
    }

    /// `program` on the simulated machine, without the preload.
    pub fn bare(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_LIBRARY_PATH", driver_folder())
            .env("DIVVY_SIM", self.gpus)
            .env("DIVVY_SIM_STATE", self.path("state"))
            .env("DIVVY_SIM_CONFIG", self.path("sim.toml"));
        for name in [
            "LD_PRELOAD",
            "DIVVY_SLICE",
            "DIVVY_SHIM",
            "CUDA_VISIBLE_DEVICES",
            "DIVVY_SIM_LOG",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// `program` with the limiter, in the slice.
    pub fn limited(&self, program: &Path) -> Command {
        self.held(program, Form::of_this_run())
    }

    /// The same, with the limiter in a certain form.
    pub fn held(&self, program: &Path, form: Form) -> Command {
        let mut command = self.bare(program);
        command
            .env("PROBE_SUM", self.path("sum"))
            .env("DIVVY_SLICE", self.slice_folder());
        match form {
            Form::Preload => command.env("LD_PRELOAD", preload()),
            Form::Wrapper => command.env("LD_LIBRARY_PATH", wrapper_folder()),
        };
        command
    }

    /// A probe in the slice.
    pub fn inside(&self, way: Way) -> Probe {
        Probe::start(&mut self.limited(&way.program()))
    }

    /// A probe in the slice, with a context on the first GPU.
    pub fn ready(&self, way: Way) -> Probe {
        let mut probe = self.inside(way);
        assert_eq!(probe.ask("init"), [0]);
        assert_eq!(probe.ask("context 0"), [0]);
        probe
    }

    /// A probe without the preload.
    pub fn outside(&self) -> Probe {
        Probe::start(&mut self.bare(&Way::Handle.program()))
    }

    /// Calls that the driver was asked for, one a line.
    pub fn driver_calls(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

/// Runs `work` beside a thread that looks every 20 ms at a slice, as a daemon does.
pub fn watched_by_a_daemon<T>(slice: &Path, work: impl FnOnce() -> T) -> T {
    let slice = Slice::open(slice).expect("a sound slice");
    let is_over = AtomicBool::new(false);
    /// Also when `work` panics.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut daemon = Daemon::default();
            while !is_over.load(Relaxed) {
                daemon.look(&slice);
                let_pass(Duration::from_millis(20));
            }
        });
        let _ends = Ends(&is_over);
        work()
    })
}

/// What a daemon does about processes that no process of the slice sees end.
#[derive(Default)]
struct Daemon {
    /// How often in a row a process without its lock was met.
    met: HashMap<ProcessIdentity, u32>,
}

impl Daemon {
    /// Ends those that it has met twice before: by then the driver, which drops its own lock a moment later, has the memory
    /// back.
    fn look(&mut self, slice: &Slice) {
        let now = RefCell::new(HashMap::new());
        let listed = |owner: &ProcessIdentity| {
            let times = self.met.get(owner).map_or(1, |times| times + 1);
            now.borrow_mut().insert(*owner, times);
            match times {
                ..3 => Listed::No,
                _ => Listed::Ended,
            }
        };
        slice.reap(boot_time_ns(), &listed).expect("a sound slice");
        self.met = now.into_inner();
    }
}

/// A running `probe.c`.
pub struct Probe {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    errors: Option<ChildStderr>,
}

impl Probe {
    pub fn start(command: &mut Command) -> Self {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the probe starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Probe {
            input: child.stdin.take(),
            output,
            errors: child.stderr.take(),
            child,
        }
    }

    pub fn handle_program() -> PathBuf {
        Way::Handle.program()
    }

    pub fn pid(&self) -> u64 {
        self.child.id().into()
    }

    /// Says a line without awaiting the answer.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("still open");
        writeln!(input, "{line}").expect("the probe listens");
    }

    /// Awaits one answer.
    #[track_caller]
    pub fn hear(&mut self) -> Vec<u64> {
        let mut line = String::new();
        bounded("the probe answers", || self.output.read_line(&mut line))
            .expect("the probe speaks");
        let numbers: Result<Vec<i64>, _> = line.split_whitespace().map(str::parse).collect();
        match numbers {
            Ok(numbers) if !numbers.is_empty() => {
                numbers.into_iter().map(|number| number as u64).collect()
            }
            _ => panic!(
                "the probe said {line:?}, and on stderr {:?}",
                self.last_words()
            ),
        }
    }

    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Vec<u64> {
        self.say(line);
        self.hear()
    }

    /// Free and total as `cuMemGetInfo` says.
    #[track_caller]
    pub fn info(&mut self) -> (u64, u64) {
        let said = self.ask("info");
        assert_eq!(said[0], 0);
        (said[1], said[2])
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it is our child");
        self.child.wait_bounded().expect("it is our child");
    }

    /// Awaits its death by a signal.
    #[track_caller]
    pub fn dies(&mut self) {
        let status = self.child.wait_bounded().expect("it is our child");
        assert_eq!(status.code(), None, "it ended by itself");
    }

    /// Ends it and gives what it said on stderr.
    pub fn last_words(&mut self) -> String {
        self.input = None;
        let mut text = String::new();
        if let Some(mut errors) = self.errors.take() {
            let read = || std::io::Read::read_to_string(&mut errors, &mut text);
            bounded("the probe closes its stderr", read).expect("stderr is text");
        }
        text
    }

    /// Ends it and asserts that it said nothing on stderr.
    #[track_caller]
    pub fn ends_silently(mut self) {
        assert_eq!(self.last_words(), "");
        assert!(
            self.child
                .wait_bounded()
                .expect("it is our child")
                .success()
        );
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.input = None;
        // It ends with its input; a test that fails must not wait for one that does not.
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait_bounded();
    }
}
