//! Tests of the command lines against those recorded from the stock agent (3.0.3).

use std::fs;

use divvy_api::v1::Slice;

use super::*;
use crate::slot::tests::slice;

/// Settings of this clearml.conf, in HOCON, and nothing else.
fn settings(config: &str) -> (tempfile::TempDir, Settings) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("clearml.conf");
    let api = "api { api_server: \"http://api:8008\", credentials { access_key: KEY, secret_key: SECRET } }";
    fs::write(&path, format!("{api}\n{config}\n")).unwrap();
    let settings = Settings::read_with(Some(&path), BTreeMap::new()).unwrap();
    (dir, settings)
}

fn vars(more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let home = [("HOME", "/h")];
    let all = home.iter().chain(more);
    all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

pub(super) fn setup(more: &[(&str, &str)], config: &str) -> Setup {
    let (_dir, settings) = settings(config);
    Setup::read(&settings.tree, &[], vars(more)).unwrap()
}

fn runner(docker: Option<&str>, more: &[(&str, &str)], config: &str) -> Runner {
    let (_dir, settings) = settings(config);
    let options = Options {
        docker: docker.map(shell),
        ..Options::default()
    };
    Runner::read_with(&settings, &options, vars(more)).unwrap()
}

pub(super) fn task(id: &str, image: Option<&str>, arguments: Option<&str>) -> Task {
    Task {
        id: id.to_owned(),
        container: Some(server::Container {
            image: image.map(str::to_owned),
            arguments: arguments.map(str::to_owned),
            setup_shell_script: None,
        }),
        ..Task::default()
    }
}

pub(super) fn slot() -> TaskSlot {
    slot_of(
        &[slice("gpu2.25a", 2, 250)],
        "node1:gpu2.25a",
        "node1:dgpu0-2",
    )
}

fn slot_of(slices: &[Slice], worker: &str, parent: &str) -> TaskSlot {
    TaskSlot {
        worker: worker.to_owned(),
        parent: parent.to_owned(),
        queue_id: "q1".into(),
        queue_name: "quarter_gpu".into(),
        job: "7".into(),
        slices: slices.to_vec(),
    }
}

fn made() -> TaskFiles {
    TaskFiles {
        config: "/h/.clearml/divvy/T/clearml.conf".into(),
        ssh: None,
    }
}

fn launched(runner: &Runner, task: &Task) -> Launch {
    runner.contained(task, &slot(), &made()).unwrap()
}

/// The script, as it was recorded.
const SCRIPT: &str = r#"echo 'Binary::apt::APT::Keep-Downloaded-Packages "true";' > /etc/apt/apt.conf.d/docker-clean ; chown -R $(whoami) $HOME/.cache/pip ; export DEBIAN_FRONTEND=noninteractive ; export CLEARML_APT_INSTALL="$CLEARML_APT_INSTALL libsm6 libxext6 libxrender-dev libglib2.0-0" ; [ ! -z $(which git 2> /dev/null || command -v git) ] || export CLEARML_APT_INSTALL="$CLEARML_APT_INSTALL git" ; declare LOCAL_PYTHON ; [ ! -z $LOCAL_PYTHON ] || for i in {20..5}; do (which python3.$i 2> /dev/null || command -v python3.$i) && python3.$i -m pip --version && export LOCAL_PYTHON=$(which python3.$i 2> /dev/null || command -v python3.$i) && break ; done ; [ ! -z $LOCAL_PYTHON ] || export CLEARML_APT_INSTALL="$CLEARML_APT_INSTALL python3-pip" ; [ -z "$CLEARML_APT_INSTALL" ] || (apt-get update -y ; apt-get install -y $CLEARML_APT_INSTALL) || (dnf install -y $CLEARML_APT_INSTALL) ; rm -f /usr/lib/python3.*/EXTERNALLY-MANAGED ; [ ! -z $LOCAL_PYTHON ] || export LOCAL_PYTHON=python3 ; $LOCAL_PYTHON -m pip --version > /dev/null || export LOCAL_PYTHON=$(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin command -v python3) ; $LOCAL_PYTHON -m pip install -U "pip<20.2 ; python_version < '3.10'" "pip<22.3 ; python_version >= '3.10' and python_version <= '3.11'" "pip>=23,<26 ; python_version >= '3.12'" ; $LOCAL_PYTHON -m pip install -U clearml-agent ; cp /tmp/clearml.conf ~/default_clearml.conf ; NVIDIA_VISIBLE_DEVICES=all $LOCAL_PYTHON -u -m clearml_agent execute --full-monitoring --id T"#;

#[test]
fn a_fraction_runs_in_the_container_that_the_stock_agent_makes() {
    let launch = launched(&runner(Some("img"), &[], ""), &task("T", None, None));
    let gpus = ["--gpus", "\"device=2\""].map(str::to_owned);
    let [before, after] = &launch.shown;
    let words: Vec<String> = before.iter().chain(&gpus).chain(after).cloned().collect();
    let expected = [
        "docker",
        "run",
        "-e",
        "CLEARML_AGENT_GPU_FRACTIONS=0.25",
        // Ours: the job fails as its task does.
        "-e",
        "CLEARML_AGENT_PROPAGATE_EXITCODE=1",
        "-t",
        "--gpus",
        "\"device=2\"",
        "-l",
        "clearml-worker-id=node1:gpu2.25a",
        "-l",
        "clearml-parent-worker-id=node1:dgpu0-2",
        "-e",
        "CLEARML_WORKER_ID=node1:gpu2.25a",
        "-e",
        "CLEARML_DOCKER_IMAGE=img",
        "-e",
        "CLEARML_TASK_ID=T",
        "-e",
        "CLEARML_AGENT_SERVICE_TASK=1",
        "-v",
        "/h/.clearml/divvy/T/clearml.conf:/tmp/clearml.conf",
        "-e",
        "CLEARML_CONFIG_FILE=/tmp/clearml.conf",
        // Two containers at once would wait for each other's lock on this one.
        "-v",
        "/h/.clearml/apt-cache.gpu2.25a:/var/cache/apt/archives",
        "-v",
        "/h/.clearml/pip-cache:/root/.cache/pip",
        "-v",
        "/h/.clearml/pip-download-cache:/root/.clearml/pip-download-cache",
        "-v",
        "/h/.clearml/cache:/clearml_agent_cache",
        "-v",
        "/h/.clearml/vcs-cache:/root/.clearml/vcs-cache",
        "-v",
        "/h/.clearml/venvs-cache:/root/.clearml/venvs-cache",
        "--rm",
        "img",
        "bash",
        "-c",
        SCRIPT,
    ];
    assert_eq!(words, expected);
    let line = launch.executing(&gpus);
    assert!(line.starts_with("Executing: ['docker', 'run', "), "{line}");
    assert!(
        line.contains(r#"'-t', '--gpus', '"device=2"', '-l', 'clearml-worker-id"#)
            && line.ends_with("--id T']\n"),
        "{line}"
    );
}

#[test]
fn the_node_agent_is_asked_for_the_same_container() {
    let launch = launched(
        &runner(Some("img --shm-size 8g"), &[], ""),
        &task("T", None, None),
    );
    let container = launch.container.unwrap();
    assert_eq!(container.image, "img");
    assert_eq!(launch.command[..2], ["bash", "-c"]);
    // The agent takes the arguments unchanged: the words are flags of core's table, and variables are separate.
    let options = docker::options(&container.arguments).unwrap();
    assert_eq!(options.shm_size, Some(8 << 30));
    assert_eq!(options.labels["clearml-worker-id"], "node1:gpu2.25a");
    assert_eq!(options.mounts.len(), 7);
    assert!(options.env.is_empty());
    for (name, value) in [
        ("CLEARML_WORKER_ID", "node1:gpu2.25a"),
        ("CLEARML_TASK_ID", "T"),
        ("CLEARML_CONFIG_FILE", "/tmp/clearml.conf"),
        ("CLEARML_AGENT_GPU_FRACTIONS", "0.25"),
        ("CLEARML_AGENT_SERVICE_TASK", "1"),
    ] {
        assert_eq!(
            launch.env.get(name).map(String::as_str),
            Some(value),
            "{name}"
        );
    }
    let back = launch.write_back.unwrap();
    assert_eq!(
        (back.image.as_deref(), back.arguments.as_deref()),
        (Some("img"), Some("--shm-size 8g"))
    );
}

#[test]
fn a_tasks_own_image_and_arguments_come_before_the_default_ones() {
    let task = Task {
        container: Some(server::Container {
            image: Some(" own:1 ".into()),
            arguments: Some("-e A=1 --network host".into()),
            setup_shell_script: Some("#!/bin/sh\n apt-get install x \n\n# no\nexport Y=1".into()),
        }),
        ..task("T", None, None)
    };
    let config = "agent.extra_docker_arguments: [\"-e\", \"B=2\"], agent.extra_docker_shell_script: [\"echo one\", \"echo two\"]";
    let launch = launched(&runner(Some("img -e D=3"), &[], config), &task);
    assert_eq!(launch.container.as_ref().unwrap().image, "own:1");
    assert_eq!(launch.write_back, None);
    let [a, b, d] = ["A", "B", "D"].map(|name| launch.env.get(name).map(String::as_str));
    assert_eq!((a, b, d), (Some("1"), Some("2"), None));
    assert_eq!(
        launch.lines,
        [
            "Running Task T inside docker: own:1 arguments: ['-e', 'A=1', '--network', 'host']\n",
            "custom_setup_bash_script:\n#!/bin/sh\n apt-get install x \n\n# no\nexport Y=1\n",
        ]
    );
    let script = &launch.command[2];
    let end = "clearml-agent ; echo one ; echo two ; apt-get install x ; export Y=1 ; cp /tmp/clearml.conf ~/default_clearml.conf ; NVIDIA_";
    assert!(script.contains(end), "{script}");

    let no = "agent.disable_task_docker_override: true";
    let launch = launched(&runner(Some("img -e D=3"), &[], no), &task);
    assert_eq!(launch.container.unwrap().image, "img");
    assert!(launch.lines[0].starts_with("Running Task T inside default docker: img arguments:"));
}

/// The list of clearml-agent 174, and what a task has of it in its first and in its second run.
#[test]
fn docker_arguments_with_blanks_reach_the_container_in_each_run() {
    let config = r#"agent {
        default_docker {
            image: img
            arguments: ["--network=host", "-e http_proxy=http://192.0.2.1:3128", "-v /data:/data", "--shm-size 1g", "-e A=\"b c\""]
        }
        extra_docker_arguments: ["-e EXTRA=1", "--label a=b"]
    }"#;
    let runner = runner(Some(""), &[], config);
    let note = runner.split_arguments().unwrap();
    assert!(
        note.ends_with("-e, -v, --shm-size, -e, -e, --label"),
        "{note}"
    );
    assert!(!note.contains("192.0.2.1"), "flags alone: {note}");
    let first = launched(&runner, &task("T", None, None));
    let back = first.write_back.clone().unwrap();
    let again = task("T", back.image.as_deref(), back.arguments.as_deref());
    // A task that an earlier Divvy wrote, each element quoted.
    let quoted = "--network=host '-e http_proxy=http://192.0.2.1:3128' '-v /data:/data' '--shm-size 1g' '-e A=\"b c\"'";
    let earlier = task("T", Some("img"), Some(quoted));
    for (launch, split) in [
        (first, 0),
        (launched(&runner, &again), 0),
        (launched(&runner, &earlier), 1),
    ] {
        assert_eq!(launch.lines.len(), 1 + split, "{:?}", launch.lines);
        let said = launch.lines.concat();
        assert_eq!(
            said.contains("divvy: each of these docker arguments has a blank"),
            split == 1,
            "{said}"
        );
        let arguments = launch.container.unwrap().arguments;
        let options = docker::options(&arguments).unwrap();
        assert_eq!(options.shm_size, Some(1 << 30));
        assert_eq!(options.labels["a"], "b");
        assert!(
            arguments.iter().any(|word| word.contains("/data:/data")),
            "{arguments:?}"
        );
        for (name, value) in [
            ("http_proxy", "http://192.0.2.1:3128"),
            ("EXTRA", "1"),
            ("A", "b c"),
        ] {
            assert_eq!(
                launch.env.get(name).map(String::as_str),
                Some(value),
                "{name}"
            );
        }
    }
    let plain = self::runner(Some("img -e A=1"), &[], "");
    assert_eq!(plain.split_arguments(), None);
}

#[test]
fn a_waiting_task_is_shown_with_the_agent_that_will_run_it() {
    let (_dir, settings) = settings("");
    let waiting = |docker: Option<Vec<String>>| {
        let agent = ["/opt/venv/bin/clearml-agent", "--debug"]
            .map(str::to_owned)
            .to_vec();
        let options = Options {
            docker,
            agent,
            ..Options::default()
        };
        let runner = Runner::read_with(&settings, &options, vars(&[])).unwrap();
        runner.execute().join(" ")
    };
    assert_eq!(waiting(None), "/opt/venv/bin/clearml-agent --debug execute");
    assert_eq!(waiting(Some(Vec::new())), "clearml-agent execute");
}

#[test]
fn match_rules_of_the_paid_server_choose_no_container() {
    let config = r#"agent {
        default_docker {
            image: img
            arguments: ["-e", "A=1"]
            match_rules: [{image: "theirs", arguments: "-e A=2", match: {script.repository: ""}}]
        }
    }"#;
    let launch = launched(&runner(Some(""), &[], config), &task("T", None, None));
    assert_eq!(launch.container.unwrap().image, "img");
    assert_eq!(launch.env["A"], "1");
}

#[test]
fn a_task_that_tries_to_get_out_of_its_slice_is_told_so_in_its_log() {
    let arguments = "--gpus all --privileged -e LD_PRELOAD=/x.so -v /x:/tmp/clearml.conf -v /y:/run/divvy-job/z -e CLEARML_WORKER_ID=me -e OK=1";
    let launch = launched(
        &runner(Some("img"), &[], ""),
        &task("T", Some("own"), Some(arguments)),
    );
    let said = launch.lines[1..].concat();
    for named in [
        "--gpus all",
        "--privileged",
        "LD_PRELOAD",
        "/tmp/clearml.conf",
        "/run/divvy-job/z",
    ] {
        assert!(said.contains(named), "{named}: {said}");
    }
    let words = launch.container.unwrap().arguments.join(" ");
    for gone in ["gpus", "privileged", "/x:", "divvy-job"] {
        assert!(!words.contains(gone), "{gone}: {words}");
    }
    assert_eq!(launch.env["CLEARML_WORKER_ID"], "node1:gpu2.25a");
    assert_eq!(launch.env["OK"], "1");
    assert!(!launch.env.contains_key("LD_PRELOAD"));
}

#[test]
fn keys_git_files_wheels_and_tokens_go_into_the_container_as_ever() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".ssh")).unwrap();
    fs::write(home.path().join(".ssh/id"), "key").unwrap();
    fs::write(home.path().join(".gitconfig"), "").unwrap();
    let at = home.path().to_str().unwrap();
    let (_dir, settings) = settings("");
    let mut vars = vars(&[("FORCE_LOCAL_CLEARML_AGENT_WHEEL", "~/w/a-1.whl")]);
    vars.insert("HOME".into(), at.into());
    let options = Options {
        docker: Some(vec!["img".into()]),
        ..Options::default()
    };
    let runner = Runner::read_with(&settings, &options, vars).unwrap();
    let launch = runner.launch(&task("T", None, None), &slot()).unwrap();
    let line = launch.executing(&[]);
    let tasks = format!("{at}/.clearml/divvy/T");
    for part in [
        format!("'-v', '{at}/w/a-1.whl:/tmp/a-1.whl'"),
        format!("'-v', '{at}/.gitconfig:/.ssh.git/.gitconfig'"),
        format!("'-v', '{tasks}/clearml.conf:/tmp/clearml.conf'"),
        format!("'-v', '{tasks}/ssh:/.ssh'"),
    ] {
        assert!(line.contains(&part), "{part}: {line}");
    }
    let script = &launch.command[2];
    for part in [
        "cp -Rf /.ssh -T ~/.ssh ; cp -Rf /.ssh.git -T ~/ ; ",
        "pip install -U \"/tmp/a-1.whl\" ; ",
    ] {
        assert!(script.contains(part), "{part}: {script}");
    }
    assert_eq!(
        fs::read_to_string(format!("{tasks}/ssh/id")).unwrap(),
        "key"
    );
    let config = fs::read_to_string(format!("{tasks}/clearml.conf")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&config).unwrap();
    assert_eq!(config["api"]["credentials"]["secret_key"], "SECRET");
    assert_eq!(
        config["agent"]["vcs_cache"]["path"],
        "/root/.clearml/vcs-cache"
    );
    assert!(home.path().join(".clearml/apt-cache.gpu2.25a").is_dir());

    runner.clear_all_but(&BTreeSet::from(["T".to_owned()]));
    assert!(Path::new(&tasks).is_dir());
    runner.clear_all_but(&BTreeSet::new());
    assert!(!Path::new(&tasks).exists());
}

#[test]
fn secrets_are_in_the_environment_and_not_in_the_log() {
    let config = "agent.extra_docker_arguments: [\"-e\", \"AWS_SECRET_ACCESS_KEY=s3cret\"]";
    let launch = launched(
        &runner(Some("img"), &[], config),
        &task(
            "T",
            Some("own"),
            Some("-e URL=https://u:s3cret@h/x -e AZURE_STORAGE_KEY=s3cret"),
        ),
    );
    let said = launch.lines.concat() + &launch.executing(&[]);
    assert!(!said.contains("s3cret"), "{said}");
    assert!(
        said.contains("AZURE_STORAGE_KEY=********") && said.contains("https://u:********@h/x"),
        "{said}"
    );
    assert_eq!(launch.env["AWS_SECRET_ACCESS_KEY"], "s3cret");
    assert_eq!(launch.env["URL"], "https://u:s3cret@h/x");
}

#[test]
fn the_administrators_own_script_takes_the_place_of_the_stock_one() {
    let config = r#"agent.docker_init_bash_script: ["for i in {{20..5}}; do {python_single_digit}.$i; done", "{x}"],
        agent.docker_preprocess_bash_script: ["echo first"], agent.package_manager.pip_version: "20.1""#;
    let launch = launched(&runner(Some("img"), &[], config), &task("T", None, None));
    let script = &launch.command[2];
    assert!(
        script.starts_with(
            "echo first ; for i in {20..5}; do python3.$i; done ; {x} ; [ ! -z $LOCAL_PYTHON ]"
        ),
        "{script}"
    );
    assert!(
        script.contains("pip install -U \"pip==20.1\" ; "),
        "{script}"
    );
}

#[test]
fn a_place_that_the_administrator_mounts_is_not_mounted_twice() {
    let config = "agent.extra_docker_arguments: [\"-v\", \"/mnt/pip:/root/.cache/pip\"]";
    let launch = launched(&runner(Some("img"), &[], config), &task("T", None, None));
    let arguments = launch.container.unwrap().arguments;
    let pip: Vec<_> = arguments
        .iter()
        .filter(|word| word.ends_with(":/root/.cache/pip"))
        .collect();
    assert_eq!(pip, ["--volume=/mnt/pip:/root/.cache/pip"]);
}

#[test]
fn in_plain_mode_the_daemons_own_name_and_folders_are_the_tasks() {
    let runner = runner(Some("img"), &[], "");
    let slot = slot_of(&[slice("gpu0", 0, 1000)], "node1:gpu0", "node1:gpu0");
    let launch = runner
        .contained(&task("T", None, None), &slot, &made())
        .unwrap();
    let line = launch.executing(&["--gpus".to_owned(), "\"device=0\"".to_owned()]);
    assert!(
        line.starts_with("Executing: ['docker', 'run', '-e', 'CLEARML_AGENT_PROPAGATE_EXITCODE=1', '-t', '--gpus', "),
        "{line}"
    );
    assert!(
        line.contains("'/h/.clearml/apt-cache:/var/cache/apt/archives'"),
        "{line}"
    );
    assert!(
        !line.contains("SERVICE_TASK") && !line.contains("FRACTIONS"),
        "{line}"
    );
}

#[test]
fn without_docker_the_stock_agent_runs_as_a_process_with_the_daemons_environment() {
    let more = [
        ("PATH", "/bin"),
        ("CUDA_VISIBLE_DEVICES", "3"),
        ("NVIDIA_VISIBLE_DEVICES", "3"),
        ("DIVVY_HOME", "/d"),
    ];
    let runner = runner(None, &more, "agent.venvs_dir: \"$HOME/venvs/\"");
    let launch = runner
        .launch(&task("T", Some("own"), None), &slot())
        .unwrap();
    assert_eq!(
        launch.command,
        ["clearml-agent", "execute", "--full-monitoring", "--id", "T"]
    );
    assert_eq!(
        (launch.container.as_ref(), launch.write_back.as_ref()),
        (None, None)
    );
    let env = |name: &str| launch.env.get(name).map(String::as_str);
    assert_eq!(env("CLEARML_WORKER_ID"), Some("node1:gpu2.25a"));
    assert_eq!(
        env("CLEARML_AGENT__AGENT__VENVS_DIR"),
        Some("/h/venvs.gpu2.25a")
    );
    assert_eq!((env("PATH"), env("HOME")), (Some("/bin"), Some("/h")));
    for gone in [
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "DIVVY_HOME",
    ] {
        assert_eq!(env(gone), None);
    }
    assert!(
        env("CLEARML_CONFIG_FILE")
            .unwrap()
            .ends_with("clearml.conf")
    );
    let line = launch.executing(&["--gpus".to_owned()]);
    assert_eq!(
        line,
        "Executing: ['clearml-agent', 'execute', '--full-monitoring', '--id', 'T']\n"
    );
}

#[test]
fn in_standalone_mode_nothing_is_installed_and_the_agent_is_told() {
    let config = "agent { standalone_mode: true, extra_docker_shell_script: [\"echo own\"] }";
    for docker in [None, Some("img")] {
        let runner = runner(docker, &[("CLEARML_LOG_LEVEL", "DEBUG")], config);
        let launch = match docker {
            None => runner.process(&task("T", None, None), &slot()),
            Some(_) => runner
                .contained(&task("T", None, None), &slot(), &made())
                .unwrap(),
        };
        let line = launch.command.join(" ");
        assert!(
            line.ends_with("execute --full-monitoring --standalone-mode --log-level DEBUG --id T"),
            "{line}"
        );
        assert!(
            !line.contains("pip install") && !line.contains("apt-get"),
            "{line}"
        );
        assert_eq!(line.contains("echo own"), docker.is_some());
        let level = launch.env.get("CLEARML_LOG_LEVEL");
        let arguments = launch
            .container
            .map(|container| container.arguments.join(" "));
        let is_told = level.is_some_and(|level| level == "DEBUG")
            || arguments.is_some_and(|all| all.contains("CLEARML_LOG_LEVEL=DEBUG"));
        assert!(is_told);
    }
}

#[test]
fn the_tags_of_slots_reach_the_tasks_worker_before_the_daemons_own() {
    let tags = |of_slots: &[&str]| {
        let options = Options {
            slot_tags: of_slots.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Options::default()
        };
        let (_dir, mut settings) = settings("");
        settings.worker_tags = vec!["own".to_owned()];
        let runner = Runner::read_with(&settings, &options, vars(&[])).unwrap();
        let launch = runner.process(&task("T", None, None), &slot());
        launch.env["CLEARML_WORKER_TAGS"].clone()
    };
    assert_eq!(tags(&["red", "blue sky"]), "red 'blue sky'");
    assert_eq!(tags(&[]), "own");
}
