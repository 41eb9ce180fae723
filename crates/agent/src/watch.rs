//! Says which job's folder has a new record, so that nobody polls jobs one by one.
//!
//! One inotify instance watches the record of every job that is starting or running, and a thread turns its events into
//! job ids. It only ever says "look again": a lost event costs time (the cycle looks by itself now and then), not truth.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use divvy_core::JobId;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};

use crate::records::RECORD;

/// The records that are watched.
#[derive(Debug)]
pub struct Watch {
    inotify: Arc<OwnedFd>,
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    job_of: HashMap<i32, JobId>,
    watch_of: HashMap<JobId, i32>,
}

impl Watch {
    /// Starts the thread; it calls `changed` with the job to look at, or with `None` when events were lost: look at all.
    ///
    /// # Errors
    /// When the user's inotify instances are used up (`fs.inotify.max_user_instances`).
    pub fn start(changed: impl Fn(Option<JobId>) + Send + 'static) -> io::Result<Self> {
        let inotify = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
        let table = Arc::new(Mutex::new(Table::default()));
        let watch = Self {
            inotify: Arc::clone(&inotify),
            table: Arc::clone(&table),
        };
        let listen = move || {
            let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
            let mut reader = inotify::Reader::new(&*inotify, &mut buffer);
            loop {
                match reader.next() {
                    Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                        changed(None)
                    }
                    Ok(event) if event.events().contains(ReadFlags::MODIFY) => {
                        let job = lock(&table).job_of.get(&event.wd()).copied();
                        if job.is_some() {
                            changed(job);
                        }
                    }
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => {
                        tracing::error!(%error, "job folders are not watched any more; jobs are seen to end more slowly");
                        return;
                    }
                }
            }
        };
        std::thread::Builder::new()
            .name("watch".into())
            .spawn(listen)?;
        Ok(watch)
    }

    /// Watches the record of `job` in this folder from now on; what is in it already is not told.
    ///
    /// # Errors
    /// When the user's watches are used up (`fs.inotify.max_user_watches`), or the record is not there.
    pub fn add(&self, job: JobId, folder: &Path) -> io::Result<()> {
        // The thread must not look an event up before the table has its watch, hence the lock around both.
        let mut table = lock(&self.table);
        let record = folder.join(RECORD);
        let watch = inotify::add_watch(&*self.inotify, record, WatchFlags::MODIFY)?;
        table.job_of.insert(watch, job);
        table.watch_of.insert(job, watch);
        Ok(())
    }

    pub fn remove(&self, job: JobId) {
        let mut table = lock(&self.table);
        if let Some(watch) = table.watch_of.remove(&job) {
            table.job_of.remove(&watch);
            // The record may be gone, and its watch with it.
            let _ = inotify::remove_watch(&*self.inotify, watch);
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Longer than the kernel takes on a machine that is busy with something else.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_record_that_grows_names_its_job_and_other_files_do_not() {
        let root = tempfile::tempdir().unwrap();
        let grow = |id: u64| {
            let record = root.path().join(id.to_string()).join(RECORD);
            let record = std::fs::OpenOptions::new().append(true).open(record);
            record.unwrap().write_all(b"{}\n").unwrap();
        };
        let (sender, changes) = mpsc::channel();
        let watch = Watch::start(move |job| sender.send(job).unwrap()).unwrap();
        for id in [1, 2] {
            let folder = root.path().join(id.to_string());
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join(RECORD), "").unwrap();
            watch.add(JobId(id), &folder).unwrap();
        }
        std::fs::write(root.path().join("1/log"), "noise").unwrap();
        grow(2);
        assert_eq!(changes.recv_timeout(PATIENCE), Ok(Some(JobId(2))));
        watch.remove(JobId(2));
        watch.remove(JobId(2));
        grow(1);
        assert_eq!(changes.recv_timeout(PATIENCE), Ok(Some(JobId(1))));
    }
}
