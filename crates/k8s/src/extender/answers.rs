//! The thread of the answers. The watches read lists of thousands of objects in the main thread; the scheduler waits for
//! each answer meanwhile, so that answers have a thread of their own.

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::{oneshot, watch};

use super::{Extender, ExtenderError};
use crate::base::server::{ServingCert, serve};

/// Serves until `closed`; the receiver gets the end, and nothing after a panic.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    door: TcpListener,
    shown: Option<Arc<ServingCert>>,
    extender: Arc<Extender>,
    closed: watch::Receiver<bool>,
) -> io::Result<oneshot::Receiver<Result<(), ExtenderError>>> {
    // A listener belongs to the runtime that it was made in.
    let door = door.into_std()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (send, ended) = oneshot::channel();
    let answers = move || {
        let served = runtime.block_on(async {
            let door = TcpListener::from_std(door).map_err(ExtenderError::Answers)?;
            Ok(serve(door, shown, extender, closed).await?)
        });
        // Err says that the main thread has ended.
        let _ = send.send(served);
    };
    thread::Builder::new()
        .name("answers".to_owned())
        .spawn(answers)?;
    Ok(ended)
}
