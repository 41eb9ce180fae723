//! The integration tests of this crate, in one program: one link, and one pool of tests.

#![warn(clippy::disallowed_methods)]

mod available;
mod crowds;
mod elsewhere;
mod estimate;
mod grammar;
mod latency_rule;
mod lease;
mod mig;
mod node;
mod park_props;
mod patterns;
mod pinned;
mod plan_digest;
mod plan_props;
mod project_props;
mod projects;
mod reconcile_props;
mod resize_props;
mod resume;
mod rules;
mod scenarios;
mod start_bound_props;
mod text_props;
mod user_limits;
