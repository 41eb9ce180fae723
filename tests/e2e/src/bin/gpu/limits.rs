//! What is promised: limits hold for third-party programs, many at once, and the views show the slice.

use std::process::Command;
use std::time::{Duration, Instant};

use divvy_e2e::{Dialog, GIB, MIB};
use serde_json::{Value, json};

use crate::Item;
use crate::ground::{Ground, Trouble, complaint};

/// The slice that single programs get: room for a context and some GiB, on every data-centre GPU.
pub const SLICE: u64 = 6 * GIB;

const RACERS: u64 = 8;

/// What a new user tries first.
pub fn before_a_daemon() -> Vec<Item> {
    vec![
        Item::new("doctor", "what `divvy doctor` finds", 60, |ground| {
            let mut doctor = ground.home.divvy_command(&["doctor", "-o", "json"]);
            verdict(ground, &mut doctor, 60)
        }),
        Item::new(
            "selftest.preload",
            "every way of taking memory, with the limiter as a preload",
            120,
            |ground| selftest(ground, "preload"),
        ),
        Item::new(
            "selftest.wrapper",
            "the same with the limiter in front of the driver's files, which takes root",
            120,
            |ground| {
                if !rustix::process::geteuid().is_root() {
                    return Err(Trouble::NotAvailable("not root".to_owned()));
                }
                selftest(ground, "wrapper")
            },
        ),
    ]
}

/// Everything else about limits.
pub fn items() -> Vec<Item> {
    let mut items = vec![Item::new(
        "selftest.daemon",
        "every way of taking memory, in a slice of a daemon",
        120,
        |ground| verdict(ground, &mut ground.home.divvy_command(&SELFTEST), 120),
    )];
    for route in ["linear", "async", "managed", "vmm"] {
        items.push(Item::new(
            format!("fill.{route}"),
            "cudarc takes memory until it is refused: not beyond the limit, and all of it",
            60,
            move |ground| fill(ground, route),
        ));
    }
    items.push(Item::new(
        "race",
        "eight processes of one slice race to its limit; NVML looks on from outside",
        90,
        race,
    ));
    items.push(Item::new(
        "energy",
        "what the energy counter of the first GPU shows, beside the integral of its power",
        30,
        energy,
    ));
    items.push(Item::new(
        "nvidia_smi",
        "what nvidia-smi shows inside a slice that holds memory",
        60,
        nvidia_smi,
    ));
    items
}

const SELFTEST: [&str; 3] = ["selftest", "-o", "json"];

/// Without a daemon, in one form of the limiter.
fn selftest(ground: &Ground, form: &str) -> Result<Value, Trouble> {
    let mut command = ground.home.divvy_command(&SELFTEST);
    verdict(ground, command.env("DIVVY_FORM", form), 120)
}

/// The items of a command's JSON; with an exit code other than 0 they are the failure.
fn verdict(ground: &Ground, command: &mut Command, patience: u64) -> Result<Value, Trouble> {
    let output = ground.run(command, Duration::from_secs(patience))?;
    let said: Value =
        serde_json::from_slice(&output.stdout).map_err(|_| Trouble::failed(complaint(&output)))?;
    if output.status.success() {
        return Ok(said["items"].clone());
    }
    Err(Trouble::failed(format!(
        "{}; {}",
        complaint(&output),
        said["items"]
    )))
}

fn fill(ground: &Ground, route: &str) -> Result<Value, Trouble> {
    let probe = ground.home.program("cudarc_probe");
    let mut command = ground.in_slice(SLICE, &[&probe, "fill", "--route", route]);
    let filled = ground.json(&mut command, Duration::from_secs(60))?;
    held(filled, SLICE)
}

/// Adds what part of the limit was had, with what the context took; more than all of it is a failure.
pub fn held(mut filled: Value, limit: u64) -> Result<Value, Trouble> {
    let got = filled["got_bytes"].as_u64().unwrap_or(0);
    let context = limit.saturating_sub(filled["before"]["free_bytes"].as_u64().unwrap_or(limit));
    filled["limit_bytes"] = limit.into();
    filled["context_bytes"] = context.into();
    filled["usable_part"] = ((got + context) as f64 / limit as f64).into();
    if got > limit {
        return Err(Trouble::failed(format!("beyond the limit: {filled}")));
    }
    if got == 0 {
        return Err(Trouble::failed(format!("nothing was had: {filled}")));
    }
    Ok(filled)
}

/// Rounds until the time is over; in each, what all took together and what NVML saw at most.
fn race(ground: &Ground) -> Result<Value, Trouble> {
    let context = context_bytes(ground)?;
    let limit = (RACERS * context + 2 * GIB).next_multiple_of(2 * MIB);
    let mut nvml = Dialog::start(
        ground
            .outside(&[ground.home.program("nvml_probe")])
            .arg("watch"),
    );
    let used = |said: &Value| said["gpus"][0]["used_bytes"].as_u64().unwrap_or(0);
    let idle = used(&nvml.ask("look"));
    let (probe, racers) = (ground.home.program("cudarc_probe"), RACERS.to_string());
    let words = [
        probe.as_str(),
        "race",
        "--processes",
        &racers,
        "--step",
        "64M",
    ];
    let mut all = Dialog::start(&mut ground.in_slice(limit, &words));
    if all.listen()["ready"] != true {
        return Err(Trouble::failed("the racers did not come up"));
    }
    let (most, longest) = if ground.quick { (20, 10) } else { (1000, 60) };
    let start = Instant::now();
    let (mut rounds, mut got_most, mut seen_most, mut over) = (0, 0, 0, 0);
    while rounds < most && start.elapsed() < Duration::from_secs(longest) {
        let answer = all.ask(&format!("go {rounds}"));
        let said = nvml.ask("look");
        let peak = said["peak_used_bytes"][0]
            .as_u64()
            .unwrap_or(0)
            .saturating_sub(idle);
        let answers = answer["answers"].as_array().cloned().unwrap_or_default();
        let got: u64 = answers
            .iter()
            .filter_map(|one| one["got_bytes"].as_u64())
            .sum();
        (got_most, seen_most) = (got.max(got_most), peak.max(seen_most));
        over += u64::from(got > limit);
        all.ask("free");
        rounds += 1;
    }
    let value = json!({
        "processes": RACERS,
        "limit_bytes": limit,
        "context_bytes": context,
        "rounds": rounds,
        "most_taken_bytes": got_most,
        "most_seen_by_nvml_bytes": seen_most,
        "rounds_over_the_limit": over,
        "seconds": start.elapsed().as_secs_f64(),
    });
    match over {
        0 => Ok(value),
        _ => Err(Trouble::failed(format!("beyond the limit: {value}"))),
    }
}

/// How far counter and integral may differ. Newer GPUs average the power over a second, so that a change of the load at
/// either end of the measurement counts in one of them alone.
const ENERGY_TOLERANCE: f64 = 0.2;

/// Ten readings a second, at whatever load there is.
fn energy(ground: &Ground) -> Result<Value, Trouble> {
    let mut nvml = Dialog::start(
        ground
            .outside(&[ground.home.program("nvml_probe")])
            .arg("watch"),
    );
    let start = Instant::now();
    let mut look = || {
        let gpu = nvml.ask("look")["gpus"][0].clone();
        let figure = |name: &str| gpu[name].as_f64();
        let both = figure("power_milliwatts").zip(figure("energy_millijoules"));
        both.map(|(power, energy)| (start.elapsed().as_secs_f64(), power, energy))
    };
    let missing = || Trouble::NotAvailable("the driver shows no power or no energy".to_owned());
    let first = look().ok_or_else(missing)?;
    let seconds = if ground.quick { 2.0 } else { 10.0 };
    let (mut last, mut integral, mut readings) = (first, 0.0, 1);
    while last.0 - first.0 < seconds {
        std::thread::sleep(Duration::from_millis(100));
        let next = look().ok_or_else(missing)?;
        integral += (next.0 - last.0) * (next.1 + last.1) / 2.0;
        (last, readings) = (next, readings + 1);
    }
    let counter = last.2 - first.2;
    let value = json!({
        "seconds": last.0 - first.0,
        "readings": readings,
        "counter_joules": counter / 1000.0,
        "integral_joules": integral / 1000.0,
    });
    match (counter - integral).abs() <= ENERGY_TOLERANCE * integral {
        true => Ok(value),
        false => Err(Trouble::failed(format!("they differ: {value}"))),
    }
}

fn context_bytes(ground: &Ground) -> Result<u64, Trouble> {
    let mut command = ground.home.divvy_command(&["gpus", "-o", "json"]);
    let gpus = ground.json(&mut command, Duration::from_secs(20))?;
    let bytes = gpus["items"][0]["context_overhead_bytes"].as_u64();
    bytes.ok_or_else(|| Trouble::failed("the daemon does not say what a context costs"))
}

/// nvidia-smi beside a process of the same slice that holds 1 GiB.
fn nvidia_smi(ground: &Ground) -> Result<Value, Trouble> {
    let has = ground.run(
        Command::new("nvidia-smi").arg("-L"),
        Duration::from_secs(20),
    );
    if has.is_err() {
        return Err(Trouble::NotAvailable(
            "nvidia-smi is not installed".to_owned(),
        ));
    }
    let (probe, gate) = (ground.home.program("cudarc_probe"), ground.home.gate("smi"));
    let script = format!(
        "{probe} hold --bytes 1073741824 --until-file {gate} | {{ read held; \
         nvidia-smi --query-gpu=memory.total,memory.used --format=csv,noheader,nounits; \
         nvidia-smi --query-compute-apps=pid,used_memory --format=csv,noheader,nounits; \
         nvidia-smi; : > {gate}; }}"
    );
    let mut command = ground.in_slice(SLICE, &["sh", "-c", &script]);
    let output = ground.run(&mut command, Duration::from_secs(60))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let total: Option<u64> = text
        .lines()
        .next()
        .and_then(|line| line.split(',').next()?.trim().parse().ok());
    if total == Some(SLICE / MIB) {
        Ok(json!({"limit_mib": SLICE / MIB, "said": text}))
    } else {
        Err(Trouble::failed(format!(
            "the total is {total:?} and not {} MiB: {text}",
            SLICE / MIB
        )))
    }
}
