//! The list of GPUs: each with its memory bar, and below it the jobs that hold it.

use divvy_api::v1::{BoardGpu, BoardInstance, BoardJob, BoardMig, BoardSlice};
use divvy_core::units;
use ratatui::layout::Rect;

use super::bar::{Bar, Fill, Kind, Part, bar};
use super::canvas::{Canvas, width_of};
use crate::text;
use crate::top::layout;
use crate::top::look::Tone;
use crate::top::state::{Pane, State};

/// Columns of the parts of a line. A part without columns is not drawn.
struct Columns {
    bar: u16,
    figures: u16,
    spark: u16,
    watts: bool,
    model: u16,
}

/// Two digits, a space and the mark of the selection, so that twice as many GPUs as fit a machine have room.
const INDEX: u16 = 4;
/// `0.75   71%  54`, with a space before each: the widest figures fit.
const ALLOC_UTIL_DEGREES: u16 = 6 + 6 + 5;
/// Ten cells show a trend, and leave the bar its room; half would be a blot.
const SPARK: u16 = 10;
/// `1000W` fits, with a space before it.
const WATTS: u16 = 6;

impl Columns {
    fn of(width: u16) -> Self {
        let watts = width >= 72;
        let spark = if width >= 72 { SPARK } else { 0 };
        let figures = if width >= 100 { 20 } else { 0 };
        let model = if width >= 130 { 18 } else { 0 };
        let gaps = [spark, figures, model]
            .iter()
            .filter(|width| **width > 0)
            .count();
        let gaps = u16::try_from(gaps).unwrap_or(0);
        let fixed =
            INDEX + ALLOC_UTIL_DEGREES + spark + figures + model + gaps + u16::from(watts) * WATTS;
        Self {
            bar: width.saturating_sub(fixed).min(80),
            figures,
            spark,
            watts,
            model,
        }
    }
}

/// A part of a GPU's memory, with its holder in words.
struct Holder {
    part: Part,
    name: String,
    tone: Tone,
}

pub fn draw(state: &State, canvas: &mut Canvas<'_>, area: Rect, lines_per_gpu: u16) {
    if area.height == 0 {
        return;
    }
    let columns = Columns::of(area.width);
    titles(state, canvas, area, &columns);
    let Some(board) = &state.board else { return };
    let lines = usize::from(area.height - 1);
    let is_focus = state.pane == Pane::Gpus && !state.options.is_once;
    let picked = state.picked_gpu.min(board.gpus.len().saturating_sub(1));
    let extra = usize::from(is_focus && lines_per_gpu == 1);
    let shown = if state.options.is_once {
        board.gpus.len()
    } else {
        lines.saturating_sub(extra) / usize::from(lines_per_gpu.max(1))
    };
    let window = layout::window(picked, board.gpus.len(), shown);
    let hidden = board.gpus.len() - window.len();
    let mut y = area.y + 1;
    for at in window {
        let gpu = &board.gpus[at];
        let jobs = holders(gpu, &board.jobs);
        let is_picked = is_focus && at == picked;
        let line = Rect {
            y,
            height: 1,
            ..area
        };
        let starts = one(state, canvas, line, &columns, gpu, &jobs);
        if is_picked {
            canvas.select(Rect {
                width: INDEX - 1,
                ..line
            });
        }
        y += 1;
        let has_line = !state.options.is_once || has_names(gpu, &board.jobs);
        if has_line && lines_per_gpu == 2 || is_picked {
            if y < area.bottom() {
                names(canvas, Rect { y, ..line }, gpu, &jobs, &starts);
            }
            y += 1;
        }
    }
    if hidden > 0 {
        let glyphs = canvas.glyphs();
        let text = format!("{}{} {hidden} more", glyphs.up, glyphs.down);
        canvas.right(Rect { height: 1, ..area }, &text, Tone::Alert);
    }
}

fn titles(state: &State, canvas: &mut Canvas<'_>, area: Rect, columns: &Columns) {
    let glyphs = canvas.glyphs();
    let title = if state.pane == Pane::Gpus && !state.options.is_once {
        "GPU*"
    } else {
        "GPU"
    };
    let mut x = area.x;
    canvas.text(x, area.y, INDEX, title, Tone::Title);
    x += INDEX;
    let legend = format!(
        "MEMORY ({} used {} limit {} free)",
        glyphs.used, glyphs.limit, glyphs.free
    );
    canvas.text(x, area.y, columns.bar, &legend, Tone::Title);
    x += columns.bar;
    if columns.figures > 0 {
        right_of(
            canvas,
            x,
            area.y,
            columns.figures + 1,
            "USED/ALLOC/ALL GiB",
            Tone::Title,
        );
        x += columns.figures + 1;
    }
    right_of(canvas, x, area.y, 6, "ALLOC", Tone::Title);
    right_of(canvas, x + 6, area.y, 6, "UTIL", Tone::Title);
    x += 12;
    if columns.spark > 0 {
        canvas.text(x + 1, area.y, columns.spark, "60 s", Tone::Title);
        x += columns.spark + 1;
    }
    right_of(canvas, x, area.y, 5, glyphs.degree, Tone::Title);
    x += 5;
    if columns.watts {
        right_of(canvas, x, area.y, WATTS, "W", Tone::Title);
        x += WATTS;
    }
    if columns.model > 0 {
        canvas.text(x + 1, area.y, columns.model, "MODEL", Tone::Title);
    }
}

/// Writes a text at the right end of a column.
fn right_of(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, text: &str, tone: Tone) {
    canvas.right(Rect::new(x, y, width, 1), text, tone);
}

/// Draws the line of a GPU; returns the first column of each holder.
fn one(
    state: &State,
    canvas: &mut Canvas<'_>,
    line: Rect,
    columns: &Columns,
    gpu: &BoardGpu,
    holders: &[Holder],
) -> Vec<u16> {
    let (mut x, y) = (line.x, line.y);
    let is_ill = gpu.problem.is_some();
    let sign = if is_ill { "!" } else { " " };
    let index = format!("{:>2}{sign}", gpu.index);
    canvas.text(
        x,
        y,
        INDEX,
        &index,
        if is_ill { Tone::Alert } else { Tone::Plain },
    );
    x += INDEX;
    let starts = match &gpu.mig {
        Some(mig) => slots(canvas, Rect::new(x, y, columns.bar, 1), mig, holders),
        None => {
            let parts: Vec<Part> = holders.iter().map(|holder| holder.part).collect();
            let drawn = bar(gpu.usable_bytes, &parts, usize::from(columns.bar));
            cells(canvas, x, y, &drawn);
            let column =
                |start: &usize| x.saturating_add(u16::try_from(*start).unwrap_or(u16::MAX));
            drawn.starts.iter().map(column).collect()
        }
    };
    x += columns.bar;
    if columns.figures > 0 {
        let figures = [gpu.used_bytes, gpu.allocated_bytes, gpu.usable_bytes];
        let text = gib(&figures);
        right_of(canvas, x, y, columns.figures + 1, &text, Tone::Plain);
        x += columns.figures + 1;
    }
    let none = canvas.glyphs().none;
    let allocated = match gpu.mode.as_str() {
        "unmanaged" => none.to_owned(),
        "mig" => "mig".to_owned(),
        _ => units::gpus(u64::from(gpu.share)).to_string(),
    };
    right_of(canvas, x, y, 6, &allocated, Tone::Plain);
    x += 6;
    if gpu.asleep {
        canvas.text(
            x + 2,
            y,
            line.right().saturating_sub(x + 2),
            "asleep",
            Tone::Faint,
        );
    } else {
        let util = gpu
            .utilization_percent
            .map_or_else(|| none.to_owned(), |percent| format!("{percent}%"));
        right_of(canvas, x, y, 6, &util, Tone::Plain);
        x += 6;
        if columns.spark > 0 {
            spark(
                state,
                canvas,
                Rect::new(x + 1, y, columns.spark, 1),
                gpu.index,
            );
            x += columns.spark + 1;
        }
        let figure =
            |value: Option<u32>| value.map_or_else(|| none.to_owned(), |value| value.to_string());
        right_of(
            canvas,
            x,
            y,
            5,
            &figure(gpu.temperature_celsius),
            Tone::Plain,
        );
        x += 5;
        if columns.watts {
            right_of(canvas, x, y, WATTS, &figure(gpu.power_watts), Tone::Plain);
        }
    }
    if columns.model > 0 {
        let model = text::cleaned(&gpu.model);
        let model = model.strip_prefix("NVIDIA ").unwrap_or(&model);
        let x = line.right().saturating_sub(columns.model);
        let column = x.max(
            line.x + INDEX + columns.bar + columns.figures + 1 + ALLOC_UTIL_DEGREES + SPARK + WATTS,
        );
        canvas.text(
            column,
            y,
            line.right().saturating_sub(column),
            model,
            Tone::Faint,
        );
    }
    starts
}

/// `31.2/59.4/79.2`.
pub fn gib(figures: &[u64]) -> String {
    let tenths = |bytes: &u64| (u128::from(*bytes) * 10 + (1 << 29)) >> 30;
    let figures = figures.iter().map(tenths);
    let figures = figures.map(|tenths| format!("{}.{}", tenths / 10, tenths % 10));
    figures.collect::<Vec<_>>().join("/")
}

fn cells(canvas: &mut Canvas<'_>, x: u16, y: u16, drawn: &Bar) {
    let glyphs = canvas.glyphs();
    let look = |fill: Fill| match fill {
        Fill::Used => (glyphs.used, Tone::Used),
        Fill::Limit => (glyphs.limit, Tone::Used),
        Fill::Border => (glyphs.border, Tone::Plain),
        Fill::Elsewhere => (glyphs.elsewhere, Tone::Faint),
        Fill::Outside => (glyphs.outside, Tone::Alert),
        Fill::Free => (glyphs.free, Tone::Faint),
    };
    let mut x = x;
    for some in drawn.cells.chunk_by(|one, other| one == other) {
        let (glyph, tone) = look(some[0]);
        let width = u16::try_from(some.len()).unwrap_or(0);
        canvas.text(x, y, width, &glyph.repeat(some.len()), tone);
        x += width;
    }
}

fn spark(state: &State, canvas: &mut Canvas<'_>, area: Rect, gpu: u32) {
    let Some(trend) = state.trends.get(&gpu) else {
        return;
    };
    let levels = canvas.glyphs().levels;
    let buckets = trend.buckets(usize::from(area.width), state.now.as_second());
    for (bucket, x) in buckets.into_iter().zip(area.x..) {
        let Some(percent) = bucket else { continue };
        // An idle second is the lowest level, full use the highest.
        let level = usize::from(percent).min(100) * (levels.len() - 1) / 100;
        canvas.text(x, area.y, 1, levels[level], Tone::Used);
    }
}

/// The holders of a GPU's memory, in the order of the bar.
fn holders(gpu: &BoardGpu, jobs: &[BoardJob]) -> Vec<Holder> {
    let slices = jobs.iter().flat_map(|job| {
        let mine = job.slices.iter().filter(|slice| slice.gpu == gpu.index);
        mine.map(move |slice| of_slice(job, slice))
    });
    let mut holders: Vec<Holder> = slices.collect();
    holders.extend(gpu.held_elsewhere.iter().map(|held| Holder {
        part: Part {
            kind: Kind::Elsewhere,
            limit: held.memory_bytes,
            used: 0,
        },
        name: text::clean(&held.holder),
        tone: Tone::Faint,
    }));
    if gpu.unmanaged_bytes > 0 {
        let programs = gpu.processes.iter().map(|process| {
            let program = text::clean(process.program.as_deref().unwrap_or("?"));
            let user = text::clean(process.user.as_deref().unwrap_or("?"));
            format!("{program} of {user}")
        });
        let programs: Vec<String> = programs.collect();
        let of = if programs.is_empty() {
            String::new()
        } else {
            format!(": {}", programs.join(", "))
        };
        holders.push(Holder {
            part: Part {
                kind: Kind::Outside,
                limit: gpu.unmanaged_bytes,
                used: gpu.unmanaged_bytes,
            },
            name: format!("! {} GiB outside{of}", gib(&[gpu.unmanaged_bytes])),
            tone: Tone::Alert,
        });
    }
    holders
}

fn of_slice(job: &BoardJob, slice: &BoardSlice) -> Holder {
    Holder {
        part: Part {
            kind: Kind::Slice,
            limit: slice.limit_bytes,
            used: slice.used_bytes,
        },
        name: format!("#{} {}", job.reference(), text::cleaned(&job.user)),
        tone: Tone::Plain,
    }
}

/// Draws MIG instances by slot: `[█1g█][ 1g ]····[██3g▒▒]`. Returns the first column of each holder.
fn slots(canvas: &mut Canvas<'_>, area: Rect, mig: &BoardMig, holders: &[Holder]) -> Vec<u16> {
    let glyphs = canvas.glyphs();
    let slots = u16::try_from(mig.slots.max(1)).unwrap_or(1);
    let column = |slot: u32| {
        let slot = u32::min(slot, u32::from(slots));
        area.x + u16::try_from(u32::from(area.width) * slot / u32::from(slots)).unwrap_or(0)
    };
    let free = glyphs.free.repeat(usize::from(area.width));
    canvas.text(area.x, area.y, area.width, &free, Tone::Faint);
    let mut held = Vec::new();
    for instance in &mig.instances {
        let (start, end) = (
            column(instance.start),
            column(instance.start.saturating_add(instance.size)),
        );
        let width = end.saturating_sub(start);
        let holder = instance.job.as_ref().and_then(|job| {
            let own = |holder: &&Holder| {
                let number = holder.name.trim_start_matches('#');
                let number = number.split([' ', '_']).next();
                number == Some(job.as_str()) || number == job.split('_').next()
            };
            holders.iter().find(own)
        });
        held.extend(holder.map(|holder| (std::ptr::from_ref(holder), start)));
        one_instance(canvas, Rect::new(start, area.y, width, 1), instance, holder);
    }
    let start = |holder: &Holder| {
        let found = held.iter().find(|(known, _)| std::ptr::eq(*known, holder));
        found.map_or(area.x, |(_, start)| *start)
    };
    holders.iter().map(start).collect()
}

fn one_instance(
    canvas: &mut Canvas<'_>,
    area: Rect,
    instance: &BoardInstance,
    holder: Option<&Holder>,
) {
    let glyphs = canvas.glyphs();
    let (filling, tone) = match instance.state.as_str() {
        "held" => (glyphs.limit, Tone::Used),
        "idle" => (" ", Tone::Plain),
        "quarantined" => ("!", Tone::Alert),
        "unmanaged" => (glyphs.outside, Tone::Alert),
        _ => ("?", Tone::Plain),
    };
    let inner = usize::from(area.width.saturating_sub(2));
    let mut cells = vec![filling; inner];
    if let Some(holder) = holder {
        let drawn = bar(holder.part.limit, &[holder.part], inner);
        let used = drawn
            .cells
            .iter()
            .filter(|fill| **fill == Fill::Used)
            .count();
        cells[..used].fill(glyphs.used);
    }
    canvas.text(area.x, area.y, 1, "[", Tone::Plain);
    canvas.text(
        area.x + 1,
        area.y,
        area.width.saturating_sub(2),
        &cells.concat(),
        tone,
    );
    canvas.text(area.right().saturating_sub(1), area.y, 1, "]", Tone::Plain);
    // `1g` of `1g.10gb`, where use and limit stay visible beside it.
    let name = text::cleaned(&instance.profile);
    let name = name.split('.').next().unwrap_or_default();
    let width = width_of(name);
    if usize::from(width) < inner {
        let x = area.x + (area.width - width) / 2;
        canvas.text(x, area.y, width, name, Tone::Title);
    }
}

/// Whether a GPU has a line below its bar: holders, a problem, or a mode besides `shared`.
pub fn has_names(gpu: &BoardGpu, jobs: &[BoardJob]) -> bool {
    gpu.mode != "shared" || gpu.problem.is_some() || !holders(gpu, jobs).is_empty()
}

/// Names the holders below the bar, each at its part where there is room, and then the GPU's problem.
fn names(canvas: &mut Canvas<'_>, line: Rect, gpu: &BoardGpu, holders: &[Holder], starts: &[u16]) {
    let mut at = line.x + INDEX;
    if let Some(problem) = &gpu.problem {
        let text = format!("! {}  ", text::cleaned(problem));
        at += canvas.text(
            at,
            line.y,
            line.right().saturating_sub(at),
            &text,
            Tone::Alert,
        );
    }
    for (number, (holder, start)) in holders.iter().zip(starts).enumerate() {
        let x = at.max(*start);
        let room = line.right().saturating_sub(x);
        let left = holders.len() - number;
        let more = format!("+{left}");
        let is_last = left == 1;
        let needs = width_of(&holder.name) + if is_last { 0 } else { 1 + width_of(&more) };
        if needs > room && !(is_last && room > 12) {
            canvas.text(x, line.y, room, &more, Tone::Faint);
            return;
        }
        let width = canvas.text(x, line.y, room, &holder.name, holder.tone);
        at = x + width + 1;
    }
    if holders.is_empty() && gpu.problem.is_none() && gpu.mode != "shared" {
        let mode = match gpu.mode.as_str() {
            "mig" => "MIG: no instance is held",
            "exclusive" => "exclusive: whole GPUs only",
            "unmanaged" => "unmanaged: Divvy places no job here",
            other => other,
        };
        canvas.text(
            at,
            line.y,
            line.right().saturating_sub(at),
            mode,
            Tone::Faint,
        );
    }
}
