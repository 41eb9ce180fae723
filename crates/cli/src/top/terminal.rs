//! The terminal of the live view: raw mode and the other screen, and the way back from every end of the program.

use std::io::{self, BufWriter, Stdout, Write as _};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, read};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use ratatui::crossterm::{execute, queue};
use tokio::sync::mpsc;

use super::keys::Key;
use super::update::Input;

/// Inputs of the terminal that wait for the view. Further keys wait in the terminal itself. A held key repeats 30 times
/// a second: enough for two seconds. More would let the view run on after its release.
const QUEUE: usize = 64;

/// Bytes of a frame that are written at once: a screen of 200x60 with its colours. So one write draws a frame, and a
/// larger screen takes two.
const FRAME: usize = 64 << 10;

/// Whether the terminal shows the view, and has to be restored.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The screen. Its drop restores the terminal.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<BufWriter<Stdout>>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When the terminal refuses raw mode.
    pub fn take() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let report = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                report(panic);
            }));
        });
        enter()?;
        let backend = CrosstermBackend::new(BufWriter::with_capacity(FRAME, io::stdout()));
        let terminal = Terminal::new(backend);
        if terminal.is_err() {
            restore();
        }
        Ok(Self {
            terminal: terminal?,
        })
    }

    /// Columns and lines.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        size()
    }

    /// Draws a frame: only the cells that changed are written.
    pub fn draw(&mut self, drawing: impl FnOnce(&mut Buffer)) -> io::Result<()> {
        self.terminal.draw(|frame| drawing(frame.buffer_mut()))?;
        Ok(())
    }

    /// Takes the terminal again, after [`restore`], and draws everything anew.
    pub fn take_again(&mut self) -> io::Result<()> {
        enter()?;
        self.redraw()
    }

    /// Has the next frame write every cell.
    pub fn redraw(&mut self) -> io::Result<()> {
        // `Terminal::clear` would ask the terminal for its cursor, and the answer would compete with keys.
        let (width, height) = size()?;
        self.terminal
            .resize(ratatui::layout::Rect::new(0, 0, width, height))
    }

    /// Puts a text into the terminal's clipboard (OSC 52). A terminal without that ignores it.
    pub fn copy(&mut self, text: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        write!(stdout, "\x1b]52;c;{}\x07", STANDARD.encode(text))?;
        stdout.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn enter() -> io::Result<()> {
    IS_TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    let mut stdout = io::stdout();
    queue!(stdout, EnterAlternateScreen, Hide)?;
    stdout.flush()
}

/// Gives the terminal back as it was. May be called at any time, also while the program panics.
pub fn restore() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        // A terminal that has gone needs nothing.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}

/// Reads the terminal in a thread of its own, because reading blocks.
pub fn read_keys() -> mpsc::Receiver<Input> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    std::thread::spawn(move || {
        while let Ok(event) = read() {
            let Some(input) = input(&event) else { continue };
            if sender.blocking_send(input).is_err() {
                return;
            }
        }
    });
    receiver
}

fn input(event: &Event) -> Option<Input> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => Some(Input::Key(of(key)?)),
        Event::Resize(width, height) => Some(Input::Resize(*width, *height)),
        _ => None,
    }
}

fn of(event: &KeyEvent) -> Option<Key> {
    let is_control = event.modifiers.contains(KeyModifiers::CONTROL);
    Some(match event.code {
        KeyCode::Char(letter) if is_control => Key::Control(letter.to_ascii_lowercase()),
        KeyCode::Char(letter) => Key::Char(letter),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        _ => return None,
    })
}
