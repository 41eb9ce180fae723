//! A program that gives its GPU work on command and says how much was done when: what compute shares are measured with.

use std::path::Path;
use std::process::Command;

use crate::{Dialog, Home};

/// A running `tests/clients/c/tenant.c`. The kernels it launches exist on the simulator only.
#[derive(Debug)]
pub struct Tenant {
    dialog: Dialog,
    kernel_us: u32,
}

impl Tenant {
    /// Starts one under `divvy run FLAGS`, and waits until it has its GPU.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn run(home: &Home, flags: &[&str]) -> Self {
        let program = program();
        let words = [&["run"], flags, &["--", &program]].concat();
        Self::start(&mut home.divvy_command(&words))
    }

    /// As [`Tenant::run`], in a PID namespace of its own, as in a container.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn apart(home: &Home, flags: &[&str]) -> Self {
        let program = program();
        let apart = ["--", "unshare", "--pid", "--fork", &program];
        Self::start(&mut home.divvy_command(&[&["run"], flags, &apart].concat()))
    }

    /// Starts one in the slice of a job that runs, on so manieth of its GPUs.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn inside(home: &Home, job: &str, gpu: usize) -> Self {
        let (program, gpu) = (program(), gpu.to_string());
        Self::start(&mut home.divvy_command(&["exec", job, "--", &program, &gpu]))
    }

    /// Starts one that sees the GPUs from outside every slice.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn outside(home: &Home) -> Self {
        Self::start(&mut home.outside(&program()))
    }

    fn start(command: &mut Command) -> Self {
        let mut tenant = Self {
            dialog: Dialog::start(command),
            kernel_us: 0,
        };
        assert_eq!(tenant.hear(), [0]);
        tenant
    }

    /// Process id of what was started: of `divvy run`, where it is under that.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.dialog.pid()
    }

    /// Begins to do something for `ms` milliseconds: `loop US THINK`, `flood US`, `graphs US NODES` or `burst US WORK REST`. A flood of 0
    /// goes on until [`Tenant::stop`].
    ///
    /// # Panics
    /// When it has ended.
    pub fn begin(&mut self, what: &str, ms: u64) {
        let second = what.split_whitespace().nth(1);
        self.kernel_us = second
            .and_then(|us| us.parse().ok())
            .expect("a kernel's microseconds");
        self.dialog.say(&format!("{what} {ms}"));
    }

    /// Ends a flood of 0; its answer.
    ///
    /// # Panics
    /// When it has ended.
    pub fn stop(&mut self) -> Vec<u64> {
        self.ask("stop")
    }

    /// The longest time without a kernel launched between two moments of [`Tenant::clock`], in milliseconds.
    ///
    /// # Panics
    /// When it has ended.
    pub fn gap(&mut self, from: u64, to: u64) -> u64 {
        self.ask(&format!("gap {from} {to}"))[0] / 1000
    }

    /// The answer to the next command that was not answered yet.
    ///
    /// # Panics
    /// When it has ended.
    pub fn hear(&mut self) -> Vec<u64> {
        self.dialog
            .line()
            .split_whitespace()
            .map(|number| number.parse().expect("the tenant answers in numbers"))
            .collect()
    }

    /// # Panics
    /// When it has ended.
    pub fn ask(&mut self, line: &str) -> Vec<u64> {
        self.dialog.say(line);
        self.hear()
    }

    /// Milliseconds on the clock that [`Tenant::used`] counts from.
    ///
    /// # Panics
    /// When it has ended.
    pub fn clock(&mut self) -> u64 {
        self.ask("clock")[0]
    }

    /// What it has used of a GPU in each tenth of a second since `from`, as a part of that time. Work counts when it is
    /// launched, which is little before it is done.
    ///
    /// # Panics
    /// When it has ended.
    pub fn used(&mut self, from: u64) -> Vec<f64> {
        let kernels = self.ask(&format!("buckets {from}"));
        let one = f64::from(self.kernel_us) / 100_000.0;
        kernels
            .into_iter()
            .map(|kernels| kernels as f64 * one)
            .collect()
    }
}

/// The tenant's program.
fn program() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../clients/c/tenant.c");
    let flags = ["-std=gnu11", "-O2", "-Wextra"];
    let program = divvy_testkit::compiled(&source, "tenant", &flags);
    program.display().to_string()
}

/// The mean of some of the tenths of a second that [`Tenant::used`] tells.
#[must_use]
pub fn part(used: &[f64], tenths: std::ops::Range<usize>) -> f64 {
    let within = &used[tenths.start.min(used.len())..tenths.end.min(used.len())];
    within.iter().sum::<f64>() / within.len().max(1) as f64
}
