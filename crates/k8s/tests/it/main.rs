//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod admission;
mod allocator;
mod apiserver;
mod attacks;
mod carrier;
mod chart;
mod cluster;
mod command;
mod controller;
mod extender;
mod glue;
mod glue_seeds;
mod kubelet;
mod kuberay;
mod kueue;
mod people;
mod projects;
mod publisher;
mod reviews;
mod rights;
mod views;
mod why;
mod workloads;
