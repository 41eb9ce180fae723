//! The programs of docs/programs.md, where they are installed: each runs in a slice for a moment, and its own words about the
//! GPU's memory have to be the limit. PyTorch, JAX and CuPy are in `clients`.

use std::fs;
use std::time::Duration;

use divvy_e2e::MIB;
use serde_json::{Value, json};

use crate::Item;
use crate::ground::{Ground, Trouble, complaint};
use crate::limits::{SLICE, held};

const PATIENCE: u64 = 240;

/// A script, the module it needs and its words.
struct Script {
    name: &'static str,
    module: &'static str,
    text: &'static str,
    words: &'static [&'static str],
}

const SERVE: &str = include_str!("../../../clients/gpu/serve_dummy.py");

const SCRIPTS: [Script; 4] = [
    Script {
        name: "tensorflow",
        module: "tensorflow",
        text: include_str!("../../../clients/gpu/tensorflow_fill.py"),
        words: &[],
    },
    Script {
        name: "rmm",
        module: "rmm",
        text: include_str!("../../../clients/gpu/rmm_fill.py"),
        words: &[],
    },
    Script {
        name: "vllm",
        module: "vllm",
        text: SERVE,
        words: &["vllm"],
    },
    Script {
        name: "sglang",
        module: "sglang",
        text: SERVE,
        words: &["sglang"],
    },
];

/// A program, the words of a short run, and where its output has the memory of the GPU in MiB; without one, it has to end
/// well.
struct Binary {
    name: &'static str,
    program: &'static str,
    words: &'static [&'static str],
    total: Option<fn(&str) -> Option<u64>>,
}

const BINARIES: [Binary; 4] = [
    Binary {
        name: "llama-cli",
        program: "llama-cli",
        words: &["--list-devices"],
        total: Some(llama_total),
    },
    Binary {
        name: "ollama",
        program: "sh",
        // It serves until it is stopped, on a port that it is given.
        words: &[
            "-c",
            "OLLAMA_HOST=127.0.0.1:0 timeout --signal=INT 20 ollama serve 2>&1 || true",
        ],
        total: Some(ollama_total),
    },
    Binary {
        name: "tritonserver",
        program: "sh",
        // A pool within the limit is made, and the server looks at an empty folder of models until it is stopped.
        words: &[
            "-c",
            "timeout --signal=INT 30 tritonserver --model-repository=$(mktemp -d) --allow-http=false \
             --allow-grpc=false --allow-metrics=false --cuda-memory-pool-byte-size=0:1073741824 2>&1 \
             | grep 'CUDA memory pool is created'",
        ],
        total: None,
    },
    Binary {
        name: "nccl-tests",
        program: "all_reduce_perf",
        words: &["-b", "8", "-e", "64M", "-f", "2", "-g", "1"],
        total: None,
    },
];

/// The programs that have to be on the PATH, where the run goes through a shell.
fn needs(binary: &Binary) -> &'static str {
    match binary.program {
        "sh" => binary.name,
        program => program,
    }
}

pub fn items() -> Vec<Item> {
    let mut items = Vec::new();
    for script in &SCRIPTS {
        items.push(Item::new(
            format!("program.{}", script.name),
            format!("{} in a slice, for a moment", script.name),
            PATIENCE,
            move |ground| run_script(ground, script),
        ));
    }
    for binary in &BINARIES {
        items.push(Item::new(
            format!("program.{}", binary.name),
            format!("{} in a slice, for a moment", binary.name),
            60,
            move |ground| run_binary(ground, binary),
        ));
    }
    items
}

fn run_script(ground: &Ground, script: &Script) -> Result<Value, Trouble> {
    let python = &ground.python;
    let look = format!("import {}", script.module);
    let mut command = ground.outside(&[python.as_os_str(), "-c".as_ref(), look.as_ref()]);
    let output = ground.run(&mut command, Duration::from_secs(PATIENCE))?;
    if !output.status.success() {
        return Err(not_installed(script.module));
    }
    // Not by the module's own name, which the script would then import itself by.
    let file = ground
        .home
        .scratch()
        .join(format!("program_{}.py", script.name));
    fs::write(&file, script.text)?;
    let mut words = vec![python.display().to_string(), file.display().to_string()];
    words.extend(script.words.iter().map(|word| (*word).to_owned()));
    let said = ground.json(
        &mut ground.in_slice(SLICE, &words),
        Duration::from_secs(PATIENCE),
    )?;
    if said["got_bytes"].is_null() {
        return as_the_limit(said["device_total_bytes"].as_u64(), said.clone());
    }
    held(said, SLICE)
}

fn run_binary(ground: &Ground, binary: &Binary) -> Result<Value, Trouble> {
    let found = format!("command -v {}", needs(binary));
    let mut command = ground.outside(&["sh", "-c", &found]);
    let output = ground.run(&mut command, Duration::from_secs(20))?;
    if !output.status.success() {
        return Err(not_installed(needs(binary)));
    }
    let mut words = vec![binary.program];
    words.extend(binary.words);
    let mut command = ground.in_slice(SLICE, &words);
    let output = ground.run(&mut command, Duration::from_secs(60))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(Trouble::failed(complaint(&output)));
    }
    let said = json!({"said": text});
    match binary.total {
        None => Ok(said),
        Some(total) => as_the_limit(total(&text).map(|mib| mib * MIB), said),
    }
}

fn not_installed(name: &str) -> Trouble {
    Trouble::NotAvailable(format!("{name} is not installed"))
}

/// A program's own figure is the limit, rounded as it rounds.
fn as_the_limit(total: Option<u64>, said: Value) -> Result<Value, Trouble> {
    match total {
        Some(total) if total.abs_diff(SLICE) < 128 * MIB => Ok(said),
        _ => Err(Trouble::failed(format!(
            "it saw {total:?} bytes in a slice of {SLICE}: {said}"
        ))),
    }
}

/// `CUDA0: NVIDIA A100-SXM4-80GB (6144 MiB, 5700 MiB free)`
fn llama_total(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("CUDA0:"))?;
    let inside = line.rsplit('(').next()?;
    inside.split(" MiB").next()?.trim().parse().ok()
}

/// `… msg="inference compute" … library=CUDA … total="6.0 GiB" available="5.6 GiB"`
fn ollama_total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find(|line| line.contains("inference compute") && line.contains("total="))?;
    let total = line.split("total=\"").nth(1)?.split('"').next()?;
    let (number, unit) = total.split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    let mib = match unit {
        "GiB" => number * 1024.0,
        "MiB" => number,
        _ => return None,
    };
    Some(mib as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_programs_are_found_in_their_own_words() {
        let text = "Available devices:\n  CUDA0: NVIDIA A100-SXM4-80GB (6144 MiB, 5700 MiB free)\n";
        assert_eq!(llama_total(text), Some(6144));
        assert_eq!(llama_total("Available devices:\n"), None);
        let text = "time=… level=INFO source=types.go:42 msg=\"inference compute\" id=GPU-1 library=CUDA \
                    total=\"6.0 GiB\" available=\"5.6 GiB\"";
        assert_eq!(ollama_total(text), Some(6144));
        assert_eq!(ollama_total("msg=\"inference compute\" library=cpu"), None);
    }

    #[test]
    fn a_figure_other_than_the_limit_is_a_failure() {
        assert!(as_the_limit(Some(SLICE), Value::Null).is_ok());
        for other in [None, Some(0), Some(80 << 30)] {
            assert!(as_the_limit(other, Value::Null).is_err(), "{other:?}");
        }
    }
}
