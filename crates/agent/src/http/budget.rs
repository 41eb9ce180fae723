//! Concurrency limits per user (budgets): how many calls of one user may use what all users share, at once.
//! `docs/admin.md` has the table, decision 048 the reasons.
//!
//! ```text
//! call ─► gate: answer or stream? ─► handler ─► turn of the controller ─► thread ─► answer, in pieces
//!         └─ permit, until the client has read the answer ───────────────────────────────────────────┘
//! ```
//! A call beyond its user's bound waits, and is refused (429) where the user's other calls take too long.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use divvy_api::v1::{Error, ErrorCode};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Semaphore;

use super::body::ApiError;
use super::internal;
use crate::host::user_permits::{UserPermit, UserSemaphores};

/// What a call holds a permit of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// An answer that grows with the jobs, until its client has read it.
    Answer,
    /// A stream of events or boards, until it ends.
    Stream,
    /// A thread that reads the journal or a file for a call.
    Thread,
    /// Work of seconds on a thread.
    Turn,
    /// A program or a signal on its way to a job's supervisor.
    Exec,
}

/// Longer than the answers of an ordinary user's other calls take, and shorter than the 10 s after which clients take
/// the daemon for hung.
const PATIENCE: Duration = Duration::from_secs(8);

impl Bound {
    pub const ALL: [Self; 5] = [
        Self::Answer,
        Self::Stream,
        Self::Thread,
        Self::Turn,
        Self::Exec,
    ];

    /// Permits of one user. The threads of 64 users that use all of theirs are the 512 of the pool.
    pub fn most(self) -> usize {
        match self {
            Self::Answer | Self::Thread => 4,
            Self::Stream => 32,
            // Two are worked out at once for all users.
            Self::Turn => 1,
            Self::Exec => 4,
        }
    }

    /// How long a call waits for a permit.
    fn patience(self) -> Duration {
        match self {
            // A stream may go on for days.
            Self::Stream => Duration::ZERO,
            _ => PATIENCE,
        }
    }

    /// What the permits are for.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answer => "unread answers",
            Self::Stream => "streams",
            Self::Thread => "reads of the journal and of logs",
            Self::Turn => "answers that take seconds",
            Self::Exec => "programs and signals for running jobs",
        }
    }

    fn refuse(self, user: u32) -> ApiError {
        let (most, name) = (self.most(), self.name());
        let why = match self.patience().as_secs() {
            0 => format!("too many {name}: uid {user} has {most} open, which is the limit"),
            seconds => format!(
                "too many {name}: uid {user} has had {most} for {seconds} s, which is the limit"
            ),
        };
        let hint = match self {
            Self::Answer => "read the other answers to their end, or close their connections",
            Self::Stream => "end some viewers, or ask without `follow`",
            Self::Thread | Self::Turn | Self::Exec => {
                "call again when the other calls are answered"
            }
        };
        Error::new(ErrorCode::TooMany, why).hint(hint).into()
    }

    /// What a call of this method, path and query holds from the gate on. The daemon's size bounds other answers.
    pub fn of_call(method: &str, path: &str, query: Option<&str>) -> Option<Self> {
        match (method, path) {
            ("PATCH", "/v1/jobs") => return Some(Self::Answer),
            ("GET" | "HEAD", _) => {}
            _ => return None,
        }
        let follows = query.is_some_and(|query| query.split('&').any(|one| one == "follow=true"));
        match path {
            "/v1/events" | "/v1/board" if follows => Some(Self::Stream),
            "/v1/jobs" | "/v1/events" | "/v1/claims" | "/v1/history" | "/v1/usage"
            | "/v1/advice" | "/metrics" => Some(Self::Answer),
            // The array's jobs, or one job with the jobs before it.
            _ => {
                let job = crate::auth::verb::job(path)?;
                matches!(job.rest, "" | "/why" | "/oom").then_some(Self::Answer)
            }
        }
    }
}

/// The permits of all users.
#[derive(Debug, Default)]
pub struct Budgets {
    permits: [Arc<UserSemaphores>; Bound::ALL.len()],
}

/// The budget of one user.
#[derive(Clone, Debug)]
pub struct Budget {
    all: Arc<Budgets>,
    user: u32,
}

impl Budget {
    pub fn of(all: &Arc<Budgets>, user: u32) -> Self {
        let all = Arc::clone(all);
        Self { all, user }
    }

    /// The same permits for another user.
    pub fn for_user(&self, user: u32) -> Self {
        Self::of(&self.all, user)
    }

    /// A permit, kept until it is dropped.
    ///
    /// # Errors
    /// [`ErrorCode::TooMany`] where the user's other calls hold all of them for too long.
    pub async fn take(&self, bound: Bound) -> Result<UserPermit, ApiError> {
        let taken = self.take_within(bound, bound.patience()).await;
        taken.ok_or_else(|| bound.refuse(self.user))
    }

    async fn take_within(&self, bound: Bound, patience: Duration) -> Option<UserPermit> {
        let permits = &self.all.permits[bound as usize];
        permits.take(self.user, (1, bound.most()), patience).await
    }

    /// Runs work that takes too long for the thread that other requests share.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.take(Bound::Thread).await?;
        run_holding(permit, work).await
    }

    /// The same for a stream, which waits for a thread for as long as it takes.
    ///
    /// # Errors
    /// When the work panics.
    pub async fn run_whenever<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.take_within(Bound::Thread, Duration::MAX).await;
        run_holding(permit, work).await
    }

    /// Runs work that takes seconds, one for each user, and so many for all users as `turns` has. The work holds its
    /// turn until it is done, even if its client has gone.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub async fn run_in_turn<T: Send + 'static>(
        &self,
        turns: &'static Semaphore,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = self.turn(turns).await?;
        run_holding(turn, work).await
    }

    /// A turn for such work.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub async fn turn(&self, turns: &'static Semaphore) -> Result<Turn, ApiError> {
        let own = self.take(Bound::Turn).await?;
        // Each user has one place in this queue, and it is never closed.
        let common = turns.acquire().await.map_err(|error| internal(&error))?;
        Ok(Turn {
            _own: own,
            _common: common,
        })
    }
}

/// A turn for work that takes seconds, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _own: UserPermit,
    _common: tokio::sync::SemaphorePermit<'static>,
}

async fn run_holding<T: Send + 'static>(
    permit: impl Send + 'static,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work()
    });
    done.await.map_err(|error| internal(&error))
}

/// The same answer, which keeps its permit until the client has read all but the last 80 KiB.
pub fn until_read(permit: UserPermit, answer: Response) -> Response {
    answer.map(|body| {
        Body::new(MeteredBody {
            body,
            left: Bytes::new(),
            _permit: permit,
        })
    })
}

/// Bytes of a frame. hyper asks for the next frame while less than 64 KiB wait for the socket.
const FRAME: usize = 16 << 10;

/// A body in small frames: hyper takes whole frames, and lets the body go with the last.
struct MeteredBody {
    body: Body,
    /// The rest of the body's frame.
    left: Bytes,
    _permit: UserPermit,
}

impl HttpBody for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.left.is_empty() {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)?) else {
                return Poll::Ready(None);
            };
            match frame.into_data() {
                Ok(data) => self.left = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let length = self.left.len().min(FRAME);
        // A copy: a part of the whole would keep the whole.
        let piece = Bytes::copy_from_slice(&self.left.split_to(length));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (left, rest) = (self.left.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + left);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + left);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;
    use divvy_api::route::ROUTES;
    use http_body_util::BodyExt as _;

    use super::*;

    const ANA: u32 = 1000;

    /// Written down apart from the code: an answer that grows with the jobs, and is none of these, has no budget.
    const ANSWERS: &[&str] = &[
        "GET /v1/advice",
        "GET /v1/claims",
        "GET /v1/events",
        "GET /v1/history",
        "GET /v1/jobs",
        "GET /v1/jobs/{job}",
        "GET /v1/jobs/{job}/oom",
        "GET /v1/jobs/{job}/why",
        "GET /v1/usage",
        "PATCH /v1/jobs",
    ];

    #[test]
    fn every_route_has_the_bound_of_its_answer() {
        let bound = |method: &str, path: &str, query| {
            let path = path.replace("{job}", "7").replace("{gpu}", "0");
            Bound::of_call(method, &path, query)
        };
        for route in ROUTES {
            let name = format!("{} {}", route.method, route.path);
            let expected = ANSWERS.contains(&name.as_str()).then_some(Bound::Answer);
            assert_eq!(bound(route.method, route.path, None), expected, "{name}");
            let stream = matches!(route.path, "/v1/events" | "/v1/board");
            let expected = if stream {
                Some(Bound::Stream)
            } else {
                expected
            };
            let query = Some("after=3&follow=true");
            assert_eq!(bound(route.method, route.path, query), expected, "{name}");
        }
        assert_eq!(bound("HEAD", "/metrics", None), Some(Bound::Answer));
        assert!(ANSWERS.iter().all(|name| {
            let mut routes = ROUTES.iter();
            routes.any(|route| format!("{} {}", route.method, route.path) == **name)
        }));
    }

    #[test]
    fn the_page_for_administrators_has_each_bound() {
        let page = include_str!("../../../../docs/admin.md");
        for bound in Bound::ALL {
            let row = format!("| {} | {} |", bound.name(), bound.most());
            assert!(page.contains(&row), "{row}");
        }
    }

    #[tokio::test]
    async fn a_user_at_its_bound_waits_or_is_refused_and_no_other_user_is() {
        let all = Arc::default();
        let (ana, bo) = (Budget::of(&all, ANA), Budget::of(&all, ANA + 1));
        for bound in Bound::ALL {
            let mut held = Vec::new();
            for _ in 0..bound.most() {
                held.push(ana.take(bound).await.unwrap());
            }
            let moment = Duration::from_millis(20);
            assert!(ana.take_within(bound, moment).await.is_none(), "{bound:?}");
            let refused = bound.refuse(ANA).into_response();
            assert_eq!(refused.status().as_u16(), 429);
            bo.take(bound).await.unwrap();
            if bound.patience() > Duration::ZERO {
                let (waited, ()) = tokio::join!(ana.take(bound), async { drop(held.pop()) });
                waited.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn an_answer_is_the_same_in_frames_and_keeps_its_permit_until_the_last() {
        let ana = Budget::of(&Arc::default(), ANA);
        let permit = ana.take(Bound::Answer).await.unwrap();
        let bytes: Vec<u8> = (0..200_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        let answer = until_read(permit, Response::new(Body::from(bytes.clone())));
        let mut body = answer.into_body();
        assert_eq!(body.size_hint().exact(), Some(200_000));
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let data = frame.unwrap().into_data().unwrap();
            assert!(data.len() <= FRAME);
            read.extend_from_slice(&data);
            assert_eq!(
                body.size_hint().exact(),
                Some((200_000 - read.len()) as u64)
            );
            assert_eq!(ana.all.permits[Bound::Answer as usize].users(), 1);
        }
        assert_eq!(read, bytes);
        drop(body);
        assert_eq!(ana.all.permits[Bound::Answer as usize].users(), 0);
    }

    #[tokio::test]
    async fn one_users_work_of_seconds_leaves_the_turn_to_another_user() {
        static TURNS: Semaphore = Semaphore::const_new(2);
        let all = Arc::default();
        let (ana, bo) = (Budget::of(&all, ANA), Budget::of(&all, ANA + 1));
        let first = ana.turn(&TURNS).await.unwrap();
        let budget = ana.clone();
        let second = tokio::spawn(async move { budget.turn(&TURNS).await.map(drop) });
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(bo.turn(&TURNS).await.unwrap());
        drop(first);
        second.await.unwrap().unwrap();
    }
}
