//! `spank_divvy.so`, the SPANK plugin: it puts each task of a Slurm job into the job's slice.
//!
//! ```text
//! slurmctld                    node
//! sbatch --gpu-memory=8G ────► Prolog: divvy-slurm prolog ─► the daemon holds the slice ─► /run/divvy-slurm/JOB.json
//!                              slurmstepd + this plugin, as root, in each task before it becomes the user:
//!                                reads the record, makes the mounts of the slice, sets the variables
//!                              Epilog: divvy-slurm epilog ─► releases the slice
//! ```
//! The plugin decides nothing: the record says what becomes of the tasks. Without a record no task starts. The crate
//! is a file that ships, loaded by Slurm's own programs; [`plugin`] and [`spank`] are the fence around
//! Slurm's C interface.

pub mod hooks;
pub mod mounts;
pub mod plugin;
pub mod record;
pub mod spank;
pub mod visible;
