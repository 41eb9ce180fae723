//! What the page costs: bytes that it loads, and bytes a second with 10,000 waiting jobs. `cargo xtask bench --only page`
//! measures times.

use divvy_browser::Browser;
use divvy_browser::cost::{self, Churn};
use divvy_testkit::Programs;
use divvy_testkit::page::Page;

use super::go;

/// Bytes of the whole page, compressed, with the heads of its answers.
const MOST_BYTES: u64 = 70_000;

/// Bytes a second with 8 GPUs, 64 running and 10,000 waiting jobs.
const MOST_RATE: f64 = 30_000.0;

#[test]
fn the_page_is_small_and_stays_cheap_with_10000_waiting_jobs() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, _daemon) = cost::crowd(Programs::of_this_test(), 10_000, Churn::OneASecond);
    let web = Page::open(&home, &[]);
    let start = cost::start(&browser, &web);
    eprintln!("{start:?}");
    assert!((10_000..=MOST_BYTES).contains(&start.assets), "{start:?}");
    assert!(start.paint_ms > 0.0 && start.ready_ms > 0.0, "{start:?}");
    for route in ["#/overview", "#/queue"] {
        go(&browser, route);
        let rate = cost::rate(&browser);
        eprintln!("{route}: {rate:?}");
        let is_cheap = rate.bytes_a_second > 0.0 && rate.bytes_a_second <= MOST_RATE;
        assert!(is_cheap, "{route}: {rate:?}");
    }
    // A page of a list, and not the list.
    assert!(browser.count("[data-job]") <= 200);
}
