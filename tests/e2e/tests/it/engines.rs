//! The pieces of docs/engines.md that an engine's own file carries: shell lines and arguments, run without the engine. The
//! page's `console` block runs with those of all pages (`shown`), and Dask itself in `dask`.

use std::fs;
use std::path::Path;

use divvy_e2e::{CommandOutput, Home};
use divvy_testkit::Bounded as _;
use serde_json::Value;

use crate::shown::{path_with, place, root};

fn page() -> String {
    fs::read_to_string(root().join("docs/engines.md")).expect("the page is there")
}

/// The block of this language that has these words.
fn block(page: &str, language: &str, words: &str) -> String {
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1);
    let mut blocks = blocks.map(|rest| rest.split("```").next().unwrap_or_default());
    let found = blocks.find(|block| block.contains(words));
    found
        .unwrap_or_else(|| panic!("no {language} block has {words}"))
        .to_owned()
}

fn yaml(page: &str, words: &str) -> Value {
    yaml_serde::from_str(&block(page, "yaml", words)).expect("the block is YAML")
}

fn shell(home: &Home, folder: &Path, script: &str) -> CommandOutput {
    let mut shell = home.command("sh");
    shell.args(["-ec", script]).current_dir(folder);
    shell.env("PATH", path_with(home, folder));
    shell.env("NOMAD_ALLOC_ID", "5456bd7a-9fc0-c0dd-6131-cbee77f57577");
    let output = shell.output_bounded().expect("the shell runs");
    CommandOutput::new(script.to_owned(), &output)
}

/// The command of the Nomad task, for a shell that has Nomad's variables.
fn nomad(page: &str) -> String {
    let task = block(page, "hcl", "raw_exec");
    let value = |key: &str| {
        let line = task.lines().find(|line| line.trim().starts_with(key));
        let line = line.expect("the key is there");
        let (_, value) = line.split_once('=').expect("the key has a value");
        value.trim().to_owned()
    };
    let program: String = serde_json::from_str(&value("command")).expect("a string");
    let program = program.strip_prefix("/usr/share/doc/divvy/");
    let words: Vec<String> = serde_json::from_str(&value("args")).expect("a list");
    let words: Vec<_> = words.iter().map(|word| format!("\"{word}\"")).collect();
    format!(
        "{} {}",
        program.expect("a file of the package"),
        words.join(" ")
    )
}

#[test]
fn the_shell_lines_for_other_engines_run_as_the_page_shows() {
    let page = page();
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let folder = place(&home);
    fs::write(folder.join("serve.py"), "print('done')\n").expect("the folder is ours");
    let stub = folder.join("bin/pip");
    fs::write(&stub, "#!/bin/sh\n[ \"$1\" = install ]\n").expect("the folder is ours");
    let mode = fs::metadata(folder.join("bin/python")).expect("a stub");
    fs::set_permissions(&stub, mode.permissions()).expect("the file is ours");
    let ran = |name: &str| home.items(&["ps", "-a", "--name", name]).len();

    let task = yaml(&page, "setup");
    for key in ["setup", "run"] {
        let script = task[key].as_str().expect("shell lines");
        let _ = shell(&home, &folder, script).ok();
    }
    assert_eq!(ran("train.py"), 1, "SkyPilot's task");

    let commands = yaml(&page, "commands");
    let commands = commands["commands"].as_array().expect("commands").iter();
    let commands: Vec<_> = commands.filter_map(Value::as_str).collect();
    // dstack joins the commands with `&&`, and the daemon of this test runs already.
    let script = commands.join(" && ");
    let script = script.replace("divvy daemon --detached", "divvy gpus");
    let _ = shell(&home, &folder, &script).ok();
    let names = ["train.py", "serve.py"].map(ran);
    assert_eq!(names, [2, 1], "the programs of dstack's task");

    let nomad = nomad(&page);
    let said = shell(&home, &folder, &nomad).ok();
    assert_eq!(said.stdout, "done\n");
    let name = "nomad-5456bd7a-9fc0-c0dd-6131-cbee77f57577";
    assert_eq!(ran(name), 1, "Nomad's task");
    // The slice of the task before is released within a quarter of a second.
    let full = "slice create full --gpus-on 0 -g 0.9 --wait 10s";
    let full: Vec<_> = full.split(' ').collect();
    let _ = home.divvy(&full).ok();
    let said = shell(&home, &folder, &nomad).exits(6);
    assert!(said.stderr.contains("GPU 0: "), "{}", said.stderr);

    let dask = block(&page, "bash", "dask scheduler");
    let scene = fs::read_to_string(root().join("tests/e2e/clients/dask_scene.py"));
    let scene = scene.expect("the scene is there");
    let options = "--nworkers 1 --nthreads 1 --resources GPU=1";
    assert!(dask.contains(options), "{dask}");
    for option in options.split(' ') {
        assert!(scene.contains(&format!("\"{option}\"")), "{option}");
    }
}
