//! Cut NVIDIA GPUs into safe fractions: command line and daemon in one program.

fn main() {}
