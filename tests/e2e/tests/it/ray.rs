//! Ray itself with the package `divvy-ray`: the scenes of `python/divvy-ray/tests/with_ray.py`. Skipped with a reason where
//! `DIVVY_TEST_RAY` names no Python with Ray.

mod exhaustive {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::Duration;

    use divvy_e2e::Home;
    use divvy_testkit::{Bounded as _, bounded_for};

    /// Ray starts in ten seconds on a busy machine, a worker in three, and a storm of 1,000 tasks takes a quarter of an hour.
    const PATIENCE: Duration = Duration::from_secs(3600);

    #[test]
    fn placements_agree_and_limits_hold_for_actors_tasks_and_groups() {
        scenes("Placement");
    }

    #[test]
    fn what_fails_is_an_exception_of_the_task_and_a_daemon_may_restart() {
        scenes("Failures");
    }

    #[test]
    fn a_gpu_in_mig_mode_is_refused_in_the_tasks_exception() {
        scenes("MigMode");
    }

    #[test]
    fn replicas_of_serve_and_workers_of_train_have_the_limit_of_their_fraction() {
        scenes("Serve");
        scenes("Train");
    }

    #[test]
    fn tasks_with_random_kills_leave_no_slice_and_none_exceeds_its_limit() {
        scenes("Storm");
    }

    /// Runs a class of scenes, which starts a daemon and a Ray of its own.
    fn scenes(class: &str) {
        let Some(ray) = std::env::var_os("DIVVY_TEST_RAY").map(PathBuf::from) else {
            eprintln!("skipped: DIVVY_TEST_RAY names no Python with Ray");
            return;
        };
        let home = Home::new("a100-80gb:2");
        let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/divvy-ray");
        let package = package.canonicalize().expect("the package is there");
        let python = environment(&ray, &home.scratch().join("venv"), &package);
        let divvy = PathBuf::from(home.program("divvy"));
        let programs = divvy.parent().expect("a folder");
        let tasks = std::env::var("DIVVY_RAY_TASKS").unwrap_or_else(|_| "40".to_owned());
        let mut command = Command::new(python);
        command
            .args(["-m", "unittest", "--verbose"])
            .arg(format!("tests.with_ray.{class}"))
            .current_dir(&package)
            .env("DIVVY_TEST_PROGRAMS", programs)
            .env("DIVVY_RAY_TASKS", tasks)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("RAY_USAGE_STATS_ENABLED", "0")
            .env("TMPDIR", home.scratch());
        let what = format!("the scenes of {class} end");
        #[expect(
            clippy::disallowed_methods,
            reason = "a run of many programs, bounded by more than the usual minute"
        )]
        let output = bounded_for(PATIENCE, what, || command.output());
        let output = output.expect("Python starts");
        let said = String::from_utf8_lossy(&output.stderr);
        let shown = String::from_utf8_lossy(&output.stdout);
        eprintln!("{shown}{said}");
        assert!(output.status.success(), "the scenes of {class} failed");
    }

    /// A Python of its own beside Ray's packages, with the package installed as its wheel installs it.
    fn environment(ray: &Path, folder: &Path, package: &Path) -> PathBuf {
        let answer = |python: &Path, words: &[&str]| {
            let output = Command::new(python)
                .args(words)
                .output_bounded()
                .expect("Python starts");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{words:?}: {said}");
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        let at = folder.to_str().expect("a plain path");
        let _ = answer(ray, &["-m", "venv", "--without-pip", at]);
        let own = folder.join("bin/python");
        let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let (theirs, ours) = (
            answer(ray, &["-c", packages]),
            answer(&own, &["-c", packages]),
        );
        let source = package.join("src");
        let hook = fs::read_to_string(source.join("divvy_ray.pth")).expect("the hook");
        let lines = format!("{theirs}\n{}\n{hook}", source.display());
        fs::write(Path::new(&ours).join("ray.pth"), lines).expect("the folder is ours");
        own
    }
}
