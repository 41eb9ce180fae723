//! Checks of the webhook: that it is asked, that it answers, and that nobody gets past it when it does not.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhook;

use super::facts::{Facts, OPT_IN, Probe, opted_in};
use super::{Row, Status, few};

pub fn rows(facts: &Facts) -> Vec<Row> {
    vec![configuration(facts), namespaces(facts), answer(facts)]
}

fn configuration(facts: &Facts) -> Row {
    const CHECK: &str = "webhook.configuration";
    const READ: &str = "mutating webhook configurations";
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
        return Row::ok(CHECK, READ, "none is Divvy's").but(
            Status::Fail,
            "labels and annotations that ask for a part of a GPU mean nothing: such pods run without one",
            "install the chart; whole GPUs and MIG profiles by nvidia.com/… work without",
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
        return Row::ok(CHECK, READ, format!("no certificates in caBundle: {}", few(&unsigned))).but(
            Status::Fail,
            "the API server cannot trust the webhook, and refuses every pod that asks for a part of a GPU",
            format!(
                "the controller writes it: kubectl -n {} logs -l app.kubernetes.io/component=controller",
                facts.system
            ),
        );
    }
    let lenient = named(|webhook| webhook.failure_policy.as_deref() == Some("Ignore"));
    match lenient.is_empty() {
        true => Row::ok(CHECK, READ, format!("{} are there, with caBundle and failurePolicy Fail", ours.len())),
        false => Row::ok(CHECK, READ, format!("failurePolicy is Ignore: {}", few(&lenient))).but(
            Status::Warn,
            "while the webhook is away, a pod that asks for part of a GPU and for nvidia.com/gpu gets a whole one, without a limit",
            "failurePolicy: Fail; only pods that ask for a part of a GPU are held up by it",
        ),
    }
}

fn is_pem(bytes: &[u8]) -> bool {
    let begins = b"-----BEGIN CERTIFICATE-----";
    bytes.windows(begins.len()).any(|window| window == begins)
}

fn namespaces(facts: &Facts) -> Row {
    const CHECK: &str = "webhook.namespaces";
    const READ: &str = "labels of the namespaces";
    let all = match &facts.namespaces {
        Ok(all) => all,
        Err(why) => return Row::unknown(CHECK, READ, why),
    };
    let opted: Vec<&str> = all.iter().filter_map(opted_in).collect();
    match opted.is_empty() {
        true => Row::ok(CHECK, READ, format!("none has {}={}", OPT_IN.0, OPT_IN.1)).but(
            Status::Warn,
            "the webhook looks at no pod",
            format!("kubectl label namespace NAME {}={}", OPT_IN.0, OPT_IN.1),
        ),
        false => Row::ok(
            CHECK,
            READ,
            format!("{} opted in: {}", opted.len(), few(&opted)),
        ),
    }
}

fn answer(facts: &Facts) -> Row {
    const CHECK: &str = "webhook.answer";
    const READ: &str = "a dry run of a pod with a part of a GPU, in a namespace that is opted in";
    let row = |found: String| Row::ok(CHECK, READ, found);
    match &facts.probe {
        Probe::Held => row("a pod with a part of a GPU gets its claim".to_owned()),
        Probe::Refused(text) => row(format!("it answers, with a refusal: {text}")).but(
            Status::Warn,
            "an eighth of a GPU is refused at the moment",
            "look at published.slices",
        ),
        Probe::Untouched => row("it was not asked: the pod would run as it came".to_owned()).but(
            Status::Fail,
            "labels and annotations that ask for a part of a GPU mean nothing: such pods run without one",
            "the webhook's rules and selectors: kubectl get mutatingwebhookconfigurations divvy -o yaml",
        ),
        Probe::Unreachable(text) => row(text.clone()).but(
            Status::Fail,
            "pods that ask for a part of a GPU are refused; others are not held up",
            format!("kubectl -n {} get pods,endpointslices -l app.kubernetes.io/component=controller", facts.system),
        ),
        Probe::NoNamespace => row("could not be tried: no namespace is opted in".to_owned()).but(
            Status::Unknown,
            "",
            "opt one in, then run this again",
        ),
        Probe::Untried(why) => Row::unknown(CHECK, READ, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::tests::{facts, webhook};

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
        assert_eq!(namespaces(&facts).found, "1 opted in: team");
        facts.namespaces = Ok(Vec::new());
        assert_eq!(namespaces(&facts).status, Status::Warn);
    }
}
