//! A ClearML server and its user, for tests of the front end: the stand-in of `tests/clearml-stub`, or a real one.
//!
//! ```text
//! Server   where tasks are made and looked at; a stand-in can be looked into and made to fail as well
//! Scene    a server and a private instance of Divvy beside it
//! Task     one that a scene has made, and what is known of it
//! ```
//!
//! A real server is named by `DIVVY_TEST_CLEARML_API_HOST`, `DIVVY_TEST_CLEARML_ACCESS_KEY` and
//! `DIVVY_TEST_CLEARML_SECRET_KEY`. What tests make there has a name of its own and is deleted by them.

pub mod image;
mod scene;

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use divvy_clearml_stub::{ACCESS_KEY, SECRET_KEY, Stub};
use serde_json::{Value, json};

use crate::{Dialog, client_script, python};

pub use scene::{Agent, Scene, Task};

/// Variables that name a real server: its URL, the access key and the secret key.
const REAL: [&str; 3] = [
    "DIVVY_TEST_CLEARML_API_HOST",
    "DIVVY_TEST_CLEARML_ACCESS_KEY",
    "DIVVY_TEST_CLEARML_SECRET_KEY",
];

/// A ClearML server, as its user meets it.
#[derive(Debug)]
pub struct Server {
    url: String,
    access_key: String,
    secret_key: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Stub(Box<Stub>),
    Real(Mutex<Dialog>),
}

impl Server {
    /// A stand-in of this test's own.
    #[must_use]
    pub fn stub() -> Self {
        let stub = Stub::start();
        Self {
            url: stub.url(),
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            kind: Kind::Stub(Box::new(stub)),
        }
    }

    /// The real one that the environment names. `None`, said loudly, where it names none.
    ///
    /// # Panics
    /// When it names one that does not answer.
    #[must_use]
    pub fn real() -> Option<Self> {
        let named = REAL.map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        let [Some(url), Some(access_key), Some(secret_key)] = named else {
            eprintln!(
                "SKIPPED, NOT TESTED: a real ClearML server. {} name one.",
                REAL.join(", ")
            );
            return None;
        };
        let mut user = Command::new(python());
        user.arg(client_script("clearml_user.py"))
            .args([&url, &access_key, &secret_key]);
        let kind = Kind::Real(Mutex::new(Dialog::start(&mut user)));
        Some(Self {
            url,
            access_key,
            secret_key,
            kind,
        })
    }

    /// The stand-in, to be looked into.
    #[must_use]
    pub fn as_stub(&self) -> Option<&Stub> {
        match &self.kind {
            Kind::Stub(stub) => Some(stub),
            Kind::Real(_) => None,
        }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A `clearml.conf` with these keys; `more` is HOCON that follows.
    #[must_use]
    pub fn conf(&self, more: &str) -> String {
        let Self {
            url,
            access_key,
            secret_key,
            ..
        } = self;
        format!(
            "api {{\n  api_server: {url}\n  web_server: {url}\n  files_server: {url}\n  \
             credentials {{ access_key: \"{access_key}\", secret_key: \"{secret_key}\" }}\n}}\n{more}"
        )
    }

    /// What the user's call is answered.
    ///
    /// # Errors
    /// The server's words, when it refuses.
    pub fn call(&self, endpoint: &str, body: &Value) -> Result<Value, String> {
        match &self.kind {
            Kind::Stub(stub) => stub
                .call(endpoint, body.clone())
                .map_err(|refusal| refusal.to_string()),
            Kind::Real(user) => {
                let wish = json!({ "endpoint": endpoint, "body": body });
                let mut user = user.lock().unwrap_or_else(PoisonError::into_inner);
                let mut answer = user.ask(&wish.to_string());
                match answer["refused"].as_str() {
                    Some(why) => Err(why.to_owned()),
                    None => Ok(answer["data"].take()),
                }
            }
        }
    }

    /// The same where a refusal is a mistake in the test.
    ///
    /// # Panics
    /// When it is refused.
    #[track_caller]
    pub fn must(&self, endpoint: &str, body: Value) -> Value {
        self.call(endpoint, &body)
            .unwrap_or_else(|refused| panic!("{endpoint} {body}: {refused}"))
    }
}
