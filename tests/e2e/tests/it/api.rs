//! The API against its own document: a stranger's program (schemathesis) calls it over TCP with whatever `openapi/v1.json` allows
//! and much that it does not. Nothing may end in a failure of the server's own or an answer that the document does not describe.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use divvy_e2e::{Home, python};
use divvy_testkit::bounded_for;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// For each call of the document, besides the cases that it finds at the edges of the schema.
const EXAMPLES: &str = "15";

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";

/// Streams go on until their reader has had enough, and a wait for as long as it is told: both are asked for their first answer.
/// The job is the last one, of which there is always one.
const CONFIGURATION: &str = r#"
[parameters]
"query.follow" = false
"query.timeout_s" = 0
"path.job" = "last"
"#;

mod exhaustive {
    /// What the document gives as examples, and the edges of its schema.
    #[test]
    fn nothing_at_the_edges_of_the_api_ends_in_a_failure_of_its_own_or_an_answer_it_does_not_describe()
     {
        super::answers_as_described("examples,coverage");
    }

    #[test]
    fn nothing_that_is_asked_of_the_api_ends_in_a_failure_of_its_own_or_an_answer_it_does_not_describe()
     {
        super::answers_as_described("fuzzing");
    }
}

fn answers_as_described(phases: &str) {
    let home = Home::new("a100-80gb:2");
    let token = home.scratch().join("token");
    fs::write(&token, TOKEN).expect("the folder can be written");
    fs::set_permissions(&token, PermissionsExt::from_mode(0o600)).expect("the file is ours");
    let token_file = token.to_str().expect("a path of ours is text");
    let listen = [
        "--set",
        "listen.listen=127.0.0.1:0",
        "--set",
        &format!("listen.token-file={token_file}"),
    ];
    let mut daemon = home.daemon(&listen);
    let said = home.daemon_said();
    let at = said.find("127.0.0.1:").expect("it says where it listens");
    let address = said[at..]
        .split(|c: char| c != '.' && c != ':' && !c.is_ascii_digit())
        .next()
        .expect("an address");
    let job = home.submit(&["-g", "0.25"], &["sleep", "1000"]);
    let configuration = home.scratch().join("schemathesis.toml");
    fs::write(&configuration, CONFIGURATION).expect("the folder can be written");
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../openapi/v1.json");
    let tool = Path::new(&python()).with_file_name("st");
    let mut found = Command::new(tool);
    found
        .arg("--config-file")
        .arg(&configuration)
        .arg("run")
        .arg(&document)
        .args(["--url", &format!("http://{address}")])
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--checks", CHECKS])
        .args(["--phases", phases])
        .args(["--max-examples", EXAMPLES, "--seed", "1", "--no-shrink"])
        .args(["--request-timeout", "60", "--warnings", "off"])
        // What it remembers of earlier runs, it remembers there.
        .current_dir(home.scratch());
    #[expect(
        clippy::disallowed_methods,
        reason = "thousands of calls, bounded by more than the usual minute"
    )]
    let found = bounded_for(Duration::from_secs(600), "schemathesis ends", || {
        found.output()
    });
    let found =
        found.expect("schemathesis is in the private environment: cargo xtask test makes it");
    let report = String::from_utf8_lossy(&found.stdout);
    assert!(found.status.success(), "{report}\n{}", home.daemon_said());
    assert!(report.contains(" passed"), "{report}");
    assert_eq!(daemon.ended(), None, "{}", home.daemon_said());
    assert!(
        !home.daemon_said().contains("panicked"),
        "{}",
        home.daemon_said()
    );
    assert!(
        home.items(&["ps", "-a"])
            .iter()
            .any(|one| one["id"] == job.as_str())
    );
}
