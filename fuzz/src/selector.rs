//! Selectors: a first line with one selector, then another.

use ctrlmesh_wire::{FieldOperator, FieldSelector, LabelSelector};

/// No panic; a printed selector is the same when read again; validation and parsing agree; two selectors joined by AND match exactly what
/// both match.
pub fn selector(data: &[u8]) {
    let (left, right) = crate::split_line(data);
    let (Ok(left), Ok(right)) = (std::str::from_utf8(left), std::str::from_utf8(right)) else {
        return;
    };
    check_labels(left, right);
    check_fields(left, right);
}

fn check_labels(left: &str, right: &str) {
    assert_eq!(LabelSelector::parse(left).err(), LabelSelector::validate(left).err());
    let (Ok(left), Ok(right)) = (LabelSelector::parse(left), LabelSelector::parse(right)) else {
        return;
    };
    let mut both = left.clone();
    both.narrow_by(right.clone());
    for selector in [&left, &right, &both] {
        assert_eq!(LabelSelector::parse(&selector.to_string()).as_ref(), Ok(selector));
    }
    // Objects with labels from the selectors, and one without labels.
    for choice in 0..4_usize {
        let labels = |key: &str| {
            let named = both.requirements.iter().filter(|requirement| requirement.key == key);
            let value = named.flat_map(|requirement| &requirement.values).nth(choice);
            value.map(String::as_str).filter(|_| choice < 3)
        };
        assert_eq!(both.matches(&labels), left.matches(&labels) && right.matches(&labels));
    }
}

fn check_fields(left: &str, right: &str) {
    let (Ok(left), Ok(right)) = (FieldSelector::parse(left), FieldSelector::parse(right)) else {
        return;
    };
    let mut both = left.clone();
    both.narrow_by(right.clone());
    let again = FieldSelector::parse(&both.to_string()).expect("a printed selector is read");
    // Terms are sorted by their texts, and printing changes a text (`==` to `=`).
    let sorted = |selector: &FieldSelector| {
        let mut terms: Vec<(String, bool, String)> = selector
            .requirements
            .iter()
            .map(|term| {
                (
                    term.field.clone(),
                    term.operator == FieldOperator::Equals,
                    term.value.clone(),
                )
            })
            .collect();
        terms.sort();
        terms
    };
    assert_eq!(sorted(&again), sorted(&both));
    for choice in 0..3_usize {
        let fields = |field: &str| {
            let named = both
                .requirements
                .iter()
                .filter(|requirement| requirement.field == field);
            named.map(|requirement| requirement.value.as_str()).nth(choice)
        };
        assert_eq!(both.matches(&fields), left.matches(&fields) && right.matches(&fields));
    }
}
