//! `CUDA_VISIBLE_DEVICES` in every front end and both forms of the limiter: what a program sees for each value that
//! scripts and programs set.

use std::path::{Path, PathBuf};

use divvy_e2e::{CommandOutput, Home};
use divvy_testkit::{Bounded as _, compiled};

use crate::form::may_mount;

const TABLE: &str = include_str!("../visible_devices.txt");

const MACHINE: &str = "a100-80gb:3";

/// The job's GPUs: not the machine's first, and more than one.
const TWO: [&str; 4] = ["-g", "2", "--gpus-on", "1,2"];

/// The program of the table, and UUIDs.
struct Table {
    program: String,
    machine: Vec<String>,
}

/// A row, with UUIDs in place of names.
struct Row {
    value: String,
    uuids: String,
    named: Option<String>,
}

impl Table {
    /// `run` starts a program on all GPUs.
    fn new(home: &Home, run: &[&str]) -> Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/c/visible.c");
        let program: PathBuf = compiled(&source, "visible", &[]);
        let all = ["-g", "3", "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES"];
        let said = home.divvy(&[run, &all].concat()).ok().stdout;
        Table {
            program: program.to_str().expect("a readable path").to_owned(),
            machine: said.trim().split(',').map(str::to_owned).collect(),
        }
    }

    fn rows(&self) -> Vec<Row> {
        let [m, a, b] = &self.machine[..] else {
            panic!("three GPUs")
        };
        let text = |text: &str| {
            text.replace("{m}", m)
                .replace("{b}", b)
                .replace("{b-begin}", &b[..9])
        };
        let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
        let row = |line: &str| {
            // A value may have a blank in it, or be empty.
            let (value, rest) = line.split_at(15);
            let (sees, named) = rest.trim().split_once(' ').expect("three columns");
            let uuids = sees.chars().filter_map(|gpu| match gpu {
                'a' => Some(a.as_str()),
                'b' => Some(b.as_str()),
                _ => None,
            });
            Row {
                value: text(value.trim()),
                uuids: uuids.collect::<Vec<_>>().join(","),
                named: Some(text(named.trim())).filter(|named| named != "-"),
            }
        };
        lines.skip(1).map(row).collect()
    }

    /// The program with all values of the table.
    fn command(&self) -> Vec<String> {
        let values = self.rows().into_iter().map(|row| row.value);
        std::iter::once(self.program.clone())
            .chain(values)
            .collect()
    }

    /// Compares what the program printed with the table; `kept` is Divvy's own value.
    #[track_caller]
    fn check(&self, front_end: &str, printed: &str) {
        let lines: Vec<&str> = printed.lines().collect();
        let rows = self.rows();
        assert_eq!(lines.len(), rows.len(), "{front_end}: {printed}");
        for (line, row) in lines.iter().zip(&rows) {
            let what = format!("{front_end}: {line}");
            let [value, init, uuids, got, after, said] = line.split('|').collect::<Vec<_>>()[..]
            else {
                panic!("{what}")
            };
            assert_eq!((value, uuids), (&*row.value, &*row.uuids), "{what}");
            // CUDA_ERROR_NO_DEVICE, and no allocation to try.
            let expected = if uuids.is_empty() {
                ("100", "-1")
            } else {
                ("0", "0")
            };
            assert_eq!((init, got), expected, "{what}");
            // Children and the program itself go on with what was set.
            let set = if value == "kept" { "0,1" } else { value };
            assert_eq!(after, set, "{what}");
            match &row.named {
                None => assert_eq!(said, "", "{what}"),
                Some(entry) => assert_eq!(
                    said,
                    format!(
                        "divvy: CUDA_VISIBLE_DEVICES={value}: {entry} is not a GPU of this job, which has GPUs 0 to 1; \
                         remove the line that sets the variable, or count the job's GPUs from 0"
                    )
                ),
            }
        }
    }
}

fn words<'a>(flags: &[&'a str], command: &'a [String]) -> Vec<&'a str> {
    let command = command.iter().map(String::as_str);
    let flags = flags.iter().copied().chain(["--"]);
    flags.chain(command).collect()
}

/// The command with the variables that the simulated driver needs, and `CUDA_VISIBLE_DEVICES`, but none of Divvy's.
fn cleaned(home: &Home, command: &[String]) -> Vec<String> {
    let sim = home.path().join("sim");
    let start = [
        "env".to_owned(),
        "-i".to_owned(),
        format!("DIVVY_SIM={MACHINE}"),
        format!("DIVVY_SIM_STATE={}", sim.join("state").display()),
        format!("LD_LIBRARY_PATH={}", sim.join("lib").display()),
        "CUDA_VISIBLE_DEVICES=0,1".to_owned(),
    ];
    start.into_iter().chain(command.iter().cloned()).collect()
}

/// Every front end that starts a program where the driver shows all GPUs.
fn every_front_end(form: &str) {
    let home = Home::new(MACHINE).variable("DIVVY_FORM", form);
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let table = Table::new(&home, &["run"]);
    let command = table.command();
    let check = |front_end: &str, output: CommandOutput| {
        table.check(&format!("{front_end}, {form}"), &output.ok().stdout);
    };

    let run = [&["run"], &TWO[..]].concat();
    check("run", home.divvy(&words(&run, &command)));
    if form == "wrapper" {
        let cleaned = cleaned(&home, &command);
        check("run, env -i", home.divvy(&words(&run, &cleaned)));
    }

    let job = home.submit(&TWO, &words(&[], &command)[1..]);
    assert_eq!(home.ended(&job).exit_code, Some(0));
    table.check(&format!("submit, {form}"), &home.log(&job));

    let array = [&TWO[..], &["--array", "7", "--name", "sweep"]].concat();
    let _ = home.submit(&array, &words(&[], &command)[1..]);
    let job = home.ended("sweep[7]");
    assert_eq!(job.exit_code, Some(0));
    table.check(&format!("array, {form}"), &home.log(&job.id));

    let job = home.submit(&TWO, &["sleep", "1000"]);
    home.running(&job);
    check("exec", home.divvy(&words(&["exec", &job], &command)));
    let _ = home.divvy(&["cancel", &job]).ok();
    home.ended(&job);

    let create = ["slice", "create", "s", "-g", "0.5", "--gpus-on", "1,2"];
    let _ = home.divvy(&create).ok();
    check(
        "slice enter",
        home.divvy(&words(&["slice", "enter", "s"], &command)),
    );
    if form == "preload" {
        let script = format!(
            "eval \"$({} slice env s)\" && exec \"$@\"",
            home.program("divvy")
        );
        let mut shell = home.command("sh");
        shell.args(["-ec", &script, "sh"]).args(&command);
        let output = shell.output_bounded().expect("the shell runs");
        check("slice env", CommandOutput::new(script, &output));
    }
    let events = home.items(&["events"]);
    assert!(
        events.iter().all(|event| event["kind"] != "bypass"),
        "{events:?}"
    );
}

#[test]
fn every_value_means_the_jobs_own_gpus_in_every_front_end_with_the_preload() {
    every_front_end("preload");
}

#[test]
fn every_value_means_the_jobs_own_gpus_in_every_front_end_with_the_wrapper() {
    if may_mount() {
        every_front_end("wrapper");
    }
}

#[test]
fn every_value_means_the_jobs_own_gpus_without_a_daemon() {
    for form in ["preload", "wrapper"] {
        if form == "wrapper" && !may_mount() {
            continue;
        }
        let home = Home::new(MACHINE).variable("DIVVY_FORM", form);
        let run = ["run", "--no-daemon"];
        let table = Table::new(&home, &run);
        let command = table.command();
        let output = home
            .divvy(&words(&[&run, &TWO[..]].concat(), &command))
            .ok();
        table.check(&format!("run --no-daemon, {form}"), &output.stdout);
    }
}

#[test]
fn a_program_without_its_slice_uses_no_other_jobs_gpu() {
    let home = Home::new(MACHINE).variable("DIVVY_FORM", "preload");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let table = Table::new(&home, &["run"]);
    let script = format!(
        "rm \"$DIVVY_SLICE/slots\"; unset DIVVY_SUPERVISOR; exec {} kept 0 2",
        table.program
    );
    let run = [&["run"], &TWO[..], &["--", "sh", "-c", &script]].concat();
    let printed = home.divvy(&run).ok().stdout;
    let [_, a, b] = &table.machine[..] else {
        panic!("three GPUs")
    };
    for (line, begins) in printed.lines().zip([
        format!("kept|0|{a},{b}|2|0,1|divvy: GPU memory is refused: "),
        format!("0|0|{a}|2|0|divvy: GPU memory is refused: "),
        "2|100||-1|2|divvy: CUDA_VISIBLE_DEVICES=2: 2 is not a GPU of this job".to_owned(),
    ]) {
        assert!(line.starts_with(&begins), "{printed}");
    }
    assert_eq!(printed.lines().count(), 3, "{printed}");
}

/// An engine that reads `slice env -o json` shows GPUs in its own way: Ray by the machine's numbers.
#[test]
fn an_engine_with_numbers_of_its_own_keeps_them() {
    let home = Home::new(MACHINE).variable("DIVVY_FORM", "preload");
    let _daemon = home.daemon(&["--set", "on-bypass=warn"]);
    let table = Table::new(&home, &["run"]);
    let create = ["slice", "create", "s", "-g", "0.5", "--gpus-on", "1,2"];
    let _ = home.divvy(&create).ok();
    let access = &home.items(&["slice", "env", "s"])[0];
    let mut command = home.command(&table.program);
    for (name, value) in access["environment"].as_object().expect("variables") {
        command.env(name, value.as_str().expect("a text"));
    }
    let output = command.args(["kept", "0", "1"]).output_bounded();
    let output = CommandOutput::new("visible".into(), &output.expect("it starts")).ok();
    let [m, a, b] = &table.machine[..] else {
        panic!("three GPUs")
    };
    let expected = format!("kept|0|{a},{b}|0|{a},{b}|\n0|0|{m}|2|0|\n1|0|{a}|0|1|\n");
    assert_eq!(output.stdout, expected);
}
