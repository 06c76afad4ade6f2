//! A CA that signs several certificates, for programs that read their bundle once, when they start.

use super::super::credential::{parse_certificates, verify_certificate};
use super::*;
use crate::certificates::lifetimes::{Leaf, SIDECARS};

const LEAF: Leaf = SIDECARS.leaf.unwrap();
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// The time that a program may run without a restart.
const LONGEST: Duration = Duration::from_secs(4 * 365 * 24 * 3600 - 24 * 3600);

/// Does all steps until there is nothing to do. Bundles are trusted at once.
fn run_all_steps(stored: &mut Stored, names: &[String], now: SystemTime) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut bundle = stored.trust_bundle();
    loop {
        let state = CaState {
            now,
            stored,
            names,
            bundles: std::slice::from_ref(&bundle),
            // The bundles settled long ago.
            trusted_since: Some(now - DAY),
        };
        let step = next_step(&state, &SIDECARS);
        match step {
            Step::Rest(_) => return steps,
            Step::Trust => bundle = stored.trust_bundle(),
            step => *stored = stored.with_step(step, names, now, &SIDECARS).unwrap(),
        }
        steps.push(step);
        assert!(steps.len() < 10, "{steps:?}");
    }
}

#[test]
fn long_running_programs_accept_certificates_through_every_rotation() {
    let mut stored = Stored::default();
    // Bundles that a program may have read, and the last time at which one did.
    let mut read: Vec<(SystemTime, String)> = Vec::new();
    let mut authorities = std::collections::BTreeSet::new();
    for day in (0..40 * 365).step_by(20) {
        let now = start() + DAY * day;
        run_all_steps(&mut stored, &names(), now);
        let current = stored.current.clone().unwrap();
        authorities.insert(current.ca.clone());
        match read.iter_mut().find(|(_, bundle)| *bundle == stored.trust_bundle()) {
            Some((last, _)) => *last = now,
            None => read.push((now, stored.trust_bundle())),
        }
        read.retain(|(last, _)| now < *last + LONGEST);
        for (last, bundle) in &read {
            let is_accepted = verify_certificate(&current.certificate, &parse_certificates(bundle), &names(), now);
            assert!(
                is_accepted,
                "day {day}: who started {:?} before is cut off",
                now.duration_since(*last)
            );
        }
        let left = certificate_end(&current).duration_since(now).unwrap();
        assert!(left > LEAF.renew_before - 20 * DAY, "day {day}: {left:?} are left");
        assert!(parse_certificates(&stored.trust_bundle()).len() <= 3, "day {day}");
    }
    assert!(authorities.len() >= 4, "{}", authorities.len());
}

fn certificate_end(credential: &Credential) -> SystemTime {
    not_after(&parse_certificates(&credential.certificate)[0]).unwrap()
}

#[test]
fn certificate_is_renewed_before_its_end_and_for_new_names() {
    let mut stored = Stored::default();
    assert_eq!(
        run_all_steps(&mut stored, &names(), start()),
        [Step::Issue, Step::Trust]
    );
    let first = stored.current.clone().unwrap();
    assert_eq!(certificate_end(&first), start() + LEAF.life);
    let due = start() + LEAF.life - LEAF.renew_before;
    assert_eq!(run_all_steps(&mut stored, &names(), due - DAY), []);
    assert_eq!(run_all_steps(&mut stored, &names(), due), [Step::Sign]);
    let second = stored.current.clone().unwrap();
    assert_eq!((&second.ca, &second.ca_key), (&first.ca, &first.ca_key));
    assert_ne!(second.key, first.key);
    assert!(verify_certificate(
        &second.certificate,
        &parse_certificates(&first.ca),
        &names(),
        due
    ));

    let mut more = names();
    more.push("10.96.0.1".to_owned());
    assert_eq!(run_all_steps(&mut stored, &more, due), [Step::Sign]);
    assert!(verify_certificate(
        &stored.current.clone().unwrap().certificate,
        &parse_certificates(&first.ca),
        &more,
        due
    ));
}

/// A CA without its key can't sign certificates, so it is replaced.
#[test]
fn ca_without_its_key_is_replaced() {
    let mut stored = Stored::default();
    run_all_steps(&mut stored, &names(), start());
    let other = issue_credential(start(), YEAR);
    for key in ["", &other.ca_key] {
        let mut stored = stored.clone();
        let current = stored.current.as_mut().unwrap();
        current.ca_key = key.to_owned();
        let before = current.clone();
        assert_eq!(
            run_all_steps(&mut stored, &names(), start() + DAY),
            [Step::Prepare, Step::Trust, Step::Promote]
        );
        assert_ne!(stored.current.as_ref().unwrap().ca, before.ca);
        assert!(
            stored.trust_bundle().contains(&before.ca),
            "who serves the old one goes on to be trusted"
        );
    }
}
