//! Projects: quotas, limits and use.

use serde::{Deserialize, Serialize};

/// Answer of `GET /v1/projects`. Amounts of GPUs are in thousandths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Project {
    pub name: String,
    /// Guaranteed amount of GPU. Jobs within it come first, and are never preempted.
    pub quota: u64,
    /// Guaranteed GPU memory in bytes. Absent if memory has no quota.
    pub quota_memory_bytes: Option<u64>,
    /// Weight in the division of unused quota. Absent: in proportion to the quota.
    pub weight: Option<u32>,
    /// Largest amount of GPU that the project may hold.
    pub limit: Option<u64>,
    pub limit_memory_bytes: Option<u64>,
    /// Priority of the project; higher values come first.
    pub priority: i32,
    /// Seconds that a job of the project runs before it can be preempted.
    pub min_runtime_s: u64,
    /// Users, and groups with a leading `@`. Empty: all users.
    pub members: Vec<String>,
    pub used: u64,
    pub used_memory_bytes: u64,
    /// Part of the use that jobs over quota hold.
    pub over_quota: u64,
    /// Present fair share of the project.
    pub fair_share: u64,
    pub running: u32,
    pub waiting: u32,
}

/// Body of `POST /v1/projects/{project}`, which creates a project, and of `PATCH`, which changes one. Absent fields
/// stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ProjectChange {
    /// Quota in thousandths of GPUs.
    pub quota: Option<u64>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<u64>"))]
    pub quota_memory_bytes: Option<Option<u64>>,
    /// Weight. `null`: in proportion to the quota.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<u32>"))]
    pub weight: Option<Option<u32>>,
    /// Limit. `null`: no limit.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<u64>"))]
    pub limit: Option<Option<u64>>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<u64>"))]
    pub limit_memory_bytes: Option<Option<u64>>,
    pub priority: Option<i32>,
    pub min_runtime_s: Option<u64>,
    pub members: Option<Vec<String>>,
}

/// Reads a field that is present, including `null`.
fn given<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_null_and_a_figure_are_three_things() {
        let read = |text: &str| serde_json::from_str::<ProjectChange>(text).unwrap();
        assert_eq!(read("{}"), ProjectChange::default());
        assert_eq!(read(r#"{"limit":null}"#).limit, Some(None));
        assert_eq!(read(r#"{"limit":1500}"#).limit, Some(Some(1500)));
        let change = read(r#"{"weight":null,"quota":500}"#);
        let text = serde_json::to_string(&change).unwrap();
        assert_eq!(read(&text), change, "{text}");
        assert!(serde_json::from_str::<ProjectChange>(r#"{"quotas":1}"#).is_err());
    }
}
