//! Calls of a parked job: what the driver's checkpoint lock would hold asks for the job's memory, and has the right
//! answer once the memory is back; what `coverage.toml` lets pass is answered at once.

use divvy_driver::sys::symbols;
use divvy_ledger::{Control, Grant};

use crate::support::{CONTEXT, Form, MIB, Probe, ROOM, Rig, Way, compiled};
use crate::turns::Gate;

/// A process with a context, by its first GPU.
fn actor(command: &mut std::process::Command) -> Probe {
    let mut actor = Probe::start(command);
    assert_eq!(actor.ask("cuInit 0"), [0]);
    let context = actor.ask("cuDevicePrimaryCtxRetain & 0")[1];
    assert_eq!(actor.ask(&format!("cuCtxSetCurrent {context}")), [0]);
    actor
}

/// A parked process, with the driver's lock and the daemon's gate.
struct Parked {
    rig: Rig,
    gate: Gate,
    driver: Probe,
    program: Probe,
}

impl Parked {
    fn of(form: Form) -> Self {
        let rig = Rig::new(4, ROOM);
        let actor_c = compiled("actor.c", "actor", &[]);
        let mut driver = Probe::start(&mut rig.bare(&actor_c));
        assert_eq!(driver.ask("cuInit 0"), [0]);
        let program = actor(&mut rig.held(&actor_c, form));
        Self {
            gate: Gate::of(&rig),
            rig,
            driver,
            program,
        }
    }

    fn step(&mut self, step: &str) {
        let call = format!("cuCheckpointProcess{step} {} 0", self.program.pid());
        assert_eq!(self.driver.ask(&call), [0], "{step}");
    }

    fn park(&mut self) {
        self.rig
            .slice()
            .clear_wake_request()
            .expect("a sound slice");
        self.gate.set(Grant::Parked);
        self.step("Lock");
    }

    fn wake(&mut self) {
        self.step("Unlock");
        self.gate.set(Grant::Open);
    }

    /// The call that has woken it.
    fn woken_by(&mut self) -> String {
        self.gate.await_wake_call()
    }

    fn wish(&mut self) -> Option<String> {
        self.gate.wake_call()
    }
}

/// Calls every function of the driver once in a parked process. A twin in a slice of its own that is not parked says
/// what the right answer is.
fn call_everything(form: Form) {
    let mut parked = Parked::of(form);
    let twins = Rig::new(4, ROOM);
    let mut twin = actor(&mut twins.held(&compiled("actor.c", "actor", &[]), form));
    let mut wrong = Vec::new();
    for name in symbols::CUDA {
        let passes = !divvy_shim::wakes(name);
        // Of 32 bits; the simulated driver has no answer (`hooks.rs`).
        if *name == "cuMemGetInfo" {
            continue;
        }
        // With zeros for arguments.
        let expected = twin.ask(name)[0];
        parked.park();
        parked.program.say(name);
        if passes {
            let answer = parked.program.hear()[0];
            let wish = parked.wish();
            parked.wake();
            if answer != expected || wish.is_some() {
                wrong.push(format!("{name}: {answer} for {expected}, woke {wish:?}"));
            }
        } else {
            let woken_by = parked.woken_by();
            parked.wake();
            let answer = parked.program.hear()[0];
            if answer != expected || woken_by != *name {
                wrong.push(format!(
                    "{name}: {answer} for {expected}, woken by {woken_by}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{form:?}: {wrong:#?}");
}

#[test]
fn every_function_of_the_preload_wakes_a_parked_job_or_answers_it() {
    call_everything(Form::Preload);
}

#[test]
fn every_function_of_the_wrapper_wakes_a_parked_job_or_answers_it() {
    call_everything(Form::Wrapper);
}

#[test]
fn arguments_in_registers_and_on_the_stack_survive_the_wait_of_a_parked_job() {
    let mut parked = Parked::of(Form::of_this_run());
    let address = parked.program.ask(&format!("cuMemAlloc_v2 & {MIB}"))[1];
    assert_eq!(
        parked
            .program
            .ask(&format!("cuMemsetD8_v2 {address} 90 {MIB}")),
        [0]
    );
    parked.park();
    parked
        .program
        .say(&format!("cuMemsetD2D32_v2 {address} 256 7 32 4"));
    assert_eq!(parked.woken_by(), "cuMemsetD2D32_v2");
    parked.wake();
    assert_eq!(parked.program.hear(), [0]);
    for (offset, expected) in [
        (0, 7),
        (124, 7),
        (128, 0x5a5a_5a5a),
        (256, 7),
        (1024, 0x5a5a_5a5a),
    ] {
        let read = parked
            .program
            .ask(&format!("cuMemcpyDtoH_v2 & {} 4", address + offset));
        assert_eq!(read[0], 0);
        assert_eq!(read[1] & 0xffff_ffff, expected, "at {offset}");
    }
}

#[test]
fn a_parked_job_sees_its_memory_as_it_was_and_wakes_by_no_look_at_it() {
    let mut parked = Parked::of(Form::of_this_run());
    let mut watcher = parked.rig.ready(Way::Handle);
    assert_eq!(
        parked.program.ask(&format!("cuMemAlloc_v2 & {}", 64 * MIB))[0],
        0
    );
    let before = (watcher.info(), watcher.ask("nvml 0"));
    let control = Control::open_writable(&parked.rig.slice_folder()).expect("a slice");
    let limit = parked.rig.limit;
    control.set_parked_limit(0, limit);
    control.set_limit(0, 0);
    parked.park();
    assert_eq!((watcher.info(), watcher.ask("nvml 0")), before);
    assert_eq!(before.0, (limit - 64 * MIB - 2 * CONTEXT, limit));
    let answer = parked.program.ask("cuMemGetInfo_v2 & &");
    assert_eq!(answer, [0, before.0.0, limit]);
    assert_eq!(parked.program.ask("cuDeviceTotalMem_v2 & 0"), [0, limit]);
    assert_eq!(parked.wish(), None);
}

#[test]
fn a_new_process_of_a_parked_job_waits_for_its_memory_and_then_has_it() {
    let mut parked = Parked::of(Form::of_this_run());
    let control = Control::open_writable(&parked.rig.slice_folder()).expect("a slice");
    let limit = parked.rig.limit;
    control.set_parked_limit(0, limit);
    control.set_limit(0, 0);
    parked.park();
    let mut late = parked.rig.inside(Way::Handle);
    assert_eq!(late.ask("init"), [0]);
    late.say("context 0");
    assert_ne!(parked.woken_by(), "");
    control.set_limit(0, limit);
    control.set_parked_limit(0, 0);
    parked.wake();
    assert_eq!(late.hear(), [0]);
    assert_eq!(late.info().1, limit);
}
