//! Daemons of two users on one simulated driver: the daemons allocate no GPU twice, whichever of them the test kills.
//!
//! As root the daemons run as two other users; otherwise both are this user's, in two homes.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use divvy_testkit::{
    Bounded as _, CommandOutput, Rng, divvy, kill_all_that_mention, let_pass, until,
};
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use tempfile::TempDir;

const SIM: &str = "a100-80gb:3";

/// What the driver of that model leaves to slices, a little rounded up.
const USABLE: u64 = 80 << 30;

/// The first of the users as which the daemons run.
const FIRST_UID: u32 = 40_001;

/// A user with a home, and a daemon some of the time.
struct User {
    uid: Option<u32>,
    home: PathBuf,
    variables: Vec<(&'static str, PathBuf)>,
    /// The GPUs that the daemon simulates; the other daemons find its driver through their environment.
    sim: Option<&'static str>,
    daemon: Option<Child>,
    /// The daemon has answered since it was started last.
    answers: bool,
}

/// The machine of the users, and the folder of its registry.
struct Machine {
    folder: TempDir,
    users: Vec<User>,
}

/// What a journal says that a job holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holding {
    job: u64,
    gpu: u32,
    share: u64,
    memory: u64,
}

impl Machine {
    /// Two users with running daemons.
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
        let registry = folder.path().join("registry");
        fs::create_dir(&registry).unwrap();
        fs::set_permissions(&registry, Permissions::from_mode(0o1777)).unwrap();
        let first = folder.path().join("0");
        let sim = first.join("sim");
        let mut machine = Self {
            folder,
            users: Vec::new(),
        };
        machine.add(vec![("DIVVY_REGISTRY", registry.clone())], Some(SIM));
        machine.users[0].serve();
        // The other user has the simulated GPUs as any user has a real one's device nodes.
        for (path, mode) in [
            (first, 0o755),
            (sim.clone(), 0o755),
            (sim.join("lib"), 0o755),
            (sim.join("state"), 0o666),
        ] {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let driver = vec![
            ("DIVVY_REGISTRY", registry),
            ("LD_LIBRARY_PATH", sim.join("lib")),
            ("DIVVY_SIM_STATE", sim.join("state")),
        ];
        machine.add(driver, None);
        machine.users[1].serve();
        machine
    }

    fn add(&mut self, variables: Vec<(&'static str, PathBuf)>, sim: Option<&'static str>) {
        let number = u32::try_from(self.users.len()).unwrap();
        let home = self.folder.path().join(number.to_string());
        fs::create_dir(&home).unwrap();
        fs::set_permissions(&home, Permissions::from_mode(0o700)).unwrap();
        let uid = rustix::process::geteuid()
            .is_root()
            .then_some(FIRST_UID + number);
        chown(&home, uid, uid).unwrap();
        self.users.push(User {
            uid,
            home,
            variables,
            sim,
            daemon: None,
            answers: false,
        });
    }

    /// What the journals say of each GPU: thousandths, memory, and the users. Read one after the other, so a holding of
    /// the first counts if it was there before and after the second was read.
    fn held(&self) -> BTreeMap<u32, (u64, u64, BTreeSet<usize>)> {
        let before = self.users[0].holdings();
        let second = self.users[1].holdings();
        let after = self.users[0].holdings();
        let first = before.intersection(&after).map(|holding| (0, holding));
        let mut sums: BTreeMap<u32, (u64, u64, BTreeSet<usize>)> = BTreeMap::new();
        for (user, holding) in first.chain(second.iter().map(|holding| (1, holding))) {
            let (share, memory, users) = sums.entry(holding.gpu).or_default();
            *share += holding.share;
            *memory += holding.memory;
            users.insert(user);
        }
        sums
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for user in &mut self.users {
            user.kill();
        }
        kill_all_that_mention(&self.folder.path().display().to_string());
    }
}

impl User {
    fn divvy(&self, words: &[&str]) -> Command {
        let mut command = Command::new(divvy());
        command
            .args(words)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("DIVVY_HOME", &self.home)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command
    }

    fn output(&self, words: &[&str]) -> CommandOutput {
        let output = self.divvy(words).output_bounded().unwrap();
        CommandOutput::new(words.join(" "), &output)
    }

    fn start(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.home.with_extension("log"))
            .unwrap();
        let sim = self.sim.map(|sim| ["--sim", sim]).into_iter().flatten();
        let words: Vec<&str> = std::iter::once("daemon").chain(sim).collect();
        let mut command = self.divvy(&words);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemon = Some(command.spawn().unwrap());
    }

    /// Starts the daemon, and waits until it answers.
    fn serve(&mut self) {
        self.start();
        until("the daemon answers", || self.look());
    }

    /// Whether the daemon has answered since its start.
    fn look(&mut self) -> bool {
        if self.daemon.is_some() && !self.answers {
            let mut ps = self.divvy(&["ps"]);
            self.answers = ps.output_bounded().unwrap().status.success();
        }
        self.answers
    }

    fn kill(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().unwrap();
            daemon.wait_bounded().unwrap();
        }
        self.answers = false;
    }

    /// What the journal says that jobs hold. Of a daemon that is dead, or has not looked at its jobs yet, a job whose
    /// program has ended holds nothing.
    fn holdings(&self) -> BTreeSet<Holding> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        let programs = (!self.answers).then(living_programs);
        until("the journal can be read", || {
            let journal = Connection::open_with_flags(self.home.join("state.db"), flags).ok()?;
            journal.busy_timeout(Duration::from_secs(5)).ok()?;
            let rows = "SELECT job, gpu_index, share, memory, command FROM holding JOIN job ON job.id = job WHERE held = 1";
            let mut rows = journal.prepare(rows).ok()?;
            let rows = rows.query_map([], |row| {
                let holding = Holding {
                    job: row.get(0)?,
                    gpu: row.get(1)?,
                    share: row.get(2)?,
                    memory: row.get(3)?,
                };
                Ok((holding, row.get::<_, String>(4)?))
            });
            let rows: Vec<(Holding, String)> = rows.ok()?.collect::<Result<_, _>>().ok()?;
            let lives = |command: &str| {
                let command: Vec<String> = serde_json::from_str(command).unwrap();
                programs
                    .as_ref()
                    .is_none_or(|programs| programs.contains(&command[1]))
            };
            let living = rows.into_iter().filter(|(_, command)| lives(command));
            Some(living.map(|(holding, _)| holding).collect())
        })
    }
}

/// The second words of all command lines of the machine.
fn living_programs() -> BTreeSet<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let command = |process: fs::DirEntry| fs::read(process.path().join("cmdline")).ok();
    let word = |line: Vec<u8>| {
        let word = line.split(|byte| *byte == 0).nth(1)?;
        Some(String::from_utf8_lossy(word).into_owned())
    };
    processes.filter_map(command).filter_map(word).collect()
}

const AMOUNTS: [&[&str]; 8] = [
    &["-g", "0.25"],
    &["-g", "0.3"],
    &["-g", "0.5"],
    &["-g", "0.75"],
    &["-g", "1"],
    &["-g", "2"],
    &["-g", "2x0.5"],
    &["--gpu-memory", "20G"],
];

/// Submits, ends and kills at random for so many rounds, and checks the sums twice in each.
fn rounds(seed: u64, count: u32) {
    let mut rng = Rng::new(seed);
    let mut machine = Machine::new();
    let (mut kills, mut shared) = (0, 0);
    let mut holders: BTreeSet<usize> = BTreeSet::new();
    for round in 0..count {
        let mut clients = Vec::new();
        for user in &mut machine.users {
            if user.daemon.is_none() {
                if rng.below(10) < 6 {
                    user.start();
                }
            } else if rng.once_in(12) {
                user.kill();
                kills += 1;
            } else if rng.below(10) < 7 {
                let amount = rng.one(&AMOUNTS).unwrap();
                // No two programs have the same arguments.
                let seconds = format!("{}.{:06}{round:04}", rng.below(2), rng.below(1_000_000));
                let words = [&["submit"], amount, &["--", "sleep", &seconds]].concat();
                let mut client = user.divvy(&words);
                client.stdout(Stdio::null()).stderr(Stdio::null());
                clients.push(client.spawn().unwrap());
            }
        }
        for user in &mut machine.users {
            if user.daemon.is_some() && rng.once_in(30) {
                let_pass(Duration::from_millis(rng.below(80)));
                user.kill();
                kills += 1;
            }
            user.look();
        }
        for _ in 0..2 {
            let held = machine.held();
            for (gpu, (share, memory, users)) in &held {
                assert!(
                    *share <= 1000 && *memory <= USABLE,
                    "seed {seed}, round {round}, GPU {gpu}: {held:?}"
                );
                shared += u32::from(users.len() > 1);
                holders.extend(users);
            }
            for client in clients.drain(..) {
                let mut client: Child = client;
                client.wait_bounded().unwrap();
            }
        }
    }
    eprintln!("seed {seed}: {count} rounds, {kills} kills, both users on one GPU {shared} times");
    assert!(
        kills > count / 50 && holders.len() == 2,
        "{kills} {holders:?}"
    );
}

#[test]
fn in_some_rounds_no_gpu_is_given_out_twice() {
    rounds(2, 25);
}

#[test]
fn what_another_users_daemon_holds_is_named_and_free_once_its_job_has_ended() {
    let mut machine = Machine::new();
    let gate = machine.folder.path().join("gate");
    let wait = format!("until test -e {}; do sleep 0.05; done", gate.display());
    let [ana, ben] = &mut machine.users[..] else {
        unreachable!("two users");
    };
    let hold = ["submit", "-g", "2", "--", "sh", "-c", &wait];
    let said = ana.output(&hold).ok();
    assert!(said.stdout.contains("starts on"), "{}", said.stdout);
    until("the job runs", || running(ana));
    let said = ben.output(&["submit", "-g", "2", "--", "true"]).ok();
    assert!(said.stdout.contains("held by"), "{}", said.stdout);
    let gpus = ben.output(&["gpus", "-o", "json"]).items();
    let shares: Vec<&Value> = gpus
        .iter()
        .map(|gpu| &gpu["held_elsewhere"][0]["share"])
        .collect();
    assert_eq!(
        shares,
        [&Value::from(1000), &Value::from(1000), &Value::Null]
    );
    let table = ben.output(&["gpus"]).ok().stdout;
    assert!(table.contains("held by"), "{table}");
    let now = ["run", "--no-daemon", "-g", "2", "--", "true"];
    let mut alone = ben.divvy(&now);
    let other = machine.folder.path().join("alone");
    fs::create_dir(&other).unwrap();
    chown(&other, ben.uid, ben.uid).unwrap();
    fs::set_permissions(&other, Permissions::from_mode(0o700)).unwrap();
    let refused = alone.env("DIVVY_HOME", &other).output_bounded().unwrap();
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("held by"), "{refused}");

    // The job outlives its daemon, and so does what it holds.
    ana.kill();
    let_pass(Duration::from_millis(600));
    assert!(ben.output(&["ps"]).ok().stdout.contains("queued"));
    fs::write(&gate, "").unwrap();
    until("the other user's job has run", || {
        ben.output(&["ps", "-a"]).ok().stdout.contains("completed")
    });
}

fn running(user: &User) -> bool {
    user.output(&["ps"]).ok().stdout.contains("running")
}

mod exhaustive {
    #[test]
    fn in_1000_rounds_no_gpu_is_given_out_twice() {
        super::rounds(24, 1000);
    }
}
