//! What other sites, other names and other users of this machine reach of the page: as a browser sees it.

use divvy_browser::foreign::Foreign;
use divvy_browser::{Browser, Traffic, Witness};
use divvy_testkit::page::Page;
use divvy_testkit::{Bounded as _, two_run_and_one_waits};
use serde_json::{Value, json};

use super::{ANA, LEE, is_ready, open, system};

/// What a page of another site tries, by name; it knows the port, and here even the token.
const TRIES: &str = "
const [target, token, job] = arguments;
const results = {};
const call = async (name, path, options) => {
    try {
        const answer = await fetch(target + path, options);
        results[name] = `${answer.type} ${answer.status}`;
    } catch (error) {
        results[name] = 'refused';
    }
};
const authorization = {Authorization: `Bearer ${token}`};
await call('read', '/v1/board', {});
await call('read without cors', '/v1/board', {mode: 'no-cors'});
await call('read with the token', '/v1/board', {headers: authorization});
await call('read with cookies', '/v1/board', {credentials: 'include'});
await call('session with the token', '/web/session', {headers: authorization});
await call('cancel', `/v1/jobs/${job}/cancel`, {method: 'POST', mode: 'no-cors', body: '{}'});
await call('cancel with the token', `/v1/jobs/${job}/cancel`, {method: 'POST', headers: authorization, body: '{}'});
await call('submit as a form', '/v1/jobs', {method: 'POST', mode: 'no-cors', body: new URLSearchParams({command: 'id'})});
await call('the document', '/', {});
const element = (name, tag, attributes) => new Promise(done => {
    const one = document.createElement(tag);
    one.onload = () => { results[name] = 'loaded'; done(); };
    one.onerror = () => { results[name] = 'refused'; done(); };
    Object.assign(one, attributes);
    document.body.append(one);
});
await element('as a script', 'script', {src: `${target}/v1/board`});
await element('as a picture', 'img', {src: `${target}/v1/board`});
await new Promise(done => {
    const stream = new EventSource(`${target}/v1/board?follow`);
    stream.onopen = () => { results['as events'] = 'loaded'; stream.close(); done(); };
    stream.onerror = () => { results['as events'] ??= 'refused'; stream.close(); done(); };
});
return results;
";

#[test]
fn a_page_of_another_port_reads_nothing_and_does_nothing() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, _daemon, jobs) = two_run_and_one_waits();
    let web = Page::open(&home, &["--allow-actions"]);
    open(&browser, &web);
    let site = Foreign::serve("<!doctype html><title>another site</title><p>hello");
    browser.goto(&site.origin());
    let _ = Traffic::take(&browser);
    let words = [
        web.origin().into(),
        web.token.clone().into(),
        jobs[0].clone().into(),
    ];
    let results = browser.js_async(TRIES, &words);
    let results = results.as_object().cloned().unwrap_or_default();
    assert_eq!(results.len(), 12, "{results:?}");
    for (name, result) in &results {
        eprintln!("{name}: {}", result.as_str().unwrap_or_default());
        // An opaque answer has neither a status nor a body for the page.
        let is_refused = result == "refused" || result == "opaque 0";
        assert!(is_refused, "{name}: {result}");
    }
    // What the gate answered, whether the page may see it or not.
    let traffic = Traffic::take(&browser);
    let answered = traffic.statuses(&format!("{}/v1/", web.origin()));
    assert!(!answered.is_empty(), "no try reached the gate: {traffic:?}");
    assert!(
        !answered.iter().any(|status| (200..400).contains(status)),
        "{traffic:?}"
    );
    home.running(&jobs[0]);
    assert_eq!(home.items(&["ps", "-a"]).len(), 3, "a job was submitted");
    // Inside a frame the page does not show.
    let framed = "const frame = document.createElement('iframe'); frame.src = arguments[0]; \
        await new Promise(done => { frame.onload = done; document.body.append(frame); }); \
        return frame.contentDocument === null ? 'another document' : 'empty'";
    browser.js_async(framed, &[web.url.clone().into()]);
    let console = browser.log("browser").join("\n");
    let is_blocked = console.contains("frame-ancestors") || console.contains("X-Frame-Options");
    assert!(
        is_blocked,
        "the browser shows the page in a frame: {console}"
    );
    // Nothing of the page reached the other site.
    for head in site.heads() {
        let lower = head.to_lowercase();
        assert!(
            !head.contains(&web.token) && !lower.contains("cookie:"),
            "{head}"
        );
        assert!(!lower.contains("authorization:"), "{head}");
    }
}

#[test]
fn the_token_stays_in_the_tab_and_in_no_address() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, _daemon, _) = two_run_and_one_waits();
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    let places = "return {address: location.href, referrer: document.referrer, cookie: document.cookie, \
        local: JSON.stringify(localStorage), session: JSON.stringify(sessionStorage), \
        html: document.documentElement.outerHTML, \
        requests: performance.getEntriesByType('resource').map(one => one.name).join(' ')}";
    let places = browser.js(places, &[]);
    for (name, text) in places.as_object().cloned().unwrap_or_default() {
        let has_token = text.as_str().unwrap_or_default().contains(&web.token);
        assert_eq!(has_token, name == "session", "{name}: {text}");
    }
    assert_eq!(places["cookie"], "");
    // Back does not bring it back into the address.
    super::go(&browser, "#/queue");
    browser.js("history.back()", &[]);
    is_ready(&browser, "overview");
    let address = browser.js("return location.href", &[]);
    assert!(!address.to_string().contains(&web.token), "{address}");
    // The tab keeps it over a reload.
    browser.js("location.reload()", &[]);
    is_ready(&browser, "overview");
    Witness::is_clean(&browser, "after a reload");
}

#[test]
fn without_a_token_the_page_asks_for_one_and_takes_no_other() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (home, _daemon, _) = two_run_and_one_waits();
    let web = Page::open(&home, &[]);
    for address in [
        web.origin(),
        format!("{}/#{}", web.origin(), "0".repeat(web.token.len())),
    ] {
        browser.goto("about:blank");
        browser.goto(&address);
        browser.appears("input");
        // The command that prints one.
        browser.shows("divvy web");
        assert_eq!(browser.count("[data-gpu], [data-job]"), 0, "{address}");
        browser.js("sessionStorage.clear()", &[]);
    }
    browser.type_into("input", &web.token);
    browser.press(divvy_browser::Key::Enter);
    is_ready(&browser, "overview");
    browser.appears("[data-gpu=\"1\"]");
}

#[test]
fn a_name_of_another_site_that_leads_here_gets_no_page() {
    let Some(browser) = Browser::start_with(&["--host-resolver-rules=MAP evil.example 127.0.0.1"])
    else {
        return;
    };
    let (home, _daemon, _) = two_run_and_one_waits();
    let web = Page::open(&home, &[]);
    for path in [
        format!("/#{}", web.token),
        "/v1/board".to_owned(),
        "/assets/main.js".to_owned(),
    ] {
        let _ = Traffic::take(&browser);
        let address = format!("http://evil.example:{}{path}", web.port());
        browser.goto(&address);
        let statuses =
            Traffic::take(&browser).statuses(&format!("http://evil.example:{}/", web.port()));
        let is_refused = |status: &u64| [400, 403, 421].contains(status);
        assert!(
            statuses.first().is_some_and(is_refused),
            "{address}: {statuses:?}"
        );
        assert_eq!(
            browser.count("main, script"),
            0,
            "{address}: {}",
            browser.text("body")
        );
    }
    // The name that is its own.
    browser.goto(&format!("http://localhost:{}/#{}", web.port(), web.token));
    is_ready(&browser, "overview");
}

#[test]
fn the_port_of_another_user_gives_nothing_without_that_users_token() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let Some((home, _daemon)) = system(&format!("user = [{ANA}, {LEE}]\n")) else {
        return;
    };
    let submitted = home
        .divvy_as(ANA)
        .args([
            "submit", "-g", "0.5", "--name", "of-ana", "--", "sleep", "1000",
        ])
        .output_bounded();
    assert!(submitted.expect("setpriv starts").status.success());
    let of_ana = Page::open_as(&home, ANA, &["--allow-actions"]);
    let of_lee = Page::open_as(&home, LEE, &["--allow-actions"]);
    assert_ne!(of_ana.token, of_lee.token);
    // Lee opens Ana's port with the token of Lee's own page.
    browser.goto(&format!("{}/#{}", of_ana.origin(), of_lee.token));
    browser.appears("input");
    assert_eq!(browser.count("[data-gpu], [data-job]"), 0);
    let status = "const answer = await fetch(arguments[0], {method: arguments[1], headers: {Authorization: `Bearer ${arguments[2]}`}}); return answer.status";
    for (path, method) in [
        ("/v1/board", "GET"),
        ("/web/session", "GET"),
        ("/v1/jobs/1/cancel", "POST"),
    ] {
        let words: [Value; 3] = [json!(path), json!(method), json!(of_lee.token)];
        let answered = browser.js_async(status, &words);
        assert!(
            [401, 403].contains(&answered.as_u64().unwrap_or(0)),
            "{method} {path}: {answered}"
        );
    }
    // Lee's own port shows Ana's job, as `ps` does, and lets Lee do nothing to it.
    open(&browser, &of_lee);
    browser.shows("of-ana");
    let words: [Value; 3] = [
        json!("/v1/jobs/1/cancel"),
        json!("POST"),
        json!(of_lee.token),
    ];
    assert_eq!(browser.js_async(status, &words), 403);
    home.running("1");
}
