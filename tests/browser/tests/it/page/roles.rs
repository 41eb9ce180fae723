//! Each role sees on the page what `divvy ps` shows it, and can press what the daemon would let it do.

use std::collections::BTreeMap;

use divvy_browser::{Browser, Witness};
use divvy_testkit::page::Page;
use divvy_testkit::{Bounded as _, CommandOutput, Home};
use serde_json::Value;

use super::{ANA, KIM, LEE, go, open, system};

const MAX: &str = "60124";

/// `divvy WORDS` of another user, run to its end.
fn run(home: &Home, uid: &str, words: &[&str]) -> CommandOutput {
    let output = home.divvy_as(uid).args(words).output_bounded();
    CommandOutput::new(words.join(" "), &output.expect("setpriv starts"))
}

/// Id, user and name of each job that the page lists.
fn rows(browser: &Browser) -> BTreeMap<String, String> {
    let script = "return Object.fromEntries([...document.querySelectorAll('[data-job]')]\
                  .map(row => [row.dataset.job, row.innerText.replace(/\\s+/g, ' ')]))";
    let rows = browser.js(script, &[]);
    let rows = rows.as_object().cloned().unwrap_or_default();
    rows.into_iter()
        .map(|(id, text)| (id, text.as_str().unwrap_or_default().to_owned()))
        .collect()
}

#[test]
fn each_role_sees_what_ps_shows_it_and_may_press_what_it_may_do() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let roles = format!("viewer = [{KIM}]\nuser = [{ANA}, {LEE}]\noperator = [{MAX}]\n");
    let Some((home, _daemon)) = system(&roles) else {
        return;
    };
    let submit = |name: &str, amount: &str| {
        let secret = format!("exec sleep 1000 # of-{name}");
        let words = [
            "submit",
            "-g",
            amount,
            "--name",
            name,
            "--parsable",
            "--",
            "sh",
            "-c",
            &secret,
        ];
        run(&home, ANA, &words).ok().stdout.trim().to_owned()
    };
    let (runs, waits) = (submit("runs", "0.75"), submit("waits", "0.5"));
    home.running(&runs);
    let _ = home.waits(&waits);
    // Role, its user, whether it sees the command, and whether it may cancel the jobs of Ana.
    let table = [
        ("viewer", KIM, false, false),
        ("user, own jobs", ANA, true, true),
        ("user, jobs of others", LEE, false, false),
        ("operator", MAX, true, true),
        ("admin", "0", true, true),
    ];
    for (role, uid, sees, may) in table {
        let web = Page::open_as(&home, uid, &["--allow-actions"]);
        open(&browser, &web);
        let listed = run(&home, uid, &["ps", "-o", "json"]).ok().items();
        // The overview lists what runs, and the queue what waits.
        browser.appears(&format!("[data-job=\"{runs}\"]"));
        let mut shown = rows(&browser);
        go(&browser, "#/queue");
        browser.appears(&format!("[data-job=\"{waits}\"]"));
        shown.extend(rows(&browser));
        let text = |job: &Value, field: &str| job[field].as_str().unwrap_or_default().to_owned();
        for job in &listed {
            let row = shown
                .get(&text(job, "id"))
                .unwrap_or_else(|| panic!("{role}: no {job} in {shown:?}"));
            for field in ["name", "user"] {
                assert!(
                    row.contains(&text(job, field)),
                    "{role}: {field} of {job} in {row}"
                );
            }
        }
        assert_eq!(shown.len(), listed.len(), "{role}: {shown:?}");
        go(&browser, &format!("#/job/{runs}"));
        let body = browser.text("body");
        assert_eq!(body.contains("of-runs"), sees, "{role}: {body}");
        let is_hidden = run(&home, uid, &["describe", &runs, "-o", "json"])
            .ok()
            .stdout
            .contains("of-runs");
        assert_eq!(is_hidden, sees, "{role}");
        let (enabled, command) = button(&browser, "cancel");
        assert_eq!(command, format!("divvy cancel {runs}"), "{role}");
        assert_eq!(enabled, may, "{role}");
        eprintln!(
            "{role}: {} jobs, command shown: {sees}, cancel enabled: {enabled}",
            shown.len()
        );
        Witness::is_clean(&browser, role);
    }
    // Without the flag, nothing can be pressed, and the page says why.
    let web = Page::open_as(&home, ANA, &[]);
    open(&browser, &web);
    go(&browser, &format!("#/job/{runs}"));
    assert!(!button(&browser, "cancel").0);
    browser.shows("--allow-actions");
    home.running(&runs);
}

/// Whether an action can be pressed, and its command.
pub fn button(browser: &Browser, action: &str) -> (bool, String) {
    browser.appears(&format!("[data-action=\"{action}\"]"));
    let script = "const one = document.querySelector(`[data-action=\"${arguments[0]}\"]`); \
                  return {enabled: !one.disabled && one.getAttribute('aria-disabled') !== 'true', \
                  command: one.dataset.command ?? ''}";
    let found = browser.js(script, &[action.into()]);
    let command = found["command"].as_str().unwrap_or_default();
    (found["enabled"] == true, command.to_owned())
}
