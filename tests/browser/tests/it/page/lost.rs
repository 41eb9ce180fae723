//! A daemon that dies and comes back under an open page, and a `divvy web` that ends.

use divvy_browser::{Browser, Witness};
use divvy_testkit::page::Page;
use divvy_testkit::{two_run_and_one_waits, until};

use super::{is_ready, open};

#[test]
fn a_killed_daemon_leaves_a_grey_picture_with_its_age_and_a_new_one_takes_over() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, daemon, jobs) = two_run_and_one_waits();
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    browser.appears("[data-gpu=\"1\"]");
    // A page that is loaded anew forgets this.
    browser.js("globalThis.kept = true", &[]);
    daemon.crash();
    browser.appears("body[data-stale=\"true\"]");
    let age = "const line = [...document.querySelectorAll('[role=status]')].map(one => one.innerText).join(' '); \
               return /\\d+ ?s/.test(line) && line";
    let said = browser.until("the status line gives an age", age, &[]);
    eprintln!("while the daemon is gone: {said}");
    // The last picture stays, and it does not look like a fresh one.
    assert_eq!(browser.count("[data-gpu]"), 2);
    let pale = "const style = getComputedStyle(document.querySelector('[data-gpu]').closest('main')); \
                return style.opacity !== '1' || style.filter !== 'none'";
    assert_eq!(browser.js(pale, &[]), true, "the picture is not grey");
    // The age grows.
    let first = said.as_str().unwrap_or_default().to_owned();
    browser.until(
        "the age grows",
        &format!("const before = arguments[0]; {age} !== before"),
        &[first.into()],
    );
    let daemon = home.daemon(&[]);
    browser.vanishes("body[data-stale=\"true\"]");
    assert_eq!(
        browser.js("return globalThis.kept", &[]),
        true,
        "the page was loaded anew"
    );
    // What happens now is on the page again. No job may pass the one that waits.
    let _ = home.divvy(&["cancel", &jobs[2]]).ok();
    let job = home.submit(
        &["-g", "0.25", "--name", "after-the-crash"],
        &["sleep", "1000"],
    );
    home.running(&job);
    browser.shows("after-the-crash");
    assert_eq!(
        browser.js(
            "return witness.executed.length + witness.violations.length",
            &[]
        ),
        0
    );
    assert_eq!(Witness::of(&browser).errors, Vec::<String>::new());
    drop(daemon);
}

#[test]
fn the_end_of_divvy_web_is_shown_and_a_stopped_daemon_is_named() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, daemon, _) = two_run_and_one_waits();
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    assert_eq!(daemon.stop(), 0);
    browser.appears("body[data-stale=\"true\"]");
    drop(web);
    let words = "return [...document.querySelectorAll('[role=status], [role=alert]')]\
                 .some(one => one.innerText.includes('divvy web'))";
    browser.until("the page names the program that ended", words, &[]);
    until("the picture is still there", || {
        browser.count("[data-gpu]") == 2
    });
    let _ = is_ready;
}
