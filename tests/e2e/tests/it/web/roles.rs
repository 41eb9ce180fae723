//! The page as users of each role open it, over the daemon of all users: what they see, and what they may change.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use divvy_api::route::{ROUTES, Route};
use divvy_e2e::Home;
use divvy_e2e::page::Page;
use divvy_testkit::{Bounded as _, can_be_users};
use serde_json::Value;

use super::{TOKEN, listening};

/// Users that no user database has, and their roles.
const USERS: [(&str, &str); 4] = [
    ("60111", "viewer"),
    ("60112", "user"),
    ("60113", "operator"),
    ("60114", "admin"),
];

/// A daemon for all users with these roles, or why there is none.
fn system() -> Option<(Home, divvy_e2e::Daemon, String)> {
    if !can_be_users("roles of the page are not tested here") {
        return None;
    }
    let home = Home::new("a100-80gb:1");
    let access = home.scratch().join("access.toml");
    let lines = USERS.map(|(uid, role)| format!("{role} = [{uid}]\n"));
    fs::write(&access, lines.concat()).expect("the folder can be written");
    fs::set_permissions(&access, PermissionsExt::from_mode(0o644)).expect("the file is ours");
    let access = access.to_str().expect("a path of ours is text");
    let (daemon, address) = listening(
        &home,
        &["--system", "--set", &format!("listen.access={access}")],
    );
    Some((home, daemon, address))
}

#[test]
fn each_role_sees_what_ps_shows_it_and_changes_nothing_without_the_flag() {
    let Some((home, _daemon, _)) = system() else {
        return;
    };
    let secret = "the-word-of-root";
    let _job = home.submit(
        &["-g", "0.25", "--name", "roots"],
        &["sh", "-c", "sleep 1000", secret],
    );
    for (uid, role) in USERS {
        let page = Page::open_as(&home, uid, &[]);
        let session = page.fetch("GET /web/session").json();
        assert_eq!(
            (&session["role"], &session["user"]),
            (&role.into(), &uid.into())
        );
        assert_eq!(session["actions"], false);
        let is_operator = role == "operator" || role == "admin";
        assert_eq!(session["may"]["cancel"], role != "viewer", "{session}");
        assert_eq!(session["may_others"]["cancel"], is_operator, "{session}");
        assert_eq!(session["may"]["projects"], role == "admin", "{session}");
        // The command of another user's job.
        let jobs = page.fetch("GET /v1/jobs");
        let output = home
            .divvy_as(uid)
            .args(["ps", "-o", "json"])
            .output_bounded();
        let typed: Value =
            serde_json::from_slice(&output.expect("setpriv starts").stdout).expect("a document");
        let command = |jobs: &Value| jobs["items"][0]["command"].clone();
        assert_eq!(command(&jobs.json()), command(&typed), "{role}");
        let sees = String::from_utf8_lossy(&jobs.body).contains(secret);
        assert_eq!(sees, is_operator, "{role}");
        let plan = page.fetch("POST /v1/mig/plan\ncontent-length: 0");
        let hint = plan.json()["error"]["hint"].to_string();
        assert!(!hint.contains("--allow-actions"), "{role}: {hint}");
        let changes = |route: &&Route| route.method != "GET" && route.path != "/v1/mig/plan";
        for route in ROUTES.iter().filter(changes) {
            let path = route.path.replace("{job}", "last").replace("{gpu}", "0");
            let path = path.replace("{project}", "vision").replace("{uid}", "u");
            let answer = page.fetch(&format!("{} {path}", route.method));
            assert_eq!(answer.status, 403, "{role}: {} {path}", route.method);
            let hint = answer.json()["error"]["hint"].to_string();
            assert!(hint.contains("--allow-actions"), "{hint}");
        }
        assert_eq!(page.fetch("POST /web/selftest").status, 403);
    }
    assert_eq!(home.items(&["ps"])[0]["state"], "running");
}

#[test]
fn with_the_flag_the_role_decides_and_on_the_listener_the_token_only_reads() {
    let Some((home, _daemon, listener)) = system() else {
        return;
    };
    for (uid, role) in USERS {
        let job = home.submit(&["-g", "0.125", "--name", role], &["sleep", "1000"]);
        let page = Page::open_as(&home, uid, &["--allow-actions"]);
        let session = page.fetch("GET /web/session").json();
        assert_eq!(session["actions"], role != "viewer", "{session}");
        let cancel = page.fetch(&format!("POST /v1/jobs/{job}/cancel"));
        let expected = if session["may_others"]["cancel"] == true {
            200
        } else {
            403
        };
        assert_eq!(cancel.status, expected, "{role}: {:?}", cancel.json());
        let quota = page.fetch(&format!("POST /v1/projects/{role}\ncontent-length: 0"));
        assert_eq!(
            quota.status == 403,
            role != "admin",
            "{role}: {:?}",
            quota.json()
        );
    }
    let ask = |request: &str| {
        let lines = format!("host: {listener}\nauthorization: Bearer {TOKEN}");
        divvy_e2e::page::ask(&listener, &format!("{request}\n{lines}"), b"")
    };
    let session = ask("GET /web/session").json();
    assert_eq!(
        (&session["via"], &session["role"]),
        (&"listener".into(), &"viewer".into())
    );
    assert_eq!(
        (&session["user"], &session["actions"]),
        (&"token".into(), &false.into())
    );
    for path in ["/v1/jobs/last/cancel", "/v1/mig/gc", "/v1/config/reload"] {
        assert_eq!(ask(&format!("POST {path}")).status, 403, "{path}");
    }
    for (request, verb) in [
        ("GET /web/doctor", "doctor"),
        ("POST /web/selftest", "selftest"),
    ] {
        let answer = ask(request);
        assert_eq!(answer.status, 404);
        let hint = answer.json()["error"]["hint"].to_string();
        assert!(hint.contains(&format!("divvy {verb}")), "{hint}");
    }
}
