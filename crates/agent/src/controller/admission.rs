//! Admission: validation, identity, dependencies, idempotency and projects of a new job.

pub(in crate::controller) mod array;
pub(in crate::controller) mod container_access;
pub(in crate::controller) mod dependencies;
pub(in crate::controller) mod file_projects;
pub(in crate::controller) mod idempotency;
pub(in crate::controller) mod on_behalf;
pub(in crate::controller) mod projects;
pub(in crate::controller) mod queues;
pub(in crate::controller) mod submit;
pub(in crate::controller) mod text_budget;
pub(in crate::controller) mod user_rules;
