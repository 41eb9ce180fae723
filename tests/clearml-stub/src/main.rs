//! `divvy-clearml-stub`: the stand-in as a program, to be looked at by hand.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::thread;

use anyhow::{Context as _, Result};
use clap::Parser;
use divvy_clearml_stub::Stub;

/// A strict stand-in for the ClearML API server, on 127.0.0.1 until it is killed. Prints a clearml.conf for it.
#[derive(Parser)]
struct Cli {
    /// Port; 0 for a free one
    #[arg(long, default_value_t = 8008)]
    port: u16,
    /// Queues to make
    #[arg(long, num_args = 1..)]
    queue: Vec<String>,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let stub = Stub::at(cli.port).with_context(|| format!("serve on port {}", cli.port))?;
    for queue in &cli.queue {
        let body = serde_json::json!({ "name": queue });
        stub.call("queues.create", body)
            .with_context(|| format!("make the queue {queue}"))?;
    }
    let mut out = std::io::stdout();
    out.write_all(stub.conf().as_bytes())?;
    out.flush()?;
    loop {
        thread::park();
    }
}
