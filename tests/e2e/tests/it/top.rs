//! `divvy top` as a program: in a terminal (tmux), which it has to leave as it was, and without one.

use std::path::PathBuf;
use std::process::Stdio;

use divvy_e2e::{CommandOutput, Home, until};
use divvy_testkit::{Bounded as _, can_be_users, signal, two_run_and_one_waits};
use serde_json::Value;

/// A user that no user database has.
const UID: &str = "60105";

/// A terminal with a shell in it.
struct Terminal<'a> {
    home: &'a Home,
    socket: PathBuf,
}

impl<'a> Terminal<'a> {
    /// `None`, and a line that says so, without tmux.
    fn open(home: &'a Home, size: (u16, u16)) -> Option<Self> {
        let is_here = home.command("tmux").arg("-V").output_bounded().is_ok();
        if !is_here {
            eprintln!("SKIPPED: tmux is missing; divvy top is not tested in a terminal here");
            return None;
        }
        let terminal = Self {
            home,
            // A server that ends may still have its socket.
            socket: home.scratch().join(format!("tmux-{}-{}", size.0, size.1)),
        };
        let (width, height) = (size.0.to_string(), size.1.to_string());
        let shell = ["bash", "--norc", "--noprofile", "-i"];
        let new = ["new-session", "-d", "-x", &width, "-y", &height];
        terminal.tmux(&[&new[..], &shell].concat());
        terminal.tmux(&["resize-window", "-x", &width, "-y", &height]);
        Some(terminal)
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut command = self.home.command("tmux");
        command
            .args(["-u", "-f", "/dev/null", "-S"])
            .arg(&self.socket)
            .args(words);
        command
            .env("LANG", "C.UTF-8")
            .env("PS1", "$ ")
            .env_remove("TMUX");
        let output = command.output_bounded().expect("tmux starts");
        CommandOutput::new(words.join(" "), &output).ok().stdout
    }

    fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a line for the shell.
    fn run(&self, line: &str) {
        self.tmux(&["send-keys", "-l", line]);
        self.press(&["Enter"]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the screen has this text; returns the screen.
    fn shows(&self, text: &str) -> String {
        let mut last = String::new();
        until(format!("the screen shows {text:?}"), || {
            last = self.screen();
            last.contains(text).then(|| last.clone())
        })
    }

    /// Waits until the view has left the screen: it reads what is typed before that.
    fn is_left(&self) {
        let state = "#{alternate_on} #{cursor_flag}";
        until("the shell has its screen and its cursor", || {
            self.tmux(&["display-message", "-p", state]).trim() == "0 1"
        });
    }

    fn is_restored(&self) {
        self.is_left();
        let count = "stty -a | tr ' ;' '\\n\\n' | grep -cx -e icanon -e echo -e isig";
        self.run(&format!("clear; echo restored-$({count})"));
        self.shows("restored-3");
    }

    fn top(&self, flags: &str) {
        let divvy = self.home.program("divvy");
        self.run(&format!("clear; {divvy} top {flags}; echo left-$?"));
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let mut command = self.home.command("tmux");
        command.arg("-S").arg(&self.socket).arg("kill-server");
        let _ = command.stderr(Stdio::null()).output_bounded();
    }
}

#[test]
fn the_view_fits_terminals_and_leaves_them_as_they_were() {
    let (home, _daemon, _) = two_run_and_one_waits();
    for (width, height) in [(80, 24), (120, 40), (60, 20)] {
        let Some(terminal) = Terminal::open(&home, (width, height)) else {
            return;
        };
        terminal.top("");
        let screen = terminal.shows("2 GPUs");
        let widest = screen.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(usize::from(width)), "{screen}");
        for part in [
            "divvy top",
            "JOBS 2",
            "gpu0:0.5a",
            "notebook",
            "PENDING 1",
            "needs 2 whole GPUs",
            "x cancel",
        ] {
            assert!(
                screen.contains(part),
                "{part:?} is missing at {width}x{height}:\n{screen}"
            );
        }
        assert_eq!(screen.contains("PROJECT"), width >= 120, "{screen}");
        terminal.tmux(&["resize-window", "-x", "20", "-y", "5"]);
        let screen = terminal.shows("20x5: need 40x10");
        assert_eq!(screen.trim(), "20x5: need 40x10");
        let (width, height) = (width.to_string(), height.to_string());
        terminal.tmux(&["resize-window", "-x", &width, "-y", &height]);
        terminal.shows("JOBS 2");
        terminal.press(&["q"]);
        terminal.shows("left-0");
        terminal.is_restored();
    }
}

#[test]
fn an_action_is_confirmed_done_and_shown() {
    let (home, _daemon, jobs) = two_run_and_one_waits();
    let Some(terminal) = Terminal::open(&home, (100, 30)) else {
        return;
    };
    terminal.top("");
    terminal.shows("JOBS 2");
    terminal.press(&["x"]);
    terminal.shows(&format!("divvy cancel {}  y/N", jobs[0]));
    terminal.press(&["n"]);
    terminal.shows("nothing was done");
    assert_ne!(home.job(&jobs[0]).state, divvy_api::v1::JobState::Ended);
    terminal.press(&["r"]);
    terminal.press(&["4", "G", "Enter"]);
    terminal.shows(&format!("divvy resize {} --gpu-memory 4G  y/N", jobs[0]));
    terminal.press(&["y"]);
    terminal.shows("/4.0");
    terminal.press(&["x", "y"]);
    terminal.shows("JOBS 1");
    home.ended(&jobs[0]);
    // The page of the job that waits.
    terminal.press(&["3", "Enter"]);
    terminal.shows(&format!("#{} waits in queue default", jobs[2]));
    terminal.press(&["q", "q"]);
    terminal.shows("left-0");
}

#[test]
fn a_killed_daemon_leaves_grey_figures_and_a_new_one_takes_over() {
    let (home, daemon, _) = two_run_and_one_waits();
    let Some(terminal) = Terminal::open(&home, (100, 24)) else {
        return;
    };
    terminal.top("");
    terminal.shows("JOBS 2");
    daemon.crash();
    let screen = terminal.shows("figures are");
    assert!(
        screen.contains("no daemon answers") && screen.contains("JOBS 2"),
        "{screen}"
    );
    // Keys work without a daemon.
    terminal.press(&["?"]);
    terminal.shows("Keys of divvy top");
    terminal.press(&["Escape"]);
    let _daemon = home.daemon(&[]);
    terminal.shows("2 jobs run, 1 wait");
    terminal.press(&["q"]);
    terminal.shows("left-0");
    terminal.is_restored();
}

#[test]
fn signals_and_ctrl_z_leave_the_terminal_as_it_was() {
    let (home, _daemon, _) = two_run_and_one_waits();
    let Some(terminal) = Terminal::open(&home, (80, 24)) else {
        return;
    };
    terminal.top("");
    terminal.shows("JOBS 2");
    terminal.press(&["C-z"]);
    terminal.is_restored();
    terminal.run("fg");
    terminal.shows("JOBS 2");
    // The rest of the shell's line ended with the stop.
    terminal.press(&["C-c"]);
    terminal.is_left();
    terminal.run("echo left-$?");
    terminal.shows("left-0");
    terminal.is_restored();
    for (name, code) in [("TERM", 143), ("HUP", 129)] {
        terminal.top("--readonly");
        terminal.shows("JOBS 2");
        terminal.press(&["x"]);
        terminal.shows("this view was started with --readonly");
        let of_pane = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let children = home
            .command("pgrep")
            .args(["-P", of_pane.trim()])
            .output_bounded();
        let children = children.expect("pgrep starts");
        let pid = String::from_utf8(children.stdout).expect("a number");
        signal(pid.trim().parse().expect("one child"), name);
        terminal.shows(&format!("left-{code}"));
        terminal.is_restored();
    }
}

#[test]
fn a_user_sees_others_jobs_and_may_not_act_on_them() {
    let home = Home::new("a100-80gb:1");
    if !can_be_users("no role of divvy top is tested here") {
        return;
    }
    let _daemon = home.daemon(&["--system"]);
    let job = home.submit(&["-g", "0.5", "--name", "theirs"], &["sleep", "1000"]);
    home.running(&job);
    let Some(terminal) = Terminal::open(&home, (120, 24)) else {
        return;
    };
    let divvy = home.program("divvy");
    let user = format!("setpriv --reuid={UID} --regid={UID} --clear-groups");
    terminal.run(&format!("clear; {user} {divvy} top; echo left-$?"));
    terminal.shows("(x cancel)");
    terminal.press(&["x"]);
    let screen = terminal.shows("the role operator is required");
    assert!(
        screen.contains(&format!("! cannot cancel #{job}: the job belongs to root")),
        "{screen}"
    );
    terminal.press(&["y"]);
    terminal.shows("nothing to copy");
    terminal.press(&["q"]);
    terminal.shows("left-0");
    home.running(&job);
}

#[test]
fn without_a_terminal_everything_is_printed_once() {
    let (home, _daemon, jobs) = two_run_and_one_waits();
    for words in [&["top"][..], &["top", "-1"], &["top", "--once", "--ascii"]] {
        let text = home.divvy(words).ok().stdout;
        assert!(!text.contains('\u{1b}'), "{text:?}");
        for part in ["2 GPUs", "gpu0:0.5a", "notebook", "needs 2 whole GPUs"] {
            assert!(text.contains(part), "{part:?} is missing: {text}");
        }
        assert!(text.is_ascii() || !words.contains(&"--ascii"), "{text}");
    }
    let only = home.divvy(&["top", "--filter", "note"]).ok().stdout;
    assert!(
        only.contains("notebook") && !only.contains("train"),
        "{only}"
    );
    let document: Value = home.divvy(&["top", "-1", "-o", "json"]).ok().json();
    assert_eq!(document["kind"], "Board");
    assert_eq!(document["items"][0]["jobs"][1]["id"], jobs[1]);
    let line = home.divvy(&["top", "-1", "-o", "ndjson"]).ok().stdout;
    assert_eq!(line.lines().count(), 1);
    // Without a daemon there is nothing to show.
    let alone = Home::new("a100-80gb:1");
    for words in [&["top"][..], &["top", "--plain"], &["top", "-o", "json"]] {
        let said = alone.divvy(words).exits(7);
        assert!(said.stderr.contains("hint"), "{}", said.stderr);
    }
}

#[test]
fn plain_lines_and_documents_follow_the_daemon_through_a_restart() {
    use std::io::{BufRead as _, BufReader};
    let (home, daemon, jobs) = two_run_and_one_waits();
    let mut command = home.divvy_command(&["top", "--plain", "--bell", "--interval", "500ms"]);
    let mut view = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("divvy starts");
    let mut lines = BufReader::new(view.stdout.take().expect("a pipe")).lines();
    let mut next = |wanted: &str| {
        divvy_testkit::bounded(format!("a line with {wanted:?}"), || {
            let line = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(wanted)));
            line.expect("it goes on").expect("readable")
        })
    };
    next("GPU 0: ");
    next("job 1 train of ");
    next("pending jobs: 1, 1 insufficient");
    let _ = home.divvy(&["cancel", &jobs[2]]).ok();
    // One bell and one line for the event.
    let event = next("ended: ");
    assert!(event.contains(&format!("job {} ", jobs[2])), "{event:?}");
    daemon.crash();
    next("the daemon does not answer");
    let _daemon = home.daemon(&[]);
    next("the daemon answers again");
    view.kill().expect("it runs");
    let _ = view.wait_bounded();
}
