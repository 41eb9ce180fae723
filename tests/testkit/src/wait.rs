//! Bounded waits: each one has a deadline, and a wait that exceeds it fails the test with the name of what did not come.

use std::fmt::{self, Display};
use std::io;
use std::process::{Child, Command, ExitStatus, Output};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::orphans::kill_descendants;

/// How long a test waits for one thing, in seconds of real time: far longer than it takes on a machine that is busy with other work.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The shortest and the longest pause between two looks at a condition that nothing announces. A look is often a call of
/// the daemon or a whole `divvy`, 10 ms of the processor: at 2 ms throughout, looks took most of it from the tests beside
/// them. A twentieth of a second delays no test for long.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// How long a call may go on after the processes that it waits for were killed.
const GRACE: Duration = Duration::from_secs(5);

/// The result of one look at a condition: whether it holds, or the value that the test waits for.
pub trait Look {
    /// What [`until`] returns.
    type Found;

    /// Nothing yet, or what was found.
    fn found(self) -> Option<Self::Found>;
}

impl Look for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Look for Option<T> {
    type Found = T;

    fn found(self) -> Self {
        self
    }
}

/// Polls `look` until it returns `true` or a value, and returns that value.
///
/// # Panics
/// When neither came within [`PATIENCE`]; the message names `what`.
#[track_caller]
pub fn until<L: Look>(what: impl Display, mut look: impl FnMut() -> L) -> L::Found {
    let began = Instant::now();
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{}", in_vain(&what));
        thread::sleep(pause(began));
    }
}

/// Polls `look` until it returns a value, without blocking the runtime's thread.
///
/// # Panics
/// When no value came within [`PATIENCE`]; the message names `what`.
pub async fn until_async<T>(what: impl Display, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        let looked = tokio::time::timeout(PATIENCE, look()).await;
        if let Some(found) = looked.unwrap_or_else(|_| panic!("{}", in_vain(&what))) {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{}", in_vain(&what));
        tokio::time::sleep(pause(began)).await;
    }
}

/// As [`until`], with a look every 2 ms: for a look that takes next to nothing, at a condition that may pass soon after it
/// came true.
///
/// # Panics
/// As [`until`].
#[track_caller]
pub fn until_passing<L: Look>(what: impl Display, mut look: impl FnMut() -> L) -> L::Found {
    let began = Instant::now();
    loop {
        if let Some(found) = look().found() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{}", in_vain(&what));
        thread::sleep(PAUSES[0]);
    }
}

/// A tenth of the time that the wait has taken: it ends at most that much later than it could.
fn pause(began: Instant) -> Duration {
    let [shortest, longest] = PAUSES;
    (began.elapsed() / 10).clamp(shortest, longest)
}

/// Runs a call that blocks on another process: a pipe, a socket, its end. If the call has not returned after [`PATIENCE`], every process that
/// this test program has started is killed, which ends the call.
///
/// # Panics
/// When the call took longer than [`PATIENCE`]; the message names `what`. A call that does not return even then ends the test program.
#[track_caller]
pub fn bounded<T>(what: impl Display + Send, call: impl FnOnce() -> T) -> T {
    bounded_for(PATIENCE, what, call)
}

/// The same with another bound, for a call that does much: a whole program of tests, a build.
///
/// # Panics
/// As [`bounded`].
#[track_caller]
pub fn bounded_for<T>(
    patience: Duration,
    what: impl Display + Send,
    call: impl FnOnce() -> T,
) -> T {
    let (done, returned) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let watchdog = scope.spawn(move || {
            let is_late = |by| returned.recv_timeout(by) == Err(RecvTimeoutError::Timeout);
            if !is_late(patience) {
                return None;
            }
            let message = format!("waited {} s in vain: {what}", patience.as_secs());
            kill_descendants();
            if is_late(GRACE) {
                eprintln!("{message}; the call does not return");
                std::process::exit(101);
            }
            Some(message)
        });
        // Dropped by a panic of the call too: the scope waits for the watchdog.
        let done = done;
        let value = call();
        drop(done);
        let late = watchdog.join().expect("the watchdog does not panic");
        assert!(late.is_none(), "{}", late.unwrap_or_default());
        value
    })
}

/// Waits for a thread's end, and returns its value.
///
/// # Panics
/// When it does not end within [`PATIENCE`]; the message names `what`. A panic of the thread goes on here.
#[track_caller]
pub fn join<T>(what: impl Display + Send, thread: thread::JoinHandle<T>) -> T {
    let ended = bounded(format!("{what} ends"), || thread.join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Lets time pass: up to a random moment at which a test kills something, or between two looks of a stand-in that goes on until it is stopped.
/// It waits for nothing.
pub fn let_pass(moment: Duration) {
    thread::sleep(moment);
}

fn in_vain(what: &impl Display) -> String {
    format!("waited {} s in vain: {what}", PATIENCE.as_secs())
}

/// The calls of `std::process` that block, within [`PATIENCE`].
///
/// Each returns what the call of the standard library returns, and panics with the process's command line when it is late.
pub trait Bounded {
    /// Waits for the process's end.
    ///
    /// # Errors
    /// Those of the standard library's call, as for every method here.
    fn wait_bounded(self) -> io::Result<ExitStatus>;

    /// Reads what the process writes to its pipes, and waits for its end.
    fn output_bounded(self) -> io::Result<Output>;
}

impl Bounded for &mut Command {
    #[track_caller]
    fn wait_bounded(self) -> io::Result<ExitStatus> {
        let what = format!("{} ends", line(self));
        bounded(what, || self.status())
    }

    #[track_caller]
    fn output_bounded(self) -> io::Result<Output> {
        let what = format!("{} ends", line(self));
        bounded(what, || self.output())
    }
}

impl Bounded for &mut Child {
    #[track_caller]
    fn wait_bounded(self) -> io::Result<ExitStatus> {
        bounded(running(self), || self.wait())
    }

    #[track_caller]
    fn output_bounded(self) -> io::Result<Output> {
        let stdout = self.stdout.take();
        let stderr = self.stderr.take();
        bounded(running(self), || {
            drop(self.stdin.take());
            let errors = thread::spawn(move || all_of(stderr));
            let stdout = all_of(stdout)?;
            let stderr = errors.join().expect("reading does not panic")?;
            let status = self.wait()?;
            Ok(Output {
                status,
                stdout,
                stderr,
            })
        })
    }
}

fn all_of(pipe: Option<impl io::Read>) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut all)?;
    }
    Ok(all)
}

/// The command as typed, without its environment.
fn line(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy());
    let program = command.get_program().to_string_lossy();
    let line: Vec<_> = std::iter::once(program).chain(words).collect();
    line.join(" ")
}

fn running(child: &Child) -> Running {
    Running(child.id())
}

/// A process, named when the name is needed: right after its start it has none yet.
#[derive(Clone, Copy)]
struct Running(u32);

impl Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(pid) = self;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        write!(f, "process {pid} ({}) ends", line.trim())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::Stdio;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    fn message(call: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("it is late");
        *panic.downcast::<String>().expect("a formatted message")
    }

    #[test]
    fn a_call_that_returns_in_time_gives_its_value() {
        assert_eq!(bounded("seven", || 7), 7);
        let status = Command::new("true").wait_bounded().expect("true starts");
        assert!(status.success());
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_and_named() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("it starts");
        let what = running(&child);
        let said = message(|| {
            let _ = bounded_for(SHORT, what, || child.wait());
        });
        assert!(
            said.contains("in vain") && said.contains("sleep 600"),
            "{said}"
        );
    }

    #[test]
    fn a_pipe_that_a_grandchild_holds_open_is_closed_and_named() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 600 & echo begun; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let mut pipe = shell.stdout.take().expect("a pipe");
        let said = message(|| {
            let mut text = String::new();
            bounded_for(SHORT, "the shell's output ends", || {
                pipe.read_to_string(&mut text).expect("a pipe can be read")
            });
        });
        assert!(said.ends_with("in vain: the shell's output ends"), "{said}");
        assert!(!shell.wait_bounded().expect("a child").success());
    }

    #[test]
    fn what_a_process_writes_to_both_pipes_is_read_to_its_end() {
        let mut shell = Command::new("sh")
            .args(["-c", "head -c 300000 /dev/zero >&2; echo out; exit 3"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let output = shell.output_bounded().expect("it ends");
        let read = (output.status.code(), output.stdout, output.stderr.len());
        assert_eq!(read, (Some(3), b"out\n".to_vec(), 300_000));
    }
}
