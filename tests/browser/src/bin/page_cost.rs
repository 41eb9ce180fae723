//! What the page costs, in rounds: first paint and first picture with an empty cache, bytes, bytes a second. The table goes
//! to stdout, and between the markers of the page that is named.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "the table is the data")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use divvy_browser::Browser;
use divvy_browser::cost::{self, Churn, RUNNING, Rate, Start};
use divvy_testkit::page::Page;
use divvy_testkit::{Programs, markers};

const BEGIN: &str = "<!-- made by cargo xtask bench --only page: begin -->\n\n";
const END: &str = "<!-- made by cargo xtask bench --only page: end -->";

const WAITING: u32 = 10_000;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (quick, page) = match words.next().as_deref() {
        Some("--quick") => (true, words.next()),
        page => (false, page.map(str::to_owned)),
    };
    match measure(quick, page.map(PathBuf::from).as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A figure of all rounds.
struct Row {
    name: &'static str,
    unit: &'static str,
    rounds: Vec<f64>,
    condition: String,
}

impl Row {
    fn line(&self) -> String {
        let mut sorted = self.rounds.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let last = sorted.len().saturating_sub(1);
        let (least, middle, most) = (
            at(0),
            f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            at(last),
        );
        let (name, unit, rounds, condition) = (self.name, self.unit, sorted.len(), &self.condition);
        format!(
            "| {name} | {middle:.1} {unit} | {least:.1} to {most:.1} | {rounds} | {condition} |\n"
        )
    }
}

fn measure(quick: bool, page: Option<&Path>) -> Result<()> {
    let own = std::env::current_exe()?;
    let programs = Programs::at(
        own.parent()
            .context("a program lies in a folder")?
            .to_owned(),
    );
    let (loads, rates) = if quick { (2, 1) } else { (15, 3) };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default().to_owned();
    let browser = Browser::start().context("chromium and chromedriver are needed")?;
    let mut rows = Vec::new();
    for churn in [Churn::None, Churn::OneASecond] {
        let (home, _daemon) = cost::crowd(programs.clone(), WAITING, churn);
        let web = Page::open(&home, &[]);
        let what = match churn {
            Churn::None => "no job starts or ends",
            Churn::OneASecond => "one or two jobs end each second, and others start",
        };
        if churn == Churn::None {
            let starts: Vec<Start> = (0..loads).map(|_| cost::start(&browser, &web)).collect();
            rows.extend(loading(&starts));
        }
        for (route, overview) in [("#/overview", true), ("#/queue", false)] {
            open(&browser, &web, route);
            let measured: Vec<Rate> = (0..rates).map(|_| cost::rate(&browser)).collect();
            rows.extend(rates_of(&measured, overview, what));
        }
    }
    let table: String = rows.iter().map(Row::line).collect();
    let version = browser.cdp("Browser.getVersion", serde_json::json!({}));
    let version = version["product"].as_str().unwrap_or_default();
    let build = if cfg!(debug_assertions) {
        " (unoptimised build)"
    } else {
        ""
    };
    let head = format!(
        "Divvy {}{build}, {version}, {} cores, load {load} before.\n8 GPUs, {RUNNING} running and {WAITING} pending jobs.\n\n\
         | figure | median | lowest to highest | rounds | condition |\n|---|---|---|--:|---|\n",
        env!("CARGO_PKG_VERSION"),
        std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
    );
    println!("{head}{table}");
    match page.filter(|_| !quick) {
        Some(page) => {
            markers::rewrite(page, (BEGIN, END), &format!("{head}{table}\n"))?;
            eprintln!("   the table is in {}", page.display());
            Ok(())
        }
        None => Ok(()),
    }
}

fn open(browser: &Browser, web: &Page, route: &str) {
    browser.goto("about:blank");
    browser.goto(&web.url);
    browser.appears("main[data-ready=\"true\"]");
    browser.js("location.hash = arguments[0]", &[route.into()]);
    let page = route.trim_start_matches("#/");
    browser.appears(&format!("main[data-page=\"{page}\"][data-ready=\"true\"]"));
}

fn loading(starts: &[Start]) -> Vec<Row> {
    let row = |name, unit, figure: fn(&Start) -> f64, condition: &str| Row {
        name,
        unit,
        rounds: starts.iter().map(figure).collect(),
        condition: condition.to_owned(),
    };
    let requests = starts.first().map_or(0, |start| start.requests);
    vec![
        row(
            "first contentful paint",
            "ms",
            |start| start.paint_ms,
            "empty cache, from the browser's clock",
        ),
        row(
            "first picture with data",
            "ms",
            |start| start.ready_ms,
            "empty cache, from the start of the navigation",
        ),
        row(
            "files loaded",
            "kB",
            |start| start.assets as f64 / 1e3,
            &format!("compressed, with the heads of {requests} answers"),
        ),
        row(
            "data up to the first picture",
            "kB",
            |start| start.data as f64 / 1e3,
            "board, session, and what the overview asks for",
        ),
    ]
}

fn rates_of(rates: &[Rate], overview: bool, what: &str) -> Vec<Row> {
    let names = if overview {
        [
            "overview: data",
            "overview: requests",
            "overview: processor time of the page",
        ]
    } else {
        [
            "queue: data",
            "queue: requests",
            "queue: processor time of the page",
        ]
    };
    let figures: [fn(&Rate) -> f64; 3] = [
        |rate| rate.bytes_a_second / 1e3,
        |rate| rate.requests_a_second,
        |rate| rate.cpu_percent,
    ];
    let units = ["kB/s", "/s", "%"];
    let all = names.into_iter().zip(figures).zip(units);
    all.map(|((name, figure), unit)| Row {
        name,
        unit,
        rounds: rates.iter().map(figure).collect(),
        condition: what.to_owned(),
    })
    .collect()
}
