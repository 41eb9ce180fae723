//! MIG instances in the controller: a job claims them when it starts, a worker creates them, and the job's end releases
//! them.
//!
//! ```text
//! plan ─► claim ─► journal ─► command ─► worker ─► report ─► journal ─► the job's program
//!                     ▲                              │
//!                     ├── not clean: recreated ──────┤
//! end  ─► release ─► journal: idle                   └─ refused: back into the queue
//! ```
//! A job that waits for its instances is `starting`. The instances on the GPUs are compared with the journal by
//! `core::mig::recover` whenever no command is under way. After a crash that finishes what an earlier daemon began. At
//! other times it finds what other programs have created and destroyed.
//!
//! ```text
//! claim      which job holds which instance   commands  what is journaled and sent to the workers
//! report     the results of the workers       backoff   where no instance is created for a time
//! reconcile  the driver's state and the journal  capacity  the GPUs as the planner sees them
//! mode       shared, MIG, exclusive or unmanaged  view  MIG in the API
//! release    what a job gives back at its end  geometry  sizes and overlaps of placements
//! ```

pub(in crate::controller) mod backoff;
pub(in crate::controller) mod capacity;
pub(in crate::controller) mod claim;
pub(in crate::controller) mod commands;
pub(in crate::controller) mod geometry;
pub(in crate::controller) mod mode;
pub(in crate::controller) mod reconcile;
pub(in crate::controller) mod release;
pub(in crate::controller) mod report;
pub(in crate::controller) mod view;
