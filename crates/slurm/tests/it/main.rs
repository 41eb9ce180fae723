//! Tests of `divvy-slurm`: the plugin in a stand-in for Slurm's programs, Prolog and Epilog as slurmd runs them, and a
//! private Slurm where one is installed.

mod kit;
mod node;
mod plugin;
mod slurm;
