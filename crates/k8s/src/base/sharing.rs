//! How GPUs are shared: by claims (DRA) or by reservation pods (carrier mode), for each node and each pod. Pure.
//!
//! A node's labels decide its mode. A pod says its mode with an annotation, its namespace with a label of the same name;
//! without either, the chart's default counts. No node has both modes, so a pod cannot be placed by one mode on a node of
//! the other: a carrier node publishes no ResourceSlices, and other nodes have no sixteenths.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// The annotation of pods, and the label of namespaces.
pub const SHARING: &str = "divvy.dev/sharing";

/// A way to share GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sharing {
    /// Resource claims, placed by the stock scheduler.
    #[default]
    Claims,
    /// Sixteenths of GPUs that reservation pods hold.
    Carrier,
}

/// A word that is no way to share GPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{SHARING}: {0:?} is not a mode; use claims or carrier")]
pub struct NoSharing(String);

impl Sharing {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Claims => "claims",
            Self::Carrier => "carrier",
        }
    }
}

impl FromStr for Sharing {
    type Err = NoSharing;

    fn from_str(word: &str) -> Result<Self, NoSharing> {
        match word {
            "claims" => Ok(Self::Claims),
            "carrier" => Ok(Self::Carrier),
            other => Err(NoSharing(other.chars().take(63).collect())),
        }
    }
}

/// The mode of a pod: its own word, else its namespace's, else the default.
///
/// # Errors
/// A word is none of the modes.
pub fn of_pod(
    pod: Option<&str>,
    namespace: Option<&str>,
    default: Sharing,
) -> Result<Sharing, NoSharing> {
    pod.or(namespace).map_or(Ok(default), str::parse)
}

/// The labels of carrier nodes: all of them have to match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarrierNodes(BTreeMap<String, String>);

/// A text that is no list of labels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of labels: KEY=VALUE,KEY=VALUE")]
pub struct NoLabels(String);

impl FromStr for CarrierNodes {
    type Err = NoLabels;

    fn from_str(text: &str) -> Result<Self, NoLabels> {
        let label = |pair: &str| {
            let (key, value) = pair.split_once('=')?;
            (!key.is_empty()).then(|| (key.to_owned(), value.to_owned()))
        };
        let labels: Option<BTreeMap<_, _>> = text.split(',').map(label).collect();
        labels.map(Self).ok_or_else(|| NoLabels(text.to_owned()))
    }
}

impl fmt::Display for CarrierNodes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.0.iter().map(|(key, value)| format!("{key}={value}"));
        write!(out, "{}", pairs.collect::<Vec<_>>().join(","))
    }
}

impl CarrierNodes {
    pub fn labels(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// The mode of a node with these labels.
    pub fn mode(&self, labels: Option<&BTreeMap<String, String>>) -> Sharing {
        let has = |(key, value): (&String, &String)| {
            labels.and_then(|labels| labels.get(key)) == Some(value)
        };
        if self.0.iter().all(has) {
            Sharing::Carrier
        } else {
            Sharing::Claims
        }
    }
}

/// The uses of a node's GPUs, by mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uses {
    pub claims: usize,
    pub sixteenths: usize,
}

impl Uses {
    pub fn of(self, mode: Sharing) -> usize {
        match mode {
            Sharing::Claims => self.claims,
            Sharing::Carrier => self.sixteenths,
        }
    }

    /// The mode that a node starts in: what is in use keeps its mode, whatever the labels are.
    pub fn mode(self, wanted: Sharing) -> Sharing {
        match (self.claims, self.sixteenths) {
            (0, 0) => wanted,
            (_, 0) => Sharing::Claims,
            (0, _) => Sharing::Carrier,
            // Both only after a fault: the labels decide, and the other uses end with their pods.
            _ => wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pods_word_counts_before_its_namespaces_and_the_default() {
        use Sharing::{Carrier, Claims};
        assert_eq!(of_pod(Some("carrier"), Some("claims"), Claims), Ok(Carrier));
        assert_eq!(of_pod(None, Some("carrier"), Claims), Ok(Carrier));
        assert_eq!(of_pod(None, None, Carrier), Ok(Carrier));
        let error = of_pod(Some("dra"), None, Claims).unwrap_err();
        assert_eq!(
            error.to_string(),
            "divvy.dev/sharing: \"dra\" is not a mode; use claims or carrier"
        );
        let long = of_pod(Some(&"x".repeat(1 << 18)), None, Claims).unwrap_err();
        assert!(long.to_string().len() < 200);
    }

    #[test]
    fn a_carrier_node_has_all_of_the_labels() {
        let nodes: CarrierNodes = "pool=old,gpu=yes".parse().unwrap();
        assert_eq!(nodes.to_string(), "gpu=yes,pool=old");
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let owned = |(key, value): &(&str, &str)| (key.to_string(), value.to_string());
            pairs.iter().map(owned).collect()
        };
        let both = labels(&[("pool", "old"), ("gpu", "yes"), ("zone", "x")]);
        assert_eq!(nodes.mode(Some(&both)), Sharing::Carrier);
        let one = labels(&[("pool", "old")]);
        assert_eq!(nodes.mode(Some(&one)), Sharing::Claims);
        assert_eq!(nodes.mode(None), Sharing::Claims);
        for no in ["", "pool", "=x", "a=b,"] {
            assert_eq!(no.parse::<CarrierNodes>(), Err(NoLabels(no.to_owned())));
        }
    }

    #[test]
    fn a_node_keeps_the_mode_of_what_is_in_use() {
        let uses = |claims, sixteenths| Uses { claims, sixteenths };
        for wanted in [Sharing::Claims, Sharing::Carrier] {
            assert_eq!(uses(0, 0).mode(wanted), wanted);
            assert_eq!(uses(2, 0).mode(wanted), Sharing::Claims);
            assert_eq!(uses(0, 1).mode(wanted), Sharing::Carrier);
        }
    }
}
