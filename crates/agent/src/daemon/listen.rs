//! The listeners of the daemon: its unix socket, a TCP listener with a token, and the rules for their callers.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use divvy_api::daemon::{DaemonOptions, ListenOptions};
use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode};
use divvy_web::gate::{Gate, WebHost};
use tokio::net::TcpListener;

use super::{from_home, machine_folder};
use crate::auth::Rules;
use crate::host::account::{UserAccount, UserLookupError};
use crate::host::error::error_chain;
use crate::host::error::internal;
use crate::host::live::Live;
use crate::host::rlimits;
use crate::host::user;
use crate::http::socket::{Socket, SocketPlace};
use crate::http::token::Token;

/// Between two attempts to listen on a TCP address that another program holds. A program that restarts frees its port
/// within seconds; a shorter pause would only fill the log.
const RETRY: Duration = Duration::from_secs(3);

/// The listeners before they are opened: all their errors are found first.
pub struct Listeners {
    pub rules: Live<Rules>,
    pub me: UserAccount,
    pub token: Option<Token>,
    pub gate: Gate,
    listen: Option<SocketAddr>,
    system: bool,
}

impl Listeners {
    /// # Errors
    /// [`ErrorCode::Usage`] and [`ErrorCode::NotAllowed`] for what cannot be.
    pub fn of(all: &DaemonOptions) -> Result<Self, Error> {
        let options = &all.listen;
        let (uid, gid) = (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        if options.system && uid != 0 {
            return Err(Error::new(
                ErrorCode::NotAllowed,
                format!("--system requires root, because it starts programs as other users; this is uid {uid}"),
            )
            .hint("start it as root, or leave out --system for a daemon of your own"));
        }
        let rules = Rules::of(all, uid)?;
        let unknown = |error: UserLookupError| Error::new(ErrorCode::Internal, error_chain(&error));
        let mut me = UserAccount {
            name: user::name(),
            ..UserAccount::lookup(uid, gid).map_err(unknown)?
        };
        // Also the groups that this process inherited from its caller alone.
        let own = rustix::process::getgroups().unwrap_or_default();
        me.join(own.into_iter().map(|gid| gid.as_raw()))
            .map_err(unknown)?;
        let token = token(options, &rules, &me)?;
        Ok(Self {
            rules: Live::new(rules),
            me,
            gate: gate(options)?,
            // The rules for options refuse an address without a token.
            listen: options.listen.filter(|_| token.is_some()),
            token,
            system: options.system,
        })
    }

    /// Binds the unix socket. Its mode admits all users that the rules can judge. Each caller holds a file descriptor, so
    /// the limit of descriptors is raised first.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn bind(&self, home: &Home, lock: &File) -> Result<(Socket, UnixListener), Error> {
        rlimits::raise_nofile_limit();
        let path = home.socket();
        let mode = if self.system { 0o666 } else { 0o600 };
        let place = SocketPlace {
            path: path.clone(),
            without_session: home.socket_without_session(),
            mode,
            lock: home.daemon_lock(),
        };
        lock.try_clone()
            .and_then(|lock| Socket::bind(place, lock))
            .map_err(|error| internal(&format!("cannot listen on {}", path.display()), &error))
    }

    /// The place of the TCP listener, where one was asked for. The system's daemon also starts without the listener: any
    /// user's program may hold the address, and must not keep the daemon from all users. `error` then has the reason.
    ///
    /// # Errors
    /// On a user's own daemon, when the address is taken or not this machine's.
    pub fn bind_tcp(&self, error: &Live<Option<String>>) -> Result<Option<TcpPlace>, Error> {
        let Some(address) = self.listen else {
            return Ok(None);
        };
        let mut place = TcpPlace {
            address,
            listener: None,
            error: error.clone(),
        };
        match bind_tcp(address) {
            Ok(listener) => place.listener = Some(listener),
            Err(error) if self.system => {
                let why = refused(address, &error);
                tracing::warn!(
                    "{why}; the daemon serves its socket, and tries again every {RETRY:?}"
                );
                place.error.set(Some(why));
            }
            Err(error) => return Err(internal(&format!("cannot listen on {address}"), &error)),
        }
        Ok(Some(place))
    }
}

/// Where the daemon listens on TCP.
pub struct TcpPlace {
    address: SocketAddr,
    /// `None`: another program held the address at the start.
    listener: Option<StdTcpListener>,
    /// Why the daemon does not listen.
    error: Live<Option<String>>,
}

impl TcpPlace {
    /// Returns the listener, once the daemon gets the address.
    pub async fn listener(mut self) -> TcpListener {
        loop {
            let bound = match self.listener.take() {
                Some(listener) => Ok(listener),
                None => {
                    tokio::time::sleep(RETRY).await;
                    bind_tcp(self.address)
                }
            };
            match bound.and_then(TcpListener::from_std) {
                Ok(listener) => {
                    self.error.set(None);
                    return listener;
                }
                Err(error) => self.error.set(Some(refused(self.address, &error))),
            }
        }
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<StdTcpListener> {
    let listener = StdTcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "listening for clients with the token");
    Ok(listener)
}

fn refused(address: SocketAddr, error: &io::Error) -> String {
    format!("cannot listen on {address}: {error}")
}

/// The rules for requests over TCP.
fn gate(options: &ListenOptions) -> Result<Gate, Error> {
    let names = options.web_hosts.iter().map(|name| {
        let host = name.parse::<WebHost>();
        host.map_err(|_| {
            Error::new(
                ErrorCode::Usage,
                format!("listen.web-hosts: {name} is not a name of a host"),
            )
            .hint("use lab1.example, or lab1.example:8443 for one port alone")
        })
    });
    Ok(Gate::of_numbers(names.collect::<Result<_, _>>()?))
}

/// A client with the token acts as the daemon's user. On the system's daemon it may only read, since its jobs would run as
/// root.
fn token(options: &ListenOptions, rules: &Rules, me: &UserAccount) -> Result<Option<Token>, Error> {
    let (Some(_), Some(path)) = (&options.listen, &options.token_file) else {
        return Ok(None);
    };
    let mut caller = rules.caller(me.clone())?;
    if options.system {
        caller.role = crate::auth::Role::Viewer;
        caller.account.uid = u32::MAX;
    }
    let token = Token::read(path, caller).map_err(|error| Error::from(&error))?;
    Ok(Some(token))
}

/// Creates the folders of this daemon.
///
/// # Errors
/// As [`Home::create`].
pub fn home(options: &ListenOptions) -> Result<Home, Error> {
    let home = match options.system {
        true => Home::of_system(),
        false => Home::from_env(),
    };
    let home = home.map_err(|error| from_home(&error))?;
    machine_folder::settle(&home)?;
    let made = match options.system {
        true => home.create_for_all(),
        false => home.create(),
    };
    made.map(|()| home).map_err(|error| from_home(&error))
}
