use std::fs;

use serde_json::json;

use super::*;

fn read_here(text: &str) -> Result<Value, String> {
    let environment = |name: &str| (name == "HOST").then(|| "http://h:8008".to_owned());
    read(text, &environment).map_err(|fault| fault.to_string())
}

#[test]
fn values_are_read_as_pyhocon_reads_them() {
    for (text, value) in [
        ("a: http://h:8008/x // why", json!({"a": "http://h:8008/x"})),
        (
            "a: [https://a/b, \"\", c]",
            json!({"a": ["https://a/b", "c"]}),
        ),
        ("a { b {x: 1} c: 1 }", json!({"a": {"b": {"x": 1}, "c": 1}})),
        (r#"a: "\d \" \u00e9""#, json!({"a": "\\d \" \\u00e9"})),
        (
            "a: ${HOST}\"/x\", b: [${?NO}, ${HOST}]",
            json!({"a": "http://h:8008/x", "b": [null, "http://h:8008"]}),
        ),
        ("a: 1\na: ${?NO}\nb: ${?NO}", json!({"a": 1})),
        ("a: [1]\na += [2]\na: ${a} [3]", json!({"a": [1, 2, 3]})),
        (
            "a: 1e3, b: 1.50, c: 12345678901234567890123, d: true-ish",
            json!({
                "a": 1000.0, "b": 1.5, "c": "12345678901234567890123", "d": "True-ish"
            }),
        ),
        ("a: one \\\n two\tb", json!({"a": "one two    b"})),
        ("", json!({})),
    ] {
        assert_eq!(read_here(text), Ok(value), "{text}");
    }
}

#[test]
fn a_text_that_pyhocon_refuses_is_refused_with_its_line() {
    for (text, why) in [
        (
            "a: 1\nb: \"x\nc: 2",
            "line 2, column 4: the closing double quote is missing on this line",
        ),
        (
            "a {\n  b: 1\n",
            "line 3, column 1: expected '}', found the end of the file",
        ),
        (
            "a: x\nb: what?\n",
            "line 2, column 8: expected a key, a value or the end, found '?': \
          put strings with special characters into double quotes",
        ),
        (
            "a { b: x* }",
            "line 1, column 9: expected '}', found '*': put strings with special characters into double quotes",
        ),
        (
            "\n\nworker_name\n",
            "line 4, column 1: expected \":\", \"=\", \"+=\" or \"{\" after a key",
        ),
        (
            "a: {x: 1} b: 1",
            "line 1, column 4: a section is followed by a string: separate them with a comma or a new line",
        ),
        (
            "a: 1\na { b: 1 }",
            "line 2, column 11: this key already has a value, so it cannot become a section",
        ),
        (
            "a: 1\nb: x ${NO_SUCH}",
            "line 2, column 6: ${NO_SUCH} is neither a key of this file nor an environment variable",
        ),
        (
            "a: ${b}\nb: ${a}",
            "line 1, column 4: ${b} refers to itself",
        ),
        (
            "[1]",
            "line 1, column 1: the file contains a list, but a section is required",
        ),
        (
            "a: x\\\n\n b: *",
            "line 3, column 5: expected a key, a value or the end, found '*'",
        ),
        (
            "include url(\"http://x/y\")",
            "line 1, column 1: cannot include \"http://x/y\": only local files can be included; \
          copy it to this machine and include the copy",
        ),
        (
            "include required(\"/nowhere/x.conf\")",
            "line 1, column 1: cannot include /nowhere/x.conf: No such file",
        ),
    ] {
        let fault = read_here(text).unwrap_err();
        assert!(fault.starts_with(why), "{text:?}: {fault}");
    }
}

#[test]
fn whatever_a_file_could_grow_has_a_bound() {
    let deepest = |depth| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(read_here(&deepest(DEEPEST)).is_ok());
    let fault = read_here(&deepest(DEEPEST + 1)).unwrap_err();
    assert!(
        fault.ends_with("brackets are nested deeper than 64 levels"),
        "{fault}"
    );
    // Each line doubles the text of the one before, or the steps to nothing at all.
    let doubled = |first: &str| {
        let lines = (1..60).map(|line| format!("a{line}: ${{?a{0}}}${{?a{0}}}\n", line - 1));
        first.to_owned() + &lines.collect::<String>()
    };
    for first in ["a0: xxxxxxxx\n", "\n"] {
        let fault = read_here(&doubled(first)).unwrap_err();
        assert!(fault.contains("larger than 1 MiB"), "{fault}");
    }
    let chain: String = (1..1000)
        .map(|line| format!("a{line}: [${{a{}}}]\n", line - 1))
        .collect();
    let fault = read_here(&format!("a0: 1\n{chain}")).unwrap_err();
    assert!(fault.contains("nested too deeply"), "{fault}");
}

#[test]
fn files_include_each_other_from_where_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("more")).unwrap();
    fs::write(
        path("a.conf"),
        "x: 1\nagent { include \"more/b.conf\" }\ninclude \"missing.conf\"\n",
    )
    .unwrap();
    fs::write(path("more/b.conf"), "include \"c.conf\"\ny: 2").unwrap();
    fs::write(path("more/c.conf"), "z: 3\ny: 1").unwrap();
    let read = |name: &str| match read_file(&path(name), &|_| None) {
        Ok(value) => Ok(value),
        Err(Failure::Text(fault)) => Err(fault.to_string()),
        Err(Failure::Read(error)) => Err(error.to_string()),
    };
    assert_eq!(
        read("a.conf"),
        Ok(json!({"x": 1, "agent": {"y": 2, "z": 3}}))
    );

    fs::write(path("more/c.conf"), "z: 3\ny: *").unwrap();
    let fault = read("a.conf").unwrap_err();
    assert!(
        fault.starts_with("line 2, column 8: ") && fault.contains("c.conf: line 2, column 4:"),
        "{fault}"
    );

    fs::write(path("round.conf"), "include \"round.conf\"").unwrap();
    assert!(
        read("round.conf")
            .unwrap_err()
            .contains("at most 64 files can be included")
    );

    fs::write(path("large.conf"), format!("#{}", "x".repeat(1 << 20))).unwrap();
    assert_eq!(
        read("large.conf").unwrap_err(),
        "line 1, column 1: the file is larger than 1 MiB"
    );
    fs::write(path("latin.conf"), b"a: 1\nb: \xe9").unwrap();
    assert_eq!(
        read("latin.conf").unwrap_err(),
        "line 2, column 4: this byte is not UTF-8"
    );
}
