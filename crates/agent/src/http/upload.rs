//! Request bodies: their time limits, and the byte budget of each user for bodies that the daemon holds at once.
//!
//! A request reserves its body's whole length before any of it is read, and keeps it until it is answered. Where the
//! user's others hold too much of the budget it waits for a while, in which its bytes stay in the socket, and is
//! refused then.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use divvy_api::sync::lock;
use divvy_api::v1::{Error, ErrorCode};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};

use super::body::ApiError;
use crate::host::error::error_chain;
use crate::host::user_permits::{UserPermit, UserSemaphores};

/// Bytes of a call that brings a command and an environment. Linux takes 2 MiB of them by default, and JSON writes some
/// of their bytes as six.
pub const LARGE: usize = 8 << 20;

/// Bytes of any other call.
pub const SMALL: usize = 1 << 20;

/// Bytes of one user's calls at once: eight of the largest. So half would refuse two large calls at once, and double
/// for each of 100 users would fill a machine (024).
const BUDGET: usize = 64 << 20;

/// The same for root and the daemon's own user, which can stop the daemon anyway. So eight times that of a user, for
/// front ends that submit for all.
const OWN_BUDGET: usize = 512 << 20;

/// How long a body may take.
#[derive(Clone, Copy, Debug)]
struct UploadTimeouts {
    /// Without a byte of it.
    silence: Duration,
    /// As a whole.
    whole: Duration,
    /// For the user's other calls to make room.
    room: Duration,
}

/// Two minutes let the largest body through at 70 kB/s.
const PACE: UploadTimeouts = UploadTimeouts {
    silence: Duration::from_secs(10),
    whole: Duration::from_secs(120),
    room: Duration::from_secs(10),
};

/// The byte budgets of the users with calls that have a body: a permit for each byte.
pub struct Uploads {
    shares: Arc<UserSemaphores>,
    /// The daemon's own user.
    me: u32,
    pace: UploadTimeouts,
}

impl Uploads {
    pub fn new(me: u32) -> Arc<Self> {
        Arc::new(Self {
            shares: Arc::default(),
            me,
            pace: PACE,
        })
    }

    /// The body of one call of this user, which is not read yet.
    pub fn of(self: &Arc<Self>, user: u32) -> Upload {
        Upload(Arc::new(HeldPermits {
            uploads: Arc::clone(self),
            user,
            bytes: Mutex::default(),
        }))
    }

    fn budget(&self, user: u32) -> usize {
        match user == 0 || user == self.me {
            true => OWN_BUDGET,
            false => BUDGET,
        }
    }
}

/// A call's body. Its bytes are the user's until the last copy of this is dropped.
#[derive(Clone)]
pub struct Upload(Arc<HeldPermits>);

struct HeldPermits {
    uploads: Arc<Uploads>,
    user: u32,
    bytes: Mutex<Option<UserPermit>>,
}

impl Upload {
    /// Reads a body of at most so many bytes.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`] for one that is larger or breaks off, [`ErrorCode::TimedOut`] for one that does not come,
    /// [`ErrorCode::TooMany`] where the user's other calls hold too much.
    pub async fn read(&self, mut body: Body, most: usize) -> Result<Bytes, ApiError> {
        let pace = self.0.uploads.pace;
        // Without a length it may become as long as it may be.
        let length = body.size_hint().upper();
        let length = length.map_or(most, |length| usize::try_from(length).unwrap_or(usize::MAX));
        if length > most {
            return Err(too_large(length, most));
        }
        if length == 0 {
            return Ok(Bytes::new());
        }
        self.reserve(length, pace.room).await?;
        let begun = Instant::now();
        let mut bytes = Vec::with_capacity(length);
        loop {
            let until = (begun + pace.whole).min(Instant::now() + pace.silence);
            let Ok(frame) = timeout_at(until, body.frame()).await else {
                return Err(late(bytes.len(), length, begun.elapsed()));
            };
            let Some(frame) = frame else {
                return Ok(bytes.into());
            };
            let frame = frame.map_err(|error| {
                let why = format!("the request's body ended early: {}", error_chain(&error));
                Error::new(ErrorCode::Usage, why)
            })?;
            let data = frame.into_data().unwrap_or_default();
            if bytes.len() + data.len() > most {
                return Err(too_large(bytes.len() + data.len(), most));
            }
            bytes.extend_from_slice(&data);
        }
    }

    async fn reserve(&self, length: usize, patience: Duration) -> Result<(), ApiError> {
        let HeldPermits {
            uploads,
            user,
            bytes,
        } = &*self.0;
        let budget = uploads.budget(*user);
        let permits = u32::try_from(length).unwrap_or(u32::MAX);
        let taken = uploads.shares.take(*user, (permits, budget), patience);
        let Some(room) = taken.await else {
            let why = format!(
                "too many bytes in open calls: this call has {length} B, and uid {user} may have {} MiB in unanswered \
                 calls",
                budget >> 20
            );
            let hint = format!(
                "send calls one after another; `pgrep -u {user} -a divvy` lists running clients"
            );
            return Err(Error::new(ErrorCode::TooMany, why).hint(hint).into());
        };
        *lock(bytes) = Some(room);
        Ok(())
    }
}

fn too_large(length: usize, most: usize) -> ApiError {
    let why = format!("the request's body has {length} bytes, but the limit is {most}");
    let hint = "put large data into a file, and pass its path in the command";
    Error::new(ErrorCode::Usage, why).hint(hint).into()
}

fn late(came: usize, length: usize, waited: Duration) -> ApiError {
    let why = format!(
        "the request's body did not arrive in time: {came} of at most {length} bytes in {} s",
        waited.as_secs()
    );
    Error::new(ErrorCode::TimedOut, why)
        .hint("send the whole body without a pause")
        .into()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse as _;
    use divvy_testkit::PATIENCE;
    use http_body_util::channel::{Channel, Sender};
    use tokio::time::timeout;

    use super::*;

    const USER: u32 = 1000;

    fn hasty(pace: UploadTimeouts) -> Arc<Uploads> {
        Arc::new(Uploads {
            shares: Arc::default(),
            me: 1,
            pace,
        })
    }

    fn body() -> (Sender<Bytes, Infallible>, Body) {
        let (sender, body) = Channel::new(1);
        (sender, Body::new(body))
    }

    fn status<T>(refused: Result<T, ApiError>) -> u16 {
        let refused = refused.err().expect("it is refused");
        refused.into_response().status().as_u16()
    }

    #[tokio::test]
    async fn a_body_that_does_not_come_is_given_up_and_a_slow_one_is_not() {
        let pace = UploadTimeouts {
            silence: PATIENCE,
            whole: PATIENCE,
            room: PATIENCE,
        };
        let moment = Duration::from_millis(200);
        let uploads = hasty(UploadTimeouts {
            silence: moment,
            ..pace
        });
        // Its client keeps the connection and is silent.
        let (_silent, stalled) = body();
        assert_eq!(status(uploads.of(USER).read(stalled, SMALL).await), 408);
        // A byte now and then, for longer than it may be silent.
        let uploads = hasty(UploadTimeouts {
            silence: moment * 5,
            ..pace
        });
        let (mut sender, slow) = body();
        let send = tokio::spawn(async move {
            for _ in 0..6 {
                tokio::time::sleep(moment).await;
                sender.send_data(Bytes::from_static(b" ")).await.unwrap();
            }
        });
        let read = uploads.of(USER).read(slow, SMALL).await.unwrap();
        send.await.unwrap();
        assert_eq!(read.len(), 6);
        // For ever.
        let uploads = hasty(UploadTimeouts {
            whole: moment,
            ..pace
        });
        let (mut sender, endless) = body();
        let send = tokio::spawn(async move {
            while sender.send_data(Bytes::from_static(b" ")).await.is_ok() {
                tokio::time::sleep(moment / 10).await;
            }
        });
        assert_eq!(status(uploads.of(USER).read(endless, SMALL).await), 408);
        send.abort();
    }

    #[tokio::test]
    async fn one_users_unanswered_calls_hold_the_budget_and_no_more_and_others_have_their_own() {
        let uploads = hasty(UploadTimeouts {
            room: Duration::from_millis(50),
            ..PACE
        });
        let full = || Body::from(vec![b' '; LARGE]);
        let mut answered = Vec::new();
        for _ in 0..BUDGET / LARGE {
            let upload = uploads.of(USER);
            upload.read(full(), LARGE).await.unwrap();
            answered.push(upload);
        }
        assert_eq!(status(uploads.of(USER).read(full(), LARGE).await), 429);
        assert_eq!(status(uploads.of(USER).read(" ".into(), LARGE).await), 429);
        uploads.of(USER + 1).read(full(), LARGE).await.unwrap();
        uploads.of(0).read(full(), LARGE).await.unwrap();
        // One of them is answered while another waits.
        let next = uploads.of(USER);
        let answer = async { drop(answered.pop()) };
        let (read, ()) = tokio::join!(next.read(full(), LARGE), answer);
        read.unwrap();
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_user_whose_calls_are_answered() {
        let uploads = hasty(PACE);
        let upload = uploads.of(USER);
        upload.read("{}".into(), SMALL).await.unwrap();
        assert_eq!(uploads.shares.users(), 1);
        drop(upload);
        assert_eq!(uploads.shares.users(), 0);
    }

    #[tokio::test]
    async fn a_body_that_is_too_large_is_refused_by_its_length_or_where_it_becomes_so() {
        let uploads = hasty(PACE);
        let known = Body::from(vec![b' '; SMALL + 1]);
        assert_eq!(status(uploads.of(USER).read(known, SMALL).await), 400);
        let (mut sender, unknown) = body();
        let send = tokio::spawn(async move {
            let piece = Bytes::from(vec![b' '; SMALL / 2 + 1]);
            while sender.send_data(piece.clone()).await.is_ok() {}
        });
        let read = uploads.of(USER);
        assert_eq!(status(read.read(unknown, SMALL).await), 400);
        let told = timeout(PATIENCE, send).await;
        told.expect("its client is told").unwrap();
    }
}
