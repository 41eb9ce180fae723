//! API state that the routes share: the handles of the daemon, the peer of a connection, and the shape of a list.

use std::sync::{Arc, Mutex};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, List};
use divvy_web::connections::TcpConn;
use divvy_web::gate::Gate;
use tokio::sync::{Semaphore, broadcast};

use crate::auth::{Caller, Rules};
use crate::controller::mailbox::Mailbox;
use crate::controller::reload::Reloader;
use crate::gpu::Observer;
use crate::history::History;
use crate::host::account::UserAccount;
use crate::host::error::error_chain;
use crate::host::live::Live;
use crate::host::process::Process;
use crate::http::board::Boards;
use crate::http::body::{ApiError, Body};
use crate::http::budget::Budget;
use crate::http::job_list::KeptMatches;
use crate::http::token::Token;
use crate::http::withdraw::Withdraw;
use crate::model::event::JobEvent;
use crate::model::usage::GpuTimeTotals;

/// So many answers that take seconds are worked out at once: the machine is its jobs'.
pub(super) static HEAVY: Semaphore = Semaphore::const_new(2);

/// What handlers share. A handler has the mailbox and the budget of its caller.
#[derive(Clone)]
pub struct Api {
    pub mailbox: Mailbox,
    pub budget: Budget,
    pub events: broadcast::Sender<Arc<JobEvent>>,
    pub home: Arc<Home>,
    pub observer: Arc<Observer>,
    pub history: Arc<History>,
    pub rules: Live<Rules>,
    /// The daemon's own user.
    pub me: UserAccount,
    /// The bearer token that allows calls over TCP.
    pub token: Option<Token>,
    /// The rules for requests over TCP.
    pub gate: Arc<Gate>,
    /// Why the TCP address is not served.
    pub listen_error: Live<Option<String>>,
    pub reloader: Arc<Reloader>,
    /// GPU time of users and projects, as the metrics last showed it.
    pub gpu_time: Arc<Mutex<GpuTimeTotals>>,
    pub boards: Arc<Boards>,
    pub matches: Arc<KeptMatches>,
    /// Where a front end takes its tasks out of the other system's queues.
    pub front_end: Option<Withdraw>,
}

impl Api {
    /// The same for the calls of a user.
    pub(super) fn of(&self, user: u32) -> Self {
        Self {
            mailbox: self.mailbox.of(user),
            budget: self.budget.for_user(user),
            ..self.clone()
        }
    }
}

impl FromRequestParts<Api> for Api {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let Some(caller) = parts.extensions.get::<Caller>() else {
            return Err(internal(&std::io::Error::other(
                "the request was not authenticated",
            )));
        };
        Ok(api.of(caller.account.uid))
    }
}

/// The user at the other end of a connection, from the kernel's peer credentials.
#[derive(Clone)]
pub(super) enum Peer {
    Local {
        uid: u32,
        gid: u32,
        /// `None` for a process in a PID namespace that this one does not see.
        pid: Option<u32>,
    },
    /// It came over TCP, and has to say it with a token.
    Token(TcpConn),
    Unknown,
}

impl Peer {
    /// The process that has opened the connection; `None` where the daemon does not see it.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] once it has ended.
    pub(super) fn process(&self) -> Result<Option<Process>, Error> {
        let Self::Local { pid: Some(pid), .. } = self else {
            return Ok(None);
        };
        let ended = || {
            let why =
                format!("the client, process {pid}, has ended, and the job would end with it");
            Error::new(ErrorCode::NotFound, why).hint("submit the job without `with_client`")
        };
        Process::with_pid(*pid).ok_or_else(ended).map(Some)
    }
}

pub(super) type Answer<T> = Result<Body<List<T>>, ApiError>;

pub(super) fn list<T>(kind: &str, items: Vec<T>) -> Answer<T> {
    Ok(Body(List::new(kind, items)))
}

pub(super) fn internal(error: &dyn std::error::Error) -> ApiError {
    Error::new(ErrorCode::Internal, error_chain(error)).into()
}
