//! Manual pages, generated from the parser: `divvy.1`, and one page for each visible verb.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap_mangen::Man;

use crate::args;

/// Writes all pages into a folder, which is made if need be; answers their paths.
///
/// # Errors
/// When one cannot be written.
pub fn write(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)?;
    let mut command = args::command();
    command.build();
    let mut written = Vec::new();
    add(&command, "divvy", folder, &mut written)?;
    Ok(written)
}

/// The page of a verb and those of the verbs below it; `name` is the page's: `divvy-admin-gpu`.
fn add(
    command: &clap::Command,
    name: &str,
    folder: &Path,
    written: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let below = || {
        let all = command.get_subcommands();
        all.filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
    };
    let mut page = Vec::new();
    // The page lists the verbs by the names of their pages. Hidden verbs have none.
    let shown = below().cloned().map(|verb| {
        let page = format!("{name}-{}", verb.get_name());
        verb.display_name(page)
    });
    let whole = command.clone().display_name(name.to_owned());
    let whole = clap::Command::new(name.to_owned())
        .display_name(name.to_owned())
        .bin_name(name.replace('-', " "))
        .version(env!("CARGO_PKG_VERSION"))
        .args(whole.get_arguments().cloned())
        .subcommands(shown)
        .about(whole.get_about().cloned().unwrap_or_default())
        .after_help(whole.get_after_help().cloned().unwrap_or_default())
        .disable_help_flag(true)
        .disable_version_flag(true)
        .disable_help_subcommand(true);
    Man::new(whole).render(&mut page)?;
    let path = folder.join(format!("{name}.1"));
    fs::write(&path, page)?;
    written.push(path);
    for verb in below() {
        add(
            verb,
            &format!("{name}-{}", verb.get_name()),
            folder,
            written,
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn every_verb_that_is_shown_has_a_page_with_its_flags() {
        let folder = tempfile::tempdir().unwrap();
        let pages = write(&folder.path().join("man1")).unwrap();
        let read = |name: &str| {
            let page = pages.iter().find(|page| page.ends_with(name));
            fs::read_to_string(page.unwrap_or_else(|| panic!("no {name}: {pages:?}"))).unwrap()
        };
        assert!(
            read("divvy.1").contains("divvy\\-submit"),
            "{}",
            read("divvy.1")
        );
        for (page, flag) in [
            ("divvy-submit.1", "idempotency\\-key"),
            ("divvy-daemon.1", "log\\-size"),
            ("divvy-admin-mig-plan.1", "gpus\\-on"),
            ("divvy-exec.1", "CMD"),
        ] {
            assert!(read(page).contains(flag), "{page}: {}", read(page));
        }
        // The whole text of a flag, which --help has no room for.
        assert!(read("divvy-submit.1").contains("lists and logs never contain it"));
        assert!(!pages.iter().any(|page| page.ends_with("divvy-supervise.1")));
        assert!(write(&pages[0].join("below")).is_err());
    }

    #[test]
    fn a_page_is_one_that_man_can_lay_out() {
        let folder = tempfile::tempdir().unwrap();
        let pages = write(folder.path()).unwrap();
        for page in pages {
            let laid = Command::new("groff")
                .args(["-man", "-Kutf8", "-Tutf8", "-ww", "-z"])
                .arg(&page)
                .output();
            let Ok(laid) = laid else {
                eprintln!("SKIPPED: no groff");
                return;
            };
            let said = String::from_utf8_lossy(&laid.stderr).into_owned();
            assert!(
                laid.status.success() && said.is_empty(),
                "{}: {said}",
                page.display()
            );
        }
    }
}
