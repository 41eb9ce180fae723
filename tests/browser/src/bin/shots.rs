//! The pictures of the page for the documents: each page of one simulated lab, light, dark, and on a phone.
#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use divvy_browser::lab::Lab;
use divvy_browser::{Browser, Look, Witness};
use divvy_testkit::Programs;
use divvy_testkit::page::Page;

/// All pictures together.
const MOST_BYTES: u64 = 1_000_000;

fn main() -> ExitCode {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: shots FOLDER");
        return ExitCode::from(2);
    };
    match shoot(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn shoot(folder: &Path) -> Result<()> {
    let browser = Browser::start_with(&["--hide-scrollbars"])
        .context("chromium and chromedriver are needed")?;
    let own = std::env::current_exe()?;
    let programs = own.parent().context("a program lies in a folder")?;
    let lab = Lab::start(Programs::at(programs.to_owned()));
    let web = Page::open(&lab.home, &["--allow-actions"]);
    fs::create_dir_all(folder)?;
    browser.goto(&web.url);
    let mut bytes = 0;
    for (name, route) in lab.routes() {
        browser.js("location.hash = arguments[0]", &[route.as_str().into()]);
        browser.appears(&format!("main[data-page=\"{name}\"][data-ready=\"true\"]"));
        for look in Look::ALL {
            // The cards have the only colours that mean something; one picture shows them.
            if look == Look::Forced && name != "overview" {
                continue;
            }
            browser.look(look);
            lab.is_drawn(&browser, name);
            lab.hide_folders(&browser, programs);
            let picture = browser.picture();
            bytes += picture.len() as u64;
            let file = folder.join(format!("web-{name}-{}.webp", look.name()));
            fs::write(&file, picture).with_context(|| format!("write {}", file.display()))?;
            eprintln!("   {}", file.display());
        }
        Witness::is_clean(&browser, name);
        browser.look(Look::Light);
    }
    ensure!(
        bytes <= MOST_BYTES,
        "the pictures have {bytes} bytes, more than {MOST_BYTES}"
    );
    Ok(())
}
