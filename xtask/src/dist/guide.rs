//! The administrator's guide: the commands of docs/admin.md, "From nothing to twelve users", run by systemd on a clean Debian.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::shipped_file;
use super::tree::copy;
use crate::cargo::root;
use crate::steps::run;

/// Most commands of the guide. A newcomer types them by hand and expects a result within five minutes, so each has half
/// a minute.
const MOST: usize = 10;

/// The guide takes seconds; a machine that is busy takes longer.
const PATIENCE: Duration = Duration::from_secs(300);

/// The root of control groups version 2, by the type of its file system: a file of any name may lie on a tmpfs.
fn cgroup2_root() -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (folder, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| folder.to_owned())
    })
}

/// The commands of the guide, in order.
fn commands(page: &str) -> Result<Vec<String>> {
    let section = page.split("\n## From nothing to twelve users\n").nth(1);
    let block = section.and_then(|text| text.split("```sh\n").nth(1));
    let block = block.and_then(|text| text.split("```").next());
    let block = block.context("docs/admin.md has no commands in its guide")?;
    let joined = block.replace("\\\n", " ");
    let lines = joined.lines().filter(|line| !line.trim().is_empty());
    Ok(lines.map(str::to_owned).collect())
}

/// Follows the guide in a copy of this root of a suite.
pub fn follow(dist: &Path, suite: &str, debian: &Path, place: &Path) -> Result<()> {
    let Some(cgroups) = cgroup2_root() else {
        eprintln!("   SKIPPED: the administrator's guide: no cgroup v2");
        return Ok(());
    };
    let page = fs::read_to_string(root().join("docs/admin.md"))?;
    let commands = commands(&page)?;
    ensure!(
        commands.len() <= MOST,
        "the guide has {} commands, more than {MOST}",
        commands.len()
    );
    let own = place.join(format!("guide-{suite}"));
    run(Command::new("cp").arg("--archive").args([debian, &own]))?;
    let package = shipped_file(dist, "divvy_", ".deb")?;
    let name = package.file_name().context("a file has a name")?;
    copy(&package, &own.join("root").join(name))?;
    fs::write(own.join("checks.sh"), script(&commands))?;
    let results = place.join(format!("guide-results-{suite}"));
    fs::create_dir_all(&results)?;
    let output = fs::File::create(results.join("output"))?;
    let mut machine = Command::new("sh")
        .arg(root().join("tests/systemd/boot.sh"))
        .args([&own, &results])
        .arg(&cgroups)
        .arg(root().join("xtask/src/dist/fill_guide.sh"))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()?;
    let group = Path::new(&cgroups).join(format!("divvy-test-systemd-{}", machine.id()));
    let begin = Instant::now();
    let ended = results.join("end");
    while !ended.exists() && begin.elapsed() < PATIENCE && machine.try_wait()?.is_none() {
        sleep(Duration::from_millis(100));
    }
    let _ = machine.kill();
    let _ = machine.wait();
    remove_groups(&group);
    let read = |name: &str| fs::read_to_string(results.join(name)).unwrap_or_default();
    if !results.join("booted").exists() {
        eprintln!(
            "   SKIPPED: the administrator's guide: systemd does not run in namespaces here: {}",
            read("output")
        );
        return Ok(());
    }
    if read("end").trim() != "0" {
        bail!("the administrator's guide failed:\n{}", read("log"));
    }
    eprintln!(
        "   guide on Debian {suite}: {} commands in {:.1} s, then upgrade and uninstall",
        commands.len(),
        begin.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Control groups that systemd left; they are empty after its end.
fn remove_groups(group: &Path) {
    let begin = Instant::now();
    while group.exists() && begin.elapsed() < Duration::from_secs(10) {
        let _ = Command::new("find")
            .arg(group)
            .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", "+"])
            .stderr(Stdio::null())
            .status();
        sleep(Duration::from_millis(50));
    }
}

/// The commands, and what an administrator would look at after them.
fn script(commands: &[String]) -> String {
    let mut script = include_str!("guide.sh").to_owned();
    let steps: String = commands
        .iter()
        .map(|command| format!("step {command}\n"))
        .collect();
    script = script.replace("#COMMANDS#\n", &steps);
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_at_most_ten_commands_and_begins_with_the_package() {
        let page = fs::read_to_string(root().join("docs/admin.md")).expect("the page is there");
        let commands = commands(&page).expect("the guide has commands");
        assert!(commands.len() <= MOST, "{commands:?}");
        assert!(commands[0].starts_with("apt install "), "{commands:?}");
        assert!(script(&commands).contains("step divvy admin init --queue"));
        assert!(super::commands("# No guide").is_err());
    }
}
