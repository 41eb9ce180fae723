//! What a reader sees without a scroll or a choice: the jobs of a large machine, a short job's whole run, and what
//! releases a held job.

use divvy_browser::{Browser, Look, Witness};
use divvy_testkit::Home;
use divvy_testkit::page::Page;
use serde_json::json;

use super::{go, open};

#[test]
fn the_jobs_of_eight_gpus_are_on_the_first_screen_and_none_looks_like_another() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let home = Home::new("a100-80gb:8");
    let _daemon = home.daemon(&[]);
    let jobs: Vec<String> = (0..16)
        .map(|_| home.submit(&["-g", "0.5"], &["sleep", "1000"]))
        .collect();
    let held = home.submit(&["-g", "1", "--hold"], &["sleep", "1000"]);
    jobs.iter().for_each(|job| drop(home.running(job)));
    let web = Page::open(&home, &[]);
    browser.look(Look::Light);
    open(&browser, &web);
    browser.appears("tr[data-job]");
    let row =
        "return Math.round(document.querySelector('tr[data-job]').getBoundingClientRect().top)";
    let top = browser.js(row, &[]).as_u64().expect("a figure");
    assert!(top < 900, "the first job begins {top} px below the top");
    let looks = "return new Set([...document.querySelectorAll('tr[data-job] .swatch')].map(one => one.className)).size";
    assert_eq!(browser.js(looks, &[]), json!(16));
    browser.shows("gpu0:0.5a");
    // A run of a few seconds fills its chart.
    go(&browser, &format!("#/job/{}", jobs[0]));
    browser.appears("input[name=span][value=run]:checked");
    // No single change starts the held job, as every GPU is full.
    go(&browser, &format!("#/job/{held}"));
    browser.shows("held by");
    browser.shows(&format!("divvy release {held}"));
    Witness::is_clean(&browser, "of a large machine");
}
