//! What an image itself brings along: variables, links, volumes.

use std::fs;
use std::path::Path;
use std::process::Command;

use divvy_e2e::engine::{Engine, IMAGE, Kind};
use divvy_e2e::{GIB, write_program};
use divvy_testkit::Bounded as _;

use super::{ENGINE, got, reports, scene, static_program};

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
        // Podman does not report every target; then the mount is refused, too.
        let part = match ENGINE {
            Kind::Docker => "a symlink of the image leads",
            Kind::Podman => "symlink",
        };
        let is_refused = said.stderr.contains("may not be mounted") && said.stderr.contains(part);
        assert!(is_refused, "{target}: {}", said.stderr);
    };
    refused("divvy-test-links", "/free/slice");
    refused("divvy-test-links", "/conf");
    refused("divvy-test-volume", "/data");
    let mount = format!("{}:/harmless/x", gates.display());
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

/// A library with the versions of glibc 2.27, as of Ubuntu 18.04, in a folder.
fn old_glibc(folder: &Path) {
    let (source, script) = (folder.join("libc.c"), folder.join("libc.map"));
    fs::write(&source, "int f(void) { return 0; }").expect("the folder can be written");
    fs::write(
        &script,
        "GLIBC_2.2.5 { global: f; }; GLIBC_2.27 { } GLIBC_2.2.5;",
    )
    .expect("the folder can be written");
    let made = Command::new("cc")
        .args(["-shared", "-nostdlib", "-o"])
        .arg(folder.join("libc.so.6"))
        .arg(format!("-Wl,--version-script={}", script.display()))
        .arg(&source)
        .output_bounded();
    let made = made.expect("a C compiler");
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn an_image_with_an_older_glibc_is_refused_with_both_versions() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let folder = home.scratch().join("old");
    fs::create_dir(&folder).unwrap();
    old_glibc(&folder);
    let (made, image) = ("made-old-glibc", "divvy-test-old-glibc");
    let mount = format!("{}:/old", folder.display());
    let to = "/usr/lib/x86_64-linux-gnu";
    let script = format!("cat /old/libc.so.6 > {to}/libc.old; ln -sf libc.old {to}/libc.so.6");
    let words = [
        "run", "--name", made, "-v", &mount, IMAGE, "sh", "-c", &script,
    ];
    let _ = engine.own(&words);
    let _ = engine.own(&["commit", made, image]);
    let _ = engine.ask(&["rm", made]);

    let _daemon = home.daemon(&[]);
    let said = home
        .divvy(&["docker", "run", "-g", "0.5", image, "true"])
        .exits(125);
    let preload = fs::read(home.program("libdivvy_preload.so")).unwrap();
    let text = String::from_utf8_lossy(&preload);
    let versions = text.split("GLIBC_2.").skip(1).filter_map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_digit())?;
        rest[..end].parse::<u32>().ok()
    });
    let needs = versions.max().expect("it needs glibc");
    let both = format!("the image has glibc 2.27; the limiter needs 2.{needs}");
    assert!(said.stderr.contains(&both), "{both}: {}", said.stderr);
}

#[test]
fn a_first_program_behind_a_link_into_a_mount_is_checked() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    image(&engine, "divvy-test-first", "ln -s /p/tool /first", &[]);
    let folder = home.scratch().join("programs");
    fs::create_dir(&folder).unwrap();
    write_program(&folder.join("tool"), static_program());
    let mount = format!("{}:/p", folder.display());
    let words = ["-g", "0.5", "-v", &mount, "divvy-test-first", "/first"];
    let said = home.divvy(&[&["docker", "run"][..], &words].concat());
    let said = said.exits(125);
    assert!(
        said.stderr.contains("/first is statically linked"),
        "{}",
        said.stderr
    );
}

#[test]
fn an_image_that_leads_our_own_files_elsewhere_has_no_mounts() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let links = "mkdir -p /run /a/b/c/d; ln -s /a/b/c/d /run/divvy-job";
    image(&engine, "divvy-test-ours", links, &[]);
    let gates = Path::new(&home.gate("x")).parent().unwrap().to_owned();
    let run = |target: &str, image: &str| {
        let mount = format!("{}:{target}", gates.display());
        let flags = ["docker", "run", "--gpu-memory", "4G", "-v"];
        home.divvy(&[&flags[..], &[&mount, image, "sh", "-c", "exit 0"]].concat())
    };
    let said = run("/a/b/c/d/slice", "divvy-test-ours").exits(125);
    let why = "a symlink in the path /run/divvy-job";
    assert!(said.stderr.contains(why), "{}", said.stderr);
}

#[test]
fn a_file_is_mounted_where_the_image_has_one_and_where_it_has_none() {
    let Some((engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let own = "mkdir -p /conf '/w/a*b'; echo theirs >/conf/app; echo >'/conf/~数据'; ln -s /tmp/none /conf/link";
    image(&engine, "divvy-test-file", own, &[]);
    let file = home.scratch().join("~数据?");
    fs::write(&file, "ours\n").unwrap();
    let run = |target: &str| {
        let mount = format!("{}:{target}", file.display());
        let script = format!("cat '{target}'");
        let flags = ["docker", "run", "--gpu-memory", "4G", "-v"];
        let words = [&mount, "divvy-test-file", "sh", "-c", &script];
        home.divvy(&[&flags[..], &words].concat())
    };
    for target in ["/conf/app", "/conf/new", "/conf/~数据"] {
        assert_eq!(run(target).ok().stdout, "ours\n", "{target}");
    }
    // Podman names no target of a link in whose place something is to be mounted, and takes the other for a pattern.
    if ENGINE == Kind::Podman {
        for (target, why) in [("/conf/link", "is a symlink"), ("/w/a*b/x", "as a pattern")] {
            let said = run(target).exits(125);
            assert!(said.stderr.contains(why), "{target}: {}", said.stderr);
        }
    }
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
        if *device == home_folder {
            assert!(said.exits(125).stderr.contains("may not be mounted"))
        } else {
            drop(said.ok())
        }
    }
}
