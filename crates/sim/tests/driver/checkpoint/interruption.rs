//! Programs that are stopped, killed or busy in the middle of it, and faults.

use super::*;

/// Stops a program, and comes back when it is.
fn stop(client: &Client) {
    let pid = client.pid() as libc::pid_t;
    // SAFETY: a child of ours, and a status that outlives the call.
    unsafe {
        libc::kill(pid, libc::SIGSTOP);
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &raw mut status, libc::WUNTRACED), pid);
        assert!(libc::WIFSTOPPED(status));
    }
}

fn go_on(client: &Client) {
    // SAFETY: a child of ours.
    unsafe { libc::kill(client.pid() as libc::pid_t, libc::SIGCONT) };
}

#[test]
fn a_lock_that_takes_too_long_is_given_up_and_the_process_runs_on() {
    let machine = Machine::new("l4-24gb:2");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    spin(&mut target, &machine);
    assert_eq!(lock_within(&mut driver, pid, 20), NOT_READY);
    assert_eq!(state(&mut driver, pid), RUNNING);
    target.ok(&["cuMemAlloc_v2 &b 512"]);
    let mut partner = machine.client();
    partner.start();
    spin(&mut partner, &machine);
    assert_eq!(lock_within(&mut driver, pid, 60_000), 0);
    all(&mut driver, &["Unlock"], pid);
    target.ok(&["cuCtxSynchronize"]);
}

#[test]
fn a_call_under_way_is_waited_for_and_a_later_one_waits() {
    let machine = Machine::new("l4-24gb:1");
    let (mut asker, mut target) = (driver(machine.client()), target(machine.client()));
    let mut watcher = driver(machine.client());
    let pid = target.pid();
    spin(&mut target, &machine);
    target.tell("cuCtxSynchronize");
    until_it_waits(&target);
    asker.tell(&format!("cuCheckpointProcessLock {pid} 0"));
    until_it_waits(&asker);
    target.tell("cuMemAlloc_v2 &b 1073741824");
    let mut partner = machine.client();
    partner.start();
    load(&mut partner, &machine);
    let before = used(&mut watcher, 0);
    meet(&mut partner);
    assert_eq!(asker.answer(), "0");
    assert_eq!(target.answer(), "0", "what was waited for is done");
    until_it_waits(&target);
    assert_eq!(used(&mut watcher, 0), before);
    all(&mut watcher, &["Unlock"], pid);
    assert_eq!(target.answer(), "0");
    assert_eq!(used(&mut watcher, 0), before + GIB);
}

#[test]
fn a_stopped_process_answers_no_call_until_it_goes_on() {
    let machine = Machine::new("l4-24gb:1");
    let mut other = driver(machine.client());
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    let mut held_up = |driver: &mut Client, order: String| {
        stop(&target);
        driver.tell(&order);
        until_it_waits(driver);
        // Its GPUs are seen as ever, and who leads it is known.
        let thread = format!("cuCheckpointProcessGetRestoreThreadId {pid} &tid");
        other.ok(&[&thread, "nvmlDeviceGetMemoryInfo $device &memory"]);
        go_on(&target);
        assert_eq!(driver.answer(), "0", "{order}");
    };
    let args = CUcheckpointLockArgs {
        timeoutMs: 60_000,
        ..Default::default()
    };
    driver.set("args", args);
    held_up(&mut driver, format!("cuCheckpointProcessLock {pid} &args"));
    for step in ["Checkpoint", "Restore", "Unlock"] {
        held_up(&mut driver, format!("cuCheckpointProcess{step} {pid} 0"));
    }
    held_up(
        &mut driver,
        format!("cuCheckpointProcessGetState {pid} &state"),
    );
    assert_eq!(driver.small_value("state"), RUNNING);
    assert_eq!(first_byte(&mut target), 42);
}

#[test]
fn a_process_that_dies_leaves_nothing_however_it_stands() {
    let machine = Machine::new("l4-24gb:1");
    let mut driver = driver(machine.client());
    let empty = used(&mut driver, 0);
    for steps in [&["Lock"][..], &["Lock", "Checkpoint"]] {
        let mut target = target(machine.client());
        all(&mut driver, steps, target.pid());
        target.stop();
        assert_eq!(used(&mut driver, 0), empty, "{steps:?}");
        for step in ["Restore", "Unlock"] {
            assert_eq!(does(&mut driver, step, target.pid()), OPERATING_SYSTEM);
        }
        // Its slot is free for the next one, who runs.
        let mut next = self::target(machine.client());
        assert_eq!(state(&mut driver, next.pid()), RUNNING);
        assert_eq!(first_byte(&mut next), 42);
    }
}

#[test]
fn a_process_that_waits_for_one_that_dies_gets_an_error() {
    let machine = Machine::new("l4-24gb:1");
    let (mut driver, mut target) = (driver(machine.client()), target(machine.client()));
    spin(&mut target, &machine);
    driver.tell(&format!("cuCheckpointProcessLock {} 0", target.pid()));
    until_it_waits(&driver);
    target.stop();
    assert_eq!(driver.answer(), OPERATING_SYSTEM.to_string());
}

#[test]
fn a_checkpoint_lock_is_taken_without_the_process_that_asked_for_it() {
    let machine = Machine::new("l4-24gb:1");
    let (mut asker, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    spin(&mut target, &machine);
    asker.tell(&format!("cuCheckpointProcessLock {pid} 0"));
    until_it_waits(&asker);
    asker.kill();
    let mut partner = machine.client();
    partner.start();
    spin(&mut partner, &machine);
    let mut driver = driver(machine.client());
    assert_eq!(state(&mut driver, pid), LOCKED);
    all(&mut driver, &["Checkpoint", "Restore", "Unlock"], pid);
    assert_eq!(first_byte(&mut target), 42);
}

#[test]
fn a_checkpoint_lock_without_a_waiting_process_is_given_up_too() {
    let machine = Machine::new("l4-24gb:1");
    let (mut asker, mut target) = (driver(machine.client()), target(machine.client()));
    let pid = target.pid();
    spin(&mut target, &machine);
    let args = CUcheckpointLockArgs {
        timeoutMs: 300,
        ..Default::default()
    };
    asker.set("args", args);
    asker.tell(&format!("cuCheckpointProcessLock {pid} &args"));
    until_it_waits(&asker);
    asker.kill();
    // Its call begins once the lock is given up.
    target.ok(&["cuMemAlloc_v2 &b 512"]);
    assert_eq!(state(&mut driver(machine.client()), pid), RUNNING);
}

#[test]
fn a_process_killed_at_a_step_leaves_it_done_or_not_begun() {
    let machine = Machine::new("l4-24gb:1");
    let mut watcher = driver(machine.client());
    let mut target = target(machine.client());
    let (pid, held) = (target.pid(), used(&mut watcher, 0));
    let steps = [
        ("Lock", RUNNING, LOCKED),
        ("Checkpoint", LOCKED, CHECKPOINTED),
        ("Restore", CHECKPOINTED, LOCKED),
        ("Unlock", LOCKED, RUNNING),
    ];
    for (step, before, after) in steps {
        for (moment, left) in [("before", before), ("after", after)] {
            let fault =
                format!("[[fault]]\nfunction = 'cuCheckpointProcess{step}'\nkill = '{moment}'");
            let mut killed = driver(machine.with_config(&fault).client());
            killed.tell(&format!("cuCheckpointProcess{step} {pid} 0"));
            assert_eq!(killed.exit_code(), None, "killed");
            assert_eq!(state(&mut watcher, pid), left, "{step} {moment}");
            let aside = if left == CHECKPOINTED {
                GIB + CONTEXT
            } else {
                0
            };
            assert_eq!(held - used(&mut watcher, 0), aside, "{step} {moment}");
        }
    }
    assert_eq!(first_byte(&mut target), 42);
}

#[test]
fn steps_can_be_made_to_fail_and_are_in_the_log() {
    let machine = Machine::new("l4-24gb:1");
    let target = target(machine.client());
    let (log, pid) = (machine.path("calls.log"), target.pid());
    let faults = "[[fault]]\nfunction = 'cuCheckpointProcess*'\ncall = 2\ncode = 999";
    let environment = machine.with_config(faults);
    let mut driver = driver(
        environment
            .with("DIVVY_SIM_LOG", log.to_str().expect("text"))
            .client(),
    );
    all(&mut driver, &["Lock"], pid);
    assert_eq!(does(&mut driver, "Checkpoint", pid), 999);
    assert_eq!(state(&mut driver, pid), LOCKED);
    all(&mut driver, &["Unlock"], pid);
    let text = read_to_string(log).expect("written");
    let called = |line: &str| text.contains(line);
    assert!(
        called(&format!(
            "cuCheckpointProcessLock({pid}, 0x0) = CUDA_SUCCESS (0)"
        )),
        "{text}"
    );
    assert!(called(&format!(
        "cuCheckpointProcessCheckpoint({pid}, 0x0) = CUDA_ERROR_UNKNOWN (999)"
    )));
}

/// As reported of drivers 580 and 595 (NVIDIA/cuda-checkpoint issue 44).
#[test]
fn a_driver_can_be_had_whose_failed_restore_is_the_last() {
    let machine = Machine::new("l4-24gb:1");
    let environment = machine.with_config("[checkpoint]\nfailed_restore_is_final = true");
    let (mut driver, target) = (driver(environment.client()), target(machine.client()));
    let pid = target.pid();
    all(
        &mut driver,
        &["Lock", "Checkpoint", "Restore", "Checkpoint"],
        pid,
    );
    let mut other = machine.client();
    other.start();
    let (_, take) = rest(&mut other);
    other.ok(&[&take]);
    assert_eq!(does(&mut driver, "Restore", pid), OUT_OF_MEMORY);
    other.kill();
    assert_eq!(does(&mut driver, "Restore", pid), OPERATING_SYSTEM);
    assert_eq!(does(&mut driver, "Unlock", pid), ILLEGAL_STATE);
    assert_eq!(state(&mut driver, pid), CHECKPOINTED);
}
