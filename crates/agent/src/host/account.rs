//! User accounts from the system's user database (NSS), directory services included.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use divvy_api::daemon::Principal;
use divvy_api::sync::lock;
use nix::errno::Errno;
use nix::unistd::{Gid, Group as Entry, Uid, User, getgrouplist};
use tokio::sync::OnceCell;

use crate::host::clock::Instant;

/// A user, and the groups they are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserAccount {
    pub uid: u32,
    pub gid: u32,
    /// Their number where they have no name.
    pub name: String,
    pub groups: Vec<Group>,
    /// Home by the database; `None` for a number without a name.
    pub home: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub gid: u32,
    pub name: String,
}

/// The user database does not answer: nothing is known of the user, which is not to be taken for "in no group".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserLookupError {
    #[error("cannot look up uid {uid} in the user database")]
    Uid { uid: u32, source: Errno },
    #[error("cannot look up the user {name:?} in the user database")]
    Name { name: String, source: Errno },
}

/// Why a program may not run as a user now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The account may be the same.
    #[error(transparent)]
    Unknown(#[from] UserLookupError),
    /// It was deleted, or a directory service is down: where another service answers, "none" is all that NSS says.
    #[error("uid {uid} belonged to {was} when the job was submitted, and has no account now")]
    Absent { uid: u32, was: String },
    /// `useradd` gives the uid of a deleted account to the next one.
    #[error("uid {uid} belonged to {was} when the job was submitted, and belongs to {is} now")]
    Changed { uid: u32, was: String, is: String },
}

impl UserAccount {
    /// The user with this uid, calling with this gid.
    ///
    /// # Errors
    /// When the database fails; that a user or a group is in none is an answer.
    pub fn lookup(uid: u32, gid: u32) -> Result<Self, UserLookupError> {
        let LookedUp { user, gids, .. } = looked_up(uid, gid)?;
        let (name, home) = user.map(|user| (user.name, user.dir)).unzip();
        let mut account = Self {
            uid,
            gid,
            name: name.unwrap_or_else(|| uid.to_string()),
            groups: Vec::new(),
            home,
        };
        account.join(gids)?;
        Ok(account)
    }

    /// The user of this name, or `None` where the database knows none.
    ///
    /// # Errors
    /// When the database fails.
    pub fn by_name(name: &str) -> Result<Option<Self>, UserLookupError> {
        let user = answered(User::from_name(name)).map_err(|source| UserLookupError::Name {
            name: name.to_owned(),
            source,
        })?;
        let lookup = |user: User| Self::lookup(user.uid.as_raw(), user.gid.as_raw());
        user.map(lookup).transpose()
    }

    /// The user with this uid, in the group that the database has for it; `None` where the database has none.
    ///
    /// # Errors
    /// When the database fails.
    pub fn with_uid(uid: u32) -> Result<Option<Self>, UserLookupError> {
        let user = answered(User::from_uid(Uid::from_raw(uid)));
        let user = user.map_err(|source| UserLookupError::Uid { uid, source })?;
        user.map(|user| Self::lookup(uid, user.gid.as_raw()))
            .transpose()
    }

    /// Adds groups that it is in besides.
    ///
    /// # Errors
    /// As [`UserAccount::lookup`].
    pub fn join(&mut self, gids: impl IntoIterator<Item = u32>) -> Result<(), UserLookupError> {
        let known: BTreeSet<u32> = self.groups.iter().map(|group| group.gid).collect();
        let fresh: BTreeSet<u32> = gids
            .into_iter()
            .filter(|gid| !known.contains(gid))
            .collect();
        for gid in fresh {
            let entry = Entry::from_gid(Gid::from_raw(gid));
            let entry = answered(entry).map_err(|source| UserLookupError::Uid {
                uid: self.uid,
                source,
            })?;
            self.groups.push(Group {
                gid,
                name: entry.map_or_else(|| gid.to_string(), |entry| entry.name),
            });
        }
        Ok(())
    }

    /// Names of its groups.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().map(|group| group.name.as_str())
    }
}

/// Whether the database has the user or the group; `None` where it does not answer.
pub fn exists(principal: &Principal) -> Option<bool> {
    let has_user = |found| answered(found).map(|user: Option<User>| user.is_some());
    let has_group = |found| answered(found).map(|group: Option<Entry>| group.is_some());
    let found = match principal {
        Principal::Uid(uid) => has_user(User::from_uid(Uid::from_raw(*uid))),
        Principal::User(name) => has_user(User::from_name(name)),
        Principal::Group(name) => match (has_group(Entry::from_name(name)), name.parse()) {
            (Ok(false), Ok(gid)) => has_group(Entry::from_gid(Gid::from_raw(gid))),
            (found, _) => found,
        },
    };
    found.ok()
}

/// How long an account is known. A user that loses a group keeps its role for so long. One question is 75 to 150 calls of
/// the kernel, and a burst of jobs asks for each call of the API and for each job.
const RECENT: Duration = Duration::from_secs(1);

/// Accounts of callers, by uid and gid. Older ones go with the next question.
static RECENTLY_ASKED: Mutex<BTreeMap<(u32, u32), KnownAccount>> = Mutex::new(BTreeMap::new());

/// An account, or a look-up that goes on, since when.
type KnownAccount = (Instant, Arc<OnceCell<UserAccount>>);

/// The user with this uid, calling with this gid, as the database had it a second ago at most. A database that hangs
/// takes one thread for each user that calls.
///
/// # Errors
/// As [`UserAccount::lookup`]; the next call asks again.
pub async fn recent(uid: u32, gid: u32) -> Result<UserAccount, UserLookupError> {
    let known = {
        let mut all = lock(&RECENTLY_ASKED);
        all.retain(|_, (since, cell)| since.elapsed() < RECENT || !cell.initialized());
        let (_, cell) = all
            .entry((uid, gid))
            .or_insert_with(|| (Instant::now(), Arc::default()));
        Arc::clone(cell)
    };
    if let Some(account) = known.get() {
        return Ok(account.clone());
    }
    let died = move |_| UserLookupError::Uid {
        uid,
        source: Errno::EIO,
    };
    let look_up = move || async move {
        // The user database may be on the network.
        let found = tokio::task::spawn_blocking(move || UserAccount::lookup(uid, gid)).await;
        found.map_err(died)?
    };
    // In a task of its own: a client that goes away leaves the look-up to the next one.
    let asked = tokio::spawn(async move { known.get_or_try_init(look_up).await.cloned() });
    let found = asked.await.map_err(died)?;
    if found.is_err() {
        lock(&RECENTLY_ASKED).remove(&(uid, gid));
    }
    found
}

/// The groups that a program of this user has, if the user has called within the last second by this name.
pub fn recent_groups(uid: u32, gid: u32, name: Option<&str>) -> Option<Vec<u32>> {
    let asked = lock(&RECENTLY_ASKED);
    let (since, account) = asked.get(&(uid, gid))?;
    let account = account.get().filter(|_| since.elapsed() < RECENT)?;
    let is_same = name.is_none_or(|name| account.name == name);
    is_same.then(|| account.groups.iter().map(|group| group.gid).collect())
}

/// The groups that a program of this user has: those of the database, and `gid`. `was`: the account's name when the
/// job was submitted, where it counts.
///
/// # Errors
/// When the database fails, or has another account for the uid.
pub fn groups(uid: u32, gid: u32, was: Option<&str>) -> Result<Vec<u32>, AccountError> {
    let found = looked_up(uid, gid)?;
    let Some(was) = was.map(str::to_owned) else {
        return Ok(found.gids);
    };
    match (found.user.map(|user| user.name), found.unsure) {
        (Some(is), _) if is != was => Err(AccountError::Changed { uid, was, is }),
        (None, _) if was == uid.to_string() => Ok(found.gids),
        (None, Some(source)) => Err(UserLookupError::Uid { uid, source }.into()),
        (None, None) => Err(AccountError::Absent { uid, was }),
        _ => Ok(found.gids),
    }
}

/// What the database says of a uid.
struct LookedUp {
    user: Option<User>,
    gids: Vec<u32>,
    /// An error that counts as "no such user". A directory service that is down answers with it too.
    unsure: Option<Errno>,
}

fn looked_up(uid: u32, gid: u32) -> Result<LookedUp, UserLookupError> {
    let failed = |source| UserLookupError::Uid { uid, source };
    let found = User::from_uid(Uid::from_raw(uid));
    let unsure = found.as_ref().err().copied();
    let Some(user) = answered(found).map_err(failed)? else {
        return Ok(LookedUp {
            user: None,
            gids: vec![gid],
            unsure,
        });
    };
    let name = CString::new(user.name.clone()).map_err(|_| failed(Errno::EINVAL))?;
    let gids = getgrouplist(&name, Gid::from_raw(gid)).map_err(failed)?;
    Ok(LookedUp {
        user: Some(user),
        gids: gids.into_iter().map(Gid::as_raw).collect(),
        unsure: None,
    })
}

/// What getpwnam(3) says of these errors: "the given name or uid was not found".
fn answered<T>(found: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match found {
        Err(Errno::UnknownErrno | Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => {
            Ok(None)
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_a_number_without_a_name_is_its_own() {
        let root = UserAccount::lookup(0, 0).unwrap();
        assert_eq!(root.name, "root");
        assert!(root.groups.iter().any(|group| group.gid == 0));
        assert_eq!(UserAccount::by_name("root"), Ok(Some(root.clone())));
        assert_eq!(UserAccount::with_uid(0), Ok(Some(root)));
        assert_eq!(UserAccount::with_uid(3_999_999_999), Ok(None));
        assert_eq!(UserAccount::by_name("no such user"), Ok(None));
        let nobody = UserAccount::lookup(3_999_999_999, 3_999_999_998).unwrap();
        assert_eq!(nobody.name, "3999999999");
        assert_eq!(nobody.groups.len(), 1);
        assert_eq!(groups(3_999_999_999, 7, None).unwrap(), [7]);
    }

    #[test]
    fn a_user_or_a_group_exists_by_its_name_or_its_number() {
        for (text, expected) in [
            ("root", true),
            ("@root", true),
            ("@0", true),
            ("no such user", false),
            ("@no such group", false),
            ("@3999999999", false),
        ] {
            assert_eq!(exists(&Principal::named(text)), Some(expected), "{text}");
        }
        assert_eq!(exists(&Principal::Uid(0)), Some(true));
        assert_eq!(exists(&Principal::Uid(3_999_999_999)), Some(false));
    }

    #[test]
    fn a_uid_that_belongs_to_another_account_now_gets_no_groups() {
        let with = |uid, was| groups(uid, 7, Some(was)).map(|_| ());
        assert_eq!(with(0, "root"), Ok(()));
        assert_eq!(with(3_999_999_999, "3999999999"), Ok(()));
        let text = with(0, "olduser").unwrap_err().to_string();
        let expected =
            "uid 0 belonged to olduser when the job was submitted, and belongs to root now";
        assert_eq!(text, expected);
        let text = with(3_999_999_999, "olduser").unwrap_err().to_string();
        assert!(text.ends_with("and has no account now"), "{text}");
    }

    #[tokio::test]
    async fn a_users_account_is_asked_for_once_a_second() {
        let (uid, gid) = (3_999_999_997, 11);
        assert_eq!(recent_groups(uid, gid, None), None);
        let [first, second] = [recent(uid, gid), recent(uid, gid)];
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first, second);
        assert_eq!(recent_groups(uid, gid, None), Some(vec![gid]));
        assert_eq!(recent_groups(uid, gid, Some("olduser")), None);
        assert_eq!(
            recent_groups(uid, gid + 1, None),
            None,
            "with another group"
        );
        let known = || lock(&RECENTLY_ASKED).contains_key(&(uid, gid));
        divvy_testkit::until("the answer is too old", || {
            recent_groups(uid, gid, None).is_none()
        });
        assert!(known());
        recent(uid, gid + 1).await.unwrap();
        assert!(!known(), "old answers are not kept");
    }

    #[test]
    fn a_database_that_fails_is_not_one_that_knows_of_no_groups() {
        assert_eq!(answered::<User>(Err(Errno::ENOENT)), Ok(None));
        for failed in [Errno::EIO, Errno::EMFILE, Errno::ECONNREFUSED] {
            assert_eq!(answered::<User>(Err(failed)), Err(failed));
        }
    }

    #[test]
    fn groups_that_are_joined_count_once() {
        let mut root = UserAccount::lookup(0, 0).unwrap();
        let before = root.groups.len();
        root.join([0, 3_999_999_998, 3_999_999_998]).unwrap();
        assert_eq!(root.groups.len(), before + 1);
        assert!(root.group_names().any(|name| name == "3999999998"));
    }
}
