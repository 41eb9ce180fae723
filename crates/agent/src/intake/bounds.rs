//! How much one call may bring. All of it is copied, journaled and looked at by the one thread that everybody waits
//! for, so nothing may be as large as somebody likes.

use divvy_api::v1::{Error, MigWanted, Submit};

use super::usage;

/// Bytes of a job's command, environment and secrets: what Linux gives a program's words and variables with the usual
/// stack limit of 8 MiB, of which they may be a quarter (execve(2)).
const LARGEST: usize = 2 << 20;

/// Bytes of an array, whose jobs are journaled in one transaction.
const LARGEST_ARRAY: usize = 64 << 20;

/// Jobs that one runs after.
const MOST_AFTER: usize = 1000;

/// The same, of all jobs of an array: each is compared with each.
const MOST_AFTER_IN_ARRAY: usize = 100_000;

/// Bytes of a job's name.
pub const LONGEST_NAME: usize = 200;

/// Labels of a job.
const MOST_LABELS: usize = 32;

/// Bytes of a label's name, and of its value.
const LONGEST_LABEL: (usize, usize) = (64, 256);

/// Bytes of an idempotency key.
const LONGEST_KEY: usize = 200;

/// MIG instances that one call asks about: more than a node with 64 GPUs of seven instances has.
const MOST_PROFILES: usize = 1024;

/// GPUs that are named.
const MOST_GPUS: usize = 1024;

/// Refuses a submit that brings too much.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage): what is too much, how much it is, and how much may be.
pub fn submit(submit: &Submit) -> Result<(), Error> {
    let size = size(submit);
    let tasks = submit
        .array
        .as_ref()
        .map_or(1, |array| array.indices.len().max(1));
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let file = "put what is large into a file, and its path into the command";
    let fewer = "let it run after fewer, the last ones";
    let shorter = "a shorter one will do";
    at_most(
        "the job's name",
        length(&submit.name),
        LONGEST_NAME,
        "bytes",
        shorter,
    )?;
    let key = length(&submit.idempotency_key);
    at_most("the idempotency key", key, LONGEST_KEY, "bytes", shorter)?;
    labels(submit)?;
    let on = submit.gpus_on.len();
    at_most(
        "the list of GPUs",
        on,
        MOST_GPUS,
        "entries",
        "name each GPU once",
    )?;
    let what = "the command, the environment and the secrets together";
    at_most(what, size, LARGEST, "bytes", file)?;
    let what = format!("the array of {tasks} jobs of {size} bytes");
    at_most(
        &what,
        tasks.saturating_mul(size),
        LARGEST_ARRAY,
        "bytes",
        file,
    )?;
    let after = submit.after.len();
    at_most(
        "the list of jobs to run after",
        after,
        MOST_AFTER,
        "entries",
        fewer,
    )?;
    let what = format!("the array of {tasks} jobs that run after {after}");
    let pairs = tasks.saturating_mul(after);
    at_most(&what, pairs, MOST_AFTER_IN_ARRAY, "pairs", fewer)
}

fn labels(submit: &Submit) -> Result<(), Error> {
    let fewer = "labels are for finding a job again; keep the rest elsewhere";
    let count = submit.labels.len();
    at_most("the list of labels", count, MOST_LABELS, "entries", fewer)?;
    let (name_bytes, value_bytes) = LONGEST_LABEL;
    for (name, value) in &submit.labels {
        let plain = |one: char| one.is_ascii_alphanumeric() || "._-/:".contains(one);
        if name.is_empty() || !name.chars().all(plain) {
            let hint = "use letters, digits and ._-/:";
            return Err(usage(format!("{name:?} cannot name a label")).hint(hint));
        }
        at_most(
            "the name of a label",
            name.len(),
            name_bytes,
            "bytes",
            fewer,
        )?;
        let what = format!("the label {name}");
        at_most(&what, value.len(), value_bytes, "bytes", fewer)?;
        if value.contains(char::is_control) {
            return Err(usage(format!(
                "the label {name} has control characters in it"
            )));
        }
    }
    Ok(())
}

/// Refuses a question about too many instances.
///
/// # Errors
/// As [`submit`].
pub fn mig(wanted: &MigWanted) -> Result<(), Error> {
    let profiles = wanted.profiles.len();
    let fewer = "ask about fewer at once";
    at_most(
        "the list of profiles",
        profiles,
        MOST_PROFILES,
        "entries",
        fewer,
    )?;
    let on = wanted.gpus_on.len();
    at_most(
        "the list of GPUs",
        on,
        MOST_GPUS,
        "entries",
        "name each GPU once",
    )
}

/// Bytes that a submission takes in the journal, all jobs of its array together.
pub fn written(submit: &Submit) -> u64 {
    let tasks = (submit.array.as_ref()).map_or(1, |array| array.indices.len().max(1));
    (tasks as u64).saturating_mul(size(submit) as u64)
}

fn at_most(what: &str, is: usize, most: usize, unit: &str, hint: &str) -> Result<(), Error> {
    match is <= most {
        true => Ok(()),
        false => {
            let why = format!("{what} has {is} {unit}, and at most {most} are taken");
            Err(usage(why).hint(hint))
        }
    }
}

/// Bytes that each job of it takes: texts with a closing zero, as a program gets them.
fn size(submit: &Submit) -> usize {
    let container = submit.container.iter();
    let container = container.flat_map(|one| std::iter::once(&one.image).chain(&one.arguments));
    let texts = submit.command.iter().chain([&submit.cwd]).chain(container);
    let variables = submit.env.iter().chain(&submit.secrets);
    let texts = texts.chain(variables.flat_map(|(name, value)| [name, value]));
    let texts = texts.chain(submit.after.iter().map(|after| &after.job));
    texts.map(|text| text.len() + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::super::tests::submit as of;
    use super::*;
    use divvy_api::v1::{After, Array, ErrorCode};

    /// One whose command, environment and secrets have this size.
    fn sized(size: usize) -> Submit {
        let submit = Submit {
            env: [("A".into(), String::new())].into(),
            ..of(&["true"])
        };
        let value = "x".repeat(size - super::size(&submit));
        Submit {
            env: [("A".into(), value)].into(),
            ..submit
        }
    }

    fn array(tasks: u32, submit: Submit) -> Submit {
        Submit {
            array: Some(Array {
                indices: (0..tasks).collect(),
                most: None,
            }),
            ..submit
        }
    }

    fn after(count: usize) -> Submit {
        let one = After {
            job: "1".into(),
            ok: false,
        };
        Submit {
            after: vec![one; count],
            ..of(&["true"])
        }
    }

    fn named(length: usize) -> Submit {
        Submit {
            name: Some("n".repeat(length)),
            ..of(&["true"])
        }
    }

    fn keyed(length: usize) -> Submit {
        Submit {
            idempotency_key: Some("k".repeat(length)),
            ..of(&["true"])
        }
    }

    fn on(count: usize) -> Submit {
        Submit {
            gpus_on: vec![0; count],
            ..of(&["true"])
        }
    }

    #[test]
    fn a_submit_has_up_to_its_bounds_and_not_one_more() {
        let at = [
            sized(LARGEST),
            array(32, sized(LARGEST)),
            after(MOST_AFTER),
            array(100, after(MOST_AFTER)),
            named(LONGEST_NAME),
            keyed(LONGEST_KEY),
            on(MOST_GPUS),
        ];
        for (number, at) in at.iter().enumerate() {
            assert!(submit(at).is_ok(), "{number}: {:?}", submit(at));
        }
        let beyond = [
            (sized(LARGEST + 1), "has 2097153 bytes", "2097152"),
            (array(33, sized(LARGEST)), "has 69206016 bytes", "67108864"),
            (after(MOST_AFTER + 1), "has 1001 entries", "1000"),
            (array(101, after(MOST_AFTER)), "has 101000 pairs", "100000"),
            (named(LONGEST_NAME + 1), "has 201 bytes", "200"),
            (keyed(LONGEST_KEY + 1), "has 201 bytes", "200"),
            (on(MOST_GPUS + 1), "has 1025 entries", "1024"),
        ];
        for (beyond, is, most) in beyond {
            let error = submit(&beyond).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage);
            assert_eq!(error.code.exit_code(), 2);
            assert!(
                error.message.contains(is) && error.message.contains(most),
                "{}",
                error.message
            );
        }
    }

    #[test]
    fn secrets_and_the_words_for_a_container_count_like_the_environment() {
        let large = "x".repeat(LARGEST);
        let secret = Submit {
            secrets: [("A".into(), large.clone())].into(),
            ..of(&["true"])
        };
        let container = Submit {
            container: Some(divvy_api::v1::Container {
                image: "i".into(),
                arguments: vec![large.clone()],
                starter: None,
            }),
            ..of(&[])
        };
        for large in [secret, container, of(&[&large])] {
            assert_eq!(submit(&large).unwrap_err().code, ErrorCode::Usage);
        }
    }

    #[test]
    fn a_plan_is_asked_for_so_many_instances_and_not_one_more() {
        let wanted = |count| MigWanted {
            profiles: vec!["1g.5gb".into(); count],
            gpus_on: Vec::new(),
        };
        assert!(mig(&wanted(MOST_PROFILES)).is_ok());
        let error = mig(&wanted(MOST_PROFILES + 1)).unwrap_err();
        assert!(error.message.contains("1025"), "{}", error.message);
    }
}
