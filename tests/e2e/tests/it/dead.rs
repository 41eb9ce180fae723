//! The memory of processes whose end no process of the slice sees: in a PID namespace of their own, or by running another
//! program. The next process sees and gets it, in both forms, with and without a daemon.

use divvy_e2e::{Home, MIB, can_unshare};
use serde_json::Value;

/// Runs a script in a slice of 4 GiB in each form, with and without a daemon. It fills the slice before and after what
/// the test is about, by `$PROBE fill`, which must see and get the same both times.
fn fills_the_same(script: &str) {
    for form in ["", "preload"] {
        for has_daemon in [true, false] {
            let home = Home::new("a100-80gb:1").variable("DIVVY_FORM", form);
            let _daemon = has_daemon.then(|| home.daemon(&[]));
            let probe = home.program("cudarc_probe");
            let script = format!("PROBE={probe}; $PROBE fill; {script}; $PROBE fill");
            let mut words = vec!["run"];
            words.extend((!has_daemon).then_some("--no-daemon"));
            words.extend(["--gpu-memory", "4G", "--", "sh", "-ec", &script]);
            let said = home.divvy(&words).ok();
            let fills: Vec<Value> = said.stdout.lines().map(fill).collect();
            let case = format!("form {form:?}, daemon {has_daemon}: {}", said.stdout);
            assert_eq!(fills.len(), 2, "{case}");
            for field in ["/before/free_bytes", "/got_bytes"] {
                let [first, last] = [&fills[0], &fills[1]].map(|fill| fill.pointer(field));
                assert!(first.and_then(Value::as_u64) > Some(3000 * MIB), "{case}");
                assert_eq!(first, last, "{field}, {case}");
            }
        }
    }
}

fn fill(line: &str) -> Value {
    serde_json::from_str(line).expect("the probe says what it got")
}

#[test]
fn what_processes_of_pid_namespaces_held_comes_back_to_the_slice() {
    let unshare = "unshare --user --map-root-user --pid --fork --mount-proc";
    if !can_unshare(&unshare.split(' ').collect::<Vec<_>>()) {
        return;
    }
    // Together they hold more than the slice: from the fourth on each needs what one before it held.
    fills_the_same(&format!(
        "for i in 1 2 3 4 5; do {unshare} $PROBE hold --bytes 1G > /dev/null; done"
    ));
}

#[test]
fn what_a_process_held_before_it_ran_a_program_without_cuda_comes_back_to_the_slice() {
    fills_the_same(
        "$PROBE hold --bytes 2G -- sleep 1000 > /dev/null & until grep -q sleep /proc/$!/comm; do :; done; \
         trap \"kill $!\" EXIT",
    );
}
