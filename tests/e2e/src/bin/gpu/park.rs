//! Parking: rates of the copies, what is pinned, the first call after a wake, many cycles, and two jobs with memory for one.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Item;
use crate::ground::{Ground, Trouble, complaint};

const HOLD: &str = include_str!("../../../clients/gpu/park_hold.py");

/// Calls by which programs come back to a GPU (docs/simulator.md: some may crash as the first one after a checkpoint).
const FIRST: [&str; 4] = ["item", "query", "module", "synchronise"];

/// Looks for an answer of a program; a wake takes longer.
const LOOK: Duration = Duration::from_millis(5);

pub fn items() -> Vec<Item> {
    let rates = |gib: u64| {
        let what = "seconds of park and wake, what is pinned meanwhile, and whether all came back";
        Item::new(format!("park.rates.{gib}"), what, 90, move |ground| {
            rates(ground, gib)
        })
    };
    vec![
        Item::new(
            "park.selftest",
            "the driver passes the test of parking",
            60,
            selftest,
        ),
        rates(4),
        rates(60),
        Item::new(
            "park.first_call",
            "the first call after a wake answers as ever",
            60,
            first_call,
        ),
        Item::new(
            "park.cycles",
            "50 cycles, and a checksum of all memory after each",
            200,
            cycles,
        ),
        Item::new(
            "park.turns",
            "two jobs of 60 GiB take turns on one GPU",
            120,
            turns,
        ),
    ]
}

/// A job that keeps memory, and does what it is asked for.
struct Holder<'a> {
    ground: &'a Ground,
    name: String,
    folder: PathBuf,
    asked: Cell<u32>,
}

impl<'a> Holder<'a> {
    /// `gib` on hardware; the simulated driver's memory is the host's, so there it is MiB times 32.
    fn start(ground: &'a Ground, name: &str, gib: u64) -> Result<Self, Trouble> {
        let folder = ground.home.scratch().join(format!("park-{name}"));
        fs::create_dir_all(&folder)?;
        let script = folder.join("park_hold.py");
        fs::write(&script, HOLD)?;
        let mib = gib * if ground.simulated { 32 } else { 1024 };
        // Beside the memory: a context, with room for modules.
        let memory = format!(
            "{}M",
            if ground.simulated {
                60 << 10
            } else {
                mib + 2048
            }
        );
        let mib = mib.to_string();
        let own = [&ground.python, &script, &folder].map(|path| path.display().to_string());
        let submit = [
            "submit",
            "--name",
            name,
            "--gpu-memory",
            &memory,
            "--park-after",
            "1s",
            "--",
        ];
        let mut words = submit.to_vec();
        words.extend(own.iter().map(String::as_str));
        words.push(&mib);
        let holder = Self {
            ground,
            name: name.to_owned(),
            folder,
            asked: Cell::new(0),
        };
        holder.divvy(&words)?;
        holder.until("ready", || {
            holder.folder.join("ready").exists().then_some(())
        })?;
        Ok(holder)
    }

    fn divvy(&self, words: &[&str]) -> Result<f64, Trouble> {
        let began = Instant::now();
        let mut command = self.ground.home.divvy_command(words);
        let output = self.ground.run(&mut command, Duration::from_secs(120))?;
        match output.status.success() {
            true => Ok(began.elapsed().as_secs_f64()),
            false => Err(Trouble::failed(complaint(&output))),
        }
    }

    fn until<T>(&self, what: &str, look: impl Fn() -> Option<T>) -> Result<T, Trouble> {
        let end = Instant::now() + self.ground.left().min(Duration::from_secs(120));
        loop {
            match look() {
                Some(found) => return Ok(found),
                None if Instant::now() > end => {
                    return Err(Trouble::failed(format!(
                        "{}: not {what} in time",
                        self.name
                    )));
                }
                None => thread::sleep(LOOK),
            }
        }
    }

    /// Has the program make a call. Its answer; an error where its memory is not what it was.
    fn ask(&self, word: &str) -> Result<Value, Trouble> {
        let number = self.asked.replace(self.asked.get() + 1);
        fs::write(self.folder.join(format!("ask-{number}")), word)?;
        let answer = self.folder.join(format!("answer-{number}"));
        let text = self.until(word, || fs::read_to_string(&answer).ok())?;
        let said: Value = serde_json::from_str(&text).map_err(Trouble::failed)?;
        match said["whole"] == true {
            true => Ok(said),
            false => Err(Trouble::failed(format!(
                "its memory is not what it was: {said}"
            ))),
        }
    }

    /// The command returns when the memory is in host memory.
    fn park(&self) -> Result<f64, Trouble> {
        self.divvy(&["park", &self.name])
    }
}

impl Drop for Holder<'_> {
    fn drop(&mut self) {
        let _ = self.divvy(&["cancel", &self.name]);
        let _ = self.divvy(&["wait", &self.name]);
    }
}

fn selftest(ground: &Ground) -> Result<Value, Trouble> {
    let mut command = ground
        .home
        .divvy_command(&["selftest", "--park", "--all", "-o", "json"]);
    ground.json(&mut command, Duration::from_secs(60))
}

fn rates(ground: &Ground, gib: u64) -> Result<Value, Trouble> {
    let holder = Holder::start(ground, &format!("rates-{gib}"), gib)?;
    let park_s = holder.park()?;
    let woken = holder.ask("item")?;
    holder.ask("check")?;
    let wake_s = woken["seconds"].as_f64().unwrap_or_default();
    let rate = |seconds: f64| (!ground.simulated).then_some(gib as f64 * 1.073_741_824 / seconds);
    Ok(json!({
        "gib": gib, "park_s": park_s, "wake_s": wake_s, "first": woken,
        // The simulated driver copies nothing.
        "out_gb_s": rate(park_s), "back_gb_s": rate(wake_s),
    }))
}

fn first_call(ground: &Ground) -> Result<Value, Trouble> {
    let holder = Holder::start(ground, "first", 4)?;
    let mut said = Vec::new();
    for word in FIRST {
        holder.park()?;
        said.push(holder.ask(word)?);
        holder.ask("check")?;
    }
    Ok(Value::Array(said))
}

fn cycles(ground: &Ground) -> Result<Value, Trouble> {
    let holder = Holder::start(ground, "cycles", 4)?;
    let count = if ground.quick { 3 } else { 50 };
    let mut wakes = Vec::new();
    for _ in 0..count {
        holder.park()?;
        wakes.push(holder.ask("item")?["seconds"].as_f64().unwrap_or_default());
        holder.ask("check")?;
    }
    wakes.sort_by(f64::total_cmp);
    Ok(json!({"cycles": count, "wake_median_s": wakes[count / 2], "wake_worst_s": wakes.last()}))
}

/// The one that works is parked by hand, so that the other need not wait until it is idle for long enough.
fn turns(ground: &Ground) -> Result<Value, Trouble> {
    let first = Holder::start(ground, "turn-a", 60)?;
    let second = Holder::start(ground, "turn-b", 60)?;
    let mut seconds = Vec::new();
    for turn in 0..if ground.quick { 2 } else { 6 } {
        let (parks, works) = match turn % 2 {
            0 => (&second, &first),
            _ => (&first, &second),
        };
        parks.park()?;
        seconds.push(works.ask("item")?["seconds"].clone());
        works.ask("check")?;
    }
    Ok(json!({"turns_s": seconds}))
}
