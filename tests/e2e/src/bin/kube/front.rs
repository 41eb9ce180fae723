//! One address for several replicas, as a Service is: connections go to them in turn, and past those that accept none.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

pub struct Front {
    address: (String, u16),
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    /// Listens at this port, for replicas at those ports of the same address.
    pub fn open(address: &str, port: u16, replicas: [u16; 2]) -> Result<Self> {
        let place = (address.to_owned(), port);
        let listener = TcpListener::bind((address, port))
            .with_context(|| format!("listen at {address}:{port}"))?;
        let closed = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&closed);
        let host = place.0.clone();
        let thread = thread::spawn(move || {
            for (turn, client) in listener.incoming().enumerate() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(client) = client else { continue };
                let order = [replicas[turn % 2], replicas[(turn + 1) % 2]];
                let replica = order
                    .iter()
                    .find_map(|port| TcpStream::connect((host.as_str(), *port)).ok());
                if let Some(replica) = replica {
                    // A client whose connection breaks sees that itself.
                    let _ = join(client, replica);
                }
            }
        });
        Ok(Self {
            address: place,
            closed,
            thread: Some(thread),
        })
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        // The listener looks at the flag when the next client comes.
        let woken = TcpStream::connect((self.address.0.as_str(), self.address.1));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Copies both ways until one side ends.
fn join(client: TcpStream, replica: TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    replica.set_nodelay(true)?;
    for (mut from, mut to) in [
        (client.try_clone()?, replica.try_clone()?),
        (replica, client),
    ] {
        thread::spawn(move || {
            // However it ended, neither side has more to say.
            let _ = io::copy(&mut from, &mut to);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
    Ok(())
}
