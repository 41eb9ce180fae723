//! Programs that people run on GPUs, in a slice: those whose libraries are installed here. Each takes memory until it is refused,
//! goes on working, and says what it saw.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Item;
use crate::ground::{Ground, Trouble, complaint};
use crate::limits::{SLICE, held};

/// A Python program, the module it needs, and variables to run it with.
struct Client {
    name: &'static str,
    module: &'static str,
    script: &'static str,
    variables: &'static [(&'static str, &'static str)],
}

const TORCH: &str = include_str!("../../../clients/gpu/torch_fill.py");

const CLIENTS: [Client; 8] = [
    Client {
        name: "cuda_bindings",
        module: "cuda.bindings.driver",
        script: include_str!("../../../clients/bindings_fill.py"),
        variables: &[],
    },
    Client {
        name: "numba",
        module: "numba.cuda",
        script: include_str!("../../../clients/numba_fill.py"),
        variables: &[],
    },
    Client {
        name: "torch.native",
        module: "torch",
        script: TORCH,
        variables: &[],
    },
    Client {
        name: "torch.expandable_segments",
        module: "torch",
        script: TORCH,
        variables: &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
    },
    Client {
        name: "torch.cuda_malloc_async",
        module: "torch",
        script: TORCH,
        variables: &[("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")],
    },
    Client {
        name: "triton",
        module: "triton",
        script: include_str!("../../../clients/gpu/triton_add.py"),
        variables: &[],
    },
    Client {
        name: "jax",
        module: "jax",
        script: include_str!("../../../clients/gpu/jax_fill.py"),
        variables: &[("XLA_PYTHON_CLIENT_PREALLOCATE", "false")],
    },
    Client {
        name: "cupy",
        module: "cupy",
        script: include_str!("../../../clients/gpu/cupy_fill.py"),
        variables: &[],
    },
];

const PATIENCE: u64 = 90;

/// The library that writes look-ups down, as the build puts it beside the programs.
const LOGGER: &str = "liblog_lookups.so";

pub fn items() -> Vec<Item> {
    let mut items = Vec::new();
    for client in &CLIENTS {
        items.push(Item::new(
            format!("client.{}", client.name),
            format!(
                "{} in a slice, until it is refused and beyond",
                client.module
            ),
            PATIENCE,
            move |ground| fill(ground, client),
        ));
    }
    for client in CLIENTS.iter().filter(|client| client.variables.is_empty()) {
        items.push(Item::new(
            format!("lookups.{}", client.name),
            format!(
                "which functions {} asks cuGetProcAddress for",
                client.module
            ),
            PATIENCE,
            move |ground| lookups(ground, client),
        ));
    }
    items
}

/// The script in a file, once its module is known to be there.
fn script(ground: &Ground, client: &Client) -> Result<String, Trouble> {
    let python = &ground.python;
    let look = format!("import {}", client.module);
    let mut command = ground.outside(&[python.as_os_str(), "-c".as_ref(), look.as_ref()]);
    let output = ground.run(&mut command, Duration::from_secs(PATIENCE))?;
    if !output.status.success() {
        return Err(Trouble::NotAvailable(complaint(&output)));
    }
    // Not by the library's own name, which the script would then import itself by.
    let file = format!("client_{}.py", client.name.replace('.', "_"));
    let file = ground.home.scratch().join(file);
    fs::write(&file, client.script)?;
    Ok(file.display().to_string())
}

fn fill(ground: &Ground, client: &Client) -> Result<Value, Trouble> {
    let script = script(ground, client)?;
    let python = ground.python.display().to_string();
    let mut command = ground.in_slice(SLICE, &[&python, &script]);
    command.envs(client.variables.iter().copied());
    let filled = ground.json(&mut command, Duration::from_secs(PATIENCE))?;
    if filled["got_bytes"].is_null() {
        return Ok(filled);
    }
    held(filled, SLICE)
}

/// Every name with the versions and flags it was asked for in.
fn lookups(ground: &Ground, client: &Client) -> Result<Value, Trouble> {
    let logger = ground.home.program(LOGGER);
    if !fs::exists(&logger)? {
        return Err(Trouble::NotAvailable(format!("{LOGGER} is not built")));
    }
    let script = script(ground, client)?;
    let log = ground
        .home
        .scratch()
        .join(format!("{}.lookups", client.name));
    let python = ground.python.display().to_string();
    let mut command = ground.outside(&[&python, &script]);
    command
        .env("LD_PRELOAD", &logger)
        .env("GPU_LOOKUPS_LOG", &log)
        // Outside of a slice a program would fill the whole GPU; what it looks up, it looks up at its start.
        .env("FILL_AT_MOST", (1u64 << 30).to_string());
    let output = ground.run(&mut command, Duration::from_secs(PATIENCE))?;
    let text = fs::read_to_string(&log).unwrap_or_default();
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, rest)) = line.split_once(' ') {
            let asked = names.entry(name.to_owned()).or_default();
            if !asked.iter().any(|known| known == rest) {
                asked.push(rest.to_owned());
            }
        }
    }
    if names.is_empty() && !output.status.success() {
        return Err(Trouble::failed(complaint(&output)));
    }
    Ok(json!({"functions": names.len(), "version flags result": names}))
}
