//! Filters of `events`, `logs`, `cancel` and the other actions, and `usage` by day: what each selects, and what is refused.

use std::process::Stdio;

use divvy_api::v1::JobState;
use divvy_e2e::{Home, until};
use divvy_testkit::Bounded as _;

fn typed(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// A daemon, and jobs in two queues; one of them runs, two wait for the whole GPU.
fn scene(home: &Home) -> [String; 3] {
    let holder = home.submit(
        &typed("-g 0.5 --name train-a -p vision"),
        &["sleep", "1000"],
    );
    let _ = home.running(&holder);
    let waits = home.submit(&typed("-g 1 --name train-b"), &["true"]);
    let night = home.submit(&typed("-g 1 -q night --name eval"), &["true"]);
    [holder, waits, night]
}

#[test]
fn each_action_selects_by_each_filter_and_changes_no_other_job() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&typed("--queue default night"));
    let [a, b, night] = scene(&home);
    let me = home.job(&a).user;
    let others = format!("-u {me}x");
    let own = format!("--user {me}");
    // Names of the jobs that each would change.
    for (words, expected) in [
        ("cancel --me", &[&a, &b, &night][..]),
        (&*format!("cancel {own}"), &[&a, &b, &night]),
        (&*format!("cancel {others}"), &[]),
        (&*format!("suspend {others} --name *"), &[]),
        ("cancel -q night", &[&night]),
        ("cancel --queue nowhere", &[]),
        ("cancel -p vision", &[&a]),
        ("cancel --project nlp", &[]),
        ("cancel -s queued", &[&b, &night]),
        ("cancel --state pending -q default", &[&b]),
        ("cancel -s completed", &[]),
        ("cancel --name train-*", &[&a, &b]),
        ("cancel --name train-* -s running", &[&a]),
        ("hold --me", &[&b, &night]),
        ("hold -q night", &[&night]),
        ("release --me", &[]),
        ("requeue --me", &[&a]),
        ("requeue -q night", &[]),
        ("suspend --me", &[&a]),
        ("suspend --name eval", &[]),
        ("resume --me", &[]),
    ] {
        let shown = home
            .divvy(&[typed(words), typed("--dry-run -o name")].concat())
            .ok();
        let found: Vec<&str> = shown.stdout.lines().collect();
        let expected: Vec<&str> = expected.iter().map(|id| id.as_str()).collect();
        assert_eq!(found, expected, "{words}");
        if expected.is_empty() {
            assert!(
                shown.stderr.contains("no jobs to "),
                "{words}: {}",
                shown.stderr
            );
        }
    }
    assert_eq!(
        home.job(&a).state,
        JobState::Running,
        "a dry run changes nothing"
    );

    // Without a terminal, only with --yes.
    let said = home.divvy(&typed("cancel --me")).exits(2);
    assert!(
        said.stderr.contains("no terminal") && said.stderr.contains("--yes"),
        "{}",
        said.stderr
    );
    let _ = home.divvy(&typed("hold -q night --yes")).ok();
    assert!(home.job(&night).hold.is_some() && home.job(&b).hold.is_none());
    let _ = home.divvy(&typed("release --me -y")).ok();
    assert!(home.job(&night).hold.is_none());
    let _ = home.divvy(&typed("suspend --me --yes")).ok();
    assert!(home.job(&a).suspended);
    let _ = home.divvy(&typed("resume --me --yes")).ok();
    assert!(!home.job(&a).suspended);
    // A state that was asked for is as good as a name: the daemon refuses what cannot be done.
    let refused = home.divvy(&typed("suspend -s queued --yes")).exits(8);
    assert!(refused.stderr.contains("queued"), "{}", refused.stderr);
    let _ = home.divvy(&typed("cancel --name train-* --yes")).ok();
    let (_, _) = (home.ended(&a), home.ended(&b));
    let _ = home.divvy(&typed("cancel --me --yes")).ok();
    let _ = home.divvy(&typed("cancel --me --yes")).ok();

    for wrong in [
        "cancel 3 --me",
        "cancel --me --user root",
        "cancel --yes",
        "cancel --dry-run",
        "cancel --state asleep --yes",
        "resume --name",
        "hold --me --dry-run --yes",
    ] {
        let said = home.divvy(&typed(wrong)).exits(2);
        assert!(said.stderr.contains("hint: "), "{wrong}: {}", said.stderr);
    }
}

/// Each action by filter in each round, while the jobs that it selects end by themselves.
fn act_beside_ending_jobs(rounds: usize) {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    for round in 0..rounds {
        let seconds = format!("0.{:02}", round * 7 % 23);
        for action in ["hold", "release", "suspend", "resume", "requeue", "cancel"] {
            for _ in 0..3 {
                let _ = home.submit(&typed("-g 0.25"), &["sleep", &seconds]);
            }
            let _ = home.divvy(&[action, "--me", "--yes", "-o", "name"]).ok();
        }
    }
    until("every job has ended", || {
        let _ = home.divvy(&typed("cancel --me --yes")).ok();
        home.items(&["ps"]).is_empty().then_some(())
    });
}

#[test]
fn an_action_by_filter_succeeds_beside_jobs_that_end() {
    act_beside_ending_jobs(4);
}

mod exhaustive {
    #[test]
    fn each_action_by_filter_in_200_rounds() {
        super::act_beside_ending_jobs(200);
    }
}

#[test]
fn on_a_terminal_more_than_one_job_is_a_question() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let first = home.submit(&typed("-g 1 --name one"), &["sleep", "1000"]);
    let second = home.submit(&typed("-g 1 --name two"), &["sleep", "1000"]);
    let answer = |words: &str, answer: &str| {
        let divvy = home.program("divvy");
        let mut command = home.command("script");
        command
            .args(["-qefc", &format!("{divvy} {words}"), "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let Ok(mut child) = command.spawn() else {
            eprintln!("SKIPPED: no script(1)");
            return None;
        };
        let mut stdin = child.stdin.take().expect("it is piped");
        std::io::Write::write_all(&mut stdin, answer.as_bytes()).expect("it reads");
        let output = child.output_bounded().expect("it ends");
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for no in ["n\n", "\n", "\u{4}", "all\n"] {
        let Some(said) = answer("cancel --me", no) else {
            return;
        };
        assert!(
            said.contains("cancel these 2 jobs? [y/N]") && said.contains("#1 one"),
            "{said}"
        );
        assert!(said.contains("nothing was changed"), "{said}");
    }
    assert!(
        [&first, &second]
            .iter()
            .all(|id| home.job(id).state != JobState::Ended)
    );
    let one = answer("cancel --me --name two", "").expect("it ran before");
    assert!(!one.contains("[y/N]"), "{one}");
    home.ended(&second);
    let third = home.submit(&typed("-g 1"), &["true"]);
    let all = answer("cancel --me", "yes\n").expect("it ran before");
    assert!(all.contains("[y/N]"), "{all}");
    let _ = (home.ended(&first), home.ended(&third));
}

#[test]
fn events_are_of_a_job_since_a_time_and_the_last_ones() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let first = home.submit(&typed("-g 0.25"), &["true"]);
    home.ended(&first);
    let array = home.submit(&typed("-g 0.25 --array 0-1"), &["true"]);
    until("the array has ended", || {
        home.items(&["ps"]).is_empty().then_some(())
    });
    let jobs = |words: &str| -> Vec<String> {
        let events = home.items(&[vec!["events"], typed(words)].concat());
        let job = |event: &serde_json::Value| event["job"].as_str().unwrap_or("-").to_owned();
        events.iter().map(job).collect()
    };
    let all = jobs("");
    let of_first = jobs(&first);
    assert!(
        of_first.len() >= 3 && of_first.iter().all(|job| *job == first),
        "{of_first:?}"
    );
    let second: u64 = array.parse().expect("a number");
    let tasks = [second.to_string(), (second + 1).to_string()];
    let of_array = jobs(&array);
    assert!(
        tasks.iter().all(|task| of_array.contains(task)),
        "{of_array:?}"
    );
    assert!(
        of_array.iter().all(|job| tasks.contains(job)),
        "{of_array:?}"
    );
    assert!(
        jobs(&format!("{array}_0"))
            .iter()
            .all(|job| *job == tasks[0])
    );
    assert_eq!(jobs("--tail 2"), all[all.len() - 2..]);
    assert_eq!(jobs("-n 0"), [""; 0]);
    assert_eq!(jobs("--since 1h"), all);
    assert_eq!(jobs("--since 2100-01-01"), [""; 0]);
    assert_eq!(
        jobs(&format!("{first} --since 1h -n 1")),
        std::slice::from_ref(&first)
    );
    let _ = home.divvy(&typed("events nobody")).exits(3);
    let _ = home.divvy(&typed("events 999")).exits(3);
    for wrong in ["--tail x", "--tail -1", "--since yesterday"] {
        let said = home
            .divvy(&[vec!["events"], typed(wrong)].concat())
            .exits(2);
        assert!(said.stderr.contains("hint: "), "{wrong}: {}", said.stderr);
    }

    // Followed: the last one, then those of this job alone.
    let waits = home.submit(&typed("-g 0.25 --hold"), &["true"]);
    let mut command = home.divvy_command(&["events", &waits, "-f", "-n", "1", "-o", "ndjson"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = std::io::BufReader::new(child.stdout.take().expect("it is piped"));
    let mut lines = std::io::BufRead::lines(lines);
    let mut next = || -> serde_json::Value {
        let line = lines.next().expect("a line").expect("it is text");
        serde_json::from_str(&line).expect("it is JSON")
    };
    assert_eq!(next()["job"], waits.as_str());
    let other = home.submit(&typed("-g 0.25"), &["true"]);
    home.ended(&other);
    let _ = home.divvy(&["release", &waits]).ok();
    loop {
        let event = next();
        assert_eq!(event["job"], waits.as_str(), "{event}");
        if event["kind"] == "ended" {
            break;
        }
    }
    child.kill().expect("it is our child");
    child.wait_bounded().expect("it is our child");
}

#[test]
fn logs_begin_at_their_last_lines_or_at_a_time() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let script = "seq 1 20000; printf end";
    let job = home.submit(&typed("-g 0.25"), &["sh", "-c", script]);
    home.ended(&job);
    let log = |words: &str| {
        home.divvy(&[vec!["logs", &job], typed(words)].concat())
            .ok()
            .stdout
    };
    let whole = log("");
    assert_eq!(whole.lines().count(), 20_001);
    assert_eq!(log("-n 3"), "19999\n20000\nend");
    assert_eq!(log("--tail 0"), "");
    assert_eq!(log("--tail 1000000"), whole);
    assert_eq!(log("-f -n 1"), "end");
    assert_eq!(log("--since 1h"), whole, "all of it was written since");
    assert_eq!(log("--since 1h --tail 2"), "20000\nend");
    assert_eq!(log("--since 2100-01-01"), "");

    let array = home.submit(
        &typed("-g 0.25 --array 0-1"),
        &["sh", "-c", "echo a; echo b"],
    );
    until("the array has ended", || {
        home.items(&["ps"]).is_empty().then_some(())
    });
    let both = home.divvy(&["logs", &array, "-n", "1"]).ok().stdout;
    assert_eq!(
        (both.matches("b\n").count(), both.matches("a\n").count()),
        (2, 0),
        "{both}"
    );

    // The file that a job writes itself is read by the client.
    let file = home.path().join("out.txt");
    let flags = ["-g", "0.25", "--stdout", file.to_str().expect("it is text")];
    let to_file = home.submit(&flags, &["seq", "1", "30000"]);
    home.ended(&to_file);
    let last = home.divvy(&["logs", &to_file, "-n", "2"]).ok().stdout;
    assert_eq!(last, "29999\n30000\n");
    for wrong in ["--tail x", "--since tomorrow"] {
        let said = home.divvy(&[vec!["logs"], typed(wrong)].concat()).exits(2);
        assert!(said.stderr.contains("hint: "), "{wrong}: {}", said.stderr);
    }
}

#[test]
fn usage_by_day_is_drawn_and_said_in_the_callers_days() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let job = home.submit(&typed("-g 1"), &["sleep", "0.2"]);
    home.ended(&job);
    let days = home.items(&typed("usage --by day --since 3d"));
    assert_eq!(days.len(), 4, "{days:?}");
    let held = |day: &serde_json::Value| day["allocated_gpu_ms"].as_u64().expect("a figure");
    assert!(days[..2].iter().all(|day| held(day) == 0));
    let whole = &home.items(&typed("usage --by none --since 3d"))[0];
    assert_eq!(days.iter().map(held).sum::<u64>(), held(whole));
    let table = |words: &str, locale: &str| {
        let mut command = home.divvy_command(&typed(words));
        let output = command
            .env("LC_ALL", locale)
            .output_bounded()
            .expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(table("usage --by day --since 3d", "C.UTF-8").contains('▏'));
    let ascii = table("usage --by day,user --since 3d", "C");
    assert!(
        ascii.is_ascii() && ascii.contains("DAYS") && ascii.lines().count() == 2,
        "{ascii}"
    );
    assert!(table("usage --by user,day --since 3d", "C.UTF-8").contains('█'));
    assert!(table("usage --by user,day --since 3d --ascii", "C.UTF-8").is_ascii());
    let said = home
        .divvy(&typed("usage --by day --since 2000-01-01"))
        .exits(2);
    assert!(
        said.stderr.contains("402 days") && said.stderr.contains("hint: "),
        "{}",
        said.stderr
    );
}
