//! What users read of `selftest` and `doctor`, recorded: with everything well, and with something wrong.

use std::ffi::OsString;

use divvy_api::v1::{
    Finding, FindingStatus, LimiterForm, Selftest, SelftestCheck, SelftestKind, SelftestResult,
};
use divvy_cli::args::{self, Format};
use divvy_cli::render::{self, View};
use divvy_cli::{error_output, rejection};
use insta::assert_snapshot;

fn view(width: usize) -> View {
    View {
        wide: false,
        width: Some(width),
        now: "2026-03-04T12:00:00Z".parse().expect("a time"),
        zone: || jiff::tz::TimeZone::UTC,
        palette: Default::default(),
    }
}

fn check(
    kind: SelftestKind,
    name: &str,
    result: SelftestResult,
    got: u64,
    detail: &str,
) -> SelftestCheck {
    SelftestCheck {
        kind,
        name: name.to_owned(),
        result,
        got_bytes: (got > 0).then_some(got),
        detail: detail.to_owned(),
    }
}

fn selftest(passed: bool) -> Selftest {
    use SelftestKind::{Lookup, Memory, Race, View};
    use SelftestResult::{Agrees, Differs, Enforced, NotAvailable, NotEnforced};
    const GOT: u64 = 3584 << 20;
    let held = if passed { Enforced } else { NotEnforced };
    let seen = if passed { Agrees } else { Differs };
    Selftest {
        gpu_uuid: "GPU-00112233-4455-6677-8899-aabbccddeeff".to_owned(),
        gpu_index: 1,
        model: "NVIDIA A100-SXM4-80GB".to_owned(),
        driver_version: "580.95.05".to_owned(),
        cuda_version: "13.0".to_owned(),
        simulated: (!passed).then(|| "a100-80gb:2".to_owned()),
        version: "0.1.0".to_owned(),
        at: "2026-03-04T11:00:00Z".parse().expect("a time"),
        daemon: passed,
        memory_limit_bytes: 4 << 30,
        enforcement: "interposer".to_owned(),
        form: Some(if passed {
            LimiterForm::Preload
        } else {
            LimiterForm::Wrapper
        }),
        passed,
        checks: vec![
            check(Memory, "cuMemAlloc_v2", held, GOT, ""),
            check(Memory, "cuMemCreate", Enforced, GOT, ""),
            check(
                Memory,
                "cuGraphAddMemAllocNode",
                NotAvailable,
                0,
                "cuGraphCreate: operation not supported",
            ),
            check(
                Lookup,
                "cuGetProcAddress",
                held,
                GOT,
                if passed {
                    "2 functions"
                } else {
                    "cuMemAlloc_v2"
                },
            ),
            check(
                Race,
                "cuMemAlloc_v2 by several processes",
                Enforced,
                2464 << 20,
                "4 processes at once, 20 rounds",
            ),
            check(
                View,
                "NVML total",
                seen,
                0,
                "4294967296 bytes, limit 4294967296",
            ),
        ],
    }
}

fn selftests(tests: &[Selftest], format: Format, width: usize) -> String {
    render::list(tests, format, view(width), render::selftests).expect("API types are JSON")
}

#[test]
fn selftest_views() {
    assert_snapshot!(
        "selftest_passed_120",
        selftests(&[selftest(true)], Format::Table, 120)
    );
    assert_snapshot!(
        "selftest_failed_80",
        selftests(&[selftest(true), selftest(false)], Format::Table, 80)
    );
    assert_snapshot!(
        "selftest_json",
        selftests(&[selftest(true)], Format::Json, 80)
    );
    assert_snapshot!(
        "selftest_name",
        selftests(&[selftest(true)], Format::Name, 80)
    );
}

fn finding(check: &str, status: FindingStatus, found: &str, means: &str, fix: &str) -> Finding {
    Finding {
        check: check.to_owned(),
        status,
        found: found.to_owned(),
        means: means.to_owned(),
        fix: fix.to_owned(),
    }
}

fn findings() -> Vec<Finding> {
    vec![
        finding(
            "driver.library",
            FindingStatus::Ok,
            "libcuda.so.1 is /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05",
            "",
            "",
        ),
        finding(
            "driver.cuda",
            FindingStatus::Ok,
            "CUDA shows 2 GPUs",
            "",
            "",
        ),
        finding(
            "gpu.0.persistence",
            FindingStatus::Warn,
            "persistence mode is off",
            "the driver shuts an unused GPU down, and the next job waits seconds until it is ready",
            "sudo nvidia-smi -i 0 -pm 1, or run nvidia-persistenced",
        ),
        finding(
            "conflicts.off",
            FindingStatus::Fail,
            "DIVVY_SHIM=off is set in this environment",
            "jobs inherit it, and run without limits if their user may change the limits of the slice",
            "unset DIVVY_SHIM",
        ),
    ]
}

fn doctor(findings: &[Finding], format: Format, width: usize) -> String {
    render::list(findings, format, view(width), render::findings).expect("API types are JSON")
}

#[test]
fn doctor_views() {
    let findings = findings();
    assert_snapshot!("doctor_ok_120", doctor(&findings[..2], Format::Table, 120));
    assert_snapshot!("doctor_failed_80", doctor(&findings, Format::Table, 80));
    assert_snapshot!("doctor_json", doctor(&findings[2..3], Format::Json, 80));
    assert_snapshot!("doctor_name", doctor(&findings, Format::Name, 80));
}

#[test]
fn words_that_do_not_go_together_are_refused() {
    let refused = |words: &[&str]| {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let error = args::parse(&words).expect_err("these words mean nothing");
        error_output::render(&rejection::from_clap(&error, &words), false)
    };
    assert_snapshot!(
        "selftest_usage",
        refused(&["divvy", "selftest", "--all", "--gpu", "1"])
    );
    assert_snapshot!(
        "doctor_usage",
        refused(&["divvy", "doctor", "--sim", "a100"])
    );
}
