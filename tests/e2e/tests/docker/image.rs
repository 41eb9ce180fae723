//! What an image itself brings along: variables, links, volumes.

use std::path::Path;

use divvy_e2e::GIB;
use divvy_e2e::engine::{Engine, IMAGE, Kind};

use super::{ENGINE, got, reports, scene};

/// The tests' image with changes, as `docker commit` makes one; `script` is run in it before.
fn image(engine: &Engine, name: &str, script: &str, changes: &[&str]) {
    let made = format!("made-{name}");
    let _ = engine.ask(&["run", "--name", &made, IMAGE, "sh", "-c", script]);
    let mut words = vec!["commit"];
    for change in changes {
        words.extend(["--change", change]);
    }
    words.extend([made.as_str(), name]);
    let _ = engine.own(&words);
    let _ = engine.ask(&["rm", &made]);
}

#[test]
fn an_images_own_variables_do_not_switch_the_limiter_off() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let own = "mkdir /opt; ln -s /run/divvy-job/libcuda_real.so.1 /opt/libcuda.so.1";
    let changes = [
        "ENV DIVVY_SHIM=off",
        "ENV DIVVY_SLICE=/nowhere",
        "ENV LD_LIBRARY_PATH=/opt",
        "CMD [\"cudarc_probe\",\"fill\",\"--route\",\"linear\"]",
    ];
    image(&engine, "divvy-test-env", own, &changes);
    let run = ["docker", "run", "--gpu-memory", "4G", "divvy-test-env"];
    let slice = [
        "docker",
        "slice",
        "--gpu-memory",
        "4G",
        "--",
        ENGINE.program(),
        "run",
        "--rm",
        "divvy-test-env",
    ];
    for words in [&run[..], &slice] {
        let said = home.divvy(words).ok();
        let report = &reports(&said.stdout)[0];
        assert!(
            (3 * GIB..4 * GIB).contains(&got(report)),
            "{words:?}: {report}"
        );
    }
}

#[test]
fn a_link_of_the_image_leads_no_mount_over_the_limiter() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let links = "ln -s /run/divvy-job /free; ln -s /etc /conf; ln -s /tmp /harmless";
    image(&engine, "divvy-test-links", links, &[]);
    image(&engine, "divvy-test-volume", links, &["VOLUME /free/slice"]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let refused = |image: &str, target: &str| {
        let mount = format!("{}:{target}", gates.display());
        let words = [
            "docker",
            "run",
            "--gpu-memory",
            "4G",
            "-v",
            &mount,
            image,
            "true",
        ];
        let said = home.divvy(&words).exits(125);
        assert!(
            said.stderr.contains("the image leads"),
            "{target}: {}",
            said.stderr
        );
    };
    refused("divvy-test-links", "/free/slice");
    // Podman shows what is to be mounted there, and not the link below.
    if ENGINE == Kind::Docker {
        refused("divvy-test-links", "/conf");
    }
    refused("divvy-test-volume", "/data");
    let mount = format!("{}:/harmless", gates.display());
    let words = [
        "docker",
        "run",
        "--gpu-memory",
        "4G",
        "-v",
        &mount,
        "divvy-test-links",
        "sh",
        "-c",
        "exit 0",
    ];
    let _ = home.divvy(&words).ok();
}

#[test]
fn a_volume_that_is_a_folder_of_the_host_is_judged_as_that_folder() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let home_folder = format!("device={}", home.path().display());
    let gates = format!(
        "device={}",
        Path::new(&home.gate("x")).parent().unwrap().display()
    );
    for (name, device) in [("ours", &home_folder), ("theirs", &gates)] {
        let name = format!("{name}-{}", std::process::id());
        let volume = [
            "volume",
            "create",
            "--opt",
            "type=none",
            "--opt",
            "o=bind",
            "--opt",
            device,
            &name,
        ];
        let _ = engine.ask(&volume);
        let mount = format!("{name}:/data");
        let words = [
            "docker",
            "run",
            "--gpu-memory",
            "4G",
            "-v",
            &mount,
            IMAGE,
            "sh",
            "-c",
            "exit 0",
        ];
        let said = home.divvy(&words);
        match *device == home_folder {
            true => assert!(said.exits(125).stderr.contains("may not be mounted")),
            false => drop(said.ok()),
        }
    }
}
