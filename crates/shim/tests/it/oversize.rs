//! Requests for more than a whole GPU has: the program gets the code that the driver has for them, and no record speaks of a limit.

use divvy_ledger::{Denial, DenialCause};

use crate::support::{CONTEXT, MIB, OUT_OF_MEMORY, Probe, ROOM, Rig, compiled, structure};

const SUCCESS: u64 = 0;
const INVALID_VALUE: u64 = 1;
const INVALID_CONTEXT: u64 = 201;
const CONTEXT_IS_DESTROYED: u64 = 709;
const STREAM_CAPTURE_UNSUPPORTED: u64 = 900;
const UNTOUCHED: u64 = 0x5afe_5afe_5afe_5afe;
const TIB: u64 = 1 << 40;

/// `CUmemAllocationProp` and the beginning of `CUmemPoolProps`: pinned memory of device 0.
fn on_device() -> String {
    structure(&[1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// `CUDA_ARRAY3D_DESCRIPTOR` of one row.
fn array(width: u64, format: u64) -> String {
    structure(&[width, 0, 0, format | 1 << 32, 0])
}

/// Calls that no GPU can grant, and what the driver answers.
fn requests() -> Vec<(String, u64)> {
    let memory = on_device();
    let limit = |limit, bytes| format!("cuCtxSetLimit {limit} {bytes}");
    vec![
        (format!("cuMemAlloc_v2 & {TIB}"), OUT_OF_MEMORY),
        (
            format!("cuMemCreate & {} {memory} 0", u64::MAX),
            INVALID_VALUE,
        ),
        (
            format!("cuMemCreate & {} {memory} 0", TIB + 1),
            INVALID_VALUE,
        ),
        (format!("cuMemCreate & {TIB} {memory} 0"), OUT_OF_MEMORY),
        (format!("cuMemAllocManaged & {TIB} 7"), INVALID_VALUE),
        (format!("cuMemAllocManaged & {TIB} 1"), OUT_OF_MEMORY),
        (format!("cuMemAllocPitch_v2 & & {TIB} 4 3"), INVALID_VALUE),
        (
            format!("cuMemAllocPitch_v2 & & {TIB} {TIB} 4"),
            OUT_OF_MEMORY,
        ),
        (
            format!("cuArray3DCreate_v2 & {}", array(1 << 60, 0x7f)),
            INVALID_VALUE,
        ),
        (
            format!("cuMipmappedArrayCreate & {} 1", array(1 << 60, 0x7f)),
            INVALID_VALUE,
        ),
        (limit(0, TIB), INVALID_VALUE),
        (limit(2, TIB), OUT_OF_MEMORY),
        (format!("cuMemAllocAsync & {TIB} 0"), OUT_OF_MEMORY),
        (format!("cuMemAllocAsync & {} 0", u64::MAX), OUT_OF_MEMORY),
    ]
}

/// A process with its first GPU's primary context.
fn start(rig: &Rig, is_limited: bool) -> Probe {
    let program = compiled("actor.c", "actor", &[]);
    let mut command = if is_limited {
        rig.limited(&program)
    } else {
        rig.bare(&program)
    };
    let mut actor = Probe::start(&mut command);
    assert_eq!(actor.ask("cuInit 0"), [SUCCESS]);
    let context = actor.ask("cuDevicePrimaryCtxRetain & 0")[1];
    assert_eq!(actor.ask(&format!("cuCtxSetCurrent {context}")), [SUCCESS]);
    actor
}

/// Makes a call that fails; it must leave its answers as they were.
#[track_caller]
fn refused(actor: &mut Probe, call: &str) -> u64 {
    let said = actor.ask(call);
    let places = call.matches('&').count();
    let answers = &said[1..=places];
    assert!(
        answers.iter().all(|answer| *answer == UNTOUCHED),
        "{call}: {said:x?}"
    );
    said[0]
}

fn denials(rig: &Rig) -> Vec<Denial> {
    rig.slice().denials().expect("a sound slice").0
}

#[test]
fn a_request_that_exceeds_the_gpu_gets_the_drivers_own_code() {
    for is_limited in [false, true] {
        let rig = Rig::new(1, ROOM);
        let mut actor = start(&rig, is_limited);
        for (call, code) in requests() {
            assert_eq!(
                refused(&mut actor, &call),
                code,
                "limited: {is_limited}: {call}"
            );
        }
        if is_limited {
            assert_eq!(rig.usage().denied, 0, "the limit refused nothing");
            assert_eq!(rig.charged(), CONTEXT);
        }
    }
}

#[test]
fn a_request_that_exceeds_the_gpu_passes_under_no_limit() {
    let rig = Rig::new(1, ROOM);
    let mut actor = start(&rig, true);
    let invalid = format!("cuMemCreate & {} {} 0", u64::MAX, on_device());
    assert_eq!(refused(&mut actor, &invalid), INVALID_VALUE);
    assert_eq!(denials(&rig), [], "not for want of memory");
    assert_eq!(
        refused(&mut actor, &format!("cuMemAlloc_v2 & {TIB}")),
        OUT_OF_MEMORY
    );
    let causes: Vec<DenialCause> = denials(&rig).iter().map(|denial| denial.cause).collect();
    assert_eq!(causes, [DenialCause::GpuFull], "the driver refused it");
    // What a GPU can have is the limit's to refuse, as before.
    assert_eq!(
        refused(&mut actor, &format!("cuMemAlloc_v2 & {}", 60u64 << 30)),
        OUT_OF_MEMORY
    );
    assert_eq!(
        denials(&rig).last().map(|denial| denial.cause),
        Some(DenialCause::SliceFull)
    );
    assert_eq!(rig.usage().denied, 1);
}

#[test]
fn a_dead_context_is_told_before_a_size_that_exceeds_the_gpu() {
    for is_limited in [false, true] {
        let rig = Rig::new(2, ROOM);
        let mut actor = start(&rig, is_limited);
        let pool = actor.ask(&format!("cuMemPoolCreate & {}", on_device()))[1];
        // A stream that lives on, in a context that is not current any more.
        assert_eq!(actor.ask("cuCtxCreate_v2 & 0 0")[0], SUCCESS);
        let stream = actor.ask("cuStreamCreate & 1")[1];
        assert_eq!(actor.ask("cuCtxPopCurrent_v2 &")[0], SUCCESS);
        let call = format!("cuMemAllocFromPoolAsync & {TIB} {pool} {stream}");
        assert_eq!(refused(&mut actor, &call), OUT_OF_MEMORY);
        assert_eq!(actor.ask("cuDevicePrimaryCtxReset_v2 0"), [SUCCESS]);
        let answer = refused(&mut actor, &call);
        assert_eq!(answer, CONTEXT_IS_DESTROYED, "limited: {is_limited}");
        assert_eq!(actor.ask("cuCtxSetCurrent 0"), [SUCCESS]);
        let answer = refused(&mut actor, &call);
        assert_eq!(answer, INVALID_CONTEXT, "limited: {is_limited}");
    }
}

#[test]
fn a_request_in_a_capture_ends_the_capture_as_it_does_without_a_limit() {
    const GLOBAL: u64 = 0;
    const INVALIDATED: u64 = 901;
    for is_limited in [false, true] {
        let rig = Rig::new(1, ROOM);
        let mut actor = start(&rig, is_limited);
        let stream = actor.ask("cuStreamCreate & 1")[1];
        let begin = format!("cuStreamBeginCapture_v2 {stream} {GLOBAL}");
        assert_eq!(actor.ask(&begin), [SUCCESS]);
        let call = format!("cuMemAllocManaged & {TIB} 1");
        let answer = refused(&mut actor, &call);
        assert_eq!(answer, STREAM_CAPTURE_UNSUPPORTED, "limited: {is_limited}");
        let ended = actor.ask(&format!("cuStreamEndCapture {stream} &"));
        assert_eq!(ended[0], INVALIDATED, "limited: {is_limited}");
    }
}

#[test]
fn managed_memory_that_the_driver_grants_beyond_the_gpu_is_given_back() {
    let rig = Rig::on("oversubscribes = true", 1, ROOM);
    let call = format!("cuMemAllocManaged & {TIB} 1");
    assert_eq!(start(&rig, false).ask(&call)[0], SUCCESS, "without a limit");
    let log = rig.path("log");
    let mut command = rig.limited(&compiled("actor.c", "actor", &[]));
    let mut actor = Probe::start(command.env("DIVVY_SIM_LOG", &log));
    assert_eq!(actor.ask("cuInit 0"), [SUCCESS]);
    let context = actor.ask("cuDevicePrimaryCtxRetain & 0")[1];
    assert_eq!(actor.ask(&format!("cuCtxSetCurrent {context}")), [SUCCESS]);
    assert_eq!(refused(&mut actor, &call), OUT_OF_MEMORY);
    assert_eq!(rig.charged(), CONTEXT);
    let calls = rig.driver_calls();
    let made = |name: &str| calls.lines().filter(|line| line.contains(name)).count();
    assert_eq!(
        (made("cuMemAllocManaged"), made("cuMemFree_v2")),
        (1, 1),
        "{calls}"
    );
    assert_eq!(
        actor.ask(&format!("cuMemAlloc_v2 & {}", 64 * MIB))[0],
        SUCCESS
    );
}
