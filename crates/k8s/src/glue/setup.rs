//! Start-up of the glue: configuration, login, queues and the cluster, before the first task.

use std::collections::BTreeMap;

use divvy_clearml::Settings;
use divvy_clearml::config::Credentials;
use divvy_clearml::container::Setup;
use divvy_clearml::frontend::pull_schedule::Gate;
use divvy_clearml::server::Server;
use serde_json::{Value, json};

use super::context::{GlueContext, ServedQueue};
use super::objects::Objects;
use super::prepared::Prepared;
use super::record::holder;
use super::{Args, GlueError, TIMEOUT};

/// Logs in, finds the queues, and puts the worker on the server's list.
///
/// # Errors
/// [`GlueError`], before anything is changed but for queues that are made.
pub async fn set_up(args: &Args, prepared: Prepared) -> Result<(GlueContext, Gate), GlueError> {
    let Prepared { values, manifest } = prepared;
    let mut vars: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    for (variable, address) in &values.addresses {
        vars.entry((*variable).to_owned())
            .or_insert_with(|| address.clone());
    }
    let settings = Settings::read_with(args.config_file.as_deref(), vars.clone())?;
    let asked: Vec<String> = values.image.iter().cloned().collect();
    let (gate, both) = Gate::of(&settings.uptime, &settings.downtime)
        .map_err(|error| GlueError::Hours(error.0))?;
    if both {
        tracing::warn!(
            "uptime and downtime are both set, so neither has an effect; set only one of them"
        );
    }
    let setup = Setup::read(&settings.tree, &asked, vars.clone())?;

    let client = crate::base::cluster::client()
        .await
        .map_err(|error| GlueError::Cluster(crate::base::cluster::chain(&error)))?;
    let namespace = args
        .namespace
        .clone()
        .unwrap_or_else(|| client.default_namespace().to_owned());
    // Not the machine's name: that of a pod changes, and what is ours would not be found again.
    let worker = args
        .worker_id
        .clone()
        .or_else(|| settings.worker_id.clone());
    let worker = worker.unwrap_or_else(|| format!("divvy-k8s:{namespace}"));

    let server = Server::new(&settings.api, &worker)?;
    server.login().await?;
    let create = args.create_queue || values.create_queues;
    let mut queues = Vec::new();
    for queue in &values.queues {
        let facts = server.find_queue(&queue.name, create).await?;
        let facts = facts.ok_or_else(|| GlueError::NoQueue(queue.name.clone()))?;
        queues.push(ServedQueue {
            id: facts.id,
            queue: queue.clone(),
        });
    }
    let ids: Vec<String> = queues.iter().map(|served| served.id.clone()).collect();
    server
        .register(&worker, &ids, TIMEOUT, &settings.worker_tags)
        .await?;
    tracing::info!(%worker, queues = queues.len(), namespace, "serving queues of the ClearML server");
    let context = GlueContext {
        objects: Objects::new(client, &namespace, &holder(&worker)),
        config: config(&settings, &vars).to_string(),
        token: match &settings.api.credentials {
            Credentials::Token(token) => Some(token.clone()),
            Credentials::Keys { .. } => None,
        },
        poll: settings.poll,
        server,
        settings,
        setup,
        values,
        manifest,
        worker,
        queues,
    };
    Ok((context, gate))
}

/// Variables of git's credentials, and the keys that mean the same.
const GIT: [(&str, &str); 3] = [
    ("CLEARML_AGENT_GIT_USER", "git_user"),
    ("CLEARML_AGENT_GIT_PASS", "git_pass"),
    ("CLEARML_AGENT_GIT_HOST", "git_host"),
];

/// The configuration as tasks get it: the glue's own, less its name; the image's packages count, as under the stock glue.
fn config(settings: &Settings, vars: &BTreeMap<String, String>) -> Value {
    let mut config = settings.tree.root().clone();
    let agent = &mut config["agent"];
    if !agent.is_object() {
        *agent = json!({});
    }
    for name in ["worker_id", "worker_name"] {
        agent.as_object_mut().map(|fields| fields.remove(name));
    }
    for (variable, key) in GIT {
        if let Some(value) = vars.get(variable).filter(|value| !value.is_empty()) {
            agent[key] = json!(value);
        }
    }
    let manager = &mut agent["package_manager"];
    if !manager.is_object() {
        *manager = json!({});
    }
    if manager["system_site_packages"].is_null() {
        manager["system_site_packages"] = json!(true);
    }
    config
}
