//! A browser that a test drives line by line. Each call has a bound, and each wait a name.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use divvy_testkit::{let_pass, until};
use serde_json::{Value, json};

use crate::chromium::Driver;
use crate::webdriver::{Key, Session};
use crate::witness;

/// Between two looks at the page: a look takes the browser some milliseconds of a processor.
const PAUSE: Duration = Duration::from_millis(20);

/// How the page is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Light,
    Dark,
    /// Dark or light does not matter; 360 pixels wide, with a touch screen.
    Phone,
    /// The few colours of the system's contrast theme in the place of the page's own.
    Forced,
}

impl Look {
    pub const ALL: [Self; 4] = [Self::Light, Self::Dark, Self::Phone, Self::Forced];

    /// Its name in names of files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
            Self::Phone => "phone",
            Self::Forced => "forced",
        }
    }

    /// Width and height in pixels.
    #[must_use]
    pub fn size(self) -> (u32, u32) {
        match self {
            Self::Light | Self::Dark | Self::Forced => (1280, 1000),
            Self::Phone => (360, 740),
        }
    }
}

/// A headless Chromium with one window. Everything of it ends when it is dropped.
#[derive(Debug)]
pub struct Browser {
    session: Session,
    /// Dropped after the session has ended.
    _driver: Driver,
}

impl Browser {
    /// A browser with an empty profile; `None`, and a line with the reason, without Chromium.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    /// The same with more flags of Chromium.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    pub fn start_with(flags: &[&str]) -> Option<Self> {
        let driver = Driver::start()?;
        let session = Session::start(driver.port, &driver.capabilities(flags));
        let browser = Self {
            session: session.unwrap_or_else(|error| panic!("chromium starts: {error}")),
            _driver: driver,
        };
        browser.cdp("Network.enable", json!({}));
        let witness = json!({"source": witness::SCRIPT});
        browser.cdp("Page.addScriptToEvaluateOnNewDocument", witness);
        browser.look(Look::Light);
        Some(browser)
    }

    #[track_caller]
    fn post(&self, what: &str, command: &str, body: Value) -> Value {
        let answer = self.session.post(command, &body);
        answer.unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// Loads a document.
    ///
    /// # Panics
    /// When it does not load.
    #[track_caller]
    pub fn goto(&self, url: &str) {
        self.post(&format!("{url} loads"), "url", json!({"url": url}));
    }

    /// A command of the DevTools protocol.
    ///
    /// # Panics
    /// When the browser refuses it.
    #[track_caller]
    pub fn cdp(&self, method: &str, parameters: Value) -> Value {
        self.post(
            method,
            "goog/cdp/execute",
            json!({"cmd": method, "params": parameters}),
        )
    }

    /// The value of the body of a function in the page; its arguments are in `arguments`.
    ///
    /// # Panics
    /// When it throws.
    #[track_caller]
    pub fn js(&self, script: &str, arguments: &[Value]) -> Value {
        let body = json!({"script": script, "args": arguments});
        self.post(script, "execute/sync", body)
    }

    /// The value that an asynchronous function of this body returns.
    ///
    /// # Panics
    /// When it throws, or does not return.
    #[track_caller]
    pub fn js_async(&self, script: &str, arguments: &[Value]) -> Value {
        let whole = format!(
            "const done = arguments[arguments.length - 1]; \
             (async function () {{ {script} }}).apply(null, arguments) \
             .then(value => done({{value}}), error => done({{error: String(error)}}))"
        );
        let body = json!({"script": whole, "args": arguments});
        let answer = self.post(script, "execute/async", body);
        assert!(answer["error"].is_null(), "{script}: {}", answer["error"]);
        answer["value"].clone()
    }

    /// Polls a script until it returns something else than `null`, `undefined`, `false`, 0 or an empty text.
    ///
    /// # Panics
    /// When it does not; the message has the text of the page.
    #[track_caller]
    pub fn until(&self, what: &str, script: &str, arguments: &[Value]) -> Value {
        let whole = format!("return (function () {{ {script} }}).apply(null, arguments) || null");
        let mut looks = 0_u32;
        until(format!("{what} ({script})"), || {
            let value = self.js(&whole, arguments);
            looks += 1;
            if value.is_null() {
                let_pass(PAUSE);
                // The wait gives up soon: what the page shows instead is the cause.
                if looks.is_multiple_of(1000) {
                    eprintln!(
                        "still waiting: {what}; the page shows:\n{}",
                        self.text("body")
                    );
                }
            }
            (!value.is_null()).then_some(value)
        })
    }

    /// Waits for an element, by a selector.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn appears(&self, selector: &str) {
        let script = "return document.querySelector(arguments[0]) !== null";
        self.until(&format!("{selector} appears"), script, &[selector.into()]);
    }

    /// Waits for the end of an element, by a selector.
    ///
    /// # Panics
    /// When it stays.
    #[track_caller]
    pub fn vanishes(&self, selector: &str) {
        let script = "return document.querySelector(arguments[0]) === null";
        self.until(&format!("{selector} vanishes"), script, &[selector.into()]);
    }

    /// Waits until the page has this text.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        let script = "return document.body.innerText.includes(arguments[0])";
        self.until(&format!("the page shows {text:?}"), script, &[text.into()]);
    }

    /// The visible text of an element; empty without one.
    #[track_caller]
    pub fn text(&self, selector: &str) -> String {
        let script = "return document.querySelector(arguments[0])?.innerText ?? ''";
        let text = self.js(script, &[selector.into()]);
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Number of elements.
    #[track_caller]
    pub fn count(&self, selector: &str) -> u64 {
        let script = "return document.querySelectorAll(arguments[0]).length";
        self.js(script, &[selector.into()]).as_u64().unwrap_or(0)
    }

    #[track_caller]
    fn act(&self, selector: &str, act: &str, body: Value) {
        let element = self.session.element(selector);
        let element = element.unwrap_or_else(|error| panic!("{selector}: {error}"));
        let command = format!("element/{element}/{act}");
        self.post(&format!("{selector}: {act}"), &command, body);
    }

    /// Clicks an element as a mouse does: not one that is hidden, covered or disabled.
    ///
    /// # Panics
    /// When it cannot be clicked.
    #[track_caller]
    pub fn click(&self, selector: &str) {
        self.appears(selector);
        self.act(selector, "click", json!({}));
    }

    /// Types into an element.
    #[track_caller]
    pub fn type_into(&self, selector: &str, text: &str) {
        self.act(selector, "value", json!({"text": text}));
    }

    /// Presses a key, whatever has the focus.
    ///
    /// # Panics
    /// When the browser takes no keys.
    #[track_caller]
    pub fn press(&self, key: Key) {
        let value = key.code();
        let strokes =
            json!([{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]);
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": strokes});
        self.post(
            "a key is pressed",
            "actions",
            json!({"actions": [keyboard]}),
        );
    }

    /// Shows the page in another look.
    #[track_caller]
    pub fn look(&self, look: Look) {
        let scheme = match look {
            Look::Light | Look::Phone => "light",
            Look::Dark | Look::Forced => "dark",
        };
        let forced = if look == Look::Forced {
            "active"
        } else {
            "none"
        };
        let features = json!([
            {"name": "forced-colors", "value": forced},
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]);
        self.cdp("Emulation.setEmulatedMedia", json!({"features": features}));
        let (width, height) = look.size();
        let is_phone = look == Look::Phone;
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone});
        self.cdp("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// A picture of the window, as WebP: a third of a PNG's bytes.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    #[track_caller]
    pub fn picture(&self) -> Vec<u8> {
        let form = json!({"format": "webp", "quality": 80});
        let picture = self.cdp("Page.captureScreenshot", form);
        let text = picture["data"].as_str().unwrap_or_default();
        BASE64_STANDARD.decode(text).expect("the picture is base64")
    }

    /// Takes the lines of a log of the browser: `browser` or `performance`.
    #[must_use]
    #[track_caller]
    pub fn log(&self, log: &str) -> Vec<String> {
        let lines = self.post("a log", "se/log", json!({"type": log}));
        let lines = lines.as_array().into_iter().flatten();
        let text = |line: &Value| line["message"].as_str().unwrap_or_default().to_owned();
        lines.map(text).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver kills the browser anyway: this asks first.
        let _ = self.session.quit();
    }
}
