//! The configuration file: its values at the start, reloads under running jobs, and what is refused.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use divvy_api::client::Client;
use divvy_api::v1::{ConfigOrigin, ErrorCode, JobState, ProjectChange};
use divvy_testkit::{Home, ended, in_state, quarter, refused, script, signal, until_async};
use rustix::process::geteuid;

use crate::users::{ANA, LEE, as_user};

const START: &str = "sim = \"a100-80gb:2\"\nqueues = [\"half=0.5\", \"rest=0.25\"]\nbackfill = true\n[limits]\nmax-jobs = 7\n\
                     [projects.vision]\nquota = 1.5\nmembers = [\"root\", \"ana\"]\n";

fn write(home: &Home, text: &str) -> PathBuf {
    let path = home.path().join("config.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    path
}

/// An instance with this file, and a daemon of these flags.
fn started(text: &str, flags: &[&str]) -> (Home, Client) {
    let mut home = Home::empty();
    write(&home, text);
    home.start(flags);
    let client = home.connect();
    (home, client)
}

async fn queues(client: &Client) -> Vec<String> {
    let queues = client.queues().await.unwrap();
    queues.into_iter().map(|queue| queue.name).collect()
}

async fn projects(client: &Client) -> Vec<String> {
    let projects = client.projects().await.unwrap();
    projects.into_iter().map(|project| project.name).collect()
}

#[tokio::test]
async fn flags_win_over_the_file_and_each_value_has_its_origin() {
    let (home, client) = started(
        START,
        &["--set", "limits.max-jobs=3", "--set", "limits.log-size=12M"],
    );
    let path = home.path().join("config.toml").display().to_string();
    let node = client.node().await.unwrap();
    assert_eq!(node.config_file.as_ref(), Some(&path));
    assert!(node.backfill);
    assert_eq!(queues(&client).await, ["half", "rest", "default"]);
    assert_eq!(projects(&client).await, ["vision"]);
    let values = client.config().await.unwrap();
    let origin = |key: &str| {
        let value = values.iter().find(|value| value.key == key).unwrap();
        let place = value.file.as_ref().map(|file| {
            assert_eq!(*file, path);
            (value.line.unwrap(), value.column.unwrap())
        });
        (value.origin, place, value.flag.clone())
    };
    let flag = |flag: &str| (ConfigOrigin::Flag, None, Some(flag.to_owned()));
    let file = |line, column| (ConfigOrigin::File, Some((line, column)), None);
    assert_eq!(origin("limits.max-jobs"), flag("--set limits.max-jobs"));
    assert_eq!(origin("limits.log-size"), flag("--set limits.log-size"));
    assert_eq!(origin("queues"), file(2, 10));
    assert_eq!(origin("projects.vision.quota"), file(7, 9));
    assert_eq!(origin("grace"), (ConfigOrigin::Default, None, None));
    for _ in 0..3 {
        client.submit(&script("rest", "sleep 1000")).await.unwrap();
    }
    let error = refused(client.submit(&script("rest", "true")).await);
    assert!(error.message.contains('3'), "{}", error.message);
    let shown = home.divvy(&["daemon", "--status"]).ok().stdout;
    assert!(shown.contains(&path), "{shown}");
}

#[tokio::test]
async fn a_reload_changes_what_can_change_and_no_job() {
    let (home, client) = started(START, &[]);
    let running = client.submit(&quarter(&["sleep", "1000"])).await.unwrap();
    let running = in_state(&client, &running.id, JobState::Running).await;
    let text = START
        .replace("a100-80gb:2", "a100-80gb:3")
        .replace("\"rest=0.25\"", "\"new=2\", \"rest=0.25\"")
        .replace("backfill = true", "order = \"fairness\"")
        .replace("1.5", "0.5")
        .replace("max-jobs = 7", "max-jobs = 1");
    write(&home, &(text + "[projects.nlp]\nquota = 1\n"));
    let done = client.reload_config().await.unwrap();
    assert_eq!(done.needs_restart, ["sim"]);
    assert_eq!(
        done.changed,
        [
            "backfill",
            "limits.max-jobs",
            "order",
            "projects.nlp",
            "projects.vision.quota",
            "queues"
        ]
    );
    assert_eq!(queues(&client).await, ["half", "new", "rest", "default"]);
    assert_eq!(projects(&client).await, ["nlp", "vision"]);
    let node = client.node().await.unwrap();
    assert_eq!((node.order.as_str(), node.backfill), ("fairness", false));
    // The value in force, and that another one waits.
    let values = client.config().await.unwrap();
    let sim = values.iter().find(|value| value.key == "sim").unwrap();
    assert_eq!(sim.value, "a100-80gb:2");
    assert!(sim.needs_restart);
    let error = refused(client.submit(&quarter(&["true"])).await);
    assert_eq!(error.code, ErrorCode::NotAllowed, "{}", error.message);
    let after = client.job(&running.id).await.unwrap();
    assert_eq!((after.state, after.pid), (JobState::Running, running.pid));
    client.cancel(&running.id).await.unwrap();
    ended(&client, &running.id).await;
    client.submit(&quarter(&["true"])).await.unwrap();
    let events = client.events(0).await.unwrap();
    let reloaded = events.iter().find(|event| event.kind == "config_reloaded");
    assert!(reloaded.unwrap().text.contains("after a restart sim"));
}

#[tokio::test]
async fn a_wrong_file_changes_nothing() {
    let (home, client) = started(START, &[]);
    let path = home.path().join("config.toml").display().to_string();
    let waits = client.submit(&script("rest", "sleep 1000")).await.unwrap();
    in_state(&client, &waits.id, JobState::Running).await;
    for (text, code, place, named) in [
        ("grase = \"1s\"\n", ErrorCode::Usage, ":1:1: ", "grace"),
        (
            "order = \"fairness\"\nqueues = [\n \"big=3\"]\n",
            ErrorCode::NeverFits,
            ":3:2: ",
            "big=3",
        ),
        (
            "order = \"fairness\"\nqueues = [\"half=0.5\"]\n",
            ErrorCode::Conflict,
            ":2:10: ",
            &waits.id,
        ),
        ("gpus = \"\u{0}\"", ErrorCode::Usage, ":1:8: ", "gpus"),
    ] {
        write(&home, text);
        let error = refused(client.reload_config().await);
        assert_eq!(error.code, code, "{}", error.message);
        assert!(
            error.message.starts_with(&(path.clone() + place)),
            "{}",
            error.message
        );
        let told = format!("{} {:?}", error.message, error.hint);
        assert!(told.contains(named), "{told}");
        assert!(error.details["line"].is_u64(), "{}", error.details);
    }
    // The same by a signal: the event has the place.
    write(&home, "order = \"fairness\"\nbackfill = 1\n");
    signal(home.daemon_pid(), "HUP");
    until_async("the daemon refuses the file", async || {
        let events = client.events(0).await.unwrap();
        let refused = |text: &str| text.contains("config.toml:2:12: backfill");
        events
            .iter()
            .any(|event| event.kind == "config_refused" && refused(&event.text))
            .then_some(())
    })
    .await;
    let node = client.node().await.unwrap();
    assert_eq!((node.order.as_str(), node.backfill), ("strict", true));
    assert_eq!(queues(&client).await, ["half", "rest", "default"]);
    assert_eq!(projects(&client).await, ["vision"]);
    // A right one by a signal.
    write(&home, &START.replace("1.5", "0.25"));
    signal(home.daemon_pid(), "HUP");
    until_async("the daemon reloads the file", async || {
        let projects = client.projects().await.unwrap();
        (projects[0].quota == 250).then_some(())
    })
    .await;
    let shown = home.divvy(&["config", "reload"]).ok().stderr;
    assert!(shown.contains("nothing changed"), "{shown}");
}

#[tokio::test]
async fn the_file_alone_changes_its_projects() {
    let (mut home, mut client) = started(START, &[]);
    let quota = |quota| ProjectChange {
        quota: Some(quota),
        ..ProjectChange::default()
    };
    client.add_project("by-command", &quota(1)).await.unwrap();
    for error in [
        refused(client.set_project("vision", &quota(1)).await),
        refused(client.remove_project("vision").await),
        refused(client.add_project("vision", &quota(1)).await),
    ] {
        assert_eq!(error.code, ErrorCode::Conflict);
        let line = format!("{}:6", home.path().join("config.toml").display());
        assert!(error.message.contains(&line), "{}", error.message);
    }
    // A project with jobs stays in the file.
    let mut submit = script("rest", "sleep 1000");
    submit.project = Some("vision".to_owned());
    let job = client.submit(&submit).await.unwrap();
    let without = START.split("[projects").next().unwrap();
    write(&home, without);
    let error = refused(client.reload_config().await);
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(error.message.contains("vision"), "{}", error.message);
    // Nor does a start of the daemon remove it.
    home.kill();
    home.start(&[]);
    client = home.connect();
    assert_eq!(projects(&client).await, ["by-command", "vision"]);
    client.cancel(&job.id).await.unwrap();
    ended(&client, &job.id).await;
    client.reload_config().await.unwrap();
    assert_eq!(projects(&client).await, ["by-command"]);
    // A start removes one without jobs, after a crash too.
    write(&home, START);
    client.reload_config().await.unwrap();
    assert_eq!(projects(&client).await, ["by-command", "vision"]);
    home.kill();
    write(&home, without);
    home.start(&[]);
    client = home.connect();
    assert_eq!(projects(&client).await, ["by-command"]);
}

#[test]
fn a_start_is_refused_with_the_place_and_large_files_too() {
    let home = Home::empty();
    let refused = |words: &[&str], text: &str, named: &str, code: i32| {
        write(&home, text);
        let told = home.divvy(words).exits(code).stderr;
        assert!(told.contains(named), "{told}");
    };
    let daemon = &["daemon", "--sim", "l4-24gb:1"];
    refused(daemon, "\nkeep = 1\n", "config.toml:2:1: unknown key", 2);
    refused(
        daemon,
        "strict-start = true\nqueues = [\"a=1\",\n\"b=2\"]\n",
        "config.toml:3:1: queue b=2",
        5,
    );
    refused(daemon, "[roles]\nadmin = []\n", "config.toml:1:2: roles", 2);
    let large = format!("#{}", "x".repeat(1 << 20));
    refused(daemon, &large, "larger than 1 MiB", 2);
    refused(&["config", "check"], &large, "larger than 1 MiB", 2);
    refused(&["config", "check"], "a = 1\nb = 2\n", "config.toml:2:1", 2);
    let absent = home.scratch().join("absent.toml").display().to_string();
    let told = home.divvy(&["daemon", "--config", &absent]).exits(2).stderr;
    assert!(told.contains("absent.toml: cannot read it"), "{told}");
    let pipe = home.scratch().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
    let pipe = pipe.display().to_string();
    let _ = home.divvy(&["config", "check", &pipe]).ok();
    let told = home
        .divvy(&["config", "check", "/dev/zero"])
        .exits(2)
        .stderr;
    assert!(told.contains("larger than 1 MiB"), "{told}");
}

#[test]
fn config_init_writes_a_configuration_file_that_changes_nothing_and_keeps_the_former_one() {
    let mut home = Home::empty();
    let path = home.path().join("config.toml");
    let shown = home.divvy(&["config", "init"]).ok().stderr;
    assert!(shown.contains(&path.display().to_string()), "{shown}");
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\n#backfill = false\n"), "{text}");
    let _ = home.divvy(&["config", "check"]).ok();
    let shown = home.divvy(&["config", "show"]).ok();
    assert!(
        shown.stderr.contains("every key has its default"),
        "{}",
        shown.stderr
    );
    write(&home, "sim = \"l4-24gb:1\"\n");
    let _ = home.divvy(&["config", "init"]).exits(8);
    home.start(&[]);
    let _ = home.divvy(&["config", "init", "--force"]).ok();
    let copy = home.path().join("config.toml.1");
    assert_eq!(fs::read_to_string(copy).unwrap(), "sim = \"l4-24gb:1\"\n");
}

#[tokio::test]
async fn admin_init_writes_a_file_that_a_daemon_serves() {
    let mut home = Home::empty();
    let motd = home.scratch().join("motd").display().to_string();
    let init = |home: &Home, more: &[&str]| {
        home.divvy(&[&["admin", "init", "--yes", "--user"], more].concat())
    };
    let first = [
        "--queue",
        "half=0.5",
        "--project",
        "vision=1:all",
        "--motd",
        &motd,
    ];
    let shown = home.divvy(&["config", "show", "--defaults"]).ok().stdout;
    assert!(shown.contains("limits.max-jobs"), "{shown}");
    let dry = init(&home, &[&first[..], &["--dry-run"]].concat()).ok();
    let path = home.path().join("config.toml");
    assert!(!path.exists());
    let shown = init(&home, &[&first[..], &["--no-start"]].concat()).ok();
    assert!(
        shown.stdout.contains("divvy submit -q half -p vision"),
        "{}",
        shown.stdout
    );
    assert_eq!(fs::read_to_string(&motd).unwrap(), shown.stdout);
    assert_eq!(fs::read_to_string(&path).unwrap(), dry.stdout);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o644
    );
    let _ = init(&home, &first).exits(8);
    assert!(
        init(&home, &["--admin", "ana"])
            .exits(2)
            .stderr
            .contains("roles")
    );
    home.start(&["--sim", "l4-24gb:1"]);
    let client = home.connect();
    assert_eq!(queues(&client).await, ["half", "default"]);
    assert_eq!(projects(&client).await, ["vision"]);
    // A running daemon reads a further file at once.
    let next = [
        "--force",
        "--queue",
        "quarter=0.25",
        "--max-gpus",
        "2",
        "--project",
        "lab=0",
        "--default-project",
        "lab",
    ];
    let shown = init(&home, &next).ok();
    let rules = "project-rules.default-project, project-rules.max-gpus";
    assert!(
        shown.stderr.contains(&format!(
            "changed: {rules}, projects.lab, projects.vision, queues"
        )),
        "{}",
        shown.stderr
    );
    assert_eq!(queues(&client).await, ["quarter", "default"]);
    assert_eq!(projects(&client).await, ["lab"]);
    let copy = home.path().join("config.toml.1");
    assert_eq!(fs::read_to_string(copy).unwrap(), dry.stdout);
}

/// Roles in the file: a reload is an admin's, and others may not write the file.
#[test]
fn the_file_of_the_systems_daemon_is_roots() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can start a daemon for every user");
        return;
    }
    let mut home = Home::empty();
    let path = write(
        &home,
        &format!("sim = \"l4-24gb:1\"\n[roles]\nadmin = [{ANA}]\n"),
    );
    home.start(&["--system"]);
    as_user(&home, LEE, async |client| {
        for error in [
            refused(client.reload_config().await),
            refused(client.config().await),
        ] {
            assert_eq!(error.code, ErrorCode::NotAllowed);
        }
    });
    write(
        &home,
        &format!("sim = \"l4-24gb:1\"\n[roles]\nadmin = [{LEE}]\nothers = \"none\"\n"),
    );
    as_user(&home, ANA, async |client| {
        client.reload_config().await.unwrap();
        let error = refused(client.node().await);
        assert_eq!(error.code, ErrorCode::NotAllowed);
    });
    as_user(&home, LEE, async |client| {
        client.reload_config().await.unwrap();
    });
    // Another user could make itself an admin.
    let check = ["config", "check", "--system"];
    let _ = home.divvy(&check).ok();
    for mode in [0o664, 0o646] {
        fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let told = home.divvy(&check).exits(2).stderr;
        assert!(told.contains("writable by other users"), "{told}");
        as_user(&home, LEE, async |client| {
            let error = refused(client.reload_config().await);
            assert!(error.message.contains("writable by other users"));
        });
    }
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    chown(&path, Some(LEE), None).unwrap();
    let told = home.divvy(&check).exits(2).stderr;
    assert!(told.contains(&format!("belongs to uid {LEE}")), "{told}");
    let _ = home.stop();
    let mut daemon = home.daemon_with(&["--system"], &[]);
    let code = divvy_testkit::until("the daemon refuses the file", || daemon.ended());
    assert_eq!(code, 2);
}

#[tokio::test]
async fn a_user_or_group_that_does_not_exist_is_a_warning_and_no_refusal() {
    let text = START.replace("\"ana\"", "\"no-such-user\", \"@no-such-group\"");
    let mut home = Home::empty();
    let path = write(&home, &text).display().to_string();
    let warnings =
        [(20, "no user no-such-user"), (36, "no group no-such-group")].map(|(column, what)| {
            format!("{path}:8:{column}: projects.vision.members: the user database has {what}")
        });
    let shows_all = |shown: &str| {
        for warning in &warnings {
            assert!(shown.contains(warning), "{shown}");
        }
    };
    let checked = home.divvy(&["config", "check"]).ok().stderr;
    shows_all(&checked);
    assert!(checked.contains("getent passwd NAME"), "{checked}");
    let doctor = || home.divvy(&["doctor", "--sim", "l4-24gb:1", "-o", "json"]);
    shows_all(&doctor().stdout);
    home.start(&[]);
    let client = home.connect();
    until_async("the daemon has asked the user database", async || {
        let node = client.node().await.unwrap();
        (node.config_warnings == warnings).then_some(())
    })
    .await;
    shows_all(&home.daemon_said());
    let doctor = || home.divvy(&["doctor", "-o", "json"]);
    shows_all(&doctor().stdout);
    assert_eq!(client.reload_config().await.unwrap().warnings, warnings);
    shows_all(&home.divvy(&["config", "reload"]).ok().stderr);
    write(&home, START);
    let done = client.reload_config().await.unwrap();
    assert_eq!(done.changed, ["projects.vision.members"]);
    // The test's machine may have no `ana`.
    assert!(done.warnings.len() < 2, "{:?}", done.warnings);
    assert_eq!(client.node().await.unwrap().config_warnings, done.warnings);
}

#[test]
fn admin_init_makes_folders_of_root_that_all_users_can_read() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: the folders of other users keep their umask");
        return;
    }
    let home = Home::empty();
    let motd = home.scratch().join("etc/motd.d/divvy");
    let divvy = home.program("divvy");
    let line = format!(
        "umask 077; exec {divvy} admin init --yes --user --no-start --admin no-such-user --motd {}",
        motd.display()
    );
    // A user's own daemon has no admins.
    let _ = home.look("sh", &["-c", &line]).exits(2);
    assert!(!motd.exists(), "a refused file leaves no message");
    let line = line.replace("--admin no-such-user", "--project vision=1:no-such-user");
    let said = home.look("sh", &["-c", &line]).ok().stderr;
    assert!(
        said.contains("projects.vision.members: the user database has no user"),
        "{said}"
    );
    for folder in motd.ancestors().skip(1).take(2) {
        let mode = fs::metadata(folder).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755, "{}", folder.display());
    }
}
