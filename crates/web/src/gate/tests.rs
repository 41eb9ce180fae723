use hyper::header::HeaderValue;
use proptest::prelude::*;

use super::*;

const PORT: u16 = 7070;

fn names(list: &[&str]) -> Vec<WebHost> {
    list.iter().map(|name| name.parse().unwrap()).collect()
}

/// `METHOD TARGET`, and lines `name: value`.
fn check(gate: &Gate, request: &str) -> bool {
    let mut lines = request.lines();
    let (method, target) = lines.next().unwrap().split_once(' ').unwrap();
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let uri: Uri = target.parse().unwrap();
    gate.check(&method.parse().unwrap(), &uri, &headers).is_ok()
}

/// A request line and headers; whether `divvy web` on port 7070 lets it pass, and whether the daemon's listener does.
const TABLE: &[(&str, bool, bool)] = &[
    ("GET /\nhost: 127.0.0.1:7070", true, true),
    ("GET /\nhost: localhost:7070", true, true),
    ("GET /\nhost: LOCALHOST:7070", true, true),
    ("GET /\nhost: [::1]:7070", true, true),
    // Of a tunnel with another port at its other end, of a proxy, of a script without a port.
    ("GET /v1/node\nhost: localhost:9000", false, true),
    ("GET /v1/node\nhost: 127.0.0.1", false, true),
    ("GET /v1/node\nhost: 10.1.2.3:7070", false, true),
    ("GET /v1/node\nhost: [fd00::7]", false, true),
    // Configured.
    ("GET /\nhost: lab1.example", true, true),
    ("GET /\nhost: Lab1.Example:7070", true, true),
    ("GET /\nhost: exact.example:8443", true, true),
    ("GET /\nhost: exact.example:7070", false, false),
    ("GET /\nhost: exact.example", false, false),
    ("GET /\nhost: tls.example", true, true),
    ("GET /\nhost: tls.example:80", false, false),
    // Not configured.
    ("GET /", false, false),
    ("GET /\nhost: evil.example", false, false),
    ("GET /\nhost: evil.example:7070", false, false),
    ("GET /\nhost: 127.0.0.1.evil.example:7070", false, false),
    ("GET /\nhost: localhost.evil.example:7070", false, false),
    ("GET /\nhost: lab1.example.evil:7070", false, false),
    ("GET /\nhost: localhost.:7070", false, false),
    ("GET /\nhost: 0x7f000001:7070", false, false),
    ("GET /\nhost: 2130706433:7070", false, false),
    ("GET /\nhost: 127.1:7070", false, false),
    ("GET /\nhost: user@localhost:7070", false, false),
    ("GET /\nhost: localhost:7070@evil.example", false, false),
    ("GET /\nhost: localhost:+7070", false, false),
    ("GET /\nhost: localhost:", false, false),
    ("GET /\nhost: localhost:707070", false, false),
    ("GET /\nhost: localhost:7070/", false, false),
    ("GET /\nhost: [::1:7070", false, false),
    ("GET /\nhost: [localhost]:7070", false, false),
    (
        "GET /\nhost: localhost:7070\nhost: evil.example",
        false,
        false,
    ),
    (
        "GET /\nhost: localhost:7070\nhost: localhost:7070",
        false,
        false,
    ),
    (
        "GET http://localhost:7070/\nhost: localhost:7070",
        true,
        true,
    ),
    (
        "GET http://evil.example/\nhost: localhost:7070",
        false,
        false,
    ),
    (
        "GET http://localhost:7070/\nhost: evil.example",
        false,
        false,
    ),
    // Origins.
    (
        "POST /v1/jobs/7/cancel\nhost: 127.0.0.1:7070\norigin: http://127.0.0.1:7070",
        true,
        true,
    ),
    (
        "POST /v1/jobs/7/cancel\nhost: lab1.example\norigin: https://lab1.example",
        true,
        true,
    ),
    (
        "POST /v1/jobs/7/cancel\nhost: lab1.example:443\norigin: https://lab1.example",
        true,
        true,
    ),
    // A proxy with TLS that calls the listener by its address.
    (
        "POST /v1/jobs/7/cancel\nhost: 127.0.0.1:7070\norigin: https://lab1.example",
        true,
        true,
    ),
    (
        "POST /v1/jobs/7/cancel\nhost: 127.0.0.1:7070\norigin: https://exact.example:8443",
        true,
        true,
    ),
    (
        "POST /v1/jobs/7/cancel\nhost: 127.0.0.1:7070\norigin: https://exact.example",
        false,
        false,
    ),
    (
        "POST /v1/jobs/7/cancel\nhost: 127.0.0.1:7070\norigin: http://127.0.0.1:9999",
        false,
        false,
    ),
    (
        "POST /v1/jobs/7/cancel\nhost: 127.0.0.1:7070\norigin: http://localhost:7070",
        false,
        false,
    ),
    (
        "POST /v1/jobs/7/cancel\nhost: 127.0.0.1:7070\norigin: https://127.0.0.1",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\norigin: null",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\norigin: http://evil.example",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\norigin: file://",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\norigin: chrome-extension://127.0.0.1:7070",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\norigin: http://127.0.0.1:7070/",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\norigin: http://127.0.0.1:7070 http://evil.example",
        false,
        false,
    ),
    (
        "OPTIONS /v1/node\nhost: 127.0.0.1:7070\norigin: http://evil.example",
        false,
        false,
    ),
    // What a browser says of the page that sent it.
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\nsec-fetch-site: same-origin",
        true,
        true,
    ),
    (
        "GET /\nhost: 127.0.0.1:7070\nsec-fetch-site: none",
        true,
        true,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\nsec-fetch-site: same-site",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\nsec-fetch-site: cross-site",
        false,
        false,
    ),
    (
        "GET /assets/app.js\nhost: 127.0.0.1:7070\nsec-fetch-site: cross-site\nsec-fetch-dest: script",
        false,
        false,
    ),
    (
        "GET /\nhost: 127.0.0.1:7070\nsec-fetch-site: cross-site",
        false,
        false,
    ),
    // A link on another site opens the page, and nothing else.
    (
        "GET /\nhost: lab1.example\nsec-fetch-site: cross-site\nsec-fetch-mode: navigate\nsec-fetch-dest: document",
        true,
        true,
    ),
    (
        "GET /\nhost: lab1.example\nsec-fetch-site: cross-site\nsec-fetch-mode: navigate\nsec-fetch-dest: iframe",
        false,
        false,
    ),
    (
        "POST /\nhost: lab1.example\nsec-fetch-site: cross-site\nsec-fetch-mode: navigate\nsec-fetch-dest: document",
        false,
        false,
    ),
    (
        "GET /v1/jobs\nhost: lab1.example\nsec-fetch-site: cross-site\nsec-fetch-mode: navigate\nsec-fetch-dest: document",
        false,
        false,
    ),
    (
        "GET /v1/node\nhost: 127.0.0.1:7070\nsec-fetch-site: none\nsec-fetch-site: cross-site",
        false,
        false,
    ),
];

#[test]
fn each_request_passes_or_not_as_the_table_says() {
    let list = || names(&["lab1.example", "exact.example:8443", "tls.example:443"]);
    let (own, listener) = (Gate::of_port(PORT, list()), Gate::of_numbers(list()));
    for (request, of_own, of_listener) in TABLE {
        assert_eq!(check(&own, request), *of_own, "divvy web: {request}");
        assert_eq!(
            check(&listener, request),
            *of_listener,
            "listener: {request}"
        );
    }
    // The rules for names hold for a listener without any.
    for gate in [
        Gate::of_port(PORT, Vec::new()),
        Gate::of_numbers(Vec::new()),
    ] {
        assert!(!check(&gate, "GET /\nhost: lab1.example"));
        assert!(check(&gate, "GET /\nhost: localhost:7070"));
    }
    assert!(check(
        &Gate::of_port(80, Vec::new()),
        "GET /\nhost: localhost"
    ));
}

#[test]
fn a_refusal_repeats_no_more_than_a_line_of_the_request() {
    let gate = Gate::of_port(PORT, Vec::new());
    let mut headers = HeaderMap::new();
    let long = "x".repeat(5000);
    headers.insert(HOST, HeaderValue::from_str(&long).unwrap());
    let refusal = gate
        .check(&Method::GET, &Uri::from_static("/"), &headers)
        .unwrap_err();
    assert!(refusal.why.len() < 200, "{}", refusal.why);
    assert!(refusal.hint.contains("7070"));
}

#[test]
fn a_web_host_is_a_name_with_at_most_a_port() {
    for good in [
        "lab1",
        "lab1.example",
        "Lab-1.example:8443",
        "10.0.0.1",
        "[::1]:80",
    ] {
        assert!(good.parse::<WebHost>().is_ok(), "{good}");
    }
    for wrong in [
        "",
        "https://lab1",
        "lab1/",
        "a b",
        "lab1:",
        "lab1:x",
        "lab1:70000",
        "*",
        "*.example",
        "a@b",
        "ä",
    ] {
        assert_eq!(wrong.parse::<WebHost>(), Err(NotAHost), "{wrong}");
    }
}

proptest! {
    /// A name is let in by the list alone: no spelling of another one is taken for it.
    #[test]
    fn a_name_passes_only_if_it_is_configured(name in "[a-zA-Z0-9.:@/\\[\\]-]{1,24}") {
        let gate = Gate::of_numbers(names(&["lab1.example"]));
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(&name).unwrap());
        let passes = gate.check(&Method::GET, &Uri::from_static("/"), &headers).is_ok();
        let host = name.rsplit_once(':').map_or(&*name, |(host, _)| host).to_ascii_lowercase();
        let is_number = host.parse::<std::net::IpAddr>().is_ok()
            || host.trim_matches(['[', ']']).parse::<std::net::Ipv6Addr>().is_ok()
            || name.trim_matches(['[', ']']).parse::<std::net::Ipv6Addr>().is_ok();
        if passes {
            prop_assert!(is_number || host == "localhost" || host == "lab1.example", "{}", name);
        }
    }

    /// An origin passes only if it is that of the page that `Host` names, port included.
    #[test]
    fn an_origin_passes_only_if_it_is_the_host(
        scheme in "(http|https|ftp|chrome-extension)",
        host in "(localhost|LOCALHOST|127\\.0\\.0\\.1|localhost\\.|[a-c.]{1,5})",
        port in 7068_u16..7073,
    ) {
        let gate = Gate::of_port(PORT, Vec::new());
        let origin = format!("{scheme}://{host}:{port}");
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("localhost:7070"));
        headers.insert(ORIGIN, HeaderValue::from_str(&origin).unwrap());
        let is_own = scheme.starts_with("http") && host.eq_ignore_ascii_case("localhost") && port == PORT;
        let passes = gate.check(&Method::GET, &Uri::from_static("/"), &headers).is_ok();
        prop_assert_eq!(passes, is_own, "{}", origin);
    }
}
