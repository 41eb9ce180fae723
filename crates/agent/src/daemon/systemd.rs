//! The daemon under systemd: readiness and watchdog messages (sd_notify(3), sd_watchdog_enabled(3)), and the fork
//! server's unit.
//!
//! The crate sd-notify 0.5 knows no abstract sockets (`@name`) and reads its variables from the environment only.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::time::Duration;

use crate::controller::mailbox::Mailbox;

/// The socket of the fork server's unit. A variable, so that an `ExecStart=` of the administrator's own keeps it: without
/// it, the daemon's restrictions would reach jobs.
const FORK_SERVER: &str = "DIVVY_FORK_SERVER";

/// Returns the socket of the fork server's unit, if the daemon's unit names one.
pub fn fork_server() -> Option<PathBuf> {
    std::env::var_os(FORK_SERVER)
        .filter(|socket| !socket.is_empty())
        .map(PathBuf::from)
}

/// systemd's socket, and the period of its watchdog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notify {
    socket: Option<OsString>,
    watchdog: Option<Duration>,
}

impl Notify {
    pub fn from_env() -> Self {
        Self::of(&|name| std::env::var_os(name), std::process::id())
    }

    fn of(var: &dyn Fn(&str) -> Option<OsString>, pid: u32) -> Self {
        let number = |name: &str| var(name)?.to_str()?.parse::<u64>().ok();
        // Variables for another pid were only inherited.
        let is_ours = var("WATCHDOG_PID").is_none() || number("WATCHDOG_PID") == Some(pid.into());
        let watchdog = number("WATCHDOG_USEC").filter(|usec| is_ours && *usec > 0);
        Self {
            socket: var("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()),
            watchdog: watchdog.map(Duration::from_micros),
        }
    }

    pub fn ready(&self) {
        self.send_state("READY=1\nSTATUS=serving");
    }

    pub fn stopping(&self) {
        self.send_state("STOPPING=1");
    }

    /// Sends the watchdog message twice per period, as long as the controller answers.
    pub async fn watch(&self, mailbox: Mailbox) {
        let Some(period) = self.watchdog.filter(|_| self.socket.is_some()) else {
            return std::future::pending().await;
        };
        let mut beat = tokio::time::interval(period / 2);
        loop {
            beat.tick().await;
            // No message while the controller hangs, so that systemd restarts the daemon.
            if mailbox.query(|_| Ok(())).await.is_ok() {
                self.send_state("WATCHDOG=1");
            }
        }
    }

    fn send_state(&self, state: &str) {
        let Some(socket) = &self.socket else { return };
        if let Err(error) = send(socket, state) {
            tracing::warn!(%error, state, "cannot notify systemd");
        }
    }
}

/// A name that begins with `@` is in the abstract namespace (unix(7)).
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Notify {
        let var = |name: &str| {
            let found = vars.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Notify::of(&var, 42)
    }

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        let at = ("NOTIFY_SOCKET", "/run/x");
        let second = ("WATCHDOG_USEC", "1000000");
        assert_eq!(of(&[at, second]).watchdog, Some(Duration::from_secs(1)));
        let ours = of(&[at, second, ("WATCHDOG_PID", "42")]);
        assert_eq!(ours.watchdog, Some(Duration::from_secs(1)));
        assert_eq!(of(&[at, second, ("WATCHDOG_PID", "41")]).watchdog, None);
        assert_eq!(of(&[at, ("WATCHDOG_USEC", "0")]).watchdog, None);
        assert_eq!(of(&[("NOTIFY_SOCKET", "")]), Notify::default());
    }

    #[test]
    fn what_is_told_arrives_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("divvy-test-notify-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        for (listener, socket) in [
            (by_path, path.to_str().unwrap().to_owned()),
            (by_name, format!("@{name}")),
        ] {
            let notify = of(&[("NOTIFY_SOCKET", &socket)]);
            notify.ready();
            notify.stopping();
            let mut told = [0; 64];
            let length = listener.recv(&mut told).unwrap();
            assert!(told[..length].starts_with(b"READY=1\n"));
            let length = listener.recv(&mut told).unwrap();
            assert_eq!(&told[..length], b"STOPPING=1");
        }
        // A missing socket is no error.
        of(&[("NOTIFY_SOCKET", "/no/such/socket")]).ready();
    }
}
