//! The run signature: the key by which earlier runs count as similar, for the start estimate.
//!
//! It consists of user, name and amount, which every caller may see of a job. A name taken from the command says little
//! (`train.py`), so then the program counts too, as in `divvy advise` (`python train.py`). It does not count for a caller
//! that may not see what the job runs, because the number of similar runs would reveal it.

use divvy_core::Amount;
use divvy_core::command::program;

use crate::model::job::JobSpec;
use crate::model::validate;

/// What runs have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunSignature {
    pub owner: u32,
    /// The user under which they are shown: a front end submits those of many as one account.
    pub user: String,
    pub name: RunName,
    pub amount: Amount,
    /// What they run; `None` where that is not asked.
    pub program: Option<String>,
}

/// What runs are called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunName {
    Plain(String),
    /// `NAME[…]`: any job of arrays of this name.
    Array(String),
}

impl RunSignature {
    /// The signature of a job; `None` if it runs no program of ours. `sees`: whether the caller may see what it runs.
    pub fn of(ask: &JobSpec, sees: bool) -> Option<Self> {
        if ask.policy.claim.is_some() {
            return None;
        }
        let index = ask.policy.array.map(|task| format!("[{}]", task.index));
        let array = index.and_then(|index| ask.name.strip_suffix(&index));
        let name = array.unwrap_or(&ask.name);
        // Up to 0.1.0, jobs had the name of the first word.
        let first = ask.command.first().map_or("", String::as_str);
        let first = first.rsplit('/').next().unwrap_or_default();
        let is_taken =
            name == first || validate::name(None, &ask.command).is_ok_and(|taken| taken == name);
        Some(Self {
            owner: ask.credentials.uid,
            user: ask.user.clone(),
            name: match array {
                Some(name) => RunName::Array(name.to_owned()),
                None => RunName::Plain(name.to_owned()),
            },
            amount: ask.request.amount,
            program: (sees && is_taken).then(|| program(&ask.command)),
        })
    }

    /// Whether this command is theirs.
    pub fn matches_command(&self, command: &[String]) -> bool {
        let wanted = self.program.as_deref();
        wanted.is_none_or(|wanted| program(command) == wanted)
    }
}

#[cfg(test)]
mod tests {
    use divvy_core::Bytes;

    use super::*;
    use crate::journal;
    use crate::model::policy::ArrayTask;

    fn ask(name: &str, command: &[&str]) -> JobSpec {
        JobSpec {
            name: name.to_owned(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            ..journal::tests::new(None).spec
        }
    }

    fn signature(ask: &JobSpec) -> RunSignature {
        RunSignature::of(ask, true).unwrap()
    }

    #[test]
    fn a_given_name_counts_whatever_the_options_are() {
        let [one, other] = ["1", "2"].map(|lr| ask("train", &["python", "t.py", "--lr", lr]));
        assert_eq!(signature(&one), signature(&other));
        assert!(signature(&one).matches_command(&["sh".to_owned()]));
        let bigger = JobSpec {
            request: Amount::Memory(Bytes::gib(8)).into(),
            ..one.clone()
        };
        assert_ne!(
            signature(&one),
            signature(&bigger),
            "it may take less time with more"
        );
        let mut anothers = one.clone();
        anothers.credentials.uid += 1;
        assert_ne!(signature(&one), signature(&anothers));
        let mut on_behalf = one.clone();
        on_behalf.user = "Bob Example".to_owned();
        assert_ne!(signature(&one), signature(&on_behalf));
    }

    #[test]
    fn a_name_that_was_taken_from_the_command_counts_only_with_the_program() {
        let train = ask(
            "python",
            &["/usr/bin/python", "-u", "train.py", "--lr", "1"],
        );
        let eval = ask("python", &["/usr/bin/python", "eval.py"]);
        assert_ne!(signature(&train), signature(&eval));
        assert!(
            signature(&train)
                .matches_command(&ask("", &["python", "train.py", "--lr", "2"]).command)
        );
        assert!(!signature(&train).matches_command(&eval.command));
    }

    #[test]
    fn of_what_one_does_not_see_nothing_depends() {
        let train = ask("python", &["python", "train.py"]);
        let eval = ask("python", &["sh", "-c", "secret"]);
        let [one, other] = [&train, &eval].map(|ask| RunSignature::of(ask, false).unwrap());
        assert_eq!(one, other);
        assert_eq!(one.program, None);
    }

    #[test]
    fn jobs_of_an_array_are_like_each_other_and_like_those_of_the_next_time() {
        let task = |index| {
            let mut task = ask(&format!("sweep[{index}]"), &["python", "sweep.py"]);
            task.policy.array = Some(ArrayTask {
                array: None,
                index,
                most: None,
                count: None,
            });
            task
        };
        assert_eq!(signature(&task(0)), signature(&task(11)));
        assert_eq!(signature(&task(0)).name, RunName::Array("sweep".to_owned()));
        // A job that is only named like an array's stands alone.
        let alone = ask("sweep[0]", &["true"]);
        assert_eq!(
            signature(&alone).name,
            RunName::Plain("sweep[0]".to_owned())
        );
        let mut taken = task(3);
        taken.name = "python[3]".to_owned();
        assert_eq!(
            signature(&taken).program.as_deref(),
            Some("python sweep.py")
        );
    }
}
