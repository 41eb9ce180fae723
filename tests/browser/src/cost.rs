//! What the page costs a browser and the network.

use std::time::{Duration, Instant};

use divvy_api::v1::{Array, Submit};
use divvy_testkit::{Daemon, Home, Programs, let_pass, until};
use serde_json::json;

use divvy_testkit::page::Page;

use crate::{Browser, Traffic, Witness};

/// GPUs of the node, and jobs that run on them.
const GPUS: &str = "a100-80gb:8";
pub const RUNNING: u32 = 64;

/// For how long a rate is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// What the jobs of a crowd do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Churn {
    /// They stay.
    None,
    /// They last 1 to 64 seconds: one or two end each second, and the next ones start.
    OneASecond,
}

/// A node with 8 GPUs, 64 running jobs, and so many that wait.
///
/// # Panics
/// When the jobs do not start.
#[must_use]
pub fn crowd(programs: Programs, waiting: u32, churn: Churn) -> (Home, Daemon) {
    let home = Home::with(programs, Some(GPUS)).slices_in_memory();
    let daemon = home.daemon(&["--dynamic-gpus", "--queue", "eighth=0.125"]);
    let lasts = match churn {
        Churn::None => "exec sleep 100000",
        Churn::OneASecond => "exec sleep $((1 + DIVVY_JOB_ID * 7 % 64))",
    };
    let array = Submit {
        command: ["sh", "-c", lasts].map(str::to_owned).into(),
        name: Some("waiter".to_owned()),
        queue: Some("eighth".to_owned()),
        cwd: "/".to_owned(),
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        ..Submit::default()
    };
    // An array has at most 10,000 jobs.
    for jobs in [RUNNING, waiting] {
        let array = Submit {
            array: Some(Array {
                indices: (0..jobs).collect(),
                max_running: None,
            }),
            ..array.clone()
        };
        let submitted = home.call(home.client().submit(&array));
        submitted.unwrap_or_else(|error| panic!("{jobs} jobs: {error}"));
    }
    until("all slots are taken and all jobs wait", || {
        let board = home.call(home.client().board()).ok()?;
        let running = board.jobs.iter().filter(|job| job.state.is_none()).count();
        let least = u64::from(waiting) * 9 / 10;
        (running >= 60 && board.waiting.count >= least).then_some(())
    });
    (home, daemon)
}

/// The start of the page in a browser with an empty cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Start {
    /// Milliseconds to the first contentful paint, by the browser's own clock.
    pub paint_ms: f64,
    /// Milliseconds to the first picture with data.
    pub ready_ms: f64,
    /// Bytes of documents, scripts and styles, with the heads of the answers.
    pub assets: u64,
    /// Number of these answers.
    pub requests: usize,
    /// Bytes of data up to the first picture.
    pub data: u64,
}

/// Loads the page with an empty cache.
///
/// # Panics
/// When it shows no data.
#[must_use]
#[track_caller]
pub fn start(browser: &Browser, web: &Page) -> Start {
    browser.goto("about:blank");
    browser.cdp("Network.clearBrowserCache", json!({}));
    let _ = Traffic::take(browser);
    browser.goto(&web.url);
    browser.appears("main[data-page=\"overview\"][data-ready=\"true\"]");
    let paint = "const [paint] = performance.getEntriesByName('first-contentful-paint'); return paint?.startTime";
    let paint = browser.until("the first paint", paint, &[]);
    let traffic = Traffic::take(browser);
    let is_data = |url: &str| ["/v1/", "/web/"].iter().any(|part| url.contains(part));
    let bytes = |of_data: bool| {
        let chosen = traffic
            .answers
            .iter()
            .filter(|answer| is_data(&answer.url) == of_data);
        (
            chosen.clone().map(|answer| answer.bytes).sum(),
            chosen.count(),
        )
    };
    let ((assets, requests), (data, _)) = (bytes(false), bytes(true));
    Start {
        paint_ms: paint.as_f64().unwrap_or(0.0),
        ready_ms: Witness::of(browser).ready.unwrap_or(0.0),
        assets,
        requests,
        data,
    }
}

/// What an open page takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    pub bytes_a_second: f64,
    pub requests_a_second: f64,
    /// Processor time of the page's scripts, styles and layout, in percent of one processor.
    pub cpu_percent: f64,
}

/// Measures the page as it is for some seconds.
#[must_use]
#[track_caller]
pub fn rate(browser: &Browser) -> Rate {
    browser.cdp("Performance.enable", json!({}));
    let _ = Traffic::take(browser);
    let (before, began) = (task_seconds(browser), Instant::now());
    let_pass(WINDOW);
    let seconds = began.elapsed().as_secs_f64();
    let cpu = task_seconds(browser) - before;
    let traffic = Traffic::take(browser);
    Rate {
        bytes_a_second: traffic.bytes as f64 / seconds,
        requests_a_second: traffic.answers.len() as f64 / seconds,
        cpu_percent: cpu / seconds * 100.0,
    }
}

fn task_seconds(browser: &Browser) -> f64 {
    let metrics = browser.cdp("Performance.getMetrics", json!({}));
    let metrics = metrics["metrics"].as_array().cloned().unwrap_or_default();
    let task = metrics.iter().find(|one| one["name"] == "TaskDuration");
    task.and_then(|one| one["value"].as_f64()).unwrap_or(0.0)
}
