//! `top`: GPUs, running and waiting pods of the cluster on one screen.
//!
//! It draws a bar for each GPU as `divvy top` does. The text is drawn anew after each look; [`watch`](divvy_cli::watch)
//! keeps it on the terminal. `divvy top` itself draws one node's board, with keys for actions on jobs.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use divvy_api::v1::Error;
use divvy_cli::args::Format;
use divvy_cli::output::{self, view};
use divvy_cli::render::View;
use divvy_cli::table;
use divvy_cli::watch::Shown;
use jiff::Timestamp;
use kube::Client;
use serde::Serialize;

use super::cluster::{self, ClusterGpu, ClusterPod};
use super::{Nodes, fraction, gpus, objects, once, ps, repeat};

/// Columns of the text where there is no terminal.
const COLUMNS: usize = 120;
/// Cells of a bar, at most.
const BAR: usize = 40;
/// Shortest time from one look to the next: a look is a list of all pods and a command on each node.
const SHORTEST: u64 = 1;

#[derive(ClapArgs)]
pub struct Args {
    /// Print everything once, without escapes
    #[arg(short = '1', long)]
    once: bool,
    /// Seconds from one look to the next
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(SHORTEST..=3600))]
    interval: u64,
    /// Draw with ASCII characters only
    #[arg(long)]
    ascii: bool,
    #[command(flatten)]
    namespaces: TopNamespaces,
    #[command(flatten)]
    nodes: Nodes,
    /// Print one document: json
    #[arg(short, long, value_name = "FORMAT", hide_possible_values = true)]
    output: Option<Format>,
}

/// The namespaces of the pods.
#[derive(ClapArgs)]
struct TopNamespaces {
    /// Only pods of this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

impl Args {
    pub fn is_json(&self) -> bool {
        self.output.is_some_and(Format::is_json)
    }
}

/// Everything that one look shows.
#[derive(Clone, Debug, Serialize)]
struct Picture {
    gpus: Vec<ClusterGpu>,
    pods: Vec<ClusterPod>,
}

impl divvy_cli::render::Item for Picture {
    const KIND: &'static str = "ClusterTop";

    fn name(&self) -> String {
        "cluster".to_owned()
    }
}

/// # Errors
/// The cluster does not respond, or denies the lists of pods and claims.
pub async fn run(args: &Args, client: &Client) -> Result<ExitCode, Error> {
    let format = args.output.unwrap_or(Format::Table);
    let is_once = args.once || format != Format::Table || !output::is_terminal();
    let draw = async || {
        let wanted = objects::Wanted::pods(&args.nodes, args.namespaces.namespace.clone());
        let found = objects::read(client, &wanted).await?;
        let now = Timestamp::now();
        let gpus = match found.require_slices() {
            Ok(allocations) => cluster::gpus(&allocations),
            // The note says so.
            Err(_) => Vec::new(),
        };
        let pods = cluster::pods(&found, now);
        let picture = Picture { gpus, pods };
        if format != Format::Table {
            let none = |_: &[Picture], _: View| String::new();
            return super::listed(&[picture], format, none, found.notes);
        }
        let marks = Marks::of(args.ascii || !output::is_utf8());
        let view = view();
        let rows = match is_once {
            true => usize::MAX,
            false => output::terminal_rows().unwrap_or(24),
        };
        Ok(Shown {
            text: drawn(
                &picture,
                view,
                rows.saturating_sub(found.notes.len()),
                marks,
            ),
            remarks: found.notes,
        })
    };
    match is_once {
        true => once(draw).await,
        false => repeat(Duration::from_secs(args.interval), format, draw).await,
    }
}

/// Characters of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    used: char,
    allocated: char,
    free: char,
}

impl Marks {
    fn of(is_ascii: bool) -> Self {
        match is_ascii {
            true => Self {
                used: '#',
                allocated: '=',
                free: '.',
            },
            false => Self {
                used: '█',
                allocated: '▒',
                free: '·',
            },
        }
    }
}

/// The picture in so many rows: GPUs take at most half of them, and waiting pods at most a quarter.
fn drawn(picture: &Picture, view: View, rows: usize, marks: Marks) -> String {
    let width = view.width.unwrap_or(COLUMNS);
    let view = View {
        width: Some(width),
        ..view
    };
    let (waiting, running): (Vec<_>, Vec<_>) = picture
        .pods
        .iter()
        .cloned()
        .partition(|pod| pod.state == "waiting");
    let mut lines =
        vec![table::cut(&head(picture, &running, &waiting, view.now), width).into_owned()];
    let room = rows.saturating_sub(lines.len() + 2);
    lines.extend(bars(&picture.gpus, width, (room / 2).max(3), marks));
    let title = format!("PODS {}", running.len());
    let of_waiting = match waiting.is_empty() {
        true => 0,
        false => (room / 4).max(3),
    };
    let left = rows.saturating_sub(lines.len() + of_waiting);
    lines.extend(section(&title, &running, view, left.max(3)));
    if !waiting.is_empty() {
        let title = format!("WAITING {}", waiting.len());
        let left = rows.saturating_sub(lines.len());
        lines.extend(section(&title, &waiting, view, left.max(3)));
    }
    lines.join("\n") + "\n"
}

/// `divvy-k8s top  3 nodes  8 GPUs  2.25 allocated  6 pods run, 4 wait  12:04:31`.
fn head(
    picture: &Picture,
    running: &[ClusterPod],
    waiting: &[ClusterPod],
    now: Timestamp,
) -> String {
    let mut nodes: Vec<&str> = picture.gpus.iter().map(|gpu| gpu.node.as_str()).collect();
    nodes.dedup();
    let allocated: u64 = picture.gpus.iter().map(millionths).sum();
    // Sums of floors, so a thousandth may be missing.
    let allocated = fraction::decimal((allocated + 500) / 1000 * 1000);
    format!(
        "divvy-k8s top  {} nodes  {} GPUs  {allocated} allocated  {} pods run, {} wait  {}",
        nodes.len(),
        picture.gpus.len(),
        running.len(),
        waiting.len(),
        now.strftime("%H:%M:%S UTC")
    )
}

/// The allocated part of a GPU.
fn millionths(gpu: &ClusterGpu) -> u64 {
    let total = gpu.memory_bytes.unwrap_or_default();
    match (gpu.mode.as_str(), gpu.allocated_bytes) {
        // Instances are parts of memory, and a node that does not answer leaves its total unknown.
        ("mig", Some(allocated)) if total > 0 => fraction::millionths(allocated, total),
        ("mig", _) => 0,
        _ => gpu.parts.min(1_000_000),
    }
}

/// A line for each GPU, the title first.
fn bars(gpus: &[ClusterGpu], width: usize, rows: usize, marks: Marks) -> Vec<String> {
    if gpus.is_empty() {
        return Vec::new();
    }
    let names = gpus.iter().map(|gpu| {
        let index = gpu
            .gpu
            .map_or_else(|| "–".to_owned(), |gpu| gpu.to_string());
        format!("{}/{index}", divvy_cli::text::clean(&gpu.node))
    });
    let names: Vec<String> = names.collect();
    let longest = names.iter().map(|name| name.chars().count()).max();
    let name_width = longest.unwrap_or_default().clamp(4, (width / 4).max(8));
    // Behind the bar: allocated, utilisation, memory.
    let bar = width.saturating_sub(name_width + 34).clamp(8, BAR);
    let legend = format!(
        "({} used {} allocated {} free)",
        marks.used, marks.allocated, marks.free
    );
    let mut lines = vec![
        table::cut(
            &format!(
                "{:name_width$} {:bar$} {:>12} {:>5}  {}",
                "GPU", "MEMORY", "ALLOC", "UTIL", legend
            ),
            width,
        )
        .into_owned(),
    ];
    for (gpu, name) in gpus.iter().zip(&names) {
        let name = table::cut(name, name_width);
        let pad = name_width.saturating_sub(name.chars().count());
        let utilization = gpu.utilization_percent;
        let line = format!(
            "{name}{} {} {:>12} {:>5}  {}{}",
            " ".repeat(pad),
            drawn_bar(gpu, bar, marks),
            gpu.allocated.as_deref().unwrap_or("–"),
            utilization.map_or_else(|| "–".to_owned(), |percent| format!("{percent}%")),
            gpus::figures(&[gpu.used_bytes, gpu.memory_bytes]),
            match &gpu.problem {
                Some(problem) => format!("  ! {}", divvy_cli::text::clean(problem)),
                None => String::new(),
            }
        );
        lines.push(table::cut(line.trim_end(), width).into_owned());
    }
    bounded(lines, rows)
}

fn drawn_bar(gpu: &ClusterGpu, cells: usize, marks: Marks) -> String {
    let total = gpu.memory_bytes.unwrap_or_default().max(1);
    let part = |bytes: Option<u64>| {
        let bytes = bytes.unwrap_or_default().min(total);
        let cells = u128::from(bytes) * (cells as u128) / u128::from(total);
        // Something is never drawn as nothing.
        usize::try_from(cells)
            .unwrap_or_default()
            .max(usize::from(bytes > 0))
    };
    let allocated = match gpu.allocated.as_deref() {
        Some("1") => cells,
        _ => part(gpu.allocated_bytes),
    };
    let used = part(gpu.used_bytes).min(cells);
    let limit = allocated.max(used);
    let mut bar = String::new();
    bar.extend(std::iter::repeat_n(marks.used, used));
    bar.extend(std::iter::repeat_n(marks.allocated, limit - used));
    bar.extend(std::iter::repeat_n(marks.free, cells - limit));
    bar
}

/// A title and a table of pods.
fn section(title: &str, pods: &[ClusterPod], view: View, rows: usize) -> Vec<String> {
    let mut lines = vec![title.to_owned()];
    lines.extend(ps::table(pods, view).lines().map(str::to_owned));
    bounded(lines, rows)
}

/// So many lines at most; the last one counts the others.
fn bounded(mut lines: Vec<String>, rows: usize) -> Vec<String> {
    if lines.len() > rows {
        let more = lines.len() - rows + 1;
        lines.truncate(rows.saturating_sub(1));
        lines.push(format!("… {more} more lines"));
    }
    lines
}
