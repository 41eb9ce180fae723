//! Actions of the page: each shows its command, asks, and shows what the daemon answered. And the files that it gives.

use divvy_api::v1::JobState;
use divvy_browser::{Browser, Witness};
use divvy_testkit::page::Page;
use divvy_testkit::two_run_and_one_waits;
use serde_json::json;

use super::roles::button;
use super::{go, open};

#[test]
fn a_job_is_cancelled_with_the_command_shown_and_a_refusal_is_shown_too() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, _daemon, jobs) = two_run_and_one_waits();
    let web = Page::open(&home, &["--allow-actions"]);
    open(&browser, &web);
    go(&browser, &format!("#/job/{}", jobs[0]));
    let (enabled, command) = button(&browser, "cancel");
    assert!(enabled);
    assert_eq!(command, format!("divvy cancel {}", jobs[0]));
    browser.click("[data-action=\"cancel\"]");
    // It asks once, with the command in view; no is the way out.
    browser.appears("dialog[open]");
    assert!(browser.text("dialog[open]").contains(&command));
    browser.press(divvy_browser::Key::Escape);
    browser.vanishes("dialog[open]");
    home.running(&jobs[0]);
    browser.click("[data-action=\"cancel\"]");
    browser.appears("dialog[open]");
    browser.click("dialog[open] [data-confirm]");
    assert_eq!(home.ended(&jobs[0]).state, JobState::Ended);
    browser.shows("cancelled");
    Witness::is_clean(&browser, "after a cancel");
    // The job ends behind the page's back, just before the click: the daemon's words are on the page.
    go(&browser, &format!("#/job/{}", jobs[1]));
    browser.click("[data-action=\"cancel\"]");
    browser.appears("dialog[open]");
    let _ = home.divvy(&["cancel", &jobs[1]]).ok();
    home.ended(&jobs[1]);
    browser.click("dialog[open] [data-confirm]");
    browser.until(
        "the page shows an answer",
        "return [...document.querySelectorAll('[role=status], [role=alert], dialog')].some(one => /ended|cancel/.test(one.innerText))",
        &[],
    );
}

#[test]
fn usage_comes_as_a_file_of_values() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (home, _daemon, _) = two_run_and_one_waits();
    let web = Page::open(&home, &[]);
    let downloads = folder.path().to_str().expect("a readable name");
    browser.cdp(
        "Browser.setDownloadBehavior",
        json!({"behavior": "allow", "downloadPath": downloads}),
    );
    open(&browser, &web);
    go(&browser, "#/people");
    browser.click("[data-csv]");
    let text = divvy_testkit::until("the file is there", || {
        let entries = std::fs::read_dir(folder.path()).expect("the folder is ours");
        let mut files = entries.flatten().map(|entry| entry.path());
        let file = files.find(|path| path.extension().is_some_and(|is| is == "csv"))?;
        std::fs::read_to_string(file)
            .ok()
            .filter(|text| !text.is_empty())
    });
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    assert!(head.contains(',') && head.contains("user"), "{text}");
    assert!(
        lines.all(|line| line.matches(',').count() >= head.matches(',').count()),
        "{text}"
    );
    Witness::is_clean(&browser, "after a download");
}
