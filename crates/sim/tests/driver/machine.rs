//! Simulated machines and programs on them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use divvy_testkit::{Bounded as _, bounded, programs};
use tempfile::TempDir;

/// A state file of its own and the folder that stands for the system's libraries.
pub struct Machine {
    folder: TempDir,
    environment: Vec<(String, String)>,
}

impl Machine {
    pub fn new(spec: &str) -> Machine {
        let folder = TempDir::new().expect("a temporary folder");
        for name in ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"] {
            std::os::unix::fs::symlink(
                programs::folder().join("libdivvy_sim.so"),
                folder.path().join(name),
            )
            .expect("a link");
        }
        let text = |path: &Path| path.to_str().expect("the path is text").to_owned();
        let environment = vec![
            ("LD_LIBRARY_PATH".into(), text(folder.path())),
            ("DIVVY_SIM_STATE".into(), text(&folder.path().join("state"))),
            ("DIVVY_SIM".into(), spec.to_owned()),
        ];
        Machine {
            folder,
            environment,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The machine as seen with one more variable set.
    pub fn with(&self, name: &str, value: &str) -> Environment<'_> {
        Environment {
            machine: self,
            more: Vec::new(),
        }
        .with(name, value)
    }

    /// The machine as seen with DIVVY_SIM_CONFIG naming a file of this content.
    pub fn with_config(&self, content: &str) -> Environment<'_> {
        std::fs::write(self.path("config.toml"), content).expect("written");
        self.with(
            "DIVVY_SIM_CONFIG",
            self.path("config.toml").to_str().expect("text"),
        )
    }

    /// The machine with a virtual clock, if nobody has used it yet.
    pub fn with_virtual_clock(&self) -> Environment<'_> {
        self.with_config("clock = 'virtual'")
    }

    pub fn client(&self) -> Client {
        Environment {
            machine: self,
            more: Vec::new(),
        }
        .client()
    }
}

pub struct Environment<'a> {
    machine: &'a Machine,
    more: Vec<(String, String)>,
}

impl Environment<'_> {
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.more.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(programs::folder().join("examples/client"));
        for name in [
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "DIVVY_SIM_CONFIG",
            "DIVVY_SIM_LOG",
            "DIVVY_SIM_ROOT",
            "LD_PRELOAD",
        ] {
            command.env_remove(name);
        }
        for (name, value) in self.machine.environment.iter().chain(&self.more) {
            command.env(name, value);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    pub fn client(&self) -> Client {
        let mut child = self.command().spawn().expect("the client starts");
        let (orders, answers) = (
            child.stdin.take().expect("piped"),
            child.stdout.take().expect("piped"),
        );
        Client {
            child,
            orders,
            answers: BufReader::new(answers),
        }
    }
}

/// A program on the machine, which does what it is told.
pub struct Client {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    /// Gives an order without waiting for the answer.
    pub fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("the client listens");
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        let read = || self.answers.read_line(&mut line);
        bounded("the client answers", read).expect("the client answers");
        line.trim_end().to_owned()
    }

    pub fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        self.answer()
    }

    /// The result code of a call.
    #[track_caller]
    pub fn call(&mut self, order: &str) -> u32 {
        let answer = self.ask(order);
        answer
            .parse()
            .unwrap_or_else(|_| panic!("{order}: {answer:?}"))
    }

    /// Calls that must all succeed.
    #[track_caller]
    pub fn ok(&mut self, orders: &[&str]) {
        for order in orders {
            assert_eq!(self.call(order), 0, "{order}");
        }
    }

    /// The content of a variable.
    pub fn bytes(&mut self, name: &str) -> Vec<u8> {
        let hex = self.ask(&format!("get {name}"));
        hex.as_bytes()
            .chunks(2)
            .map(|pair| {
                u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16)
                    .expect("hexadecimal")
            })
            .collect()
    }

    /// A variable as a number.
    pub fn value(&mut self, name: &str) -> u64 {
        u64::from_ne_bytes(self.bytes(name)[..8].try_into().expect("eight bytes"))
    }

    pub fn set<T: Copy>(&mut self, name: &str, value: T) {
        // SAFETY: the structures of the driver's table have no padding that matters; they are read as bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(self.ask(&format!("bytes {name} {hex}")), "0");
    }

    /// Initialises CUDA and makes device 0's primary context current.
    #[track_caller]
    pub fn start(&mut self) {
        self.ok(&[
            "cuInit 0",
            "cuDevicePrimaryCtxRetain &context 0",
            "cuCtxSetCurrent $context",
        ]);
    }

    /// `(free, total)` as CUDA sees it.
    #[track_caller]
    pub fn memory(&mut self) -> (u64, u64) {
        self.ok(&["cuMemGetInfo_v2 &free &total"]);
        (self.value("free"), self.value("total"))
    }

    /// Several variables in a row, as one list in the variable `list`.
    pub fn list(&mut self, list: &str, names: &[&str]) {
        let hex: String = names
            .iter()
            .flat_map(|name| self.value(name).to_ne_bytes())
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.ok(&[&format!("bytes {list} {hex}")]);
    }

    /// A variable of 32 bits.
    pub fn small_value(&mut self, name: &str) -> u32 {
        self.value(name) as u32
    }

    /// Where a variable lies in the client.
    pub fn address(&mut self, name: &str) -> u64 {
        self.ask(&format!("where {name}"))
            .parse()
            .expect("an address")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the program to end by itself; the code it ends with.
    pub fn exit_code(mut self) -> Option<i32> {
        self.child.wait_bounded().expect("a child of ours").code()
    }

    pub fn kill(mut self) {
        self.stop();
    }

    /// Kills the program; its standard input stays open until the client is dropped.
    pub fn stop(&mut self) {
        self.child.kill().expect("alive until now");
        self.child.wait_bounded().expect("a child of ours");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
    }
}

pub const MIB: u64 = 1 << 20;
