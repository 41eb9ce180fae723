use std::collections::BTreeMap;

use super::*;

fn told(variables: &[(&str, &str)]) -> Result<HookEnvironment, String> {
    let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
    HookEnvironment::of(&|name| variables.get(name).map(|&value| value.to_owned()))
}

/// The environment of a real Prolog, as slurmd 22.05.8 made it.
const PROLOG: &str = include_str!("../../tests/it/data/prolog-shard.env");

#[test]
fn what_slurm_tells_a_prolog_is_read() {
    let variables: Vec<(&str, &str)> = PROLOG
        .lines()
        .filter_map(|line| line.split_once('='))
        .collect();
    let told = told(&variables).unwrap();
    assert_eq!(
        (told.job, told.uid, told.node.as_str()),
        (1, Some(1000), "n1")
    );
    assert!(told.has_gpus);
    assert_eq!(told.gpu_memory, None);
}

#[test]
fn a_job_without_gpus_and_a_wrong_option_are_told_apart() {
    let none = told(&[("SLURM_JOB_ID", "7"), ("SLURMD_NODENAME", "n2")]).unwrap();
    assert!(!none.has_gpus);
    let with = told(&[
        ("SLURM_JOB_ID", "7"),
        ("SPANK_DIVVY_GPU_MEMORY", "8589934592"),
    ]);
    assert_eq!(with.unwrap().gpu_memory, Some(8 << 30));
    for (variables, part) in [
        (&[("SLURM_JOB_ID", "x")][..], "SLURM_JOB_ID"),
        (
            &[("SLURM_JOB_ID", "7"), ("SPANK_DIVVY_GPU_MEMORY", "8G")],
            "\"8G\"",
        ),
    ] {
        let error = told(variables).err().unwrap();
        assert!(error.contains(part), "{error}");
    }
}
