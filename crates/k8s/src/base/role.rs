//! The role of a node, from its labels: GPU fractions only, or also MIG instances that Divvy creates on request.
//!
//! Divvy writes its own label. It only reads the labels of ClearML's operator and of Run:ai, which mean the same.

use std::collections::BTreeMap;

/// The label that [`crate::tools::admin`] sets.
pub const DYNAMIC_MIG: &str = "divvy.dev/dynamic-mig";

/// The labels that allow MIG instances on a node: ours first, then those of ClearML's dynamic MIG operator and of Run:ai.
pub const LABELS: [(&str, &str); 3] = [
    (DYNAMIC_MIG, "true"),
    ("cdmo.clear.ml/gpu-partitioning", "mig"),
    ("node-role.kubernetes.io/runai-mig-enabled", "true"),
];

/// The use of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Fractions of GPUs by memory, and whole GPUs.
    #[default]
    Fractions,
    /// Also MIG instances, on GPUs in MIG mode.
    DynamicMig {
        /// The labels that give the role, in the order of [`LABELS`].
        by: Vec<&'static str>,
    },
}

impl Role {
    /// The word in JSON and tables.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Fractions => "fractions",
            Self::DynamicMig { .. } => "dynamic-mig",
        }
    }

    pub fn is_dynamic_mig(&self) -> bool {
        matches!(self, Self::DynamicMig { .. })
    }
}

/// The role that a node has by these labels.
pub fn of(labels: Option<&BTreeMap<String, String>>) -> Role {
    let by: Vec<&'static str> = LABELS
        .iter()
        .filter(|(key, value)| {
            labels
                .and_then(|labels| labels.get(*key))
                .map(String::as_str)
                == Some(*value)
        })
        .map(|(key, _)| *key)
        .collect();
    if by.is_empty() {
        Role::Fractions
    } else {
        Role::DynamicMig { by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_three_labels_says_that_gpus_may_be_carved_and_other_values_do_not() {
        let role = |key: &str, value: &str| {
            of(Some(&BTreeMap::from([(key.to_owned(), value.to_owned())])))
        };
        for (key, value) in LABELS {
            assert_eq!(role(key, value), Role::DynamicMig { by: vec![key] });
            assert_eq!(role(key, "no"), Role::Fractions);
        }
        assert_eq!(of(None), Role::Fractions);
        assert_eq!(Role::Fractions.as_str(), "fractions");
    }
}
