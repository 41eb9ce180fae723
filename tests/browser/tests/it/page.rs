//! The page in a real browser. Each test has a browser of its own: an empty cache, and nothing of another scene.

mod actions;
mod barriers;
mod cost;
mod gate;
mod glance;
mod hostile;
mod keyboard;
mod logs;
mod lost;
mod roles;

use std::os::unix::fs::PermissionsExt;

use divvy_browser::Browser;
use divvy_testkit::page::Page;
use divvy_testkit::{Daemon, Home, can_be_users};

/// A user that no user database has.
pub const ANA: &str = "60121";
pub const LEE: &str = "60122";
pub const KIM: &str = "60123";

/// Opens the page, with its token, on the overview.
#[track_caller]
pub fn open(browser: &Browser, web: &Page) {
    // The same document with another fragment would not be loaded again.
    browser.goto("about:blank");
    browser.goto(&web.url);
    is_ready(browser, "overview");
}

/// Goes to a page by its route, as a link does.
#[track_caller]
pub fn go(browser: &Browser, route: &str) {
    browser.js("location.hash = arguments[0]", &[route.into()]);
    let page = route.trim_start_matches("#/").split('/').next();
    is_ready(browser, page.unwrap_or_default());
}

/// Waits until a page has drawn its first data.
#[track_caller]
pub fn is_ready(browser: &Browser, page: &str) {
    browser.appears(&format!("main[data-page=\"{page}\"][data-ready=\"true\"]"));
}

/// The routes of all pages; that of a job is for this one.
pub fn routes(job: &str) -> Vec<String> {
    let job = format!("#/job/{job}");
    [
        "#/overview",
        "#/queue",
        "#/jobs",
        &job,
        "#/people",
        "#/mig",
        "#/doctor",
    ]
    .map(str::to_owned)
    .into()
}

/// A daemon for all users with this table of roles, unless this process cannot be several users.
pub fn system(roles: &str) -> Option<(Home, Daemon)> {
    if !can_be_users("no role of the page is tested here") {
        return None;
    }
    let home = Home::new("a100-80gb:1");
    let access = home.scratch().join("access.toml");
    std::fs::write(&access, roles).expect("the folder is ours");
    let mode = PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&access, mode).expect("the file is ours");
    let access = access.to_str().expect("a readable name");
    let daemon = home.daemon(&["--system", "--set", &format!("listen.access={access}")]);
    Some((home, daemon))
}
