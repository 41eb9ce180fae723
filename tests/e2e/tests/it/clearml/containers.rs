//! Tasks in containers under a real Docker daemon, with the stock agent inside.

use std::sync::Arc;

use divvy_e2e::Home;
use divvy_e2e::clearml::{Agent, Scene, Server, image};
use divvy_e2e::engine::{Engine, Kind};
use divvy_testkit::Bounded as _;
use serde_json::json;

use crate::clearml::placement;

/// An engine with the image, and an instance that uses it; nothing where there can be no engine, which was said.
fn scene(sim: &str) -> Option<(Arc<Engine>, Scene)> {
    let engine = Engine::shared(Kind::Docker)?;
    image::make(&engine);
    let home = Home::new(sim)
        .variable("DOCKER_HOST", &engine.host())
        .variable("DIVVY_FORM", "");
    let scene = Scene::around(Arc::new(Server::stub()), home, "node1", Agent::Stock);
    // The server is on this machine's loopback, programs note their runs in the test's folder and wait for gates there, and
    // nothing is installed.
    let folder = scene.home.scratch().display().to_string();
    scene.configure(&format!(
        "agent {{\n  default_docker.image: \"{}\"\n  \
         extra_docker_arguments: [\"--network\", \"host\", \"-v\", \"{folder}/runs:{folder}/runs\", \
         \"-v\", \"{folder}/gates:{folder}/gates\", \"-e\", \"CLEARML_AGENT_SKIP_PYTHON_ENV_INSTALL=1\"]\n  \
         docker_init_bash_script: [\"export LOCAL_PYTHON=python3\"]\n}}\n",
        image::AGENT_IMAGE
    ));
    Some((engine, scene))
}

#[test]
fn a_container_whose_task_is_aborted_is_gone() {
    let Some((engine, scene)) = scene("a100-80gb:1") else {
        return;
    };
    let task = scene.enqueued("half_gpu", "task");
    let _daemon = scene.daemon("0", &["half_gpu=0.5"], &["--docker"]);
    assert_eq!(task.runs_on(), "gpu0.5a");
    let job = task.jobs().pop().expect("it runs");
    scene
        .server
        .must("tasks.stop", json!({ "task": task.id() }));
    task.becomes("stopped");
    engine.is_rid_of(&job.id, scene.home.path());
}

mod exhaustive {
    use super::*;

    #[test]
    fn the_seeds_example_runs_in_containers_with_the_stock_agent_inside() {
        let Some((_engine, scene)) = scene("a100-80gb:3") else {
            return;
        };
        placement::seeds_example_with(&scene, &["--docker"]);
        scene.assert_no_complaints();
    }

    #[test]
    fn a_container_that_is_killed_frees_its_slot() {
        let Some((engine, scene)) = scene("a100-80gb:1") else {
            return;
        };
        let [task, next] = ["task", "next"].map(|name| scene.enqueued("single_gpu", name));
        let _daemon = scene.daemon("0", &["single_gpu=1"], &["--docker"]);
        assert_eq!(task.runs_on(), "gpu0");
        let job = task.jobs().pop().expect("it runs");
        let containers = engine.containers_of(&job.id, scene.home.path());
        assert_eq!(containers.len(), 1, "{containers:?}");
        let killed = engine
            .docker(&["kill", "--signal", "KILL", &containers[0]])
            .wait_bounded();
        assert!(killed.expect("docker was found").success());
        let fields = task.becomes("failed");
        assert_eq!(fields["status_reason"], "worker execution exit code 137");
        assert_eq!(next.runs_on(), "gpu0");
    }

    #[test]
    fn a_tasks_own_arguments_do_not_let_it_out() {
        let Some((_engine, scene)) = scene("a100-80gb:1") else {
            return;
        };
        scene.open("task");
        let script = format!(
            "import ctypes, os\n\
             print('visible', os.environ.get('KEPT'), os.environ.get('LD_PRELOAD'), os.path.exists('/host/etc'), flush=True)\n\
             cuda = ctypes.CDLL('libcuda.so.1')\n\
             free, total, context, device = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_int()\n\
             assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0\n\
             assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0\n\
             assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0\n\
             print('total', total.value, flush=True)\n\
             {}",
            scene.program("task", 0)
        );
        let arguments =
            "--gpus all --privileged -v /:/host -e LD_PRELOAD=/x.so -e KEPT=yes --pid=host";
        let container =
            json!({ "container": { "image": image::AGENT_IMAGE, "arguments": arguments } });
        let task = scene
            .draft("task", &script, &container)
            .enqueue("quarter_gpu");
        let _daemon = scene.daemon("0", &["quarter_gpu=0.25"], &["--docker"]);
        task.becomes("completed");
        let log = task.log();
        let seen = log.lines().find(|line| line.starts_with("visible yes"));
        let seen = seen.unwrap_or_else(|| panic!("{log}"));
        assert!(seen.ends_with("False") && !seen.contains("/x.so"), "{seen}");
        let total = log
            .lines()
            .find_map(|line| line.strip_prefix("total "))
            .expect("it was printed");
        let total: u64 = total.trim().parse().expect("bytes");
        assert!(total <= 20 * divvy_e2e::GIB, "{total}");
        for argument in ["--gpus", "--privileged", "/:/host", "LD_PRELOAD", "--pid"] {
            assert!(
                log.contains(argument),
                "nobody is told about {argument}: {log}"
            );
        }
    }

    #[test]
    fn a_daemon_killed_while_containers_run_knows_them_again() {
        let Some((_engine, scene)) = scene("a100-80gb:1") else {
            return;
        };
        let [first, second] = ["first", "second"].map(|name| scene.enqueued("half_gpu", name));
        let daemon = scene.daemon("0", &["half_gpu=0.5"], &["--docker"]);
        assert_eq!(
            (first.runs_on(), second.runs_on()),
            ("gpu0.5a".to_owned(), "gpu0.5b".to_owned())
        );
        daemon.crash();
        first.completes("first");
        let third = scene.enqueued("half_gpu", "third");
        let _daemon = scene.daemon("0", &["half_gpu=0.5"], &["--docker"]);
        assert_eq!(third.runs_on(), "gpu0.5a");
        second.completes("second");
        third.completes("third");
        assert_eq!([first, second, third].map(|task| task.runs()), [1, 1, 1]);
    }
}
