//! Which calls stand at the gate while it is closed: every function that gives the GPU something to do, in both flavours, and no other.

use std::collections::BTreeSet;
use std::path::PathBuf;

use divvy_ledger::Grant;

use crate::support::{Form, Probe, ROOM, Rig, compiled, documented_as, documented_hooks};
use crate::turns::Gate;

/// Functions that give the GPU something to do, with arguments that the driver takes; those that have a per-thread form are called by
/// that, too. What the words stand for is in `probes/calls.c`.
const WORK: &[(&str, &str)] = &[
    ("cuLaunch", "kernel"),
    ("cuLaunchGrid", "kernel 1 1"),
    ("cuLaunchGridAsync", "kernel 1 1 stream"),
    ("cuLaunchKernel", "kernel 1 1 1 1 1 1 0 stream 0 0"),
    ("cuLaunchKernelEx", "config kernel 0 0"),
    ("cuLaunchCooperativeKernel", "kernel 1 1 1 1 1 1 0 stream 0"),
    ("cuLaunchCooperativeKernelMultiDevice", "launches 1 0"),
    ("cuGraphLaunch", "graph stream"),
    ("cuMemcpyAsync", "to from 64 stream"),
    ("cuMemcpyHtoDAsync_v2", "to host 64 stream"),
    ("cuMemcpyDtoHAsync_v2", "host from 64 stream"),
    ("cuMemcpyDtoDAsync_v2", "to from 64 stream"),
    ("cuMemcpyPeerAsync", "to context from context 64 stream"),
    ("cuMemcpy2DAsync_v2", "flat stream"),
    ("cuMemcpy3DAsync_v2", "box stream"),
    ("cuMemcpy3DPeerAsync", "peer stream"),
    (
        "cuMemcpyBatchAsync",
        "tos froms sizes 1 attributes firsts 1 failed stream",
    ),
    (
        "cuMemcpyBatchAsync_v2",
        "tos froms sizes 1 attributes firsts 1 stream",
    ),
    ("cuMemcpy3DBatchAsync", "1 boxes failed 0 stream"),
    ("cuMemcpy3DBatchAsync_v2", "1 boxes 0 stream"),
    (
        "cuMemcpyWithAttributesAsync",
        "to from 64 attributes stream",
    ),
    ("cuMemcpy3DWithAttributesAsync", "boxes 0 stream"),
    ("cuMemcpyHtoAAsync_v2", "array 0 host 16 stream"),
    ("cuMemcpyAtoHAsync_v2", "host array 0 16 stream"),
    ("cuMemPrefetchAsync", "managed 64 0 stream"),
    ("cuMemPrefetchAsync_v2", "managed 64 place 0 stream"),
    (
        "cuMemPrefetchBatchAsync",
        "manageds sizes 1 places firsts 1 0 stream",
    ),
    (
        "cuMemDiscardAndPrefetchBatchAsync",
        "manageds sizes 1 places firsts 1 0 stream",
    ),
    ("cuMemsetD8Async", "to 0 64 stream"),
    ("cuMemsetD16Async", "to 0 32 stream"),
    ("cuMemsetD32Async", "to 0 16 stream"),
    ("cuMemsetD2D8Async", "to 64 0 16 2 stream"),
    ("cuMemsetD2D16Async", "to 64 0 8 2 stream"),
    ("cuMemsetD2D32Async", "to 64 0 4 2 stream"),
];

/// What the program waits for by itself, what waits for the GPU, and what takes next to no time of it; and the end of the name under which
/// it means the thread's own null stream.
const NO_WORK: &[(&str, &str, &str)] = &[
    ("cuCtxSynchronize", "", ""),
    ("cuCtxSynchronize_v2", "", "context"),
    ("cuStreamSynchronize", "_ptsz", "stream"),
    ("cuEventSynchronize", "", "event"),
    ("cuStreamQuery", "_ptsz", "stream"),
    ("cuEventQuery", "", "event"),
    ("cuLaunchHostFunc", "_ptsz", "stream nothing 0"),
    ("cuLaunchHostFunc_v2", "_ptsz", "stream nothing 0 0"),
    ("cuStreamAddCallback", "_ptsz", "stream nothing 0 0"),
    ("cuEventRecord", "_ptsz", "event stream"),
    ("cuEventRecordWithFlags", "_ptsz", "event stream 0"),
    ("cuStreamWaitEvent", "_ptsz", "stream event 0"),
    ("cuGraphUpload", "_ptsz", "graph stream"),
    ("cuMemcpy", "_ptds", "to from 64"),
    ("cuMemcpyHtoD_v2", "_ptds", "to host 64"),
    ("cuMemcpyDtoH_v2", "_ptds", "host from 64"),
    ("cuMemcpyDtoD_v2", "_ptds", "to from 64"),
    ("cuMemcpyPeer", "_ptds", "to context from context 64"),
    ("cuMemcpy2D_v2", "_ptds", "flat"),
    ("cuMemcpy2DUnaligned_v2", "_ptds", "flat"),
    ("cuMemcpy3D_v2", "_ptds", "box"),
    ("cuMemcpy3DPeer", "_ptds", "peer"),
    ("cuMemcpyHtoA_v2", "_ptds", "array 0 host 16"),
    ("cuMemcpyAtoH_v2", "_ptds", "host array 0 16"),
    ("cuMemcpyDtoA_v2", "_ptds", "array 0 from 16"),
    ("cuMemcpyAtoD_v2", "_ptds", "to array 0 16"),
    ("cuMemcpyAtoA_v2", "_ptds", "array 0 array 32 16"),
    ("cuMemsetD8_v2", "_ptds", "to 0 64"),
    ("cuMemsetD16_v2", "_ptds", "to 0 32"),
    ("cuMemsetD32_v2", "_ptds", "to 0 16"),
    ("cuMemsetD2D8_v2", "_ptds", "to 64 0 16 2"),
    ("cuMemsetD2D16_v2", "_ptds", "to 64 0 8 2"),
    ("cuMemsetD2D32_v2", "_ptds", "to 64 0 4 2"),
    ("cuMemBatchDecompressAsync", "_ptsz", "0 0 0 failed stream"),
    ("cuFabricCpyBatchAsync", "_ptsz", "0 0 0 stream"),
];

/// What the simulated driver does not do. It is asked all the same, and says so.
const NOT_SIMULATED: [&str; 2] = ["cuMemBatchDecompressAsync", "cuFabricCpyBatchAsync"];
const NOT_SUPPORTED: u64 = 801;

/// Those of [`WORK`] that name no stream, and those that the simulated driver does not have in a capture.
const NEVER_CAPTURED: [&str; 2] = ["cuLaunch", "cuLaunchGrid"];
const REFUSED_IN_CAPTURES: [&str; 5] = [
    "cuLaunchCooperativeKernelMultiDevice",
    "cuMemPrefetchAsync",
    "cuMemPrefetchAsync_v2",
    "cuMemPrefetchBatchAsync",
    "cuMemDiscardAndPrefetchBatchAsync",
];

/// A function under one of its names.
pub struct Call {
    /// The name without the form.
    base: &'static str,
    pub name: String,
    arguments: &'static str,
}

impl Call {
    /// What it answers where nothing is wrong.
    pub fn answer(&self) -> u64 {
        if NOT_SIMULATED.contains(&self.base) {
            NOT_SUPPORTED
        } else {
            0
        }
    }

    /// Into a stream of the program's, or by a per-thread form into the thread's own null stream.
    pub fn line(&self) -> String {
        let stream = if self.name == self.base {
            "own"
        } else {
            "default"
        };
        format!("{stream} {} {}", self.name, self.arguments)
    }
}

/// All of [`WORK`], under all names that are hooked.
pub fn work() -> Vec<Call> {
    let hooks = documented_hooks();
    let names = |&(base, arguments): &(&'static str, &'static str)| {
        [base.to_owned(), format!("{base}_ptsz")].map(|name| Call {
            base,
            name,
            arguments,
        })
    };
    let calls = WORK.iter().flat_map(names);
    calls.filter(|call| hooks.contains(&call.name)).collect()
}

fn caller() -> PathBuf {
    compiled("calls.c", "calls", &[])
}

pub fn ready(rig: &Rig, form: Form) -> Probe {
    let mut command = rig.held(&caller(), form);
    let mut calls = Probe::start(command.env("DIVVY_SIM_LOG", rig.path("log")));
    assert_eq!(calls.hear(), [0]);
    calls
}

#[test]
fn whatever_gives_the_gpu_something_to_do_waits_at_the_gate() {
    let rig = Rig::new(1, ROOM);
    let mut program = ready(&rig, Form::of_this_run());
    let mut gate = Gate::of(&rig);
    for call in work() {
        let name = &call.name;
        let asked = || rig.driver_calls().matches(&format!(" {name}(")).count();
        let before = asked();
        gate.set(Grant::Closed);
        program.say(&call.line());
        gate.await_demand(|demand| demand.waiting || asked() > before);
        assert_eq!(asked(), before, "{name} went past the gate");
        gate.set(Grant::Open);
        assert_eq!(program.hear(), [call.answer()], "{name}");
        assert_eq!(asked(), before + 1, "{name}");
    }
    program.ends_silently();
}

#[test]
fn everything_that_is_said_to_wait_for_its_turn_is_called_in_these_tests() {
    let waits = "waits for the slice's lease";
    let said = documented_as(|what| what.to_lowercase().contains(waits));
    assert!(said.len() > 60, "only {} functions", said.len());
    let called: BTreeSet<String> = work().into_iter().map(|call| call.name).collect();
    let left_out: Vec<_> = said.difference(&called).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
}

#[test]
fn nothing_else_that_has_to_do_with_streams_waits_at_the_gate() {
    let rig = Rig::new(1, ROOM);
    let mut program = ready(&rig, Form::of_this_run());
    let mut gate = Gate::of(&rig);
    gate.set(Grant::Closed);
    for &(base, form, arguments) in NO_WORK {
        let mut names = vec![base.to_owned(), format!("{base}{form}")];
        names.dedup();
        for name in names {
            let call = Call {
                base,
                name,
                arguments,
            };
            assert_eq!(program.ask(&call.line()), [call.answer()], "{}", call.name);
            assert_eq!(gate.waited(), 0, "{} waited", call.name);
        }
    }
    program.ends_silently();
}

#[test]
fn nothing_that_is_captured_waits_at_the_gate() {
    let rig = Rig::new(1, ROOM);
    let mut program = ready(&rig, Form::of_this_run());
    let mut gate = Gate::of(&rig);
    gate.set(Grant::Closed);
    for call in work() {
        if NEVER_CAPTURED.contains(&call.base) {
            continue;
        }
        let answer = program.ask(&format!("captured {} {}", call.name, call.arguments));
        if !REFUSED_IN_CAPTURES.contains(&call.base) {
            assert_eq!(answer, [call.answer()], "{}", call.name);
        }
        assert_eq!(gate.waited(), 0, "{} waited", call.name);
    }
    program.ends_silently();
}
