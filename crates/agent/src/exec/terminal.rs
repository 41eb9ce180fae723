//! Pseudo-terminals for exec sessions: the daemon opens one, and the session makes it its controlling terminal.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The verb under which this program puts itself between a supervisor and a guest.
pub const VERB: &str = "on-terminal";

/// Both ends of a new terminal: ours, and the one that programs have.
///
/// # Errors
/// When there are no more.
pub fn open(rows: u16, columns: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    resize(&ours, rows, columns)?;
    Ok((ours, theirs))
}

/// Gives a terminal another size; what runs in it is told.
///
/// # Errors
/// When it is gone.
pub fn resize(terminal: &OwnedFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(tcsetwinsize(terminal.as_fd(), size)?)
}

/// `divvy on-terminal FILE NAME ARGS…`: becomes that program, in a session with standard input as its terminal. Only
/// the program itself can do that, before it is the program.
pub fn on_terminal(words: &[OsString]) -> ExitCode {
    let [file, name, args @ ..] = words else {
        return fail("usage: divvy on-terminal FILE NAME ARGS…", 125);
    };
    if let Err(error) = acquire_controlling_terminal() {
        return fail(
            &format!("cannot set the controlling terminal: {error}"),
            125,
        );
    }
    let inherited = divvy_fork::inherited();
    let become_it = |command: &mut Command| {
        inherited.pass_on(command.args(args));
        command.exec()
    };
    let failed = become_it(Command::new(file).arg0(name));
    // As in the supervisor: a script without `#!` line.
    let failed = match rustix::io::Errno::from_io_error(&failed) == Some(rustix::io::Errno::NOEXEC)
    {
        true => become_it(Command::new(Path::new("/bin/sh")).arg(file)),
        false => failed,
    };
    fail(
        &format!("cannot start {}: {failed}", name.to_string_lossy()),
        126,
    )
}

fn acquire_controlling_terminal() -> io::Result<()> {
    rustix::process::setsid()?;
    Ok(rustix::process::ioctl_tiocsctty(io::stdin())?)
}

fn fail(why: &str, code: u8) -> ExitCode {
    let _ = writeln!(io::stderr(), "divvy: {why}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    #[test]
    fn what_is_written_at_one_end_is_read_at_the_other_and_its_size_is_told() {
        let (ours, theirs) = open(24, 77).unwrap();
        let size = rustix::termios::tcgetwinsize(&theirs).unwrap();
        assert_eq!((size.ws_row, size.ws_col), (24, 77));
        resize(&ours, 50, 80).unwrap();
        assert_eq!(rustix::termios::tcgetwinsize(&theirs).unwrap().ws_row, 50);
        File::from(theirs).write_all(b"here\n").unwrap();
        let mut said = [0; 6];
        File::from(ours).read_exact(&mut said).unwrap();
        assert_eq!(&said, b"here\r\n");
    }
}
