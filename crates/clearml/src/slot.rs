//! Worker names of the daemon and of a task's slot, as the stock agent writes them, with the command of that slot.

use divvy_api::v1::Slice;

/// How tasks are given GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `--dynamic-gpus`: the daemon is `NAME:dgpu0-2`, and every task has a slot of its own, `NAME:gpu2.25a`. The text is
    /// what `--gpus` was given, without blanks.
    Dynamic { gpus: String },
    /// One task at a time on all of them, under the daemon's own name: `NAME:gpu0,1`, or `NAME:0` without `--gpus`.
    Plain { gpus: Option<String> },
}

/// The slot of a claimed task.
#[derive(Clone, Debug)]
pub struct TaskSlot {
    /// `node1:gpu2.25a`: the worker that the task's own agent registers as.
    pub worker: String,
    /// `node1:dgpu0-2`: the daemon.
    pub parent: String,
    /// The queue that the task was pulled from.
    pub queue_id: String,
    pub queue_name: String,
    /// The agent's job.
    pub job: String,
    /// The job's slices, in the order of GPUs.
    pub slices: Vec<Slice>,
}

impl TaskSlot {
    /// Parts of the GPUs as `CLEARML_AGENT_GPU_FRACTIONS` has them: `0.25`; `1,1` for two whole ones.
    pub fn fractions(&self) -> String {
        let part = |slice: &Slice| share_text(slice.share);
        self.slices.iter().map(part).collect::<Vec<_>>().join(",")
    }
}

/// Thousandths of a GPU as a number: 250 is `0.25`, 1000 is `1`.
pub fn share_text(thousandths: u16) -> String {
    let text = format!("{}.{:03}", thousandths / 1000, thousandths % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// The daemon's own worker id: `node1:dgpu0-2`, `node1:gpu0,1`, `node1:0`.
pub fn daemon_id(name: &str, mode: &Mode) -> String {
    match mode {
        Mode::Dynamic { gpus } => format!("{name}:dgpu{gpus}"),
        Mode::Plain { gpus: Some(gpus) } => format!("{name}:gpu{gpus}"),
        Mode::Plain { gpus: None } => format!("{name}:0"),
    }
}

/// The worker id of a task that holds these slices: `node1:gpu2.25a`, `node1:gpu0,1`; in plain mode the daemon's own.
pub fn slot_id(name: &str, mode: &Mode, slices: &[Slice]) -> String {
    match mode {
        Mode::Plain { .. } => daemon_id(name, mode),
        Mode::Dynamic { .. } => {
            let mut slices: Vec<&Slice> = slices.iter().collect();
            slices.sort_by_key(|slice| slice.gpu_index);
            let without = |slice: &&Slice| {
                let label = slice.label.as_str();
                label.strip_prefix("gpu").unwrap_or(label).to_owned()
            };
            let labels: Vec<String> = slices.iter().map(without).collect();
            format!("{name}:gpu{}", labels.join(","))
        }
    }
}

/// Whether a worker of this id is a slot of the daemons called `name`: `node1:gpu0.5a` is `node1`'s.
pub fn is_slot_of(name: &str, worker: &str) -> bool {
    worker
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix(":gpu"))
        .is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn slice(label: &str, index: u32, share: u16) -> Slice {
        serde_json::from_value(serde_json::json!({
            "label": label, "gpu_uuid": format!("GPU-{index}"), "gpu_index": index, "memory_limit_bytes": 1 << 30,
            "share": share, "memory_used_bytes": 0, "memory_peak_bytes": 0, "processes": 0, "denials": 0,
            "last_denied_bytes": null, "enforcement": "interposer",
        }))
        .unwrap()
    }

    #[test]
    fn workers_are_named_as_the_stock_agent_names_them() {
        let dynamic = Mode::Dynamic { gpus: "0-2".into() };
        assert_eq!(daemon_id("node1", &dynamic), "node1:dgpu0-2");
        let quarter = [slice("gpu2.25a", 2, 250)];
        assert_eq!(slot_id("node1", &dynamic, &quarter), "node1:gpu2.25a");
        let two = [slice("gpu1", 1, 1000), slice("gpu0", 0, 1000)];
        assert_eq!(slot_id("node1", &dynamic, &two), "node1:gpu0,1");
        let plain = Mode::Plain {
            gpus: Some("0,1".into()),
        };
        assert_eq!(slot_id("node1", &plain, &two), "node1:gpu0,1");
        assert_eq!(
            slot_id("node1", &Mode::Plain { gpus: None }, &two),
            "node1:0"
        );
    }

    #[test]
    fn slots_of_a_name_are_told_from_daemons_and_from_other_names() {
        for (worker, is) in [
            ("node1:gpu0.5a", true),
            ("node1:gpu0,1", true),
            ("node1:dgpu0-2", false),
            ("node10:gpu0", false),
            ("node1:0", false),
            ("node1:gpuall", false),
        ] {
            assert_eq!(is_slot_of("node1", worker), is, "{worker}");
        }
    }

    #[test]
    fn fractions_are_written_without_needless_digits() {
        assert_eq!(
            [125, 250, 500, 875, 1000].map(share_text),
            ["0.125", "0.25", "0.5", "0.875", "1"]
        );
    }
}
