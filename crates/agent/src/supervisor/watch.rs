//! The watcher (inotify and pidfd): reports new job records and ended supervisors, so that no job is polled.
//!
//! ```text
//! inotify: records of jobs that are starting or running ──┐
//! pidfd_open(2): supervisors of running jobs ─────────────┴─► epoll ──► one thread ──► news of a job
//! ```
//! An event only asks for another check of the job. A lost event costs time (the controller checks periodically), not
//! correctness.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use divvy_api::sync::lock;
use divvy_core::JobId;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify::{self, ReadFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::host::process::{Process, to_rustix_pid};
use crate::job_dir::RECORD;

/// What the thread tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// There is a new record of this job.
    Record(JobId),
    /// The supervisor of this job has ended.
    SupervisorEnded(JobId),
    /// Events were lost: check all jobs.
    EventsLost,
}

/// Marks the watch of records among what is waited for; jobs are numbered from 1.
const RECORDS: u64 = 0;

/// The records and the supervisors that are watched.
#[derive(Debug)]
pub struct Watch {
    inotify: Arc<OwnedFd>,
    epoll: Arc<OwnedFd>,
    table: Arc<Mutex<WatchTable>>,
}

#[derive(Debug, Default)]
struct WatchTable {
    job_of: HashMap<i32, JobId>,
    watch_of: HashMap<JobId, i32>,
    /// Closed when taken away, by which it is waited for no more.
    supervisors: HashMap<JobId, OwnedFd>,
    /// Nothing is told any more.
    is_stopped: bool,
}

impl Watch {
    /// Starts the thread, which calls `tell`.
    ///
    /// # Errors
    /// When the user's inotify instances are used up (`fs.inotify.max_user_instances`).
    pub fn start(notify: impl Fn(WatchEvent) + Send + 'static) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = Arc::new(inotify::init(flags)?);
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        epoll::add(
            &epoll,
            &*inotify,
            EventData::new_u64(RECORDS),
            EventFlags::IN,
        )?;
        let table = Arc::new(Mutex::new(WatchTable::default()));
        let watch = Self {
            inotify: Arc::clone(&inotify),
            epoll: Arc::clone(&epoll),
            table: Arc::clone(&table),
        };
        let listen = move || {
            let mut ready = Vec::with_capacity(64);
            loop {
                ready.clear();
                let heard = match epoll::wait(&epoll, spare_capacity(&mut ready), None) {
                    Err(Errno::INTR) => Ok(()),
                    Err(error) => Err(error),
                    Ok(_) => ready.iter().try_for_each(|event| match event.data.u64() {
                        RECORDS => read(&inotify, &table, &notify),
                        job => {
                            // It stays readable for ever.
                            lock(&table).supervisors.remove(&JobId(job));
                            notify(WatchEvent::SupervisorEnded(JobId(job)));
                            Ok(())
                        }
                    }),
                };
                if let Err(error) = heard {
                    tracing::error!(%error, "cannot watch job folders any more; the daemon notices the end of jobs \
                        later");
                    lock(&table).is_stopped = true;
                    return notify(WatchEvent::EventsLost);
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

    /// Reports from now on when this process, which supervises the job, has ended. False if reports may be missing: the
    /// job's record is not watched, its supervisor has ended by now, or no descriptors are left.
    pub fn watch_supervisor(&self, job: JobId, supervisor: Process) -> bool {
        let mut table = lock(&self.table);
        table.supervisors.remove(&job);
        if table.is_stopped || !table.watch_of.contains_key(&job) {
            return false;
        }
        let open = || {
            let pid = to_rustix_pid(supervisor.pid).ok_or(Errno::SRCH)?;
            let handle = pidfd_open(pid, PidfdFlags::empty())?;
            // The handle is fixed on the current process of the pid; its start time shows whether that is the
            // supervisor.
            if !supervisor.is_alive() {
                return Err(Errno::SRCH);
            }
            let data = EventData::new_u64(job.0);
            epoll::add(&self.epoll, &handle, data, EventFlags::IN)?;
            Ok(handle)
        };
        let handle = open();
        handle.is_ok_and(|handle| table.supervisors.insert(job, handle).is_none())
    }

    /// Whether the end of the job's supervisor will be told.
    pub fn is_supervisor_watched(&self, job: JobId) -> bool {
        let table = lock(&self.table);
        !table.is_stopped && table.supervisors.contains_key(&job)
    }

    pub fn remove(&self, job: JobId) {
        let mut table = lock(&self.table);
        table.supervisors.remove(&job);
        if let Some(watch) = table.watch_of.remove(&job) {
            table.job_of.remove(&watch);
            // The record may be gone, and its watch with it.
            let _ = inotify::remove_watch(&*self.inotify, watch);
        }
    }
}

/// Tells of all records that have news now.
fn read(
    inotify: &OwnedFd,
    table: &Mutex<WatchTable>,
    tell: &impl Fn(WatchEvent),
) -> Result<(), Errno> {
    let mut buffer = [MaybeUninit::uninit(); 16 * 1024];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    loop {
        match reader.next() {
            Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                tell(WatchEvent::EventsLost)
            }
            Ok(event) if event.events().contains(ReadFlags::MODIFY) => {
                let job = lock(table).job_of.get(&event.wd()).copied();
                if let Some(job) = job {
                    tell(WatchEvent::Record(job));
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    use std::sync::mpsc;

    use divvy_testkit::PATIENCE;

    fn folder(root: &Path, id: u64) -> std::path::PathBuf {
        let folder = root.join(id.to_string());
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(RECORD), "").unwrap();
        folder
    }

    #[test]
    fn a_record_that_grows_names_its_job_and_other_files_do_not() {
        let root = tempfile::tempdir().unwrap();
        let grow = |id: u64| {
            let record = root.path().join(id.to_string()).join(RECORD);
            let record = std::fs::OpenOptions::new().append(true).open(record);
            record.unwrap().write_all(b"{}\n").unwrap();
        };
        let (sender, changes) = mpsc::channel();
        let watch = Watch::start(move |news| sender.send(news).unwrap()).unwrap();
        for id in [1, 2] {
            watch.add(JobId(id), &folder(root.path(), id)).unwrap();
        }
        std::fs::write(root.path().join("1/log"), "noise").unwrap();
        grow(2);
        let told = |id| Ok(WatchEvent::Record(JobId(id)));
        assert_eq!(changes.recv_timeout(PATIENCE), told(2));
        watch.remove(JobId(2));
        watch.remove(JobId(2));
        grow(1);
        assert_eq!(changes.recv_timeout(PATIENCE), told(1));
    }

    #[test]
    fn the_end_of_a_supervisor_names_its_job_once() {
        let root = tempfile::tempdir().unwrap();
        let (sender, changes) = mpsc::channel();
        let watch = Watch::start(move |news| sender.send(news).unwrap()).unwrap();
        let mut supervisors: Vec<_> = [1, 2]
            .map(|id| {
                watch.add(JobId(id), &folder(root.path(), id)).unwrap();
                let cat = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
                let process = Process::with_pid(cat.id()).unwrap();
                assert!(watch.watch_supervisor(JobId(id), process));
                (cat, process)
            })
            .into();
        for id in [2, 1] {
            let (mut cat, process) = supervisors.pop().unwrap();
            drop(cat.stdin.take());
            let told = changes.recv_timeout(PATIENCE);
            assert_eq!(told, Ok(WatchEvent::SupervisorEnded(JobId(id))));
            assert!(!watch.is_supervisor_watched(JobId(id)));
            assert!(!watch.watch_supervisor(JobId(id), process), "it has ended");
            cat.wait().unwrap();
        }
        assert_eq!(changes.try_recv(), Err(mpsc::TryRecvError::Empty));
    }

    #[test]
    fn no_state_relies_on_unreported_events() {
        let root = tempfile::tempdir().unwrap();
        let watch = Watch::start(|_| {}).unwrap();
        let me = Process::this().unwrap();
        let earlier = Process {
            start_time: me.start_time - 1,
            ..me
        };
        assert!(
            !watch.watch_supervisor(JobId(3), me),
            "its record is not watched"
        );
        watch.add(JobId(3), &folder(root.path(), 3)).unwrap();
        assert!(
            !watch.watch_supervisor(JobId(3), earlier),
            "somebody else's pid"
        );
        assert!(watch.watch_supervisor(JobId(3), me));
        assert!(
            watch.watch_supervisor(JobId(3), me),
            "as often as one likes"
        );
        assert!(watch.is_supervisor_watched(JobId(3)));
        watch.remove(JobId(3));
        assert!(!watch.is_supervisor_watched(JobId(3)));
        assert!(!watch.watch_supervisor(JobId(3), me));
    }
}
