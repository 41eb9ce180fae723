//! Manual pages: `divvy.1`, and one page for each visible verb. Options come from the parser; exit codes, variables and files come
//! from docs/reference.md.

mod reference;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use roff::{Inline, Roff, bold, roman};

use crate::args;
use reference::inline;

/// The header's name of all pages.
const MANUAL: &str = "Divvy Manual";

/// Seconds since 1970 that the header of a reproducible page has as its date.
const EPOCH: &str = "SOURCE_DATE_EPOCH";

/// Writes all pages into a folder, which is made if need be; answers their paths.
///
/// # Errors
/// When one cannot be written.
pub fn write(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let mut command = args::command();
    command.build();
    let date = date();
    let mut written = Vec::new();
    let top = Page {
        command: &command,
        verb: "",
        above: None,
        date: &date,
    };
    top.write(folder, &mut written)?;
    Ok(written)
}

/// The date of [`EPOCH`], else of today.
fn date() -> String {
    let epoch = std::env::var(EPOCH).ok();
    let second = epoch.and_then(|text| jiff::Timestamp::from_second(text.parse().ok()?).ok());
    let time = second.unwrap_or_else(jiff::Timestamp::now);
    time.strftime("%Y-%m-%d").to_string()
}

/// The page of `divvy` or of a verb.
#[derive(Clone, Copy)]
struct Page<'a> {
    command: &'a Command,
    /// `admin mig plan`; empty for `divvy`.
    verb: &'a str,
    above: Option<&'a Page<'a>>,
    date: &'a str,
}

/// Text below the options in `--help`, in the sections of a page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Notes {
    paragraphs: Vec<String>,
    exit: Option<String>,
    examples: Vec<String>,
}

/// Before a verb's own text on its exit code.
const EXIT: &str = "Exit code: ";

impl Notes {
    fn of(text: &str) -> Self {
        let mut notes = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if line.starts_with("  ") {
                notes.examples.push(line.trim().to_owned());
                continue;
            }
            let (text, exit) = match line.split_once(EXIT) {
                Some((text, exit)) => (text.trim(), Some(reference::capital(exit))),
                None => (line, None),
            };
            notes.exit = notes.exit.or(exit);
            if !text.is_empty() {
                notes.paragraphs.push(text.to_owned());
            }
        }
        notes
    }

    /// Whether the verb's own text has this code.
    fn names(&self, code: &str) -> bool {
        let numbers = self.exit.iter().flat_map(|text| {
            text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '+'))
        });
        // The table has `126, 127` in one row.
        let mut codes = code.split(", ");
        let own: Vec<&str> = numbers.collect();
        codes.all(|code| own.contains(&code))
    }
}

impl<'a> Page<'a> {
    /// `divvy-admin-mig-plan`.
    fn name(&self) -> String {
        ["divvy", self.verb].join(" ").trim().replace(' ', "-")
    }

    fn below(&self) -> impl Iterator<Item = &'a Command> + use<'a> {
        let all = self.command.get_subcommands();
        all.filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
    }

    fn has_flag(&self, name: &str) -> bool {
        let mut flags = self.command.get_arguments();
        flags.any(|arg| !arg.is_hide_set() && arg.get_long() == Some(name))
    }

    /// Writes this page and those of the verbs below.
    fn write(&self, folder: &Path, written: &mut Vec<PathBuf>) -> io::Result<()> {
        let path = folder.join(format!("{}.1", self.name()));
        fs::write(&path, self.render()?)?;
        written.push(path);
        for verb in self.below() {
            let words = format!("{} {}", self.verb, verb.get_name());
            let page = Page {
                command: verb,
                verb: words.trim(),
                above: Some(self),
                date: self.date,
            };
            page.write(folder, written)?;
        }
        Ok(())
    }

    fn render(&self) -> io::Result<String> {
        let help = self.command.get_after_help();
        let notes = Notes::of(&help.map(ToString::to_string).unwrap_or_default());
        let options = self.options();
        let has_options = options.get_arguments().any(|arg| !arg.is_hide_set());
        let library = Man::new(options)
            .title(self.name())
            .date(self.date)
            .source(concat!("divvy ", env!("CARGO_PKG_VERSION")))
            .manual(MANUAL);
        let mut parts = [const { Vec::new() }; 3];
        library.render_title(&mut parts[0])?;
        library.render_name_section(&mut parts[1])?;
        if has_options {
            library.render_options_section(&mut parts[2])?;
        }
        let [title, name, options] = parts.map(|part| String::from_utf8_lossy(&part).into_owned());
        let own = |write: &dyn Fn(&mut Roff)| {
            let mut page = Roff::new();
            write(&mut page);
            page.render()
        };
        let before = own(&|page| {
            self.synopsis(page);
            self.description(page, &notes);
        });
        let after = own(&|page| {
            self.exit_status(page, &notes);
            self.environment(page);
            self.files(page);
            examples(page, self.verb, &notes);
            self.see_also(page);
        });
        // Each part begins with the same definition of an apostrophe.
        let definition = Roff::new().render();
        let more = [name, before, options, after];
        let more = more.iter().map(|part| {
            let part = part.strip_prefix(&*definition).unwrap_or(part);
            part.trim_end()
        });
        let all: Vec<&str> = [title.trim_end()].into_iter().chain(more).collect();
        // Between an argument and its values, the library breaks the line twice.
        let text = all.join("\n").replace("\n\n", "\n");
        Ok(text.replace("\n.br\n.br\n", "\n.br\n") + "\n")
    }

    /// What the library renders: the name and the options.
    fn options(&self) -> Command {
        let about = self.command.get_about().map(ToString::to_string);
        let args = self.command.get_arguments().filter(|arg| {
            // Every verb has --help: the page of `divvy` lists it.
            !["help", "version"].contains(&arg.get_id().as_str()) || self.verb.is_empty()
        });
        Command::new(self.name())
            .display_name(self.name())
            .version(env!("CARGO_PKG_VERSION"))
            .about(about.unwrap_or_default())
            .args(args.cloned())
            .disable_help_flag(true)
            .disable_version_flag(true)
    }

    fn synopsis(&self, page: &mut Roff) {
        page.control("SH", ["SYNOPSIS"]);
        let name = ["divvy", self.verb].join(" ");
        let name = name.trim();
        if self.verb.is_empty() {
            page.text([bold(name), roman(" VERB [OPTIONS]")]);
            return;
        }
        let usage = self.command.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim();
        let mut forms: Vec<String> = Vec::new();
        for line in usage.lines().map(str::trim) {
            match (line.starts_with(name), forms.last_mut()) {
                (false, Some(form)) => {
                    form.push(' ');
                    form.push_str(line);
                }
                _ => forms.push(line.to_owned()),
            }
        }
        for (at, form) in forms.iter().enumerate() {
            if at > 0 {
                page.control("br", []);
            }
            let rest = form.strip_prefix(name).unwrap_or(form);
            page.text([bold(name), roman(self.spelled(rest))]);
        }
    }

    /// A usage line with `[OPTIONS]` spelled out where the verb has few.
    fn spelled(&self, usage: &str) -> String {
        /// A line of a manual page has room for some eight short names; the page of the verb lists all.
        const MOST: usize = 8;
        let flags = self.command.get_arguments().filter(|arg| {
            !arg.is_positional()
                && !arg.is_hide_set()
                && !arg.is_required_set()
                && arg.get_id() != "help"
        });
        let flags: Vec<String> = flags
            .map(|arg| {
                let long = arg.get_long().map(|long| format!("--{long}"));
                let short = arg.get_short().map(|short| format!("-{short}"));
                let flag = short.or(long).unwrap_or_default();
                let values = arg.get_value_names().unwrap_or_default();
                let takes = arg.get_action().takes_values();
                match values.first().filter(|_| takes) {
                    Some(value) => format!("[{flag} {value}]"),
                    None => format!("[{flag}]"),
                }
            })
            .filter(|flag| !usage.contains(flag.trim_matches(['[', ']'])))
            .collect();
        if flags.len() <= MOST {
            usage
                .replace("[OPTIONS]", &flags.join(" "))
                .replace("  ", " ")
        } else {
            usage.to_owned()
        }
    }

    fn description(&self, page: &mut Roff, notes: &Notes) {
        page.control("SH", ["DESCRIPTION"]);
        let about = self.command.get_about().map(ToString::to_string);
        let mut paragraphs = vec![format!("{}.", about.unwrap_or_default())];
        paragraphs.extend(notes.paragraphs.iter().cloned());
        for (at, paragraph) in paragraphs.iter().enumerate() {
            if at > 0 {
                page.control("PP", []);
            }
            page.text(inline(paragraph));
        }
        if self.verb.is_empty() {
            page.control("PP", []);
            page.text(inline(
                "Several jobs share one GPU. Each job gets a hard memory limit and a share of compute time. Jobs wait in queues.",
            ));
            for (title, verbs) in args::GROUPS {
                page.control("SS", [*title]);
                let below = verbs.iter();
                self.list(
                    page,
                    below.filter_map(|verb| self.command.find_subcommand(verb)),
                );
            }
        } else if self.command.has_subcommands() {
            page.control("SH", ["COMMANDS"]);
            self.list(page, self.below());
        }
    }

    /// Verbs by the names of their pages.
    fn list<'b>(&self, page: &mut Roff, verbs: impl Iterator<Item = &'b Command>) {
        for verb in verbs {
            let about = verb.get_about().map(ToString::to_string);
            page.control("TP", []);
            let name = format!("{}-{}", self.name(), verb.get_name());
            page.text([bold(name), roman("(1)")]);
            page.text(inline(&format!("{}.", about.unwrap_or_default())));
        }
    }

    fn exit_status(&self, page: &mut Roff, notes: &Notes) {
        page.control("SH", ["EXIT STATUS"]);
        if let Some(text) = &notes.exit {
            page.text(inline(text));
        }
        for code in reference::codes() {
            let meaning = match self.verb.is_empty() {
                true => code.whole().to_owned(),
                // The verb's own text is more precise.
                false if notes.names(code.code) => continue,
                false => code.of(self.verb, |flag| self.has_flag(flag)),
            };
            if !meaning.is_empty() {
                entry(page, &[bold(code.code)], &meaning);
            }
        }
    }

    fn environment(&self, page: &mut Roff) {
        let starts_daemon = self.has_flag("sim");
        let is_job = self.has_flag("secret");
        let is_listed = |variable: &reference::Variable| {
            self.verb.is_empty()
                || variable.names == "`DIVVY_HOME`"
                || variable.names == "`DIVVY_COMPLETE`" && self.verb == "completion"
                || variable.names != "`DIVVY_COMPLETE`"
                    && starts_daemon
                    && variable.is_read_by("divvy")
                || is_job && (variable.is_read_by("jobs") || variable.is_read_by("notifications"))
                || self.verb == "daemon" && variable.is_read_by("daemon")
        };
        page.control("SH", ["ENVIRONMENT"]);
        for variable in reference::variables().iter().filter(|one| is_listed(one)) {
            entry(page, &inline(variable.names), variable.meaning);
        }
    }

    /// The folders, on the pages of `divvy` and of its daemon.
    fn files(&self, page: &mut Roff) {
        page.control("SH", ["FILES"]);
        if !["", "daemon"].contains(&self.verb) {
            page.text([bold("divvy"), roman("(1) lists the files of Divvy.")]);
            return;
        }
        for file in reference::files() {
            entry(page, &inline(file.path), file.content);
        }
    }

    fn see_also(&self, page: &mut Roff) {
        let mut pages: Vec<String> = Vec::new();
        let mut above = self.above;
        while let Some(page) = above {
            pages.push(page.name());
            above = page.above;
        }
        match self.above {
            Some(up) if up.verb.is_empty() => {
                let groups = args::GROUPS.iter();
                let mut own = groups.filter(|(_, verbs)| verbs.contains(&self.verb));
                let beside = own.next().map_or(&[][..], |(_, verbs)| *verbs);
                let beside = beside.iter().filter(|verb| **verb != self.verb);
                pages.extend(beside.map(|verb| format!("divvy-{verb}")));
            }
            Some(up) => {
                let beside = up
                    .below()
                    .map(|verb| format!("{}-{}", up.name(), verb.get_name()));
                pages.extend(beside.filter(|page| *page != self.name()));
            }
            None => pages.push("nvidia-smi".to_owned()),
        }
        pages.sort_unstable();
        page.control("SH", ["SEE ALSO"]);
        let last = pages.len().saturating_sub(1);
        for (at, name) in pages.iter().enumerate() {
            let end = if at == last { "" } else { "," };
            page.text([bold(&**name), roman(format!("(1){end}"))]);
        }
    }
}

/// A term and its text.
fn entry(page: &mut Roff, term: &[Inline], text: &str) {
    page.control("TP", []);
    page.text(term.to_vec());
    page.text(inline(text));
}

/// Command lines as they are typed.
fn examples(page: &mut Roff, verb: &str, notes: &Notes) {
    let top: Vec<String>;
    let lines = if verb.is_empty() {
        top = args::examples().map(str::to_owned).collect();
        &top
    } else {
        &notes.examples
    };
    if lines.is_empty() {
        return;
    }
    page.control("SH", ["EXAMPLES"]);
    page.control("nf", []);
    for line in lines {
        page.text([roman(&**line)]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// The pages, by name, as text without escapes of hyphens.
    fn pages() -> Vec<(String, String)> {
        let folder = tempfile::tempdir().unwrap();
        let pages = write(&folder.path().join("man1")).unwrap();
        assert!(write(&pages[0].join("below")).is_err());
        let named = pages.iter().map(|page| {
            let name = page.file_stem().unwrap().to_string_lossy().into_owned();
            (name, fs::read_to_string(page).unwrap().replace("\\-", "-"))
        });
        named.collect()
    }

    fn section<'a>(page: &'a str, heading: &str) -> &'a str {
        let marks = [format!(".SH {heading}\n"), format!(".SH \"{heading}\"\n")];
        let mut found = marks.iter().filter_map(|mark| page.split_once(&**mark));
        let text = found.next().map_or("", |(_, text)| text);
        text.split("\n.SH").next().unwrap_or_default()
    }

    #[test]
    fn every_verb_that_is_shown_has_a_page_with_its_flags() {
        let pages = pages();
        let read = |name: &str| {
            let page = pages.iter().find(|(page, _)| page == name);
            page.map(|(_, text)| text.as_str()).unwrap_or_default()
        };
        for (page, flag) in [
            ("divvy", "divvy-submit"),
            ("divvy-submit", "idempotency-key"),
            ("divvy-daemon", "log-size"),
            ("divvy-admin-mig-plan", "gpus-on"),
            ("divvy-exec", "CMD"),
            // The whole text of a flag, which --help has no room for.
            ("divvy-submit", "lists and logs never contain it"),
        ] {
            assert!(read(page).contains(flag), "{page}: {}", read(page));
        }
        assert_eq!(read("divvy-supervise"), "");
    }

    #[test]
    fn every_page_has_the_usual_sections_and_each_text_once() {
        for (name, page) in pages() {
            for heading in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS"] {
                assert!(
                    !section(&page, heading).is_empty(),
                    "{name} {heading}: {page}"
                );
            }
            for heading in ["ENVIRONMENT", "FILES", "SEE ALSO"] {
                assert!(
                    !section(&page, heading).is_empty(),
                    "{name} {heading}: {page}"
                );
            }
            assert!(!page.contains("EXTRA"), "{name}");
            // Two texts of one option: the short one, a break, the long one.
            let options = section(&page, "OPTIONS");
            for option in options.split(".TP\n") {
                let text = option.lines().skip(1);
                let text: Vec<&str> = text.filter(|line| !line.starts_with('.')).collect();
                let whole = text.concat();
                let half = text.iter().filter(|line| line.len() > 20);
                for line in half {
                    assert_eq!(whole.matches(line).count(), 1, "{name}: {option}");
                }
                assert!(!text.contains(&""), "{name}: two texts: {option}");
            }
        }
    }

    #[test]
    fn a_synopsis_has_values_and_the_command() {
        let pages = pages();
        let synopsis = |name: &str| {
            let (_, page) = pages.iter().find(|(page, _)| page == name).unwrap();
            section(page, "SYNOPSIS")
                .replace("\\fB", "")
                .replace("\\fR", "")
        };
        for (page, text) in [
            (
                "divvy-submit",
                "divvy submit [-g AMOUNT | --gpu-memory SIZE",
            ),
            ("divvy-submit", "-- CMD"),
            ("divvy-run", "-- CMD"),
            ("divvy-exec", "-- CMD"),
            ("divvy-wait", "[--timeout TIME]"),
            ("divvy-usage", "[--by LIST] [--since WHEN]"),
        ] {
            assert!(synopsis(page).contains(text), "{page}: {}", synopsis(page));
        }
    }

    #[test]
    fn exit_codes_are_those_of_the_verb() {
        let pages = pages();
        let codes = |name: &str| {
            let (_, page) = pages.iter().find(|(page, _)| page == name).unwrap();
            section(page, "EXIT STATUS").to_owned()
        };
        assert!(codes("divvy").contains("128+N"));
        assert!(
            codes("divvy-wait").contains("\\fB9\\fR"),
            "{}",
            codes("divvy-wait")
        );
        assert!(
            !codes("divvy-ps").contains("\\fB9\\fR"),
            "{}",
            codes("divvy-ps")
        );
        assert!(!codes("divvy-ps").contains("125"));
        // The verb's own text has 125; the table's row is not repeated.
        assert_eq!(
            codes("divvy-run").matches("125").count(),
            1,
            "{}",
            codes("divvy-run")
        );
    }

    #[test]
    fn notes_are_sorted_into_sections() {
        let notes = Notes::of("One.\nTwo. Exit code: 1 if it fails.\n\n  divvy x\n  divvy y");
        let expected = Notes {
            paragraphs: vec!["One.".into(), "Two.".into()],
            exit: Some("1 if it fails.".into()),
            examples: vec!["divvy x".into(), "divvy y".into()],
        };
        assert_eq!(notes, expected);
        assert!(notes.names("1") && !notes.names("2") && !notes.names("1, 2"));
    }

    #[test]
    fn a_page_is_one_that_man_can_lay_out() {
        let folder = tempfile::tempdir().unwrap();
        let pages = write(folder.path()).unwrap();
        let lint = ["-T", "lint", "-W", "warning"];
        let groff = ["-man", "-Kutf8", "-Tutf8", "-ww", "-z"];
        for (program, words) in [("groff", &groff[..]), ("mandoc", &lint[..])] {
            let checked = Command::new(program).args(words).args(&pages).output();
            let Ok(checked) = checked else {
                eprintln!("SKIPPED: no {program}");
                continue;
            };
            let output = [checked.stdout, checked.stderr].concat();
            let output = String::from_utf8_lossy(&output).into_owned();
            assert!(
                checked.status.success() && output.is_empty(),
                "{program}: {output}"
            );
        }
    }
}
