//! Container access: what the roles let a caller's container do, judged before the journal stores the job.

use std::path::{Path, PathBuf};

use divvy_api::daemon::OWN_HOME;
use divvy_api::v1::{Container, Error, Submit};
use divvy_core::docker::submitter::Submitter;

use crate::auth::Caller;
use crate::auth::rules::ContainerAccess;
use crate::container::options;
use crate::controller::io::Io;

/// Validates the container of a submission for its caller, as [`options::validate`].
///
/// # Errors
/// [`divvy_api::v1::ErrorCode::NotAllowed`] for a caller without the right to run containers, or these flags; the errors
/// of [`options::validate`].
pub(in crate::controller) fn validate(
    io: &Io,
    submit: &mut Submit,
    default: Option<&Container>,
    by: &Caller,
) -> Result<(), Error> {
    if submit.container.is_none() && default.is_none() {
        return options::validate(submit, None, None);
    }
    let rules = io.config.rules.get();
    match rules.container_access(by)? {
        ContainerAccess::Any => options::validate(submit, default, None),
        ContainerAccess::AsSubmitter { folders } => {
            let account = &by.account;
            let groups = account.groups.iter();
            let groups: Vec<_> = groups.map(|one| (one.gid, one.name.clone())).collect();
            let folders = opened_folders(folders, account.home.as_deref());
            let cwd = PathBuf::from(&submit.cwd);
            let submitter = Submitter {
                uid: account.uid,
                gid: account.gid,
                name: &account.name,
                groups: &groups,
                folders: &folders,
                cwd: &cwd,
            };
            options::validate(submit, default, Some(&submitter))
        }
    }
}

/// The folders for mounts of one user. The supervisor checks later that the home is the user's.
fn opened_folders(folders: &[PathBuf], home: Option<&Path>) -> Vec<PathBuf> {
    let own = Path::new(OWN_HOME);
    let each = folders.iter().map(PathBuf::as_path);
    let opened = each.filter_map(|folder| if folder == own { home } else { Some(folder) });
    opened.map(Path::to_owned).collect()
}
