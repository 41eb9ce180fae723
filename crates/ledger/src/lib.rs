//! The shared-memory account of a slice: reserve, commit, release, recovery of dead processes.
