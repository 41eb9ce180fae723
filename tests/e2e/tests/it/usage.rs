//! What a real client does with its slice, as usage and the idle rule see it.

use divvy_e2e::{Home, Tenant, until};

/// Long enough for a busy machine to come round to a program that wants to work.
const IDLE: &str = "4s";

fn last(home: &Home) -> serde_json::Value {
    home.items(&["ps", "-a"]).pop().expect("a job")
}

#[test]
fn what_a_program_does_is_used_and_keeps_its_job_from_being_idle_until_it_stops() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let flags = [
        "-g",
        "0.25",
        "--idle-timeout",
        IDLE,
        "--idle-action",
        "cancel",
    ];
    let mut tenant = Tenant::run(&home, &flags);
    // For longer than its time, and with pauses. It comes to its end, so nobody has ended it.
    tenant.begin("loop 50000 20000", 6000);
    tenant.hear();
    until("it is found idle", || {
        (last(&home)["state"] == "ended").then_some(())
    });
    assert_eq!(last(&home)["end_reason"], "idle_timeout");
    let rows = home.items(&["usage", "--by", "job"]);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let figure = |name: &str| row[name].as_u64().expect("a figure");
    let (held, used, loaned) = (
        figure("allocated_gpu_ms"),
        figure("used_gpu_ms"),
        figure("loaned_gpu_ms"),
    );
    // Alone it may use the whole GPU; most of the time it does.
    assert!(used > 500 && loaned > 0, "{row}");
    assert!(figure("idle_gpu_ms") > 0, "{row}");
    assert_eq!(
        held,
        used - loaned + figure("idle_gpu_ms") + figure("unknown_gpu_ms"),
        "{row}"
    );
}
