//! Other programs inside of running jobs: what they get, how they end, and what does not depend on them.

#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::time::Duration;

use divvy_api::client::{Client, ExecOutput};
use divvy_api::frame::Frame;
use divvy_api::v1::{EndReason, ErrorCode, Exec, ExecEnd, JobState, Signal, Terminal};
use divvy_testkit::{
    Home, SEED, ended, in_state, is_alive, log, quarter, refused, script, signal, until,
};

fn shell(script: &str) -> Exec {
    Exec {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        terminal: None,
    }
}

fn on_terminal(script: &str) -> Exec {
    Exec {
        terminal: Some(Terminal {
            rows: 33,
            columns: 101,
            kind: Some("vt100".into()),
        }),
        ..shell(script)
    }
}

/// What is left to be said, and the end.
async fn rest(output: &mut ExecOutput) -> (String, String, ExecEnd) {
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    loop {
        match output.next().await.unwrap() {
            Frame::Output(bytes) => out.extend(bytes),
            Frame::Errors(bytes) => errors.extend(bytes),
            Frame::End(end) => {
                let text = |bytes| String::from_utf8(bytes).unwrap();
                return (text(out), text(errors), end);
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn run(client: &Client, job: &str, exec: &Exec) -> (String, String, i32) {
    let (mut output, mut input) = client.exec(job, exec).await.unwrap();
    // It may have ended by now.
    let _ = input.send(&Frame::InputEnd).await;
    let (out, errors, end) = rest(&mut output).await;
    (
        out,
        errors + end.message.as_deref().unwrap_or_default(),
        end.exit_code,
    )
}

/// Reads until this has been said.
async fn hears(output: &mut ExecOutput, text: &str) -> String {
    let mut said = String::new();
    while !said.contains(text) {
        match output.next().await.unwrap() {
            Frame::Output(bytes) => said.push_str(std::str::from_utf8(&bytes).unwrap()),
            other => panic!("{other:?} after {said}"),
        }
    }
    said
}

async fn sleeper(client: &Client) -> String {
    let mut submit = script("quarter_gpu", "echo up; exec sleep 1000");
    submit.env.insert("FOO".into(), "bar".into());
    submit.cwd = "/usr".into();
    let id = client.submit(&submit).await.unwrap().id;
    in_state(client, &id, JobState::Running).await;
    // It runs before it has said anything.
    let mut said = client.log(&id, 0, true).await.unwrap();
    assert_eq!(said.next().await.unwrap().unwrap(), "up\n");
    id
}

#[tokio::test]
async fn a_guest_has_what_the_job_has_and_its_code_and_streams_are_its_own() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let id = sleeper(&client).await;
    let job = client.job(&id).await.unwrap();
    let said = "echo $DIVVY_JOB_ID $FOO $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES; pwd; test -e $DIVVY_SLICE/control || echo no slice; echo oops >&2; exit 7";
    let (out, errors, code) = run(&client, &id, &shell(said)).await;
    let uuid = &job.slices[0].gpu_uuid;
    assert_eq!(out, format!("{id} bar 0 {uuid}\n/usr\n"));
    assert_eq!((errors.as_str(), code), ("oops\n", 7));
    // Input to its end, and more of it than any pipe holds.
    let (mut output, mut input) = client.exec(&id, &shell("wc -c; cat")).await.unwrap();
    let piece = vec![b'x'; 60_000];
    for _ in 0..50 {
        input.send(&Frame::Input(piece.clone())).await.unwrap();
    }
    input.send(&Frame::InputEnd).await.unwrap();
    let (out, _, end) = rest(&mut output).await;
    assert_eq!((out.trim(), end.exit_code), ("3000000", 0));
    // And as much output.
    let (out, _, code) = run(
        &client,
        &id,
        &shell("head -c 3000000 /dev/zero | tr '\\0' y"),
    )
    .await;
    assert_eq!((out.len(), code), (3_000_000, 0));
    assert_eq!(
        log(&client, &{ client.cancel(&id).await.unwrap().id }).await,
        "up\n"
    );
    let events = client.events(0).await.unwrap();
    let entered = events.iter().find(|event| event.kind == "exec").unwrap();
    assert!(
        entered.text.starts_with("sh, for ") && !entered.text.contains("FOO"),
        "{}",
        entered.text
    );
}

#[tokio::test]
async fn on_a_terminal_it_has_one_of_its_own_that_controls_it() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let id = sleeper(&client).await;
    let said = "tty; stty size; echo $TERM; test -t 0 && test -t 1 && test -t 2 && echo all; ps -o pid=,sid=,tty= -p $$ | tr -s ' '; read x; echo got $x; trap 'echo caught; exit 9' INT; echo ready; while :; do read y; done";
    let (mut output, mut input) = client.exec(&id, &on_terminal(said)).await.unwrap();
    input.send(&Frame::Input(b"word\r".to_vec())).await.unwrap();
    let said = hears(&mut output, "ready").await;
    for line in ["/dev/pts/", "33 101", "vt100", "all\r\n", "got word"] {
        assert!(said.contains(line), "{line}: {said}");
    }
    // Of a session of its own: its number is the program's.
    let line = said
        .lines()
        .find(|line| line.contains("pts/") && !line.contains("/dev"))
        .unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(fields[0], fields[1], "{said}");
    // The key, and not a signal.
    input.send(&Frame::Input(vec![3])).await.unwrap();
    let (out, _, end) = rest(&mut output).await;
    assert!(out.contains("caught"), "{out}");
    assert_eq!(end.exit_code, 9);

    let (mut output, mut input) = client
        .exec(
            &id,
            &on_terminal(
                "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done",
            ),
        )
        .await
        .unwrap();
    hears(&mut output, "ready").await;
    let (rows, columns) = (7, 77);
    input.send(&Frame::Size { rows, columns }).await.unwrap();
    let (out, _, end) = rest(&mut output).await;
    assert_eq!((out.trim(), end.exit_code), ("7 77", 0));
}

#[tokio::test]
async fn what_cannot_be_started_has_the_codes_of_a_shell() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let id = sleeper(&client).await;
    for terminal in [None, Some(Terminal::default())] {
        for (command, code, words) in [
            ("no-such-program", 127, "not found in PATH"),
            ("/etc/passwd", 126, "ermission denied"),
        ] {
            let exec = Exec {
                command: vec![command.to_owned()],
                terminal: terminal.clone(),
            };
            let (_, errors, ended) = run(&client, &id, &exec).await;
            assert_eq!(ended, code, "{errors}");
            assert!(errors.contains(words), "{errors}");
        }
    }
    let (_, _, code) = run(&client, &id, &shell("kill -KILL $$")).await;
    assert_eq!(code, 137);
    for exec in [
        Exec::default(),
        Exec {
            command: vec![String::new()],
            terminal: None,
        },
        Exec {
            command: vec!["a\0b".into()],
            terminal: None,
        },
        Exec {
            command: vec!["x".repeat(3 << 20)],
            terminal: None,
        },
        Exec {
            command: vec!["true".into()],
            terminal: Some(Terminal {
                kind: Some("a b".into()),
                ..Terminal::default()
            }),
        },
    ] {
        let error = refused(client.exec(&id, &exec).await.map(drop));
        assert_eq!(error.code, ErrorCode::Usage, "{error}");
        assert!(error.hint.is_some());
    }
    assert_eq!(client.job(&id).await.unwrap().state, JobState::Running);
}

#[tokio::test]
async fn only_a_job_that_runs_lets_others_in() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let error = refused(client.exec("7", &shell("true")).await.map(drop));
    assert_eq!(error.code, ErrorCode::NotFound);
    let id = sleeper(&client).await;
    let whole = client
        .submit(&script("dual_gpus", "sleep 1000"))
        .await
        .unwrap()
        .id;
    let waits = client
        .submit(&script("dual_gpus", "true"))
        .await
        .unwrap()
        .id;
    let inside = |id: String| {
        let client = home.connect();
        async move { refused(client.exec(&id, &shell("true")).await.map(drop)) }
    };
    let error = inside(waits.clone()).await;
    assert_eq!(error.code, ErrorCode::Conflict, "{error}");
    assert!(error.hint.unwrap().contains("divvy why"));
    client.suspend(&id).await.unwrap();
    let error = inside(id.clone()).await;
    assert!(error.message.contains("suspended"), "{error}");
    client.resume(&id).await.unwrap();
    assert_eq!(run(&client, &id, &shell("exit 3")).await.2, 3);
    for job in [&waits, &whole, &id] {
        client.cancel(job).await.unwrap();
        ended(&client, job).await;
    }
    let error = inside(id).await;
    assert!(error.message.contains("has ended"), "{error}");
}

#[tokio::test]
async fn a_guest_ends_with_its_job_and_the_job_waits_for_it() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let go = home.path().join("go");
    let script = script(
        "quarter_gpu",
        &format!(
            "until test -e {}; do sleep 0.05; done; exit 4",
            go.display()
        ),
    );
    let id = client.submit(&script).await.unwrap().id;
    in_state(&client, &id, JobState::Running).await;
    // Like a shell, deaf to SIGTERM; it hears that it is hung up.
    let (mut output, _input) = client
        .exec(&id, &shell("trap '' TERM; trap 'echo hung up; exit 5' HUP; echo in; while :; do sleep 0.05; done"))
        .await
        .unwrap();
    hears(&mut output, "in").await;
    std::fs::write(&go, "").unwrap();
    let (out, _, end) = rest(&mut output).await;
    assert_eq!((out.trim(), end.exit_code), ("hung up", 5));
    let job = ended(&client, &id).await;
    assert_eq!(
        job.exit_code,
        Some(4),
        "the job's code is its own program's"
    );
    assert_eq!(home.slices(), [""; 0]);
}

#[tokio::test]
async fn a_guest_is_hung_up_with_its_client_and_with_the_daemon_and_the_job_goes_on() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    let id = sleeper(&client).await;
    let program = home.pid(&id, "started");
    let says = "echo $$; exec sleep 1000";
    let mut guests = Vec::new();
    for exec in [shell(says), on_terminal(says)] {
        let (mut output, input) = client.exec(&id, &exec).await.unwrap();
        let said = hears(&mut output, "\n").await;
        let pid: u32 = said.trim().parse().unwrap();
        assert!(is_alive(pid));
        guests.push((pid, output, input));
    }
    let (pid, output, input) = guests.remove(0);
    drop((output, input));
    until("it is hung up", || !is_alive(pid));
    let (mut output, mut input) = client.exec(&id, &shell(says)).await.unwrap();
    let pid: u32 = hears(&mut output, "\n").await.trim().parse().unwrap();
    input.send(&Frame::Signal(15)).await.unwrap();
    assert_eq!(rest(&mut output).await.2.exit_code, 143);
    assert!(!is_alive(pid));

    home.kill();
    let (pid, mut output, _input) = guests.remove(0);
    let error = refused(output.next().await);
    assert_eq!(error.code, ErrorCode::NoDaemon);
    until("it is hung up", || !is_alive(pid));
    assert!(is_alive(program), "the job is not");
    home.start(&SEED);
    let client = home.connect();
    assert_eq!(client.job(&id).await.unwrap().state, JobState::Running);
    assert_eq!(
        run(&client, &id, &shell("exit 6")).await.2,
        6,
        "the door is open again"
    );
}

#[tokio::test]
async fn a_guest_that_daemonises_ends_with_the_job() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let id = sleeper(&client).await;
    let (out, _, code) = run(
        &client,
        &id,
        &shell("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!"),
    )
    .await;
    assert_eq!(code, 0);
    let pid: u32 = out.trim().parse().unwrap();
    assert!(is_alive(pid), "it goes on while the job does");
    // One that keeps its output open does not keep its client.
    let (out, _, code) = run(&client, &id, &shell("sleep 1000 & echo $!")).await;
    assert_eq!(code, 0);
    let other: u32 = out.trim().parse().unwrap();
    client.cancel(&id).await.unwrap();
    ended(&client, &id).await;
    assert!(!is_alive(pid) && !is_alive(other));
}

#[tokio::test]
async fn a_signal_of_a_user_is_in_the_events_and_in_the_reason_of_the_end() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let id = sleeper(&client).await;
    client.signal(&id, Signal::Term).await.unwrap();
    let job = ended(&client, &id).await;
    let by = format!(
        "SIGTERM by {} (uid {}) through attach",
        job.user,
        job.uid.unwrap()
    );
    assert_eq!(job.reason, Some(format!("ended by signal 15: {by}")));
    let events = client.events(0).await.unwrap();
    let told = events.iter().find(|event| event.kind == "signalled");
    assert_eq!(told.map(|event| event.text.as_str()), Some(by.as_str()));
}

#[tokio::test]
async fn the_reason_of_the_end_names_the_user_also_after_a_restart_of_the_daemon() {
    let mut home = Home::started(&SEED);
    let client = home.connect();
    let gate = home.gate("go");
    // The signal ends the program only behind the gate.
    let said = format!(
        "trap 'while [ ! -e {gate} ]; do sleep 0.05; done; trap - TERM; kill -TERM $$' TERM; echo up; while :; do sleep 0.05; done"
    );
    let id = client
        .submit(&script("quarter_gpu", &said))
        .await
        .unwrap()
        .id;
    in_state(&client, &id, JobState::Running).await;
    until("the program has its trap", || {
        home.log(&id).contains("up").then_some(())
    });
    client.signal(&id, Signal::Term).await.unwrap();
    home.kill();
    home.start(&SEED);
    let client = home.connect();
    home.open("go");
    let job = ended(&client, &id).await;
    let by = format!("SIGTERM by {} (uid {})", job.user, job.uid.unwrap());
    assert_eq!(
        job.reason,
        Some(format!("ended by signal 15: {by} through attach"))
    );
}

#[tokio::test]
async fn a_signal_goes_to_the_jobs_own_program() {
    let home = Home::started(&SEED);
    let client = home.connect();
    let said =
        "trap 'echo one' USR1; trap 'echo int; exit 3' INT; echo up; while :; do sleep 0.05; done";
    let id = client
        .submit(&script("quarter_gpu", said))
        .await
        .unwrap()
        .id;
    in_state(&client, &id, JobState::Running).await;
    let mut stream = client.log(&id, 0, true).await.unwrap();
    let mut text = String::new();
    let sent = [Some(Signal::Usr1), Some(Signal::Int), None];
    for (heard, next) in ["up\n", "one\n", "int\n"].into_iter().zip(sent) {
        // The shell has words of its own for what signals do to its children, before these or after.
        while !text.contains(heard) {
            text.push_str(std::str::from_utf8(&stream.next().await.unwrap().unwrap()).unwrap());
        }
        if let Some(next) = next {
            client.signal(&id, next).await.unwrap();
        }
    }
    let job = ended(&client, &id).await;
    assert_eq!(job.exit_code, Some(3));
    let error = refused(client.signal(&id, Signal::Int).await);
    assert_eq!(error.code, ErrorCode::Conflict);
}

#[tokio::test]
async fn a_stopped_supervisor_is_named_to_callers_and_continued_by_a_cancel() {
    // So long that no kill after it is what ends the job.
    let home = Home::started(&[&SEED[..], &["--set", "grace=1h"]].concat());
    let client = home.connect();
    let id = sleeper(&client).await;
    let supervisor = home.pid(&id, "launch");
    signal(supervisor, "STOP");
    until("the supervisor is stopped", || {
        let stat = std::fs::read_to_string(format!("/proc/{supervisor}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" T")
    });
    for error in [
        client
            .exec(&id, &shell("true"))
            .await
            .map(drop)
            .unwrap_err(),
        refused(client.signal(&id, Signal::Usr1).await),
    ] {
        let said = format!("its supervisor, pid {supervisor}, is stopped (SIGSTOP)");
        assert!(error.message.ends_with(&said), "{error:?}");
        assert_eq!(error.hint, Some(format!("kill -CONT {supervisor}")));
    }
    client.cancel(&id).await.unwrap();
    let job = ended(&client, &id).await;
    assert_eq!(job.end_reason, Some(EndReason::Cancelled), "{job:?}");
    // By SIGTERM, in its grace.
    assert_eq!(job.exit_code, Some(143), "{job:?}");
}

#[tokio::test]
async fn a_log_is_held_to_its_bound_and_followed_all_the_same() {
    let flags = [&SEED[..], &["--set", "limits.log-size=1M"]].concat();
    let home = Home::started(&flags);
    let client = home.connect();
    let go = home.path().join("go");
    // 20 MiB, and then what is waited for.
    let said = format!(
        "i=0; while [ $i -lt 20 ]; do seq 100000000 100104856; i=$((i+1)); done; until test -e {}; do sleep 0.05; done; echo last words",
        go.display()
    );
    let id = client
        .submit(&script("quarter_gpu", &said))
        .await
        .unwrap()
        .id;
    let path = home.path().join("jobs").join(&id).join("log");
    let blocks = || {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(&path).map_or((0, 0), |log| (log.len(), log.blocks() * 512))
    };
    let whole = 20 * 104_857 * 10;
    until("it has said all and little is held", || {
        let (size, held) = blocks();
        size == whole && held <= 1 << 20
    });
    let mut stream = client.log(&id, 0, true).await.unwrap();
    let from = stream.from();
    assert!(from > whole - (1 << 20) && from % 10 == 0, "{from}");
    std::fs::write(&go, "").unwrap();
    let mut text = Vec::new();
    while let Some(piece) = stream.next().await.unwrap() {
        text.extend_from_slice(&piece);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.ends_with("\n100104856\nlast words\n"),
        "{}",
        &text[text.len() - 100..]
    );
    assert_eq!(from + text.len() as u64, whole + 11);
    let numbers: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(
        numbers
            .windows(2)
            .all(|pair| pair[1] == pair[0] + 1 || pair[1] == 100_000_000),
        "no line is missing"
    );
    ended(&client, &id).await;
    assert_eq!(client.log_end(&id).await.unwrap(), whole + 11);
    tokio::time::timeout(Duration::from_secs(60), client.log(&id, from, false))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_job_without_a_log_bound_keeps_all() {
    let flags = [&SEED[..], &["--set", "limits.log-size=none"]].concat();
    let home = Home::started(&flags);
    let client = home.connect();
    let id = client
        .submit(&quarter(&["seq", "100000000", "100400000"]))
        .await
        .unwrap()
        .id;
    ended(&client, &id).await;
    assert!(log(&client, &id).await.starts_with("100000000\n"));
}
