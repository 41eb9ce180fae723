//! `admin init`: writes the configuration file from flags, starts the daemon, and prints the message for
//! users.

mod flags;
mod start;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use divvy_api::daemon::file::{self, Parsed};
use divvy_api::daemon::{ConfigError, Configured, DaemonOptions, Setting, Source};
use divvy_api::v1::{Error, ErrorCode};
use divvy_core::QueueSpec;

use super::config::{self, CONFIG_MODE};
use super::store;
use crate::Backend;
use crate::args::AdminInit;
use crate::call::Outcome;
use crate::error_output::Result;
use crate::output::{print, say};

/// The first lines of the file.
const HEAD: &str = "\
# The configuration of the Divvy daemon, written by `divvy admin init`. `divvy config init FILE` writes one with every key.
# After a change: divvy config check && divvy config reload
";

const TOKEN_MODE: u32 = 0o600;
const MESSAGE_MODE: u32 = 0o644;

pub async fn init(args: AdminInit, backend: Backend) -> Outcome {
    let system = rustix::process::geteuid().is_root() && !args.user;
    let path = config::place(&config::source(system, args.config.clone()))?;
    let token = path.with_file_name("token");
    let settings = flags::settings(&args, &token)?;
    let text = format!("{HEAD}{}", Setting::file(&settings)?);
    let refused = |error: ConfigError| Error::from(&error);
    // The rules for values together, with the flags, and then as the daemon reads the file.
    let start = config::start(system);
    let named = Some(path.clone());
    let source = Source::new(start, settings, named);
    source.merge(Parsed::default()).map_err(refused)?;
    let configured = checked(&text, &path, system)?;
    config::warn(&(backend.absent_accounts)(&configured));
    let message = message(&configured.options);
    if args.dry_run {
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.listen.is_some() && store::write_token(&token, TOKEN_MODE)? {
        say(&format!("wrote the token {}", token.display()));
    }
    let copy = store::replace(&path, &text, CONFIG_MODE, args.force);
    let copy = copy.map_err(|error| match (&error.code, &error.hint) {
        (ErrorCode::Conflict, Some(hint)) => {
            let hint = format!(
                "{hint}; start a daemon with this file: {}",
                start::command(system)
            );
            error.hint(hint)
        }
        _ => error,
    })?;
    if let Some(copy) = copy {
        say(&format!("kept the former file as {}", copy.display()));
    }
    say(&format!("wrote {}", path.display()));
    // As the daemon reads it, with owner and mode.
    config::source(system, Some(path.clone()))
        .read()
        .map_err(|error| Error::from(&error))?;
    if args.no_start {
        say(&format!("start the daemon: {}", start::command(system)));
    } else {
        start::start(system).await?;
    }
    // Only now: the message tells users to run commands.
    if let Some(motd) = &args.motd {
        store::overwrite(motd, &message, MESSAGE_MODE)?;
        say(&format!(
            "wrote the message for users into {}",
            motd.display()
        ));
    }
    let _ = writeln!(io::stderr(), "\nThe message for users:\n");
    print(message)?;
    Ok(ExitCode::SUCCESS)
}

/// Parses the text as the daemon will.
fn checked(text: &str, path: &Path, system: bool) -> Result<Configured> {
    let wrong = |problems| ConfigError {
        path: path.to_owned(),
        code: ErrorCode::Usage,
        problems,
    };
    let parsed = file::parse(text.as_bytes()).map_err(|problems| Error::from(&wrong(problems)))?;
    config::source(system, Some(path.to_owned()))
        .merge(parsed)
        .map_err(|error| Error::from(&error))
}

/// The message for users: five commands.
fn message(options: &DaemonOptions) -> String {
    let queue = |queue: &QueueSpec| match queue.amount {
        Some(_) => format!("-q {}", queue.name),
        None => format!("-q {} -g 0.5", queue.name),
    };
    let queue = options.queues.first().map_or("-g 0.5".to_owned(), queue);
    // The daemon knows the project of a user with a default. Of several projects, each user may use some.
    let names: Vec<_> = options.projects.keys().collect();
    let has_default = !options.project_rules.default_project.is_empty();
    let project = match names[..] {
        [] => String::new(),
        _ if has_default => String::new(),
        [name] => format!(" -p {name}"),
        _ => " -p PROJECT".to_owned(),
    };
    let lines = [
        ("divvy gpus".to_owned(), "free parts of each GPU"),
        (
            format!("divvy run -g 0.5{project} -- python train.py"),
            "a program on half a GPU",
        ),
        (
            format!("divvy submit {queue}{project} -- python train.py"),
            "a job in a queue",
        ),
        ("divvy ps".to_owned(), "pending and running jobs"),
        ("divvy why last".to_owned(), "why the last job waits"),
    ];
    let width = lines.iter().map(|(command, _)| command.chars().count());
    let width = width.max().unwrap_or_default();
    let mut text =
        "Divvy divides the GPUs of this machine. Use it for every program on a GPU:\n\n".to_owned();
    for (command, about) in &lines {
        text += &format!("  {command:<width$}   {about}\n");
    }
    if project.ends_with(" PROJECT") {
        text += "\nPROJECT is a project of yours: divvy projects\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_has_commands_of_this_configuration() {
        let text = message(&DaemonOptions::default());
        assert!(text.contains("divvy submit -g 0.5 -- python"), "{text}");
        let file = "queues = [\"half=0.5\"]\n[projects.vision]\nquota = 1\n";
        let options = file::parse(file.as_bytes()).unwrap().options;
        let text = message(&options);
        assert!(text.contains("divvy submit -q half -p vision --"), "{text}");
        let two = format!("{file}[projects.nlp]\nquota = 1\n");
        let of = |text: &str| message(&file::parse(text.as_bytes()).unwrap().options);
        let shown = of(&two);
        assert!(shown.contains("divvy run -g 0.5 -p PROJECT --"), "{shown}");
        assert!(shown.ends_with("divvy projects\n"), "{shown}");
        // The message names no project to users with a default one.
        let rule = "[project-rules]\ndefault-project = { \"@vision\" = \"vision\" }\n";
        let shown = of(&(two + rule));
        assert!(shown.contains("divvy run -g 0.5 -- python"), "{shown}");
        assert!(!shown.contains(" -p "), "{shown}");
        assert_eq!(
            text.lines()
                .filter(|line| line.starts_with("  divvy "))
                .count(),
            5
        );
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
