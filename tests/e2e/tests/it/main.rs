//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod api;
mod aside;
mod bypass;
mod clearml;
mod commands;
mod compute;
mod crash;
mod docker;
mod docs;
mod doctor;
mod errors;
mod filters;
mod flags;
mod form;
mod gpu;
mod graph;
mod hardening;
mod inside;
mod left;
mod limit;
mod lists;
mod memory;
mod metrics;
mod mig;
mod mig_clients;
mod mig_health;
mod names;
mod node_agent;
mod one_machine;
mod podman;
mod race;
mod run;
mod seed;
mod selftest;
mod shown;
mod simulate;
mod smi;
mod top;
mod unresponsive;
mod usage;
mod users;
mod verbs;
mod web;
