//! What holds for the preload holds for the wrapper: the tests of this program run once more, with the other form.

use std::process::Command;
use std::time::Duration;

use divvy_testkit::bounded_for;

use crate::support::Form;

/// Tests that are about one form, or about both at once.
const OF_FORMS: &[&str] = &[
    "binding::",
    "differential::",
    "exports::",
    "forms::",
    "fuzz::",
    "hooks::",
    "matrix::",
    "model::",
    "monitor::",
    "routing::",
    "views::what_a_device_is",
    // What goes past a preload does not go past a wrapper.
    "life::a_context_made_behind_the_hooks",
    // These bring a driver of their own, in the place of the wrapper.
    "programs::a_driver_that_cannot_be_asked",
    "programs::what_a_driver_can_be_asked",
];

mod exhaustive {
    use super::*;

    #[test]
    fn everything_that_holds_for_the_preload_holds_for_the_wrapper() {
        let this = std::env::current_exe().expect("a test knows its own path");
        let mut again = Command::new(this);
        again.env(Form::VARIABLE, "wrapper").arg("--test-threads=2");
        for name in OF_FORMS {
            again.args(["--skip", name]);
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "many tests, bounded by more than the usual minute"
        )]
        let output = bounded_for(
            Duration::from_secs(300),
            "the tests in the other form end",
            || again.output(),
        );
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        // All of them, and not only those whose names fit.
        let passed = said
            .split("test result: ok. ")
            .nth(1)
            .and_then(|rest| rest.split(' ').next());
        let passed: usize = passed
            .and_then(|number| number.parse().ok())
            .unwrap_or_default();
        assert!(passed > 40, "only {passed} tests ran:\n{said}");
    }
}
