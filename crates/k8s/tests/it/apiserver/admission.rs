//! What stands before a create: the test's own hooks, then the mutating webhooks that are registered.
//!
//! As in the real server: rules, selectors and match conditions choose; the call goes to the service over TLS that the configuration's own
//! bundle vouches for; the failure policy says what an unanswered call means; a second round where the first changed something.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};

use super::Shared;
use super::kinds::Target;
use super::selector::Selector;
use super::store::{Fail, api_version};

pub(super) async fn admit(
    shared: &Arc<Shared>,
    at: &Target,
    mut object: Value,
    dry: bool,
) -> Result<Value, Fail> {
    let (hooks, kind) = {
        let mut state = shared.state.lock().unwrap();
        (std::mem::take(&mut state.on_create), at.kind.kind.clone())
    };
    let mut hooks = hooks;
    let hooked = hooks
        .iter_mut()
        .try_for_each(|hook| hook(&kind, &mut object));
    shared.state.lock().unwrap().on_create.extend(hooks);
    hooked.map_err(|text| denied(&text))?;

    object["apiVersion"] = json!(api_version(&at.kind));
    object["kind"] = json!(at.kind.kind);
    let configurations = {
        let state = shared.state.lock().unwrap();
        let of_kind = |kind: &&super::Kind| kind.plural == "mutatingwebhookconfigurations";
        let kind = state.store.kinds.iter().find(of_kind).cloned();
        kind.map(|kind| {
            state
                .store
                .list(&super::target(&kind, "", None), &Selector::default())
        })
    };
    let configurations = configurations.unwrap_or_default();
    for _round in 0..2 {
        let before = object.clone();
        for configuration in &configurations {
            for webhook in configuration["webhooks"].as_array().into_iter().flatten() {
                if concerns(shared, webhook, at, &object)? {
                    object = call(shared, webhook, at, object, dry).await?;
                }
            }
        }
        if object == before {
            break;
        }
    }
    Ok(object)
}

fn denied(text: &str) -> Fail {
    Fail {
        code: 403,
        reason: "Forbidden",
        message: text.to_owned(),
    }
}

/// Whether a webhook wants to see the creation of an object.
fn concerns(
    shared: &Arc<Shared>,
    webhook: &Value,
    at: &Target,
    object: &Value,
) -> Result<bool, Fail> {
    let has = |list: &Value, value: &str| {
        let list = list.as_array().into_iter().flatten();
        list.into_iter().any(|one| one == value || one == "*")
    };
    let ruled = webhook["rules"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|rule| {
            has(&rule["apiGroups"], &at.kind.group)
                && has(&rule["apiVersions"], &at.kind.version)
                && has(&rule["operations"], "CREATE")
                && has(&rule["resources"], &at.kind.plural)
        });
    if !ruled || !selected(&webhook["objectSelector"], object) {
        return Ok(false);
    }
    let namespace = {
        let state = shared.state.lock().unwrap();
        super::at(&state.store, "namespaces", "", &at.namespace)
            .and_then(|at| state.store.get(&at).cloned())
            .unwrap_or_default()
    };
    if at.kind.namespaced && !selected(&webhook["namespaceSelector"], &namespace) {
        return Ok(false);
    }
    let conditions = webhook["matchConditions"].as_array().into_iter().flatten();
    for condition in conditions {
        let text = condition["expression"].as_str().unwrap_or_default();
        if !is_true(text, object).map_err(|error| denied(&format!("{text}: {error}")))? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Of a selector in an object, with labels and expressions.
fn selected(selector: &Value, object: &Value) -> bool {
    let labels = &object["metadata"]["labels"];
    let same = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten();
    same.into_iter().all(|(key, value)| labels[key] == *value)
        && expressions.all(|expression| {
            let value = &labels[expression["key"].as_str().unwrap_or_default()];
            let listed = expression["values"].as_array();
            let listed = listed.is_some_and(|values| values.contains(value));
            match expression["operator"].as_str() {
                Some("In") => listed,
                Some("NotIn") => !listed,
                Some("Exists") => !value.is_null(),
                _ => value.is_null(),
            }
        })
}

/// A CEL expression over an `object` that is created.
pub fn is_true(expression: &str, object: &Value) -> Result<bool, String> {
    let program = cel::Program::compile(expression).map_err(|error| error.to_string())?;
    let mut context = cel::Context::default();
    let variables = [
        ("object", object.clone()),
        ("oldObject", json!(null)),
        ("request", json!({ "operation": "CREATE" })),
    ];
    for (name, value) in variables {
        let added = context.add_variable(name, value);
        added.map_err(|error| error.to_string())?;
    }
    match program.execute(&context) {
        Ok(cel::Value::Bool(answer)) => Ok(answer),
        Ok(other) => Err(format!("no truth: {other:?}")),
        Err(error) => Err(error.to_string()),
    }
}

async fn call(
    shared: &Arc<Shared>,
    webhook: &Value,
    at: &Target,
    mut object: Value,
    dry: bool,
) -> Result<Value, Fail> {
    let name = webhook["name"].as_str().unwrap_or_default();
    let resource =
        json!({ "group": at.kind.group, "version": at.kind.version, "resource": at.kind.plural });
    let kind = json!({ "group": at.kind.group, "version": at.kind.version, "kind": at.kind.kind });
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": kind, "resource": resource, "requestKind": kind, "requestResource": resource,
            "name": object["metadata"]["name"], "namespace": at.namespace, "operation": "CREATE",
            "userInfo": { "username": "test" }, "object": object, "oldObject": null, "dryRun": dry,
            "options": { "apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions" },
        },
    });
    let seconds = webhook["timeoutSeconds"].as_u64().unwrap_or(10);
    let posted = post(shared, &webhook["clientConfig"], &review);
    let posted = match tokio::time::timeout(Duration::from_secs(seconds), posted).await {
        Ok(posted) => posted,
        Err(_) => Err("no answer in time".to_owned()),
    };
    let response = match posted {
        Ok(review) => review["response"].clone(),
        Err(_) if webhook["failurePolicy"] == "Ignore" => return Ok(object),
        Err(error) => {
            return Err(Fail {
                code: 500,
                reason: "InternalError",
                message: format!("the webhook {name:?} could not be called: {error}"),
            });
        }
    };
    if response["allowed"] != true {
        let text = response["status"]["message"]
            .as_str()
            .unwrap_or("no reason");
        return Err(denied(&format!("the webhook {name:?} denied it: {text}")));
    }
    if let Some(patch) = response["patch"].as_str() {
        let patch = k8s_openapi::serde_json::from_value::<k8s_openapi::ByteString>(json!(patch));
        let patch: json_patch::Patch = serde_json::from_slice(&patch.unwrap().0).unwrap();
        json_patch::patch(&mut object, &patch).unwrap();
    }
    Ok(object)
}

async fn post(shared: &Arc<Shared>, client: &Value, review: &Value) -> Result<Value, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let service = &client["service"];
    let named = |key: &str| service[key].as_str().unwrap_or_default().to_owned();
    let (namespace, service, path) = (named("namespace"), named("name"), named("path"));
    let address: Option<SocketAddr> = {
        let mut state = shared.state.lock().unwrap();
        let key = (namespace.clone(), service.clone());
        state.services.get_mut(&key).and_then(|endpoints| {
            endpoints.rotate_left(1.min(endpoints.len()));
            endpoints.back().copied()
        })
    };
    let address = address.ok_or("connection refused: the service has no endpoints")?;
    let bundle = serde_json::from_value::<k8s_openapi::ByteString>(client["caBundle"].clone());
    let bundle = bundle.map_err(|error| text(&error))?.0;
    let host = format!("{service}.{namespace}.svc");
    let request = || {
        axum::http::Request::post(&path)
            .header("host", &host)
            .header("content-type", "application/json")
            .body(Body::from(review.to_string()))
            .unwrap()
    };
    // As in the real server, connections are used again; one that the webhook has closed is made anew.
    let whose = (address, bundle);
    let idle = {
        let mut state = shared.state.lock().unwrap();
        state.idle.get_mut(&whose).and_then(Vec::pop)
    };
    let answered = match idle {
        Some(mut sender) => {
            let answered = sender.send_request(request()).await;
            answered.ok().map(|response| (response, sender))
        }
        None => None,
    };
    let (response, sender) = match answered {
        Some(answered) => answered,
        None => {
            let stream = tls(address, &whose.1, &host).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream))
                    .await
                    .map_err(|error| text(&error))?;
            tokio::spawn(connection);
            let answered = sender.send_request(request()).await;
            (answered.map_err(|error| text(&error))?, sender)
        }
    };
    let status = response.status();
    let body = response
        .into_body()
        .collect()
        .await
        .map_err(|error| text(&error))?;
    let mut state = shared.state.lock().unwrap();
    state.idle.entry(whose).or_default().push(sender);
    drop(state);
    if status.is_success() {
        serde_json::from_slice(&body.to_bytes()).map_err(|error| text(&error))
    } else {
        Err(format!("it answers {status}"))
    }
}

/// A connection to who can show a certificate of this name that the bundle vouches for.
pub async fn tls(
    address: SocketAddr,
    bundle: &[u8],
    host: &str,
) -> Result<tokio_rustls::client::TlsStream<tokio::net::TcpStream>, String> {
    divvy_k8s::base::cluster::use_ring();
    let mut roots = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(bundle) {
        let root = root.map_err(|error| error.to_string())?;
        roots.add(root).map_err(|error| error.to_string())?;
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config.with_no_client_auth()));
    let stream = tokio::net::TcpStream::connect(address).await;
    let stream = stream.map_err(|error| error.to_string())?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
    connector
        .connect(name, stream)
        .await
        .map_err(|error| error.to_string())
}
