//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod accounts;
mod actions;
mod arrays;
mod board;
mod boots;
mod budgets;
mod claims;
mod config;
mod confirm;
mod crash;
mod descriptors;
mod exec;
mod faults;
mod files;
mod forkserver;
mod forkserver_unit;
mod grammar;
mod groups;
mod history;
mod http;
mod job_list;
mod jobs;
mod journal;
mod listeners;
mod lists;
mod mig;
mod neighbours;
mod offload;
mod oom;
mod openapi;
mod past;
mod project_rules;
mod projects;
mod purge;
mod resize;
mod restart;
mod service;
mod several_daemons;
mod standalone;
mod terms;
mod upgrade;
mod users;
mod waiting;
mod why;
