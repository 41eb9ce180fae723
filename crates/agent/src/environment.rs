//! The environment of a job: what was submitted, and what holds it to its slice.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_core::{Grant, QueueName};

use crate::config::Simulated;

/// What a job's environment is made from.
pub struct Surroundings<'a> {
    pub job: &'a str,
    pub queue: &'a QueueName,
    pub grants: &'a [Grant],
    pub slice: &'a Path,
    pub preload: &'a Path,
    pub simulated: Option<&'a Simulated>,
}

/// Adds the slice's variables to the submitted ones; what was submitted under these names is replaced, except that
/// preloaded libraries and library folders of the user's own stay, after ours.
pub fn for_job(
    mut env: BTreeMap<String, String>,
    around: &Surroundings<'_>,
) -> BTreeMap<String, String> {
    let uuids = around
        .grants
        .iter()
        .map(|grant| grant.gpu.as_str())
        .collect::<Vec<_>>()
        .join(",");
    let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
    set("CUDA_VISIBLE_DEVICES", uuids.clone());
    set("NVIDIA_VISIBLE_DEVICES", uuids);
    set("DIVVY_SLICE", around.slice.display().to_string());
    set("DIVVY_JOB_ID", around.job.to_string());
    set("DIVVY_QUEUE", around.queue.to_string());
    if let Some(simulated) = around.simulated {
        set("DIVVY_SIM", simulated.models.clone());
        set("DIVVY_SIM_STATE", simulated.state.display().to_string());
        put_first(&mut env, "LD_LIBRARY_PATH", &simulated.lib, ":");
    }
    // The loader takes blanks as separators as well (ld.so(8)).
    put_first(&mut env, "LD_PRELOAD", around.preload, ": ");
    env
}

fn put_first(env: &mut BTreeMap<String, String>, name: &str, path: &Path, separators: &str) {
    let path = path.display().to_string();
    let before = env.remove(name).unwrap_or_default();
    // Ours may be there already, when a job starts another.
    let others = before
        .split(|byte| separators.contains(byte))
        .filter(|other| !other.is_empty() && *other != path);
    let value = std::iter::once(path.as_str())
        .chain(others)
        .collect::<Vec<_>>()
        .join(":");
    env.insert(name.to_owned(), value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use divvy_core::{Bytes, GpuUuid, Share};

    fn around<'a>(
        grants: &'a [Grant],
        queue: &'a QueueName,
        simulated: Option<&'a Simulated>,
    ) -> Surroundings<'a> {
        Surroundings {
            job: "3",
            queue,
            grants,
            slice: Path::new("/run/slices/3"),
            preload: Path::new("/lib/libdivvy_preload.so"),
            simulated,
        }
    }

    fn grant(byte: u8) -> Grant {
        let share = Share::from_thousandths(250).unwrap();
        Grant {
            gpu: GpuUuid::from_bytes([byte; 16]),
            index: 0,
            memory: Bytes::gib(1),
            share,
            label: "gpu0.25a".into(),
            mig: None,
        }
    }

    #[test]
    fn a_job_sees_its_gpus_and_the_interposer_comes_first() {
        let grants = [grant(1), grant(2)];
        let queue = QueueName::default_queue();
        let env = BTreeMap::from([
            (
                "LD_PRELOAD".to_owned(),
                "/a.so /lib/libdivvy_preload.so:/b.so".to_owned(),
            ),
            ("CUDA_VISIBLE_DEVICES".to_owned(), "7".to_owned()),
            ("HOME".to_owned(), "/home/u".to_owned()),
        ]);
        let env = for_job(env, &around(&grants, &queue, None));
        assert_eq!(env["LD_PRELOAD"], "/lib/libdivvy_preload.so:/a.so:/b.so");
        let uuids = format!(
            "{},{}",
            GpuUuid::from_bytes([1; 16]),
            GpuUuid::from_bytes([2; 16])
        );
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], uuids);
        assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], uuids);
        assert_eq!(
            (env["DIVVY_JOB_ID"].as_str(), env["DIVVY_QUEUE"].as_str()),
            ("3", "default")
        );
        assert_eq!(
            (env["DIVVY_SLICE"].as_str(), env["HOME"].as_str()),
            ("/run/slices/3", "/home/u")
        );
        assert!(!env.contains_key("DIVVY_SIM") && !env.contains_key("LD_LIBRARY_PATH"));
    }

    #[test]
    fn with_simulated_gpus_the_simulated_libraries_are_found_first() {
        let simulated = Simulated {
            models: "l4:1".into(),
            lib: "/run/sim/lib".into(),
            state: "/run/sim/state".into(),
        };
        let queue = QueueName::default_queue();
        let env = BTreeMap::from([(
            "LD_LIBRARY_PATH".to_owned(),
            "/usr/local/cuda/lib64".to_owned(),
        )]);
        let env = for_job(env, &around(&[], &queue, Some(&simulated)));
        assert_eq!(env["LD_LIBRARY_PATH"], "/run/sim/lib:/usr/local/cuda/lib64");
        assert_eq!(
            (env["DIVVY_SIM"].as_str(), env["DIVVY_SIM_STATE"].as_str()),
            ("l4:1", "/run/sim/state")
        );
    }
}
