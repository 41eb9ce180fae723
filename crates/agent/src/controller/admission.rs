//! Admission: validation, identity, dependencies, idempotency and projects of a new job.

pub(super) mod array;
pub(super) mod dependencies;
pub(super) mod idempotency;
pub(super) mod on_behalf;
pub(super) mod projects;
pub(super) mod submit;
pub(super) mod text_budget;
