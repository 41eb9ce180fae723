//! The size of a job's texts in bytes, which counts against its user's budgets.
//!
//! | counted | until it has ended | after it |
//! |---|---|---|
//! | names, command, folder, container, labels, jobs that it runs after, as JSON | yes | yes |
//! | 56 for each word of its command and its container's flags, and for each secret | yes | yes |
//! | its environment and its secrets, as JSON | yes | no: both are deleted |
//!
//! The figures follow from the journal and the files of secrets alone, so a restart finds the same figures.

use std::io;

use serde::Serialize;

use crate::model::job::{JobSpec, NewJob};

/// Bytes of memory that a word takes besides its letters: a `String`, and the smallest block of glibc's allocator.
const WORD: usize = size_of::<String>() + 32;

/// Bytes of what stays of a job once it has ended.
pub fn ended_job_size(ask: &JobSpec) -> u64 {
    let JobSpec {
        name,
        user,
        credentials: _,
        project,
        queue,
        request: _,
        runner: _,
        command,
        container,
        cwd,
        policy: terms,
        secrets,
    } = ask;
    let names = [name.as_str(), user, queue.as_str(), cwd];
    let names: usize = names.map(str::len).iter().sum();
    let project = project.as_ref().map_or(0, String::len);
    let arguments = container.as_ref().map_or(0, |one| one.arguments.len());
    let words = command.len() + arguments + secrets.len();
    let plain = names + project + words * WORD;
    let container = container.as_ref().map_or(0, written);
    plain as u64 + written(command) + container + written(terms) + written(secrets)
}

/// Bytes of a job that is about to be stored, until it has ended.
pub fn new_job_size(new: &NewJob) -> u64 {
    let secrets = match new.secrets.is_empty() {
        true => 0,
        false => written(&new.secrets),
    };
    ended_job_size(&new.spec) + written(&new.env) + secrets
}

/// Bytes of this as JSON.
pub fn written(value: &impl Serialize) -> u64 {
    let mut count = Count(0);
    // Texts, numbers and maps of texts can be written, and counting does not fail.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// Counts what is written, and keeps nothing.
struct Count(u64);

impl io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::tests::new;

    #[test]
    fn every_text_of_a_job_counts_as_it_is_written_and_words_count_besides() {
        let plain = new_job_size(&new(None));
        let more = |change: fn(&mut NewJob)| {
            let mut new = new(None);
            change(&mut new);
            new_job_size(&new) - plain
        };
        assert_eq!(more(|new| new.spec.name += "1234"), 4);
        assert_eq!(more(|new| new.spec.cwd += "1234"), 4);
        assert_eq!(more(|new| new.spec.project = Some("1234".into())), 4);
        // A control character is six letters of JSON; a word has two quotes and a comma.
        assert_eq!(more(|new| new.spec.command[0] += "\u{1}"), 6);
        assert_eq!(more(|new| new.spec.command.push(String::new())), 3 + 56);
        assert_eq!(more(|new| drop(new.env.insert("A".into(), "12".into()))), 9);
        let secret = |new: &mut NewJob| {
            new.spec.secrets.push("A".into());
            new.secrets.insert("A".into(), "12".into());
        };
        assert_eq!(more(secret), 3 + 56 + "{\"A\":\"12\"}".len() as u64);
    }
}
