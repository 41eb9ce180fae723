//! Keys alone: every control can be reached and seen, nothing holds the focus, and an action can be run.

use divvy_api::v1::JobState;
use divvy_browser::Key;
use divvy_browser::{Browser, Witness};
use divvy_testkit::page::Page;
use divvy_testkit::two_run_and_one_waits;

use super::{go, open, routes};

/// Where the focus is: a description, and whether the browser draws it.
const FOCUS: &str = "
const one = document.activeElement;
if (one) one.wasFocused = true;
if (!one || one === document.body) return null;
const style = getComputedStyle(one);
const box = one.getBoundingClientRect();
return {
    what: `${one.tagName} ${one.dataset.action ?? one.getAttribute('href') ?? one.getAttribute('aria-label') ?? one.innerText?.slice(0, 40) ?? ''}`,
    action: one.dataset.action ?? null,
    ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0 || style.boxShadow !== 'none',
    size: box.width * box.height,
};";

/// Controls that are shown and not disabled. Radio buttons of one group are one stop.
const REACHABLE: &str = "
return [...document.querySelectorAll('a[href], button, input:not([type=radio]), select, summary, [tabindex=\"0\"]')]
    .filter(one => !one.disabled && one.checkVisibility({visibilityProperty: true}))
    .filter(one => !globalThis.onlyMissed || !one.wasFocused)
    .map(one => one.outerHTML.slice(0, 150));";

/// Restricts the list above to what had no focus yet.
const MISSED: &str =
    "globalThis.onlyMissed = true; setTimeout(() => { globalThis.onlyMissed = false; }, 0);";

#[test]
fn keys_alone_reach_every_page_and_run_an_action() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, _daemon, jobs) = two_run_and_one_waits();
    let web = Page::open(&home, &["--allow-actions"]);
    open(&browser, &web);
    for route in routes(&jobs[0]) {
        go(&browser, &route);
        let reachable = browser.js(REACHABLE, &[]).as_array().map_or(0, Vec::len);
        assert!(reachable >= 8, "{route} has {reachable} controls");
        // Once around, from wherever the page has put the focus.
        for _ in 0..reachable + 5 {
            browser.press(Key::Tab);
            let focus = browser.js(FOCUS, &[]);
            if !focus.is_null() {
                assert_eq!(focus["ring"], true, "{route}: no ring around {focus}");
                let size = focus["size"].as_f64();
                assert!(
                    size > Some(0.0),
                    "{route}: the focus is on nothing: {focus}"
                );
            }
        }
        let missed = browser.js(&format!("{MISSED}{REACHABLE}"), &[]);
        let missed = missed.as_array().cloned().unwrap_or_default();
        // A page that has changed meanwhile may have one control more.
        assert!(
            missed.len() <= 1,
            "{route}: Tab comes to none of {missed:?}"
        );
    }
    // The way to the job is a way of keys too: a link, and Enter.
    go(&browser, "#/overview");
    focus(&browser, &format!("a[href=\"#/job/{}\"]", jobs[0]));
    browser.press(Key::Enter);
    super::is_ready(&browser, "job");
    focus(&browser, "[data-action=\"cancel\"]");
    browser.press(Key::Enter);
    browser.appears("dialog[open]");
    // The dialog has the focus, and keeps it.
    let inside = "return document.querySelector('dialog[open]').contains(document.activeElement)";
    assert_eq!(
        browser.js(inside, &[]),
        true,
        "the focus is not in the dialog"
    );
    focus(&browser, "dialog[open] [data-confirm]");
    browser.press(Key::Enter);
    assert_eq!(home.ended(&jobs[0]).state, JobState::Ended);
    browser.vanishes("dialog[open]");
    let focused =
        "return document.activeElement !== null && document.activeElement !== document.body";
    assert_eq!(
        browser.js(focused, &[]),
        true,
        "the focus is lost after the dialog"
    );
    Witness::is_clean(&browser, "after keys");
}

/// Presses Tab until this element has the focus.
#[track_caller]
fn focus(browser: &Browser, selector: &str) {
    browser.appears(selector);
    let is_there = "return document.activeElement?.matches(arguments[0]) ?? false";
    for _ in 0..200 {
        if browser.js(is_there, &[selector.into()]) == true {
            return;
        }
        browser.press(Key::Tab);
    }
    panic!("Tab does not come to {selector}");
}

#[test]
fn the_table_behind_a_chart_has_its_values() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, _daemon, _) = two_run_and_one_waits();
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    browser.appears("[data-chart=\"memory\"]");
    browser.click("[data-table-for=\"memory\"]");
    let cells = "const table = document.querySelector('table[data-table=\"memory\"], [data-chart=\"memory\"] ~ table, [data-chart=\"memory\"] table, dialog[open] table'); \
                 return table && table.rows.length > 1 && table.rows[1].innerText";
    let row = browser.until("a table with values", cells, &[]);
    assert!(
        row.as_str()
            .is_some_and(|row| row.contains(|c: char| c.is_ascii_digit())),
        "{row}"
    );
    Witness::is_clean(&browser, "the table");
}
