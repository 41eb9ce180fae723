//! Lists: every filter of `ps` with its result, `gpus` without a daemon, colours, `--watch`, and the line of a waiting
//! `run`.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use divvy_e2e::{GIB, Home, Programs, until};
use divvy_testkit::Bounded as _;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// `divvy WORDS` on a terminal, by script(1); with colours, if the terminal has some.
fn on_terminal(home: &Home, columns: usize, words: &str) -> Command {
    let divvy = home.program("divvy");
    let typed = format!("stty cols {columns} rows 24 && exec {divvy} {words}");
    let mut command = home.command("script");
    command
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .env("TERM", "xterm-256color")
        .args(["-qefc", &typed, "/dev/null"]);
    command
}

/// Its output; nothing where there is no script(1).
fn shown(command: &mut Command) -> Option<String> {
    match command.output_bounded() {
        Ok(output) => {
            assert!(output.status.success(), "{output:?}");
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        Err(_) => {
            eprintln!("SKIPPED: no script(1)");
            None
        }
    }
}

#[test]
fn queued_jobs_of_an_array_are_a_row_of_ps_and_a_screen_of_queued_jobs_is_shown() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let _ = home.submit_holder(&["-g", "1"], GIB, "go");
    let array = ["-g", "0.25", "--array", "0-39", "--name", "sweep"];
    let _ = home.submit(&array, &["true"]);
    let folded = home.divvy(&["ps"]).ok().stdout;
    let rows: Vec<&str> = folded.lines().collect();
    assert_eq!(rows.len(), 3, "{folded}");
    for word in ["2_[0-39]", "sweep ", "40 queued"] {
        assert!(rows[2].contains(word), "{folded}");
    }
    let all = home.divvy(&["ps", "--tasks"]).ok().stdout;
    assert_eq!(all.lines().count(), 42, "{all}");
    assert!(all.contains("2_39"), "{all}");
    assert_eq!(home.items(&["ps"]).len(), 41);
    for index in 0..20 {
        let name = format!("alone-{index}");
        let _ = home.submit(&["-g", "0.25", "--name", &name], &["true"]);
    }
    // 24 rows, less ten for the head, running jobs and the prompt.
    let Some(text) = shown(&mut on_terminal(&home, 120, "ps")) else {
        return;
    };
    let left_out = "divvy: 7 more pending jobs; -n 0 lists them too";
    assert!(text.contains(left_out), "{text}");
    assert_eq!(text.matches("alone-").count(), 13, "{text}");
    let text = shown(&mut on_terminal(&home, 120, "ps -n 0")).unwrap_or_default();
    assert_eq!(text.matches("alone-").count(), 20, "{text}");
    assert_eq!(home.divvy(&["ps"]).ok().stdout.lines().count(), 23);
}

fn names(items: &[Value]) -> Vec<&str> {
    let name = |item: &Value| item["name"].as_str().map(str::len).unwrap_or_default();
    assert!(items.iter().all(|item| name(item) > 0), "{items:?}");
    items
        .iter()
        .filter_map(|item| item["name"].as_str())
        .collect()
}

#[test]
fn every_filter_lists_its_jobs_and_no_others() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&["--dynamic-gpus", "--queue", "half=0.5"]);
    let done = home.submit(&["-g", "0.25", "--name", "done"], &["true"]);
    home.ended(&done);
    let fails = home.submit(
        &["-g", "0.25", "--name", "fails", "-p", "vision"],
        &["false"],
    );
    home.ended(&fails);
    let runs = home.submit_holder(&["-q", "half", "--name", "runs"], 1 << 20, "runs");
    let _ = home.running(&runs);
    let waits = home.submit(&["-g", "1", "--name", "waits", "-p", "vision"], &["true"]);
    home.waits(&waits);
    let user = home.job(&runs).user;
    let uid = home.job(&runs).uid.expect("a user").to_string();

    let all = ["done", "fails", "runs", "waits"];
    let living = &all[2..];
    let table: &[(&str, &[&str])] = &[
        ("", living),
        ("-a", &all),
        ("--me", living),
        ("--me -a", &all),
        ("-u USER", living),
        ("--user UID", living),
        ("-u no-such-user", &[]),
        ("-q half", &["runs"]),
        ("--queue default", &["waits"]),
        ("-q half -a -s completed", &[]),
        ("-p vision", &["waits"]),
        ("--project vision -a", &["fails", "waits"]),
        ("--project= -a", &["done", "runs"]),
        ("-s running", &["runs"]),
        ("-s queued", &["waits"]),
        ("-s PD,R", living),
        ("--state failed", &["fails"]),
        ("-s completed,failed", &["done", "fails"]),
        ("-s ended", &["done", "fails"]),
        ("-s time_limit", &[]),
        ("--since 1h", &all),
        ("--since 2030-01-01", living),
        ("--since 1h -s failed", &["fails"]),
        ("--name f*", &[]),
        ("--name f* -a", &["fails"]),
        ("--name *s", living),
        ("-a -n 2", living),
        ("--limit 1", &["waits"]),
        ("-a --sort -id", &["waits", "runs", "fails", "done"]),
        ("-a --sort name -n 2", &["done", "fails"]),
        ("-s ended --sort -ended", &["fails", "done"]),
    ];
    for (words, expected) in table {
        let words = words.replace("USER", &user).replace("UID", &uid);
        let words = [&["ps"], &*words.split_whitespace().collect::<Vec<_>>()].concat();
        // As JSON, whose jobs are whole, and as a table, whose jobs are brief.
        let items = home.items(&words);
        assert_eq!(names(&items), *expected, "{words:?}");
        let table = home.divvy(&words).ok();
        let rows = table.stdout.lines().skip(1);
        let seen: Vec<&str> = rows
            .filter_map(|row| row.split_whitespace().nth(1))
            .collect();
        assert_eq!(seen, *expected, "{words:?}: {}", table.stdout);
        if expected.is_empty() {
            assert!(
                table.stderr.contains("no jobs match --"),
                "{}",
                table.stderr
            );
        }
    }
    let said = home.divvy(&["ps", "--me", "-s", "time_limit"]).ok().stderr;
    assert!(
        said.contains("no jobs match --me --state time_limit"),
        "{said}"
    );

    // What an ended job used, and how long it ran and not since when it is over.
    let past = home.divvy(&["ps", "-a"]).ok().stdout;
    let titles = "ID  NAME   USER  QUEUE    REQ   STATE       STARTED   ENDED     ELAPSED       PEAK/LIMIT  REASON";
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        past.lines().next().map(squeezed),
        Some(squeezed(titles)),
        "{past}"
    );
    let json = &home.items(&["ps", "fails"])[0];
    let time = |name: &str| {
        json[name]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
    };
    let ran = time("ended_at")
        .duration_since(time("started_at"))
        .as_secs();
    let row = past.lines().find(|row| row.contains("fails")).unwrap();
    assert!(row.contains(&format!(" {ran}s ")), "{row}");
    home.end(&runs, "runs");
}

#[test]
fn an_ended_job_shows_its_peak_and_a_slice_its_user() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let job = home.submit_holder(&["--gpu-memory", "8G"], 2 * GIB, "peak");
    let user = home.running(&job).user;
    let used = || {
        let gpus = home.divvy(&["gpus"]).ok().stdout;
        let held = format!("#{job} {user} gpu0:0.");
        gpus.contains(&held).then_some(())
    };
    until("the slice is listed with its user", used);
    until("its memory is seen", || {
        let used = home.items(&["ps"])[0]["slices"][0]["memory_used_bytes"].as_u64()?;
        (used > 2 * GIB).then_some(())
    });
    home.end(&job, "peak");
    let past = home.divvy(&["ps", "-a"]).ok().stdout;
    assert!(past.contains("2.4/8.0 GiB"), "{past}");
    // Named, it is in the same form.
    assert_eq!(home.divvy(&["ps", &job]).ok().stdout, past);
}

#[test]
fn without_a_daemon_gpus_are_the_drivers() {
    let home = Home::new("a100-80gb:2");
    let said = home.divvy(&["gpus"]).ok();
    let titles = said.stdout.lines().next().unwrap_or_default();
    assert!(
        titles.contains("USED/TOTAL") && titles.contains("PROCESSES"),
        "{titles}"
    );
    assert_eq!(said.stdout.lines().count(), 3, "{}", said.stdout);
    assert!(said.stderr.contains("no daemon runs"), "{}", said.stderr);
    assert!(said.stderr.contains("divvy daemon"), "{}", said.stderr);
    // A process on one of them has its user and its program.
    let mut holder = home.outside(&home.program("cudarc_probe"));
    let mut holder = holder
        .args(["hold", "--bytes", &GIB.to_string()])
        .args(["--until-file", &home.gate("holder")])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = until("the process is listed", || {
        let gpus = home.items(&["gpus"]);
        assert_eq!(gpus.len(), 2);
        assert!(
            gpus.iter().all(|gpu| gpu["mode"] == "unmanaged"),
            "{gpus:?}"
        );
        let process = gpus[0]["processes"].get(0)?.clone();
        (process["memory_bytes"].as_u64()? > GIB).then_some(process)
    });
    let id = Command::new("id").arg("-un").output_bounded().unwrap();
    assert_eq!(process["user"], String::from_utf8_lossy(&id.stdout).trim());
    assert_eq!(process["program"], "cudarc_probe");
    assert_eq!(process["pid"], holder.id());
    let table = home.divvy(&["gpus"]).ok().stdout;
    assert!(
        table.contains(&format!("cudarc_probe (pid {})", holder.id())),
        "{table}"
    );
    home.open("holder");
    assert!(holder.wait_bounded().unwrap().success());
    assert!(!home.path().join("divvy.sock").exists(), "none was started");
}

#[test]
fn without_a_daemon_and_without_a_driver_both_are_said() {
    let home = Home::with(Programs::of_this_test(), None);
    let mut command = home.divvy_command(&["gpus"]);
    // A folder without NVML hides no driver of the machine; where there is one, this is not to be tried.
    let output = command.output_bounded().unwrap();
    if output.status.success() {
        eprintln!("SKIPPED: this machine has a driver");
        return;
    }
    assert_eq!(output.status.code(), Some(7));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("no GPU found on this machine"), "{said}");
    assert!(said.contains("hint: "), "{said}");
    assert!(!home.path().exists(), "nothing was written");
}

#[test]
fn colours_are_for_terminals_and_obey_the_environment() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let job = home.submit(&["-g", "0.25"], &["false"]);
    home.ended(&job);
    let orange = "\u{1b}[38;5;166mfailed (1)\u{1b}[0m";
    let Some(said) = shown(&mut on_terminal(&home, 120, "ps -a")) else {
        return;
    };
    assert!(said.contains(orange), "{said:?}");
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb"), ("CLICOLOR", "0")] {
        let plain = shown(on_terminal(&home, 120, "ps -a").env(name, value)).unwrap();
        assert!(
            !plain.contains('\u{1b}') && plain.contains("failed (1)"),
            "{name}: {plain:?}"
        );
    }
    let eight = shown(on_terminal(&home, 120, "ps -a").env("TERM", "xterm")).unwrap();
    assert!(eight.contains("\u{1b}[31mfailed (1)"), "{eight:?}");
    let piped = |words: &[&str], forced: bool| {
        let mut command = home.divvy_command(words);
        command.env_remove("NO_COLOR").env("TERM", "xterm-256color");
        if forced {
            command.env("CLICOLOR_FORCE", "1");
        }
        let output = command.output_bounded().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    };
    let table = ["ps", "-a"];
    assert!(!piped(&table, false).contains('\u{1b}'));
    assert!(piped(&table, true).contains(orange));
    // What programs read has none, whatever is wanted.
    for form in ["json", "ndjson", "name"] {
        let text = piped(&["ps", "-a", "-o", form], true);
        assert!(!text.contains('\u{1b}'), "{form}: {text:?}");
    }
    assert!(piped(&["describe", "99"], true).starts_with("\u{1b}[38;5;166merror:\u{1b}[0m "));
    assert!(!piped(&["describe", "99", "-o", "json"], true).contains('\u{1b}'));
}

/// What a watching command has written so far.
fn follow(command: &mut Command) -> (std::process::Child, std::path::PathBuf, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let file = folder.path().join("out");
    let out = std::fs::File::create(&file).expect("a new folder can be written");
    let child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone().expect("a file can be shared"))
        .stderr(out)
        .spawn()
        .expect("it starts");
    (child, file, folder)
}

#[test]
fn a_watched_list_follows_its_jobs_and_leaves_the_terminal_as_it_was() {
    let mut home = Home::new("a100-80gb:1");
    home.start(&[]);
    let mut command = on_terminal(&home, 100, "ps --watch=0.1");
    if Command::new("script")
        .arg("--version")
        .output_bounded()
        .is_err()
    {
        eprintln!("SKIPPED: no script(1)");
        return;
    }
    let (mut child, file, _folder) = follow(&mut command);
    let written = || std::fs::read_to_string(&file).unwrap();
    let contains = |text: &str| written().contains(text).then_some(());
    until("it says that there is nothing", || {
        contains("no pending or running jobs")
    });
    let job = home.submit(&["-g", "0.25", "--name", "comes"], &["sleep", "600"]);
    until("the job is listed", || contains("comes"));
    // An unchanged list is not drawn again.
    let entered = "\u{1b}[?1049h";
    assert_eq!(written().matches(entered).count(), 1);
    home.kill();
    until("the list shows its age", || contains(" old: "));
    assert!(written().ends_with("\u{1b}[J"), "{:?}", written());
    home.start(&[]);
    let _ = home.divvy(&["cancel", &job]).ok();
    let last = || {
        let text = written();
        let frame = text
            .rsplit("\u{1b}[H")
            .next()
            .unwrap_or_default()
            .to_owned();
        (!frame.contains(" old: ") && frame.contains("no pending")).then_some(())
    };
    until("it goes on with the new daemon", last);
    let divvy = divvy_below(child.id());
    kill_process(Pid::from_raw(divvy).unwrap(), Signal::INT).unwrap();
    assert!(child.wait_bounded().unwrap().success());
    let text = written();
    assert!(text.contains("\u{1b}[?25h\u{1b}[?1049l"), "{text:?}");
}

/// The only child of script(1).
fn divvy_below(script: u32) -> i32 {
    until("script starts it", || {
        let file = format!("/proc/{script}/task/{script}/children");
        let children = std::fs::read_to_string(file).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

#[test]
fn elsewhere_watched_lists_follow_each_other() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    for verb in ["ps", "gpus", "queues", "projects"] {
        let mut command = home.divvy_command(&[verb, "--watch=0.1"]);
        let (mut child, file, _folder) = follow(&mut command);
        let twice = || {
            let text = std::fs::read_to_string(&file).unwrap();
            let tables = match verb {
                "ps" => text.matches("no pending").count(),
                "projects" => text.matches("no projects").count(),
                _ => text.split("\n\n").filter(|table| !table.is_empty()).count(),
            };
            assert!(!text.contains('\u{1b}'), "{text:?}");
            (tables > 2).then_some(())
        };
        until(format!("{verb} is shown again"), twice);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        assert_eq!(child.wait_bounded().unwrap().code(), Some(0), "{verb}");
    }
    let refused = home.divvy(&["ps", "--watch", "-o", "json"]).exits(2);
    assert!(refused.stderr.contains("--watch"), "{}", refused.stderr);
}

#[test]
fn a_waiting_run_has_one_line_that_is_gone_before_its_program_starts() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let holder = home.submit(&["-g", "1"], &["sleep", "600"]);
    let _ = home.running(&holder);
    if Command::new("script")
        .arg("--version")
        .output_bounded()
        .is_err()
    {
        eprintln!("SKIPPED: no script(1)");
        return;
    }
    let begun = Instant::now();
    let mut command = on_terminal(&home, 90, "run -g 1 --name second -- echo started");
    let (mut child, file, _folder) = follow(&mut command);
    let written = || std::fs::read_to_string(&file).unwrap();
    // It is drawn again as time passes.
    until("its time is followed", || {
        let text = written();
        (text.contains("waits 1s") && text.contains("waits 2s")).then_some(())
    });
    assert!(begun.elapsed() > Duration::from_secs(1));
    let text = written();
    let line = text.rsplit('\r').next().unwrap_or_default();
    assert!(line.contains("place 1 in queue default"), "{line}");
    assert!(line.contains("needs 1 whole GPU"), "{line}");
    assert!(!text.contains('\n'), "one line: {text:?}");
    let _ = home.divvy(&["cancel", &holder]).ok();
    assert!(child.wait_bounded().unwrap().success());
    let text = written();
    assert!(text.ends_with("\r\u{1b}[Kstarted\r\n"), "{text:?}");
    // Elsewhere nothing is written but what the program writes.
    let plain = home
        .divvy(&["run", "-g", "1", "--", "echo", "started"])
        .ok();
    assert_eq!((plain.stdout.trim(), plain.stderr.trim()), ("started", ""));
}

/// Answers as a daemon of an earlier version, which does not know this field. Returns what clients post.
fn older_daemon(home: &Home, node: &str, field: &str) -> Receiver<String> {
    let listener = UnixListener::bind(home.socket()).expect("no daemon serves");
    let node = node.to_owned();
    let unknown = format!(
        r#"{{"error":{{"code":"usage","message":"unknown field `{field}`","hint":null}}}}"#
    );
    let (sender, posted) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut asked = String::new();
            let mut reader = BufReader::new(&stream);
            let read = reader.read_line(&mut asked);
            assert!(read.is_ok_and(|length| length > 0), "a request has a line");
            if asked.starts_with("POST") {
                let mut body = vec![0; content_length(&mut reader)];
                reader
                    .read_exact(&mut body)
                    .expect("the client sends its body");
                let _ = sender.send(String::from_utf8(body).expect("the body is JSON"));
            }
            let (status, body) = if asked.starts_with("GET /v1/node") {
                ("200 OK", node.clone())
            } else {
                ("400 Bad Request", unknown.clone())
            };
            let length = body.len();
            let head = "content-type: application/json\r\nconnection: close";
            let answer =
                format!("HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}");
            // The client may have what it needs already.
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    posted
}

/// Reads the rest of a request's head.
fn content_length(reader: &mut impl BufRead) -> usize {
    let mut length = 0;
    for line in reader.lines() {
        let line = line.expect("the head ends").to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse().expect("a length is a number");
        }
    }
    length
}

#[test]
fn a_run_beside_an_older_daemon_says_that_its_job_is_not_tied_to_it() {
    let mut home = Home::new("a100-80gb:1");
    home.start(&[]);
    let node = home.call(home.client().node()).unwrap();
    assert_eq!(home.stop(), 0);
    let list = divvy_api::v1::List::new("NodeList", vec![node]);
    let posted = older_daemon(&home, &serde_json::to_string(&list).unwrap(), "with_client");
    // This daemon refuses the job again, so that nothing is left to wait for.
    let said = home.divvy(&["run", "-g", "1", "--", "true"]).exits(2);
    let warning =
        "warning: the daemon is older than this divvy: the job goes on if this command is killed";
    assert!(said.stderr.contains(warning), "{}", said.stderr);
    let bodies: Vec<String> = posted.try_iter().collect();
    let tied: Vec<bool> = bodies
        .iter()
        .map(|body| body.contains("with_client"))
        .collect();
    assert_eq!(tied, [true, false], "{bodies:?}");
}

#[test]
fn an_older_daemon_without_filters_is_named_with_both_versions() {
    let mut home = Home::new("a100-80gb:1");
    home.start(&[]);
    let mut node = home.call(home.client().node()).unwrap();
    assert_eq!(home.stop(), 0);
    let ours = std::mem::replace(&mut node.version, "0.0.9".to_owned());
    let list = divvy_api::v1::List::new("NodeList", vec![node]);
    older_daemon(&home, &serde_json::to_string(&list).unwrap(), "user");
    for form in ["table", "json", "wide"] {
        let said = home.divvy(&["ps", "--user", "ana", "-o", form]).exits(2);
        for word in [
            "version 0.0.9",
            &*ours,
            "unknown field `user`",
            "restart the daemon",
        ] {
            assert!(said.stderr.contains(word), "{word}: {}", said.stderr);
        }
    }
}
