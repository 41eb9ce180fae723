//! Ways past a preloaded limiter: each is found from outside, told with its figures, and by policy denied or killed; and nobody
//! else is touched.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use divvy_api::v1::{Bypass, BypassAction, BypassWay, EndReason, Job, JobState};
use divvy_e2e::{GIB, Home, MIB, can_unshare, until};
use divvy_testkit::Bounded as _;

/// What the evading program takes.
const TAKEN: u64 = 3 * GIB;

/// An instance whose jobs have the form of the limiter that can be got past in most ways.
pub fn preloaded(sim: &str) -> Home {
    Home::new(sim).variable("DIVVY_FORM", "preload")
}

/// The C program that evades, and the library that it evades with, built in the test's folder against the simulated driver.
pub struct Evader<'a> {
    home: &'a Home,
    pub program: String,
}

impl<'a> Evader<'a> {
    /// After a daemon has made the links to the simulated driver.
    pub fn build(home: &'a Home) -> Self {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/c/evade.c");
        let evader = Self {
            home,
            program: path(&home.scratch().join("evade")),
        };
        let flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", source];
        let library = format!("-L{}", path(&home.path().join("sim/lib")));
        cc(&[&flags[..], &["-o", &evader.program, "-ldl"]].concat());
        let helper = evader.helper();
        let linked = ["-DHELPER", "-shared", "-fPIC", "-o", &helper, &library];
        cc(&[&flags[..], &linked, &["-l:libcuda.so.1"]].concat());
        evader
    }

    pub fn helper(&self) -> String {
        path(&self.home.scratch().join("libevade.so"))
    }

    /// A copy of the driver under another name.
    pub fn copy_of_the_driver(&self) -> String {
        let copy = self.home.scratch().join("my-own-driver.so");
        fs::copy(self.home.program("libdivvy_sim.so"), &copy).expect("the folder can be written");
        path(&copy)
    }

    /// Queues the program in a slice of 8 GiB; it takes 3 and keeps them until the gate `way` opens.
    pub fn submit(&self, way: &str, library: Option<&str>) -> String {
        let gate = self.home.gate(way);
        let mut words = vec![self.program.as_str(), way, "3", &gate];
        words.extend(library);
        self.home.submit(&["--gpu-memory", "8G"], &words)
    }

    /// Queues the program in a slice of 8 GiB of which it makes one of 38: it takes 30, and keeps them until its gate opens.
    fn submit_raising(&self) -> String {
        let gate = self.home.gate("raise");
        let words = [self.program.as_str(), "raise", "30", &gate];
        self.home.submit(&["--gpu-memory", "8G"], &words)
    }
}

fn path(path: &Path) -> String {
    path.to_str()
        .expect("a temporary folder has a readable name")
        .to_owned()
}

fn cc(words: &[&str]) {
    let status = Command::new("cc").args(words).wait_bounded();
    assert!(
        status.expect("a C compiler is there").success(),
        "cc {}",
        words.join(" ")
    );
}

/// Waits for the first bypass that is told of a job.
#[track_caller]
fn told(home: &Home, job: &str) -> Bypass {
    until(format!("a bypass of job {job} is told"), || {
        home.job(job).bypasses.first().cloned()
    })
}

/// What every detection has to be: in the journal, and with figures. How soon it comes is the observer's, and is held there.
#[track_caller]
fn is_told(home: &Home, job: &str, bypass: &Bypass) {
    let after = bypass
        .detected_at
        .duration_since(bypass.first_seen_at)
        .as_millis();
    assert!(after >= 0, "{after} ms: {bypass:?}");
    let events = home.items(&["events"]);
    let told = events.iter().any(|event| {
        let text = event["text"].as_str().unwrap_or_default();
        let when = format!("detected {after} ms after its first observation");
        let parts = [&bypass.pid.to_string(), &bypass.cause, &when];
        event["kind"] == "bypass"
            && event["job"] == job
            && parts.iter().all(|part| text.contains(part.as_str()))
    });
    assert!(told, "no event tells of {bypass:?}: {events:?}");
    let said = home.divvy(&["describe", job]).ok().stdout;
    assert!(
        said.contains("bypass:") && said.contains(&bypass.cause),
        "{said}"
    );
    let row = home.divvy(&["ps", "-o", "wide"]).ok().stdout;
    assert!(
        row.contains(&format!("bypass by pid {}", bypass.pid)),
        "{row}"
    );
    let said = home.divvy(&["gpus"]).ok().stdout.replace('\n', " ");
    assert!(said.contains("bypass by pid"), "{said}");
}

#[test]
fn a_process_without_the_limiter_is_told() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let probe = home.program("cudarc_probe");
    let lib = format!("LD_LIBRARY_PATH={}", path(&home.path().join("sim/lib")));
    let state = format!("DIVVY_SIM_STATE={}", path(&home.path().join("sim/state")));
    let ways: [(&str, &[&str], &str); 5] = [
        ("unset", &["env", "-u", "LD_PRELOAD"], "not loaded"),
        ("empty", &["env", "-i", &lib, &state], "not loaded"),
        ("off", &["env", "DIVVY_SHIM=off"], "DIVVY_SHIM=off"),
        // The loader started as a program, told to preload nothing.
        (
            "loader",
            &["env", "-u", "LD_PRELOAD", "/lib64/ld-linux-x86-64.so.2"],
            "not loaded",
        ),
        // A shell between the job and the program, and a session of the program's own.
        (
            "session",
            &["sh", "-c", "env -u LD_PRELOAD setsid -w \"$@\"", "sh"],
            "not loaded",
        ),
    ];
    for (gate, wrapper, cause) in ways {
        let bytes = TAKEN.to_string();
        let file = home.gate(gate);
        let hold = [&probe, "hold", "--bytes", &bytes, "--until-file", &file];
        let job = home.submit(&["--gpu-memory", "8G"], &[wrapper, &hold].concat());
        let bypass = told(&home, &job);
        assert_eq!(
            (bypass.kind, bypass.action),
            (BypassWay::Unlimited, BypassAction::Warned),
            "{gate}: {bypass:?}"
        );
        assert!(bypass.cause.contains(cause), "{gate}: {bypass:?}");
        is_told(&home, &job, &bypass);
        let grown = until("all of it is seen", || {
            let held = home.job(&job).bypasses[0].memory_driver_bytes?;
            (held > TAKEN).then_some(held)
        });
        assert!(grown < TAKEN + GIB, "{grown} bytes, context included");
        home.open(gate);
        let ended = home.ended(&job);
        assert_eq!(
            ended.end_reason,
            Some(EndReason::Completed),
            "a warning: {ended:?}"
        );
        assert!(ended.bypasses[0].ended_at.is_some(), "{ended:?}");
    }
    assert_eq!(count(&home, "divvy_bypasses_total{kind=\"unlimited\"}"), 5);
}

#[test]
fn a_notification_that_uses_a_gpu_is_killed_and_told() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let (probe, code) = (home.program("cudarc_probe"), home.scratch().join("code"));
    let (gate, code) = (home.gate("never"), path(&code));
    let sim = path(&home.path().join("sim"));
    let line = format!(
        "env -u CUDA_VISIBLE_DEVICES LD_LIBRARY_PATH={sim}/lib DIVVY_SIM_STATE={sim}/state \
         setsid -w {probe} hold --bytes {TAKEN} --until-file {gate}; echo $? > {code}"
    );
    let job = home.submit(&["-g", "0.125", "--notify", &line], &["true"]);
    home.ended(&job);
    until("the notification's program has ended", || {
        fs::read_to_string(&code).is_ok_and(|code| code == "137\n")
    });
    let events = home.items(&["events", &job]);
    let told = events.iter().any(|event| {
        let text = event["text"].as_str().unwrap_or_default();
        event["kind"] == "bypass"
            && text.contains("the job's notification uses GPU 0")
            && text.contains("(cudarc_probe); the daemon kills it")
    });
    assert!(told, "{events:?}");
}

/// Says why the driver's library cannot be opened.
const OPENS_DRIVER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    puts(driver ? "opened" : dlerror());
    return driver ? 0 : 3;
}
"#;

#[test]
fn programs_on_musl_get_no_driver() {
    let home = Home::new("a100-80gb:1");
    let source = path(&home.scratch().join("opens.c"));
    fs::write(&source, OPENS_DRIVER).expect("the folder can be written");
    let program = |flags: &[&str], name: &str| {
        let program = path(&home.scratch().join(name));
        let words = [flags, &["-o", &program, &source]].concat();
        let made = Command::new("musl-gcc").args(words).wait_bounded();
        made.is_ok_and(|made| made.success()).then_some(program)
    };
    let (Some(dynamic), Some(fixed)) = (program(&[], "opens"), program(&["-static"], "fixed"))
    else {
        eprintln!("SKIPPED: no musl-gcc; no program on musl is tried here");
        return;
    };
    let run = |form: &str, program: &str| {
        let mut command = home.command(home.program("divvy"));
        command.env("DIVVY_FORM", form);
        command.args(["run", "--no-daemon", "-g", "0.5", "--", program]);
        let output = command.output_bounded().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&said).into_owned(),
        )
    };
    // musl's loader names what it cannot load, and starts nothing without it.
    let (code, said) = run("preload", &dynamic);
    assert!(
        code == Some(127) && said.contains("libdivvy_preload.so"),
        "{said}"
    );
    let mut forms = vec!["preload"];
    if can_unshare(&["unshare", "--mount"]) {
        let (code, said) = run("wrapper", &dynamic);
        let is_refused = said.contains("Error loading shared library");
        assert!(code == Some(3) && is_refused, "{said}");
        forms.push("wrapper");
    }
    for form in forms {
        let (code, said) = run(form, &fixed);
        assert!(
            code == Some(3) && said.contains("Dynamic loading not supported"),
            "{form}: {said}"
        );
    }
}

#[test]
fn without_a_daemon_a_process_without_the_limiter_is_not_told() {
    let home = preloaded("a100-80gb:1");
    home.open("go");
    let (probe, bytes, gate) = (
        home.program("cudarc_probe"),
        TAKEN.to_string(),
        home.gate("go"),
    );
    let run = ["run", "--no-daemon", "--gpu-memory", "2G", "--"];
    let outside = ["env", "-u", "LD_PRELOAD"];
    let hold = [&probe, "hold", "--bytes", &bytes, "--until-file", &gate];
    let said = home.divvy(&[&run[..], &outside, &hold].concat()).ok();
    let held = format!("\"held_bytes\":{TAKEN}");
    assert!(said.stdout.contains(&held), "{}", said.stdout);
    assert_eq!(said.stderr, "");
}

/// A figure of the metrics page.
#[track_caller]
fn count(home: &Home, name: &str) -> u64 {
    let page = metrics(home);
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("{name} is not in\n{page}"))
}

/// The metrics page.
#[track_caller]
fn metrics(home: &Home) -> String {
    let mut stream = UnixStream::connect(home.path().join("divvy.sock")).expect("a daemon serves");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: divvy\r\nconnection: close\r\n\r\n")
        .expect("the socket takes it");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("the page is text");
    page
}

#[test]
fn a_function_that_is_newer_than_the_limiter_is_counted_and_told_of_once() {
    let home = preloaded("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let evader = Evader::build(&home);
    let helper = evader.helper();
    let job = evader.submit("newer", Some(&helper));
    let plain = evader.submit("plain", None);
    let told = || -> Vec<serde_json::Value> {
        let mut events = home.items(&["events"]);
        events.retain(|event| event["kind"] == "uncounted_calls");
        events
    };
    let events = until("the alarm is told", || {
        Some(told()).filter(|events| !events.is_empty())
    });
    assert_eq!(events[0]["job"], job.as_str(), "{events:?}");
    let is_shown = || {
        let _ = home.first_words(&plain);
        // Asking for the GPUs is a look at them.
        let _ = home.items(&["gpus"]);
        assert_eq!(home.job(&job).uncounted_calls, Some(1));
        assert_eq!(home.job(&plain).uncounted_calls, None);
        let said = home.divvy(&["describe", &job]).ok().stdout;
        assert!(
            said.contains("uncounted:   the limiter let 1 call through"),
            "{said}"
        );
        let page = metrics(&home);
        for (job, count) in [(&job, 1), (&plain, 0)] {
            let begins = format!("divvy_hook_uncounted_calls_total{{job=\"{job}\",");
            let mut lines = page.lines();
            let line = lines.find(|line| line.starts_with(&begins));
            let ends = format!(" {count}");
            assert!(line.is_some_and(|line| line.ends_with(&ends)), "{line:?}");
        }
        assert_eq!(told().len(), 1, "{:?}", told());
    };
    is_shown();
    drop(daemon);
    let _daemon = home.daemon(&[]);
    is_shown();
    for (way, job) in [("newer", &job), ("plain", &plain)] {
        home.open(way);
        let ended = home.ended(job);
        assert_eq!(ended.end_reason, Some(EndReason::Completed), "{ended:?}");
    }
    assert_eq!(told().len(), 1, "{:?}", told());
}

#[test]
fn a_program_with_a_limiter_is_reported_as_no_bypass() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let evader = Evader::build(&home);
    let job = evader.submit("plain", None);
    let _ = home.first_words(&job);
    let slice = settled(&home, &job);
    assert_eq!(slice.memory_mismatch_bytes, Some(0), "{slice:?}");
    assert_eq!(slice.memory_unaccounted_bytes, 0, "{slice:?}");
    home.open("plain");
    let ended = home.ended(&job);
    assert_eq!(
        (ended.end_reason, ended.bypasses.len()),
        (Some(EndReason::Completed), 0),
        "{ended:?}"
    );
}

/// The job's slice once the driver's figure is all that its program takes.
#[track_caller]
fn settled(home: &Home, job: &str) -> divvy_api::v1::Slice {
    until("the slice is weighed with all that was taken", || {
        // Asking for the GPUs is a look at them.
        let _ = home.items(&["gpus"]);
        let slice = home.job(job).slices.pop()?;
        (slice.memory_driver_bytes? > TAKEN).then_some(slice)
    })
}

#[test]
fn a_program_that_goes_past_the_hooks_is_told() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let evader = Evader::build(&home);
    let (helper, copy) = (evader.helper(), evader.copy_of_the_driver());
    for (way, library) in [("deepbind", &helper), ("dlmopen", &helper), ("copy", &copy)] {
        let job = evader.submit(way, Some(library));
        let bypass = told(&home, &job);
        assert_eq!(bypass.kind, BypassWay::Unlimited, "{way}: {bypass:?}");
        is_told(&home, &job, &bypass);
        home.open(way);
        let _ = home.ended(&job);
    }
}

#[test]
fn a_process_whose_first_thread_has_ended_is_its_jobs() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let evader = Evader::build(&home);
    let job = evader.submit("leader", Some(&evader.copy_of_the_driver()));
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    assert_eq!(ended.bypasses[0].kind, BypassWay::Unlimited, "{ended:?}");
}

/// What the driver lists for no process is not given out: a neighbour waits for it, and learns why.
#[track_caller]
fn waits_for_unlisted(home: &Home, taken: u64) -> String {
    until("the memory is shown", || {
        let gpu = home.items(&["gpus"]).remove(0);
        let unlisted = gpu["memory_unlisted_bytes"].as_u64()?;
        (unlisted >= taken).then_some(())
    });
    let gpu = home.items(&["gpus"]).remove(0);
    let figure = |name: &str| gpu[name].as_u64().expect("a figure");
    let free = figure("memory_usable_bytes")
        .saturating_sub(figure("memory_allocated_bytes") + figure("memory_unmanaged_bytes"));
    assert!(
        free <= figure("memory_usable_bytes") - figure("memory_used_bytes"),
        "{gpu}"
    );
    let shown = home.divvy(&["gpus"]).ok().stdout.replace('\n', " ");
    assert!(shown.contains("in use by no listed process"), "{shown}");
    let neighbour = home.submit(&["--gpu-memory", "70G"], &["true"]);
    let why = home.divvy(&["why", &neighbour]).ok().stdout;
    assert!(why.contains("by no listed process"), "{why}");
    neighbour
}

#[test]
fn managed_memory_that_is_listed_for_no_process_is_not_given_out() {
    let home = preloaded("a100-80gb:1");
    let config = home.scratch().join("sim.toml");
    fs::write(&config, "hide_managed_memory = true\n").expect("the folder can be written");
    let home = home.variable("DIVVY_SIM_CONFIG", &path(&config));
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let (probe, taken) = (home.program("cudarc_probe"), 20 * GIB);
    let hold = |gate: &str| -> Vec<String> {
        let bytes = taken.to_string();
        let words = [
            "hold",
            "--route",
            "managed",
            "--bytes",
            &bytes,
            "--until-file",
        ];
        let words = words.into_iter().map(str::to_owned);
        words.chain([home.gate(gate)]).collect()
    };
    // Inside a slice its ledger explains it: nothing of it counts twice.
    let words = hold("inside");
    let words: Vec<&str> = [probe.as_str()]
        .into_iter()
        .chain(words.iter().map(String::as_str))
        .collect();
    let job = home.submit(&["--gpu-memory", "30G"], &words);
    let _ = home.first_words(&job);
    until("all of it is seen", || {
        let used = home.items(&["gpus"])[0]["memory_used_bytes"].as_u64()?;
        (used > taken).then_some(())
    });
    let gpu = home.items(&["gpus"]).remove(0);
    assert_eq!(
        (
            &gpu["memory_unmanaged_bytes"],
            &gpu["memory_unlisted_bytes"]
        ),
        (&serde_json::json!(0), &serde_json::json!(0)),
        "{gpu}"
    );
    let beside = home.submit(&["--gpu-memory", "48G"], &["true"]);
    assert_eq!(home.ended(&beside).exit_code, Some(0));
    home.open("inside");
    assert_eq!(home.ended(&job).bypasses, []);

    let mut outside = home.outside(&probe);
    let outside = outside.args(hold("outside")).stdout(Stdio::null()).spawn();
    let mut outside = outside.expect("the probe starts");
    let neighbour = waits_for_unlisted(&home, taken);
    home.open("outside");
    let _ = outside.wait_bounded();
    assert_eq!(home.ended(&neighbour).exit_code, Some(0));
}

/// The job whose descriptors hold memory of no process is named in every view, and by one event.
#[track_caller]
fn is_named(home: &Home, job: &str, neighbour: &str) {
    let holder = until("its holder is known", || {
        let gpu = home.items(&["gpus"]).remove(0);
        let holder = gpu["memory_unlisted_holder"].clone();
        holder.is_object().then_some(holder)
    });
    assert_eq!(holder["job"], job, "{holder}");
    assert!(holder["descriptors"].as_u64() >= Some(80), "{holder}");
    let descriptors = format!("{} descriptors", holder["descriptors"]);
    let gpus = home.divvy(&["gpus"]).ok().stdout.replace('\n', " ");
    assert!(
        gpus.contains(&format!("no listed process: #{job} may")),
        "{gpus}"
    );
    let said = home.divvy(&["describe", job]).ok().stdout;
    assert!(
        said.contains("unlisted") && said.contains(&descriptors),
        "{said}"
    );
    until("the neighbour learns it", || {
        let why = home.divvy(&["why", neighbour]).ok().stdout;
        why.contains(&format!("(#{job} may hold it)")).then_some(())
    });
    let mut events = home.items(&["events", job]);
    events.retain(|event| event["kind"] == "unlisted_memory");
    let [event] = &events[..] else {
        panic!("{events:?}");
    };
    let text = event["text"].as_str().unwrap_or_default();
    assert!(
        text.contains("(evade) has ") && text.contains("of GPU 0"),
        "{text}"
    );
}

#[test]
fn untagged_memory_stays_in_its_slice_while_a_process_has_imported_it() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let evader = Evader::build(&home);
    let words = [&evader.program, "hoard", "20", &home.gate("hoard")];
    let job = home.submit(&["--gpu-memory", "4G"], &words);
    let said = home.first_words(&job);
    assert_eq!(said["result"], 2, "OUT_OF_MEMORY: {said}");
    let gpu = home.items(&["gpus"]).remove(0);
    assert_eq!(gpu["memory_unmanaged_bytes"], 0, "{gpu}");
    assert!(gpu["memory_used_bytes"].as_u64() < Some(5 * GIB), "{gpu}");
    let neighbour = home.submit(&["--gpu-memory", "70G"], &["true"]);
    assert_eq!(home.ended(&neighbour).exit_code, Some(0));
    home.open("hoard");
    assert_eq!(home.ended(&job).bypasses, []);
}

#[test]
fn memory_behind_descriptors_without_a_tag_is_not_given_out() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let evader = Evader::build(&home);
    let gate = home.gate("hoard");
    let copy = evader.copy_of_the_driver();
    let words = [evader.program.as_str(), "hoard", "20", &gate, &copy];
    let job = home.submit(&["--gpu-memory", "2G"], &words);
    let _ = home.first_words(&job);
    let neighbour = waits_for_unlisted(&home, 17 * GIB);
    is_named(&home, &job, &neighbour);
    home.open("hoard");
    let _ = home.ended(&job);
    assert_eq!(home.ended(&neighbour).exit_code, Some(0));
}

#[test]
fn a_forged_account_is_told_and_its_memory_counted_all_the_same() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let evader = Evader::build(&home);
    let job = evader.submit("forge", None);
    let bypass = told(&home, &job);
    assert_eq!(bypass.kind, BypassWay::Understated, "{bypass:?}");
    assert_eq!(bypass.memory_charged_bytes, 0, "{bypass:?}");
    is_told(&home, &job, &bypass);
    let slice = settled(&home, &job);
    let held = slice.memory_driver_bytes.expect("the driver says");
    assert_eq!(
        (slice.memory_unaccounted_bytes, slice.memory_used_bytes),
        (held, held),
        "{slice:?}"
    );
    let error = i64::try_from(held).expect("a believable figure");
    assert_eq!(slice.memory_mismatch_bytes, Some(error), "{slice:?}");
    home.open("forge");
    let ended = home.ended(&job);
    assert_eq!(ended.slices[0].memory_mismatch_max_bytes, held, "{ended:?}");
}

#[test]
fn a_limit_that_its_job_raises_is_put_right_and_what_it_took_is_told_and_not_given_out() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=deny"]);
    let evader = Evader::build(&home);
    let job = evader.submit_raising();
    let bypass = told(&home, &job);
    assert_eq!(
        (bypass.kind, bypass.action),
        (BypassWay::Overdrawn, BypassAction::Denied),
        "{bypass:?}"
    );
    is_told(&home, &job, &bypass);
    assert_eq!(count(&home, "divvy_bypasses_total{kind=\"overdrawn\"}"), 1);
    until("all that it took is counted as not free", || {
        let beyond = home.items(&["gpus"])[0]["memory_unmanaged_bytes"].as_u64()?;
        (beyond > 22 * GIB).then_some(())
    });
    // 80 GiB less the slice's 8 and the 22 beyond it.
    let refused = home.divvy(&["submit", "--no-wait", "--gpu-memory", "60G", "--", "true"]);
    let _ = refused.exits(6);
    until("the limit is what was granted", || {
        // Asking for the GPUs is a look at them.
        let _ = home.items(&["gpus"]);
        let control = home.path().join("slices").join(&job).join("control");
        let limit = fs::read(control).ok()?.get(272..280)?.try_into().ok()?;
        (u64::from_ne_bytes(limit) == 8 * GIB).then_some(())
    });
    let events = home.items(&["events"]);
    let told: Vec<_> = events
        .iter()
        .filter(|event| event["kind"] == "tampered" && event["job"] == job.as_str())
        .collect();
    assert_eq!(told.len(), 1, "{events:?}");
    let text = told[0]["text"].to_string();
    assert!(
        text.contains("limit of its GPU 0: 38.0 GiB instead of 8.0 GiB"),
        "{text}"
    );
    home.open("raise");
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Completed), "{ended:?}");
    let neighbour = home.submit(&["--gpu-memory", "60G"], &["true"]);
    assert_eq!(home.ended(&neighbour).exit_code, Some(0));
}

#[test]
fn by_policy_a_job_that_raises_its_limit_is_killed_and_one_that_is_made_smaller_is_not() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let shrunk = home.submit_holder(&["--gpu-memory", "8G"], 6 * GIB, "shrunk");
    let _ = home.first_words(&shrunk);
    let _ = home.divvy(&["resize", &shrunk, "--gpu-memory", "2G"]).ok();
    let evader = Evader::build(&home);
    let job = evader.submit_raising();
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    let [bypass] = &ended.bypasses[..] else {
        panic!("{ended:?}");
    };
    assert_eq!(
        (bypass.kind, bypass.action),
        (BypassWay::Overdrawn, BypassAction::Killed),
        "{bypass:?}"
    );
    // It holds what it held, and that is its own until it gives it up.
    let left = home.job(&shrunk);
    assert_eq!(
        (left.state, &left.bypasses[..]),
        (JobState::Running, &[][..])
    );
    assert!(
        left.slices[0].memory_driver_bytes > Some(6 * GIB),
        "{left:?}"
    );
    let unmanaged = &home.items(&["gpus"])[0]["memory_unmanaged_bytes"];
    assert_eq!(unmanaged, 0, "it is in the planner's sums already");
    home.open("shrunk");
    let ended = home.ended(&shrunk);
    assert_eq!(ended.end_reason, Some(EndReason::Completed), "{ended:?}");
}

#[test]
fn a_process_that_kills_its_supervisor_and_leaves_its_session_is_its_jobs_by_the_control_group() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let (probe, alone, held) = (
        home.program("cudarc_probe"),
        home.gate("alone"),
        home.gate("held"),
    );
    let bytes = TAKEN.to_string();
    // By the time the evader begins, init is its parent; the job's own program waits beside it.
    let evader = format!(
        "while ! test -e {alone}; do sleep 0.05; done; \
         exec env -u LD_PRELOAD {probe} hold --bytes {bytes} --until-file {held}"
    );
    // A supervisor that dies before its report takes the job with it; what is left of it then is another test's.
    let said = home.gate("said");
    let script = format!(
        "until test -e {said}; do sleep 0.02; done; \
         (setsid sh -c '{evader}' &); kill -9 $PPID; touch {alone}; exec sleep 1000"
    );
    let job = home.submit(&["--gpu-memory", "8G"], &["sh", "-c", &script]);
    let group = until("it is said what holds its processes", || {
        home.job(&job).group
    });
    home.open("said");
    if let Some(why) = group.reason {
        eprintln!("SKIPPED: no control groups here: {why}");
        let _ = home.divvy(&["cancel", &job]).ok();
        return;
    }
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    let [bypass] = &ended.bypasses[..] else {
        panic!("{ended:?}");
    };
    assert_eq!(
        (bypass.kind, bypass.action),
        (BypassWay::Unlimited, BypassAction::Killed),
        "{bypass:?}"
    );
    let gpu = &home.items(&["gpus"])[0];
    assert_eq!(gpu["unmanaged_pids"], serde_json::json!([]), "{gpu}");
    assert_eq!(gpu["memory_unmanaged_bytes"], 0, "{gpu}");
}

#[test]
fn memory_held_past_the_limiter_is_counted_inside_the_limit() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let (probe, gate) = (home.program("cudarc_probe"), home.gate("fill"));
    let other = home.gate("other");
    let script = format!(
        "env -u LD_PRELOAD {probe} hold --bytes {TAKEN} --until-file {other} & \
         while ! test -e {gate}; do sleep 0.05; done; {probe} fill --route linear --step 64M; wait"
    );
    let job = home.submit(&["--gpu-memory", "8G"], &["sh", "-c", &script]);
    let _ = told(&home, &job);
    let slice = settled(&home, &job);
    let held = slice.memory_unaccounted_bytes;
    home.open("fill");
    let report = until("the fill is done", || {
        let log = home.log(&job);
        let line = log
            .lines()
            .find(|line| line.contains("got_bytes"))?
            .to_owned();
        serde_json::from_str::<serde_json::Value>(&line).ok()
    });
    let got = report["got_bytes"].as_u64().expect("a figure");
    let context = home.items(&["gpus"])[0]["context_overhead_bytes"]
        .as_u64()
        .expect("a figure");
    assert!(held >= TAKEN, "{slice:?}");
    assert!(got + context + held <= 8 * GIB, "{report}");
    assert!(got + context + held + 2 * MIB > 8 * GIB, "{report}");
    home.open("other");
    let _ = home.ended(&job);
}

#[test]
fn by_policy_a_slice_gets_nothing_more_until_the_bypass_is_over() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=deny"]);
    let (probe, gate) = (home.program("cudarc_probe"), home.gate("evader"));
    let wait = |name: &str| format!("while ! test -e {}; do sleep 0.05; done", home.gate(name));
    let script = format!(
        "env -u LD_PRELOAD {probe} hold --bytes 1G --until-file {gate} & {}; {probe} fill; {}; {probe} fill",
        wait("first"),
        wait("second"),
    );
    let job = home.submit(&["--gpu-memory", "8G"], &["sh", "-c", &script]);
    let bypass = told(&home, &job);
    assert_eq!(bypass.action, BypassAction::Denied, "{bypass:?}");
    home.open("first");
    // Not even a context: the program ends with the driver's own error.
    until("the first fill is refused", || {
        let log = home.log(&job);
        log.contains("CUDA_ERROR_OUT_OF_MEMORY").then_some(())
    });
    assert!(!home.log(&job).contains("got_bytes"), "{}", home.log(&job));
    home.open("evader");
    until("the bypass is over", || {
        let over = home.job(&job).bypasses.first()?.ended_at;
        over.map(drop)
    });
    until("the slice has its memory back", || {
        (home.job(&job).slices[0].memory_unaccounted_bytes == 0).then_some(())
    });
    home.open("second");
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Completed), "{ended:?}");
    assert!(home.log(&job).contains("got_bytes"), "{}", home.log(&job));
    let kinds: Vec<String> = home
        .items(&["events"])
        .iter()
        .filter_map(|event| Some(event["kind"].as_str()?.to_owned()))
        .filter(|kind| kind.starts_with("bypass"))
        .collect();
    assert_eq!(kinds, ["bypass", "bypass_ended"]);
}

/// A program that holds memory outside every job.
struct Bystander(std::process::Child);

impl Bystander {
    fn start(home: &Home) -> Self {
        let mut command = home.outside(&home.program("cudarc_probe"));
        let child = command
            .args([
                "hold",
                "--bytes",
                "1G",
                "--until-file",
                &home.gate("bystander"),
            ])
            .stdout(Stdio::null())
            .spawn()
            .expect("the probe starts");
        let bystander = Self(child);
        until("the bystander is seen", || {
            let pids = home.items(&["gpus"])[0]["unmanaged_pids"].clone();
            let pid = u64::from(bystander.0.id());
            pids.as_array()?
                .iter()
                .any(|found| found.as_u64() == Some(pid))
                .then_some(())
        });
        bystander
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait_bounded();
    }
}

#[test]
fn by_policy_a_job_past_the_limiter_is_killed_and_no_other_is() {
    let home = preloaded("a100-80gb:2");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let mut bystander = Bystander::start(&home);
    let neighbour = home.submit_holder(&["--gpu-memory", "8G"], GIB, "neighbour");
    let _ = home.first_words(&neighbour);
    let probe = home.program("cudarc_probe");
    // It daemonises what evades, out of its group, its session and its parent's sight, and would go on without it.
    let script = format!(
        "setsid -f env -u LD_PRELOAD {probe} hold --bytes {TAKEN} --until-file {}; sleep 1000",
        home.gate("daemonised")
    );
    let job = home.submit(&["--gpu-memory", "8G"], &["sh", "-c", &script]);
    let ended = home.ended(&job);
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    assert_eq!(ended.exit_code, Some(137), "{ended:?}");
    let reason = ended.reason.clone().unwrap_or_default();
    assert!(
        reason.contains("killed") && reason.contains("not loaded"),
        "{reason}"
    );
    let [bypass] = &ended.bypasses[..] else {
        panic!("{ended:?}");
    };
    assert_eq!(bypass.action, BypassAction::Killed, "{bypass:?}");
    assert!(bypass.ended_at.is_some(), "{bypass:?}");
    let said = home.divvy(&["ps", "-a"]).ok().stdout;
    assert!(said.contains("killed (137)"), "{said}");

    assert!(
        bystander.0.try_wait().expect("a child").is_none(),
        "the bystander was killed"
    );
    assert_eq!(home.job(&neighbour).state, JobState::Running);
    home.open("neighbour");
    let neighbour = home.ended(&neighbour);
    assert_eq!(
        (neighbour.end_reason, neighbour.bypasses.len()),
        (Some(EndReason::Completed), 0),
        "{neighbour:?}"
    );
}

#[test]
fn a_gpu_that_a_job_does_not_hold_is_told_and_not_given_out() {
    let home = preloaded("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    let probe = home.program("cudarc_probe");
    let file = home.gate("other");
    let bytes = (60 * GIB).to_string();
    let hold = [&probe, "hold", "--bytes", &bytes, "--until-file", &file];
    let wrapper = ["env", "-u", "LD_PRELOAD", "-u", "CUDA_VISIBLE_DEVICES"];
    let job = home.submit(
        &["-g", "1", "--gpus-on", "0"],
        &[&wrapper[..], &hold].concat(),
    );
    let bypass = until("the other GPU is told of", || {
        let found = home.job(&job).bypasses;
        found
            .into_iter()
            .find(|found| found.kind == BypassWay::OtherGpu)
    });
    assert_eq!(bypass.gpu_index, 1, "{bypass:?}");
    is_told(&home, &job, &bypass);
    until("what it holds there is nobody's to have", || {
        let held = home.items(&["gpus"])[1]["memory_unmanaged_bytes"].as_u64()?;
        (held > 60 * GIB).then_some(())
    });
    let refused = home.divvy(&["submit", "--no-wait", "-g", "1", "--", "true"]);
    let _ = refused.exits(6);
    home.open("other");
    let _ = home.ended(&job);
}

#[test]
fn a_slot_that_names_a_foreign_process_keeps_no_slice_and_accuses_no_job() {
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let evader = Evader::build(&home);
    let mut bystander = Bystander::start(&home);
    let pid = bystander.0.id().to_string();
    let job = home.submit(
        &["--gpu-memory", "8G"],
        &[&evader.program, "frame", "3", &pid],
    );
    let ended = home.ended(&job);
    assert_eq!(ended.exit_code, Some(137), "{ended:?}");
    assert_eq!(ended.end_reason, Some(EndReason::Failed), "by its own hand");
    let gpu = &home.items(&["gpus"])[0];
    assert_eq!(gpu["unmanaged_pids"][0].as_u64(), pid.parse().ok(), "{gpu}");
    assert_eq!(gpu["slices"], serde_json::json!([]), "{gpu}");
    assert!(bystander.0.try_wait().expect("a child").is_none());
}

#[test]
fn a_bypass_in_a_namespace_of_its_own_is_told_under_the_pid_that_it_has_here() {
    let unshare = [
        "unshare",
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    if !can_unshare(&unshare) {
        return;
    }
    let home = preloaded("a100-80gb:1");
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let probe = home.program("cudarc_probe");
    // The limited one is pid 1 of its namespace, as an innocent process is here.
    let file = home.gate("limited");
    let hold = [&probe, "hold", "--bytes", "1G", "--until-file", &file];
    let limited = home.submit(&["--gpu-memory", "8G"], &[&unshare[..], &hold].concat());
    let _ = home.first_words(&limited);
    let slice = until("its account and the driver's agree", || {
        let _ = home.items(&["gpus"]);
        let slice = home.job(&limited).slices.pop()?;
        (slice.memory_mismatch_bytes == Some(0) && slice.memory_driver_bytes? > GIB)
            .then_some(slice)
    });
    assert_eq!(slice.memory_unaccounted_bytes, 0, "{slice:?}");

    let file = home.gate("past");
    let hold = [&probe, "hold", "--bytes", "1G", "--until-file", &file];
    let wrapper = [&unshare[..], &["env", "-u", "LD_PRELOAD"]].concat();
    let past = home.submit(&["--gpu-memory", "8G"], &[&wrapper[..], &hold].concat());
    let ended = home.ended(&past);
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    let bypass = &ended.bypasses[0];
    assert!(
        bypass.pid > 1 && bypass.program.starts_with("cudarc"),
        "{bypass:?}"
    );

    let job = home.job(&limited);
    assert_eq!(
        (job.state, job.bypasses.len()),
        (JobState::Running, 0),
        "{job:?}"
    );
    home.open("limited");
    assert_eq!(home.ended(&limited).end_reason, Some(EndReason::Completed));
}

#[test]
fn a_bypass_is_not_told_twice_when_the_daemon_comes_back() {
    let home = preloaded("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let probe = home.program("cudarc_probe");
    let file = home.gate("held");
    let words = [
        "env",
        "-u",
        "LD_PRELOAD",
        &probe,
        "hold",
        "--bytes",
        "1G",
        "--until-file",
        &file,
    ];
    let job = home.submit(&["--gpu-memory", "8G"], &words);
    let before = told(&home, &job);
    daemon.crash();
    let _daemon = home.daemon(&["--set", "on-bypass=deny"]);
    let slice = until("the slice is weighed again", || {
        home.job(&job)
            .slices
            .pop()
            .filter(|slice| slice.memory_unaccounted_bytes > GIB)
    });
    assert_eq!(
        slice.memory_driver_bytes,
        Some(slice.memory_unaccounted_bytes)
    );
    // A stricter policy is applied to what goes on.
    let found: Vec<Bypass> = until("it is denied now", || {
        let found = home.job(&job).bypasses;
        (found[0].action == BypassAction::Denied).then_some(found)
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].detected_at, before.detected_at);
    home.open("held");
    let ended: Job = home.ended(&job);
    assert!(ended.bypasses[0].ended_at.is_some(), "{ended:?}");
}

#[test]
fn a_driver_that_lists_no_processes_is_reported() {
    let home = preloaded("a100-80gb:1");
    let config = home.scratch().join("sim.toml");
    fs::write(&config, "hide_process_memory = true\n").expect("the folder can be written");
    let home = home.variable("DIVVY_SIM_CONFIG", &path(&config));
    let _daemon = home.daemon(&["--set", "on-bypass=kill"]);
    let job = home.submit_holder(&["--gpu-memory", "8G"], GIB, "limited");
    let _ = home.first_words(&job);
    until("it is said", || {
        let events = home.items(&["events"]);
        events
            .iter()
            .any(|event| event["kind"] == "process_memory_unknown")
            .then_some(())
    });
    let gpu = &home.items(&["gpus"])[0];
    assert_eq!(gpu["process_memory_known"], false, "{gpu}");
    assert_eq!(gpu["memory_unmanaged_bytes"], 0, "no stranger: {gpu}");
    let slice = home.job(&job).slices.remove(0);
    assert_eq!(
        (slice.memory_driver_bytes, slice.memory_mismatch_bytes),
        (None, None),
        "{slice:?}"
    );
    assert!(
        slice.memory_used_bytes > GIB,
        "the account says it: {slice:?}"
    );
    home.open("limited");
    assert_eq!(home.ended(&job).bypasses, []);

    // That somebody is there without a slot is seen all the same.
    let probe = home.program("cudarc_probe");
    let file = home.gate("past");
    let words = [
        "env",
        "-u",
        "LD_PRELOAD",
        &probe,
        "hold",
        "--bytes",
        "1G",
        "--until-file",
        &file,
    ];
    let ended = home.ended(&home.submit(&["--gpu-memory", "8G"], &words));
    assert_eq!(ended.end_reason, Some(EndReason::Bypass), "{ended:?}");
    assert_eq!(ended.bypasses[0].memory_driver_bytes, None, "{ended:?}");
}
