//! `divvy web`: the page in a browser, for the user who typed the command.
//!
//! ```text
//! browser ──HTTP, 127.0.0.1──► server ──► proxy ──► files        the page itself
//!                                           ├─────► Client       /v1/…, over the daemon's Unix socket, as this user
//!                                           └─────► tools        /web/doctor, /web/selftest: `divvy` itself
//! ```
//! It is a client like any other: the daemon knows the user by the kernel's word, so roles and redaction hold. Every
//! user of the machine can open the port. The token, new with each start and printed on stdout alone, keeps them out.

mod call;
mod proxy;
mod server;
mod tools;

use std::convert::Infallible;
use std::future::pending;
use std::net::{Ipv4Addr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;

use divvy_api::client::Client;
use divvy_api::v1::{Error, ErrorCode};
use divvy_web::gate::{Gate, WebHost};
use divvy_web::token::Token;

use crate::args::Web;
use crate::call::signals::Signals;
use crate::output::{Stop, print, say, view};
use crate::render::{self, WebAddress};

/// Serves the page until Ctrl-C.
///
/// # Errors
/// When the port is taken, or stdout cannot be written.
pub async fn web(client: Client, args: Web) -> Result<ExitCode, Stop> {
    let mut signals = Signals::that_end()?;
    let listener = listen(args.port)?;
    let port = listener
        .local_addr()
        .map_err(|error| unusable(args.port, &error))?
        .port();
    let (token, text) = Token::random().map_err(|error| {
        let why = format!("cannot read random numbers from /dev/urandom: {error}");
        Error::new(ErrorCode::Internal, why)
    })?;
    let names = args
        .web_host
        .iter()
        .filter_map(|name| name.parse::<WebHost>().ok());
    let gate = Gate::of_port(port, names.collect());
    let address = WebAddress::new(port, text, args.allow_actions);
    print(render::list(
        &[address],
        args.read.output,
        view(),
        render::web_address,
    )?)?;
    let is_for_people = !args.read.output.is_json();
    if is_for_people {
        say(if args.allow_actions {
            "the page may change your jobs; Ctrl-C ends it"
        } else {
            "the page only shows; --allow-actions lets it change jobs; Ctrl-C ends it"
        });
    }
    let client = Arc::new(client);
    let proxy = proxy::Proxy::new(Arc::clone(&client), gate, token, args.allow_actions);
    tokio::select! {
        served = server::serve(listener, proxy) => Err(unusable(port, &served).into()),
        _ = signals.next() => Ok(ExitCode::SUCCESS),
        never = note_missing_daemon(&client), if is_for_people => match never {},
    }
}

/// Says once that no daemon answers, if so. A daemon that hangs delays no page.
async fn note_missing_daemon(client: &Client) -> Infallible {
    if let Err(error) = client.node().await {
        say(&format!(
            "{}; the page shows figures once a daemon answers",
            error.message
        ));
    }
    pending().await
}

fn listen(port: u16) -> Result<TcpListener, Error> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = listener.and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| unusable(port, &error))
}

fn unusable(port: u16, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::AddrInUse => ErrorCode::Conflict,
        std::io::ErrorKind::PermissionDenied => ErrorCode::NotAllowed,
        _ => ErrorCode::Internal,
    };
    let hint = match error.kind() {
        std::io::ErrorKind::AddrNotAvailable => "give the machine this address: ip link set lo up",
        _ => "leave out --port, and the system chooses a free one",
    };
    Error::new(code, format!("cannot listen on 127.0.0.1:{port}: {error}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn an_address_that_the_machine_lacks_has_another_hint_than_a_port_that_is_taken() {
        for (kind, hint) in [
            (ErrorKind::AddrInUse, "leave out --port"),
            (ErrorKind::AddrNotAvailable, "ip link set lo up"),
        ] {
            let error = unusable(7070, &Error::from(kind));
            assert!(error.hint.unwrap().contains(hint), "{kind}");
        }
    }
}
