use ctrlmesh_wire::Query;
use ctrlmesh_wire::objects::Predicate;
use http::{HeaderName, HeaderValue};

use super::*;
use crate::chain::EntryId;
use crate::plugin::dropped_fields::PluginDroppedFields;
use crate::plugin::object_metadata::ObjectQuestion;
use crate::plugin::verdict::ObjectRefusal;

fn apply_to(target: &str, method: &str, edits: Vec<RequestEdit>) -> Result<Option<String>, String> {
    let uri: Uri = target.parse().unwrap();
    let info = RequestInfo::parse(method, uri.path(), uri.query()).unwrap();
    let edits: Vec<Attributed> = edits.into_iter().map(|edit| (EntryId::next_id(), edit)).collect();
    let query = ParsedQuery::new(uri.query().unwrap_or_default());
    match apply(&info, &uri, &query, &edits) {
        Ok(edited) => Ok(edited.path_and_query),
        Err(EditError::Client(reply)) => Err(format!("client {}", reply.code())),
        Err(EditError::Plugin { what, .. }) => Err(format!("plugin {what}")),
    }
}

fn shard_edits() -> Vec<RequestEdit> {
    vec![RequestEdit::AndLabelSelector("shard=a".into())]
}

/// The label selector that the API server would read from the edited query.
fn selector(target: &str) -> String {
    let edited = apply_to(target, "GET", shard_edits()).unwrap().unwrap();
    let query = edited.split_once('?').unwrap().1.to_owned();
    assert_eq!(Query::new(&query).malformed_pair(), None);
    Query::new(&query).get("labelSelector").unwrap().into_owned()
}

#[test]
fn shards_selector_is_anded_with_whatever_client_sent() {
    assert_eq!(selector("/api/v1/configmaps"), "shard=a");
    assert_eq!(selector("/api/v1/configmaps?labelSelector=x%3D1"), "shard=a,x=1");
    assert_eq!(
        selector("/api/v1/configmaps?labelSelector=shard%3Db"),
        "shard=b,shard=a",
        "the shard wins"
    );
    assert_eq!(
        selector("/api/v1/configmaps?labelSelector=&labelSelector=x%3D1"),
        "shard=a",
        "first value counts"
    );
    assert_eq!(selector("/api/v1/configmaps?label%53elector=x%3D1"), "shard=a,x=1");
    assert_eq!(selector("/api/v1/configmaps?LabelSelector=x%3D1"), "shard=a");
    assert_eq!(
        selector("/api/v1/configmaps?labelSelector=x+in+(1,2),!y,z!%3D3"),
        "shard=a,x in (1,2),!y,z!=3"
    );
}

#[test]
fn other_parameters_keep_their_order_and_bytes() {
    let edited = apply_to(
        "/api/v1/configmaps?limit=5&labelSelector=x%3D1&continue=a%2Bb%3d&b",
        "GET",
        shard_edits(),
    )
    .unwrap();
    let query = edited.unwrap();
    assert!(
        query.starts_with("/api/v1/configmaps?limit=5&labelSelector="),
        "{query}"
    );
    assert!(query.ends_with("&continue=a%2Bb%3d&b"), "{query}");
}

#[test]
fn query_that_api_server_would_drop_is_refused() {
    for query in ["labelSelector=a%3D0;x=1", "labelSelector=a%3D0%zz", "x=%", "a;b"] {
        assert_eq!(
            apply_to(&format!("/api/v1/configmaps?{query}"), "GET", shard_edits()),
            Err("client 400".into()),
            "{query}"
        );
    }
    for selector in ["a===", ",", "a%3D0,", "a%253D0", "a%20in%200"] {
        let target = format!("/api/v1/configmaps?labelSelector={selector}");
        assert_eq!(
            apply_to(&target, "GET", shard_edits()),
            Err("client 400".into()),
            "{selector}"
        );
    }
}

#[test]
fn malformed_query_passes_when_no_view_is_at_stake() {
    let header = RequestEdit::SetHeader(HeaderName::from_static("x-a"), HeaderValue::from_static("b"));
    assert_eq!(apply_to("/api/v1/configmaps?x=%zz", "GET", vec![header]), Ok(None));
}

#[test]
fn delete_collection_is_narrowed_to_shard() {
    let edited = apply_to("/api/v1/namespaces/n/configmaps", "DELETE", shard_edits()).unwrap();
    assert_eq!(
        edited.as_deref(),
        Some("/api/v1/namespaces/n/configmaps?labelSelector=shard%3Da")
    );
}

#[test]
fn impossible_edit_is_plugins_fault() {
    let fault = |target: &str, edit: RequestEdit| {
        let error = apply_to(target, "GET", vec![edit]).unwrap_err();
        assert!(error.starts_with("plugin "), "{error}");
        error
    };
    fault(
        "/api/v1/namespaces/n/configmaps/c",
        RequestEdit::AndLabelSelector("a=b".into()),
    );
    fault("/api/v1/configmaps", RequestEdit::AndLabelSelector("a in".into()));
    fault("/api/v1/configmaps", RequestEdit::AndFieldSelector("a".into()));
}

#[test]
fn query_and_field_selector_edits_add_up() {
    let edits = vec![
        RequestEdit::SetQuery("limit".into(), "7".into()),
        RequestEdit::RemoveQuery("pretty".into()),
        RequestEdit::AndFieldSelector("metadata.namespace=n".into()),
    ];
    let edited = apply_to(
        "/api/v1/configmaps?pretty=1&limit=5&fieldSelector=metadata.name%3Dx",
        "GET",
        edits,
    );
    assert_eq!(
        edited.unwrap().as_deref(),
        Some("/api/v1/configmaps?limit=7&fieldSelector=metadata.name%3Dx%2Cmetadata.namespace%3Dn")
    );
}

#[test]
fn lock_is_renamed_in_path_and_field_selector() {
    let rename = || {
        vec![RequestEdit::RenameObject {
            from: "lock".into(),
            to: "lock---s0".into(),
        }]
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
    assert_eq!(
        apply_to(&format!("{leases}/lock"), "GET", rename()),
        Ok(Some(format!("{leases}/lock---s0")))
    );
    let watch = format!("{leases}?watch=1&fieldSelector=metadata.name%3Dlock");
    let edited = apply_to(&watch, "GET", rename()).unwrap().unwrap();
    let query = edited.split_once('?').unwrap().1;
    assert_eq!(
        Query::new(query).get("fieldSelector").as_deref(),
        Some("metadata.name=lock---s0")
    );
    let twice = vec![rename().remove(0), rename().remove(0)];
    assert!(apply_to(&format!("{leases}/lock"), "GET", twice).is_err());
}

#[test]
fn create_may_have_renames_of_several_names() {
    let rename = |from: &str, to: &str| RequestEdit::RenameObject {
        from: from.to_owned(),
        to: to.to_owned(),
    };
    let leases = "/apis/coordination.k8s.io/v1/namespaces/n/leases";
    let of_two_locks = || vec![rename("lock", "lock---a"), rename("another", "another---b")];
    assert_eq!(apply_to(leases, "POST", of_two_locks()), Ok(None));
    assert!(apply_to(&format!("{leases}/lock"), "PUT", of_two_locks()).is_err());
    assert!(apply_to(&format!("{leases}/lock/status"), "POST", of_two_locks()).is_err());
    let of_one_lock = vec![rename("lock", "lock---a"), rename("lock", "lock---b")];
    assert!(apply_to(leases, "POST", of_one_lock).is_err());
}

fn set_query(method: &str, target: &str, name: &str, value: &str) -> Result<Option<String>, String> {
    apply_to(target, method, vec![RequestEdit::SetQuery(name.into(), value.into())])
}

#[test]
fn parameter_that_api_server_does_not_read_is_plugins_mistake() {
    let (one, all) = ("/api/v1/namespaces/n/configmaps/c", "/api/v1/namespaces/n/configmaps");
    for (method, target, name) in [
        ("GET", all, "dryRun"),
        ("GET", one, "limit"),
        ("POST", all, "resourceVersion"),
        ("POST", all, "propagationPolicy"),
        ("PUT", one, "force"),
        ("DELETE", one, "fieldManager"),
        ("DELETE", one, "gracePeriodSeconds"),
        ("GET", all, "sendInitialEvents"),
        ("POST", "/api/v1/namespaces/n/pods/p/exec", "dryRun"),
    ] {
        let error = set_query(method, target, name, "x").unwrap_err();
        assert!(
            error.starts_with(&format!("plugin set-query {name}")),
            "{method} {target}: {error}"
        );
    }
    for (method, target, name) in [
        ("POST", all, "dryRun"),
        ("PATCH", one, "force"),
        ("PUT", one, "fieldManager"),
        ("DELETE", one, "dryRun"),
        ("DELETE", all, "propagationPolicy"),
        ("DELETE", all, "limit"),
        ("GET", one, "resourceVersion"),
        ("GET", "/api/v1/pods?watch=1", "sendInitialEvents"),
        ("GET", "/api/v1/namespaces/n/pods/p/log", "limitBytes"),
        ("GET", "/api/v1/nodes/n/proxy/x", "limit"),
        ("GET", "/apis/g/v1/things", "unknown"),
        ("GET", "/openapi/v3", "limit"),
    ] {
        assert!(set_query(method, target, name, "x").is_ok(), "{method} {target} {name}");
    }
}

/// An eviction deletes by the options of its body; of its query the API server reads a create's options only.
#[test]
fn delete_options_in_query_of_eviction_are_plugins_mistake() {
    let eviction = "/api/v1/namespaces/n/pods/p/eviction";
    for name in [
        "gracePeriodSeconds",
        "propagationPolicy",
        "orphanDependents",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
    ] {
        let error = set_query("POST", eviction, name, "1").unwrap_err();
        assert!(error.starts_with(&format!("plugin set-query {name}")), "{error}");
        assert!(set_query("POST", "/apis/g/v1/namespaces/n/pods/p/eviction", name, "1").is_ok());
    }
    assert_eq!(
        set_query("POST", eviction, "dryRun", "All"),
        Ok(Some(format!("{eviction}?dryRun=All")))
    );
}

#[test]
fn options_of_delete_are_kept_for_its_body() {
    let options = |method: &str, edit: RequestEdit| {
        let uri: Uri = "/api/v1/namespaces/n/configmaps/c?a=b".parse().unwrap();
        let info = RequestInfo::parse(method, uri.path(), uri.query()).unwrap();
        let query = ParsedQuery::new(uri.query().unwrap_or_default());
        apply(&info, &uri, &query, &[(EntryId::next_id(), edit)])
            .unwrap()
            .delete_options
    };
    let dry_run = || RequestEdit::SetQuery("dryRun".into(), "All".into());
    assert_eq!(options("DELETE", dry_run()), [DeleteOption::DryRun.set("All").unwrap()]);
    assert_eq!(
        options("DELETE", RequestEdit::RemoveQuery("propagationPolicy".into())),
        [DeleteOption::PropagationPolicy.remove()]
    );
    assert_eq!(options("PUT", dry_run()), []);
    assert_eq!(options("DELETE", RequestEdit::RemoveQuery("a".into())), []);
}

fn keep_objects() -> RequestEdit {
    RequestEdit::KeepObjects(Predicate::All(Box::default()).into())
}

fn ask_about_objects() -> RequestEdit {
    RequestEdit::AskAboutObjects(ObjectQuestion::new(Vec::new()))
}

fn drop_fields() -> RequestEdit {
    let paths = vec!["metadata.managedFields".to_owned()];
    RequestEdit::DropFields(PluginDroppedFields::parse(paths).unwrap())
}

#[test]
fn keep_objects_edits_only_tables_without_objects() {
    let edited = |query: &str| apply_to(&format!("/api/v1/pods?{query}"), "GET", vec![keep_objects()]);
    for query in [
        "limit=1",
        "watch=1",
        "includeObject=Object",
        "includeObject=",
        "watch=1&x=None",
    ] {
        assert_eq!(edited(query), Ok(None), "{query}");
    }
    for (query, expected) in [
        ("includeObject=None&limit=1", "includeObject=Metadata&limit=1"),
        (
            "watch=1&include%4Fbject=None&includeObject=Object",
            "watch=1&includeObject=Metadata",
        ),
    ] {
        assert_eq!(edited(query), Ok(Some(format!("/api/v1/pods?{expected}"))), "{query}");
    }
    let set = RequestEdit::SetQuery("includeObject".into(), "None".into());
    let both = apply_to("/api/v1/pods", "GET", vec![keep_objects(), set]);
    assert_eq!(
        both,
        Ok(Some("/api/v1/pods?includeObject=Metadata".into())),
        "an edit after it"
    );
}

#[test]
fn edits_of_objects_are_plugins_mistake_on_other_verbs() {
    let (all, one) = ("/api/v1/namespaces/n/pods", "/api/v1/namespaces/n/pods/p");
    for (method, target, verb) in [("GET", one, "get"), ("POST", all, "create"), ("DELETE", one, "delete")] {
        for (edit, name, legal) in [
            (keep_objects(), "keep-objects", "list, watch and deletecollection"),
            (ask_about_objects(), "ask-about-objects", "list and watch"),
            (drop_fields(), "drop-fields", "list and watch"),
        ] {
            let refused = apply_to(target, method, vec![edit]);
            let expected = format!("plugin {name} on {verb}: it is legal on {legal}");
            assert_eq!(refused, Err(expected));
        }
    }
}

#[test]
fn requirement_on_an_object_is_legal_on_requests_that_name_one() {
    let apply = |method: &str, target: &str| {
        let everything = Predicate::All(Box::default());
        let edit = RequestEdit::RequireObjectMatch(everything.into(), ObjectRefusal::Conflict);
        apply_to(target, method, vec![edit])
    };
    let (all, one) = ("/api/v1/namespaces/n/pods", "/api/v1/namespaces/n/pods/p");
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        assert_eq!(apply(method, one), Ok(None), "{method}");
    }
    for subresource in ["eviction", "exec", "binding"] {
        assert_eq!(
            apply("POST", &format!("{one}/{subresource}")),
            Ok(None),
            "{subresource}"
        );
    }
    assert_eq!(apply("PUT", &format!("{one}/status?dryRun=All")), Ok(None));
    let legal = "it is legal on get, update, patch and delete, and on subresources";
    for (method, target, verb) in [
        ("GET", all, "list"),
        ("GET", "/api/v1/namespaces/n/pods?watch=1", "watch"),
        ("POST", all, "create"),
        ("DELETE", all, "deletecollection"),
    ] {
        let expected = format!("plugin require-object-match on {verb}: {legal}");
        assert_eq!(apply(method, target), Err(expected));
    }
    for method in ["PUT", "PATCH"] {
        assert_eq!(apply(method, all), Err("client 400".to_owned()), "{method}");
    }
}

#[test]
fn deletecollection_of_kept_objects_is_narrowed_by_selectors_alone() {
    let target = "/api/v1/namespaces/n/pods?includeObject=None";
    assert_eq!(apply_to(target, "DELETE", vec![keep_objects()]), Ok(None));
    let edits = vec![keep_objects(), RequestEdit::AndLabelSelector("a=b".into())];
    let expected = format!("{target}&labelSelector=a%3Db");
    assert_eq!(apply_to(target, "DELETE", edits), Ok(Some(expected)));
    let malformed = apply_to("/api/v1/namespaces/n/pods?a;b", "DELETE", vec![keep_objects()]);
    assert_eq!(malformed, Err("client 400".to_owned()));
}

#[test]
fn deletecollection_with_questions_or_dropped_fields_is_refused_whatever_the_failure_policy() {
    for edit in [ask_about_objects(), drop_fields()] {
        let refused = apply_to("/api/v1/namespaces/n/pods", "DELETE", vec![edit]);
        assert_eq!(refused, Err("client 400".to_owned()));
    }
}

#[test]
fn question_about_objects_edits_only_tables_without_objects() {
    let edited = |query: &str| apply_to(&format!("/api/v1/pods?{query}"), "GET", vec![ask_about_objects()]);
    assert_eq!(edited("limit=1"), Ok(None));
    assert_eq!(
        edited("includeObject=None"),
        Ok(Some("/api/v1/pods?includeObject=Metadata".into()))
    );
}

#[test]
fn dropped_fields_edit_only_tables_without_objects() {
    let edited = |query: &str| apply_to(&format!("/api/v1/pods?{query}"), "GET", vec![drop_fields()]);
    assert_eq!(edited("limit=1"), Ok(None));
    assert_eq!(
        edited("includeObject=None"),
        Ok(Some("/api/v1/pods?includeObject=Metadata".into()))
    );
    let metrics = "/apis/external.metrics.k8s.io/v1beta1/namespaces/n/queue?includeObject=None";
    assert_eq!(apply_to(metrics, "GET", vec![drop_fields()]), Ok(None));
}
