//! Images with a limit of their own, as `deploy/images` makes them.

use std::fs;
use std::path::Path;

use divvy_e2e::GIB;
use divvy_e2e::engine::{Engine, IMAGE};
use divvy_testkit::{Bounded as _, until};

use super::{got, reports, scene};

/// Builds an image from a Dockerfile of `deploy/images`, with a folder of files.
#[track_caller]
#[expect(clippy::unwrap_used, reason = "what goes wrong here fails the test")]
fn build(engine: &Engine, dockerfile: &str, context: &Path, name: &str, argument: &str) {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/images");
    let file = images.join(dockerfile);
    let words = [
        "build",
        "--network",
        "none",
        "--tag",
        name,
        "--build-arg",
        argument,
        "--build-arg",
        "LIMIT=4G",
        "--file",
        file.to_str().unwrap(),
        context.to_str().unwrap(),
    ];
    let output = engine
        .docker(&words)
        // The builder that comes with the engine needs no plug-in.
        .env("DOCKER_BUILDKIT", "0")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .output_bounded()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{dockerfile}: {}",
        String::from_utf8_lossy(&said)
    );
}

#[test]
fn an_image_with_a_fixed_limit_holds_it_without_a_daemon_and_others_inherit_it() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/images");
    let context = home.scratch().join("context");
    fs::create_dir(&context).unwrap();
    for name in ["divvy", "libdivvy_preload.so"] {
        fs::copy(home.program(name), context.join(name)).unwrap();
    }
    for name in ["entrypoint", "inside"] {
        fs::copy(images.join("fraction").join(name), context.join(name)).unwrap();
    }
    build(
        &engine,
        "fraction/Dockerfile",
        &context,
        "divvy-test-fraction",
        &format!("BASE={IMAGE}"),
    );
    build(
        &engine,
        "example/Dockerfile",
        &images.join("example"),
        "divvy-test-own",
        "FRACTION=divvy-test-fraction",
    );

    let simulator = format!(
        "{}:/usr/local/lib/divvy/libdivvy_sim.so",
        home.program("libdivvy_sim.so")
    );
    let run = [
        "run",
        "--rm",
        "-e",
        "DIVVY_SIM=a100-80gb:1",
        "-v",
        &simulator,
    ];
    // Its own command first, then one that clears its environment, as `docker exec` would.
    let script = "cudarc_probe fill --route linear; \
                  env -i DIVVY_SIM=$DIVVY_SIM DIVVY_SIM_STATE=$DIVVY_SIM_STATE LD_LIBRARY_PATH=$LD_LIBRARY_PATH \
                  /usr/bin/cudarc_probe fill --route async";
    let text = engine.ask(&[&run[..], &["divvy-test-fraction", "sh", "-c", script]].concat());
    let all = reports(&text);
    assert_eq!(all.len(), 2, "{text}");
    for report in &all {
        assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    }
    let text = engine.ask(&[&run[..], &["divvy-test-own"]].concat());
    assert!(text.contains("divvy"), "{text}");

    // Two containers of the image share a GPU, and each has the whole of its own limit.
    let gpu = home.scratch().join("gpu");
    fs::create_dir(&gpu).unwrap();
    let shared = format!("{}:/run/divvy/sim", gpu.display());
    let run = [&run[..], &["-v", &shared]].concat();
    let holds = "cudarc_probe hold --bytes 3221225472 --until-file /run/divvy/sim/gone";
    let first = ["-d", "divvy-test-fraction", "sh", "-c", holds];
    let first = engine.ask(&[&run[..], &first].concat());
    until("the first container holds its memory", || {
        let said = engine.ask(&["logs", first.trim()]);
        said.contains("held_bytes\":3221225472").then_some(())
    });
    let fills = [
        "divvy-test-fraction",
        "cudarc_probe",
        "fill",
        "--route",
        "linear",
    ];
    let text = engine.ask(&[&run[..], &fills].concat());
    let report = &reports(&text)[0];
    assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    assert_eq!(report["before"]["device_total_bytes"], 4 * GIB, "{report}");
    fs::write(gpu.join("gone"), "").unwrap();

    // Under a daemon the daemon's slice counts.
    let _daemon = home.daemon(&[]);
    let said = home
        .divvy(&[
            "docker",
            "run",
            "--gpu-memory",
            "2G",
            "divvy-test-fraction",
            "cudarc_probe",
            "fill",
            "--route",
            "linear",
        ])
        .ok();
    let report = &reports(&said.stdout)[0];
    assert!((GIB..2 * GIB).contains(&got(report)), "{report}");
}
