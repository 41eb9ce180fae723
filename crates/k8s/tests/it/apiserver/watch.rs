//! Watches: what changes in a collection, a line of JSON for each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::kinds::Target;
use super::selector::Selector;
use super::store::{Change, api_version};

/// From which version on, and how.
pub struct Wish {
    /// `None` for what is there, and then on.
    pub from: Option<u64>,
    /// Ends what is there with a bookmark that says so.
    pub marks_the_beginning: bool,
    pub seconds: Option<u64>,
}

struct Watch {
    shared: Arc<Shared>,
    at: Target,
    selector: Selector,
    version: u64,
    lines: VecDeque<String>,
    wake: Receiver<u64>,
    /// Watches that began in an earlier one have been cut.
    epoch: u64,
    ends: Instant,
    over: bool,
}

/// The lines of a watch, for as long as somebody reads them.
pub fn body(shared: &Arc<Shared>, at: Target, selector: Selector, wish: &Wish) -> Body {
    let state = shared.state.lock().unwrap();
    let mut lines = VecDeque::new();
    let version = match wish.from {
        // One that is too old is told in the stream, as the real server does.
        Some(version) => version,
        None => {
            let there = state.store.list(&at, &selector);
            lines.extend(there.iter().map(|object| line("ADDED", object)));
            if wish.marks_the_beginning {
                lines.push_back(line(
                    "BOOKMARK",
                    &json!({
                        "apiVersion": api_version(&at.kind), "kind": at.kind.kind,
                        "metadata": {
                            "resourceVersion": state.store.version.to_string(),
                            "annotations": { "k8s.io/initial-events-end": "true" },
                        },
                    }),
                ));
            }
            state.store.version
        }
    };
    let epoch = state.epoch;
    drop(state);
    let seconds = wish.seconds.unwrap_or(3600);
    let watch = Watch {
        shared: Arc::clone(shared),
        at,
        selector,
        version,
        lines,
        wake: shared.wake.subscribe(),
        epoch,
        ends: Instant::now() + Duration::from_secs(seconds),
        over: false,
    };
    let stream = stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok::<_, std::convert::Infallible>(line), watch))
    });
    Body::from_stream(stream)
}

impl Watch {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.over {
                return None;
            }
            self.wake.mark_unchanged();
            self.look();
            if self.lines.is_empty() && !self.over {
                match timeout_at(self.ends, self.wake.changed()).await {
                    Ok(Ok(())) => {}
                    _ => self.over = true,
                }
            }
        }
    }

    /// Takes in what has changed.
    fn look(&mut self) {
        let state = self.shared.state.lock().unwrap();
        if state.epoch != self.epoch {
            self.over = true;
            return;
        }
        match state.store.since(&self.at, self.version) {
            Ok(changes) => {
                let events = changes
                    .iter()
                    .filter_map(|change| event(change, &self.selector));
                self.lines.extend(events);
                self.version = state.store.version;
            }
            Err(fail) => {
                self.lines
                    .push_back(line("ERROR", &super::http::status(&fail)));
                self.over = true;
            }
        }
    }
}

/// What a change is to who sees only what a selector takes.
fn event(change: &Change, selector: &Selector) -> Option<String> {
    let seen =
        |object: &Option<Value>| object.as_ref().is_some_and(|object| selector.takes(object));
    let (before, after) = (&change.before, &change.after);
    match (seen(before), seen(after)) {
        (false, true) => Some(line("ADDED", after.as_ref()?)),
        (true, true) => Some(line("MODIFIED", after.as_ref()?)),
        (true, false) => {
            let mut last = after.as_ref().or(before.as_ref())?.clone();
            last["metadata"]["resourceVersion"] = json!(change.version.to_string());
            Some(line("DELETED", &last))
        }
        (false, false) => None,
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}
