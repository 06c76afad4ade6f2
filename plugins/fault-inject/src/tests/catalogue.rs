//! Compares the catalogue with the README.

use crate::catalogue::CATALOGUE;

const README: &str = include_str!("../../README.md");

#[test]
fn every_fault_is_in_the_readme_with_its_ids() {
    let (_, catalogue) = README.split_once("## Catalogue").unwrap();
    for entry in CATALOGUE {
        let line = catalogue
            .lines()
            .find(|line| line.starts_with(&format!("| `{}` |", entry.name)));
        let line = line.unwrap_or_else(|| panic!("README.md has no row for {}", entry.name));
        for id in entry.ids {
            assert!(line.contains(id), "the row of {} lacks {id}", entry.name);
        }
    }
}

#[test]
fn every_id_of_the_contract_has_a_fault() {
    let ids: Vec<&str> = CATALOGUE.iter().flat_map(|entry| entry.ids).copied().collect();
    for id in [
        "A1", "B1", "B2", "B3", "B4", "L1", "L2", "W1", "W3", "N1", "N2", "N3", "N4", "N5", "N6", "N7", "E1", "E2",
        "E5", "E6", "E7", "R3", "R5", "S1", "S2", "S4", "S5", "I1", "I2", "D1", "D2", "D3", "D4", "D5",
    ] {
        assert!(ids.contains(&id), "{id}");
    }
}

#[test]
fn fault_names_are_distinct() {
    let mut names: Vec<&str> = CATALOGUE.iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), CATALOGUE.len());
}

#[test]
fn readme_example_is_accepted() {
    let (_, yaml) = README.split_once("```yaml\n").unwrap();
    let (yaml, _) = yaml.split_once("```").unwrap();
    let entries: serde_json::Value = serde_saphyr::from_str(yaml).unwrap();
    let bench = super::support::new_bench(&entries[0]["settings"].to_string());
    assert!(bench.host.report("late-requests").is_some() && bench.host.report("office-hours").is_some());
}
