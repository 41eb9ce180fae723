//! Parser of `#SBATCH` lines: it accepts, ignores or refuses each option of sbatch(1).
//!
//! - An accepted option becomes flags of `divvy submit`, or a variable of the job.
//! - An ignored option has no effect, and a message on stderr gives the reason.
//! - Without a refused option the job would differ. The exit code is 2, with the number of the line.

use std::collections::BTreeMap;

use divvy_core::Amount;
use divvy_core::docker::words;

use crate::error_output::{Result, usage};

/// An array has fewer; the daemon says how many.
const MOST_INDICES: usize = 100_000;

/// One line of directives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// From 1.
    pub number: usize,
    pub text: String,
}

/// Options of the `#SBATCH` lines of a script.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SbatchFlags {
    /// Flags of `divvy submit`.
    pub flags: Vec<String>,
    /// Variables that Slurm would set.
    pub env: BTreeMap<String, String>,
    /// Options without effect, by the reason.
    pub ignored: BTreeMap<&'static str, Vec<String>>,
}

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    None,
    Needed,
    /// `--nice` and `--nice=5`.
    Optional,
}

/// Treatment of an option.
#[derive(Clone, Copy)]
enum Fate {
    Taken(fn(&mut State, &str) -> Result<(), String>),
    Explained(&'static str),
    Refused(&'static str),
}

use Fate::{Explained, Refused, Taken};
use Value::{Needed, None as Alone, Optional};

const COUNTED: &str = "Divvy allocates only GPUs, not processors or host memory";
const QUEUE: &str = "Divvy has queues instead of partitions; use -q QUEUE";
const PROJECT: &str = "Divvy has projects instead of Slurm accounts; use -p PROJECT";
const ONE_NODE: &str = "Divvy runs jobs on this machine only";
const MODEL: &str =
    "Divvy does not select GPUs by model, feature or topology; use --gpus-on with indices";
const SHARD: &str =
    "the size of a shard depends on the Slurm site; use -g 0.25 for a quarter of a GPU";
const MAIL: &str = "Divvy sends no mail; use --notify CMD to run a command when the job has ended";
const SHARING: &str = "-g 1 gives the job a whole GPU; fractions share a GPU with other jobs";
const AGAIN: &str = "Divvy starts a job again after preemption; use --retries N for failures";
const SIGNALS: &str = "at its time limit a job gets SIGTERM, and SIGKILL after the daemon's grace";
const EXPORT: &str = "the job gets the variables of this shell";
const PRIORITY: &str = "use --priority with a number from -1000 to 1000";
const WAITING: &str = "use `divvy wait JOB` to wait for the end";
const RECORD: &str = "Divvy has no field for it";
const NONE: &str = "Divvy has no such feature";
const OF_SRUN: &str = "Divvy has no job steps and no `srun`";
const IMAGE: &str = "add the image on the command line: --docker IMAGE";
const TEXT: &str = "remove the line: it would print a text and submit nothing";

struct Known(&'static str, Option<char>, Value, Fate);

/// The options of sbatch (Slurm 26.05, sbatch(1)), and those of earlier releases that 26.05 no longer has.
const KNOWN: &[Known] = &[
    Known("account", Some('A'), Needed, Explained(PROJECT)),
    Known("acctg-freq", None, Needed, Explained(RECORD)),
    Known("array", Some('a'), Needed, Taken(array)),
    Known("batch", None, Needed, Explained(ONE_NODE)),
    Known("bb", None, Needed, Refused("stage the files in the script")),
    Known(
        "bbf",
        None,
        Needed,
        Refused("stage the files in the script"),
    ),
    Known(
        "begin",
        Some('b'),
        Needed,
        Refused("submit it at that time, with at(1) or cron(8)"),
    ),
    Known(
        "chdir",
        Some('D'),
        Needed,
        Taken(|to, value| to.flag("--chdir", value)),
    ),
    Known(
        "workdir",
        None,
        Needed,
        Taken(|to, value| to.flag("--chdir", value)),
    ),
    Known("cluster-constraint", None, Needed, Explained(ONE_NODE)),
    Known("clusters", Some('M'), Needed, Explained(ONE_NODE)),
    Known("comment", None, Needed, Explained(RECORD)),
    Known("consolidate-segments", None, Alone, Explained(ONE_NODE)),
    Known("constraint", Some('C'), Needed, Explained(MODEL)),
    Known("container", None, Needed, Refused(IMAGE)),
    Known("container-id", None, Needed, Refused(IMAGE)),
    Known("container-type", None, Needed, Refused(IMAGE)),
    Known("contiguous", None, Alone, Explained(ONE_NODE)),
    Known("core-spec", Some('S'), Needed, Explained(COUNTED)),
    Known("cores-per-socket", None, Needed, Explained(COUNTED)),
    Known("cpu-freq", None, Needed, Explained(COUNTED)),
    Known("cpus-per-gpu", None, Needed, Explained(COUNTED)),
    Known("cpus-per-task", Some('c'), Needed, Taken(processors)),
    Known(
        "deadline",
        None,
        Needed,
        Refused("set a time limit: --time 2h"),
    ),
    Known("delay-boot", None, Needed, Explained(ONE_NODE)),
    Known("dependency", Some('d'), Needed, Taken(dependency)),
    Known("distribution", Some('m'), Needed, Explained(ONE_NODE)),
    Known(
        "error",
        Some('e'),
        Needed,
        Taken(|to, value| to.flag("--stderr", value)),
    ),
    Known("exclude", Some('x'), Needed, Explained(ONE_NODE)),
    Known("exclusive", None, Optional, Explained(SHARING)),
    Known("export", None, Needed, Taken(export)),
    Known(
        "export-file",
        None,
        Needed,
        Refused("use --env-file FILE, with lines NAME=VALUE"),
    ),
    Known("extra", None, Needed, Explained(RECORD)),
    Known("extra-node-info", Some('B'), Needed, Explained(COUNTED)),
    Known("get-user-env", None, Optional, Explained(EXPORT)),
    Known(
        "gid",
        None,
        Needed,
        Refused("the job runs as your own user and groups"),
    ),
    Known("gpu-bind", None, Needed, Explained(OF_SRUN)),
    Known("gpu-freq", None, Needed, Explained(NONE)),
    Known("gpus", Some('G'), Needed, Taken(gpus)),
    Known("gpus-per-node", None, Needed, Taken(gpus)),
    Known(
        "gpus-per-socket",
        None,
        Needed,
        Refused("set the number of GPUs: -g 2"),
    ),
    Known("gpus-per-task", None, Needed, Taken(gpus_per_task)),
    Known("gres", None, Needed, Taken(gres)),
    Known("gres-flags", None, Needed, Explained(MODEL)),
    Known("help", Some('h'), Alone, Refused(TEXT)),
    Known("hint", None, Needed, Explained(COUNTED)),
    Known("hold", Some('H'), Alone, Taken(|to, _| to.push("--hold"))),
    Known("ignore-pbs", None, Alone, Taken(|_, _| Ok(()))),
    Known(
        "input",
        Some('i'),
        Needed,
        Refused("redirect it in the script: program < FILE"),
    ),
    Known("job-name", Some('J'), Needed, Taken(name)),
    Known("kill-on-invalid-dep", None, Needed, Explained(NONE)),
    Known("licenses", Some('L'), Needed, Explained(NONE)),
    Known("mail-type", None, Needed, Explained(MAIL)),
    Known("mail-user", None, Needed, Explained(MAIL)),
    Known("mcs-label", None, Needed, Explained(RECORD)),
    Known("mem", None, Needed, Explained(COUNTED)),
    Known("mem-bind", None, Needed, Explained(COUNTED)),
    Known("mem-per-cpu", None, Needed, Explained(COUNTED)),
    Known("mem-per-gpu", None, Needed, Explained(COUNTED)),
    Known("mem-update", None, Needed, Explained(COUNTED)),
    Known("mincpus", None, Needed, Explained(COUNTED)),
    Known("network", None, Needed, Explained(ONE_NODE)),
    Known("nice", None, Optional, Taken(nice)),
    Known("no-kill", Some('k'), Optional, Explained(ONE_NODE)),
    Known("no-requeue", None, Alone, Explained(AGAIN)),
    Known("nodefile", Some('F'), Needed, Explained(ONE_NODE)),
    Known("nodelist", Some('w'), Needed, Explained(ONE_NODE)),
    Known("nodes", Some('N'), Needed, Taken(nodes)),
    Known("ntasks", Some('n'), Needed, Taken(tasks)),
    Known("ntasks-per-core", None, Needed, Explained(COUNTED)),
    Known("ntasks-per-gpu", None, Needed, Explained(OF_SRUN)),
    Known("ntasks-per-node", None, Needed, Taken(tasks)),
    Known("tasks-per-node", None, Needed, Taken(tasks)),
    Known("ntasks-per-socket", None, Needed, Explained(COUNTED)),
    Known("oom-kill-step", None, Optional, Explained(OF_SRUN)),
    Known(
        "open-mode",
        None,
        Needed,
        Taken(|to, value| to.flag("--open-mode", value)),
    ),
    Known(
        "output",
        Some('o'),
        Needed,
        Taken(|to, value| to.flag("--stdout", value)),
    ),
    Known("overcommit", Some('O'), Alone, Explained(COUNTED)),
    Known("oversubscribe", Some('s'), Alone, Explained(SHARING)),
    Known(
        "parsable",
        None,
        Alone,
        Taken(|to, _| to.push("--parsable")),
    ),
    Known("partition", Some('p'), Needed, Explained(QUEUE)),
    Known("power", None, Needed, Explained(NONE)),
    Known("prefer", None, Needed, Explained(MODEL)),
    Known("priority", None, Needed, Explained(PRIORITY)),
    Known("profile", None, Needed, Explained(NONE)),
    Known("propagate", None, Optional, Explained(NONE)),
    Known("qos", Some('q'), Needed, Explained(PRIORITY)),
    Known("quiet", Some('Q'), Alone, Taken(|_, _| Ok(()))),
    Known("reboot", None, Alone, Refused("remove the line")),
    Known("requeue", None, Optional, Explained(AGAIN)),
    Known("reservation", None, Needed, Explained(NONE)),
    Known("resources", None, Needed, Explained(NONE)),
    Known("resv-ports", None, Optional, Explained(OF_SRUN)),
    Known("segment", None, Needed, Explained(ONE_NODE)),
    Known("signal", None, Needed, Explained(SIGNALS)),
    Known("sockets-per-node", None, Needed, Explained(COUNTED)),
    Known("spread-job", None, Alone, Explained(ONE_NODE)),
    Known("spread-segments", None, Alone, Explained(ONE_NODE)),
    Known("stepmgr", None, Alone, Explained(OF_SRUN)),
    Known("switches", None, Needed, Explained(ONE_NODE)),
    Known(
        "test-only",
        None,
        Alone,
        Taken(|to, _| to.push("--dry-run")),
    ),
    Known("thread-spec", None, Needed, Explained(COUNTED)),
    Known("threads-per-core", None, Needed, Explained(COUNTED)),
    Known("time", Some('t'), Needed, Taken(time)),
    Known(
        "time-min",
        None,
        Needed,
        Explained("use --time, the longest run time"),
    ),
    Known("tmp", None, Needed, Explained(COUNTED)),
    Known("tres-bind", None, Needed, Explained(OF_SRUN)),
    Known(
        "tres-per-task",
        None,
        Needed,
        Refused("set the number of GPUs: -g 2"),
    ),
    Known(
        "uid",
        None,
        Needed,
        Refused("the job runs as your own user and groups"),
    ),
    Known("usage", None, Alone, Refused(TEXT)),
    Known("use-min-nodes", None, Alone, Explained(ONE_NODE)),
    Known("verbose", Some('v'), Alone, Taken(|_, _| Ok(()))),
    Known("version", Some('V'), Alone, Refused(TEXT)),
    Known("wait", Some('W'), Alone, Explained(WAITING)),
    Known("wait-all-nodes", None, Needed, Explained(ONE_NODE)),
    Known("wckey", None, Needed, Explained(RECORD)),
    Known(
        "wrap",
        None,
        Needed,
        Refused("remove the line: the job runs the script itself"),
    ),
];

/// Reads the lines of a script; `file` is how messages name it.
///
/// # Errors
/// [`ErrorCode::Usage`](divvy_api::v1::ErrorCode::Usage) with the number of the line and what to write.
pub fn read(lines: &[Line], file: &str) -> Result<SbatchFlags> {
    let mut state = State::default();
    for line in lines {
        let wrong = |message: String, hint: &str| {
            usage(format!("line {} of {file}: {message}", line.number), hint)
        };
        let words = words::split(without_comment(&line.text))
            .map_err(|error| wrong(error.to_string(), "close the quote"))?;
        let mut words = words.into_iter().peekable();
        while let Some(word) = words.next() {
            let (known, shown, attached) =
                find(&word).map_err(|(message, hint)| wrong(message, hint))?;
            let Known(_, _, takes, fate) = known;
            let value = match (takes, attached) {
                (Value::None, Some(_)) => {
                    return Err(wrong(
                        format!("{shown} takes no value"),
                        "use the option without a value",
                    ));
                }
                (Value::None | Value::Optional, None) => String::new(),
                (_, Some(value)) => value,
                (Value::Needed, None) => words.next().ok_or_else(|| {
                    wrong(format!("{shown} has no value"), "add the value after it")
                })?,
            };
            match fate {
                Taken(take) => take(&mut state, &value)
                    .map_err(|hint| wrong(format!("{shown} {value}: not supported"), &hint))?,
                Explained(why) => state.ignore(why, &shown),
                Refused(hint) => {
                    return Err(wrong(format!("{shown}: not supported"), hint));
                }
            }
        }
    }
    state
        .finish()
        .map_err(|(message, hint)| usage(format!("{file}: {message}"), hint))
}

/// A line up to a `#` that begins a word outside of quotes.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') if before.is_ascii_whitespace() => return &line[..at],
            (None, '"' | '\'') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            _ => {}
        }
        before = letter;
    }
    line
}

type Found = (&'static Known, String, Option<String>);

/// How Divvy does what an option of sbatch asks for, where it has no flag of this name.
pub(crate) fn instead_of(option: &str) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| known.0 == option)?;
    match known.3 {
        Explained(why) => Some(why),
        Taken(_) | Refused(_) => None,
    }
}

/// The options that a long name means. As for sbatch, the beginning of a name is enough where no other begins so.
fn of_name(name: &str) -> Vec<&'static Known> {
    let exact = KNOWN.iter().find(|known| known.0 == name);
    let begin = KNOWN
        .iter()
        .filter(|known| known.0.starts_with(name) && !name.is_empty());
    exact.map_or_else(|| begin.collect(), |known| vec![known])
}

/// The option that a word names, as it is written, and the value that stands in the same word.
fn find(word: &str) -> Result<Found, (String, &'static str)> {
    const UNKNOWN: &str =
        "remove the line; or put `--` before the script, and Divvy reads none of its lines";
    let unknown = |option: &str| (format!("{option} is not an option of sbatch"), UNKNOWN);
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        let shown = format!("--{name}");
        return match of_name(name)[..] {
            [known] => Ok((known, shown, value)),
            [] => Err(unknown(&shown)),
            [ref first @ .., last] => {
                let first: Vec<String> =
                    first.iter().map(|known| format!("--{}", known.0)).collect();
                let first = first.join(", ");
                Err((
                    format!("{shown} can mean {first} or --{}", last.0),
                    "write the whole name of the option",
                ))
            }
        };
    }
    if word.starts_with(['–', '—', '−']) {
        let hint = "the line has a typographic dash: use `-`";
        return Err((format!("`{word}` is not an option"), hint));
    }
    let short = word.strip_prefix('-').and_then(|rest| rest.chars().next());
    let Some(short) = short else {
        return Err((format!("`{word}` is not an option"), UNKNOWN));
    };
    let shown = format!("-{short}");
    let known = KNOWN.iter().find(|known| known.1 == Some(short));
    let rest = &word[shown.len()..];
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    let value = (!rest.is_empty()).then(|| rest.to_owned());
    Ok((known.ok_or_else(|| unknown(&shown))?, shown, value))
}

/// Options so far. A later option replaces an earlier one of its kind.
#[derive(Default)]
struct State {
    asked: SbatchFlags,
    gpus: Option<u32>,
    /// The MIG profile that is the type of the GPUs.
    instance: Option<Amount>,
    gpus_per_task: Option<u32>,
    tasks: Option<u32>,
}

impl State {
    fn flag(&mut self, flag: &str, value: &str) -> Result<(), String> {
        self.push(&format!("{flag}={value}"))
    }

    fn push(&mut self, word: &str) -> Result<(), String> {
        self.asked.flags.push(word.to_owned());
        Ok(())
    }

    fn ignore(&mut self, why: &'static str, option: &str) {
        let options = self.asked.ignored.entry(why).or_default();
        if !options.iter().any(|named| named == option) {
            options.push(option.to_owned());
        }
    }

    fn set(&mut self, name: &str, value: impl ToString) {
        self.asked.env.insert(name.to_owned(), value.to_string());
    }

    /// Several options ask for GPUs, and go together.
    fn finish(mut self) -> Result<SbatchFlags, (String, &'static str)> {
        let of_tasks = match self.gpus_per_task {
            Some(each) => {
                let tasks = self.tasks.unwrap_or(1);
                let all = each.checked_mul(tasks);
                Some(all.ok_or_else(|| {
                    let why = format!("{tasks} tasks with {each} GPUs each are too many");
                    (why, "set the number of GPUs: -g 2")
                })?)
            }
            None => None,
        };
        let gpus = self.gpus.or(of_tasks).unwrap_or(0);
        match self.instance {
            Some(instance) if gpus == 1 => {
                self.asked.flags.push(format!("--mig-profile={instance}"));
            }
            Some(instance) if gpus > 1 => {
                let why = format!("{gpus} GPUs are requested, and among them {instance}");
                return Err((
                    why,
                    "request one MIG instance, or GPUs without a MIG type: -g 2",
                ));
            }
            _ if gpus > 0 => self.asked.flags.push(format!("--gpu={gpus}")),
            _ => {}
        }
        Ok(self.asked)
    }
}

fn number(text: &str) -> Result<u32, String> {
    text.trim()
        .parse()
        .map_err(|_| "use a whole number".to_owned())
}

fn name(to: &mut State, value: &str) -> Result<(), String> {
    to.set("SLURM_JOB_NAME", value);
    to.flag("--name", value)
}

fn processors(to: &mut State, value: &str) -> Result<(), String> {
    let count = number(value)?;
    to.set("SLURM_CPUS_PER_TASK", count);
    to.ignore(COUNTED, "--cpus-per-task");
    Ok(())
}

fn tasks(to: &mut State, value: &str) -> Result<(), String> {
    to.tasks = Some(number(value)?);
    to.ignore(COUNTED, "--ntasks");
    Ok(())
}

/// `1`, `1-1`, `1-4`: at least the first.
fn nodes(_: &mut State, value: &str) -> Result<(), String> {
    let least = value.split_once('-').map_or(value, |(least, _)| least);
    match number(least)? {
        0 | 1 => Ok(()),
        _ => Err("Divvy uses one machine: request its GPUs with -g N, and start the processes with torchrun".to_owned()),
    }
}

/// `2`, `a100:2`, `v100:1,a100:1`.
fn gpus(to: &mut State, value: &str) -> Result<(), String> {
    let count = gpus_in(to, value)?;
    to.gpus = Some(count);
    Ok(())
}

fn gpus_per_task(to: &mut State, value: &str) -> Result<(), String> {
    let count = gpus_in(to, value)?;
    to.gpus_per_task = Some(count);
    Ok(())
}

fn gpus_in(to: &mut State, value: &str) -> Result<u32, String> {
    let mut count: u32 = 0;
    for part in value.split(',') {
        let part = part.split('(').next().unwrap_or_default();
        let (model, gpus) = match part.rsplit_once(':') {
            Some((model, gpus)) => (Some(model), gpus),
            None => (None, part),
        };
        if let Some(model) = model {
            match Amount::from_slurm_type(model) {
                Some(instance) => to.instance = Some(instance),
                None => to.ignore(MODEL, "the GPUs' model"),
            }
        }
        count = count
            .checked_add(number(gpus)?)
            .ok_or("use a smaller number")?;
    }
    Ok(count)
}

/// `gpu`, `gpu:2`, `gpu:a100:2(S:0)`, and others than GPUs, in a list.
fn gres(to: &mut State, value: &str) -> Result<(), String> {
    for part in value.split(',') {
        let (kind, rest) = part.split_once([':', '=']).unwrap_or((part, ""));
        match (kind, rest) {
            ("gpu", rest) => {
                let last = rest.split('(').next().unwrap_or_default();
                let last = last.rsplit(':').next().unwrap_or_default();
                let is_counted = last.chars().all(|letter| letter.is_ascii_digit());
                // `gpu` and `gpu:a100` are one.
                let rest = match (rest, is_counted) {
                    ("", _) => "1".to_owned(),
                    (rest, true) => rest.to_owned(),
                    (model, false) => format!("{model}:1"),
                };
                gpus(to, &rest)?;
            }
            ("shard", _) => to.ignore(SHARD, "--gres=shard"),
            ("none", _) => {}
            (other, _) => to.ignore(NONE, &format!("--gres={other}")),
        }
    }
    Ok(())
}

/// `--nice` without a value is 100; a lower priority is a higher figure.
fn nice(to: &mut State, value: &str) -> Result<(), String> {
    let nice = match value {
        "" => 100,
        value => value
            .parse::<i64>()
            .map_err(|_| "use a whole number".to_owned())?,
    };
    to.flag("--priority", &(-nice.clamp(-1000, 1000)).to_string())
}

/// Minutes, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes`, `days-hours:minutes:seconds`; 0 and
/// `UNLIMITED` are no limit.
fn time(to: &mut State, value: &str) -> Result<(), String> {
    const FORMS: &str =
        "use minutes, minutes:seconds, hours:minutes:seconds or days-hours:minutes:seconds";
    if ["unlimited", "infinite"].contains(&value.to_ascii_lowercase().as_str()) {
        return Ok(());
    }
    let (days, rest) = match value.split_once('-') {
        Some((days, rest)) => (Some(days), rest),
        None => (None, value),
    };
    let figure = |text: &str| {
        text.parse::<u32>()
            .map(u64::from)
            .map_err(|_| FORMS.to_owned())
    };
    let parts = rest
        .split(':')
        .map(figure)
        .collect::<Result<Vec<u64>, _>>()?;
    let days_s = days.map_or(Ok(0), figure)? * 86_400;
    let seconds = match (days.is_some(), parts.as_slice()) {
        (false, [minutes]) => minutes * 60,
        (false, [minutes, seconds]) => minutes * 60 + seconds,
        (true, [hours]) => hours * 3600,
        (true, [hours, minutes]) => hours * 3600 + minutes * 60,
        (_, [hours, minutes, seconds]) => hours * 3600 + minutes * 60 + seconds,
        _ => return Err(FORMS.to_owned()),
    };
    match days_s + seconds {
        0 => Ok(()),
        seconds => to.flag("--time", &format!("{seconds}s")),
    }
}

/// `0-15`, `0,6,16-32`, `0-20:4`, each with `%N` behind it, in brackets or not.
fn array(to: &mut State, value: &str) -> Result<(), String> {
    const FORMS: &str = "use 0-9, 1,3,5-7, 0-20:4, or 0-99%4 for at most four at once";
    let (list, most) = match value.split_once('%') {
        Some((list, most)) => (list, Some(number(most.trim_end_matches(']'))?)),
        None => (value, None),
    };
    let list = list.trim_start_matches('[').trim_end_matches(']');
    let mut indices: Vec<u32> = Vec::new();
    for part in list.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, number(step)?),
            None => (part, 1),
        };
        let (from, upto) = range.split_once('-').unwrap_or((range, range));
        let read = |text: &str| number(text).map_err(|_| FORMS.to_owned());
        let (from, upto) = (read(from)?, read(upto)?);
        let step = usize::try_from(step).unwrap_or(usize::MAX);
        if from > upto || step == 0 || (upto - from) as usize / step >= MOST_INDICES {
            return Err(FORMS.to_owned());
        }
        indices.extend((from..=upto).step_by(step));
        if indices.len() > MOST_INDICES {
            return Err(FORMS.to_owned());
        }
    }
    to.set("SLURM_ARRAY_TASK_COUNT", indices.len());
    for (name, index) in [("MIN", indices.iter().min()), ("MAX", indices.iter().max())] {
        if let Some(index) = index {
            to.set(&format!("SLURM_ARRAY_TASK_{name}"), index);
        }
    }
    let most = most.map(|most| format!("%{most}")).unwrap_or_default();
    let list: Vec<String> = indices.iter().map(ToString::to_string).collect();
    to.flag("--array", &format!("{}{most}", list.join(",")))
}

/// `afterok:1:2,afterany:3`: all of them.
fn dependency(to: &mut State, value: &str) -> Result<(), String> {
    const ANY: &str = "Divvy waits for all listed jobs: use a comma instead of `?`";
    if value.contains('?') {
        return Err(ANY.to_owned());
    }
    for part in value.split(',') {
        let (kind, jobs) = part.split_once(':').unwrap_or((part, ""));
        let flag = match kind {
            "afterok" => "--after-ok",
            "afterany" => "--after",
            "after" => {
                return Err(
                    "Divvy cannot wait for a start; `afterany` waits for the end".to_owned(),
                );
            }
            _ => return Err("use afterok (--after-ok) or afterany (--after)".to_owned()),
        };
        for job in jobs.split(':') {
            if job.is_empty() {
                return Err("add a job: afterok:12".to_owned());
            }
            to.flag(flag, job)?;
        }
    }
    Ok(())
}

/// `ALL`, `ALL,NAME=VALUE`, `NAME`.
fn export(to: &mut State, value: &str) -> Result<(), String> {
    let names: Vec<&str> = value.split(',').filter(|name| !name.is_empty()).collect();
    if !names.contains(&"ALL") {
        to.ignore(EXPORT, "--export");
    }
    for name in names {
        // A name alone is among the variables of this shell.
        if name.contains('=') {
            to.flag("--env", name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        crate::script::Header::of(text).sbatch
    }

    fn read_all(text: &str) -> Result<SbatchFlags> {
        read(&lines(text), "job.sh")
    }

    fn flags(line: &str) -> Vec<String> {
        read_all(&format!("#!/bin/sh\n#SBATCH {line}\n"))
            .unwrap()
            .flags
    }

    fn refused(line: &str) -> String {
        let error = read_all(&format!("#!/bin/sh\n#SBATCH {line}\n")).unwrap_err();
        assert_eq!(error.code.exit_code(), 2);
        format!("{} | {}", error.message, error.hint.unwrap_or_default())
    }

    #[test]
    fn a_time_has_every_form_of_slurms() {
        for (written, seconds) in [
            ("90", 5400),
            ("1:30", 90),
            ("2:00:00", 7200),
            ("1-0", 86_400),
            ("7-0", 604_800),
            ("1-12:30", 131_400),
            ("2-01:02:03", 176_523),
            ("00:00:01", 1),
        ] {
            assert_eq!(
                flags(&format!("-t {written}")),
                [format!("--time={seconds}s")]
            );
        }
        for unlimited in ["0", "UNLIMITED", "infinite", "0-0:0:0"] {
            assert!(
                flags(&format!("--time={unlimited}")).is_empty(),
                "{unlimited}"
            );
        }
        for wrong in ["soon", "1:2:3:4", "1-", "-5", "1-1-1", "99999999999"] {
            let said = refused(&format!("--time={wrong}"));
            assert!(
                said.contains("line 2 of job.sh: --time") && said.contains("minutes"),
                "{said}"
            );
        }
    }

    #[test]
    fn gpus_are_counted_however_they_are_written() {
        for (written, gpus) in [
            ("-G 2", Some(2)),
            ("-G a100:1", Some(1)),
            ("--gpus=v100:1,a100:2", Some(3)),
            ("--gpus-per-node=4", Some(4)),
            ("--gres=gpu", Some(1)),
            ("--gres gpu:2", Some(2)),
            ("--gres=gpu:a100:2(S:0-1)", Some(2)),
            ("--gres=gpu:a100", Some(1)),
            ("--gres=tmp:10G,gpu:1", Some(1)),
            ("--gpus-per-task=1 -n 4", Some(4)),
            ("--ntasks-per-node=2 --gpus-per-task=a100:2", Some(4)),
            ("--gres=gpu:A100_80GB:1", Some(1)),
            ("--gres=gpu:A100.80gb:1", Some(1)),
            ("--gres=gpu:a100_40g:1", Some(1)),
            ("--gres=gpu:rtx8000:0", None),
            ("--gres=gpu:a100_3g.20gb:0", None),
            ("--gres=shard:4", None),
        ] {
            let expected: Vec<String> = gpus
                .iter()
                .map(|gpus: &u32| format!("--gpu={gpus}"))
                .collect();
            assert_eq!(flags(written), expected, "{written}");
        }
        for (written, profile) in [
            ("--gres=gpu:a100_3g.20gb:1", "3g.20gb"),
            ("--gres=gpu:a100_3g.20gb", "3g.20gb"),
            ("--gres=gpu:1g.5gb:1(S:0)", "1g.5gb"),
            ("--gpus-per-node=nvidia_h100_80gb_hbm3_1g.10gb:1", "1g.10gb"),
            ("-G h200_1g.18gb+me:1", "1g.18gb+me"),
            // Types of public job files, and of sites that separate otherwise.
            ("--gres=gpu:nvidia_a100_3g.20gb:1", "3g.20gb"),
            ("--gres=gpu:a100_4g.20gb:1", "4g.20gb"),
            ("--gres=gpu:1g.10gb", "1g.10gb"),
            ("--gres=gpu:1g.24gb:1", "1g.24gb"),
            ("--gres=gpu:a100-1g.5gb:1", "1g.5gb"),
            ("--gres=gpu:mig-3g.71gb:1", "3g.71gb"),
            ("--gres=gpu:a100.1g.5gb:1", "1g.5gb"),
        ] {
            let expected = [format!("--mig-profile={profile}")];
            assert_eq!(flags(written), expected, "{written}");
        }
        for (several, gpus) in [
            ("-G a100_1g.5gb:2", 2),
            ("--gpus=a100_1g.5gb:1,a100:1", 2),
            ("--gres=gpu:1g.5gb:3", 3),
        ] {
            let said = format!("{gpus} GPUs are requested, and among them 1g.5gb");
            assert!(refused(several).contains(&said), "{several}");
        }
        assert!(refused("-G many").contains("whole number"));
        assert!(refused("--gpus-per-task=4000000000 -n 4000000000").contains("too many"));
    }

    #[test]
    fn arrays_have_steps_bounds_and_brackets() {
        assert_eq!(flags("-a 0-20:10"), ["--array=0,10,20"]);
        assert_eq!(flags("--array=[0-2]%2"), ["--array=0,1,2%2"]);
        assert_eq!(flags("--array=1,3,5-6"), ["--array=1,3,5,6"]);
        for wrong in ["x", "3-1", "0-9:0", "0-4294967295", "", "0-9%x"] {
            let said = refused(&format!("--array='{wrong}'"));
            assert!(said.contains("--array"), "{said}");
        }
        let env = read_all("#!/bin/sh\n#SBATCH -a 3-7:2\n").unwrap().env;
        let of = |name: &str| env[&format!("SLURM_ARRAY_TASK_{name}")].as_str();
        assert_eq!((of("COUNT"), of("MIN"), of("MAX")), ("3", "3", "7"));
    }

    #[test]
    fn jobs_to_run_after_priorities_and_variables_become_flags() {
        assert_eq!(
            flags("-d afterok:1:2,afterany:3"),
            ["--after-ok=1", "--after-ok=2", "--after=3"]
        );
        for wrong in [
            "after:1",
            "afternotok:1",
            "afterok:1?afterok:2",
            "singleton",
            "afterok",
            "afterok:",
        ] {
            let said = refused(&format!("--dependency={wrong}"));
            assert!(said.contains("--dependency"), "{said}");
        }
        assert_eq!(flags("--nice"), ["--priority=-100"]);
        assert_eq!(flags("--nice=99999"), ["--priority=-1000"]);
        assert_eq!(flags("--export=ALL,A=1,B"), ["--env=A=1"]);
        assert_eq!(
            flags("-J x --parsable --test-only"),
            ["--name=x", "--parsable", "--dry-run"]
        );
    }

    #[test]
    fn comments_quotes_and_several_options_on_a_line_are_read_as_by_sbatch() {
        assert_eq!(
            flags("-J \"a #b\" -o 'x y' -N1 # don't change --gres=gpu:9"),
            ["--name=a #b", "--stdout=x y"]
        );
        assert_eq!(
            flags("-JGPU. -oReport-%j.out"),
            ["--name=GPU.", "--stdout=Report-%j.out"]
        );
    }

    #[test]
    fn what_would_make_another_job_is_refused_with_the_line_and_a_hint() {
        for (line, named) in [
            ("-N 2", "one machine"),
            ("--nodes=2-4", "one machine"),
            ("--begin=now+1hour", "at(1)"),
            ("--gpus-per-socket=1", "-g 2"),
            (
                "--no-such-option=1",
                "--no-such-option is not an option of sbatch",
            ),
            ("-Z 1", "-Z is not an option of sbatch"),
            ("--=1", "-- is not an option of sbatch"),
            (
                "--mem-p=1G",
                "--mem-p can mean --mem-per-cpu or --mem-per-gpu",
            ),
            ("--version", "would print a text"),
            ("--container-id=x", "--docker IMAGE"),
            ("–-gpus=8", "typographic dash"),
            ("gpu", "`gpu` is not an option"),
            ("-", "`-` is not an option"),
            ("--time", "--time has no value"),
            ("--parsable=1", "--parsable takes no value"),
            ("-J 'x", "not closed"),
        ] {
            let said = refused(line);
            assert!(
                said.starts_with("line 2 of job.sh: ") && said.contains(named),
                "{line}: {said}"
            );
        }
    }

    /// Options that sbatch got since Slurm 24.05, and beginnings of names, which getopt_long(3) takes.
    #[test]
    fn options_of_new_releases_of_sbatch_are_ignored_with_a_true_reason() {
        for (line, named, reason) in [
            ("--segment=8", "--segment", ONE_NODE),
            ("--segment 8", "--segment", ONE_NODE),
            ("--consolidate-segments", "--consolidate-segments", ONE_NODE),
            ("--spread-segments", "--spread-segments", ONE_NODE),
            ("--oom-kill-step", "--oom-kill-step", OF_SRUN),
            ("--oom-kill-step=1", "--oom-kill-step", OF_SRUN),
            ("--stepmgr", "--stepmgr", OF_SRUN),
            ("--resv-ports=2", "--resv-ports", OF_SRUN),
            ("--tres-bind=gres/gpu:verbose", "--tres-bind", OF_SRUN),
            ("--extra='a=1'", "--extra", RECORD),
            ("--mem-update=4G", "--mem-update", COUNTED),
            ("--resources=power:4", "--resources", NONE),
            ("--requeue=1", "--requeue", AGAIN),
            ("--part=gpu", "--part", QUEUE),
            ("--reserva=x", "--reserva", NONE),
        ] {
            let read = read_all(&format!("#!/bin/sh\n#SBATCH {line}\n")).unwrap();
            assert!(read.flags.is_empty(), "{line}: {:?}", read.flags);
            assert_eq!(
                read.ignored,
                BTreeMap::from([(reason, vec![named.to_owned()])]),
                "{line}"
            );
        }
        assert_eq!(flags("--job=train"), ["--name=train"]);
    }

    /// `repository:path` of a job file, its directives, the flags that they become or the refusal, and the options without effect.
    type Public<'a> = (
        &'a str,
        &'a str,
        Result<&'a [&'a str], &'a str>,
        &'a [&'a str],
    );

    /// Directive lines of twelve public job files, as facts.
    const PUBLIC: &[Public<'_>] = &[
        (
            "MaherDissem/CI-Failing-Builds-Detection:job_script/job_within.sh",
            "--time=48:0:00\n--nodes=1 # number of nodes\n--gres=gpu:1 # GPUs per node\n--mem=8000M # memory per node\n--array=0-14\n--output=./slurm_output/slurm-%A_%a.out",
            Ok(&[
                "--time=172800s",
                "--array=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14",
                "--stdout=./slurm_output/slurm-%A_%a.out",
                "--gpu=1",
            ]),
            &["--mem"],
        ),
        (
            "mdraw/nseg:nseg/sandbox/slurm/jobarrtest.sh",
            "--ntasks=1\n--gres=gpu:1\n--mem=500G\n--cpus-per-task=32\n--time=7-0\n--array=0-3",
            Ok(&["--time=604800s", "--array=0,1,2,3", "--gpu=1"]),
            &["--ntasks", "--mem", "--cpus-per-task"],
        ),
        (
            "NingNing-C/Covid-predict:.history/scripts/train_model_20220517114049.sh",
            "-N 1\n--partition=batch\n-J train\n-o train.%J.out\n-e train.%J.err\n--mail-type=ALL\n--time=7-00:00:00\n--mem=300G\n--gres=gpu:1\n--cpus-per-task=6\n--constraint=[v100]",
            Ok(&[
                "--name=train",
                "--stdout=train.%J.out",
                "--stderr=train.%J.err",
                "--time=604800s",
                "--gpu=1",
            ]),
            &[
                "--mem",
                "--cpus-per-task",
                "--constraint",
                "--mail-type",
                "--partition",
            ],
        ),
        (
            "ArthurMoreDonuts/p-criaq:gpu_serial_job.sh",
            "--account=def-yangw-ab\n--gpus-per-node=1\n--mem=16000M               # memory per node\n--time=0-12:00",
            Ok(&["--time=43200s", "--gpu=1"]),
            &["--mem", "--account"],
        ),
        (
            "jamesafranke/ViT_clouds:scripts/jim_bash.bash",
            "--time=00:30:00\n--job-name=test\n--output=%x_%A.out\n--error=%x_%A.err\n--partition=gpu\n--gres=gpu:4",
            Ok(&[
                "--time=1800s",
                "--name=test",
                "--stdout=%x_%A.out",
                "--stderr=%x_%A.err",
                "--gpu=4",
            ]),
            &["--partition"],
        ),
        (
            "mashooo/pytorch_examples:distributed/ddp-tutorial-series/slurm/sbatch_run.sh",
            "--job-name=multinode-example\n--nodes=2\n--ntasks=2\n--gpus-per-task=1\n--exclusive",
            Err("line 3 of job.sh: --nodes 2: not supported"),
            &[],
        ),
        (
            "mmmmayi/Grad-W:IRM/run.sh",
            "-o temp.out\n--gres=gpu:2\n-w ttnusa6\n--cpus-per-task=16",
            Ok(&["--stdout=temp.out", "--gpu=2"]),
            &["--cpus-per-task", "-w"],
        ),
        (
            "gigantocypris/CT_NVAE:experimental/signal_interrupt.sh",
            "-A m3562_g\n--time=10:00:00\n-C gpu\n-N 1\n-J sig_interrupt      # job name\n-L SCRATCH       # job requires SCRATCH files\n-C gpu\n-q preempt\n--gpus-per-node=4\n--ntasks-per-gpu=1\n--cpus-per-task=32\n-o %j.out\n-e %j.err\n--signal=USR1@60\n--requeue\n--open-mode=append",
            Ok(&[
                "--time=36000s",
                "--name=sig_interrupt",
                "--stdout=%j.out",
                "--stderr=%j.err",
                "--open-mode=append",
                "--gpu=4",
            ]),
            &[
                "--cpus-per-task",
                "-C",
                "-L",
                "--requeue",
                "--signal",
                "-A",
                "-q",
                "--ntasks-per-gpu",
            ],
        ),
        (
            "omriyakir21/ubinet:scripts/submit_job.sh",
            "--job-name=gpu\n--partition=killable # (see resources section)\n--time=1440 # max time (minutes)\n--signal=USR1@120 # how to end job when time’s up\n--nodes=1 # number of machines\n--ntasks=1 # number of processes\n--mem=32000 # CPU memory (MB)\n--gpus=1 # GPU cores per process\n--cpus-per-task=8 # CPU cores per process\n--constraint=\"tesla_v100|quadro_rtx_8000|a100\"",
            Ok(&["--name=gpu", "--time=86400s", "--gpu=1"]),
            &[
                "--ntasks",
                "--mem",
                "--cpus-per-task",
                "--constraint",
                "--signal",
                "--partition",
            ],
        ),
        (
            "Wang-Cankun/example_slurm_bmbl:example_job_xsede_gpu.sh",
            "--job-name example_xsede_gpu_job\n--account ccr180012p\n--time=01:00:00\n--nodes=1 \n--ntasks=24\n–-gpus=8\n--mem=128GB\n-p GPU",
            Err("line 7 of job.sh: `–-gpus=8` is not an option"),
            &[],
        ),
        (
            "junkilee/stable-baselines3:scripts/sb_gpu.sh",
            "-p gpu --gres=gpu:1\n-n 1\n-t 00:05:00",
            Ok(&["--time=300s", "--gpu=1"]),
            &["--ntasks", "-p"],
        ),
        (
            "ltaulell/submission_scripts:Slurm/exclusive+exclusion.sh",
            "--job-name=test\n--partition=Lake-short\n--cpus-per-task=16          # -n\n--ntasks=1\n--time=0-00:10:00           # day-hours:minutes:seconds\n--nodes=1                   # -N (exclusive way)\n--exclusive                 # exclusive mode\n--exclude=c82gluster1       # nobody like gluster1",
            Ok(&["--name=test", "--time=600s"]),
            &[
                "--cpus-per-task",
                "--ntasks",
                "--exclude",
                "--partition",
                "--exclusive",
            ],
        ),
    ];

    #[test]
    fn the_directives_of_public_job_files_are_taken_explained_or_refused() {
        for (from, directives, expected, ignored) in PUBLIC {
            let lines: String = directives
                .lines()
                .map(|line| format!("#SBATCH {line}\n"))
                .collect();
            let read = read_all(&format!("#!/bin/bash\n{lines}"));
            match (read, expected) {
                (Ok(asked), Ok(flags)) => {
                    assert_eq!(asked.flags, *flags, "{from}");
                    let mut named: Vec<&str> = asked
                        .ignored
                        .values()
                        .flatten()
                        .map(String::as_str)
                        .collect();
                    let mut expected = ignored.to_vec();
                    named.sort_unstable();
                    expected.sort_unstable();
                    assert_eq!(named, expected, "{from}");
                }
                (Err(error), Err(message)) => assert_eq!(error.message, *message, "{from}"),
                (read, _) => panic!("{from}: {read:?}"),
            }
        }
    }
}
