//! The daemon's configuration: effective values with their origin, and the result of a reload.

use serde::{Deserialize, Serialize};

/// One effective value. Answer of `GET /v1/config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ConfigValue {
    /// As the configuration file writes it: `limits.max-jobs`.
    pub key: String,
    pub value: serde_json::Value,
    pub origin: ConfigOrigin,
    /// Path of the file. Only for the origin `file`, as line and column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// In letters, counted from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// Flag of `divvy daemon`. Only for the origin `flag`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flag: Option<String>,
    /// When the daemon applies a change: with a `reload`, or with a `restart`.
    pub applies: String,
    /// The file has another value, which the daemon applies with its next start.
    #[serde(default)]
    pub needs_restart: bool,
}

/// Origins of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ConfigOrigin {
    Default,
    File,
    Flag,
}

/// Answer of `POST /v1/config/reload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct ConfigReload {
    /// Path of the file. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Keys whose changed values are now in force.
    pub changed: Vec<String>,
    /// Keys whose changed values are in force after the daemon's next start.
    pub needs_restart: Vec<String>,
    /// Users and groups that the configuration names and the user database does not have, with line and column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
