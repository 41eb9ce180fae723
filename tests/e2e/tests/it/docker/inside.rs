//! Other programs in a job's container.

use divvy_e2e::GIB;

use super::{got, reports, scene, submit};

#[test]
fn exec_in_a_container_is_held_to_the_slice_and_passes_streams_and_codes() {
    let Some((_engine, home)) = scene("a100-80gb:1") else {
        return;
    };
    let _daemon = home.daemon(&[]);
    let id = submit(&home, &[], &["sleep", "1000"]);
    home.running(&id);
    let said = home
        .divvy(&[
            "exec",
            &id,
            "--",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 7",
        ])
        .exits(7);
    assert_eq!(
        (said.stdout.as_str(), said.stderr.as_str()),
        ("out\n", "err\n")
    );
    let said = home
        .divvy(&["exec", &id, "--", "cudarc_probe", "fill"])
        .ok();
    let report = &reports(&said.stdout)[0];
    assert!((3 * GIB..4 * GIB).contains(&got(report)), "{report}");
    let said = home.divvy(&["exec", &id, "--", "no-such-program"]);
    // Which of a shell's two codes it is differs between versions of the engine.
    assert!(matches!(said.code, 126 | 127), "{said:?}");
    let _ = home.divvy(&["cancel", &id]).ok();
    home.ended(&id);
    let _ = home.divvy(&["exec", &id, "--", "true"]).exits(8);
}
