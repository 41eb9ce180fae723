//! The front end to other queues, as a thread of the daemon that calls it over its socket.
//!
//! The daemon starts it once the socket accepts connections, and stops it before the server, so that it can still end its
//! jobs. If the front end ends by itself, the daemon ends too, because the user started both.

use std::fmt;
use std::io;
use std::thread;

use divvy_api::front_end::TellHolds;
use divvy_api::home::Home;
use divvy_api::v1::{Error, ErrorCode, FrontEnd};
use tokio::sync::oneshot;

use crate::http::withdraw::Withdraw;

/// What a front end does all the while.
pub type Work = Box<dyn FnOnce(&Home, u32, TellHolds) -> Result<(), Error> + Send>;

/// A front end.
pub struct FrontEndTask {
    /// What the node says of it.
    pub about: FrontEnd,
    /// The daemon's first line: what its tasks run in.
    pub notice: String,
    /// Works until the daemon stops it, or cannot work. It gets the daemon's home, the number of GPUs that the daemon
    /// serves, and the way to tell which parts of them other daemons' workers use.
    pub run: Work,
    /// Takes a job's task out of its queue.
    pub withdraw: Withdraw,
    /// Tells it to stop.
    pub stop: Box<dyn Fn() + Send>,
}

impl fmt::Debug for FrontEndTask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("FrontEndTask")
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

/// The front end while it runs, if there is one.
pub(super) struct RunningFrontEnd {
    stop: Option<Box<dyn Fn() + Send>>,
    /// `None` without a front end.
    ended: Option<oneshot::Receiver<Result<(), Error>>>,
}

impl RunningFrontEnd {
    /// Starts the front end on its own thread.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub(super) fn start(
        beside: Option<FrontEndTask>,
        home: &Home,
        gpus: u32,
        holds: TellHolds,
    ) -> io::Result<Self> {
        let Some(FrontEndTask {
            run, stop, about, ..
        }) = beside
        else {
            return Ok(Self {
                stop: None,
                ended: None,
            });
        };
        let (done, ended) = oneshot::channel();
        let home = home.clone();
        let work = move || drop(done.send(run(&home, gpus, holds)));
        thread::Builder::new().name(about.kind).spawn(work)?;
        Ok(Self {
            stop: Some(stop),
            ended: Some(ended),
        })
    }

    /// Returns when it ends by itself; never where there is none.
    pub(super) async fn ended(&mut self) -> Result<(), Error> {
        let Some(ended) = &mut self.ended else {
            return std::future::pending().await;
        };
        match ended.await {
            Ok(ended) => ended,
            Err(_) => Err(Error::new(
                ErrorCode::Internal,
                "the front end stopped because of an internal error; see the log",
            )),
        }
    }

    /// Tells it to stop and waits until it has.
    ///
    /// # Errors
    /// What it says on leaving.
    pub(super) async fn stopped(&mut self) -> Result<(), Error> {
        match self.stop.take() {
            None => Ok(()),
            Some(stop) => {
                stop();
                self.ended().await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    use super::*;

    fn about() -> FrontEnd {
        FrontEnd {
            kind: "test".into(),
            worker: "node1:gpu0".into(),
            server: "http://server".into(),
            queues: Vec::new(),
        }
    }

    fn home() -> Home {
        Home::under("/nonexistent").unwrap()
    }

    #[tokio::test(flavor = "current_thread")]
    async fn one_that_is_told_to_stop_is_waited_for() {
        let (stop, told) = channel();
        let (stop, told) = (Mutex::new(stop), Mutex::new(told));
        let beside = FrontEndTask {
            about: about(),
            notice: String::new(),
            withdraw: std::sync::Arc::new(|_| ()),
            run: Box::new(move |_, gpus, _| {
                told.lock().unwrap().recv().unwrap();
                Err(Error::new(ErrorCode::Conflict, format!("{gpus} GPUs")))
            }),
            stop: Box::new(move || stop.lock().unwrap().send(()).unwrap()),
        };
        let mut working = RunningFrontEnd::start(Some(beside), &home(), 3, Box::new(drop)).unwrap();
        assert_eq!(working.stopped().await.unwrap_err().message, "3 GPUs");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn where_there_is_none_nothing_is_waited_for() {
        let mut working = RunningFrontEnd::start(None, &home(), 1, Box::new(drop)).unwrap();
        assert!(working.stopped().await.is_ok());
        let waited = tokio::time::timeout(std::time::Duration::ZERO, working.ended());
        assert!(waited.await.is_err(), "nobody has ended");
    }
}
