//! Decides everything: units, placement, queues, lifecycles; pure and deterministic.
#![forbid(unsafe_code)]
