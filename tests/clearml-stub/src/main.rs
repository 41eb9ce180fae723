//! `divvy-clearml-stub`: the stand-in as a program, to be looked at by hand.
#![forbid(unsafe_code)]

use std::io::Write as _;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use divvy_clearml_stub::{Call, Stub};

/// How often calls are printed.
const LOOK: Duration = Duration::from_millis(200);

/// A strict stand-in for the ClearML API server, on 127.0.0.1 until it is killed. Prints a clearml.conf for it, and every call.
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
    let mut seen = 0;
    loop {
        let calls = stub.calls();
        for call in &calls[seen..] {
            let why = call.complaint.as_deref().unwrap_or_default();
            let Call {
                at,
                endpoint,
                code,
                subcode,
                body,
                ..
            } = call;
            eprintln!("{at:.3} {endpoint} {code}/{subcode} {body} {why}");
        }
        seen = calls.len();
        thread::sleep(LOOK);
    }
}
