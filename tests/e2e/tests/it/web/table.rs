//! The table of requests and answers: each request to `divvy web`, and to the daemon's TCP listener, as real servers answer it.
//!
//! docs/web.md has the table; `cargo xtask bless` writes it anew.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use divvy_e2e::Home;
use divvy_e2e::page::{Page, ask};

use super::{TOKEN, listening};

/// What it is, the request, and the statuses of `divvy web`, `divvy web --allow-actions` and the listener of a user's own
/// daemon. `{host}` is the server's own address, `{token}` its token. 0: the connection is closed without an answer.
const ROWS: &[(&str, &str, [u16; 3])] = &[
    (
        "the page itself, without the token",
        "GET /\nhost: {host}",
        [200, 200, 200],
    ),
    (
        "a link on another site",
        "GET /\nhost: {host}\nsec-fetch-site: cross-site\nsec-fetch-mode: navigate\nsec-fetch-dest: document",
        [200, 200, 200],
    ),
    (
        "a file that is not there",
        "GET /assets/none.js\nhost: {host}",
        [404, 404, 404],
    ),
    (
        "`/assets/../Cargo.toml`",
        "GET /assets/../Cargo.toml\nhost: {host}",
        [404, 404, 404],
    ),
    (
        "`/assets/%2e%2e/Cargo.toml`",
        "GET /assets/%2e%2e/Cargo.toml\nhost: {host}",
        [404, 404, 404],
    ),
    (
        "`/assets/../v1/node`",
        "GET /assets/../v1/node\nhost: {host}",
        [404, 404, 404],
    ),
    (
        "the API with the token, as scripts call it",
        "GET /v1/node\nhost: {host}\n{token}",
        [200, 200, 200],
    ),
    (
        "the same as the page calls it",
        "GET /v1/node\nhost: {host}\n{token}\nsec-fetch-site: same-origin",
        [200, 200, 200],
    ),
    (
        "without a token",
        "GET /v1/node\nhost: {host}",
        [403, 403, 403],
    ),
    (
        "a wrong token",
        "GET /v1/node\nhost: {host}\nauthorization: Bearer 0123",
        [403, 403, 403],
    ),
    (
        "the token in the query",
        "GET /v1/node?token={secret}\nhost: {host}",
        [403, 403, 403],
    ),
    (
        "the token in a cookie",
        "GET /v1/node\nhost: {host}\ncookie: token={secret}",
        [403, 403, 403],
    ),
    (
        "the token twice",
        "GET /v1/node\nhost: {host}\n{token}\n{token}",
        [403, 403, 403],
    ),
    (
        "the token, `Host: evil.example`",
        "GET /v1/node\nhost: evil.example\n{token}",
        [403, 403, 403],
    ),
    (
        "the page, `Host: evil.example` (DNS rebinding)",
        "GET /\nhost: evil.example",
        [403, 403, 403],
    ),
    (
        "the token, no `Host`",
        "GET /v1/node\n{token}",
        [403, 403, 403],
    ),
    (
        "the token, two `Host`",
        "GET /v1/node\nhost: {host}\nhost: evil.example\n{token}",
        [403, 403, 403],
    ),
    (
        "the token, `Host` of another port (a tunnel)",
        "GET /v1/node\nhost: localhost:1\n{token}",
        [403, 403, 200],
    ),
    (
        "the token, a configured `Host`",
        "GET /v1/node\nhost: lab1.example\n{token}",
        [200, 200, 200],
    ),
    (
        "the same with its own `Origin`",
        "GET /v1/node\nhost: lab1.example\norigin: https://lab1.example\n{token}",
        [200, 200, 200],
    ),
    (
        "the token, `Origin: https://evil.example`",
        "GET /v1/node\nhost: {host}\norigin: https://evil.example\n{token}",
        [403, 403, 403],
    ),
    (
        "the token, `Origin: null`",
        "GET /v1/node\nhost: {host}\norigin: null\n{token}",
        [403, 403, 403],
    ),
    (
        "the token, a page of another user's port",
        "GET /v1/node\nhost: {host}\norigin: http://127.0.0.1:1\nsec-fetch-site: same-site\n{token}",
        [403, 403, 403],
    ),
    (
        "the same without `Origin`",
        "GET /v1/node\nhost: {host}\nsec-fetch-site: same-site\n{token}",
        [403, 403, 403],
    ),
    (
        "a script of the page, from another site",
        "GET /assets/none.js\nhost: {host}\nsec-fetch-site: cross-site",
        [403, 403, 403],
    ),
    (
        "a preflight of another site",
        "OPTIONS /v1/jobs/1/cancel\nhost: {host}\norigin: https://evil.example\naccess-control-request-method: POST",
        [403, 403, 403],
    ),
    (
        "an action with the token",
        "POST /v1/jobs/none/cancel\nhost: {host}\n{token}",
        [403, 404, 404],
    ),
    (
        "an action without the token",
        "POST /v1/jobs/none/cancel\nhost: {host}",
        [403, 403, 403],
    ),
    (
        "an action of another site with the token",
        "POST /v1/jobs/none/cancel\nhost: {host}\norigin: https://evil.example\n{token}",
        [403, 403, 403],
    ),
    (
        "`exec`, which is another protocol",
        "POST /v1/jobs/none/exec\nhost: {host}\nconnection: upgrade\nupgrade: divvy-exec\n{token}",
        [403, 403, 400],
    ),
    (
        "`/web/session`",
        "GET /web/session\nhost: {host}\n{token}",
        [200, 200, 200],
    ),
    (
        "`/web/session` without the token",
        "GET /web/session\nhost: {host}",
        [403, 403, 403],
    ),
    (
        "`/web/doctor` without the token",
        "GET /web/doctor\nhost: {host}",
        [403, 403, 403],
    ),
    (
        "`/web/selftest` without the token",
        "POST /web/selftest\nhost: {host}",
        [403, 403, 403],
    ),
    (
        "`/metrics` with the token",
        "GET /metrics\nhost: {host}\n{token}",
        [404, 404, 200],
    ),
    (
        "another path with the token",
        "GET /etc/passwd\nhost: {host}\n{token}",
        [404, 404, 404],
    ),
    (
        "a target with a foreign host",
        "GET http://evil.example/v1/node\nhost: {host}\n{token}",
        [403, 403, 403],
    ),
    (
        "200 KB of headers",
        "GET /\nhost: {host}\nx: {long}",
        [431, 431, 431],
    ),
];

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/web.md");
const BEGIN: &str = "<!-- requests: written by tests/e2e/tests/it/web/table.rs -->\n";
const END: &str = "<!-- end of requests -->\n";

const SECURE: [(&str, &str); 4] = [
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

/// The status of one request, with what holds for every answer.
fn status(address: &str, token: &str, what: &str, request: &str) -> u16 {
    let request = request
        .replace("{host}", address)
        .replace("{token}", &format!("authorization: Bearer {token}"))
        .replace("{secret}", token)
        .replace("{long}", &"x".repeat(200_000));
    let answer = ask(address, &request, b"");
    // The HTTP library itself answers what it cannot read, without a body.
    if answer.status == 431 || answer.status == 0 {
        assert!(answer.body.is_empty(), "{what}");
        return answer.status;
    }
    for (name, value) in SECURE {
        assert_eq!(answer.header(name), value, "{what}");
    }
    let policy = answer.header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'self';"),
        "{what}: {policy}"
    );
    assert!(!answer.headers.contains_key("set-cookie"), "{what}");
    assert!(
        !answer
            .headers
            .keys()
            .any(|name| name.starts_with("access-control-")),
        "{what}"
    );
    if answer.status >= 400 {
        let error = &answer.json()["error"];
        assert!(
            error["code"].is_string() && error["message"].is_string(),
            "{what}: {error}"
        );
        assert!(!error.to_string().contains(token), "{what}: {error}");
    }
    answer.status
}

#[test]
fn every_request_is_answered_as_the_table_says() {
    let home = Home::new("l4-24gb:1");
    let (_daemon, listener) = listening(&home, &["--set", "listen.web-hosts=[\"lab1.example\"]"]);
    let shows = Page::open(&home, &["--web-host", "lab1.example"]);
    let acts = Page::open(&home, &["--web-host", "lab1.example", "--allow-actions"]);
    let mut table = String::from(
        "\n| request | `divvy web` | `--allow-actions` | TCP listener |\n|---|--:|--:|--:|\n",
    );
    let mut wrong = Vec::new();
    for (what, request, expected) in ROWS {
        let found = [
            status(&shows.address, &shows.token, what, request),
            status(&acts.address, &acts.token, what, request),
            status(&listener, TOKEN, what, request),
        ];
        if found != *expected {
            wrong.push(format!("{what}: {found:?}, not {expected:?}"));
        }
        let [shows, acts, listener] = found;
        writeln!(table, "| {what} | {shows} | {acts} | {listener} |").expect("a String takes all");
    }
    table.push('\n');
    println!("{table}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    is_documented(&table);
}

fn is_documented(table: &str) {
    let page = fs::read_to_string(Path::new(PATH)).expect("docs/web.md");
    let (before, rest) = page
        .split_once(BEGIN)
        .expect("docs/web.md has the place of the table");
    let (written, after) = rest
        .split_once(END)
        .expect("docs/web.md has the end of the table");
    if std::env::var_os("DIVVY_RECORD").is_some() {
        fs::write(PATH, format!("{before}{BEGIN}{table}{END}{after}")).expect("docs/web.md");
        return;
    }
    assert!(
        written == table,
        "docs/web.md has another table; cargo xtask bless writes this one:\n{table}"
    );
}
