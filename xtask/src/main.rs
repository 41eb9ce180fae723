//! The repository's commands: demo, test, bench.

fn main() {}
