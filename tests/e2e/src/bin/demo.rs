//! The example workflow, live: three GPUs, four queues, one job each that really allocates through CUDA.
//!
//! ```text
//! GPU 0  dual_gpus ──────────────────────────────────────────────► ends last
//! GPU 1  dual_gpus ──────────────────────────────────────────────►
//! GPU 2  quarter_gpu (hits its limit) ──► ends
//!        half_gpu ─────────────────────────────► ends   single_gpu starts ──►
//! ```
//! Everything shown is also checked, on the commands' JSON; the exit code is 0 only if all of it was observed.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a demonstration talks on stdout")]

use std::io::{IsTerminal, stdout};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use divvy_e2e::{GIB, Home, MIB, Programs, until};
use serde_json::Value;

const QUEUES: [&str; 4] = [
    "dual_gpus=2",
    "quarter_gpu=0.25",
    "half_gpu=0.5",
    "single_gpu=1",
];

fn main() -> ExitCode {
    let started = Instant::now();
    match demonstrate() {
        Ok(facts) => {
            println!(
                "\nAll {facts} facts observed in {:.1} s.",
                started.elapsed().as_secs_f64()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn demonstrate() -> Result<u32> {
    let own = std::env::current_exe()?;
    let programs = Programs::at(
        own.parent()
            .context("a program lies in a folder")?
            .to_owned(),
    );
    let sim = (real_gpus(&programs) < 3).then_some("a100-80gb:3");
    match sim {
        Some(sim) => println!(
            "Fewer than three GPUs here, so three are simulated ({sim}); the CUDA programs do not know."
        ),
        None => println!("Using the first three GPUs of this machine."),
    }
    let home = Home::with(programs, sim);
    let mut show = Show {
        home: &home,
        facts: 0,
    };
    show.play()
        .inspect_err(|_| eprintln!("\n── the daemon's last words\n{}", home.daemon_said()))?;
    Ok(show.facts)
}

/// How many GPUs the machine's own NVML shows; none when there is no NVML.
fn real_gpus(programs: &Programs) -> usize {
    let Ok(output) = Command::new(programs.path("nvml_probe"))
        .arg("show")
        .output()
    else {
        return 0;
    };
    let seen: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    seen["gpus"].as_array().map_or(0, Vec::len)
}

struct Show<'a> {
    home: &'a Home,
    facts: u32,
}

impl Show<'_> {
    fn play(&mut self) -> Result<()> {
        let daemon = self.start_daemon();
        let usable = self.gpus()[2]["memory_usable_bytes"]
            .as_u64()
            .context("a GPU has memory")?;

        title("One job for each queue");
        let dual = self.submit("dual_gpus", 2 * GIB);
        let quarter = self.submit("quarter_gpu", usable / 4 + GIB);
        let half = self.submit("half_gpu", usable / 4);
        let single = self.submit("single_gpu", usable / 2);

        for job in [&dual, &quarter, &half] {
            self.home.running(job);
            let _ = self.home.first_words(job);
        }
        self.all_in_use(&dual, &quarter, &half, &single)?;
        self.limit_held(&quarter, &half)?;
        self.waits(&single)?;

        title("The quarter ends: half of GPU 2 is free, and that is no whole GPU");
        self.end("quarter_gpu", &quarter, 1)?;
        until("the quarter is free", || {
            (self.in_use() == 2500).then_some(())
        });
        self.fact(
            self.job(&single)?["state"] == "queued",
            "single_gpu still waits",
        )?;
        self.show(&["why", &single]);

        title("The half ends: GPU 2 is free");
        self.end("half_gpu", &half, 0)?;
        self.home.running(&single);
        let _ = self.home.first_words(&single);
        self.show(&["ps"]);
        self.fact(
            labels(&self.job(&single)?) == ["gpu2"],
            "single_gpu started on GPU 2",
        )?;
        self.fact(
            self.job(&dual)?["state"] == "running",
            "dual_gpus runs on beside it",
        )?;

        title("The rest ends");
        self.end("single_gpu", &single, 0)?;
        self.end("dual_gpus", &dual, 0)?;
        self.show(&["ps", "--all"]);
        let left = self
            .gpus()
            .iter()
            .filter(|gpu| {
                gpu["memory_allocated_bytes"] != 0 || gpu["slices"] != serde_json::json!([])
            })
            .count();
        self.fact(left == 0, "no slice is left on any GPU")?;
        self.fact(daemon.stop() == 0, "the daemon stopped when asked")
    }

    fn start_daemon(&self) -> divvy_e2e::Daemon {
        let words = [&["--dynamic-gpus", "--gpus", "0-2", "--queue"], &QUEUES[..]].concat();
        title(&format!("$ divvy daemon {}", words.join(" ")));
        let daemon = self.home.daemon(&words);
        self.show(&["gpus"]);
        self.show(&["queues"]);
        daemon
    }

    /// 2.75 of three GPUs, where the example says.
    fn all_in_use(&mut self, dual: &str, quarter: &str, half: &str, single: &str) -> Result<()> {
        title("What runs where");
        self.show(&["gpus"]);
        self.show(&["ps"]);
        self.fact(self.in_use() == 2750, "2.75 of 3 GPUs are in use")?;
        self.fact(
            labels(&self.job(dual)?) == ["gpu0", "gpu1"],
            "dual_gpus has GPUs 0 and 1, whole",
        )?;
        self.fact(
            labels(&self.job(quarter)?) == ["gpu2.25a"],
            "quarter_gpu has a quarter of GPU 2",
        )?;
        self.fact(
            labels(&self.job(half)?) == ["gpu2.5a"],
            "half_gpu has half of GPU 2",
        )?;
        self.fact(self.job(single)?["state"] == "queued", "single_gpu waits")?;
        for job in [dual, half] {
            let words = self.home.first_words(job);
            let held = words["error"].is_null() && words["held_bytes"] == words["asked_bytes"];
            self.fact(
                held,
                &format!(
                    "job {job} took its {} MiB through CUDA",
                    mebibytes(&words["held_bytes"])
                ),
            )?;
        }
        Ok(())
    }

    /// The quarter asked for more than its slice.
    fn limit_held(&mut self, quarter: &str, half: &str) -> Result<()> {
        title("A job at its limit");
        let log = until("the job tells of its limit", || {
            let log = self.home.log(quarter);
            log.contains("MiB asked").then_some(log)
        });
        println!("$ divvy logs {quarter}\n{}", log.trim_end());
        let words = self.home.first_words(quarter);
        let slice = self.job(quarter)?["slices"][0].clone();
        let limit = slice["memory_limit_bytes"]
            .as_u64()
            .context("a slice has a limit")?;
        let held = words["held_bytes"]
            .as_u64()
            .context("the probe says what it holds")?;
        let text = format!(
            "quarter_gpu asked for {} MiB, got {} MiB of its {} MiB, then CUDA_ERROR_OUT_OF_MEMORY",
            mebibytes(&words["asked_bytes"]),
            held / MIB,
            limit / MIB
        );
        let refused = words["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
            && held <= limit
            && slice["denials"].as_u64() > Some(0);
        self.fact(refused, &text)?;
        self.fact(
            words["device"]["total_bytes"] == limit,
            "to its program the GPU ends at the slice's limit",
        )?;
        self.fact(
            self.job(half)?["state"] == "running",
            "half_gpu, on the same GPU, runs on",
        )
    }

    /// Why the whole GPU has to wait.
    fn waits(&mut self, single: &str) -> Result<()> {
        title("Why does single_gpu wait?");
        self.show(&["why", single]);
        let why = self
            .home
            .items(&["why", single])
            .into_iter()
            .next()
            .context("why answers one item")?;
        let gpus = why["gpus"].as_array().context("why names the GPUs")?;
        let explained = |gpu: &Value| {
            gpu["unmet"] != serde_json::json!([]) && gpu["holders"] != serde_json::json!([])
        };
        self.fact(
            gpus.len() == 3 && gpus.iter().all(explained),
            "`divvy why` names what is missing and who holds it on each GPU",
        )
    }

    fn submit(&self, queue: &str, bytes: u64) -> String {
        let job = self.home.submit_holder(&["-q", queue], bytes, queue);
        println!(
            "$ divvy submit -q {queue} -- cudarc_probe hold --bytes {}M …   → job {job}",
            bytes / MIB
        );
        job
    }

    fn end(&mut self, queue: &str, job: &str, code: i32) -> Result<()> {
        self.home.open(queue);
        let ended = self.home.ended(job);
        self.fact(
            ended.exit_code == Some(code),
            &format!("{queue} ended with its own exit code, {code}"),
        )
    }

    /// Runs a read verb and shows what it prints.
    fn show(&self, words: &[&str]) {
        let said = self.home.divvy(words).ok();
        println!("$ divvy {}\n{}", words.join(" "), said.stdout.trim_end());
        if stdout().is_terminal() {
            thread::sleep(Duration::from_millis(1200)); // long enough to read it
        }
    }

    fn gpus(&self) -> Vec<Value> {
        self.home.items(&["gpus"])
    }

    /// Thousandths of a GPU that slices hold, over all GPUs.
    fn in_use(&self) -> u64 {
        self.gpus()
            .iter()
            .filter_map(|gpu| gpu["share_allocated"].as_u64())
            .sum()
    }

    fn job(&self, id: &str) -> Result<Value> {
        self.home
            .items(&["describe", id])
            .into_iter()
            .next()
            .context("describe answers one item")
    }

    fn fact(&mut self, observed: bool, text: &str) -> Result<()> {
        ensure!(observed, "not observed: {text}");
        println!("  ✓ {text}");
        self.facts += 1;
        Ok(())
    }
}

fn labels(job: &Value) -> Vec<&str> {
    job["slices"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|slice| slice["label"].as_str())
        .collect()
}

fn mebibytes(bytes: &Value) -> u64 {
    bytes.as_u64().unwrap_or(0) / MIB
}

fn title(text: &str) {
    println!("\n── {text}");
}
