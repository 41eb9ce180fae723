//! Program lookup before submission, as the job's supervisor does it later, with suggestions for a mistyped name.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use divvy_api::client::Client;
use divvy_api::program::{self, DEFAULT_PATH, LookupError};
use divvy_api::spelling;
use divvy_api::v1::{Error, ErrorCode, Submit};

use crate::output;
use crate::start::{self, DaemonWanted};

/// As much of a program's file as tells how the kernel starts it: `BINPRM_BUF_SIZE` of Linux.
const BEGINNING: u64 = 256;

/// Letters of a name or path that a message repeats. Enough for the end of most paths; a longer one hides the message.
const LONGEST_SHOWN: usize = 200;

/// Names of a PATH that are compared with one that is not there, at most. A system has some thousand. Ten times that
/// takes a moment; more would make a typing error slow.
const MOST_NAMES: usize = 50_000;

/// A program that cannot be started from the job's folder with the job's PATH.
#[derive(Debug)]
pub struct NoProgram {
    /// Exit code of a shell for this error: 126 or 127.
    pub code: u8,
    pub error: Error,
}

/// Refuses a job without a program file. A job that runs after others only gets a warning: one of them may make the
/// program. The image of a container has programs of its own.
///
/// # Errors
/// Outside, when the daemon cannot be asked; inside, what is wrong with the program.
pub async fn check(
    client: &Client,
    submit: &Submit,
    wanted: DaemonWanted<'_>,
) -> Result<Result<(), NoProgram>, Error> {
    let Err(missing) = look_up(submit) else {
        return Ok(Ok(()));
    };
    if start::agent(client, wanted).await?.default_image.is_some() {
        return Ok(Ok(()));
    }
    if submit.after.is_empty() {
        return Ok(Err(missing));
    }
    let why = missing.error.message;
    output::say(&format!("{why}; it must exist when the job starts"));
    Ok(Ok(()))
}

/// The same where no daemon is asked.
///
/// # Errors
/// [`NoProgram`], with what may have been meant.
pub fn look_up(submit: &Submit) -> Result<(), NoProgram> {
    let Some(name) = submit
        .command
        .first()
        .filter(|_| submit.container.is_none())
    else {
        return Ok(());
    };
    let path = submit.env.get("PATH").or(submit.secrets.get("PATH"));
    let place = SearchContext {
        name,
        path: path.map_or(DEFAULT_PATH, String::as_str),
        cwd: Path::new(&submit.cwd),
    };
    if let Some(script) = &submit.script {
        // Its copy is handed to the interpreter, so neither its path nor its mode counts.
        return match named_but_missing(script.text.as_bytes()) {
            None => Ok(()),
            Some(interpreter) => Err(place.without_interpreter(&interpreter)),
        };
    }
    let refused = match program::find(name, Some(place.path), place.cwd) {
        Ok(file) => match missing_interpreter(&file) {
            None => return Ok(()),
            Some(interpreter) => place.without_interpreter(&interpreter),
        },
        Err(error) => place.refused(&error),
    };
    Err(refused)
}

/// The interpreter that a script's first line names and that is not there. A text without such a line is a shell's, as
/// under execvp(3); a file that cannot be read may be executable all the same.
fn missing_interpreter(file: &Path) -> Option<String> {
    named_but_missing(&beginning(file).ok()?)
}

/// The same by a file's first bytes.
fn named_but_missing(beginning: &[u8]) -> Option<String> {
    // The kernel takes a line without a word for no script.
    let interpreter = split_interpreter_line(beginning.strip_prefix(b"#!")?).next()?;
    (!Path::new(&interpreter).exists()).then_some(interpreter)
}

fn beginning(file: &Path) -> io::Result<Vec<u8>> {
    let mut beginning = Vec::new();
    File::open(file)?
        .take(BEGINNING)
        .read_to_end(&mut beginning)?;
    Ok(beginning)
}

/// The words of a first line `#!` after its two signs, as the kernel splits it: a carriage return is part of a word.
fn split_interpreter_line(line: &[u8]) -> impl Iterator<Item = String> {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = line.split(|byte| b" \t".contains(byte));
    words
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
}

/// What to write instead of a command in one word, a variable, or a word that only a shell knows.
fn of_one_word(name: &str) -> Option<String> {
    const OF_SHELLS: [&str; 9] = [
        "cd", "source", ".", "export", "alias", "ulimit", "set", "unset", "exec",
    ];
    let first = name.split(' ').next().unwrap_or_default();
    let is_assignment = |word: &str| {
        let variable = word.split_once('=').map(|(variable, _)| variable);
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        variable.is_some_and(|variable| !variable.is_empty() && variable.chars().all(is_letter))
    };
    if name.contains(|letter| "&|;<>*$`".contains(letter)) || OF_SHELLS.contains(&first) {
        let words = ["sh", "-c", name].map(str::to_owned);
        return Some(format!(
            "a shell runs that: -- {}",
            short(&crate::text::command_line(&words))
        ));
    }
    if is_assignment(first) {
        return Some(format!("set a variable with --env {}", short(first)));
    }
    let is_quoted = name.trim().contains(' ');
    is_quoted.then(|| {
        format!(
            "it is one word: leave out the quotes: -- {}",
            short(name.trim())
        )
    })
}

/// A program's name and where it is looked for.
struct SearchContext<'a> {
    name: &'a str,
    path: &'a str,
    cwd: &'a Path,
}

impl SearchContext<'_> {
    fn refused(&self, error: &LookupError) -> NoProgram {
        let name = &short(self.name);
        let (why, hint) = match error {
            LookupError::NotInPath(_) => (
                format!("{name} is not in the job's PATH"),
                of_one_word(self.name)
                    .or_else(|| self.meant().map(|meant| format!("did you mean {meant}?")))
                    .unwrap_or_else(|| {
                        format!(
                            "use its full path, or set --env PATH=…; `-- env {name}` looks it up when the job starts"
                        )
                    }),
            ),
            LookupError::File(file, _) if file.is_dir() => (
                format!("{name} is a folder"),
                "use the path of a program in it".to_owned(),
            ),
            LookupError::File(_, error) if error.kind() == io::ErrorKind::NotFound => (
                if name.starts_with('/') {
                    format!("file {name} not found")
                } else {
                    format!("file {name} not found in {}", self.cwd.display())
                },
                match (self.quoted(), self.nearest_beside()) {
                    (Some(hint), _) => hint,
                    (None, Some(meant)) => format!("did you mean {meant}?"),
                    (None, None) => "use the path of an existing program".to_owned(),
                },
            ),
            LookupError::File(file, _) if file.is_file() => (
                format!("{} is not executable", self.display_path(file)),
                self.runnable(file),
            ),
            LookupError::File(file, error) => (
                format!("{} cannot be executed: {error}", self.display_path(file)),
                "use the path of a program that this user may execute".to_owned(),
            ),
        };
        no_program(error.code(), &why, hint)
    }

    fn without_interpreter(&self, interpreter: &str) -> NoProgram {
        let name = &short(self.name);
        let why =
            format!("the first line of {name} names {interpreter}, but this file does not exist");
        let hint = if interpreter.ends_with('\r') {
            // The kernel takes the end of the line for a part of the name.
            format!("it has Windows line ends: sed -i 's/\\r$//' {name}")
        } else {
            "change that line, or put the interpreter before it: bash, python3".to_owned()
        };
        no_program(127, &why, hint)
    }

    /// A file as the user would type it from the job's folder.
    fn display_path(&self, file: &Path) -> String {
        short(&match file.strip_prefix(self.cwd) {
            Ok(below) if !self.name.starts_with('/') => format!("./{}", clean(below)),
            _ => file.display().to_string(),
        })
    }

    /// How to run a file that the kernel does not start.
    fn runnable(&self, file: &Path) -> String {
        let shown = self.display_path(file);
        match self.interpreter(file) {
            Some(interpreter) => format!("did you mean {interpreter} {shown}?"),
            None => format!("chmod +x {shown}"),
        }
    }

    /// The interpreter that a file's first line or its name asks for, where the PATH has it.
    fn interpreter(&self, file: &Path) -> Option<String> {
        let beginning = beginning(file).ok()?;
        let said = beginning.strip_prefix(b"#!").map(|line| {
            let mut words = split_interpreter_line(line).map(|word| base(word.trim_end()));
            let first = words.next().unwrap_or_default();
            match &*first {
                "env" => words.next().unwrap_or_default(),
                _ => first,
            }
        });
        let by_name = match file.extension().and_then(|extension| extension.to_str()) {
            Some("py") => "python3",
            Some("pl") => "perl",
            Some("R" | "r") => "Rscript",
            _ => "bash",
        };
        let is_text = std::str::from_utf8(&beginning).is_ok();
        let wanted = said.or_else(|| is_text.then(|| by_name.to_owned()))?;
        let is_there = program::find(&wanted, Some(self.path), self.cwd).is_ok();
        (is_there && !wanted.contains('/')).then_some(wanted)
    }

    /// The hint for a command in one word whose first part is a program.
    fn quoted(&self) -> Option<String> {
        let (first, _) = self.name.split_once(' ')?;
        program::find(first, Some(self.path), self.cwd).ok()?;
        of_one_word(self.name)
    }

    /// Suggests programs for a name that no folder of the PATH contains.
    fn meant(&self) -> Option<String> {
        let here = self.cwd.join(self.name);
        if here.is_file() {
            let starts = program::find(&format!("./{}", self.name), None, self.cwd).is_ok();
            return Some(match self.interpreter(&here).filter(|_| !starts) {
                Some(interpreter) => format!("{interpreter} {}", self.name),
                None => format!("./{}", self.name),
            });
        }
        let folders: BTreeSet<PathBuf> = (self.path.split(':'))
            .map(|folder| self.cwd.join(folder))
            .collect();
        let entries = folders.iter().flat_map(std::fs::read_dir).flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        let is_there = |name: &String| program::find(name, Some(self.path), self.cwd).is_ok();
        let near = spelling::nearest(self.name, names.take(MOST_NAMES));
        near.into_iter().find(is_there)
    }

    /// The file of nearly this name in the same folder.
    fn nearest_beside(&self) -> Option<String> {
        let (folder, name) = self.name.rsplit_once('/')?;
        let entries = std::fs::read_dir(self.cwd.join(format!("{folder}/"))).ok()?;
        let names = entries.flatten().take(MOST_NAMES);
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let path = |name: &str| format!("{folder}/{name}");
        let is_there = |name: &String| self.cwd.join(path(name)).is_file();
        let near = spelling::nearest(name, names).into_iter().find(is_there);
        near.map(|name| path(&name))
    }
}

/// A path below another, without `./` in it.
fn clean(path: &Path) -> String {
    let path: PathBuf = path.components().collect();
    let shown = path.display().to_string();
    shown
        .strip_prefix("./")
        .map_or(shown.clone(), str::to_owned)
}

/// As much of a name as a message needs.
fn short(name: &str) -> String {
    match name.char_indices().nth(LONGEST_SHOWN) {
        None => name.to_owned(),
        Some((end, _)) => format!("{}…", &name[..end]),
    }
}

fn base(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

fn no_program(code: u8, why: &str, hint: String) -> NoProgram {
    NoProgram {
        code,
        error: Error::new(ErrorCode::Usage, why).hint(hint),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A folder with programs in `bin` and scripts of every kind beside it.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        fs::create_dir(dir.path().join("folder")).unwrap();
        for (name, mode, text) in [
            ("bin/bash", 0o755, "#!/bin/sh\n"),
            ("bin/python3", 0o755, "\u{7f}ELF\0"),
            ("bin/nvcc", 0o644, "#!/bin/sh\n"),
            ("good.sh", 0o755, "#!/bin/sh -e\n"),
            ("plain.sh", 0o644, "#!/usr/bin/env bash\n"),
            ("train.py", 0o644, "import torch\n"),
            ("bare.sh", 0o755, "echo 1\n"),
            ("lost.sh", 0o755, "#! /no/such/shell -x\n"),
            ("crlf.sh", 0o755, "#!/bin/sh\r\n"),
            ("none.sh", 0o755, "#!\n"),
            ("empty.sh", 0o755, ""),
            ("binary", 0o755, "\u{1}\0\u{2}"),
        ] {
            let file = dir.path().join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        }
        dir
    }

    fn submit_of(dir: &tempfile::TempDir, name: &str) -> Submit {
        Submit {
            command: vec![name.to_owned()],
            cwd: dir.path().display().to_string(),
            env: [("PATH".to_owned(), format!("{}/bin", dir.path().display()))].into(),
            ..Submit::default()
        }
    }

    #[test]
    fn what_can_be_started_is_not_refused() {
        let dir = tree();
        for name in [
            "bash",
            "./good.sh",
            "bin/python3",
            "./binary",
            "./bare.sh",
            "./empty.sh",
            "./none.sh",
            "/bin/sh",
        ] {
            assert!(look_up(&submit_of(&dir, name)).is_ok(), "{name}");
        }
        let in_image = Submit {
            container: Some(divvy_api::v1::Container {
                image: "cuda".to_owned(),
                arguments: Vec::new(),
                starter: None,
                as_submitter: false,
            }),
            ..submit_of(&dir, "no_such_program")
        };
        assert!(look_up(&in_image).is_ok(), "the image has its own");
    }

    #[test]
    fn what_cannot_be_started_has_a_shells_code_and_what_was_meant() {
        let dir = tree();
        let here = dir.path().display();
        for (name, code, why, hint) in [
            (
                "good.sh",
                127,
                "good.sh is not in the job's PATH",
                "did you mean ./good.sh?",
            ),
            (
                "plain.sh",
                127,
                "is not in the job's PATH",
                "did you mean bash plain.sh?",
            ),
            (
                "train.py",
                127,
                "is not in the job's PATH",
                "did you mean python3 train.py?",
            ),
            (
                "bare.sh",
                127,
                "is not in the job's PATH",
                "did you mean ./bare.sh?",
            ),
            (
                "pyhton3",
                127,
                "is not in the job's PATH",
                "did you mean python3?",
            ),
            (
                "no_such_program",
                127,
                "is not in the job's PATH",
                "`-- env no_such_program` looks it up when the job starts",
            ),
            (
                "python3 train.py --take 1",
                127,
                "python3 train.py --take 1 is not in the job's PATH",
                "it is one word: leave out the quotes: -- python3 train.py --take 1",
            ),
            (
                "./good.sh 1",
                127,
                "file ./good.sh 1 not found",
                "it is one word: leave out the quotes: -- ./good.sh 1",
            ),
            (
                "sleep 1 && echo done",
                127,
                "is not in the job's PATH",
                "a shell runs that: -- sh -c 'sleep 1 && echo done'",
            ),
            ("cd", 127, "cd is not in", "a shell runs that: -- sh -c cd"),
            (
                "FOO=1",
                127,
                "FOO=1 is not in the job's PATH",
                "set a variable with --env FOO=1",
            ),
            (
                "./plain.sh",
                126,
                "./plain.sh is not executable",
                "did you mean bash ./plain.sh",
            ),
            (
                "./train.py",
                126,
                "./train.py is not executable",
                "did you mean python3 ./train.py",
            ),
            ("nvcc", 126, "bin/nvcc is not executable", "chmod +x"),
            (
                "./lost.sh",
                127,
                "names /no/such/shell, but this file does not exist",
                "put the interpreter before it",
            ),
            (
                "./crlf.sh",
                127,
                "the first line of ./crlf.sh names /bin/sh\r,",
                "it has Windows line ends",
            ),
            (
                "./folder",
                126,
                "./folder is a folder",
                "use the path of a program in it",
            ),
            (
                "./godo.sh",
                127,
                "file ./godo.sh not found in ",
                "did you mean ./good.sh?",
            ),
            (
                "./nothing",
                127,
                "file ./nothing not found in ",
                "use the path of an existing program",
            ),
            (
                "good.sh/x",
                127,
                "file good.sh/x not found",
                "use the path of an existing program",
            ),
        ] {
            let refused = look_up(&submit_of(&dir, name)).unwrap_err();
            let error = refused.error;
            assert_eq!(
                (refused.code, error.code),
                (code, ErrorCode::Usage),
                "{name}"
            );
            assert!(error.message.contains(why), "{name}: {}", error.message);
            let told = error.hint.unwrap();
            assert!(told.contains(hint), "{name}: {told} ({here})");
        }
    }

    #[test]
    fn the_jobs_own_path_counts_also_as_a_secret_and_not_this_shells() {
        let dir = tree();
        let mut submit = submit_of(&dir, "bash");
        submit.env.clear();
        submit.secrets = [("PATH".to_owned(), "folder:bin".to_owned())].into();
        assert!(look_up(&submit).is_ok(), "relative to the job's folder");
        submit.secrets = [("PATH".to_owned(), "folder".to_owned())].into();
        assert_eq!(look_up(&submit).unwrap_err().code, 127);
        let long = submit_of(&dir, &"x".repeat(100_000));
        let refused = look_up(&long).unwrap_err();
        assert_eq!(refused.code, 126, "ENAMETOOLONG");
        assert!(refused.error.message.len() < 1000, "the name is cut");
    }
}
