//! JupyterHub with examples/jupyterhub_config.py: a notebook runs in its slice. Skipped with a reason where
//! `DIVVY_TEST_JUPYTERHUB` names no Python with JupyterHub.

mod exhaustive {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::Duration;

    use divvy_e2e::{GIB, Home};
    use divvy_testkit::bounded_for;
    use serde_json::{Value, json};

    /// The hub, its proxy, a server and a kernel start one after the other.
    const PATIENCE: Duration = Duration::from_secs(600);

    #[test]
    fn a_notebook_has_the_limit_of_its_users_choice_and_its_job_ends_with_the_server() {
        let Some(python) = std::env::var_os("DIVVY_TEST_JUPYTERHUB").map(PathBuf::from) else {
            eprintln!("skipped: DIVVY_TEST_JUPYTERHUB names no Python with JupyterHub");
            return;
        };
        let Some(proxy) = proxy() else {
            eprintln!("skipped: there is no configurable-http-proxy in PATH");
            return;
        };
        let home = Home::new("a100-80gb:1");
        let _daemon = home.daemon(&[]);
        let folder = home.scratch().join("hub");
        std::fs::create_dir(&folder).expect("the folder is ours");
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut scene: Command = home.command(python.to_str().expect("a plain path"));
        scene
            .arg(root.join("clients/jupyterhub_scene.py"))
            .arg(&folder)
            .arg(root.join("../../examples/jupyterhub_config.py"))
            .arg(home.program("divvy"))
            .arg(proxy);
        #[expect(
            clippy::disallowed_methods,
            reason = "a hub and a notebook, bounded by more than the usual minute"
        )]
        let output = bounded_for(PATIENCE, "the scene ends", || scene.output());
        let output = output.expect("Python starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let saw: Value = serde_json::from_slice(&output.stdout).expect("the scene prints JSON");
        let bytes = |key: &str| saw[key].as_u64().expect("a number");
        assert!(bytes("total") < 20 * GIB && bytes("taken") <= bytes("total"));
        assert!(bytes("taken") + GIB > bytes("total"), "{saw}");
        assert_eq!(saw["running"], json!([["jupyter-ana", 250]]));
        assert_eq!(saw["stopped"][0], "ended", "{saw}");
        assert_eq!(saw["refused"], json!([true, true, true]), "{saw}");
        let log = saw["log"].to_string();
        for expected in ["GPU 'a dozen' is not one of", "GiB needed"] {
            assert!(log.contains(expected), "{log}");
        }
    }

    fn proxy() -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        let places = std::env::split_paths(&path);
        let mut files = places.map(|folder| folder.join("configurable-http-proxy"));
        files.find(|file| file.is_file())
    }
}
