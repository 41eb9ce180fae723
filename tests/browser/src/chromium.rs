//! The browser's programs: where they are, and the driver as a process that leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use divvy_testkit::{Bounded as _, bounded, kill_all_that_mention};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Names of the browser, and of its driver, in Debian's and in other packages.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const DRIVER: &str = "chromedriver";

/// What a test needs no part of, and what differs from machine to machine.
const FLAGS: [&str; 14] = [
    "--headless=new",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--disable-gpu",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--force-device-scale-factor=1",
    "--font-render-hinting=none",
    "--lang=en-GB",
    "--no-first-run",
];

/// A running driver. It and every browser that it started are killed when it is dropped.
#[derive(Debug)]
pub struct Driver {
    child: Child,
    /// Profile of the browser, and the mark of its processes.
    folder: TempDir,
    pub port: u16,
}

impl Driver {
    /// Starts the driver; `None`, and a line with the reason, where a program is missing.
    ///
    /// # Panics
    /// When the driver does not start.
    pub fn start() -> Option<Self> {
        if let Some(missing) = missing() {
            eprintln!("SKIPPED: {missing}; the page is not tested in a browser here");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("divvy-browser-").tempdir();
        let folder = folder.expect("a temporary folder can be made");
        let mut child = Command::new(DRIVER)
            .args(["--port=0", "--allowed-ips=127.0.0.1"])
            // Files of Chromium besides its profile go there too, and name the folder in its environment.
            .env("TMPDIR", folder.path())
            .env("XDG_CONFIG_HOME", folder.path())
            .env("XDG_CACHE_HOME", folder.path())
            .env("DIVVY_TEST_BROWSER", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let port = bounded("chromedriver names its port", || {
            let port = |line: String| {
                let (_, port) = line.split_once("successfully on port ")?;
                port.trim_end_matches('.').parse::<u16>().ok()
            };
            lines.find_map(|line| port(line.ok()?))
        });
        let mut driver = Self {
            child,
            folder,
            port: 0,
        };
        driver.port = port.expect("chromedriver names its port");
        // The driver writes a few lines more, and a closed pipe would end it.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Some(driver)
    }

    /// The capabilities of a session: headless, with an empty profile, and with both logs.
    pub fn capabilities(&self, more: &[&str]) -> Value {
        let profile = self.folder.path().join("profile");
        let profile = format!("--user-data-dir={}", profile.display());
        // Chromium's sandbox refuses to run as root.
        let sandbox = rustix::process::geteuid().is_root();
        let sandbox = sandbox.then_some("--no-sandbox");
        let flags: Vec<&str> = FLAGS
            .into_iter()
            .chain(sandbox)
            .chain(more.iter().copied())
            .chain([&*profile])
            .collect();
        json!({
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": browser(), "args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait_bounded();
        if let Some(folder) = self.folder.path().to_str() {
            kill_all_that_mention(folder);
        }
    }
}

/// The program that is missing, with the command that installs it.
fn missing() -> Option<String> {
    let install = "apt-get install chromium chromium-driver";
    if browser().is_none() {
        return Some(format!("chromium is missing ({install})"));
    }
    (!is_there(DRIVER)).then(|| format!("{DRIVER} is missing ({install})"))
}

fn browser() -> Option<String> {
    let name = BROWSERS.into_iter().find(|name| is_there(name))?;
    let output = Command::new("which").arg(name).output_bounded().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    Some(path.trim().to_owned())
}

fn is_there(name: &str) -> bool {
    let found = Command::new("which")
        .arg(name)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .wait_bounded();
    found.is_ok_and(|status| status.success())
}
