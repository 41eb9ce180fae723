//! `divvy-k8s project config`: the values of Kueue's Helm chart with which Kueue counts GPU memory.

use divvy_api::v1::{Error, ErrorCode};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::resource::v1::DeviceClass;
use kube::Client;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use super::ConfigArgs;
use crate::base::error_output::{self, say};
use crate::teams::kueue::configuration::{self, Counted};
use crate::teams::kueue::store;

/// Where Kueue's chart is usually installed.
pub const NAMESPACE: &str = "kueue-system";

pub async fn print(args: &ConfigArgs, client: &Client) -> Result<(), Error> {
    let (inventory, _) = store::inventory(client).await?;
    let classes = Api::<DeviceClass>::all(client.clone())
        .list(&ListParams::default())
        .await;
    let classes = classes
        .map_err(|error| error_output::of_kube(error, "list DeviceClasses"))?
        .items;
    let counted = Counted::of(&inventory, Counted::serves_nvidia_gpu(&classes));
    if inventory.sizes.is_empty() && inventory.profiles.is_empty() {
        say(
            "warning: no node publishes GPUs yet, so MIG profiles are missing; repeat the command later",
        );
    }
    if !counted.left_out.is_empty() {
        let names: Vec<&str> = counted.left_out.iter().map(String::as_str).collect();
        say(&format!(
            "warning: Kueue counts 8 device classes of claims; it admits no claims of {}",
            names.join(", ")
        ));
    }
    let present = match read(client, &args.kueue_namespace).await {
        Ok(present) => present,
        Err(error) => {
            say(&format!(
                "warning: the present configuration of Kueue is not included: {error}"
            ));
            None
        }
    };
    let own = own_namespace(client).await?;
    let spared = own
        .iter()
        .flat_map(|own| [args.kueue_namespace.as_str(), own]);
    let spared: Vec<&str> = spared.collect();
    let configuration = configuration::merged(present, &counted, &spared);
    let shown = if args.configuration {
        configuration
    } else {
        json!({ "managerConfig": { "controllerManagerConfigYaml": yaml(&configuration)? } })
    };
    error_output::print(&match (args.output.is_json(), args.configuration) {
        (true, _) => error_output::json("KueueConfiguration", vec![shown])?,
        (false, true) => yaml(&shown)?,
        (false, false) => values(&shown)?,
    })
}

/// Returns the namespace of Divvy's webhook; `None` if it is not installed.
async fn own_namespace(client: &Client) -> Result<Option<String>, Error> {
    let all = Api::<MutatingWebhookConfiguration>::all(client.clone())
        .list(&ListParams::default().labels("app.kubernetes.io/name=divvy"))
        .await
        .map_err(|error| error_output::of_kube(error, "list MutatingWebhookConfigurations"))?;
    let mut webhooks = all.items.into_iter().flat_map(|one| one.webhooks).flatten();
    Ok(webhooks.find_map(|webhook| Some(webhook.client_config.service?.namespace)))
}

/// Returns Kueue's Configuration in this namespace; `None` if there is no such ConfigMap.
///
/// # Errors
/// It cannot be read, or is not YAML.
pub async fn read(client: &Client, namespace: &str) -> Result<Option<Value>, String> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), namespace)
        .list(&ListParams::default())
        .await;
    let maps = maps
        .map_err(|error| crate::base::cluster::error_message(&error))?
        .items;
    let file = maps
        .into_iter()
        .find_map(|map| map.data?.remove(configuration::FILE));
    let read =
        |text: String| yaml_serde::from_str::<Value>(&text).map_err(|error| error.to_string());
    file.map(read).transpose()
}

fn yaml(value: &Value) -> Result<String, Error> {
    yaml_serde::to_string(value)
        .map_err(|error| Error::new(ErrorCode::Internal, format!("cannot write YAML: {error}")))
}

/// The values, with the file in a block that people can read.
fn values(shown: &Value) -> Result<String, Error> {
    let file = shown["managerConfig"]["controllerManagerConfigYaml"]
        .as_str()
        .unwrap_or_default();
    let lines: String = file.lines().map(|line| format!("    {line}\n")).collect();
    Ok(format!(
        "# Values of Kueue's Helm chart, version 0.19 or newer:\n\
         # helm upgrade --install kueue oci://registry.k8s.io/kueue/charts/kueue --version 0.19.2 \\\n\
         #   --namespace kueue-system --create-namespace --values FILE\n\
         # Kueue reads this file at its start: restart it after a change.\n\
         managerConfig:\n  controllerManagerConfigYaml: |-\n{lines}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_printed_values_are_the_configuration() {
        let configuration = configuration::merged(None, &Counted::default(), &[]);
        let shown = json!({ "managerConfig": { "controllerManagerConfigYaml": yaml(&configuration).unwrap() } });
        let read: Value = yaml_serde::from_str(&values(&shown).unwrap()).unwrap();
        let file = read["managerConfig"]["controllerManagerConfigYaml"]
            .as_str()
            .unwrap();
        assert_eq!(yaml_serde::from_str::<Value>(file).unwrap(), configuration);
    }
}
