//! Checks of the admission webhook: it is registered, it answers, and its failure policy lets no pod bypass it.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;

use super::facts::{ClusterFacts, Probe, opted_in};
use super::row::{Row, Status};
use crate::base::error_output::few;
use crate::base::inject::OPT_IN;

pub fn rows(facts: &ClusterFacts) -> Vec<Row> {
    vec![configuration(facts), namespaces(facts), answer(facts)]
}

fn configuration(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "webhook.configuration";
    const READ: &str = "MutatingWebhookConfigurations";
    let all = match &facts.webhooks {
        Ok(all) => all,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let ours: Vec<&MutatingWebhook> = all
        .iter()
        .flat_map(|one| one.webhooks.iter().flatten())
        .filter(|webhook| webhook.name.ends_with(".divvy.dev"))
        .collect();
    if ours.is_empty() {
        return Row::ok(CHECK, READ, "Divvy's webhook is not registered").but(
            Status::Fail,
            "labels and annotations for GPU fractions have no effect: such pods run without a GPU",
            "install the chart; requests for whole GPUs and MIG profiles by nvidia.com/… work without the webhook",
        );
    }
    let named = |wanted: fn(&MutatingWebhook) -> bool| -> Vec<&str> {
        let these = ours.iter().filter(|webhook| wanted(webhook));
        these.map(|webhook| webhook.name.as_str()).collect()
    };
    let unsigned = named(|webhook| {
        let bundle = webhook.client_config.ca_bundle.as_ref();
        !bundle.is_some_and(|bundle| is_pem(&bundle.0))
    });
    if !unsigned.is_empty() {
        return Row::ok(CHECK, READ, format!("no certificate in caBundle: {}", few(&unsigned))).but(
            Status::Fail,
            "the API server does not trust the webhook, and rejects every pod that requests a GPU fraction",
            format!(
                "the controller writes caBundle, see its log: kubectl -n {} logs -l app.kubernetes.io/component=controller",
                facts.system
            ),
        );
    }
    let lenient = named(|webhook| webhook.failure_policy.as_deref() == Some("Ignore"));
    if lenient.is_empty() {
        Row::ok(
            CHECK,
            READ,
            format!(
                "{} webhooks, with caBundle and failurePolicy Fail",
                ours.len()
            ),
        )
    } else {
        Row::ok(CHECK, READ, format!("failurePolicy is Ignore: {}", few(&lenient))).but(
            Status::Warn,
            "while the webhook is unavailable, a pod that requests a GPU fraction and nvidia.com/gpu gets a whole GPU without a limit",
            "set failurePolicy: Fail; it affects only pods that request a GPU fraction",
        )
    }
}

fn is_pem(bytes: &[u8]) -> bool {
    let begins = b"-----BEGIN CERTIFICATE-----";
    bytes.windows(begins.len()).any(|window| window == begins)
}

fn namespaces(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "webhook.namespaces";
    const READ: &str = "labels of the namespaces";
    let all = match &facts.namespaces {
        Ok(all) => all,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let opted: Vec<&str> = all.iter().filter_map(opted_in).collect();
    if opted.is_empty() {
        Row::ok(
            CHECK,
            READ,
            format!("no namespace has {}={}", OPT_IN.0, OPT_IN.1),
        )
        .but(
            Status::Warn,
            "the webhook receives no pods",
            format!("kubectl label namespace NAME {}={}", OPT_IN.0, OPT_IN.1),
        )
    } else {
        Row::ok(
            CHECK,
            READ,
            format!("{} with the label: {}", opted.len(), few(&opted)),
        )
    }
}

fn answer(facts: &ClusterFacts) -> Row {
    const CHECK: &str = "webhook.answer";
    const READ: &str = "a dry run of a pod with a GPU fraction, in a namespace with Divvy's label";
    let row = |found: String| Row::ok(CHECK, READ, found);
    match &facts.probe {
        Probe::Held => row("a pod with a GPU fraction gets its claim".to_owned()),
        Probe::Refused(text) => row(format!("the webhook responds, but refuses the pod: {text}")).but(
            Status::Warn,
            "the webhook refuses 1/8 of a GPU at the moment",
            "see the check published.slices",
        ),
        Probe::Untouched => row("the API server does not call the webhook: the pod would run unchanged".to_owned()).but(
            Status::Fail,
            "labels and annotations for GPU fractions have no effect: such pods run without a GPU",
            "check check the webhook's rules and selectors: kubectl get mutatingwebhookconfigurations divvy -o yaml",
        ),
        Probe::Unreachable(text) => row(text.clone()).but(
            Status::Fail,
            "the API server rejects pods that request a GPU fraction; other pods are not affected",
            format!("kubectl -n {} get pods,endpointslices -l app.kubernetes.io/component=controller", facts.system),
        ),
        Probe::NoNamespace => row("not tested: no namespace has Divvy's label".to_owned()).but(
            Status::Unknown,
            "",
            "label a namespace (see webhook.namespaces), then run `divvy-k8s doctor` again",
        ),
        Probe::Untried(why) => Row::unknown(CHECK, READ, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::doctor::facts::tests::{facts, webhook};

    #[test]
    fn a_webhook_without_certificates_or_that_can_be_gone_past_is_told() {
        let mut facts = facts();
        assert_eq!(configuration(&facts).status, Status::Ok);
        facts.webhooks = Ok(vec![webhook("", "Fail")]);
        assert!(configuration(&facts).found.contains("caBundle"));
        facts.webhooks = Ok(vec![webhook("-----BEGIN CERTIFICATE-----", "Ignore")]);
        assert_eq!(configuration(&facts).status, Status::Warn);
        facts.webhooks = Ok(Vec::new());
        assert_eq!(configuration(&facts).status, Status::Fail);
    }

    #[test]
    fn what_became_of_the_dry_run_decides() {
        let mut facts = facts();
        for (probe, status) in [
            (Probe::Held, Status::Ok),
            (Probe::Refused("no GPU".to_owned()), Status::Warn),
            (Probe::Untouched, Status::Fail),
            (Probe::Unreachable("refused".to_owned()), Status::Fail),
            (Probe::NoNamespace, Status::Unknown),
            (Probe::Untried("forbidden".to_owned()), Status::Unknown),
        ] {
            facts.probe = probe;
            assert_eq!(answer(&facts).status, status, "{:?}", facts.probe);
        }
    }

    #[test]
    fn no_namespace_opted_in_is_worth_a_word() {
        let mut facts = facts();
        assert_eq!(namespaces(&facts).found, "1 with the label: team");
        facts.namespaces = Ok(Vec::new());
        assert_eq!(namespaces(&facts).status, Status::Warn);
    }
}
