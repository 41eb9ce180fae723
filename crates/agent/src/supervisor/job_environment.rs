//! The environment of a job: the submitted variables, and those that hold it to its slice.

use std::collections::BTreeMap;
use std::path::Path;

use divvy_core::QueueName;

use crate::model::simulated_gpus::Simulated;

/// What a job's environment is made from.
pub struct JobEnvironment<'a> {
    pub job: &'a str,
    pub queue: &'a QueueName,
    /// UUIDs of its GPUs, or of the MIG devices that are its parts of them.
    pub visible: &'a [String],
    /// Its slice's folder; `None` where the hardware holds it, and the limiter limits nothing.
    pub slice: Option<&'a Path>,
    pub preload: &'a Path,
    pub simulated: Option<&'a Simulated>,
}

/// The limiter's variable that has `driver` where an engine numbers the GPUs itself (`shim/src/visible_devices.rs`).
pub const NUMBERING: &str = "DIVVY_NUMBERING";

/// The loader takes blanks as separators in `LD_PRELOAD` as well (ld.so(8)).
const LOADER_SEPARATORS: &str = ": ";

/// The variables of a program that the driver shows all GPUs of the machine: as [`for_job`], but `CUDA_VISIBLE_DEVICES`
/// counts the job's GPUs from 0, as scripts and programs do. The limiter tells the driver which GPUs they are; for that it
/// is loaded on MIG instances too, where it limits nothing.
pub fn for_program(
    env: BTreeMap<String, String>,
    around: &JobEnvironment<'_>,
) -> BTreeMap<String, String> {
    let mut env = for_job(env, around);
    if !around.visible.is_empty() {
        let numbers = (0..around.visible.len()).map(|number| number.to_string());
        let numbers = numbers.collect::<Vec<_>>().join(",");
        env.insert("CUDA_VISIBLE_DEVICES".to_owned(), numbers);
        put_first(&mut env, "LD_PRELOAD", around.preload, LOADER_SEPARATORS);
    }
    env
}

/// Whether the program counts MIG instances, which only the limiter translates.
pub fn counts_instances(env: &BTreeMap<String, String>) -> bool {
    let begins = |name: &str| env.get(name).is_some_and(|list| list.starts_with("MIG-"));
    begins("NVIDIA_VISIBLE_DEVICES") && !begins("CUDA_VISIBLE_DEVICES")
}

/// Adds the slice's variables to the submitted ones; what was submitted under these names is replaced, except that
/// preloaded libraries and library folders of the user's own stay, after ours.
pub fn for_job(
    mut env: BTreeMap<String, String>,
    around: &JobEnvironment<'_>,
) -> BTreeMap<String, String> {
    let uuids = around.visible.join(",");
    let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
    set("CUDA_VISIBLE_DEVICES", uuids.clone());
    set("NVIDIA_VISIBLE_DEVICES", uuids);
    set("DIVVY_JOB_ID", around.job.to_string());
    set("DIVVY_QUEUE", around.queue.to_string());
    if let Some(simulated) = around.simulated {
        set("DIVVY_SIM", simulated.models.clone());
        set("DIVVY_SIM_STATE", simulated.state.display().to_string());
        put_first(&mut env, "LD_LIBRARY_PATH", &simulated.lib, ":");
    }
    // Of a slice around this one.
    env.remove(NUMBERING);
    match around.slice {
        Some(slice) => {
            env.insert("DIVVY_SLICE".to_owned(), slice.display().to_string());
            put_first(&mut env, "LD_PRELOAD", around.preload, LOADER_SEPARATORS);
        }
        None => {
            env.remove("DIVVY_SLICE");
            remove_path(&mut env, "LD_PRELOAD", around.preload, LOADER_SEPARATORS);
        }
    }
    env
}

fn put_first(env: &mut BTreeMap<String, String>, name: &str, path: &Path, separators: &str) {
    let others = remove_path(env, name, path, separators);
    let path = path.display().to_string();
    let value = match others {
        Some(others) => format!("{path}:{others}"),
        None => path,
    };
    env.insert(name.to_owned(), value);
}

/// Ours may be there already, when a job starts another. Answers what is left, if anything.
fn remove_path(
    env: &mut BTreeMap<String, String>,
    name: &str,
    path: &Path,
    separators: &str,
) -> Option<String> {
    let path = path.display().to_string();
    let before = env.remove(name)?;
    let others = before
        .split(|byte| separators.contains(byte))
        .filter(|other| !other.is_empty() && *other != path);
    let others = others.collect::<Vec<_>>().join(":");
    if others.is_empty() {
        return None;
    }
    env.insert(name.to_owned(), others.clone());
    Some(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around<'a>(
        visible: &'a [String],
        queue: &'a QueueName,
        simulated: Option<&'a Simulated>,
    ) -> JobEnvironment<'a> {
        JobEnvironment {
            job: "3",
            queue,
            visible,
            slice: Some(Path::new("/run/slices/3")),
            preload: Path::new("/lib/libdivvy_preload.so"),
            simulated,
        }
    }

    #[test]
    fn a_job_sees_its_gpus_and_the_interposer_comes_first() {
        let visible = ["GPU-1".to_owned(), "GPU-2".to_owned()];
        let queue = QueueName::default_queue();
        let env = BTreeMap::from([
            (
                "LD_PRELOAD".to_owned(),
                "/a.so /lib/libdivvy_preload.so:/b.so".to_owned(),
            ),
            ("CUDA_VISIBLE_DEVICES".to_owned(), "7".to_owned()),
            ("HOME".to_owned(), "/home/u".to_owned()),
        ]);
        let env = for_job(env, &around(&visible, &queue, None));
        assert_eq!(env["LD_PRELOAD"], "/lib/libdivvy_preload.so:/a.so:/b.so");
        let uuids = "GPU-1,GPU-2";
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
    fn a_program_counts_its_gpus_from_0_whatever_a_slice_around_it_does() {
        let visible = ["GPU-1".to_owned(), "GPU-2".to_owned()];
        let queue = QueueName::default_queue();
        let around = around(&visible, &queue, None);
        let outer = BTreeMap::from([(NUMBERING.to_owned(), "driver".to_owned())]);
        let env = for_program(outer.clone(), &around);
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "0,1");
        assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], "GPU-1,GPU-2");
        assert!(!env.contains_key(NUMBERING), "it was of a slice around");
    }

    #[test]
    fn a_program_on_a_mig_instance_counts_from_0_and_has_the_limiter_without_a_slice() {
        let visible = ["MIG-1".to_owned()];
        let queue = QueueName::default_queue();
        let on_instance = JobEnvironment {
            slice: None,
            ..around(&visible, &queue, None)
        };
        let outer = [
            ("LD_PRELOAD".to_owned(), "/a.so".to_owned()),
            ("DIVVY_SLICE".to_owned(), "/run/slices/2".to_owned()),
        ];
        let env = for_program(outer.clone().into(), &on_instance);
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "0");
        assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], "MIG-1");
        assert_eq!(env["LD_PRELOAD"], "/lib/libdivvy_preload.so:/a.so");
        assert!(!env.contains_key("DIVVY_SLICE"));
        assert!(counts_instances(&env));
        assert!(!counts_instances(&for_job(outer.into(), &on_instance)));
    }

    #[test]
    fn a_program_without_a_gpu_has_no_limiter() {
        let queue = QueueName::default_queue();
        let without = JobEnvironment {
            slice: None,
            ..around(&[], &queue, None)
        };
        let env = for_program(BTreeMap::new(), &without);
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "");
        assert!(!env.contains_key("LD_PRELOAD"));
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

    #[test]
    fn a_container_on_a_mig_instance_has_no_limiter_even_where_it_was_started_by_one_that_has() {
        let visible = ["MIG-1".to_owned()];
        let queue = QueueName::default_queue();
        let around = JobEnvironment {
            slice: None,
            ..around(&visible, &queue, None)
        };
        let parent = |preload: &str| {
            BTreeMap::from([
                ("LD_PRELOAD".to_owned(), preload.to_owned()),
                ("DIVVY_SLICE".to_owned(), "/run/slices/2".to_owned()),
            ])
        };
        let env = for_job(parent("/lib/libdivvy_preload.so"), &around);
        assert!(!env.contains_key("LD_PRELOAD") && !env.contains_key("DIVVY_SLICE"));
        assert_eq!(env["CUDA_VISIBLE_DEVICES"], "MIG-1");
        assert_eq!(env["NVIDIA_VISIBLE_DEVICES"], "MIG-1");
        let env = for_job(parent("/lib/libdivvy_preload.so:/a.so"), &around);
        assert_eq!(env["LD_PRELOAD"], "/a.so");
    }
}
