//! Orders to the simulated driver that no driver call can give.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::{Bounded as _, links, programs};

/// Gives the simulated driver of this state file orders of its control function, such as `lose:1` or `sick:0=214`
/// (docs/simulator.md, "Control function").
///
/// # Panics
/// When it does not carry one out.
#[track_caller]
pub fn control(state: &Path, orders: &[&str]) {
    let folder = programs::folder();
    let library = folder.join("libdivvy_sim.so");
    let mut client = Command::new(folder.join("examples/client"))
        .env(
            "LD_LIBRARY_PATH",
            links("control", &[("libcuda.so.1", &library)]),
        )
        .env("DIVVY_SIM_STATE", state)
        .env_remove("DIVVY_SIM")
        .env_remove("DIVVY_SIM_CONFIG")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .expect("the client starts");
    let mut input = client.stdin.take().expect("piped");
    for order in orders {
        writeln!(input, "divvy_sim_control \"{order}\"").expect("the client reads");
    }
    drop(input);
    let output = client.output_bounded().expect("the client ends");
    let answers = String::from_utf8_lossy(&output.stdout);
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(answers, vec!["0"; orders.len()], "{orders:?}");
}
