//! What the browser received, from its performance log.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Browser;

/// Bytes and statuses of the answers since the last call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes as they came over the connection, heads included.
    pub bytes: u64,
    /// Address, status and bytes of each answer, in the order of the requests.
    pub answers: Vec<Answer>,
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub url: String,
    /// 0 where the browser got none.
    pub status: u64,
    pub bytes: u64,
}

impl Traffic {
    /// Takes what was received since the last call.
    #[must_use]
    #[track_caller]
    pub fn take(browser: &Browser) -> Self {
        let events = browser.log("performance");
        Self::from_events(events.iter().filter_map(|line| {
            let whole: Value = serde_json::from_str(line).ok()?;
            whole.get("message").cloned()
        }))
    }

    fn from_events(events: impl Iterator<Item = Value>) -> Self {
        let mut order = Vec::new();
        let mut by_request: BTreeMap<String, Answer> = BTreeMap::new();
        for event in events {
            let (method, about) = (&event["method"], &event["params"]);
            let id = about["requestId"].as_str().unwrap_or_default().to_owned();
            let figure = |name: &str| about[name].as_u64().unwrap_or(0);
            let answer = by_request.entry(id.clone()).or_insert_with(|| {
                order.push(id);
                Answer::default()
            });
            match method.as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => {
                    answer.url = text(&about["request"]["url"]);
                }
                "Network.responseReceived" => {
                    let response = &about["response"];
                    answer.url = text(&response["url"]);
                    answer.status = response["status"].as_u64().unwrap_or(0);
                    answer.bytes += response["encodedDataLength"].as_u64().unwrap_or(0);
                }
                // Of a stream that goes on the browser counts what the page got: streams are not compressed.
                "Network.dataReceived" => {
                    answer.bytes += match figure("encodedDataLength") {
                        0 => figure("dataLength"),
                        encoded => encoded,
                    };
                }
                // The sum of the whole answer, head included.
                "Network.loadingFinished" => {
                    answer.bytes = match figure("encodedDataLength") {
                        0 => answer.bytes,
                        whole => whole,
                    };
                }
                _ => {}
            }
        }
        let answers = order.iter().filter_map(|id| by_request.remove(id));
        let answers: Vec<Answer> = answers
            .filter(|answer| !answer.url.is_empty() || answer.bytes > 0)
            .collect();
        let bytes = answers.iter().map(|answer| answer.bytes).sum();
        Self { bytes, answers }
    }

    /// The statuses of the answers from addresses that begin so.
    #[must_use]
    pub fn statuses(&self, beginning: &str) -> Vec<u64> {
        let of_it = self
            .answers
            .iter()
            .filter(|answer| answer.url.starts_with(beginning));
        of_it.map(|answer| answer.status).collect()
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stream_counts_as_it_comes_and_a_whole_answer_once() {
        let event = |method: &str, params: Value| json!({"method": method, "params": params});
        let events = [
            event(
                "Network.requestWillBeSent",
                json!({"requestId": "1", "request": {"url": "http://a/x"}}),
            ),
            event(
                "Network.responseReceived",
                json!({"requestId": "1", "response": {"url": "http://a/x", "status": 200, "encodedDataLength": 100}}),
            ),
            event(
                "Network.dataReceived",
                json!({"requestId": "1", "encodedDataLength": 50, "dataLength": 80}),
            ),
            event(
                "Network.dataReceived",
                json!({"requestId": "1", "encodedDataLength": 0, "dataLength": 70}),
            ),
            event(
                "Network.responseReceived",
                json!({"requestId": "2", "response": {"url": "http://a/y", "status": 304, "encodedDataLength": 90}}),
            ),
            event(
                "Network.loadingFinished",
                json!({"requestId": "2", "encodedDataLength": 90}),
            ),
            // A stream that began before.
            event(
                "Network.dataReceived",
                json!({"requestId": "0", "encodedDataLength": 5}),
            ),
            event("Page.loadEventFired", json!({})),
        ];
        let traffic = Traffic::from_events(events.into_iter());
        assert_eq!(traffic.bytes, 220 + 90 + 5);
        assert_eq!(traffic.statuses("http://a/"), [200, 304]);
    }
}
