//! Progress of long simulations on stderr, and an end on Ctrl-C that leaves the terminal clean.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use divvy_cli::Signals;
use divvy_cli::output::LiveLine;

/// Simulations that are shorter show nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Between two drawings of the line. Five in a second look alive; a shorter pause would only write more.
const EVERY: Duration = Duration::from_millis(200);

/// A line with the part that is done. Any thread may report.
pub struct Progress {
    started: Instant,
    done: AtomicU64,
    /// `None`: shows nothing.
    shown: Option<Mutex<Shown>>,
}

struct Shown {
    line: LiveLine,
    task: String,
    of: u64,
    last: Instant,
}

impl Progress {
    /// Begins, and ends the program cleanly on SIGINT, SIGTERM and SIGHUP from now on.
    pub fn start(quiet: bool) -> Self {
        let line = LiveLine::on_stderr();
        let shown = (line.is_live() && !quiet).then(|| {
            Mutex::new(Shown {
                line,
                task: String::new(),
                of: 1,
                last: Instant::now(),
            })
        });
        if shown.is_some() {
            end_cleanly();
        }
        Self {
            started: Instant::now(),
            done: AtomicU64::new(0),
            shown,
        }
    }

    /// Begins a task of so many steps.
    pub fn task(&self, task: &str, of: u64) {
        self.done.store(0, Ordering::Relaxed);
        if let Some(Ok(mut shown)) = self.shown.as_ref().map(Mutex::lock) {
            task.clone_into(&mut shown.task);
            shown.of = of.max(1);
        }
    }

    /// Reports steps that are done.
    pub fn add(&self, steps: u64) {
        let done = self.done.fetch_add(steps, Ordering::Relaxed) + steps;
        self.draw(done);
    }

    /// Reports how far the task is.
    pub fn at(&self, done: u64) {
        self.done.store(done, Ordering::Relaxed);
        self.draw(done);
    }

    fn draw(&self, done: u64) {
        // Another thread that draws now draws nearly the same.
        let Some(Ok(mut shown)) = self.shown.as_ref().map(Mutex::try_lock) else {
            return;
        };
        if self.started.elapsed() < PATIENCE || shown.last.elapsed() < EVERY {
            return;
        }
        shown.last = Instant::now();
        let percent = (done * 100 / shown.of).min(100);
        let text = format!("{}: {percent} %", shown.task);
        shown.line.show(&text, &text);
    }

    /// Clears the line, before other output comes.
    pub fn finish(&self) {
        if let Some(Ok(mut shown)) = self.shown.as_ref().map(Mutex::lock) {
            shown.line.erase();
        }
    }
}

/// On a signal, clears the line and exits as a shell expects it.
fn end_cleanly() {
    let wait = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        let number = runtime.block_on(async { Some(Signals::that_end().ok()?.next().await) })?;
        LiveLine::clear();
        std::process::exit(128 + i32::from(number));
    };
    std::thread::spawn(move || -> Option<()> { wait() });
}
