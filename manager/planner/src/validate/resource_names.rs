//! Warns of names of resources that no API server has: singular names, kinds and kubectl's short names. A rule with such a name
//! never matches.

use ctrlmesh_manager_api::rules::{OpenResourceRule, ResourceRule};
use ctrlmesh_manager_api::sharding_config::{Limit, ResourceGroup};
use ctrlmesh_manager_api::{CircuitBreaker, FaultInjection, ShardingConfig};

use super::Findings;

const CORE: &str = "";

/// API group, plural name, and what people write instead: the kind in lower case, and kubectl's short name.
const KNOWN: &[(&str, &str, &[&str])] = &[
    (CORE, "configmaps", &["configmap", "cm"]),
    (CORE, "endpoints", &["endpoint", "ep"]),
    (CORE, "events", &["event", "ev"]),
    (CORE, "limitranges", &["limitrange"]),
    (CORE, "namespaces", &["namespace", "ns"]),
    (CORE, "nodes", &["node", "no"]),
    (
        CORE,
        "persistentvolumeclaims",
        &["persistentvolumeclaim", "pvc", "pvcs"],
    ),
    (CORE, "persistentvolumes", &["persistentvolume", "pv", "pvs"]),
    (CORE, "pods", &["pod", "po"]),
    (CORE, "podtemplates", &["podtemplate"]),
    (CORE, "replicationcontrollers", &["replicationcontroller", "rc"]),
    (CORE, "resourcequotas", &["resourcequota", "quota"]),
    (CORE, "secrets", &["secret"]),
    (CORE, "serviceaccounts", &["serviceaccount", "sa"]),
    (CORE, "services", &["service", "svc"]),
    (
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        &["mutatingwebhookconfiguration"],
    ),
    (
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        &["validatingwebhookconfiguration"],
    ),
    (
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        &["customresourcedefinition", "crd", "crds"],
    ),
    ("apps", "controllerrevisions", &["controllerrevision"]),
    ("apps", "daemonsets", &["daemonset", "ds"]),
    ("apps", "deployments", &["deployment", "deploy"]),
    ("apps", "replicasets", &["replicaset", "rs"]),
    ("apps", "statefulsets", &["statefulset", "sts"]),
    (
        "autoscaling",
        "horizontalpodautoscalers",
        &["horizontalpodautoscaler", "hpa"],
    ),
    ("batch", "cronjobs", &["cronjob", "cj"]),
    ("batch", "jobs", &["job"]),
    (
        "certificates.k8s.io",
        "certificatesigningrequests",
        &["certificatesigningrequest", "csr"],
    ),
    ("coordination.k8s.io", "leases", &["lease"]),
    ("discovery.k8s.io", "endpointslices", &["endpointslice"]),
    ("events.k8s.io", "events", &["event", "ev"]),
    ("networking.k8s.io", "ingressclasses", &["ingressclass"]),
    ("networking.k8s.io", "ingresses", &["ingress", "ing"]),
    ("networking.k8s.io", "networkpolicies", &["networkpolicy", "netpol"]),
    ("policy", "poddisruptionbudgets", &["poddisruptionbudget", "pdb"]),
    (
        "rbac.authorization.k8s.io",
        "clusterrolebindings",
        &["clusterrolebinding"],
    ),
    ("rbac.authorization.k8s.io", "clusterroles", &["clusterrole"]),
    ("rbac.authorization.k8s.io", "rolebindings", &["rolebinding"]),
    ("rbac.authorization.k8s.io", "roles", &["role"]),
    ("scheduling.k8s.io", "priorityclasses", &["priorityclass", "pc"]),
    ("storage.k8s.io", "storageclasses", &["storageclass", "sc"]),
];

/// The plural of a misspelt name, with its subresource; `None`: the name may be right. Custom resources may have any name, so a
/// name counts only if its group is listed, or all groups are.
pub(super) fn plural_of(written: &str, groups: &[String]) -> Option<String> {
    let (name, rest) = match written.split_once('/') {
        Some((name, rest)) => (name, format!("/{rest}")),
        None => (written, String::new()),
    };
    let lower = name.to_lowercase();
    let has_group = |group: &str| groups.is_empty() || groups.iter().any(|it| it == "*" || it == group);
    let mut known = KNOWN.iter().filter(|(group, ..)| has_group(group));
    let (_, plural, _) =
        known.find(|(_, plural, others)| others.contains(&lower.as_str()) || (*plural == lower && *plural != name))?;
    Some(format!("{plural}{rest}"))
}

/// Whether this is a namespaced resource that operators usually create for the objects that they handle.
pub(super) fn is_usual_child(name: &str) -> bool {
    const CHILDREN: [&str; 15] = [
        "configmaps",
        "cronjobs",
        "daemonsets",
        "deployments",
        "endpoints",
        "ingresses",
        "jobs",
        "persistentvolumeclaims",
        "poddisruptionbudgets",
        "pods",
        "replicasets",
        "secrets",
        "serviceaccounts",
        "services",
        "statefulsets",
    ];
    CHILDREN.contains(&name)
}

/// Whether this is a resource of Kubernetes whose objects have no namespace. `*` as group is any group.
pub(super) fn is_cluster_scoped(group: &str, name: &str) -> bool {
    const CLUSTER_SCOPED: [(&str, &str); 12] = [
        (CORE, "namespaces"),
        (CORE, "nodes"),
        (CORE, "persistentvolumes"),
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("certificates.k8s.io", "certificatesigningrequests"),
        ("networking.k8s.io", "ingressclasses"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("scheduling.k8s.io", "priorityclasses"),
        ("storage.k8s.io", "storageclasses"),
    ];
    let mut known = CLUSTER_SCOPED.iter();
    known.any(|(known_group, known_name)| *known_name == name && (group == "*" || *known_group == group))
}

/// Whether one of these API groups has a resource that controllers usually create for their own objects.
pub(super) fn has_usual_children(groups: &[String]) -> bool {
    let is_named = |group: &str| groups.iter().any(|it| it == "*" || it == group);
    KNOWN
        .iter()
        .any(|(group, plural, _)| is_usual_child(plural) && is_named(group))
}

/// Warns of each name that looks like a misspelt or singular form of a known resource, because it selects nothing.
fn warn_of_names(groups: &[String], names: &[String], path: &str, findings: &mut Findings) {
    for (index, name) in names.iter().enumerate() {
        if let Some(plural) = plural_of(name, groups) {
            let problem =
                format!("{name:?} is the name of no resource, so nothing of it is meant; did you mean {plural:?}?");
            findings.warn(format!("{path}.resources[{index}]"), problem);
        }
    }
}

/// Checks the names in all limits, and in `resourceSelector`, `whole` and `singletons` of the root.
pub(super) fn warn_of_names_in_shard(config: &ShardingConfig, findings: &mut Findings) {
    let mut limits = |limits: &[Limit], path: &str| {
        for (at, limit) in limits.iter().enumerate() {
            for (group, ResourceGroup { api_groups, resources }) in limit.relate_resources.iter().enumerate() {
                let path = format!("{path}[{at}].relateResources[{group}]");
                warn_of_names(api_groups, resources, &path, findings);
            }
        }
    };
    limits(config.spec.limits.as_deref().unwrap_or_default(), "spec.limits");
    if let Some(root) = &config.spec.root {
        limits(&root.resource_selector, "spec.root.resourceSelector");
        for (field, groups) in [("whole", &root.whole), ("singletons", &root.singletons)] {
            for (at, ResourceGroup { api_groups, resources }) in groups.iter().enumerate() {
                warn_of_names(api_groups, resources, &format!("spec.root.{field}[{at}]"), findings);
            }
        }
    }
}

/// Warns of the names in a CircuitBreaker.
pub(super) fn warn_of_names_in_breaker(breaker: &CircuitBreaker, findings: &mut Findings) {
    for (at, rule) in breaker.spec.rate_limitings.iter().enumerate() {
        for (
            index,
            ResourceRule {
                api_groups, resources, ..
            },
        ) in rule.resource_rules.iter().enumerate()
        {
            let path = format!("spec.rateLimitings[{at}].resourceRules[{index}]");
            warn_of_names(api_groups, resources, &path, findings);
        }
    }
}

/// Warns of the names in a FaultInjection.
pub(super) fn warn_of_names_in_faults(faults: &FaultInjection, findings: &mut Findings) {
    for (at, fault) in faults.spec.http_fault.iter().enumerate() {
        let rules = fault.matching.iter().flat_map(|matching| &matching.resources);
        for (
            index,
            OpenResourceRule {
                api_groups, resources, ..
            },
        ) in rules.enumerate()
        {
            let path = format!("spec.httpFault[{at}].match.resources[{index}]");
            warn_of_names(api_groups, resources, &path, findings);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_short_and_capital_names_have_plural_and_others_none() {
        let of = |name: &str, groups: &[&str]| {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            plural_of(name, &groups)
        };
        for (name, groups, expected) in [
            ("configmap", &["*"][..], Some("configmaps")),
            ("ConfigMap", &[""], Some("configmaps")),
            ("Pods", &[""], Some("pods")),
            ("pod/status", &[""], Some("pods/status")),
            ("deploy", &["", "apps"], Some("deployments")),
            ("ingress", &[], Some("ingresses")),
            ("configmaps", &["*"], None),
            ("endpoints", &[""], None),
            ("*", &["*"], None),
            ("*/scale", &["*"], None),
            ("widget", &["*"], None),
            ("job", &["example.com"], None),
            ("pod", &["apps"], None),
        ] {
            assert_eq!(of(name, groups).as_deref(), expected, "{name} {groups:?}");
        }
    }
}
