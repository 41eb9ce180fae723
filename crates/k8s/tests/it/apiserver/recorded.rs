//! Answers of a real API server, and the same calls of this one: claim templates, their defaults, and how calls collide.

use axum::http::Request;
use serde_json::Value;

use super::ApiServer;

/// What a call came to, as a client sees it: without what differs from one run to the next.
fn normalized(mut answer: Value) -> Value {
    if let Some(metadata) = answer["metadata"].as_object_mut() {
        metadata.retain(|field, _| {
            !["uid", "resourceVersion", "creationTimestamp"].contains(&field.as_str())
        });
    }
    // The real one prints Go's structs between the two.
    let text = answer["message"].as_str();
    let text = text.and_then(|text| {
        Some((
            text.split_once("Invalid value: ")?.0,
            text.rsplit_once(": ")?.1,
        ))
    });
    if let Some((before, after)) = text {
        answer["message"] = format!("{before}: {after}").into();
    }
    answer
}

async fn call(client: &kube::Client, recorded: &Value, known: &[(&str, String)]) -> (u16, Value) {
    let text = |field: &str| recorded[field].as_str().unwrap_or_default().to_owned();
    let mut body = if recorded["body"].is_null() {
        String::new()
    } else {
        recorded["body"].to_string()
    };
    for (name, value) in known {
        body = body.replace(name, value);
    }
    let request = Request::builder()
        .method(text("method").as_str())
        .uri(text("path"))
        .header("content-type", text("type"))
        .body(body.into_bytes());
    match client.request::<Value>(request.unwrap()).await {
        Ok(answer) if recorded["method"] == "POST" => (201, answer),
        Ok(answer) => (200, answer),
        Err(kube::Error::Api(status)) => (status.code, serde_json::to_value(&status).unwrap()),
        Err(error) => panic!("{recorded}: {error}"),
    }
}

#[tokio::test]
async fn the_same_calls_get_the_answers_of_a_real_one() {
    let recorded: Value = serde_json::from_str(include_str!("recorded.json")).unwrap();
    let server = ApiServer::start();
    let client = server.client();
    let mut known: Vec<(&str, String)> = Vec::new();
    for recorded in recorded["calls"].as_array().unwrap() {
        let name = recorded["name"].as_str().unwrap();
        let (code, answer) = call(&client, recorded, &known).await;
        assert_eq!(code, recorded["status"], "{name}: {answer}");
        let version = |answer: &Value| {
            answer["metadata"]["resourceVersion"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        match name {
            "create" => {
                known.push((
                    "$UID",
                    answer["metadata"]["uid"].as_str().unwrap().to_owned(),
                ));
                known.push(("$FIRST", version(&answer)));
            }
            "patch" => known.push(("$SECOND", version(&answer))),
            _ => {}
        }
        let mut wanted = recorded["answer"].to_string();
        for (name, value) in &known {
            wanted = wanted.replace(name, value);
        }
        let wanted = normalized(serde_json::from_str(&wanted).unwrap());
        let answer = normalized(answer);
        if wanted["status"] != "Failure" {
            assert_eq!(answer, wanted, "{name}");
            continue;
        }
        for field in ["message", "reason"] {
            let wanted = wanted[field].as_str().unwrap_or_default();
            assert_eq!(
                answer[field].as_str().unwrap_or_default(),
                wanted,
                "{name}: {field}"
            );
        }
    }
}
