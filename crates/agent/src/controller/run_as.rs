//! Run-as identity: the user account that a job's processes run as.

use crate::host::run_as::Identity;
use crate::model::job::{Credentials, Job};

/// The user as which a job's program runs; `None` for the daemon's own user.
pub fn run_as(job: &Job) -> Option<Identity> {
    let Credentials { uid, gid } = job.spec.credentials;
    (uid != Credentials::current().uid).then_some(Identity {
        uid,
        gid,
        groups: None,
        account: job.claim().is_none().then(|| job.account().to_owned()),
    })
}
