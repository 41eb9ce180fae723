//! The same random program with and without the limiter (`tests/probes/differential.c`): all results, and all that the calls write, are
//! equal, while the limit is not reached; so is the memory in use, whenever no work is under way.
//!
//! A failure prints the seed, the step and the fewest steps that still differ. `DIVVY_DIFFERENTIAL_SEED=N` runs that seed alone,
//! `DIVVY_DIFFERENTIAL_STEPS=N` sets the length of each run, `DIVVY_DIFFERENTIAL_SEEDS=N` how many seeds a test tries.

use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead, BufReader, Lines};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use divvy_ledger::Control;
use divvy_testkit::{Bounded as _, bounded};

use crate::support::{CONTEXT, Form, MIB, Rig, compiled, watched_by_a_daemon};

/// Calls before the one that differs.
const SHOWN: usize = 12;
/// How long a program that differs is run again with fewer steps. The test has failed by then.
const SHORTENING: Duration = Duration::from_secs(60);
/// What a GPU has beyond the slice's limit: what nothing of the program's takes, so that the driver's free memory is never less than
/// the slice's.
const RESERVE: u64 = 1024 * MIB;
const WAYS: u64 = 3;

/// The kinds of step that a program takes (`tests/probes/differential.c`).
#[derive(Clone, Copy, Debug)]
enum Words {
    Usual,
    /// With multicast objects, green contexts, descriptors without a mark, and further processes.
    Wide,
    /// Calls about contexts and external memory alone.
    External,
}

impl Words {
    fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Wide => "wide",
            Self::External => "external",
        }
    }
}

/// One random program.
#[derive(Clone)]
struct Program {
    seed: u64,
    steps: u64,
    words: Words,
    skipped: BTreeSet<u64>,
}

/// Where two runs part.
struct Difference {
    step: u64,
    /// The calls before, which are equal.
    before: Vec<String>,
    bare: String,
    limited: String,
}

/// A run of the program, and what it says.
struct Run {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Run {
    fn start(rig: &Rig, command: &mut Command, program: &Program) -> Self {
        let skipped: Vec<String> = program.skipped.iter().map(u64::to_string).collect();
        let list = rig.path("skipped");
        std::fs::write(&list, skipped.join("\n")).expect("our folder");
        let way = program.seed / WAYS % WAYS;
        let numbers = [program.seed, program.steps, way].map(|number| number.to_string());
        command.args(numbers).arg(list).arg(program.words.name());
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Run {
            child,
            lines: output.lines(),
        }
    }

    fn hear(&mut self) -> Option<String> {
        self.lines
            .next()
            .map(|line| line.expect("the program writes text"))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
    }
}

/// Runs a program both ways. Returns how many calls it made, or where the runs part.
fn compare(program: &Program, form: Form) -> Result<u64, Difference> {
    let [bare_rig, rig] = [(); 2].map(|()| Rig::new(0, CONTEXT));
    let limit = (80 << 30) - RESERVE;
    let slice = rig.path("both");
    Control::create(&slice, &rig.spec(&rig.uuids, limit)).expect("a slice of both GPUs");
    let run = || run_both(program, form, [&bare_rig, &rig], &slice);
    match program.words {
        // Its further processes end where no process of the slice sees it.
        Words::Wide => watched_by_a_daemon(&slice, run),
        Words::Usual | Words::External => run(),
    }
}

fn run_both(
    program: &Program,
    form: Form,
    [bare_rig, rig]: [&Rig; 2],
    slice: &Path,
) -> Result<u64, Difference> {
    let file = compiled("differential.c", "differential", &[]);
    let mut bare = Run::start(bare_rig, &mut bare_rig.bare(&file), program);
    let mut held = rig.held(&file, form);
    let mut limited = Run::start(rig, held.env("DIVVY_SLICE", slice), program);
    let mut before = VecDeque::new();
    for calls in 0.. {
        let lines = (bare.hear(), limited.hear());
        let is_end = |line: &Option<String>| line.as_deref().is_none_or(|line| line == "end");
        if lines.0 == lines.1 && lines.0.is_some() {
            if is_end(&lines.0) {
                return Ok(calls);
            }
            before.push_back(lines.0.unwrap_or_default());
            if before.len() > SHOWN {
                before.pop_front();
            }
            continue;
        }
        let [bare, limited] = [lines.0, lines.1].map(|line| line.unwrap_or("it ended".to_owned()));
        let step = bare.split(' ').next().and_then(|word| word.parse().ok());
        return Err(Difference {
            step: step.unwrap_or(program.steps),
            before: before.into(),
            bare,
            limited,
        });
    }
    unreachable!("a program ends")
}

impl Difference {
    /// In which call the runs part, and where that is the memory in use, which of them says more.
    fn kind(&self) -> (Option<&str>, Option<bool>) {
        let used = |line: &str| line.split(" used ").nth(1)?.parse::<i64>().ok();
        let more = used(&self.limited)
            .zip(used(&self.bare))
            .map(|(limited, bare)| limited > bare);
        (self.bare.split(' ').nth(1), more)
    }
}

/// Leaves out steps for as long as the runs still part in the same way.
fn shortened(mut program: Program, mut found: Difference, form: Form) -> (Program, Difference) {
    program.steps = found.step;
    let start = Instant::now();
    let mut size = program.steps.div_ceil(2);
    while size > 0 {
        let mut progress = false;
        let mut at = 1;
        while at <= program.steps && start.elapsed() < SHORTENING {
            let mut shorter = program.clone();
            shorter
                .skipped
                .extend(at..(at + size).min(program.steps + 1));
            at += size;
            if shorter.skipped.len() == program.skipped.len() {
                continue;
            }
            if let Err(again) = compare(&shorter, form)
                && again.kind() == found.kind()
            {
                shorter.steps = again.step;
                shorter.skipped.retain(|step| *step <= again.step);
                (program, found, progress) = (shorter, again, true);
            }
        }
        let goes_on = size > 1 || progress && start.elapsed() < SHORTENING;
        size = if goes_on { (size / 2).max(1) } else { 0 };
    }
    (program, found)
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// Tries these seeds, each with so many steps, and says how many calls were equal.
fn try_all(words: Words, seeds: Range<u64>, steps: u64, form: Form) {
    let steps = number("DIVVY_DIFFERENTIAL_STEPS").unwrap_or(steps);
    let seeds = match number("DIVVY_DIFFERENTIAL_SEED") {
        Some(seed) => seed..seed + 1,
        None => match number("DIVVY_DIFFERENTIAL_SEEDS") {
            Some(count) => seeds.start..seeds.start + count,
            None => seeds,
        },
    };
    let mut calls = 0;
    for seed in seeds.clone() {
        let program = Program {
            seed,
            steps,
            words,
            skipped: BTreeSet::new(),
        };
        match bounded(format!("the program of seed {seed} ends"), || {
            compare(&program, form)
        }) {
            Ok(more) => calls += more,
            Err(found) => fail(program, found, form),
        }
    }
    eprintln!("{form:?}, {words:?}: {calls} calls of seeds {seeds:?} were equal");
}

fn fail(program: Program, found: Difference, form: Form) -> ! {
    let Difference {
        step,
        before,
        bare,
        limited,
    } = &found;
    eprintln!(
        "{form:?}, seed {}, step {step}:\n  {}",
        program.seed,
        before.join("\n  ")
    );
    eprintln!("  without the limiter: {bare}\n  with it:             {limited}");
    eprintln!(
        "again: DIVVY_DIFFERENTIAL_SEED={} DIVVY_DIFFERENTIAL_STEPS={step}",
        program.seed
    );
    let (program, found) = shortened(program, found, form);
    let kept: Vec<u64> = (1..=program.steps)
        .filter(|step| !program.skipped.contains(step))
        .collect();
    panic!(
        "the limiter changes what a program sees; the fewest steps found, of seed {}: {kept:?}\n  {}\n  without the limiter: {}\n  \
         with it:             {}",
        program.seed,
        found.before.join("\n  "),
        found.bare,
        found.limited
    );
}

#[test]
fn a_random_program_sees_no_difference_with_the_preload() {
    try_all(Words::Usual, 0..12, 5_000, Form::Preload);
}

#[test]
fn a_random_program_sees_no_difference_with_the_wrapper() {
    try_all(Words::Usual, 12..24, 5_000, Form::Wrapper);
}

/// More than a million calls together.
mod exhaustive {
    use super::*;

    #[test]
    fn many_random_programs_see_no_difference_with_the_preload() {
        try_all(Words::Usual, 100..135, 20_000, Form::Preload);
    }

    #[test]
    fn many_random_programs_see_no_difference_with_the_wrapper() {
        try_all(Words::Usual, 135..170, 20_000, Form::Wrapper);
    }

    #[test]
    fn programs_with_multicast_objects_and_further_processes_see_no_difference() {
        for (seeds, form) in [(200..209, Form::Preload), (209..218, Form::Wrapper)] {
            try_all(Words::Wide, seeds, 10_000, form);
        }
    }

    #[test]
    fn programs_of_contexts_and_external_memory_see_no_difference() {
        for (seeds, form) in [(300..318, Form::Preload), (318..336, Form::Wrapper)] {
            try_all(Words::External, seeds, 10_000, form);
        }
    }
}
