//! The loop of the live view: keys, signals, answers and the clock go to the state machine, and its calls to the daemon.
//!
//! A question runs as a task of its own, so that a slow daemon never delays a key or a drawing.

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use divvy_api::client::Client;
use divvy_api::v1::{Board, Error, ErrorCode};
use jiff::Timestamp;
use rustix::process::{Signal, getpid, kill_current_process_group, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::call::{Call, Data, Question};
use super::draw::draw;
use super::fetch;
use super::state::{Options, State};
use super::terminal::{self, Screen};
use super::update::{Input, set_filter, update};
use crate::output::Stop;

/// The clock of the view. An interval between boards is a multiple of it. Half a second is the shortest interval that a
/// user can choose. A faster clock would only wake the view.
const TICK: Duration = Duration::from_millis(500);

/// SIGTSTP, which a terminal sends for Ctrl-Z outside of raw mode.
const STOP: i32 = 20;

struct Live {
    client: Arc<Client>,
    state: State,
    screen: Screen,
    tasks: JoinSet<Input>,
}

/// Shows the view until the user leaves it.
///
/// # Errors
/// When the terminal cannot be used.
pub async fn show(
    client: Client,
    options: Options,
    filter: &str,
    board: Board,
) -> Result<ExitCode, Stop> {
    let cannot = |error: io::Error| -> Stop {
        Error::new(
            ErrorCode::Internal,
            format!("cannot use the terminal: {error}"),
        )
        .into()
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(cannot)?;
    let mut stop = signal(SignalKind::from_raw(STOP)).map_err(cannot)?;
    let screen = Screen::take().map_err(cannot)?;
    let size = screen.size().map_err(cannot)?;
    let mut live = Live {
        client: Arc::new(client),
        state: State::new(options, Timestamp::now(), size),
        screen,
        tasks: JoinSet::new(),
    };
    set_filter(&mut live.state, filter);
    let mut keys = terminal::read_keys();
    let mut clock = interval(TICK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut input = Input::Answer(Question::Board, Ok(Data::Board(Box::new(board))));
    loop {
        if let Some(code) = live.take(input).map_err(cannot)? {
            return Ok(code);
        }
        input = tokio::select! {
            // Keys come before answers, so that the view obeys under load.
            biased;
            _ = terminate.recv() => return Ok(ExitCode::from(143)),
            _ = interrupt.recv() => return Ok(ExitCode::from(130)),
            _ = hangup.recv() => return Ok(ExitCode::from(129)),
            _ = stop.recv() => live.stop().map_err(cannot)?,
            key = next(&mut keys) => match key {
                Some(key) => key,
                // The terminal has gone.
                None => return Ok(ExitCode::SUCCESS),
            },
            Some(answer) = live.tasks.join_next() => match answer {
                Ok(answer) => answer,
                // The hook has restored the terminal and printed the panic.
                Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
                Err(_) => Input::Tick(Timestamp::now()),
            },
            _ = clock.tick() => Input::Tick(Timestamp::now()),
        };
    }
}

async fn next(keys: &mut mpsc::Receiver<Input>) -> Option<Input> {
    keys.recv().await
}

impl Live {
    /// Takes an input and draws what changed. Returns the exit code at the end.
    fn take(&mut self, input: Input) -> io::Result<Option<ExitCode>> {
        let is_redraw = matches!(
            input,
            Input::Continued | Input::Key(super::keys::Key::Control('l'))
        );
        for call in update(&mut self.state, input) {
            match call {
                Call::Quit => return Ok(Some(ExitCode::SUCCESS)),
                Call::Stop => kill_current_process_group(Signal::TSTP)?,
                Call::Copy(text) => self.screen.copy(&text)?,
                Call::Ask(question) => self.ask(question),
                Call::Act(action) => {
                    let client = Arc::clone(&self.client);
                    self.tasks.spawn(async move {
                        let result = fetch::act(&client, &action).await;
                        Input::Done(action, result)
                    });
                }
            }
        }
        if is_redraw {
            self.screen.redraw()?;
        }
        if std::mem::take(&mut self.state.is_changed) {
            let state = &mut self.state;
            self.screen.draw(|buffer| {
                // The terminal may have another size since the last input.
                state.size = (buffer.area.width, buffer.area.height);
                draw(state, buffer);
            })?;
        }
        Ok(None)
    }

    fn ask(&mut self, question: Question) {
        let client = Arc::clone(&self.client);
        let now = self.state.now;
        self.tasks.spawn(async move {
            let answer = fetch::answer(&client, &question, now).await;
            Input::Answer(question, answer)
        });
    }

    /// Stops the program as Ctrl-Z does, with the terminal as it was; returns when it goes on.
    fn stop(&mut self) -> io::Result<Input> {
        terminal::restore();
        kill_process(getpid(), Signal::STOP)?;
        self.screen.take_again()?;
        Ok(Input::Continued)
    }
}
