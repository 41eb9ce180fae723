//! The log of a job, live, with search; and a log that is too long for a page.

use divvy_browser::{Browser, Witness};
use divvy_testkit::Home;
use divvy_testkit::page::Page;

use super::{go, open};

#[test]
fn a_log_follows_its_job_and_is_searched() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let gate = home.gate("more");
    let script = format!(
        "i=0; while [ $i -lt 300 ]; do echo \"line $i of the first part\"; i=$((i + 1)); done; \
         until [ -e {gate} ]; do sleep 0.05; done; echo 'needle: loss is NaN'; exec sleep 1000"
    );
    let job = home.submit(&["-g", "0.5", "--name", "talks"], &["sh", "-c", &script]);
    home.running(&job);
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    go(&browser, &format!("#/job/{job}"));
    let shows = |text: &str| {
        let script = "return document.querySelector('div.log')?.innerText.includes(arguments[0])";
        browser.until(&format!("the log shows {text:?}"), script, &[text.into()]);
    };
    shows("line 299 of the first part");
    assert!(!browser.text("div.log").contains("needle"));
    home.open("more");
    shows("needle: loss is NaN");
    browser.type_into(
        "section[aria-labelledby=\"log\"] input[type=\"search\"]",
        "needle",
    );
    let marks = "const marks = [...document.querySelectorAll('div.log mark')]; \
                 return marks.length === 1 && marks[0].innerText";
    assert_eq!(browser.until("one match is marked", marks, &[]), "needle");
    Witness::is_clean(&browser, "the log");
}

#[test]
fn a_log_is_whole_over_an_orderly_restart_of_the_daemon() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let home = Home::new("a100-80gb:1");
    let daemon = home.daemon(&[]);
    let gate = home.gate("more");
    let script = format!(
        "for i in 1 2 3 4; do echo \"line $i\"; done; until [ -e {gate} ]; do sleep 0.05; done; \
         for i in 5 6 7 8 9 10 11 12; do echo \"line $i\"; sleep 0.2; done; exit 6"
    );
    let job = home.submit(&["-g", "0.5"], &["sh", "-c", &script]);
    home.running(&job);
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    go(&browser, &format!("#/job/{job}"));
    browser.js("globalThis.kept = true", &[]);
    let shown = "return document.querySelector('div.log')?.innerText.match(/line [0-9]+/g)?.join()";
    let all = |last: u32| {
        (1..=last)
            .map(|line| format!("line {line}"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let until = |last: u32| {
        let script =
            format!("const shown = (() => {{ {shown} }})(); return shown === arguments[0]");
        browser.until(
            &format!("{last} lines, each once"),
            &script,
            &[all(last).into()],
        );
    };
    until(4);
    assert_eq!(daemon.stop(), 0);
    browser.appears("body[data-stale=\"true\"]");
    home.open("more");
    let _daemon = home.daemon(&[]);
    until(12);
    browser.shows("failed");
    browser.vanishes("body[data-stale=\"true\"]");
    until(12);
    assert_eq!(
        browser.js("return globalThis.kept", &[]),
        true,
        "loaded anew"
    );
    Witness::is_clean(&browser, "the log over a restart");
}

#[test]
fn a_line_of_a_mebibyte_and_a_flood_leave_the_page_usable() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let script = "head -c 1048576 /dev/zero | tr '\\0' x; echo; \
                  i=0; while [ $i -lt 200000 ]; do echo \"flood $i\"; i=$((i + 1)); done; echo the-last-line; exec sleep 1000";
    let job = home.submit(&["-g", "0.5", "--name", "floods"], &["sh", "-c", script]);
    home.running(&job);
    divvy_testkit::until("the job has written all", || {
        home.log(&job).contains("the-last-line")
    });
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    go(&browser, &format!("#/job/{job}"));
    let script = "return document.querySelector('div.log')?.innerText.includes('the-last-line')";
    browser.until("the end of the log", script, &[]);
    // What a page keeps of a log is bounded, in text and in elements.
    let kept = browser.js(
        "return document.querySelector('div.log').textContent.length",
        &[],
    );
    assert!(kept.as_u64() <= Some(4 << 20), "{kept} characters");
    let elements = browser.count("div.log *");
    assert!(elements <= 20_000, "{elements} elements");
    // It still answers within a moment.
    go(&browser, "#/overview");
    go(&browser, "#/queue");
    Witness::is_clean(&browser, "a flood");
}
