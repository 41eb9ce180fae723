//! What a node's GPUs may be used for, as its labels say: parts of GPUs, or MIG instances carved as they are asked for.
//!
//! Our own label is written; those of ClearML's operator and of Run:ai mean the same and are only read.

use std::collections::BTreeMap;

/// The label that [`crate::admin`] sets.
pub const DYNAMIC_MIG: &str = "divvy.dev/dynamic-mig";

/// What says that a node's GPUs may be carved, ours first: ClearML's dynamic MIG operator and Run:ai have their own.
pub const LABELS: [(&str, &str); 3] = [
    (DYNAMIC_MIG, "true"),
    ("cdmo.clear.ml/gpu-partitioning", "mig"),
    ("node-role.kubernetes.io/runai-mig-enabled", "true"),
];

/// What a node's GPUs are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Parts of GPUs by memory, and whole ones.
    #[default]
    Fractions,
    /// MIG instances too, where the GPU is in MIG mode.
    DynamicMig {
        /// Every label that says so, in the order of [`LABELS`].
        by: Vec<&'static str>,
    },
}

impl Role {
    /// In JSON and tables.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Fractions => "fractions",
            Self::DynamicMig { .. } => "dynamic-mig",
        }
    }

    pub fn is_dynamic_mig(&self) -> bool {
        matches!(self, Self::DynamicMig { .. })
    }
}

/// The role that these labels of a node give it.
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
    match by.is_empty() {
        true => Role::Fractions,
        false => Role::DynamicMig { by },
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
        assert_eq!(Role::Fractions.word(), "fractions");
    }
}
