//! The manifests in the repository match the code.

use std::collections::BTreeSet;
use std::path::Path;

use ctrlmesh_manager_api::crds;
use serde::de::DeserializeOwned;

use clap::Parser as _;
use ctrlmesh_contract::names::labels;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::args::Args;
use crate::certificates::webhook_ca::bundles::{MUTATING, VALIDATING};
use crate::webhook::routes::{MUTATE_NAMESPACE, MUTATE_POD, MUTATE_RESOURCE, VALIDATE};

fn shipped_manifest<T: DeserializeOwned>(file: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/webhook")
        .join(file);
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The path of a webhook that calls our Service.
fn path(client: &WebhookClientConfig) -> String {
    let args = Args::parse_from(["ctrlmesh-manager"]);
    let service = client.service.clone().unwrap();
    assert_eq!(
        (service.name, service.namespace),
        (args.webhook_service_name, args.namespace)
    );
    assert_eq!((service.port, &client.ca_bundle, &client.url), (None, &None, &None));
    service.path.unwrap()
}

#[test]
fn service_targets_port_of_webhooks() {
    let (service, args): (Service, Args) = (shipped_manifest("service.yaml"), Args::parse_from(["ctrlmesh-manager"]));
    assert_eq!(service.metadata.name.unwrap(), args.webhook_service_name);
    assert_eq!(service.metadata.namespace.unwrap(), args.namespace);
    let ports = service.spec.unwrap().ports.unwrap();
    let target = serde_json::to_value(ports[0].target_port.as_ref()).unwrap();
    assert_eq!((ports[0].port, target), (443, args.webhook_port.into()));
}

#[test]
fn webhook_validates_exactly_kinds_with_rules() {
    let configuration: ValidatingWebhookConfiguration = shipped_manifest("validating.yaml");
    assert_eq!(configuration.metadata.name.as_deref(), Some(VALIDATING));
    let mut asked = BTreeSet::new();
    for webhook in configuration.webhooks.unwrap() {
        assert_eq!(
            (webhook.side_effects.as_str(), webhook.failure_policy.as_deref()),
            ("None", Some("Fail"))
        );
        assert_eq!(webhook.admission_review_versions, ["v1"]);
        // `TestWebhooksReviewObjects` checks their meaning with a real API server.
        let conditions = webhook.match_conditions.unwrap();
        let names: Vec<&str> = conditions.iter().map(|condition| condition.name.as_str()).collect();
        assert_eq!(names, ["is-not-being-deleted", "spec-is-new"]);
        let path = path(&webhook.client_config);
        assert!(VALIDATE.contains(&path.as_str()), "{path}");
        for rule in webhook.rules.unwrap() {
            assert_eq!(rule.api_groups.unwrap(), ["ctrlmesh.kusionstack.io"]);
            assert_eq!(rule.operations.unwrap(), ["CREATE", "UPDATE"]);
            asked.extend(rule.resources.unwrap().into_iter().map(|plural| (plural, path.clone())));
        }
    }
    let checked = crds::definitions()
        .into_iter()
        .filter(|crd| crd.spec.names.kind != "ManagerState");
    let kinds = checked.map(|crd| {
        let names = crd.spec.names;
        (
            names.plural,
            format!(
                "/validate-ctrlmesh-{}",
                names.singular.unwrap_or(names.kind.to_lowercase())
            ),
        )
    });
    assert_eq!(asked, kinds.collect());
}

#[test]
fn labelling_webhooks_fail_open_and_skip_system_namespaces() {
    let configuration: MutatingWebhookConfiguration = shipped_manifest("mutating.yaml");
    assert_eq!(configuration.metadata.name.as_deref(), Some(MUTATING));
    let mut webhooks = configuration.webhooks.unwrap();
    let paths: Vec<String> = webhooks.iter().map(|webhook| path(&webhook.client_config)).collect();
    assert_eq!(paths, [MUTATE_NAMESPACE, MUTATE_RESOURCE, MUTATE_POD]);
    webhooks.truncate(2);
    for webhook in webhooks {
        assert_eq!(
            (webhook.side_effects.as_str(), webhook.failure_policy.as_deref()),
            ("None", Some("Ignore"))
        );
        assert!(webhook.timeout_seconds.unwrap() <= 2);
        let conditions = webhook.match_conditions.unwrap();
        let names: Vec<&str> = conditions.iter().map(|condition| condition.name.as_str()).collect();
        assert_eq!(names, ["is-not-being-deleted", "labels-are-new"]);
        let excluded = excluded_namespaces(&webhook.namespace_selector.unwrap());
        assert_eq!(excluded, ["kube-system", "kube-public", "kube-node-lease", "ctrlmesh"]);
        // Status has no labels, and kubelets write it often.
        let resources = webhook
            .rules
            .unwrap()
            .into_iter()
            .flat_map(|rule| rule.resources.unwrap());
        assert!(resources.into_iter().all(|resource| !resource.contains('/')));
    }
}

#[test]
fn only_pods_that_request_sidecar_depend_on_manager() {
    let configuration: MutatingWebhookConfiguration = shipped_manifest("mutating.yaml");
    let webhook = configuration.webhooks.unwrap().pop().unwrap();
    assert_eq!(path(&webhook.client_config), MUTATE_POD);
    let policies = [
        webhook.failure_policy,
        webhook.reinvocation_policy,
        Some(webhook.side_effects),
    ];
    let policies: Vec<&str> = policies.iter().map(|it| it.as_deref().unwrap()).collect();
    assert_eq!(policies, ["Fail", "IfNeeded", "None"]);
    let pods = webhook.object_selector.unwrap();
    let label = (labels::ENABLE_PROXY.to_owned(), "true".to_owned());
    assert_eq!(
        (pods.match_labels, pods.match_expressions),
        (Some([label].into()), None)
    );
    assert!(webhook.namespace_selector.is_none() && webhook.match_conditions.is_none());
    let rules = webhook.rules.unwrap();
    assert_eq!(rules.len(), 1);
    assert_eq!(rules[0].resources.as_deref(), Some(&["pods".to_owned()][..]));
    assert_eq!(rules[0].operations.as_deref(), Some(&["CREATE".to_owned()][..]));
}

fn excluded_namespaces(selector: &LabelSelector) -> Vec<String> {
    let expression = &selector.match_expressions.as_ref().unwrap()[0];
    assert_eq!(
        (expression.key.as_str(), expression.operator.as_str()),
        ("kubernetes.io/metadata.name", "NotIn")
    );
    expression.values.clone().unwrap()
}
