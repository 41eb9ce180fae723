//! The parser as clap shows it: verbs in groups, and one line for each flag.

use std::fmt::Write as _;

use clap::CommandFactory;
use divvy_api::daemon::keys::KEYS;

use super::help::{EXAMPLES, GROUPS};

/// The parser, with verbs in groups.
pub fn command() -> clap::Command {
    let command = super::Cli::command();
    let mut template = String::from("{about}\n\nUsage: divvy VERB [OPTIONS]\n\n");
    for (title, verbs) in GROUPS {
        let _ = writeln!(template, "{title}:");
        for verb in *verbs {
            let about = command
                .find_subcommand(verb)
                .and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(template, "  {verb:<11} {about}");
        }
    }
    let _ = write!(
        template,
        "Each verb has its own --help. Output formats: -o table|wide|json|ndjson|name.\n{EXAMPLES}\n"
    );
    let command = command.mut_subcommand("daemon", |daemon| {
        let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        let text = format!(
            "Set a key of the file; the last one wins over the file and other flags. A value is that of the file, and a \
             text needs no quotes. May be repeated. Keys: {}",
            names.join(", ")
        );
        daemon.mut_arg("set", |set| set.long_help(text))
    });
    once(short(command.help_template(template).max_term_width(110)))
}

/// Gives each flag one text for `divvy help` and the manual: clap puts the line of `--help` before the whole text.
fn once(command: clap::Command) -> clap::Command {
    command.mut_subcommands(once).mut_args(|arg| {
        let line = arg.get_help().map(ToString::to_string);
        let long = arg.get_long_help().map(ToString::to_string);
        let whole = line.zip(long).and_then(|(line, long)| {
            let rest = long.strip_prefix(&line)?.strip_prefix("\n\n")?;
            Some(rest.to_owned())
        });
        match whole {
            Some(whole) => arg.long_help(whole),
            None => arg,
        }
    })
}

/// Has `--help` give each flag one line: all of them fit a screen then. Their whole text is in the manual pages.
fn short(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(short);
    if command.is_disable_help_flag_set() {
        return command;
    }
    let help = clap::Arg::new("help")
        .short('h')
        .long("help")
        .action(clap::ArgAction::HelpShort)
        .help("Print help");
    command.disable_help_flag(true).arg(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_verb_is_in_exactly_one_group() {
        let command = super::super::Cli::command();
        let mut visible: Vec<&str> = command
            .get_subcommands()
            .filter(|verb| !verb.is_hide_set())
            .map(clap::Command::get_name)
            .collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, verbs)| verbs.iter().copied())
            .collect();
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(visible, grouped);
    }

    /// A terminal's usual width, and the height that is left where it is twice as high as the usual 24 lines.
    const SCREEN: (usize, usize) = (80, 50);

    #[test]
    fn every_help_fits_a_screen() {
        fn check_help(command: &mut clap::Command, path: &str, wrong: &mut Vec<String>) {
            let help = command.render_help().to_string();
            let height = help.lines().count();
            let width = help.lines().map(|line| line.chars().count()).max();
            if width > Some(SCREEN.0) || height > SCREEN.1 {
                wrong.push(format!("{path}: {width:?} × {height}\n{help}"));
            }
            for verb in command.get_subcommands_mut() {
                let path = format!("{path} {}", verb.get_name());
                check_help(verb, &path, wrong);
            }
        }
        let mut command = command().term_width(SCREEN.0);
        command.build();
        let mut wrong = Vec::new();
        check_help(&mut command, "divvy", &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn no_flag_repeats_its_line_in_its_whole_text() {
        fn check(command: &clap::Command, path: &str, long: &mut usize) {
            for arg in command.get_arguments() {
                let line = arg.get_help().map(ToString::to_string);
                let whole = arg.get_long_help().map(ToString::to_string);
                if let (Some(line), Some(whole)) = (line, whole) {
                    let twice = format!("{line}\n");
                    assert!(!whole.starts_with(&twice), "{path} {arg}: {whole}");
                    *long += 1;
                }
            }
            for verb in command.get_subcommands() {
                check(verb, &format!("{path} {}", verb.get_name()), long);
            }
        }
        let mut long = 0;
        check(&command(), "divvy", &mut long);
        assert!(long > 40, "{long}");
    }

    #[test]
    fn the_parser_is_sound() {
        command().debug_assert();
    }
}
