//! What pods print: what the test says that they printed, to the end or to who follows.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use futures_util::stream;

use super::Shared;
use super::kinds::Target;
use super::store::Fail;

pub fn answer(
    shared: &Arc<Shared>,
    at: &Target,
    query: &BTreeMap<String, String>,
) -> Result<Response, Fail> {
    let follows = query.get("follow").is_some_and(|value| value == "true");
    shared.state.lock().unwrap().store.get(at)?;
    let reader = Reader {
        shared: Arc::clone(shared),
        at: at.clone(),
        read: 0,
        follows,
    };
    let stream = stream::unfold(reader, |mut reader| async move {
        let text = reader.next().await?;
        Some((Ok::<_, std::convert::Infallible>(text), reader))
    });
    Ok(Response::new(Body::from_stream(stream)))
}

struct Reader {
    shared: Arc<Shared>,
    at: Target,
    read: usize,
    follows: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<String> {
        let mut wake = self.shared.wake.subscribe();
        loop {
            wake.mark_unchanged();
            let (text, ended) = self.look();
            if !text.is_empty() {
                self.read += text.len();
                return Some(text);
            }
            if ended || !self.follows || wake.changed().await.is_err() {
                return None;
            }
        }
    }

    /// What is new, and whether the pod is at its end.
    fn look(&self) -> (String, bool) {
        let state = self.shared.state.lock().unwrap();
        let name = self.at.name.clone().unwrap_or_default();
        let log = state.logs.get(&(self.at.namespace.clone(), name));
        let text = log.and_then(|log| log.get(self.read..)).unwrap_or_default();
        let phase = match state.store.get(&self.at) {
            Ok(pod) => pod["status"]["phase"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            Err(_) => "gone".to_owned(),
        };
        let ended = matches!(phase.as_str(), "gone" | "Succeeded" | "Failed");
        (text.to_owned(), ended)
    }
}
