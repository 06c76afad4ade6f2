//! The committed definitions match the types, and their schemas meet the requirements of API servers.

use std::path::Path;

use super::*;

const REGENERATE: &str = "run `make crd` and commit what it writes";

fn crd_folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/crd")
}

#[test]
fn deploy_crd_matches_types() {
    let mut files = Vec::new();
    for crd in definitions() {
        let file = crd_folder().join(file_name(&crd));
        let committed = std::fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(committed, to_yaml(&crd).unwrap(), "{}: {REGENERATE}", file.display());
        files.push(file_name(&crd));
    }
    for entry in std::fs::read_dir(crd_folder()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_known = files.contains(&name) || name == "Kustomization";
        assert!(is_known, "deploy/crd/{name} is of no kind; remove it");
    }
}

#[test]
fn yaml_is_deterministic_and_complete() {
    for crd in definitions() {
        let text = to_yaml(&crd).unwrap();
        assert_eq!(text, to_yaml(&crd).unwrap());
        let again: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(again, crd);
    }
}

/// Visits a schema and every schema in it, with its path.
fn walk<'s>(schema: &'s JSONSchemaProps, path: &str, visit: &mut dyn FnMut(&str, &'s JSONSchemaProps)) {
    visit(path, schema);
    for (name, property) in schema.properties.iter().flatten() {
        walk(property, &format!("{path}.{name}"), visit);
    }
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaPropsOrArray;
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
        walk(items, &format!("{path}[]"), visit);
    }
}

#[test]
fn schemas_are_structural_and_described() {
    for crd in definitions() {
        let kind = crd.spec.names.kind.clone();
        walk(schema_of(&crd).unwrap(), &kind, &mut |path, schema| {
            let is_free = schema.x_kubernetes_preserve_unknown_fields == Some(true);
            let is_either = schema.x_kubernetes_int_or_string == Some(true);
            assert!(schema.type_.is_some() || is_free || is_either, "{path} has no type");
            assert_eq!(schema.nullable, None, "{path}");
            let junctors = [&schema.all_of, &schema.any_of, &schema.one_of];
            assert!(junctors.iter().all(|list| list.is_none()), "{path}");
            let formats = [None, Some("int32"), Some("int64"), Some("date-time")];
            assert!(
                formats.contains(&schema.format.as_deref()),
                "{path}: {:?}",
                schema.format
            );
            let is_list = schema.type_.as_deref() == Some("array");
            assert_eq!(
                is_list,
                schema.x_kubernetes_list_type.is_some(),
                "{path} is a list without a type, or the reverse"
            );
            let is_field = path.contains('.') && !path.ends_with("[]") && !path.contains(".metadata");
            assert!(!is_field || schema.description.is_some(), "{path} has no description");
        });
    }
}

#[test]
fn kinds_have_names_of_kusionstack() {
    let names: Vec<_> = definitions()
        .iter()
        .map(|crd| {
            let names = &crd.spec.names;
            let short = names.short_names.clone().unwrap_or_default().join(",");
            format!(
                "{} {} {short} {}",
                crd.metadata.name.clone().unwrap(),
                names.kind,
                crd.spec.scope
            )
        })
        .collect();
    assert_eq!(
        names,
        [
            "circuitbreakers.ctrlmesh.kusionstack.io CircuitBreaker cbk Namespaced",
            "faultinjections.ctrlmesh.kusionstack.io FaultInjection fj Namespaced",
            "managerstates.ctrlmesh.kusionstack.io ManagerState  Cluster",
            "shardingconfigs.ctrlmesh.kusionstack.io ShardingConfig shard Namespaced",
        ]
    );
    for crd in definitions() {
        let [version] = &crd.spec.versions[..] else {
            panic!("one version")
        };
        assert_eq!(
            (version.name.as_str(), version.served, version.storage),
            ("v1alpha1", true, true)
        );
        assert!(version.subresources.as_ref().unwrap().status.is_some());
        let columns = version.additional_printer_columns.iter().flatten();
        assert!(columns.count() >= 2, "{}", crd.spec.names.kind);
    }
}

/// `theirs.txt`: the fields of KusionStack's schemas (its `config/crd/bases`, and the FaultInjection of its chart).
#[test]
fn fields_are_spelt_as_in_kusionstack() {
    let mut ours = Vec::new();
    for crd in definitions() {
        walk(schema_of(&crd).unwrap(), &crd.spec.names.kind, &mut |path, _| {
            ours.push(path.to_owned())
        });
    }
    for field in include_str!("theirs.txt").lines() {
        assert!(ours.iter().any(|path| path == field), "no {field}");
    }
}
