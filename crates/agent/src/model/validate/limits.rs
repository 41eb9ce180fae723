//! Request limits: bounds on the body of each call. The controller's one thread copies, journals and reads all of it,
//! and every user waits for that thread.
//!
//! Each body is [`CheckLimits`]. The server checks it where it reads it: before the controller sees it, and before anything
//! is stored. The functions take each body apart without `..`, so that a new field does not compile without a decision.
//! A test walks the schemas and makes each text and each list too large.

use std::collections::BTreeMap;

use divvy_api::v1::claim::LONGEST_UID;
use divvy_api::v1::{
    After, Amount, Array, CancelJob, Claim, ClaimDevice, ClaimEnd, ClaimInstance, Confirm,
    Container, Drain, Error, Exec, GpuChange, JobChange, JobsChange, MigGc, MigWanted, Output,
    ProjectChange, Resize, SignalJob, Submit, Suspend, Terminal, Undrain,
};

use super::usage;

/// Bytes of a job's command, environment and secrets: what Linux gives a program's words and variables with the usual
/// stack limit of 8 MiB, of which they may be a quarter (execve(2)).
const LARGEST: usize = 2 << 20;

/// Bytes that a word takes besides its letters: the zero at its end, and the pointer to it, which Linux counts as well
/// (`bprm_stack_limits` of fs/exec.c). It bounds how many words there are.
const WORD: usize = 1 + size_of::<usize>();

/// Bytes of an array; all its jobs are journaled in one transaction. So 6 KiB for each of 10,000 jobs; a larger
/// transaction would hold up all users (024).
const LARGEST_ARRAY: usize = 64 << 20;

/// Jobs of an array. As many as the largest sweeps have; more would hold up a round of the daemon for all users (024).
pub const MOST_TASKS: usize = 10_000;

/// Jobs that a request may name to bound its selection: ten of the largest arrays, in half of the bytes that a large body
/// may have (`http/upload.rs`).
const MOST_SELECTED: usize = 100_000;

/// Jobs that one runs after. More than a step of a pipeline waits for; an array counts as one. A step of a pipeline
/// would name an array for more, which counts as one.
const MOST_AFTER: usize = 1000;

/// The same, of all jobs of an array: each is compared with each. So ten for each job of the largest array.
const MOST_AFTER_IN_ARRAY: usize = 100_000;

/// Bytes of a name: of a job, a project, a queue, a member of a project, a MIG profile, a division of compute time.
/// Longer ones would fit no table. Front ends cut the names of other programs to it.
pub const LONGEST_NAME: usize = 200;

/// Bytes of a reference to a job: a name with the index of an array behind it.
const LONGEST_REFERENCE: usize = LONGEST_NAME + "[4294967295]".len();

/// Bytes of a path (`PATH_MAX` of limits.h): of a program, of a folder. An image's name is shorter. Events and reasons
/// name the program.
const LONGEST_PATH: usize = 4096;

/// Labels of a job. Front ends need some ten; each is in every list of jobs, so more would make lists large.
const MOST_LABELS: usize = 32;

/// Bytes of a label's name, and of its value.
const LONGEST_LABEL: (usize, usize) = (64, 256);

/// Bytes of a job's script: several times the longest that the job files of public sites have.
const LARGEST_SCRIPT: usize = 1 << 20;

/// Bytes of what is started when a job has ended. As long as a path may be (Linux).
const LONGEST_NOTICE: usize = 4096;

/// Bytes of an idempotency key. So a UUID or a hash in hexadecimal digits with a prefix fits.
const LONGEST_KEY: usize = 200;

/// MIG instances that one call asks about: more than a node with 64 GPUs of seven instances has.
const MOST_PROFILES: usize = 1024;

/// GPUs that are named. More than any machine has, so that an index in a list is found as wrong.
const MOST_GPUS: usize = 1024;

/// Users and groups of a project; a group stands for any number of users. So more need a group; each submission looks
/// through them.
const MOST_MEMBERS: usize = 1024;

/// More devices than results that a claim can have (32, `AllocationResultsMaxSize` of resource.k8s.io).
pub const MOST_DEVICES: usize = 64;

/// As many pods as may use one claim (`ResourceClaimReservedForMaxSize` of resource.k8s.io).
pub const MOST_PODS: usize = 256;

/// Bytes of a claim's name and of its namespace. So the longest name of Kubernetes (253) fits.
pub const LONGEST_CLAIM: usize = 2 * LONGEST_NAME;

/// Bytes of a terminal's name; terminfo(5) has no longer ones.
pub const LONGEST_TERM: usize = 64;

/// Bytes of a call's path and of its query. A name fits with three bytes for each letter, and so does a program.
const LONGEST_TARGET: (usize, usize) = (4096, 16 << 10);

/// Bytes of a pattern, each letter of which is compared with each letter of each name.
const LONGEST_PATTERN: usize = LONGEST_REFERENCE;

/// Bytes of a program's name with the script that it runs: two paths. So it must be twice [`LONGEST_PATH`].
const LONGEST_PROGRAM: usize = 2 * LONGEST_PATH;

/// A body of a call, of which every text and every list has a bound.
pub trait CheckLimits {
    /// Refuses what brings too much.
    ///
    /// # Errors
    /// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage): what is too much, how much it is, and how much may be.
    fn check_limits(&self) -> Result<(), Error>;
}

impl CheckLimits for Submit {
    fn check_limits(&self) -> Result<(), Error> {
        submit(self)
    }
}

/// Refuses a submit that brings too much.
///
/// # Errors
/// As [`CheckLimits::check_limits`].
pub fn submit(submit: &Submit) -> Result<(), Error> {
    let Submit {
        command,
        container,
        name: called,
        queue,
        project,
        amount,
        compute,
        latency,
        gpus_on,
        isolation: _,
        memory_exact: _,
        cwd,
        env,
        runner: _,
        no_wait: _,
        dry_run: _,
        idempotency_key,
        priority: _,
        preemptible: _,
        time_limit_s: _,
        after,
        retries: _,
        secrets,
        idle: _,
        array,
        confirm: _,
        confirm_within_s: _,
        labels: labelled,
        hold: _,
        user,
        script,
        output,
        notify,
        with_client: _,
    } = submit;
    name("the job's name", called.as_deref())?;
    name("the queue's name", queue.as_deref())?;
    name("the project's name", project.as_deref())?;
    name("the user's name", user.as_deref())?;
    name("the compute mode", compute.as_deref())?;
    name("the latency goal", latency.as_deref())?;
    profile(amount.as_ref())?;
    let key = idempotency_key.as_ref().map_or(0, String::len);
    at_most("the idempotency key", key, LONGEST_KEY, "bytes", SHORTER)?;
    path("the working directory", cwd)?;
    path("the program's name", first(command))?;
    image(container.as_ref())?;
    labels(labelled)?;
    gpus(gpus_on)?;
    let size = size(command, container.as_ref(), [env, secrets]);
    let what = "the command, the environment and the secrets together";
    at_most(what, size, LARGEST, "bytes", FILE)?;
    let script = script.as_ref().map_or(0, |script| script.text.len());
    at_most("the script", script, LARGEST_SCRIPT, "bytes", SCRIPT_FILE)?;
    if let Some(Output {
        stdout,
        stderr,
        append: _,
    }) = output
    {
        path("the output file", stdout.as_deref().unwrap_or_default())?;
        path("the error file", stderr.as_deref().unwrap_or_default())?;
    }
    let notice = notify.as_ref().map_or(0, String::len);
    at_most(
        "the notification command",
        notice,
        LONGEST_NOTICE,
        "bytes",
        NOTICE_FILE,
    )?;
    follows(after)?;
    let size = size + script;
    let Some(array) = array else { return Ok(()) };
    tasks(array, size, after.len())
}

fn tasks(array: &Array, size: usize, after: usize) -> Result<(), Error> {
    let Array {
        indices,
        max_running: _,
    } = array;
    let tasks = indices.len().max(1);
    let fewer = "submit several arrays";
    at_most("the array", tasks, MOST_TASKS, "indices", fewer)?;
    let what = format!("the array of {tasks} jobs of {size} bytes");
    let bytes = tasks.saturating_mul(size);
    at_most(&what, bytes, LARGEST_ARRAY, "bytes", FILE)?;
    let what = format!("the array of {tasks} jobs with {after} dependencies each");
    let pairs = tasks.saturating_mul(after);
    at_most(&what, pairs, MOST_AFTER_IN_ARRAY, "pairs", FEWER_AFTER)
}

fn follows(after: &[After]) -> Result<(), Error> {
    let what = "the list of dependencies";
    at_most(what, after.len(), MOST_AFTER, "entries", FEWER_AFTER)?;
    for After { job, ok: _ } in after {
        let what = "the name of a dependency";
        at_most(what, job.len(), LONGEST_REFERENCE, "bytes", SHORTER)?;
    }
    Ok(())
}

impl CheckLimits for Confirm {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            attempt: _,
            command,
            container,
            env,
            labels: labelled,
        } = self;
        image(container.as_ref())?;
        labels(labelled)?;
        let command = command.as_deref().unwrap_or_default();
        path("the program's name", first(command))?;
        let size = size(command, container.as_ref(), [env]);
        let what = "the command and the environment together";
        at_most(what, size, LARGEST, "bytes", FILE)
    }
}

impl CheckLimits for Resize {
    fn check_limits(&self) -> Result<(), Error> {
        let Self { amount, compute } = self;
        name("the compute mode", compute.as_deref())?;
        profile(amount.as_ref())
    }
}

impl CheckLimits for JobChange {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            queue,
            top: _,
            amount,
            priority: _,
            time_limit_s: _,
            name: called,
        } = self;
        name("the job's name", called.as_deref())?;
        name("the queue's name", queue.as_deref())?;
        profile(amount.as_ref())
    }
}

impl CheckLimits for Suspend {
    fn check_limits(&self) -> Result<(), Error> {
        let Self { release_memory: _ } = self;
        Ok(())
    }
}

impl CheckLimits for CancelJob {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            because,
            withdraw: _,
        } = self;
        let because = because.as_deref().unwrap_or_default();
        // It is shown where a label is.
        at_most(
            "the reason",
            because.len(),
            LONGEST_LABEL.1,
            "bytes",
            SHORTER,
        )?;
        match because.contains(char::is_control) {
            true => Err(usage("the reason contains control characters")),
            false => Ok(()),
        }
    }
}

impl CheckLimits for JobsChange {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            action: _,
            release_memory: _,
            dry_run: _,
            only,
        } = self;
        let only = only.as_deref().unwrap_or_default();
        at_most(
            "the list of jobs",
            only.len(),
            MOST_SELECTED,
            "jobs",
            "use the filters alone",
        )?;
        only.iter()
            .try_for_each(|job| name("the number of a job", Some(job)))
    }
}

impl CheckLimits for Exec {
    fn check_limits(&self) -> Result<(), Error> {
        let Self { command, terminal } = self;
        path("the program's name", first(command))?;
        let size = size(command, None, []);
        at_most("the command", size, LARGEST, "bytes", FILE)?;
        let Some(terminal) = terminal else {
            return Ok(());
        };
        let Terminal {
            rows: _,
            columns: _,
            kind,
        } = terminal;
        let kind = kind.as_ref().map_or(0, String::len);
        let hint = "use the value of TERM, such as xterm-256color";
        at_most(
            "the type of the terminal",
            kind,
            LONGEST_TERM,
            "bytes",
            hint,
        )
    }
}

impl CheckLimits for SignalJob {
    fn check_limits(&self) -> Result<(), Error> {
        let Self { signal: _ } = self;
        Ok(())
    }
}

impl CheckLimits for ProjectChange {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            quota: _,
            quota_memory_bytes: _,
            weight: _,
            limit: _,
            limit_memory_bytes: _,
            priority: _,
            min_runtime_s: _,
            members,
        } = self;
        let members = members.as_deref().unwrap_or_default();
        let groups = "use a group, with @ before its name";
        let what = "the list of members";
        at_most(what, members.len(), MOST_MEMBERS, "entries", groups)?;
        let mut members = members.iter();
        members.try_for_each(|member| name("a member's name", Some(member)))
    }
}

impl CheckLimits for GpuChange {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            mode: _,
            dry_run: _,
        } = self;
        Ok(())
    }
}

impl CheckLimits for Drain {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            gpus,
            reason,
            until: _,
        } = self;
        named_gpus(gpus)?;
        at_most("the reason", reason.len(), LONGEST_NAME, "bytes", SHORTER)
    }
}

impl CheckLimits for Undrain {
    fn check_limits(&self) -> Result<(), Error> {
        let Self { gpus } = self;
        named_gpus(gpus)
    }
}

impl CheckLimits for MigWanted {
    fn check_limits(&self) -> Result<(), Error> {
        let Self { profiles, gpus_on } = self;
        let fewer = "send fewer profiles at once";
        let what = "the list of profiles";
        at_most(what, profiles.len(), MOST_PROFILES, "entries", fewer)?;
        gpus(gpus_on)?;
        let mut profiles = profiles.iter();
        profiles.try_for_each(|profile| name("the MIG profile", Some(profile)))
    }
}

impl CheckLimits for MigGc {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            gpus_on,
            dry_run: _,
        } = self;
        gpus(gpus_on)
    }
}

impl CheckLimits for Claim {
    fn check_limits(&self) -> Result<(), Error> {
        let Self {
            namespace,
            name: called,
            pods,
            devices,
            compute,
            owner,
            ends,
        } = self;
        for (what, text) in [
            ("the claim's namespace", namespace),
            ("the claim's name", called),
        ] {
            at_most(what, text.len(), LONGEST_CLAIM, "bytes", SHORTER)?;
        }
        name("the compute mode", compute.as_deref())?;
        name("the owner", owner.as_deref())?;
        if let Some(ClaimEnd {
            pid: _,
            start_time: _,
            cancels: _,
            cgroup: Some(folder),
        }) = ends
        {
            at_most(
                "the control group",
                folder.len(),
                LONGEST_TARGET.0,
                "bytes",
                SHORTER,
            )?;
        }
        let fewer = "Kubernetes allows no more in one claim";
        at_most("the claim", devices.len(), MOST_DEVICES, "devices", fewer)?;
        at_most("the claim", pods.len(), MOST_PODS, "pods", fewer)?;
        for pod in pods {
            at_most("the uid of a pod", pod.len(), LONGEST_UID, "bytes", SHORTER)?;
        }
        for device in devices {
            let ClaimDevice {
                gpu,
                memory_bytes: _,
                share: _,
                mig,
                whole: _,
            } = device;
            name("the GPU's UUID", Some(gpu))?;
            if let Some(ClaimInstance { profile, start: _ }) = mig {
                name("the MIG profile", Some(profile))?;
            }
        }
        Ok(())
    }
}

/// Refuses a path or a query that is longer than any that means something.
///
/// # Errors
/// As [`CheckLimits::check_limits`].
pub fn target(path: &str, query: Option<&str>) -> Result<(), Error> {
    let (longest_path, longest_query) = LONGEST_TARGET;
    let hint = "use names of at most 200 bytes";
    at_most("the path", path.len(), longest_path, "bytes", hint)?;
    let query = query.map_or(0, str::len);
    at_most("the query", query, longest_query, "bytes", hint)
}

/// Refuses a pattern for names that is longer than any name.
///
/// # Errors
/// As [`CheckLimits::check_limits`].
pub fn pattern(text: &str) -> Result<(), Error> {
    let hint = "use a shorter pattern";
    at_most("the pattern", text.len(), LONGEST_PATTERN, "bytes", hint)
}

/// Refuses a program's name that is longer than two paths.
///
/// # Errors
/// As [`CheckLimits::check_limits`].
pub fn program(text: &str) -> Result<(), Error> {
    let hint = "use the path of a program, and of the script that it runs";
    at_most("the program", text.len(), LONGEST_PROGRAM, "bytes", hint)
}

const SHORTER: &str = "use a shorter value";
const FILE: &str = "put large values into a file, and its path into the command";
const SCRIPT_FILE: &str = "put large parts into a file that the script reads";
const NOTICE_FILE: &str = "put it into a script, and its path after --notify";
const FEWER_AFTER: &str = "use fewer dependencies: only the last jobs";

fn name(what: &str, text: Option<&str>) -> Result<(), Error> {
    let length = text.map_or(0, str::len);
    at_most(what, length, LONGEST_NAME, "bytes", SHORTER)
}

fn profile(amount: Option<&Amount>) -> Result<(), Error> {
    match amount {
        Some(Amount::Mig { profile }) => name("the MIG profile", Some(profile)),
        Some(
            Amount::Share { thousandths: _ }
            | Amount::Memory { bytes: _ }
            | Amount::Whole { count: _ }
            | Amount::Range { min: _, max: _ }
            | Amount::Shares {
                count: _,
                thousandths: _,
            },
        )
        | None => Ok(()),
    }
}

fn path(what: &str, text: &str) -> Result<(), Error> {
    at_most(what, text.len(), LONGEST_PATH, "bytes", SHORTER)
}

fn first(command: &[String]) -> &str {
    command.first().map_or("", String::as_str)
}

fn image(container: Option<&Container>) -> Result<(), Error> {
    container.map_or(Ok(()), |container| path("the image", &container.image))
}

fn gpus(on: &[u32]) -> Result<(), Error> {
    let once = "name each GPU once";
    at_most("the list of GPUs", on.len(), MOST_GPUS, "entries", once)
}

/// GPUs by index or UUID.
fn named_gpus(gpus: &[String]) -> Result<(), Error> {
    let once = "name each GPU once";
    at_most("the list of GPUs", gpus.len(), MOST_GPUS, "entries", once)?;
    let mut gpus = gpus.iter();
    gpus.try_for_each(|gpu| name("the GPU", Some(gpu)))
}

fn labels(labels: &BTreeMap<String, String>) -> Result<(), Error> {
    let fewer = "labels only serve to find a job; store other data elsewhere";
    let count = labels.len();
    at_most("the list of labels", count, MOST_LABELS, "entries", fewer)?;
    let (name_bytes, value_bytes) = LONGEST_LABEL;
    for (name, value) in labels {
        let what = "the name of a label";
        at_most(what, name.len(), name_bytes, "bytes", fewer)?;
        let plain = |one: char| one.is_ascii_alphanumeric() || "._-/:".contains(one);
        if name.is_empty() || !name.chars().all(plain) {
            let hint = "use letters, digits and ._-/:";
            return Err(usage(format!("{name:?}: not a valid name of a label")).hint(hint));
        }
        let what = format!("the label {name}");
        at_most(&what, value.len(), value_bytes, "bytes", fewer)?;
        if value.contains(char::is_control) {
            return Err(usage(format!(
                "the label {name} contains control characters"
            )));
        }
    }
    Ok(())
}

/// Bytes that a submission takes in the journal, all jobs of its array together.
pub fn written(submit: &Submit) -> u64 {
    let tasks = (submit.array.as_ref()).map_or(1, |array| array.indices.len().max(1));
    let variables = [&submit.env, &submit.secrets];
    let size = size(&submit.command, submit.container.as_ref(), variables);
    (tasks as u64).saturating_mul(size as u64)
}

fn at_most(subject: &str, is: usize, most: usize, unit: &str, hint: &str) -> Result<(), Error> {
    match is <= most {
        true => Ok(()),
        false => {
            let why = format!("{subject} has {is} {unit}, but at most {most} are allowed");
            Err(usage(why).hint(hint))
        }
    }
}

/// Bytes that these words and variables take of a program's stack.
fn size<const N: usize>(
    command: &[String],
    container: Option<&Container>,
    variables: [&BTreeMap<String, String>; N],
) -> usize {
    let arguments = container.into_iter().flat_map(
        |Container {
             image: _,
             arguments,
             starter: _,
             as_submitter: _,
         }| arguments,
    );
    let words = command.iter().chain(arguments);
    let words: usize = words.map(|word| word.len() + WORD).sum();
    // A variable is one word: NAME=VALUE.
    let variable = |(name, value): (&String, &String)| name.len() + 1 + value.len() + WORD;
    let variables = variables.into_iter().flatten();
    words + variables.map(variable).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::super::tests::submit as of;
    use super::*;
    use divvy_api::v1::{After, Array, ErrorCode};

    /// A submit with a command, an environment and secrets of this size.
    fn sized(size: usize) -> Submit {
        let submit = Submit {
            env: [("A".into(), String::new())].into(),
            ..of(&["true"])
        };
        let is = super::size(&submit.command, None, [&submit.env, &submit.secrets]);
        let value = "x".repeat(size - is);
        Submit {
            env: [("A".into(), value)].into(),
            ..submit
        }
    }

    fn array(tasks: u32, submit: Submit) -> Submit {
        Submit {
            array: Some(Array {
                indices: (0..tasks).collect(),
                max_running: None,
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
                as_submitter: false,
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
        assert!(wanted(MOST_PROFILES).check_limits().is_ok());
        let error = wanted(MOST_PROFILES + 1).check_limits().unwrap_err();
        assert!(error.message.contains("1025"), "{}", error.message);
    }

    #[test]
    fn names_and_other_short_texts_have_short_bounds() {
        let named = |length: usize| "n".repeat(length);
        type Put = fn(&mut Submit, String);
        let parts: [(&str, usize, Put); 11] = [
            ("program", 4096, |to, text| to.command = vec![text]),
            ("queue", 200, |to, text| to.queue = Some(text)),
            ("project", 200, |to, text| to.project = Some(text)),
            ("compute", 200, |to, text| to.compute = Some(text)),
            ("latency", 200, |to, text| to.latency = Some(text)),
            ("profile", 200, |to, text| {
                to.amount = Some(Amount::Mig { profile: text });
            }),
            ("cwd", 4096, |to, text| to.cwd = text),
            ("after", 212, |to, text| {
                to.after = vec![After {
                    job: text,
                    ok: true,
                }];
            }),
            ("image", 4096, |to, text| {
                to.container = Some(Container {
                    image: text,
                    arguments: Vec::new(),
                    starter: None,
                    as_submitter: false,
                });
            }),
            ("label", 64, |to, text| {
                to.labels = BTreeMap::from([(text, String::new())]);
            }),
            ("value of a label", 256, |to, text| {
                to.labels = BTreeMap::from([("a".to_owned(), text)]);
            }),
        ];
        for (what, most, put) in parts {
            let with = |length| {
                let mut submit = of(&["true"]);
                put(&mut submit, named(length));
                submit.check_limits()
            };
            assert!(with(most).is_ok(), "{what}");
            let error = with(most + 1).unwrap_err();
            assert_eq!(error.code, ErrorCode::Usage, "{what}");
            assert!(error.message.contains(&most.to_string()), "{error}");
        }
        let array = array(10_001, of(&["true"]));
        assert!(submit(&array).unwrap_err().message.contains("10001"));
        assert!(target(&named(4097), None).is_err() && target("/", Some(&named(16_385))).is_err());
        assert!(target(&named(4096), Some(&named(16_384))).is_ok());
        assert!(pattern(&named(213)).is_err() && pattern(&named(212)).is_ok());
        assert!(program(&named(8193)).is_err() && program(&named(8192)).is_ok());
    }
}

/// Finds each text and each list of each body by its schema, so that none is left out.
#[cfg(test)]
mod schema_tests {
    use divvy_api::openapi::document;
    use divvy_api::route::{Body, ROUTES};
    use divvy_api::v1::ErrorCode;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    /// As many bytes and entries as no body may have in one place.
    const BYTES: usize = LARGEST + 1;
    const ENTRIES: usize = LARGEST / (WORD + 1) + 1;

    /// The schemas of the API.
    struct Schemas(Value);

    impl Schemas {
        fn resolve<'a>(&'a self, schema: &'a Value) -> &'a Value {
            match schema["$ref"].as_str() {
                Some(name) => &self.0[name.rsplit('/').next().unwrap()],
                None => schema,
            }
        }

        /// What the schema may be instead of one thing.
        fn variants<'a>(&self, schema: &'a Value) -> Option<&'a Vec<Value>> {
            let variants = schema["oneOf"].as_array();
            variants.or_else(|| schema["anyOf"].as_array())
        }

        /// The smallest value that the schema takes.
        fn sample(&self, schema: &Value) -> Value {
            let schema = self.resolve(schema);
            if let Some(variants) = self.variants(schema) {
                return self.sample(&variants[0]);
            }
            if let Some(constant) = schema.get("const") {
                return constant.clone();
            }
            if let Some(words) = schema["enum"].as_array() {
                return words[0].clone();
            }
            match kind(schema) {
                "string" => json!("x"),
                "integer" | "number" => json!(1),
                "boolean" => json!(false),
                "array" => json!([]),
                "object" => {
                    let required = schema["required"].as_array().into_iter().flatten();
                    let required = required.map(|name| {
                        let name = name.as_str().unwrap();
                        let value = self.sample(&schema["properties"][name]);
                        (name.to_owned(), value)
                    });
                    Value::Object(required.collect())
                }
                other => panic!("the schema has the type {other}: {schema}"),
            }
        }

        /// Values that the schema takes, each with one text or one list that is too large, and where that is.
        fn too_large(&self, schema: &Value, at: &str, found: &mut Vec<(String, Value)>) {
            let schema = self.resolve(schema);
            for variant in self.variants(schema).into_iter().flatten() {
                self.too_large(variant, at, found);
            }
            // A time is as long as it is.
            let is_fixed = ["const", "enum", "format"]
                .iter()
                .any(|key| schema.get(key).is_some());
            match kind(schema) {
                "string" if !is_fixed => found.push((at.to_owned(), "x".repeat(BYTES).into())),
                "array" => {
                    let item = self.sample(&schema["items"]);
                    found.push((at.to_owned(), vec![item; ENTRIES].into()));
                    let mut items = Vec::new();
                    self.too_large(&schema["items"], &format!("{at}[]"), &mut items);
                    found.extend(items.into_iter().map(|(at, item)| (at, json!([item]))));
                }
                "object" => self.object_too_large(schema, at, found),
                _ => {}
            }
        }

        fn object_too_large(&self, schema: &Value, at: &str, found: &mut Vec<(String, Value)>) {
            let put = |name: &str, value: Value| {
                let mut object = self.sample(schema);
                object[name] = value;
                object
            };
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let mut values = Vec::new();
                self.too_large(property, &format!("{at}.{name}"), &mut values);
                found.extend(values.into_iter().map(|(at, value)| (at, put(name, value))));
            }
            let others = &schema["additionalProperties"];
            if !others.is_object() {
                return;
            }
            let sample = self.sample(others);
            let names = (0..ENTRIES).map(|name| (name.to_string(), sample.clone()));
            found.push((at.to_owned(), Value::Object(names.collect())));
            found.push((format!("{at}.KEY"), put(&"x".repeat(BYTES), sample)));
            let mut values = Vec::new();
            self.too_large(others, &format!("{at}.VALUE"), &mut values);
            found.extend(values.into_iter().map(|(at, value)| (at, put("x", value))));
        }
    }

    /// The type of a schema, of which null is one more.
    fn kind(schema: &Value) -> &str {
        match &schema["type"] {
            Value::Array(kinds) => {
                let mut kinds = kinds.iter().filter_map(Value::as_str);
                kinds.find(|kind| *kind != "null").unwrap_or("null")
            }
            kind => kind.as_str().unwrap_or("null"),
        }
    }

    /// Where a body of this type was made too large.
    fn refuses<T: DeserializeOwned + CheckLimits>(schemas: &Schemas, name: &str) -> Vec<String> {
        let schema = &schemas.0[name];
        let read = |value: Value| serde_json::from_value::<T>(value);
        let sample = read(schemas.sample(schema)).unwrap();
        sample.check_limits().expect("the smallest body");
        let mut found = Vec::new();
        schemas.too_large(schema, name, &mut found);
        let refused = |(at, value): (String, Value)| {
            let body = read(value).unwrap_or_else(|error| panic!("{at}: {error}"));
            let error = body.check_limits().err();
            let error = error.unwrap_or_else(|| panic!("{at} has no bound"));
            assert_eq!(error.code, ErrorCode::Usage, "{at}");
            assert!(error.message.len() < 400, "{at}: it repeats the text");
            at
        };
        found.into_iter().map(refused).collect()
    }

    #[test]
    fn every_text_and_every_list_of_every_body_has_a_bound() {
        let schemas = Schemas(document()["components"]["schemas"].clone());
        let mut places = Vec::new();
        for route in ROUTES {
            let Body::Json(name) = route.body else {
                continue;
            };
            places.extend(match name {
                "Submit" => refuses::<Submit>(&schemas, name),
                "Confirm" => refuses::<Confirm>(&schemas, name),
                "Resize" => refuses::<Resize>(&schemas, name),
                "JobChange" => refuses::<JobChange>(&schemas, name),
                "Suspend" => refuses::<Suspend>(&schemas, name),
                "CancelJob" => refuses::<CancelJob>(&schemas, name),
                "JobsChange" => refuses::<JobsChange>(&schemas, name),
                "Exec" => refuses::<Exec>(&schemas, name),
                "SignalJob" => refuses::<SignalJob>(&schemas, name),
                "ProjectChange" => refuses::<ProjectChange>(&schemas, name),
                "GpuChange" => refuses::<GpuChange>(&schemas, name),
                "Drain" => refuses::<Drain>(&schemas, name),
                "Undrain" => refuses::<Undrain>(&schemas, name),
                "MigWanted" => refuses::<MigWanted>(&schemas, name),
                "MigGc" => refuses::<MigGc>(&schemas, name),
                "Claim" => refuses::<Claim>(&schemas, name),
                other => panic!("{other} is a body without bounds"),
            });
        }
        // The walk finds what there is, of each kind once.
        for place in [
            "Submit.project",
            "Submit.command",
            "Submit.command[]",
            "Submit.container.arguments[]",
            "Submit.env",
            "Submit.env.KEY",
            "Submit.env.VALUE",
            "Submit.after[].job",
            "Submit.amount.profile",
            "Submit.array.indices",
            "JobChange.name",
            "Claim.devices[].mig.profile",
            "Exec.terminal.kind",
        ] {
            assert!(
                places.iter().any(|at| at == place),
                "{place} is not in {places:?}"
            );
        }
    }
}
