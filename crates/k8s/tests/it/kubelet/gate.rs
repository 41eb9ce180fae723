//! The way from the driver to the agent, which a test may close: what goes through it is held before the agent has heard it,
//! or before the driver has heard the answer, until the gate is opened or the driver hangs up.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Where a call is held for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Before,
    After,
}

pub struct Gate {
    pub socket: PathBuf,
    cut: Arc<Mutex<Option<(&'static str, Cut)>>>,
    held: watch::Sender<bool>,
    open: watch::Sender<u64>,
    is_away: Arc<AtomicBool>,
    /// How often somebody found nobody.
    missed: watch::Sender<u64>,
    listening: JoinHandle<()>,
}

impl Gate {
    /// From a socket in `folder` to the agent's, which may be away.
    pub fn new(folder: &Path, agent: &Path) -> Self {
        let socket = folder.join("gate.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let cut = Arc::new(Mutex::new(None));
        let (held, _) = watch::channel(false);
        let (open, _) = watch::channel(0);
        let (is_away, missed) = (Arc::new(AtomicBool::new(false)), watch::Sender::new(0));
        let listening = tokio::spawn({
            let (cut, held, agent) = (Arc::clone(&cut), held.clone(), agent.to_owned());
            let open = open.clone();
            let (is_away, missed) = (Arc::clone(&is_away), missed.clone());
            async move {
                loop {
                    let (driver, _) = listener.accept().await.unwrap();
                    if is_away.load(Ordering::SeqCst) {
                        drop(driver);
                        missed.send_modify(|times| *times += 1);
                        continue;
                    }
                    let (cut, held, agent) = (Arc::clone(&cut), held.clone(), agent.clone());
                    let opened = open.subscribe();
                    tokio::spawn(async move {
                        // Nobody there: the driver's connection is closed at once.
                        if let Ok(agent) = UnixStream::connect(&agent).await {
                            pass(driver, agent, &cut, &held, opened).await;
                        }
                    });
                }
            }
        });
        Self {
            socket,
            cut,
            held,
            open,
            is_away,
            missed,
            listening,
        }
    }

    /// From now on, or no longer, who calls finds nobody here.
    pub fn is_away(&self, is: bool) {
        self.is_away.store(is, Ordering::SeqCst);
    }

    /// Waits until another call has found nobody.
    pub async fn missed(&self) {
        self.missed.subscribe().changed().await.unwrap();
    }

    /// Holds the next call that begins like this: `PUT /v1/claims/`.
    pub fn close(&self, call: &'static str, cut: Cut) {
        *self.cut.lock().unwrap() = Some((call, cut));
        self.held.send_replace(false);
    }

    /// Lets go on what is held.
    pub fn open(&self) {
        self.open.send_modify(|times| *times += 1);
    }

    /// Waits until a call is held.
    pub async fn held(&self) {
        let mut held = self.held.subscribe();
        held.wait_for(|held| *held).await.unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Bytes both ways, until either side is done.
async fn pass(
    mut driver: UnixStream,
    mut agent: UnixStream,
    cut: &Mutex<Option<(&'static str, Cut)>>,
    held: &watch::Sender<bool>,
    mut opened: watch::Receiver<u64>,
) {
    let (mut said, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut holds_answer = false;
    loop {
        tokio::select! {
            read = driver.read(&mut said) => {
                let Ok(count @ 1..) = read else { return };
                let is_it = |(call, _): &mut (&str, Cut)| said[..count].starts_with(call.as_bytes());
                let taken = cut.lock().unwrap().take_if(is_it);
                match taken {
                    Some((_, Cut::Before)) if !hold(&driver, held, &mut opened).await => return,
                    Some((_, Cut::After)) => holds_answer = true,
                    _ => {}
                }
                if agent.write_all(&said[..count]).await.is_err() {
                    return;
                }
            }
            read = agent.read(&mut answered) => {
                let Ok(count @ 1..) = read else { return };
                if std::mem::take(&mut holds_answer) && !hold(&driver, held, &mut opened).await {
                    return;
                }
                if driver.write_all(&answered[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Keeps the driver waiting; false where it has hung up.
async fn hold(
    driver: &UnixStream,
    held: &watch::Sender<bool>,
    opened: &mut watch::Receiver<u64>,
) -> bool {
    opened.mark_unchanged();
    held.send_replace(true);
    tokio::select! {
        _ = opened.changed() => true,
        // A driver that waits says nothing more: what can be read is its end.
        _ = driver.readable() => false,
    }
}
