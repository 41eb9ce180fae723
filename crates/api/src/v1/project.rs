//! Projects: what each may have, and where it stands.

use serde::{Deserialize, Serialize};

/// `GET /v1/projects`. Amounts of GPUs are in thousandths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
pub struct Project {
    pub name: String,
    /// Guaranteed: its jobs within it are served first and never stopped for others.
    pub quota: u64,
    /// Of GPU memory; absent where memory is not divided.
    pub quota_memory_bytes: Option<u64>,
    /// Its part of what is over; absent: in proportion to its quota.
    pub weight: Option<u32>,
    /// It never has more than this.
    pub limit: Option<u64>,
    pub limit_memory_bytes: Option<u64>,
    /// Higher ones are asked first.
    pub priority: i32,
    /// Its jobs are not stopped for others before they have run this long.
    pub min_runtime_s: u64,
    /// Users, and groups with an `@` before them; none means everybody.
    pub members: Vec<String>,
    pub used: u64,
    pub used_memory_bytes: u64,
    /// Of what it uses, what is held by jobs that are over quota.
    pub over_quota: u64,
    /// What would be its part if everybody got theirs now.
    pub fair_share: u64,
    pub running: u32,
    pub waiting: u32,
}

/// `POST /v1/projects/{project}` makes a project, `PATCH` changes one. What is absent stays as it is, or as it is where nothing
/// is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ProjectChange {
    /// In thousandths of GPUs.
    pub quota: Option<u64>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<u64>"))]
    pub quota_memory_bytes: Option<Option<u64>>,
    /// `null`: in proportion to its quota.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schemars(with = "Option<u32>"))]
    pub weight: Option<Option<u32>>,
    /// `null`: no limit.
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

/// What is there, be it `null`.
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
