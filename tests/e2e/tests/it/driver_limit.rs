//! The driver's own limit of control groups (a simulated driver 615): in force before a job's program, on every way
//! past the limiter, after resizes and crashes, and gone with the job.

use std::fs;
use std::path::{Path, PathBuf};

use divvy_api::v1::{Amount, BypassWay, Isolation, JobState, Submit};
use divvy_e2e::{GIB, Home, MIB, client_script, python, until};
use divvy_testkit::failpoints::CRASH_AT;
use divvy_testkit::{Bounded as _, can_be_users, cgroup2_root, quarter};
use serde_json::Value;

use crate::bypass::Evader;

/// What a job of these tests has.
const LIMIT: u64 = 2 * GIB;

/// A user that no user database has.
const UID: &str = "60105";

/// An instance on such a driver, in a control group of its own, so that what it leaves behind can be seen.
struct Limited {
    home: Home,
    above: PathBuf,
}

impl Limited {
    /// `None`, and a word, where this machine cannot play it.
    fn new(name: &str, backend: &str) -> Option<Self> {
        let (Some(root), true) = (cgroup2_root(), rustix::process::geteuid().is_root()) else {
            eprintln!("SKIPPED: the driver's limit takes root and control groups of version 2");
            return None;
        };
        let above = root.join(format!("divvy-limits-{name}-{}", std::process::id()));
        fs::create_dir_all(&above).expect("root makes control groups");
        let home = Home::new("a100-80gb:2");
        let config = home.scratch().join("sim.toml");
        let table = format!("[memory_limits]\nbackend = {backend:?}\nroot = {root:?}\n");
        fs::write(&config, table).expect("the folder can be written");
        let home = home.variable("DIVVY_SIM_CONFIG", path(&config));
        Some(Self { home, above })
    }

    /// A daemon in the group, which serves.
    fn daemon(&self, words: &[&str], variables: &[(&str, &str)]) -> divvy_testkit::Daemon {
        let mut daemon = self.spawn(words, variables);
        self.home.is_served_by(&mut daemon);
        daemon
    }

    /// A daemon in the group, which may die before it serves.
    fn spawn(&self, words: &[&str], variables: &[(&str, &str)]) -> divvy_testkit::Daemon {
        let mut command = self.home.command("sh");
        let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", path(&self.above));
        command.args(["-c", &enter, "sh"]);
        command.arg(self.home.program("divvy")).arg("daemon");
        command.args(["--sim", "a100-80gb:2"]).args(words);
        command.envs(variables.iter().copied());
        self.home.spawn(&mut command)
    }

    /// A job that takes all it gets of a kind of memory.
    fn submit(&self, flags: &[&str], kind: &str, gate: &str) -> String {
        let gate = self.home.gate(gate);
        let (python, script) = (python(), client_script("group_limit.py"));
        let words = [path(&python), &script, "take", kind, "2", &gate];
        self.home
            .submit(&[&["--gpu-memory", "2G"], flags].concat(), &words)
    }

    /// The limits of a group on GPU 0, by the driver.
    fn limits_of(&self, group: &Path) -> Value {
        let mut command = self.home.outside(path(&python()));
        command
            .arg(client_script("group_limit.py"))
            .args(["limits", "0"]);
        let output = command.arg(group).output_bounded().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let said: Value = serde_json::from_str(&said)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        said[path(group)].clone()
    }

    /// The groups below that of the daemon.
    fn groups(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.above).expect("the group is there");
        let paths = entries.flatten().map(|entry| entry.path());
        paths.filter(|path| path.is_dir()).collect()
    }

    /// No limit is left, on no group.
    #[track_caller]
    fn has_no_limits(&self) {
        until("no group is left", || self.groups().is_empty());
        let above = self.limits_of(&self.above);
        assert_eq!(
            (&above["soft"], &above["hard"]),
            (&0.into(), &Value::Null),
            "{}: {above}",
            self.home.daemon_said()
        );
    }

    /// The enforcement of a job's slice.
    fn enforcement(&self, job: &str) -> String {
        self.home.job(job).slices[0].enforcement.clone()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // Supervisors are in the group, and jobs below it.
        let is_gone = || {
            let _ = fs::write(self.above.join("cgroup.kill"), "1");
            for group in self.groups() {
                let _ = fs::remove_dir(group);
            }
            fs::remove_dir(&self.above).is_ok()
        };
        if !std::thread::panicking() {
            until("the groups are gone", is_gone);
        } else if !is_gone() {
            eprintln!("left: {}", self.above.display());
        }
    }
}

fn path(path: &Path) -> &str {
    path.to_str()
        .expect("a temporary folder has a readable name")
}

#[test]
fn a_job_has_the_drivers_limit_before_its_program_and_none_after_its_end() {
    for backend in ["dmem", "misc"] {
        let Some(limited) = Limited::new("life", backend) else {
            return;
        };
        let home = &limited.home;
        let daemon = limited.daemon(&[], &[]);
        let job = limited.submit(&["--isolation", "driver"], "device", "go");
        let said = home.first_words(&job);
        assert_eq!(said["answer"], 2, "{said}");
        assert_eq!(
            said["total_mib"],
            LIMIT / MIB,
            "the view is the limit: {said}"
        );
        assert_eq!(limited.enforcement(&job), "driver");
        let [group] = &limited.groups()[..] else {
            panic!("one group: {:?}", limited.groups());
        };
        let held = limited.limits_of(group);
        assert_eq!(
            (&held["soft"], &held["hard"]),
            (&LIMIT.into(), &LIMIT.into()),
            "{held}"
        );
        let described = home.divvy(&["describe", &job]).ok().stdout;
        assert!(
            described.contains("enforced by the driver (its own limit)"),
            "{described}"
        );
        home.end(&job, "go");
        limited.has_no_limits();
        assert_eq!(limited.enforcement(&job), "driver", "{backend}");
        drop(daemon);
    }
}

#[test]
fn both_backends_and_the_limiter_grant_the_same_up_to_a_block() {
    let mut taken = Vec::new();
    for (policy, kind) in [
        ("limiter", "device"),
        ("auto", "device"),
        ("auto", "managed"),
    ] {
        let Some(limited) = Limited::new("same", "dmem") else {
            return;
        };
        let set = format!("enforcement={policy}");
        let _daemon = limited.daemon(&["--set", &set], &[]);
        let job = limited.submit(&[], kind, "go");
        let said = limited.home.first_words(&job);
        assert_eq!(said["answer"], 2, "{policy} {kind}: {said}");
        taken.push(said["taken_mib"].as_u64().unwrap_or_default());
        limited.home.end(&job, "go");
    }
    // Managed memory the driver does not count: the limiter holds it, within the same limit.
    let (least, most) = (taken.iter().min(), taken.iter().max());
    assert!(
        least
            .zip(most)
            .is_some_and(|(least, most)| most - least <= 2),
        "{taken:?} MiB"
    );
    assert!(taken[0] > 0 && taken[0] <= LIMIT / MIB, "{taken:?} MiB");
}

#[test]
fn no_way_past_the_limiter_gets_a_byte_beyond_the_drivers_limit() {
    let Some(mut limited) = Limited::new("ways", "dmem") else {
        return;
    };
    limited.home.set("DIVVY_FORM", "preload");
    let home = &limited.home;
    let daemon = limited.daemon(&["--set", "on-bypass=kill"], &[]);
    let evader = Evader::build(home);
    let (helper, copy) = (evader.helper(), evader.copy_of_the_driver());
    let lib = format!("LD_LIBRARY_PATH={}", path(&home.path().join("sim/lib")));
    let state = format!("DIVVY_SIM_STATE={}", path(&home.path().join("sim/state")));
    let config = format!("DIVVY_SIM_CONFIG={}", home.get("DIVVY_SIM_CONFIG"));
    let ways: [(&[&str], &str, Option<&str>); 9] = [
        (&[], "plain", None),
        (&["env", "-u", "LD_PRELOAD"], "plain", None),
        (&["env", "-i", &lib, &state, &config], "plain", None),
        (&["env", "DIVVY_SHIM=off"], "plain", None),
        (&[], "deepbind", Some(&helper)),
        (&[], "dlmopen", Some(&helper)),
        (&[], "copy", Some(&copy)),
        (&[], "leader", Some(&copy)),
        (&[], "raise", None),
    ];
    let mut jobs = Vec::new();
    for (number, (wrapper, way, library)) in ways.iter().enumerate() {
        let gate = home.gate(&format!("{number}"));
        let mut words = wrapper.to_vec();
        words.extend([evader.program.as_str(), way, "30", &gate]);
        words.extend(*library);
        let on = [
            "--gpu-memory",
            "2G",
            "--gpus-on",
            if number % 2 == 0 { "0" } else { "1" },
        ];
        jobs.push((home.submit(&on, &words), number));
    }
    // The last one, which writes limits of its own into the slice, tries for ever.
    for (job, number) in &jobs[..jobs.len() - 1] {
        let said = home.first_words(job);
        assert_eq!(said["result"], 2, "way {number}: {said}");
    }
    // Each is inside its limit, so none is a bypass, and the policy ends none.
    let _ = home.items(&["gpus"]);
    for (job, number) in &jobs {
        // The last one has not been waited for.
        let now = home.running(job);
        assert_eq!(now.state, JobState::Running, "way {number}: {now:?}");
        assert!(now.bypasses.is_empty(), "way {number}: {:?}", now.bypasses);
        let held = now.slices[0].memory_driver_bytes.unwrap_or_default();
        assert!(held <= LIMIT, "way {number}: {held} bytes");
    }
    // Nor when no daemon looks.
    daemon.crash();
    let late = home.scratch().join("late");
    fs::write(&late, "").expect("the folder can be written");
    for (group, used) in limited
        .groups()
        .iter()
        .map(|group| (group, limited.limits_of(group)))
    {
        let used = used["used"].as_u64().unwrap_or_default();
        assert!(used <= LIMIT, "{}: {used} bytes", group.display());
    }
    let _daemon = limited.daemon(&[], &[]);
    for (job, number) in &jobs {
        home.open(&number.to_string());
        if *number == ways.len() - 1 {
            let _ = home.divvy(&["cancel", job]).ok();
        }
        let ended = home.ended(job);
        assert!(
            ended.bypasses.is_empty(),
            "way {number}: {:?}",
            ended.bypasses
        );
    }
    limited.has_no_limits();
}

/// A user of the system's daemon tries every file and folder of control groups, then takes memory past the limiter.
#[test]
fn an_ordinary_users_program_leaves_no_limited_group_and_changes_no_limit() {
    if !can_be_users("no other user's limited group is tested here") {
        return;
    }
    let Some(mut limited) = Limited::new("user", "dmem") else {
        return;
    };
    limited.home.set("DIVVY_FORM", "preload");
    let home = &limited.home;
    let _daemon = limited.daemon(&["--system", "--set", "on-bypass=kill"], &[]);
    let evader = Evader::build(home);
    let copy = evader.copy_of_the_driver();
    let root = cgroup2_root().expect("it was found before");
    let holder = limited.submit(&[], "device", "holder");
    let _ = home.first_words(&holder);
    // The files of each group, and one that would be made; a write that is refused leaves no line.
    let script = format!(
        r#"root={root}; own=$root$(sed -n 's/^0:://p' /proc/self/cgroup)
        for group in "$root" "$own" "$own/.." {above}/*; do
            mkdir "$group/own" && echo "made $group/own"
            for file in "$group"/*; do
                case $file in
                    */cgroup.procs|*/cgroup.threads) value=$$ ;;
                    */cgroup.subtree_control) value=-pids ;;
                    *) value=max ;;
                esac
                [ -d "$file" ] || {{ (echo $value > "$file") && echo "wrote $file"; }}
            done
        done 2>/dev/null
        echo "group $own"
        exec "$@""#,
        root = path(&root),
        above = path(&limited.above),
    );
    let gate = home.gate("user");
    let words = [
        "submit",
        "--parsable",
        "--gpu-memory",
        "2G",
        "--",
        "sh",
        "-c",
        &script,
        "sh",
        &evader.program,
        "copy",
        "30",
        &gate,
        &copy,
    ];
    let submitted = home.divvy_as(UID).args(words).output_bounded();
    let submitted = submitted.expect("setpriv starts");
    let job = String::from_utf8_lossy(&submitted.stdout).trim().to_owned();
    assert!(!job.is_empty(), "{submitted:?}");
    let said = until("the program has taken memory", || {
        let log = home.log(&job);
        log.contains("result").then_some(log)
    });
    let lines: Vec<&str> = said.lines().collect();
    let [group, result] = lines[..] else {
        panic!("it changed something: {said}")
    };
    let group = Path::new(group.strip_prefix("group ").expect("its group"));
    assert!(result.ends_with("\"result\":2}"), "{said}");
    assert!(
        limited.groups().iter().any(|one| group.starts_with(one)),
        "{said}"
    );
    let held = limited.limits_of(group);
    assert_eq!(held["hard"], LIMIT, "{held}");
    let _ = home.items(&["gpus"]);
    let now = home.job(&job);
    assert_eq!(now.state, JobState::Running, "{now:?}");
    let driver = now.slices[0].memory_driver_bytes.unwrap_or_default();
    assert!(driver > 0 && driver <= LIMIT, "{now:?}");
    assert_eq!(limited.enforcement(&job), "driver");
    home.open("user");
    home.ended(&job);
    home.end(&holder, "holder");
    limited.has_no_limits();
}

#[test]
fn a_process_that_leaves_its_limited_group_is_reported_and_killed() {
    let Some(limited) = Limited::new("leave", "dmem") else {
        return;
    };
    let home = &limited.home;
    let _daemon = limited.daemon(&["--set", "on-bypass=kill"], &[]);
    let root = cgroup2_root().expect("it was found before");
    let gate = home.gate("never");
    let (python, script) = (python(), client_script("group_limit.py"));
    let words = [
        path(&python),
        &script,
        "take",
        "device",
        "2",
        &gate,
        path(&root),
    ];
    let job = home.submit(&["--gpu-memory", "2G"], &words);
    let bypass = until("the bypass is reported", || {
        home.job(&job).bypasses.first().cloned()
    });
    assert_eq!(bypass.kind, BypassWay::Escaped, "{bypass:?}");
    let after = bypass.detected_at.duration_since(bypass.first_seen_at);
    assert!(after.as_millis() <= 1000, "{bypass:?}");
    let ended = home.ended(&job);
    assert!(
        ended
            .reason
            .as_deref()
            .is_some_and(|why| why.contains("killed")),
        "{ended:?}"
    );
    limited.has_no_limits();
}

#[test]
fn a_resize_moves_the_drivers_limit_and_a_restart_keeps_it() {
    let Some(limited) = Limited::new("resize", "dmem") else {
        return;
    };
    let home = &limited.home;
    let daemon = limited.daemon(&[], &[]);
    let job = home.submit_holder(&["--gpu-memory", "4G"], GIB, "go");
    let _ = home.first_words(&job);
    let [group] = &limited.groups()[..] else {
        panic!("one group: {:?}", limited.groups());
    };
    let has = |limit: u64| {
        until(format!("the driver's limit is {limit}"), || {
            limited.limits_of(group)["hard"] == limit
        });
    };
    has(4 * GIB);
    let _ = home.divvy(&["resize", &job, "--gpu-memory", "8G"]).ok();
    has(8 * GIB);
    daemon.crash();
    has(8 * GIB);
    let daemon = limited.daemon(&[], &[]);
    until("the view is the driver's again", || {
        limited.enforcement(&job) == "driver"
    });
    // Less than is in use: the kernel keeps the old limit until the job uses less.
    let _ = home.divvy(&["resize", &job, "--gpu-memory", "512M"]).ok();
    home.end(&job, "go");
    limited.has_no_limits();
    drop(daemon);
}

#[test]
fn a_daemon_killed_at_each_step_of_a_start_leaves_no_stale_limit_and_no_job_without_one() {
    let points = ["limit.group", "limit.set", "start.spawned", "end.freed"];
    let Some(limited) = Limited::new("crash", "dmem") else {
        return;
    };
    let home = &limited.home;
    for point in points {
        let mut daemon = limited.daemon(&[], &[(CRASH_AT, point)]);
        let gate = home.gate(point);
        home.open(point);
        let (python, script) = (python(), client_script("group_limit.py"));
        let config = home.get("DIVVY_SIM_CONFIG").to_owned();
        let submit = Submit {
            idempotency_key: Some(format!("at-{point}")),
            amount: Some(Amount::Memory { bytes: LIMIT }),
            isolation: Isolation::Driver,
            env: [("DIVVY_SIM_CONFIG".to_owned(), config)].into(),
            ..quarter(&[path(&python), &script, "take", "device", "2", &gate])
        };
        // The daemon may die before it answers. The command would start another.
        let _ = home.call(home.client().submit(&submit));
        until(format!("the daemon dies at {point}"), || {
            daemon.status().is_some()
        });
        drop(daemon);
        let daemon = limited.daemon(&[], &[]);
        let job = home
            .call(home.client().submit(&submit))
            .expect("it is accepted")
            .id;
        let ended = home.ended(&job);
        assert_eq!(ended.exit_code, Some(0), "{point}: {ended:?}");
        let said = home.first_words(&job);
        assert_eq!(
            (&said["answer"], &said["total_mib"]),
            (&2.into(), &(LIMIT / MIB).into()),
            "{point}: {said}"
        );
        limited.has_no_limits();
        drop(daemon);
    }
}

#[test]
fn each_reason_for_the_limiter_alone_has_its_own_sentence() {
    let root = cgroup2_root();
    let is_root = rustix::process::geteuid().is_root();
    let (Some(root), true) = (root, is_root) else {
        eprintln!("SKIPPED: the driver's limit takes root and control groups of version 2");
        return;
    };
    let table = |root: &Path| format!("[memory_limits]\nbackend = \"dmem\"\nroot = {root:?}\n");
    let fault = |code: u32| {
        let fault = "[[fault]]\nfunction = \"nvmlDeviceSetMemoryLimits_v1\"\ntimes = 0\ncode = ";
        format!("{}{fault}{code}\n", table(&root))
    };
    let mig = format!("{}[mig]\nenabled = [0]\n", table(&root));
    let rows: [(&str, String, &[&str], Option<&str>); 7] = [
        ("driver", table(&root), &[], None),
        ("no table", String::new(), &[], Some("NOT_SUPPORTED")),
        (
            "other tree",
            table(Path::new("/dev/shm")),
            &[],
            Some("NOT_FOUND"),
        ),
        ("refused", fault(4), &[], Some("NO_PERMISSION")),
        (
            "broken",
            fault(999),
            &[],
            Some("nvmlDeviceSetMemoryLimits_v1"),
        ),
        (
            "configured",
            table(&root),
            &["--set", "enforcement=limiter"],
            Some("enforcement = \"limiter\""),
        ),
        ("mig", mig, &[], Some("")),
    ];
    for (name, config, flags, reason) in rows {
        let home = Home::new("a100-80gb:1");
        let file = home.scratch().join("sim.toml");
        fs::write(&file, config).expect("the folder can be written");
        let home = home.variable("DIVVY_SIM_CONFIG", path(&file));
        let _daemon = home.daemon(flags);
        let gpu = &home.items(&["gpus"])[0];
        let (enforcement, why) = (&gpu["enforcement"], gpu["enforcement_reason"].as_str());
        let expected = match (name, reason) {
            ("mig", _) => "mig",
            (_, None) => "driver",
            (_, Some(_)) => "interposer",
        };
        assert_eq!(enforcement, expected, "{name}: {gpu}");
        match reason.filter(|part| !part.is_empty()) {
            Some(part) => assert!(why.is_some_and(|why| why.contains(part)), "{name}: {why:?}"),
            None => assert_eq!(why, None, "{name}"),
        }
        // What is demanded and not there is refused at the start.
        if expected == "interposer" && flags.is_empty() {
            drop(_daemon);
            let words = [
                "daemon",
                "--sim",
                "a100-80gb:1",
                "--set",
                "enforcement=driver",
            ];
            let refused = home.divvy(&words).exits(2);
            assert!(
                refused.stderr.contains("has no driver's limit"),
                "{name}: {}",
                refused.stderr
            );
        }
    }
}

mod exhaustive {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::{Duration, Instant};

    use divvy_e2e::engine::{Engine, IMAGE};
    use divvy_testkit::{Rng, let_pass};

    use super::*;
    use crate::docker::lay_way_past;

    const POINTS: [&str; 10] = [
        "limit.begin",
        "limit.group",
        "limit.set",
        "start.prepared",
        "start.locked",
        "start.spawned",
        "round.answered",
        "end.freed",
        "end.forgotten",
        "journal.committed",
    ];
    const STARTS: usize = 1_000;
    /// Jobs that each daemon gets.
    const BATCH: usize = 25;

    /// The second text in quotes, and the numbers behind it.
    fn limits(line: &str) -> Option<(&str, Vec<u64>)> {
        let mut parts = line.split('"');
        let group = parts.nth(1)?;
        let numbers = parts.next()?.split(')').next()?;
        let numbers = numbers
            .split(", ")
            .filter_map(|number| number.trim().parse().ok());
        Some((group, numbers.collect()))
    }

    #[test]
    fn of_a_thousand_starts_with_kills_of_the_daemon_each_has_its_limit_before_its_program() {
        let Some(limited) = Limited::new("thousand", "dmem") else {
            return;
        };
        let home = &limited.home;
        let log = home.scratch().join("calls");
        let line = format!(
            "echo \"exec $(tail -n 1 /proc/self/cgroup)\" >> {}",
            path(&log)
        );
        let config = home.get("DIVVY_SIM_CONFIG").to_owned();
        let submit = |number: usize| Submit {
            idempotency_key: Some(format!("start-{number}")),
            amount: Some(Amount::Memory { bytes: LIMIT }),
            isolation: Isolation::Driver,
            env: [("DIVVY_SIM_CONFIG".to_owned(), config.clone())].into(),
            ..quarter(&["sh", "-c", &line])
        };
        let mut dice = Rng::new(55);
        let mut kills = 0;
        let logs = [("DIVVY_SIM_LOG", path(&log))];
        for (round, first) in (0..STARTS).step_by(BATCH).enumerate() {
            let point = format!("{}:{}", POINTS[round % POINTS.len()], 1 + dice.below(8));
            let variables = [logs[0], (CRASH_AT, point.as_str())];
            let mut daemon = limited.spawn(&[], &variables);
            until("the daemon serves or dies", || {
                daemon.status().is_some() || home.call(home.client().node()).is_ok()
            });
            for number in first..first + BATCH {
                let _ = home.call(home.client().submit(&submit(number)));
            }
            let begun = Instant::now();
            while daemon.status().is_none() && begun.elapsed() < Duration::from_secs(3) {
                let_pass(Duration::from_millis(20));
            }
            kills += usize::from(daemon.status().is_some());
            daemon.crash();
        }
        let _daemon = limited.daemon(&[], &logs);
        for number in 0..STARTS {
            let job = home.call(home.client().submit(&submit(number)));
            let ended = home.ended(&job.expect("it is accepted").id);
            assert_eq!(ended.exit_code, Some(0), "{ended:?}");
        }
        until("no group is left", || limited.groups().is_empty());
        let calls = fs::read_to_string(&log).expect("the calls are logged");
        let (mut set, mut read) = (BTreeMap::new(), BTreeMap::new());
        let (mut programs, mut groups) = (0, BTreeSet::new());
        for call in calls.lines() {
            if let Some(group) = call.strip_prefix("exec 0::") {
                let root = cgroup2_root().expect("it was found before");
                let group = root.join(group.trim_start_matches('/'));
                let group = path(&group).to_owned();
                let held = Some(&vec![LIMIT, LIMIT]);
                assert_eq!(set.get(&group), held, "{group} has no limit at its exec");
                assert_eq!(read.get(&group), held, "{group} was not read at its exec");
                programs += 1;
                groups.insert(group);
            } else if let Some((group, numbers)) =
                limits(call).filter(|_| call.contains("0x610000000000"))
            {
                let numbers: Vec<u64> = numbers.into_iter().take(2).collect();
                if call.contains("SetMemoryLimits") {
                    read.remove(group);
                    set.insert(group.to_owned(), numbers);
                } else if call.contains("GetMemoryLimits") {
                    read.insert(group.to_owned(), numbers);
                }
            }
        }
        let is_stale = |(_, numbers): &(&String, &Vec<u64>)| numbers[0] != 0;
        let stale: Vec<_> = set.iter().filter(is_stale).collect();
        assert!(stale.is_empty(), "{stale:?}");
        limited.has_no_limits();
        eprintln!(
            "{programs} programs in {} groups, {kills} kills of the daemon",
            groups.len()
        );
        assert!(
            programs >= STARTS && kills >= STARTS / BATCH / 2,
            "{programs}, {kills}"
        );
    }

    /// The engine makes a container's group, so the daemon finds it with the first process on the GPU. Then a program
    /// past the limiter takes what it can.
    #[test]
    fn a_containers_group_is_limited_once_a_program_of_it_uses_the_gpu() {
        let Some(mut limited) = Limited::new("container", "dmem") else {
            return;
        };
        let Some(engine) = Engine::on_cgroup2() else {
            return;
        };
        for (name, value) in engine.variables() {
            limited.home.set(name, &value);
        }
        limited.home.set("DIVVY_FORM", "");
        let home = &limited.home;
        let _daemon = limited.daemon(&[], &[]);
        let shared = home.scratch().join("shared");
        lay_way_past(home, &shared);
        // A container has the tree of groups elsewhere.
        let tree = "[memory_limits]\nbackend = \"dmem\"\nroot = \"/sys/fs/cgroup\"\n";
        fs::write(shared.join("sim.toml"), tree).expect("the folder can be written");
        let arguments = format!("-v {}:/past", path(&shared));
        let first = "export DIVVY_SIM_CONFIG=/past/sim.toml; cudarc_probe hold --bytes 64M --until-file /past/limited &";
        let second = "until [ -e /past/limited ]; do sleep 0.1; done; LD_LIBRARY_PATH=/past /past/loader \
                      /usr/bin/cudarc_probe fill --step 64M --route linear; wait";
        let job = home.submit(
            &[
                "--gpu-memory",
                "4G",
                "--docker",
                IMAGE,
                "--docker-args",
                &arguments,
            ],
            &["sh", "-c", &format!("{first} {second}")],
        );
        until("the driver limits the container", || {
            limited.enforcement(&job) == "driver"
        });
        let described = home.divvy(&["describe", &job]).ok().stdout;
        assert!(described.contains("since"), "{described}");
        fs::write(shared.join("limited"), "").expect("the folder can be written");
        let ended = home.ended(&job);
        let log = home.log(&job);
        assert_eq!(ended.exit_code, Some(0), "{log}");
        let taken: Vec<u64> = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter_map(|line| line["got_bytes"].as_u64())
            .collect();
        assert!(
            matches!(taken[..], [most] if most > GIB && most <= 4 * GIB),
            "{log}"
        );
        limited.has_no_limits();
    }

    #[test]
    fn a_limit_that_another_program_takes_off_a_group_is_set_again() {
        let Some(limited) = Limited::new("drop", "dmem") else {
            return;
        };
        let home = &limited.home;
        let _daemon = limited.daemon(&[], &[]);
        let job = home.submit_holder(&["--gpu-memory", "8G"], GIB, "go");
        let _ = home.first_words(&job);
        let [group] = &limited.groups()[..] else {
            panic!("one group: {:?}", limited.groups());
        };
        // Another program takes it off, as one that turns the controller off does.
        let clear = format!(
            "import ctypes\nn=ctypes.CDLL('libnvidia-ml.so.1');n.nvmlInit_v2();d=ctypes.c_void_p();\
             n.nvmlDeviceGetHandleByIndex_v2(0,ctypes.byref(d))\n\
             class S(ctypes.Structure): _fields_=[('n',ctypes.c_char_p),('s',ctypes.c_ulonglong),('h',ctypes.c_ulonglong)]\n\
             s=S({:?}.encode(),0,2**64-1);assert n.nvmlDeviceSetMemoryLimits_v1(d,ctypes.byref(s))==0",
            path(group)
        );
        let mut other = home.outside(path(&python()));
        assert!(
            other
                .args(["-c", &clear])
                .wait_bounded()
                .is_ok_and(|status| status.success())
        );
        until("the limit is back", || {
            limited.limits_of(group)["hard"] == 8 * GIB
        });
        let events = home.items(&["events", &job]);
        let told = events.iter().any(|event| {
            let text = event["text"].as_str().unwrap_or_default();
            event["kind"] == "limit_replaced" && text.contains("had set no limit")
        });
        assert!(told, "{events:?}");
        home.end(&job, "go");
        limited.has_no_limits();
    }
}
