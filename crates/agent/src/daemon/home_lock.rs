//! The daemon's lock file (flock): one daemon for each home, of one machine. [`LockFile`] has its text.

use std::fs::{File, TryLockError};
use std::io;
use std::time::{Duration, Instant};

use divvy_api::home::{Home, LockFile, machine};
use divvy_api::v1::{Error, ErrorCode};

use crate::host::lock_file;

/// How long a child of a dead daemon may still hold its lock. A child ends or executes another program within moments;
/// longer would hide that another daemon runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval of the attempts to take the lock.
const LOOK: Duration = Duration::from_millis(2);

/// Takes the lock of the home, which admits one daemon, and writes into it who serves. In standby it waits for the lock; a
/// signal ends it meanwhile.
///
/// # Errors
/// [`ErrorCode::Conflict`] where another daemon has it, here or on another host; [`ErrorCode::Internal`] where the file
/// system refuses a lock.
pub fn take(home: &Home, standby: bool) -> Result<File, Error> {
    let path = home.daemon_lock();
    let cannot = |error: io::Error| lock_file::cannot_lock(&path, &error);
    let file = lock_file::open(&path).map_err(cannot)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(error)) => return Err(cannot(error)),
            Err(TryLockError::WouldBlock) => {}
        }
        if standby {
            tracing::info!("another daemon serves this home; waiting until it ends");
            file.lock().map_err(cannot)?;
            break;
        }
        if file.try_lock_shared().is_ok() {
            let why = format!(
                "programs started with `divvy run --no-daemon` use the GPUs of {}",
                home.state().display()
            );
            return Err(Error::new(ErrorCode::Conflict, why)
                .hint("wait until they have ended, or set DIVVY_HOME to another folder"));
        }
        let lock = home.lock_file().ok().flatten();
        // Its process cannot be looked for from here, so there is nothing to wait for.
        let is_elsewhere = |lock: &LockFile| !lock.is_of_this_machine() || lock.is_of_other_host();
        // A daemon that was killed between fork and the child's first instruction leaves its lock to the child for a
        // moment.
        let is_in_use = lock
            .as_ref()
            .is_none_or(|lock| is_elsewhere(lock) || lock.is_alive());
        if is_in_use || Instant::now() > deadline {
            return Err(in_use(home, lock.as_ref()));
        }
        std::thread::sleep(LOOK);
    }
    // A network file system may lock on each machine alone (nolock, local_lock of nfs(5)).
    if is_on_network(&file)
        && let Some(lock) = home.lock_file().ok().flatten()
        && lock.is_of_other_host()
    {
        return Err(in_use(home, Some(&lock)));
    }
    LockFile::take(&file, home.socket()).map_err(cannot)?;
    Ok(file)
}

/// The process that holds a lock, as a message names it.
pub fn describe(lock: Option<&LockFile>) -> String {
    lock.map_or_else(|| "pid unknown".to_owned(), LockFile::describe)
}

/// Why this daemon cannot have the home, and what to do: another daemon serves it, here or on another host.
fn in_use(home: &Home, lock: Option<&LockFile>) -> Error {
    let who = describe(lock);
    let state = home.state().display();
    let why = format!("a divvy daemon ({who}) already serves {state}");
    let Some(lock) = lock.filter(|lock| lock.is_of_other_host()) else {
        return Error::new(ErrorCode::Conflict, why).hint(
            "use it, stop it with `divvy daemon --stop`, or set DIVVY_HOME to another folder",
        );
    };
    let (other, me) = (&lock.host, machine::host());
    let hint = match home.machines() {
        Some(_) => format!(
            "{other} and this host, {me}, have one /etc/machine-id: give each its own (systemd-machine-id-setup), or set \
             DIVVY_HOME; if {other} runs no daemon, remove {}",
            home.daemon_lock().display()
        ),
        None => format!(
            "this host is {me}: set DIVVY_HOME to a folder for each host; if {other} runs no daemon, remove {}",
            home.daemon_lock().display()
        ),
    };
    Error::new(ErrorCode::Conflict, why).hint(hint)
}

/// File systems of other machines' disks, by `statfs` type (linux/magic.h; the last three from their own sources). A lock
/// that this kernel grants may not hold on another machine.
const NETWORK: [i64; 8] = [
    0x6969,      // NFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x6573_5546, // FUSE, as of sshfs
    0x00c3_6400, // Ceph
    0x5346_414f, // AFS
    0x0bd0_0bd0, // Lustre
    0x4750_4653, // GPFS
];

fn is_on_network(file: &File) -> bool {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the field's type differs between architectures"
    )]
    rustix::fs::fstatfs(file).is_ok_and(|stat| NETWORK.contains(&(stat.f_type as i64)))
}
