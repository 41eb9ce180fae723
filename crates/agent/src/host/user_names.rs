//! User names by uid, for callers that must not wait: a directory service may take minutes to answer.
//!
//! One thread at a time asks the user database. A name that it has not given yet is the number.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use divvy_api::sync::lock;
use nix::unistd::{Uid, User};

/// How long a name stands before the database is asked again. A name changes seldom; a directory service would be asked
/// all the time with less.
const KEPT: Duration = Duration::from_secs(600);

/// Most names that are kept. Beyond this, the known names are forgotten. More than a site's users that have jobs at one
/// time, so that it is seldom emptied.
const MOST: usize = 4096;

/// The known names.
pub struct UserNames(Arc<Shared>);

struct Shared {
    names: Mutex<Names>,
    changed: Condvar,
    look_up: Box<dyn Fn(u32) -> Option<String> + Send + Sync>,
}

#[derive(Default)]
struct Names {
    /// The name, absent where the database has none, and the time of the answer.
    known: BTreeMap<u32, (Option<String>, Instant)>,
    wanted: BTreeSet<u32>,
    /// A thread asks the database.
    is_asking: bool,
}

impl Default for UserNames {
    fn default() -> Self {
        Self::new(|uid| {
            let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
            user.map(|user| user.name)
        })
    }
}

impl UserNames {
    /// `look_up`: the name of a uid; it may block.
    pub fn new(look_up: impl Fn(u32) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared {
            names: Mutex::default(),
            changed: Condvar::new(),
            look_up: Box::new(look_up),
        }))
    }

    /// The name of a user, or the number where none is known. Waits at most `patience`, and only for a uid that was not
    /// asked for before.
    pub fn name(&self, uid: u32, patience: Duration) -> String {
        let mut names = lock(&self.0.names);
        let found = names
            .known
            .get(&uid)
            .map(|(name, at)| (name.clone(), at.elapsed()));
        let is_new = found.is_none() && !names.wanted.contains(&uid);
        if is_new || found.as_ref().is_some_and(|(_, age)| *age > KEPT) {
            names.wanted.insert(uid);
            if !std::mem::replace(&mut names.is_asking, true) {
                names.is_asking = Shared::start(&self.0);
            }
        }
        if is_new {
            let is_unknown = |names: &mut Names| !names.known.contains_key(&uid);
            let waited = self
                .0
                .changed
                .wait_timeout_while(names, patience, is_unknown);
            names = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let known = names.known.get(&uid);
        known
            .and_then(|(name, _)| name.clone())
            .unwrap_or_else(|| uid.to_string())
    }
}

impl Shared {
    /// Whether a thread could be started.
    fn start(this: &Arc<Self>) -> bool {
        let this = Arc::clone(this);
        let thread = std::thread::Builder::new().name("users".into());
        thread.spawn(move || this.work()).is_ok()
    }

    /// Asks for every wanted name.
    fn work(&self) {
        loop {
            let uid = {
                let mut names = lock(&self.names);
                let Some(uid) = names.wanted.first().copied() else {
                    names.is_asking = false;
                    return;
                };
                uid
            };
            let name = (self.look_up)(uid);
            let mut names = lock(&self.names);
            if names.known.len() >= MOST {
                names.known.clear();
            }
            names.known.insert(uid, (name, Instant::now()));
            names.wanted.remove(&uid);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn a_name_is_the_databases_or_the_number() {
        let names = UserNames::new(|uid| (uid == 7).then(|| "ana".to_owned()));
        assert_eq!(names.name(7, LONG), "ana");
        assert_eq!(names.name(8, LONG), "8");
        assert_eq!(UserNames::default().name(0, LONG), "root");
    }

    #[test]
    fn a_database_that_does_not_answer_holds_up_no_caller_and_is_asked_by_one_thread() {
        let (answer, answers) = mpsc::channel::<()>();
        let answers = Mutex::new(answers);
        let names = UserNames::new(move |uid| {
            let _ = lock(&answers).recv_timeout(LONG);
            Some(format!("user{uid}"))
        });
        let begun = Instant::now();
        for uid in 1000..2000 {
            assert_eq!(names.name(uid, Duration::ZERO), uid.to_string());
        }
        assert!(begun.elapsed() < LONG / 2);
        answer.send(()).unwrap();
        let is_known = || names.name(1000, Duration::ZERO) == "user1000";
        divvy_testkit::until("the first answer is taken", is_known);
        assert_eq!(names.name(1999, Duration::ZERO), "1999");
    }

    #[test]
    fn no_more_names_are_kept_than_the_bound() {
        let names = UserNames::new(|_| None);
        let most = u32::try_from(MOST).unwrap();
        for uid in 0..=most {
            names.name(uid, LONG);
        }
        assert!(lock(&names.0.names).known.len() <= MOST);
    }
}
