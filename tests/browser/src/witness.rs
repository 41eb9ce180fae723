//! The witness: a script that runs before the page's own, and records what the page must not do.

use crate::Browser;

/// Texts of users call `hostile()`. Nothing in the page may run it.
pub const SCRIPT: &str = "
globalThis.witness = {executed: [], violations: [], errors: [], ready: null};
globalThis.hostile = from => { witness.executed.push(String(from)); };
for (const name of ['alert', 'confirm', 'prompt', 'open']) {
    globalThis[name] = text => { witness.executed.push(`${name} ${text}`); return null; };
}
addEventListener('error', event => witness.errors.push(String(event.message)));
addEventListener('unhandledrejection', event => witness.errors.push(`rejected: ${event.reason} ${event.reason?.stack ?? ''}`));
document.addEventListener('securitypolicyviolation', event => {
    witness.violations.push(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`);
});
new MutationObserver(() => {
    if (witness.ready === null && document.querySelector('main[data-ready=\"true\"]')) {
        witness.ready = performance.now();
    }
}).observe(document, {subtree: true, childList: true, attributes: true});
";

/// What the page did since it was loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Witness {
    /// Calls of `hostile` by texts that were executed, and of functions that open windows.
    pub executed: Vec<String>,
    /// Rules of the content security policy that the page broke.
    pub violations: Vec<String>,
    /// Errors that no code of the page has caught.
    pub errors: Vec<String>,
    /// Milliseconds from the navigation to the first picture with data.
    pub ready: Option<f64>,
}

impl Witness {
    /// Reads it.
    #[must_use]
    #[track_caller]
    pub fn of(browser: &Browser) -> Self {
        let value = browser.js("return witness", &[]);
        let texts = |name: &str| -> Vec<String> {
            let items = value[name].as_array().into_iter().flatten();
            items
                .map(|text| text.as_str().unwrap_or_default().to_owned())
                .collect()
        };
        Self {
            executed: texts("executed"),
            violations: texts("violations"),
            errors: texts("errors"),
            ready: value["ready"].as_f64(),
        }
    }

    /// Nothing was executed, no rule was broken, and no error was left.
    ///
    /// # Panics
    /// Otherwise, with all of it.
    #[track_caller]
    pub fn is_clean(browser: &Browser, where_: &str) {
        let Self {
            executed,
            violations,
            errors,
            ..
        } = Self::of(browser);
        let all = [executed, violations, errors].concat();
        assert!(all.is_empty(), "{where_}: {all:?}");
    }
}
