//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod crowds;
mod exact;
mod forecast;
mod grammar;
mod latest_props;
mod lease;
mod mig;
mod node;
mod plan_props;
mod project_props;
mod projects;
mod reconcile_props;
mod resize_props;
mod rules;
mod scenarios;
mod simulate;
mod text_props;
