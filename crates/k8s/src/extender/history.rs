//! The history of requests: how often each shape was asked for. The table is trained on it.
//!
//! It outlives the process as a ConfigMap. Models of GPU are names there, since their indices change with the cluster.

use std::collections::{BTreeMap, VecDeque};

use divvy_core::{Bytes, Share};
use divvy_packing::learned::Mix;
use divvy_packing::{ModelSet, Shape};
use serde::{Deserialize, Serialize};

/// Shapes that are kept; above, counts are halved until the rarest have gone. Real clusters ask for tens of shapes; the
/// file stays below the 1 MiB of a ConfigMap (Kubernetes).
const MOST_SHAPES: usize = 1000;
/// Requests from which on all counts are halved, so that the history follows what is asked for now.
const MOST_REQUESTS: u64 = 100_000;
/// The last requests, on which a table is compared with best fit.
const LAST: usize = 1000;
/// Letters of a model's name that are kept. As long as an attribute's value in resource.k8s.io
/// (`DeviceAttributeMaxValueLength`).
const LONGEST_MODEL: usize = 64;
/// Models that a shape may name. More than a cluster has; each shape is kept with its list. More than a cluster has, so
/// that none is lost; each shape is kept with its list.
const MOST_MODELS: usize = 16;

/// A shape, with names of models; as it is written, in MiB and thousandths, with 0 for what the request leaves open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestKind {
    pub cpu_milli: u64,
    pub memory_mib: u64,
    pub gpus: u32,
    #[serde(default)]
    pub share: u32,
    #[serde(default)]
    pub gpu_memory_mib: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    count: u64,
    request: RequestKind,
}

impl RequestKind {
    pub fn of(shape: &Shape, models: &[String]) -> Self {
        let named = models.iter().enumerate();
        let named = named.filter(|(at, _)| {
            shape.models.is_bound() && *at < ModelSet::MOST && shape.models.accepts(*at)
        });
        let cut = |name: &String| name.chars().take(LONGEST_MODEL).collect();
        Self {
            cpu_milli: shape.cpu_milli,
            memory_mib: shape.memory.whole_mib(),
            gpus: shape.gpus,
            share: shape.share.map_or(0, |share| share.thousandths().into()),
            gpu_memory_mib: shape.gpu_memory.map_or(0, Bytes::whole_mib),
            models: named.map(|(_, name)| cut(name)).take(MOST_MODELS).collect(),
        }
    }

    /// The shape in a cluster with these models; `None` where it has none of those that the request accepts, or
    /// the share is larger than a GPU.
    fn shape(&self, models: &[String]) -> Option<Shape> {
        let at = |name: &String| {
            let same = |model: &String| model.chars().take(LONGEST_MODEL).eq(name.chars());
            models
                .iter()
                .position(same)
                .filter(|at| *at < ModelSet::MOST)
        };
        let known: Vec<usize> = self.models.iter().filter_map(at).collect();
        if known.is_empty() && !self.models.is_empty() {
            return None;
        }
        let share = match self.share {
            0 => None,
            share => Some(Share::from_thousandths(u16::try_from(share).ok()?)?),
        };
        Some(Shape {
            cpu_milli: self.cpu_milli,
            memory: Bytes::mib(self.memory_mib),
            gpus: self.gpus,
            share,
            gpu_memory: (self.gpu_memory_mib > 0).then(|| Bytes::mib(self.gpu_memory_mib)),
            models: known.into_iter().fold(ModelSet::ANY, ModelSet::with),
        })
    }
}

/// Counts of requests, and the last ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    counts: BTreeMap<RequestKind, u64>,
    last: VecDeque<RequestKind>,
    requests: u64,
}

impl History {
    pub fn requests(&self) -> u64 {
        self.requests
    }

    pub fn kinds(&self) -> usize {
        self.counts.len()
    }

    pub fn count(&mut self, kind: RequestKind) {
        if self.last.len() >= LAST {
            self.last.pop_front();
        }
        self.last.push_back(kind.clone());
        *self.counts.entry(kind).or_default() += 1;
        self.requests += 1;
        while self.counts.len() > MOST_SHAPES || self.requests > MOST_REQUESTS {
            self.halve();
        }
    }

    /// Rarely asked kinds go, as each count is rounded down; where all are as rare, the first ones stay.
    fn halve(&mut self) {
        for count in self.counts.values_mut() {
            *count /= 2;
        }
        let last = self.last.back().cloned();
        self.counts.retain(|_, count| *count > 0);
        if self.counts.is_empty() {
            self.counts.extend(last.map(|kind| (kind, 1)));
        }
        self.requests = self.counts.values().sum();
    }

    /// All requests, for a cluster with these models.
    pub fn mix(&self, models: &[String]) -> Mix {
        let counts = self.counts.iter();
        counts
            .filter_map(|(kind, count)| Some((kind.shape(models)?, *count)))
            .collect()
    }

    /// The last requests, or after a restart all of them.
    pub fn last_mix(&self, models: &[String]) -> Mix {
        if self.last.len() < LAST / 4 {
            self.mix(models)
        } else {
            self.last
                .iter()
                .filter_map(|kind| kind.shape(models))
                .collect()
        }
    }

    /// As JSON, the most frequent first.
    pub fn to_json(&self) -> String {
        let counts = self.counts.iter().map(|(kind, count)| Count {
            count: *count,
            request: kind.clone(),
        });
        let mut counts: Vec<Count> = counts.collect();
        counts.sort_by(|a, b| (b.count, &a.request).cmp(&(a.count, &b.request)));
        serde_json::to_string(&counts).unwrap_or_else(|_| "[]".to_owned())
    }

    /// What [`Self::to_json`] wrote.
    ///
    /// # Errors
    /// The text is no such list.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        let counts: Vec<Count> = serde_json::from_str(text)?;
        let mut history = Self::default();
        for Count { count, request } in counts.into_iter().take(MOST_SHAPES) {
            let count = count.min(MOST_REQUESTS);
            *history.counts.entry(request).or_default() += count;
        }
        history.counts.retain(|_, count| *count > 0);
        history.requests = history.counts.values().sum();
        while history.requests > MOST_REQUESTS {
            history.halve();
        }
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(cpu_milli: u64, models: &[&str]) -> RequestKind {
        RequestKind {
            cpu_milli,
            memory_mib: 1,
            gpus: 1,
            share: 500,
            gpu_memory_mib: 0,
            models: models.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn a_history_reads_what_it_wrote_and_names_its_models() {
        let mut history = History::default();
        for cpu in [1, 2, 2] {
            history.count(kind(cpu, &["b"]));
        }
        let text = history.to_json();
        assert!(
            text.starts_with(r#"[{"count":2,"request":{"cpu_milli":2,"#),
            "{text}"
        );
        let read = History::from_json(&text).unwrap();
        assert_eq!((read.requests(), read.kinds()), (3, 2));
        let models = ["a", "b"].map(str::to_owned);
        let mix = read.mix(&models);
        let (shape, count) = mix.iter().next().unwrap();
        assert_eq!((shape.models, count), (ModelSet::ANY.with(1), 1));
        assert_eq!(RequestKind::of(shape, &models), kind(1, &["b"]));
        assert_eq!(read.mix(&["a".to_owned()]).requests(), 0, "no such GPU");
        for text in [
            "",
            "{}",
            r#"[{"count":-1}]"#,
            r#"[{"count":1,"request":{"cpu_milli":1,"memory_mib":1,"gpus":1,"more":2}}]"#,
        ] {
            assert!(History::from_json(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_history_is_bounded_and_forgets_the_rarest() {
        let mut history = History::default();
        for _ in 0..10 {
            history.count(kind(0, &[]));
        }
        for cpu in 1..=MOST_SHAPES as u64 {
            history.count(kind(cpu, &[]));
        }
        assert_eq!(history.kinds(), 1, "all others were asked for once");
        assert_eq!(history.requests(), 5);
        for _ in 0..MOST_REQUESTS {
            history.count(kind(0, &[]));
        }
        assert!(history.requests() <= MOST_REQUESTS);
        assert!(history.requests() >= MOST_REQUESTS / 2);
    }
}
