//! `exec`: runs another program in a running job's slice, with the input, output and terminal of this process.

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;

use divvy_api::client::{Client, ExecInput, ExecOutput};
use divvy_api::frame::Frame;
use divvy_api::v1::{Error, ErrorCode, Exec, ExecEnd, Terminal};
use rustix::termios::{self, OptionalActions, Termios};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use crate::call::{Outcome, client, reference};
use crate::output::{Stop, print, say};
use crate::{args, ask};

/// Bytes read of standard input at a time. A quarter of the largest frame: a larger one would delay what the program
/// prints meanwhile.
const PIECE: usize = 16 << 10;

pub async fn exec(args: args::Exec) -> Outcome {
    let command = ask::command(&args.command, "divvy exec JOB")?;
    let client = client()?;
    Ok(ExitCode::from(
        inside(&client, reference(&args.job), command).await?,
    ))
}

/// Runs a program in the job, on this terminal or these streams, to its end; gives its exit code.
pub async fn inside(client: &Client, job: &str, command: Vec<String>) -> Result<u8, Stop> {
    // Where its output goes elsewhere, a terminal would only spoil it.
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let exec = Exec {
        command,
        terminal: is_terminal.then(terminal),
    };
    let mut signals = Signals::new().map_err(unheard)?;
    let (output, input) = client.exec(job, &exec).await?;
    let raw = if is_terminal {
        Some(Raw::enter().map_err(unheard)?)
    } else {
        None
    };
    let end = talk(output, input, &mut signals, is_terminal).await;
    // Back as it was before anything is said on it.
    drop(raw);
    let ExecEnd { exit_code, message } = match end? {
        Ended::Program(end) => end,
        Ended::Signal(number) => return Ok(128 + number),
    };
    if let Some(message) = message {
        say(&message);
    }
    Ok(u8::try_from(exit_code).unwrap_or(u8::MAX))
}

enum Ended {
    Program(ExecEnd),
    /// This client was told to end; the program is hung up with the connection.
    Signal(u8),
}

async fn talk(
    mut output: ExecOutput,
    mut input: ExecInput,
    signals: &mut Signals,
    is_terminal: bool,
) -> Result<Ended, Stop> {
    let mut typed = Some(typed());
    loop {
        tokio::select! {
            frame = output.next() => match frame? {
                Frame::Output(bytes) => print(bytes)?,
                Frame::Errors(bytes) => {
                    // A closed stderr must not end the program.
                    let _ = io::stderr().write_all(&bytes);
                }
                Frame::End(end) => return Ok(Ended::Program(end)),
                _ => {}
            },
            // What cannot be sent any more: `output` says why.
            keys = next(&mut typed), if typed.is_some() => match keys {
                Some(bytes) => drop(input.send(&Frame::Input(bytes)).await),
                None => {
                    typed = None;
                    let _ = input.send(&Frame::InputEnd).await;
                }
            },
            told = signals.next() => match told {
                SignalEvent::Resized if is_terminal => {
                    let Terminal { rows, columns, .. } = terminal();
                    let _ = input.send(&Frame::Size { rows, columns }).await;
                }
                SignalEvent::Resized => {}
                SignalEvent::HangUp => return Ok(Ended::Signal(1)),
                // On a terminal the keys for them are keys like others, and a signal from another process means this
                // client.
                SignalEvent::Pass(number) if is_terminal => return Ok(Ended::Signal(number)),
                SignalEvent::Pass(number) => drop(input.send(&Frame::Signal(number)).await),
            },
        }
    }
}

async fn next(typed: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    typed.as_mut()?.recv().await
}

/// Standard input as it comes. A thread of its own reads: nothing else waits well for a terminal.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, typed) = mpsc::channel(8);
    std::thread::spawn(move || {
        let mut piece = [0; PIECE];
        while let Ok(length @ 1..) = io::stdin().read(&mut piece) {
            if sender.blocking_send(piece[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    typed
}

fn terminal() -> Terminal {
    let size = termios::tcgetwinsize(io::stdout()).ok();
    let (rows, columns) = size.map_or((0, 0), |size| (size.ws_row, size.ws_col));
    Terminal {
        rows,
        columns,
        kind: std::env::var("TERM").ok().filter(|kind| !kind.is_empty()),
    }
}

/// Standard input, which is a terminal, as it was before; put back when dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

/// Events for this client from outside: signals and sizes of the terminal.
struct Signals {
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
    hangup: Signal,
    resized: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> SignalEvent {
        tokio::select! {
            _ = self.interrupt.recv() => SignalEvent::Pass(2),
            _ = self.quit.recv() => SignalEvent::Pass(3),
            _ = self.terminate.recv() => SignalEvent::Pass(15),
            _ = self.hangup.recv() => SignalEvent::HangUp,
            _ = self.resized.recv() => SignalEvent::Resized,
        }
    }
}

enum SignalEvent {
    /// This signal.
    Pass(u8),
    /// The terminal was closed.
    HangUp,
    Resized,
}

fn unheard(error: io::Error) -> Stop {
    let why = format!("cannot watch signals and the terminal: {error}");
    Error::new(ErrorCode::Internal, why).into()
}
