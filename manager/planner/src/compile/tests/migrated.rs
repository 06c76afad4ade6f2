//! Objects migrated from KusionStack, whose sidecar ignored them unless a pod set a switch.

use super::*;
use crate::switches;
use crate::validate::validate;

/// The object with the finalizer of KusionStack's manager.
fn with_kusionstack_finalizer(mut object: Value) -> Value {
    object["metadata"]["finalizers"] = json!(["finalizer.ctrlmesh.kusionstack.io/protected"]);
    object
}

fn with_activation(mut object: Value) -> Value {
    object["metadata"]["annotations"] = json!({"ctrlmesh.kusionstack.io/activate": "true"});
    object
}

fn with_lists() -> Value {
    breaker(
        "calm",
        &json!({}),
        &[limit("LimiterOnly", "slow")],
        &[list("hosts", "Blacklist", "a.example")],
    )
}

fn compile_after(document: &Value, last: Option<Chain>) -> Compiled {
    let mut fixture = Fixture::new(std::slice::from_ref(document));
    fixture.last = last;
    fixture.compile()
}

#[test]
fn faults_of_kusionstack_do_nothing_until_they_are_activated() {
    let object = with_kusionstack_finalizer(faults("old"));
    let none = compile_after(&object, None);
    assert!(names(&none).is_empty(), "{:?}", names(&none));
    assert!(reasons(&none).is_empty(), "it makes sense");
    assert_eq!(switches::why_held_back(&object, &none.chain), Some(switches::FAULTS));
    for object in [
        faults("new"),
        with_activation(with_kusionstack_finalizer(faults("old"))),
    ] {
        let compiled = compile_after(&object, None);
        assert_eq!(compiled.chain.entries.len(), 1, "{object}");
        assert_eq!(switches::why_held_back(&object, &compiled.chain), None);
    }
    let mut disabled = object;
    disabled["spec"]["disabled"] = json!(true);
    assert_eq!(
        switches::why_held_back(&disabled, &none.chain),
        None,
        "that is reason enough"
    );
}

#[test]
fn lists_of_kusionstack_do_nothing_until_they_are_activated_and_limits_act() {
    let object = with_kusionstack_finalizer(with_lists());
    let compiled = compile_after(&object, None);
    assert_eq!(names(&compiled), ["rate-limit/calm"]);
    assert_eq!(switches::why_held_back(&object, &compiled.chain), Some(switches::LISTS));
    for object in [with_lists(), with_activation(with_kusionstack_finalizer(with_lists()))] {
        let compiled = compile_after(&object, None);
        assert_eq!(
            names(&compiled),
            ["rate-limit/calm", "circuit-breaker/calm"],
            "{object}"
        );
        assert_eq!(switches::why_held_back(&object, &compiled.chain), None);
    }
    let without = with_kusionstack_finalizer(breaker("calm", &json!({}), &[limit("Normal", "break")], &[]));
    let compiled = compile_after(&without, None);
    assert_eq!(names(&compiled), ["circuit-breaker/calm"], "breakers were on there");
    assert_eq!(switches::why_held_back(&without, &compiled.chain), None);
}

#[test]
fn held_back_allow_list_allows_nothing_to_others() {
    let allow = |name: &str, host: &str| breaker(name, &json!({}), &[], &[list("hosts", "Whitelist", host)]);
    let compiled = Fixture::new(&[
        allow("own", "a.example"),
        with_kusionstack_finalizer(allow("old", "b.example")),
    ])
    .compile();
    let settings = find_entry(&compiled, "circuit-breaker/own")
        .settings
        .value()
        .to_string();
    assert!(
        settings.contains("a.example") && !settings.contains("b.example"),
        "{settings}"
    );
}

#[test]
fn migrated_objects_that_act_already_stay_active() {
    for object in [faults("old"), with_lists()] {
        let before = compile_after(&object, None).chain;
        let compiled = compile_after(&with_kusionstack_finalizer(object.clone()), Some(before.clone()));
        assert_eq!(compiled.chain.entries, before.entries);
        assert_eq!(
            switches::why_held_back(&with_kusionstack_finalizer(object), &compiled.chain),
            None
        );
    }
}

#[test]
fn lint_and_admission_warn_of_each_held_back_object() {
    let warned = |object: &Value| {
        let findings = validate(object);
        assert!(findings.is_accepted(), "{object}");
        let warnings = findings.warnings.list().iter();
        let mut warnings = warnings.map(|it| format!("{}: {}", it.path, it.problem));
        warnings.any(|warning| warning.contains("ctrlmesh.kusionstack.io/activate"))
    };
    for object in [faults("old"), with_lists()] {
        assert!(!warned(&object), "{object}");
        assert!(warned(&with_kusionstack_finalizer(object.clone())), "{object}");
        assert!(
            !warned(&with_activation(with_kusionstack_finalizer(object.clone()))),
            "{object}"
        );
    }
}
