//! Names that other users chose, on a terminal of 60 and of 80 columns.

use divvy_e2e::Home;
use divvy_testkit::Bounded as _;

/// What `divvy WORDS` shows on a terminal so wide.
fn on_terminal(home: &Home, columns: usize, words: &str) -> Option<String> {
    let typed = format!(
        "stty cols {columns} && exec {} {words}",
        home.program("divvy")
    );
    let mut command = home.command("script");
    command
        .env_remove("COLUMNS")
        .args(["-qec", &typed, "/dev/null"]);
    let output = command.output_bounded().ok()?;
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8_lossy(&output.stdout).replace('\r', ""))
}

#[test]
fn no_name_widens_a_terminal_or_reorders_it_and_scripts_get_it_whole() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let long = "n".repeat(200);
    let spoofed = "a\u{202e}b\u{200b}c";
    let wide = "訓".repeat(60);
    for name in [long.as_str(), spoofed, &wide] {
        let _ = home.submit(&["-g", "0.25", "--name", name], &["sleep", "1000"]);
    }
    for columns in [60, 80] {
        let Some(shown) = on_terminal(&home, columns, "ps") else {
            eprintln!("SKIPPED: no script(1)");
            break;
        };
        // Every other character here takes one column.
        let width = |line: &str| {
            line.chars()
                .map(|c| if c == '訓' { 2 } else { 1 })
                .sum::<usize>()
        };
        for line in shown.lines() {
            assert!(width(line) <= columns, "{columns}: {line}\n{shown}");
        }
        assert!(shown.contains("n…") && shown.contains("訓…"), "{shown}");
        assert!(!shown.contains(['\u{202e}', '\u{200b}']), "{shown}");
    }
    // Not a terminal: nothing is cut, and nothing is raw either.
    let piped = home.divvy(&["ps"]).ok().stdout;
    assert!(piped.contains(&long) && piped.contains(&wide), "{piped}");
    let escaped = r"a\u{202e}b\u{200b}c";
    assert!(piped.contains(escaped), "{piped}");
    for words in [["describe", spoofed], ["describe", "2"]] {
        let said = home.divvy(&words).ok().stdout;
        assert!(said.contains(escaped), "{said}");
    }
    // Programs get the name itself.
    assert_eq!(home.items(&["ps"])[1]["name"], spoofed);
}

#[test]
fn a_program_called_last_or_like_a_number_names_no_other_job() {
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let folder = home.scratch().join("bin");
    std::fs::create_dir(&folder).expect("the folder is new");
    for (program, named) in [("last", "job-last"), ("#3", "job-3")] {
        let path = folder.join(program);
        std::os::unix::fs::symlink("/bin/true", &path).expect("the folder can be written");
        let id = home.submit(&["-g", "0.25"], &[path.to_str().expect("a readable name")]);
        assert_eq!(home.job(&id).name, named);
        assert_eq!(home.job(named).id, id);
    }
}
