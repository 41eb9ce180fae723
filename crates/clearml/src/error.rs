//! The error of the front end.

use std::path::PathBuf;

use crate::{config, projects, server};

/// Why the front end does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] config::ConfigError),
    #[error(transparent)]
    Projects(#[from] projects::MappingError),
    #[error(transparent)]
    Server(#[from] server::ServerError),
    #[error("the daemon: {0}")]
    Agent(#[from] divvy_api::v1::Error),
    #[error("the server has no queue \"{0}\"")]
    NoQueue(String),
    #[error("cannot {what} {path}")]
    File {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot start the front end's runtime")]
    Runtime(#[source] std::io::Error),
}
