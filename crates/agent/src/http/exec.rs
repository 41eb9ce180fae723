//! The route of exec sessions: the HTTP call is upgraded to a connection to the session.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use axum::Extension;
use axum::body::Body as HttpBody;
use axum::extract::{FromRequest as _, Request};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use divvy_api::frame::{Frame, PROTOCOL};
use divvy_api::v1::{self, Error, ErrorCode, ExecEnd};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{ApiError, Body, Path};
use super::budget::Bound;
use super::{Answer, Api, internal, list};
use crate::auth::Caller;
use crate::container::exec::{self as container, ContainerStart};
use crate::controller::mailbox::Message;
use crate::controller::{ExecEnvironment, ExecTarget};
use crate::exec::proxy::{AgentStdio, ClientStreams, client_streams, proxy_session, relay};
use crate::exec::{ExecReply, ExecRequest, client, terminal};
use crate::host::error::error_chain;
use crate::host::run_as::Identity;
use crate::model::validate;

/// Rows and columns of a terminal that does not say.
const USUAL: (u16, u16) = (24, 80);

pub async fn exec(
    api: Api,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let asks = request.headers().get(UPGRADE) == Some(&HeaderValue::from_static(PROTOCOL));
    let Body(exec) = Body::<v1::Exec>::from_request(request, &()).await?;
    check(&exec)?;
    let inside = api
        .mailbox
        .query(move |queries| queries.exec_target(&reference))
        .await?;
    let Some(upgrade) = upgrade.filter(|_| asks) else {
        let why = "`exec` requires an upgraded connection";
        let hint = format!("send the headers `Connection: Upgrade` and `Upgrade: {PROTOCOL}`");
        return Err(Error::new(ErrorCode::Usage, why).hint(hint).into());
    };
    let (told, said, mut ways) = client_streams();
    let guest = {
        let _permit = api.budget.take(Bound::Exec).await?;
        start_exec(&inside, &exec, &mut ways).await?
    };
    api.mailbox.post(Message::RecordEvent {
        job: inside.job,
        by: Box::new(caller.clone()),
        kind: "exec",
        text: entered(&exec, &caller),
    });
    tokio::spawn(async move {
        let seen_to = tokio::spawn(run_session(guest, ways));
        if let Ok(connection) = upgrade.await {
            relay(TokioIo::new(connection), told, said).await;
        } else {
            drop((told, said));
        }
        // It ends by itself: what it is told by is gone.
        let _ = seen_to.await;
    });
    let mut answer = Response::new(HttpBody::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(PROTOCOL));
    Ok(answer)
}

/// The program alone: what it is given may be secret.
fn entered(exec: &v1::Exec, caller: &Caller) -> String {
    let program = exec.command.first().map_or("", String::as_str);
    let program = validate::truncate_name(program);
    let account = &caller.account;
    format!("{program}, for {} (uid {})", account.name, account.uid)
}

fn check(exec: &v1::Exec) -> Result<(), Error> {
    let wrong = |why: &str, hint: &str| Err(Error::new(ErrorCode::Usage, why).hint(hint));
    if exec.command.first().is_none_or(String::is_empty) {
        return wrong("the command is empty", "give a program and its arguments");
    }
    if exec.command.iter().any(|word| word.contains('\0')) {
        return wrong(
            "an argument of the command contains a NUL byte",
            "remove it: arguments of programs cannot contain NUL bytes",
        );
    }
    let kind = exec.terminal.as_ref().and_then(|one| one.kind.as_deref());
    let is_name = |kind: &str| kind.bytes().all(|byte| byte.is_ascii_graphic());
    if kind.is_some_and(|kind| !is_name(kind)) {
        return wrong(
            "the terminal type is not a valid name",
            "use the value of TERM: xterm-256color",
        );
    }
    Ok(())
}

/// A program that has been started in a job, or why none was.
enum StartedExec {
    Process(UnixStream, AgentStdio),
    Container(container::ContainerExec),
    None(ExecEnd),
}

async fn run_session(guest: StartedExec, ways: ClientStreams) {
    match guest {
        StartedExec::Process(line, ours) => {
            if let Err(error) = proxy_session(line, ours, ways).await {
                tracing::warn!(%error, "lost the connection of an exec session");
            }
        }
        StartedExec::Container(guest) => guest.run(ways).await,
        // The client has hung up.
        StartedExec::None(end) => drop(ways.to_client.send(Frame::End(end)).await),
    }
}

async fn start_exec(
    inside: &ExecTarget,
    exec: &v1::Exec,
    _ways: &mut ClientStreams,
) -> Result<StartedExec, ApiError> {
    match &inside.environment {
        ExecEnvironment::Container { socket, name, user } => {
            let start = container::start(socket, name, user.as_deref(), exec).await?;
            Ok(match start {
                ContainerStart::Started(program) => StartedExec::Container(program),
                ContainerStart::Failed(end) => StartedExec::None(end),
            })
        }
        ExecEnvironment::Process { user } => {
            let (dir, exec, user) = (inside.dir.path().to_owned(), exec.clone(), user.clone());
            let called =
                tokio::task::spawn_blocking(move || call_supervisor(&dir, &exec, user.as_ref()));
            let called = called.await.map_err(|error| internal(&error))?;
            let (line, ours, word) = called.map_err(|error| unheard(inside, &error))?;
            Ok(match word {
                ExecReply::Refused { exit_code, message } => StartedExec::None(ExecEnd {
                    exit_code,
                    message: Some(message),
                }),
                _ => StartedExec::Process(line, ours),
            })
        }
    }
}

/// Calls the job's supervisor with fresh descriptors, and hears whether it has started the program.
fn call_supervisor(
    dir: &std::path::Path,
    exec: &v1::Exec,
    user: Option<&Identity>,
) -> io::Result<(UnixStream, AgentStdio, ExecReply)> {
    let (ours, theirs, kind) = match &exec.terminal {
        Some(wanted) => {
            let (rows, columns) = match (wanted.rows, wanted.columns) {
                (0, _) | (_, 0) => USUAL,
                size => size,
            };
            let (ours, theirs) = terminal::open(rows, columns)?;
            if let Some(user) = user {
                // So that what runs on it may open it by its name.
                let uid = rustix::fs::Uid::from_raw(user.uid);
                rustix::fs::fchown(&theirs, Some(uid), None)?;
            }
            let kind = wanted.kind.clone().unwrap_or_else(|| "dumb".to_owned());
            (AgentStdio::Terminal(ours), vec![theirs], Some(kind))
        }
        None => {
            let (their_input, input) = io::pipe()?;
            let (output, their_output) = io::pipe()?;
            let (errors, their_errors) = io::pipe()?;
            let ours = AgentStdio::Pipes {
                input: input.into(),
                output: output.into(),
                errors: errors.into(),
            };
            let theirs: Vec<OwnedFd> =
                vec![their_input.into(), their_output.into(), their_errors.into()];
            (ours, theirs, None)
        }
    };
    let theirs: Vec<_> = theirs.iter().map(|end| end.as_fd()).collect();
    let call = ExecRequest::Enter {
        command: exec.command.clone(),
        terminal: kind,
    };
    let line = client::send_request(dir, &call, &theirs)?;
    let word = client::read_reply(&line)?;
    Ok((line, ours, word))
}

/// The supervisor did not answer as it should.
fn unheard(inside: &ExecTarget, error: &io::Error) -> ApiError {
    let job = inside.job;
    let stopped = error.get_ref().and_then(|cause| cause.downcast_ref());
    let (why, hint) = match (stopped, error.kind()) {
        (Some(client::SupervisorStopped(pid)), _) => (
            format!("its supervisor, pid {pid}, is stopped (SIGSTOP)"),
            format!("kill -CONT {pid}"),
        ),
        (None, io::ErrorKind::WouldBlock | io::ErrorKind::NotFound) => (
            format!(
                "its supervisor has not responded for {} s",
                client::CONNECT_TIMEOUT.as_secs()
            ),
            format!("divvy describe {job}"),
        ),
        (None, _) => (
            format!("its supervisor refused the call: {}", error_chain(error)),
            format!("divvy describe {job}"),
        ),
    };
    let why = format!("cannot run programs in job {job} or send it signals: {why}");
    Error::new(ErrorCode::Conflict, why).hint(hint).into()
}

pub async fn signal(
    api: Api,
    Extension(caller): Extension<Caller>,
    Path(reference): Path<String>,
    Body(v1::SignalJob { signal }): Body<v1::SignalJob>,
) -> Answer<v1::Job> {
    let inside = api
        .mailbox
        .query(move |queries| queries.exec_target(&reference))
        .await?;
    if inside.runs_on_client && matches!(inside.environment, ExecEnvironment::Process { .. }) {
        let why = format!("job {} runs in the terminal of its client", inside.job);
        return Err(Error::new(ErrorCode::Conflict, why)
            .hint("press the key in that terminal")
            .into());
    }
    // Before the signal: the program may end at once, and the reason of its end names the user.
    let account = &caller.account;
    let whose = format!(
        "{} by {} (uid {})",
        signal.name(),
        account.name,
        account.uid
    );
    api.mailbox.post(Message::RecordEvent {
        job: inside.job,
        by: Box::new(caller.clone()),
        kind: "signalled",
        text: format!("{whose} through attach"),
    });
    match &inside.environment {
        ExecEnvironment::Container { socket, name, .. } => {
            container::signal(socket, name, signal).await?
        }
        ExecEnvironment::Process { .. } => {
            let _permit = api.budget.take(Bound::Exec).await?;
            let dir = inside.dir.path().to_owned();
            let call = ExecRequest::Signal {
                number: signal.number(),
            };
            let called = tokio::task::spawn_blocking(move || {
                client::send_request(&dir, &call, &[]).and_then(|line| client::read_reply(&line))
            });
            let called = called.await.map_err(|error| internal(&error))?;
            called.map_err(|error| unheard(&inside, &error))?;
        }
    }
    let reference = inside.job.to_string();
    let job = api.mailbox.query(move |queries| queries.job(&reference));
    list("JobList", vec![job.await?])
}
