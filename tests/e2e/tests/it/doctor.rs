//! The doctor says what will hold limits here, and what is in the way, on machines that are well and on ones that are not.

use std::fs;

use divvy_e2e::{CommandOutput, Home};
use serde_json::Value;

fn findings(said: &CommandOutput) -> Vec<Value> {
    assert_eq!(said.json()["kind"], "Doctor");
    said.items()
}

fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("nothing was found about {check}: {findings:#?}"))
}

/// Every finding that is not ok.
fn trouble(findings: &[Value]) -> Vec<&Value> {
    findings
        .iter()
        .filter(|finding| finding["status"] != "ok" && finding["check"] != "system.pid_namespace")
        .collect()
}

#[test]
fn on_a_machine_that_is_well_nothing_is_wrong_and_nothing_is_changed() {
    let home = Home::new("a100-80gb:2");
    let findings = findings(&home.divvy(&["doctor", "-o", "json"]).ok());
    assert!(trouble(&findings).is_empty(), "{:#?}", trouble(&findings));
    for check in [
        "driver.library",
        "driver.cuda",
        "driver.nvml",
        "limiter.library",
        "limiter.loads",
        "limiter.form",
        "limiter.account",
        "gpu.0",
        "gpu.1.enforcement",
        "daemon",
    ] {
        assert_eq!(finding(&findings, check)["status"], "ok", "{check}");
    }
    assert!(!home.path().exists(), "the doctor made a home");
}

#[test]
fn the_daemon_that_serves_is_named() {
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let findings = findings(&home.divvy(&["doctor", "-o", "json"]).ok());
    let found = finding(&findings, "daemon")["found"].to_string();
    assert!(found.contains(&daemon.pid().to_string()), "{found}");
}

#[test]
fn without_a_driver_it_says_so_and_offers_a_simulated_one() {
    let home = Home::with(divvy_e2e::Programs::of_this_test(), None);
    // The loader takes the first file of that name, and this one is no library, whatever else the machine has.
    let broken = home.scratch().join("broken");
    fs::create_dir(&broken).expect("the folder can be written");
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        fs::write(broken.join(name), "not a library").expect("the folder can be written");
    }
    let home = home.variable("LD_LIBRARY_PATH", broken.to_str().expect("a readable path"));
    let said = home.divvy(&["doctor", "-o", "json"]).exits(1);
    let findings = findings(&said);
    let library = finding(&findings, "driver.library");
    assert_eq!(library["status"], "fail");
    assert!(
        library["fix"]
            .as_str()
            .is_some_and(|fix| fix.contains("--sim")),
        "{library}"
    );
    assert_eq!(finding(&findings, "limiter.library")["status"], "ok");
}

#[test]
fn a_limiter_that_is_switched_off_or_cannot_be_loaded_is_a_failure() {
    let home = Home::new("a100-80gb:1").variable("DIVVY_SHIM", "off");
    let off = findings(&home.divvy(&["doctor", "-o", "json"]).exits(1));
    assert_eq!(finding(&off, "conflicts.off")["status"], "fail");

    let home = Home::new("a100-80gb:1");
    let folder = home.scratch().join("my libraries");
    fs::create_dir(&folder).expect("the folder can be written");
    let name = "libdivvy_preload.so";
    fs::copy(home.program(name), folder.join(name)).expect("the library can be copied");
    let home = home.variable("DIVVY_LIB_DIR", folder.to_str().expect("a readable path"));
    // Jobs load a copy of it.
    let copied = findings(&home.divvy(&["doctor", "-o", "json"]).ok());
    let library = finding(&copied, "limiter.library");
    assert_eq!(library["status"], "ok", "{library}");
    assert_eq!(finding(&copied, "limiter.loads")["status"], "ok");
    let whole = fs::read(folder.join(name)).expect("the library can be read");
    fs::write(folder.join(name), &whole[..4096]).expect("the library can be cut");
    let unloadable = findings(&home.divvy(&["doctor", "-o", "json"]).exits(1));
    assert_eq!(finding(&unloadable, "limiter.library")["status"], "fail");
    assert_eq!(finding(&unloadable, "gpu.0.enforcement")["status"], "fail");
}

#[test]
fn models_that_there_are_none_of_are_a_failure_that_says_so() {
    let home = Home::new("a100-80gb:1");
    let said = home.divvy(&["doctor", "--sim", "no-such-gpu:1"]).exits(1);
    for words in [
        "driver.simulated",
        "unknown model `no-such-gpu`; known models: a100-40gb",
    ] {
        assert!(said.stdout.contains(words), "{}", said.stdout);
    }
}
