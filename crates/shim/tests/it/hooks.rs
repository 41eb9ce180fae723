//! Every hooked function is called once in a slice, in both forms, and succeeds; after each call the ledger equals the simulated
//! driver's books. A call that does not return fails the test by the probe's time limit.

use std::collections::{BTreeMap, BTreeSet};

use crate::calls;
use crate::support::{
    Form, MIB, Probe, Rig, buffer, compiled, documented_as, documented_hooks, structure,
};

/// Room beyond the contexts: more than all that the calls hold at a time.
const ROOM: u64 = 2048 * MIB;

/// Of the simulated GPUs the first with multicast objects.
const WITH_MULTICAST: &str = "h100-80gb:2";

/// Hooked functions that cannot succeed on the simulated driver, with the reason. At most ten.
const CANNOT_SUCCEED: &[(&str, &str)] = &[
    ("cuMemAlloc", OF_32_BITS),
    ("cuMemAllocPitch", OF_32_BITS),
    ("cuMemFree", OF_32_BITS),
    ("cuMemGetInfo", OF_32_BITS),
    ("cuDeviceTotalMem", OF_32_BITS),
    ("nvmlDeviceGetConfComputeProtectedMemoryUsage", NO_SUCH_UNIT),
    ("nvmlDeviceGetEncoderSessions", NO_SUCH_UNIT),
    ("nvmlDeviceGetFBCSessions", NO_SUCH_UNIT),
];
const OF_32_BITS: &str =
    "addresses and sizes of 32 bits, before CUDA 3.2; the simulated GPUs are larger";
const NO_SUCH_UNIT: &str = "the simulated GPUs have no protected memory, no encoder and no capture of frame buffers; as on some real ones";

/// The calls, one a line: what comes back = the function and its arguments.
///
/// `&` is a place for a result, `$name` what came back before, `[…]` a structure of 64-bit words, `low|high` two 32-bit halves of
/// one, `"…"` a text. Results are named in the order of places and words; `_` leaves one out. `2:` is a second process of the slice,
/// `out:` one without the limiter.
const CALLS: &str = include_str!("hooks.txt");

/// A number, a result from before, or two halves.
fn word(text: &str, known: &BTreeMap<String, u64>) -> u64 {
    if let Some((low, high)) = text.split_once('|') {
        return word(low, known) & 0xffff_ffff | word(high, known) << 32;
    }
    match text.strip_prefix('$') {
        Some(name) => *known.get(name).unwrap_or(&0),
        None => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).expect("a number"),
            None => text.parse().unwrap_or_else(|_| panic!("what is {text}?")),
        },
    }
}

/// The line as the probe reads it.
fn said(call: &str, known: &BTreeMap<String, u64>) -> String {
    let mut line = String::new();
    let mut rest = call;
    while let Some(first) = rest.chars().next() {
        let (end, is_inside) = match first {
            '[' => (rest.find(']').expect("its end") + 1, true),
            '{' => (rest.find('}').expect("its end") + 1, true),
            '"' => (rest[1..].find('"').expect("its end") + 2, true),
            _ => (rest.find(' ').unwrap_or(rest.len()), false),
        };
        let (part, after) = rest.split_at(end);
        rest = after.trim_start();
        let inside = if is_inside { &part[1..end - 1] } else { part };
        let argument = match first {
            '[' | '{' => {
                let words = inside.split_whitespace().map(|one| word(one, known));
                let text = structure(&words.collect::<Vec<_>>());
                let by_value = || text.replace('+', "=");
                if first == '{' { by_value() } else { text }
            }
            '"' => buffer(inside.bytes().chain([0])),
            '$' | '0'..='9' => word(part, known).to_string(),
            _ => part.to_owned(),
        };
        line = format!("{line}{argument} ");
    }
    line
}

/// Whether the ledger equals the driver's books, at the latest once the limiter has looked at its pools: the driver takes free
/// segments back on its own.
fn check_books(rig: &Rig, outside: &mut Probe, look: impl FnOnce()) -> Result<(), String> {
    let mut both = || (rig.charged(), outside.ask("nvml 0")[3] - rig.idle());
    let (charged, given) = both();
    if charged == given {
        return Ok(());
    }
    look();
    let (charged, given) = both();
    if charged == given {
        Ok(())
    } else {
        Err(format!(
            "{charged} bytes are charged, the driver gave {given}"
        ))
    }
}

/// Makes all calls of the list, and returns the functions that succeeded.
fn all_called(form: Form) -> BTreeSet<String> {
    const NO_PERMISSION: u64 = 4;
    let rig = Rig::of(WITH_MULTICAST, 8, ROOM);
    let mut outside = rig.outside();
    let actor = compiled("actor.c", "actor", &[]);
    let mut called = BTreeSet::new();
    let mut wrong = Vec::new();
    let [mut first, mut second] = [(); 2].map(|()| Probe::start(&mut rig.held(&actor, form)));
    let mut bare = Probe::start(&mut rig.bare(&actor));
    let mut known = BTreeMap::from([("pid1".to_owned(), first.pid())]);
    let lines = CALLS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (process, call) = match line.split_once(": ") {
            Some(("2", call)) => (&mut second, call),
            Some(("out", call)) => (&mut bare, call),
            _ => (&mut first, line),
        };
        let (names, call) = call.split_once(" = ").unwrap_or(("", call));
        let function = call.split(' ').next().unwrap_or_default();
        let answer = process.ask(&said(call, &known));
        // A command of the probe's own answers with its result.
        let results = if function.starts_with(char::is_uppercase) {
            &answer[..]
        } else {
            if answer[0] != 0 {
                wrong.push(format!("{line}: answered {}", answer[0]));
                continue;
            }
            &answer[1..]
        };
        let results = names.split_whitespace().zip(results);
        known.extend(results.map(|(name, value)| (name.to_owned(), *value)));
        called.insert(function.to_owned());
        let look = || {
            first.ask("cuMemGetInfo_v2 & &");
        };
        if let Err(difference) = check_books(&rig, &mut outside, look) {
            wrong.push(format!("{line}: {difference}"));
        }
    }
    assert!(wrong.is_empty(), "{form:?}: {wrong:#?}");
    for function in documented_as(|what| what.starts_with("Refused: NVML_ERROR_NO_PERMISSION")) {
        let answer = first.ask(&format!("{function} {} 0 0 0 0", known["device"]));
        assert_eq!(answer, [NO_PERMISSION], "{form:?}: {function}");
        called.insert(function);
    }
    first.ends_silently();
    second.ends_silently();
    called
}

/// Those that give the GPU something to do, by the table of the launch gate.
fn all_work_called(form: Form) -> BTreeSet<String> {
    let rig = Rig::new(2, ROOM);
    let mut outside = rig.outside();
    let mut program = calls::ready(&rig, form);
    let mut called = BTreeSet::new();
    for call in calls::work() {
        let answer = program.ask(&call.line());
        assert_eq!(answer, [call.answer()], "{form:?}: {}", call.name);
        let checked = check_books(&rig, &mut outside, || {});
        assert_eq!(checked, Ok(()), "{form:?}: {}", call.name);
        if answer == [0] {
            called.insert(call.name);
        }
    }
    program.ends_silently();
    called
}

fn every_hook_succeeds(form: Form) {
    let mut called = all_called(form);
    called.extend(all_work_called(form));
    let hooks = documented_hooks();
    let excused: BTreeSet<String> = CANNOT_SUCCEED
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    let without: Vec<&String> = hooks
        .difference(&called)
        .filter(|name| !excused.contains(*name))
        .collect();
    assert!(
        without.is_empty(),
        "{form:?}: no call of these hooks succeeds: {without:?}"
    );
    let excused_for_nothing: Vec<&String> = excused.intersection(&called).collect();
    assert!(
        excused_for_nothing.is_empty(),
        "these succeed: {excused_for_nothing:?}"
    );
    assert!(CANNOT_SUCCEED.len() <= 10);
    let with = hooks.intersection(&called).count();
    eprintln!("{form:?}: {with} of {} hooks with a call", hooks.len());
}

#[test]
fn every_hook_is_called_with_the_preload_and_the_ledger_agrees() {
    every_hook_succeeds(Form::Preload);
}

#[test]
fn every_hook_is_called_with_the_wrapper_and_the_ledger_agrees() {
    every_hook_succeeds(Form::Wrapper);
}
