//! The GPUs that a task sees: Slurm's choice for the task, in the daemon's UUIDs.

/// `CUDA_VISIBLE_DEVICES` of a task. `step` is Slurm's list for the step (`SLURM_STEP_GPUS`) and `task` the list that
/// Slurm gave the task. Where neither says anything of these GPUs, the task sees all GPUs of its slice.
///
/// Slurm numbers a task's GPUs from 0 where it hides the others (`ConstrainDevices`), and as the node does elsewhere.
pub fn devices(gpus: &[(u32, String)], step: Option<&str>, task: Option<&str>) -> String {
    let known = |number: u32| gpus.iter().any(|(gpu, _)| *gpu == number);
    let all: Vec<u32> = gpus.iter().map(|(number, _)| *number).collect();
    let in_step = step
        .and_then(numbers)
        .filter(|step| step.iter().all(|number| known(*number)))
        .unwrap_or(all);
    let in_task = task.and_then(numbers).and_then(|task| {
        if task.iter().all(|number| in_step.contains(number)) {
            return Some(task);
        }
        let nth = |place: &u32| in_step.get(usize::try_from(*place).ok()?).copied();
        task.iter().map(nth).collect()
    });
    let chosen = in_task.unwrap_or(in_step);
    let uuids = chosen.iter().filter_map(|number| {
        let gpu = gpus.iter().find(|(gpu, _)| gpu == number)?;
        Some(gpu.1.as_str())
    });
    uuids.collect::<Vec<_>>().join(",")
}

/// The numbers of a list, `0,2`; `None` for anything else.
pub fn numbers(text: &str) -> Option<Vec<u32>> {
    let numbers: Option<Vec<u32>> = text.split(',').map(|word| word.parse().ok()).collect();
    numbers.filter(|numbers| !numbers.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> Vec<(u32, String)> {
        [(2, "GPU-c"), (3, "GPU-d")]
            .map(|(number, uuid)| (number, uuid.to_owned()))
            .to_vec()
    }

    #[test]
    fn a_task_sees_the_gpus_that_slurm_gave_it() {
        for (step, task, seen) in [
            (None, None, "GPU-c,GPU-d"),
            (Some("3"), None, "GPU-d"),
            // Slurm's own list as the node numbers GPUs, and as a task numbers those that it can open.
            (Some("2,3"), Some("3"), "GPU-d"),
            (Some("2,3"), Some("1"), "GPU-d"),
            (Some("3"), Some("0"), "GPU-d"),
            (None, Some("0,1"), "GPU-c,GPU-d"),
            // A user's own values choose among the slice's GPUs at most.
            (Some("7"), Some("9"), "GPU-c,GPU-d"),
            (Some("x"), Some("GPU-z"), "GPU-c,GPU-d"),
            (Some(""), Some(""), "GPU-c,GPU-d"),
        ] {
            assert_eq!(devices(&gpus(), step, task), seen, "{step:?} {task:?}");
        }
    }
}
