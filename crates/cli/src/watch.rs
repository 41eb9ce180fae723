//! `--watch`: a list that is drawn again and again.
//!
//! On a terminal the list has the alternate screen, so that the shell's lines are there again afterwards. Every signal
//! that ends or stops the program gives the terminal back first. Where there is no terminal, tables follow each other.
//! Without an answer of the daemon the last table stays, with its age.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use divvy_api::disposition::is_ignored;
use divvy_api::v1::Error;
use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::SignalKind;

use crate::args::Format;
use crate::call::signals::Signals;
use crate::error_output::usage;
use crate::output::{self, Stop, print, say};
use crate::text;

/// What a list verb shows at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// The list, for stdout.
    pub text: String,
    /// Remarks on it, a line each, for stderr.
    pub remarks: Vec<String>,
}

impl Shown {
    pub fn list(text: String) -> Self {
        Self {
            text,
            remarks: Vec::new(),
        }
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug)]
enum Heard {
    /// End with this exit code.
    End(u8),
    /// Stop until the shell continues the program (Ctrl-Z).
    Suspend,
    /// The terminal has another size.
    Redraw,
}

/// Shows what `draw` gives: once, or every so often until a signal ends it.
///
/// # Errors
/// Those of the first drawing. Later failures are shown with the last list.
pub async fn show(
    every: Option<Duration>,
    format: Format,
    mut draw: impl AsyncFnMut() -> Result<Shown, Stop>,
) -> Result<ExitCode, Stop> {
    let Some(every) = every else {
        let Shown { text, remarks } = draw().await?;
        print(text)?;
        remarks.iter().for_each(|remark| say(remark));
        return Ok(ExitCode::SUCCESS);
    };
    if !matches!(format, Format::Table | Format::Wide) {
        let hint = "leave out --watch, or use `divvy events --follow -o ndjson`";
        return Err(usage("--watch draws tables: it takes -o table or -o wide", hint).into());
    }
    let heard = [
        (SignalKind::interrupt(), Heard::End(0)),
        (SignalKind::terminate(), Heard::End(128 + 15)),
        (SignalKind::hangup(), Heard::End(128 + 1)),
        (SignalKind::quit(), Heard::End(128 + 3)),
        (SignalKind::from_raw(Signal::TSTP.as_raw()), Heard::Suspend),
        (SignalKind::window_change(), Heard::Redraw),
    ];
    // `nohup` and a script's `&` keep some of them from this program.
    let heard = (heard.into_iter()).filter(|(kind, _)| !is_ignored(kind.as_raw_value()));
    let mut signals = Signals::listen(heard)?;
    let mut watch = Watch::default();
    watch.take(draw().await)?;
    let mut screen = Screen::open();
    loop {
        screen.show(&watch)?;
        let heard = tokio::select! {
            biased;
            heard = signals.next() => Some(heard),
            () = tokio::time::sleep(every) => None,
        };
        match heard {
            Some(Heard::End(code)) => return Ok(ExitCode::from(code)),
            Some(Heard::Suspend) => screen.suspend(),
            Some(Heard::Redraw) | None => {}
        }
        tokio::select! {
            biased;
            heard = signals.next() => match heard {
                Heard::End(code) => return Ok(ExitCode::from(code)),
                Heard::Suspend => screen.suspend(),
                Heard::Redraw => {}
            },
            drawn = draw() => watch.take(drawn)?,
        }
    }
}

/// The last list, and what is wrong since.
#[derive(Default)]
struct Watch {
    last: Option<(Shown, Instant)>,
    failure: Option<Error>,
}

impl Watch {
    /// Takes the answer to a drawing.
    fn take(&mut self, drawn: Result<Shown, Stop>) -> Result<(), Stop> {
        match drawn {
            Ok(shown) => (self.last, self.failure) = (Some((shown, Instant::now())), None),
            Err(Stop::Failed(error)) if self.last.is_some() => self.failure = Some(error),
            Err(stop) => return Err(stop),
        }
        Ok(())
    }

    fn text(&self) -> &str {
        self.last.as_ref().map_or("", |(shown, _)| &shown.text)
    }

    fn remarks(&self) -> &[String] {
        self.last.as_ref().map_or(&[], |(shown, _)| &shown.remarks)
    }

    /// `12s old: no divvy daemon answers …`, while the last drawing failed.
    fn age(&self) -> Option<String> {
        let error = self.failure.as_ref()?;
        let age = self.last.as_ref()?.1.elapsed().as_secs();
        let age = text::seconds(age);
        Some(format!("{age} old: {}", text::clean(&error.message)))
    }
}

/// Where the lists go.
struct Screen {
    is_terminal: bool,
    is_open: bool,
    shown: String,
}

/// Alternate screen, no cursor, no breaks of long lines; and back (xterm's control sequences).
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

impl Screen {
    fn open() -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self {
            is_terminal: std::io::stdout().is_terminal() && !is_dumb,
            is_open: false,
            shown: String::new(),
        }
    }

    fn show(&mut self, watch: &Watch) -> Result<(), Stop> {
        if !self.is_terminal {
            return self.follow(watch);
        }
        let rows = output::terminal_rows().unwrap_or(24);
        let text = page(watch, rows);
        if self.is_open && text == self.shown {
            return Ok(());
        }
        let mut bytes = String::new();
        if !std::mem::replace(&mut self.is_open, true) {
            bytes.push_str(ENTER);
        }
        bytes.push_str(&frame(&text));
        self.shown = text;
        print(bytes)
    }

    /// The next table, where there is no terminal.
    fn follow(&mut self, watch: &Watch) -> Result<(), Stop> {
        match (watch.age(), std::mem::replace(&mut self.is_open, true)) {
            (Some(age), _) => say(&format!("the last list is {age}")),
            (None, is_next) => {
                let before = if is_next { "\n" } else { "" };
                print(format!("{before}{}", watch.text()))?;
                watch.remarks().iter().for_each(|remark| say(remark));
            }
        }
        Ok(())
    }

    fn close(&mut self) {
        if self.is_terminal && std::mem::take(&mut self.is_open) {
            // The terminal may be gone.
            let mut stdout = std::io::stdout().lock();
            let _ = stdout.write_all(LEAVE.as_bytes());
            let _ = stdout.flush();
        }
    }

    /// Gives the terminal back, and stops until the shell continues this program.
    fn suspend(&mut self) {
        self.close();
        // Without the right to stop itself, a process goes on.
        let _ = kill_process(getpid(), Signal::STOP);
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

/// The lines that fit the terminal; the last ones say what is missing, what is remarked, and what is wrong.
fn page(watch: &Watch, rows: usize) -> String {
    let remarks = watch.remarks().iter();
    let mut foot: Vec<String> = remarks.map(|remark| text::clean(remark)).collect();
    foot.extend(watch.age());
    let lines: Vec<&str> = watch.text().lines().collect();
    let room = rows.saturating_sub(foot.len()).max(1);
    let mut page: Vec<String> = lines
        .iter()
        .take(room)
        .map(|line| (*line).to_owned())
        .collect();
    if lines.len() > room {
        page.pop();
        page.push(format!("… {} more lines", lines.len() - page.len()));
    }
    page.extend(foot);
    page.join("\n")
}

/// A page over the one before: each line cleared to its end, and the rest of the screen.
fn frame(page: &str) -> String {
    let lines: Vec<String> = page.lines().map(|line| format!("{line}\x1b[K")).collect();
    format!("\x1b[H{}\x1b[J", lines.join("\r\n"))
}

#[cfg(test)]
mod tests {
    use divvy_api::v1::ErrorCode;

    use super::*;

    fn watch(lines: usize) -> Watch {
        let text: String = (1..=lines).map(|line| format!("line {line}\n")).collect();
        let mut watch = Watch::default();
        watch.take(Ok(Shown::list(text))).unwrap();
        watch
    }

    #[test]
    fn a_page_has_no_more_lines_than_the_terminal() {
        assert_eq!(page(&watch(3), 3), "line 1\nline 2\nline 3");
        assert_eq!(page(&watch(9), 3), "line 1\nline 2\n… 7 more lines");
        assert_eq!(page(&watch(9), 1), "… 9 more lines");
        assert_eq!(frame("a\nb"), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J");
    }

    #[test]
    fn without_an_answer_the_last_list_stays_with_its_age() {
        let mut watch = watch(9);
        let lost = || {
            Err(Stop::Failed(Error::new(
                ErrorCode::NoDaemon,
                "no daemon answers",
            )))
        };
        watch.take(lost()).unwrap();
        assert_eq!(
            page(&watch, 4),
            "line 1\nline 2\n… 7 more lines\n0s old: no daemon answers"
        );
        watch.take(Ok(Shown::list("new\n".to_owned()))).unwrap();
        assert_eq!(page(&watch, 4), "new");
        // Without a list there is nothing to stay.
        assert!(Watch::default().take(lost()).is_err());
    }
}
