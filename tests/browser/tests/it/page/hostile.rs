//! Texts of users: names and logs are their authors', and a page that executes one of them gives its token away.

use divvy_browser::{Browser, Witness};
use divvy_testkit::Home;
use divvy_testkit::page::Page;

use super::{go, open};

/// Names of jobs.
const NAMES: [&str; 9] = [
    "<script>hostile(1)</script>",
    "<img src=x onerror=hostile(2)>",
    "\"><svg onload=hostile(3)>",
    "javascript:hostile(4)",
    "'-hostile(5)-'`${hostile(5)}`",
    "{{constructor.constructor('hostile(6)')()}}",
    "a\u{202e}gpj.exe\u{202c}\u{200b}\u{2066}",
    "👩‍🔬👾𝕏 e\u{301} ﷽ 訓練",
    "&lt;b&gt;&amp;quot;</textarea></title><!--",
];

/// What the log adds to them.
const LOG: &str = "\u{1b}[31mred\u{1b}[0m \u{1b}]8;;javascript:hostile(7)\u{7}link\u{1b}]8;;\u{7} \u{1b}[2J\u{1b}]0;title\u{7} \
                   <a href='javascript:hostile(8)'>x</a> http://example.com/<script>hostile(9)</script> \u{0}\u{8}\u{7f}";

#[test]
fn no_name_and_no_log_executes_anything() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let home = Home::new("a100-80gb:2");
    let _daemon = home.daemon(&[]);
    let file = home.scratch().join("said");
    let all = format!("{}\n{LOG}\nthe-end\n", NAMES.join("\n"));
    std::fs::write(&file, all).expect("the folder is ours");
    let said = file.to_str().expect("a readable name");
    let script = format!("cat {said}; exec sleep 1000 # <script>hostile(10)</script>");
    let mut jobs = Vec::new();
    for name in NAMES {
        let command = ["sh", "-c", &script];
        jobs.push(home.submit(
            &["-g", "0.25", "--name", name, "--project", "default"],
            &command,
        ));
    }
    home.running(&jobs[0]);
    let web = Page::open(&home, &["--allow-actions"]);
    open(&browser, &web);
    // Nine jobs on eight quarters: one waits.
    browser.until(
        "the overview has the jobs",
        "return document.querySelectorAll('[data-job]').length >= 8",
        &[],
    );
    is_text_only(&browser, "#/overview");
    let listed = home.divvy(&["ps"]).ok().stdout;
    for (job, name) in jobs.iter().zip(NAMES) {
        go(&browser, &format!("#/job/{job}"));
        is_text_only(&browser, name);
        // A user reads the name as in `divvy ps`: with what would reorder or hide text escaped.
        let (shown, escaped) = (browser.text("main"), escaped(name));
        assert!(listed.contains(&escaped), "{escaped} is not in {listed}");
        assert!(shown.contains(&escaped), "{escaped} is not in {shown}");
        assert!(
            !shown.contains(['\u{202e}', '\u{2066}', '\u{200b}', '\u{1b}']),
            "{name:?}: {shown:?}"
        );
        let title = browser.js("return document.title", &[]);
        assert!(!title.to_string().contains('\u{202e}'), "{title}");
    }
    let end = "return document.querySelector('div.log')?.innerText.includes('the-end')";
    go(&browser, &format!("#/job/{}", jobs[0]));
    browser.until("the end of the log", end, &[]);
    is_text_only(&browser, "the log");
    for route in ["#/queue", "#/jobs", "#/people", "#/mig", "#/doctor"] {
        go(&browser, route);
        is_text_only(&browser, route);
    }
    // Routes and filters are texts of others too: a link can have any.
    for route in [
        "#/job/<img src=x onerror=hostile(11)>",
        "#/\"><script>hostile(12)</script>",
        "#/job/..%2f..%2fnode",
        "#/__proto__",
    ] {
        browser.js("location.hash = arguments[0]", &[route.into()]);
        browser.appears("main");
        is_text_only(&browser, route);
    }
}

/// The characters of the names above that a terminal must not get.
fn escaped(name: &str) -> String {
    ["202e", "202c", "200b", "2066", "200d"]
        .iter()
        .fold(name.to_owned(), |name, code| {
            let hidden = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
            name.replace(hidden.expect("a character"), &format!("\\u{{{code}}}"))
        })
}

/// Nothing was executed, no rule of the policy was needed for that, and no text became an element.
#[track_caller]
fn is_text_only(browser: &Browser, what: &str) {
    Witness::is_clean(browser, what);
    let elements = "return [...document.querySelectorAll('main script, main img, main iframe, main object, [onerror], [onload], [onclick]')]\
                    .concat([...document.querySelectorAll('a[href]')].filter(a => !/^(http:\\/\\/127\\.0\\.0\\.1|blob:)/.test(a.href)))\
                    .map(one => one.outerHTML.slice(0, 100))";
    let elements = browser.js(elements, &[]);
    assert_eq!(
        elements.as_array().map(Vec::len),
        Some(0),
        "{what}: {elements}"
    );
}

#[test]
fn the_policy_stops_what_a_mistake_of_the_page_would_let_through() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let home = Home::new("a100-80gb:1");
    let _daemon = home.daemon(&[]);
    let web = Page::open(&home, &[]);
    open(&browser, &web);
    Witness::is_clean(&browser, "before");
    let mistake = "const one = document.createElement('div'); \
        one.innerHTML = '<img src=x onerror=hostile(1)><a href=\"javascript:hostile(2)\">x</a><iframe srcdoc=\"<script>parent.hostile(3)</script>\"></iframe>\
        <form action=http://127.0.0.1:9/><button>x</button></form>'; \
        document.body.append(one); one.querySelector('a').click(); one.querySelector('button').click(); \
        const script = document.createElement('script'); script.textContent = 'hostile(4)'; document.body.append(script); \
        const foreign = document.createElement('script'); foreign.src = 'http://127.0.0.1:9/x.js'; document.body.append(foreign); \
        setTimeout('hostile(5)', 0); \
        setTimeout(() => { try { new Function('hostile(6)')(); } catch { witness.refused = true; } }, 0); \
        return fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused');";
    assert_eq!(browser.js_async(mistake, &[]), "refused");
    browser.until(
        "the browser reports the rules",
        "return witness.violations.length >= 5",
        &[],
    );
    let Witness {
        executed,
        violations,
        ..
    } = Witness::of(&browser);
    assert_eq!(executed, Vec::<String>::new());
    for rule in ["script-src", "connect-src", "form-action"] {
        assert!(
            violations.iter().any(|one| one.starts_with(rule)),
            "{rule}: {violations:?}"
        );
    }
}
