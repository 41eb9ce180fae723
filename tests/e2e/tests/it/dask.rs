//! Dask with the recipe of docs/engines.md: workers in slices of their own, and a LocalCluster in one slice. Skipped with a
//! reason where `DIVVY_TEST_DASK` names no Python with Dask.

mod exhaustive {
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use divvy_e2e::{GIB, Home};
    use divvy_testkit::bounded_for;
    use serde_json::Value;

    /// A scheduler, two workers, one of them twice, and a cluster of two processes start on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(600);

    #[test]
    fn a_worker_keeps_the_limit_of_its_slice_and_the_processes_of_a_program_share_one() {
        let Some(python) = std::env::var_os("DIVVY_TEST_DASK").map(PathBuf::from) else {
            eprintln!("skipped: DIVVY_TEST_DASK names no Python with Dask");
            return;
        };
        let home = Home::new("a100-80gb:1");
        let _daemon = home.daemon(&[]);
        let folder = home.scratch().join("dask");
        std::fs::create_dir(&folder).expect("the folder is ours");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut scene = home.command(python.to_str().expect("a plain path"));
        scene
            .arg(root.join("clients/dask_scene.py"))
            .arg(&folder)
            .arg(home.program("divvy"));
        #[expect(
            clippy::disallowed_methods,
            reason = "a cluster of Dask, bounded by more than the usual minute"
        )]
        let output = bounded_for(PATIENCE, "the scene ends", || scene.output());
        let output = output.expect("Python starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let saw: Value = serde_json::from_slice(&output.stdout).expect("the scene prints JSON");
        let bytes = |saw: &Value, key: &str| saw[key].as_u64().expect("a number");
        for round in ["workers", "again"] {
            for worker in [&saw[round][0], &saw[round][1]] {
                let (total, got) = (bytes(worker, "total"), bytes(worker, "got"));
                assert!(total < 20 * GIB && got <= total, "{round}: {saw}");
                assert!(got + GIB > total, "{round}: {saw}");
            }
            assert_ne!(saw[round][0]["job"], saw[round][1]["job"], "{saw}");
        }
        // Dask lists its workers in the order of their addresses, and one of them is new.
        let same = |key: &str| {
            let of = |round: &str| [&saw[round][0][key], &saw[round][1][key]].map(Value::to_string);
            let (before, after) = (of("workers"), of("again"));
            before.iter().filter(|one| after.contains(one)).count()
        };
        assert_eq!((same("job"), same("pid")), (2, 1), "{saw}");
        let [one, other] = [&saw["local"][0], &saw["local"][1]];
        assert_eq!(one["job"], other["job"], "{saw}");
        let sum = bytes(one, "got") + bytes(other, "got");
        let limit = bytes(one, "total");
        assert!(
            limit < 40 * GIB && sum <= limit && sum + 2 * GIB > limit,
            "{saw}"
        );
    }
}
