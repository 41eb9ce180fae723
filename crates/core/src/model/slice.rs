//! Slices: what a job holds of one GPU (a grant), and its label.

use serde::{Deserialize, Serialize};

use crate::mig::{MigProfile, Placement};
use crate::units::{Bytes, GpuUuid, Share};

/// A job's part of one GPU. A job holds one for each GPU it runs on: its slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    pub gpu: GpuUuid,
    pub index: u32,
    /// The limit, a multiple of 2 MiB.
    pub memory: Bytes,
    pub share: Share,
    /// `gpu2.25a`: share 0.25 on GPU 2, and a letter that no other slice of that GPU and share has. `gpu2`: all of it.
    /// `gpu0.1g.5gb@3`: a MIG instance of GPU 0, at its memory slice 3.
    pub label: String,
    /// The MIG instance that it is; memory and share are the instance's then.
    #[serde(default)]
    pub mig: Option<MigGrant>,
}

/// The MIG instance that a job holds. It is neither moved nor resized while the job holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigGrant {
    pub profile: MigProfile,
    /// With the GPU's UUID, the key of the instance.
    pub placement: Placement,
}

impl MigGrant {
    /// `gpu0.1g.5gb@3`.
    pub(crate) fn label(&self, index: u32) -> String {
        format!("gpu{index}.{}@{}", self.profile, self.placement.start)
    }
}

/// The label of a share on a GPU, with the lowest letters that `taken` does not refuse: a to z, then aa, ab and so on.
pub(crate) fn label(index: u32, share: Share, taken: impl Fn(&str) -> bool) -> String {
    if share == Share::FULL {
        return format!("gpu{index}");
    }
    let share = share.to_string();
    let stem = format!("gpu{index}{}", share.trim_start_matches('0'));
    (0..)
        .map(|nth| format!("{stem}{}", letters(nth)))
        .find(|label| !taken(label))
        .expect("labels never run out")
}

/// Labels as screens and messages show them: `gpu2,3` for two whole GPUs, `gpu1:0.25c` for the slice `gpu1.25c`.
pub fn show_labels<'a>(labels: impl IntoIterator<Item = &'a str>) -> String {
    let mut shown = String::new();
    let mut whole_before = false;
    for label in labels {
        let number = label.strip_prefix("gpu").unwrap_or_default();
        let is_whole = number.parse::<u32>().is_ok();
        if !shown.is_empty() {
            shown.push(',');
        }
        match number.split_once('.') {
            Some((gpu, share)) if !share.contains('@') => shown += &format!("gpu{gpu}:0.{share}"),
            None if is_whole && whole_before => shown += number,
            _ => shown += label,
        }
        whole_before = is_whole;
    }
    shown
}

/// 0 is `a`, 25 is `z`, 26 is `aa`.
fn letters(nth: u32) -> String {
    let last = char::from(b'a' + u8::try_from(nth % 26).expect("below 26"));
    match nth / 26 {
        0 => last.to_string(),
        before => letters(before - 1) + &last.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_go_on_after_z() {
        let all: Vec<String> = [0, 1, 25, 26, 27, 51, 52, 701, 702]
            .into_iter()
            .map(letters)
            .collect();
        assert_eq!(all, ["a", "b", "z", "aa", "ab", "az", "ba", "zz", "aaa"]);
    }

    #[test]
    fn the_label_of_a_slice_is_shown_as_a_share_of_one_gpu() {
        for (labels, shown) in [
            (&["gpu1.25c"][..], "gpu1:0.25c"),
            (&["gpu12.005ab"], "gpu12:0.005ab"),
            (&["gpu2", "gpu3"], "gpu2,3"),
            (&["gpu0.5a", "gpu1.5a"], "gpu0:0.5a,gpu1:0.5a"),
            (&["gpu0.5a", "gpu1", "gpu2"], "gpu0:0.5a,gpu1,2"),
            (&["gpu0.1g.5gb@3"], "gpu0.1g.5gb@3"),
            (&["gpu0-unknown7", "b\u{1b}"], "gpu0-unknown7,b\u{1b}"),
            (&[], ""),
        ] {
            assert_eq!(show_labels(labels.iter().copied()), shown, "{labels:?}");
        }
    }

    #[test]
    fn labels_read_as_the_stock_agent_writes_them() {
        let free = |_: &str| false;
        let share = |thousandths| Share::from_thousandths(thousandths).unwrap();
        assert_eq!(label(2, share(250), free), "gpu2.25a");
        assert_eq!(
            label(0, share(125), |label| label == "gpu0.125a"),
            "gpu0.125b"
        );
        assert_eq!(label(1, share(5), free), "gpu1.005a");
        assert_eq!(label(3, Share::FULL, free), "gpu3");
    }
}
