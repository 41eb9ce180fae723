//! Quotas of teams, as objects of Kueue.

pub mod kueue;
pub mod project;
