//! A CUDA program over `cudarc`: fills memory until it is refused, holds memory while others look, races with copies of
//! itself, launches kernels.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use cudarc::driver::sys::CUresult;
use divvy_clients::device::{Block, Device, GRANULE, Route, fill};
use divvy_clients::say::say;
use divvy_clients::size;
use serde_json::{Value, json};

#[derive(Parser)]
#[command(about = "A CUDA program over cudarc: fill, hold, race, launch")]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Take memory in steps until it is refused, then say how much there was
    Fill(Fill),
    /// Take memory on every visible GPU and keep it until told to stop
    Hold(Hold),
    /// Lead copies of itself that race for memory, on commands from stdin: `go SEED`, `free`, `kill N`
    Race(Race),
    /// One of the racers
    #[command(hide = true)]
    Racer(Race),
    /// Launch a kernel a number of times and wait for it
    Launch(Launch),
}

#[derive(Args)]
struct Fill {
    #[arg(long, default_value_t = 0)]
    device: usize,
    #[arg(long, value_parser = size::parse, default_value = "64M")]
    step: u64,
    #[arg(long, value_enum, default_value_t = Route::Async)]
    route: Route,
}

#[derive(Args)]
struct Hold {
    /// On each GPU
    #[arg(long, value_parser = size::parse)]
    bytes: u64,
    #[arg(long, value_enum, default_value_t = Route::Linear)]
    route: Route,
    /// Keep it until this file exists (or its folder is gone)
    #[arg(long)]
    until_file: Option<PathBuf>,
    /// Keep it this long
    #[arg(long)]
    seconds: Option<f64>,
    /// Launch kernels meanwhile
    #[arg(long)]
    busy: bool,
    /// The program that it becomes then
    #[arg(last = true)]
    becomes: Vec<String>,
}

#[derive(Args, Clone)]
struct Race {
    /// Racers to lead
    #[arg(long, default_value_t = 8)]
    processes: usize,
    /// The racers' largest block
    #[arg(long, value_parser = size::parse, default_value = "256M")]
    step: u64,
    #[arg(long, value_enum, default_value_t = Route::Linear)]
    route: Route,
}

#[derive(Args)]
struct Launch {
    #[arg(long, default_value_t = 1)]
    times: u64,
    /// Entry point; what it does is nothing
    #[arg(long, default_value = "nothing")]
    name: String,
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Verb::Fill(args) => fill_one(&args),
        Verb::Hold(args) => hold(&args),
        Verb::Race(args) => lead(&args),
        Verb::Racer(args) => race(&args),
        Verb::Launch(args) => launch(&args),
    }
}

fn fill_one(args: &Fill) -> Result<ExitCode> {
    let device = Device::open(args.device)?;
    let before = device.facts()?;
    let filled = fill(&device, args.route, args.step, u64::MAX);
    let free_after = device.free_bytes()?;
    let blocks = filled.blocks.len();
    let report = json!({
        "route": format!("{:?}", args.route).to_lowercase(),
        "before": before,
        "got_bytes": filled.bytes,
        "first_refused_at_bytes": filled.first_refused_at,
        "granule_bytes": GRANULE,
        "blocks": blocks,
        "error": filled.refusal.as_ref().map(|error| format!("{:?}", error.0)),
        "free_after_bytes": free_after,
    });
    for block in filled.blocks {
        device.give_back(block)?;
    }
    say(&report)?;
    Ok(ExitCode::SUCCESS)
}

fn hold(args: &Hold) -> Result<ExitCode> {
    let devices = (0..Device::count()?)
        .map(Device::open)
        .collect::<Result<Vec<_>, _>>()?;
    ensure!(!devices.is_empty(), "no GPU is visible");
    let mut refused = false;
    for device in &devices {
        let filled = fill(device, args.route, 256 << 20, args.bytes);
        let facts = device.facts()?;
        say(&json!({
            "pid": std::process::id(),
            "device": facts,
            "asked_bytes": args.bytes,
            "held_bytes": filled.bytes,
            "error": filled.refusal.as_ref().filter(|_| filled.bytes < args.bytes).map(|error| format!("{:?}", error.0)),
        }))?;
        if filled.bytes < args.bytes {
            refused = true;
            eprintln!(
                "{} at {} MiB of {} MiB asked",
                filled
                    .refusal
                    .as_ref()
                    .map_or_else(String::new, |error| format!("{:?}", error.0)),
                filled.bytes >> 20,
                args.bytes >> 20
            );
        }
        std::mem::forget(filled.blocks); // kept until the process ends
    }
    let kernels = if args.busy {
        devices
            .iter()
            .map(|device| device.kernel(&ptx("nothing"), "nothing"))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        Vec::new()
    };
    let started = Instant::now();
    while !released(args, started) {
        for (device, kernel) in devices.iter().zip(&kernels) {
            device.launch(*kernel)?;
            device.synchronize()?;
        }
        thread::sleep(Duration::from_millis(10));
    }
    if let [program, words @ ..] = args.becomes.as_slice() {
        return Err(Command::new(program).args(words).exec().into());
    }
    Ok(ExitCode::from(u8::from(refused)))
}

/// True when a holder may go: its file is there, its time is up, or whoever would make the file took the folder away.
fn released(args: &Hold, started: Instant) -> bool {
    let by_file = args
        .until_file
        .as_ref()
        .is_some_and(|file| file.exists() || file.parent().is_some_and(|folder| !folder.exists()));
    let by_time = args
        .seconds
        .is_some_and(|seconds| started.elapsed().as_secs_f64() >= seconds);
    by_file || by_time || (args.until_file.is_none() && args.seconds.is_none())
}

/// A kernel that returns at once; the text is what any driver since CUDA 11 takes.
fn ptx(name: &str) -> String {
    format!(
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry {name}()\n{{\n\tret;\n}}\n"
    )
}

fn launch(args: &Launch) -> Result<ExitCode> {
    let device = Device::open(0)?;
    let kernel = device.kernel(&ptx(&args.name), &args.name)?;
    let started = Instant::now();
    for _ in 0..args.times {
        device.launch(kernel)?;
    }
    device.synchronize()?;
    say(&json!({"launched": args.times, "seconds": started.elapsed().as_secs_f64()}))?;
    Ok(ExitCode::SUCCESS)
}

/// A racer as its leader sees it.
struct Racer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Racer {
    fn start(args: &Race) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([
                "racer",
                "--step",
                &args.step.to_string(),
                "--route",
                &format!("{:?}", args.route).to_lowercase(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a racer")?;
        let stdin = child.stdin.take().context("a racer's stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("a racer's stdout")?);
        let mut racer = Self {
            child,
            stdin,
            stdout,
        };
        ensure!(
            racer
                .answer()?
                .is_some_and(|answer| answer["ready"] == true),
            "a racer did not come up"
        );
        Ok(racer)
    }

    fn command(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdin, "{line}")
    }

    /// Its next line, or nothing when it is gone.
    fn answer(&mut self) -> Result<Option<Value>> {
        let mut line = String::new();
        match self.stdout.read_line(&mut line)? {
            0 => Ok(None),
            _ => Ok(Some(
                serde_json::from_str(&line).with_context(|| format!("a racer said {line:?}"))?,
            )),
        }
    }
}

/// Reads commands from stdin and answers each with one line that carries every racer's answer (null for a dead one).
/// A racer that was killed is replaced once the others have given everything back.
fn lead(args: &Race) -> Result<ExitCode> {
    let mut racers = (0..args.processes)
        .map(|_| Racer::start(args))
        .collect::<Result<Vec<_>>>()?;
    let pids = |racers: &[Racer]| {
        racers
            .iter()
            .map(|racer| racer.child.id())
            .collect::<Vec<_>>()
    };
    say(&json!({"ready": true, "pids": pids(&racers)}))?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["go", seed] => {
                for (place, racer) in racers.iter_mut().enumerate() {
                    racer.command(&format!("go {seed}{place}"))?;
                }
            }
            ["go", seed, "kill", victim, "after_us", delay] => {
                for (place, racer) in racers.iter_mut().enumerate() {
                    racer.command(&format!("go {seed}{place}"))?;
                }
                thread::sleep(Duration::from_micros(delay.parse()?));
                racers[victim.parse::<usize>()?].child.kill()?;
            }
            ["free"] => {
                for racer in &mut racers {
                    let _ = racer.command("free"); // a dead one's pipe is broken; its silence tells
                }
            }
            _ => bail!("no such command: {line}"),
        }
        let mut answers = Vec::new();
        for racer in &mut racers {
            answers.push(racer.answer()?);
        }
        if words == ["free"] {
            for (racer, answer) in racers.iter_mut().zip(&answers) {
                if answer.is_none() {
                    racer.child.wait()?;
                    *racer = Racer::start(args)?;
                }
            }
        }
        say(&json!({"answers": answers, "pids": pids(&racers)}))?;
    }
    for mut racer in racers {
        drop(racer.stdin);
        racer.child.wait()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// On `go SEED`: churns a few blocks of random size, then takes all it can get; on `free`: gives everything back.
fn race(args: &Race) -> Result<ExitCode> {
    let device = open_patiently()?;
    say(&json!({"ready": true}))?;
    let mut held: Vec<Block> = Vec::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["go", seed] => {
                let mut random =
                    Random(seed.parse::<u64>()?.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                for _ in 0..random.below(4) {
                    if let Ok(block) = device.take(args.route, 1 + random.below(args.step)) {
                        device.give_back(block)?;
                    }
                }
                let step =
                    GRANULE << random.below(u64::from((args.step / GRANULE).max(1).ilog2()) + 1);
                let filled = fill(&device, args.route, step, u64::MAX);
                say(&json!({
                    "got_bytes": filled.bytes,
                    "out_of_memory": filled.out_of_memory(),
                    "error": filled.refusal.as_ref().map(|error| format!("{:?}", error.0)),
                }))?;
                held.extend(filled.blocks);
            }
            ["free"] => {
                for block in held.drain(..) {
                    device.give_back(block)?;
                }
                say(&json!({"freed": true}))?;
            }
            _ => bail!("no such command: {line}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens GPU 0, asking again while there is no room: the memory of one who was killed comes back a little later.
fn open_patiently() -> Result<Device> {
    let started = Instant::now();
    loop {
        match Device::open(0) {
            Err(error)
                if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
                    && started.elapsed().as_secs() < 30 =>
            {
                thread::sleep(Duration::from_millis(2));
            }
            answer => return Ok(answer?),
        }
    }
}

/// xorshift64: the same seed races the same race.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}
