//! Every page in every look: no barrier that axe-core finds, no scrolling sideways, nothing against the policy.

use divvy_browser::lab::Lab;
use divvy_browser::{Browser, Look, Witness, axe};
use divvy_testkit::Programs;
use divvy_testkit::page::Page;

use super::{go, open, routes};

#[test]
fn no_page_has_a_barrier_in_any_look() {
    let (Some(browser), Some(source)) = (Browser::start(), axe::source()) else {
        return;
    };
    let lab = Lab::start(Programs::of_this_test());
    let web = Page::open(&lab.home, &["--allow-actions"]);
    open(&browser, &web);
    let mut found = Vec::new();
    for route in routes(&lab.jobs[0]) {
        go(&browser, &route);
        Witness::is_clean(&browser, &route);
        for look in Look::ALL {
            browser.look(look);
            if look == Look::Forced && route == "#/overview" {
                let hidden = browser.js(HIDDEN_PARTS, &[]);
                assert_eq!(hidden, serde_json::json!([]), "parts without a colour");
            }
            let violations = axe::violations(&browser, &source);
            found.extend(
                violations
                    .iter()
                    .map(|one| format!("{route} {look:?}: {one}")),
            );
            let wide = browser.js(WIDER, &[]);
            let wide = wide.as_array().cloned().unwrap_or_default();
            found.extend(
                wide.iter()
                    .map(|one| format!("{route} {look:?} scrolls sideways: {one}")),
            );
        }
        browser.look(Look::Light);
    }
    assert!(
        found.is_empty(),
        "{} findings\n{}",
        found.len(),
        found.join("\n")
    );
}

/// Elements that reach beyond the window, where the document scrolls sideways. What scrolls by itself may be wide.
const WIDER: &str = "
const root = document.documentElement;
if (root.scrollWidth <= root.clientWidth) return [];
return [...document.querySelectorAll('body *')]
    .filter(element => element.getBoundingClientRect().right > root.clientWidth + 1)
    .slice(0, 5).map(element => `${root.scrollWidth}px ` + element.outerHTML.slice(0, 120));
";

/// Jobs' parts of the bars of GPUs that look as the bar behind them: forced colours would make all of them one colour.
const HIDDEN_PARTS: &str = "
if (!matchMedia('(forced-colors: active)').matches) return ['colours are not forced'];
const parts = [...document.querySelectorAll('[data-gpu] .part')].filter(part => part.clientWidth > 0);
if (parts.length === 0) return ['there are no parts'];
const look = element => { const style = getComputedStyle(element); return style.backgroundColor + style.backgroundImage; };
return parts.filter(part => look(part) === look(part.parentElement)).map(part => part.outerHTML.slice(0, 120));
";

#[test]
fn what_axe_looks_for_it_finds() {
    let (Some(browser), Some(source)) = (Browser::start(), axe::source()) else {
        return;
    };
    let bad = "<title>x</title><main><h1>x</h1><img src='data:,'><p style='color:#aaa;background:#fff'>pale</p></main>";
    let site = divvy_browser::foreign::Foreign::serve(bad);
    browser.goto(&site.origin());
    let found = axe::violations(&browser, &source).join("\n");
    for rule in ["image-alt", "color-contrast", "html-has-lang"] {
        assert!(found.contains(rule), "{rule} is missing: {found}");
    }
}
