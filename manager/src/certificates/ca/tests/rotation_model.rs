//! Order and times of rotations, and that clients always accept the served certificate.

use proptest::prelude::*;

use super::super::credential::{parse_certificates, verify_certificate};
use super::*;

fn planned_step(stored: &Stored, bundle: &str, now: SystemTime, trusted_since: Option<SystemTime>) -> Step {
    let state = CaState {
        now,
        stored,
        names: &names(),
        bundles: &[bundle.to_owned()],
        trusted_since,
    };
    next_step(&state, &WEBHOOKS)
}

fn with_step(stored: &Stored, step: Step, now: SystemTime) -> Stored {
    stored.with_step(step, &names(), now, &WEBHOOKS).unwrap()
}

#[test]
fn rotation_steps_follow_in_order() {
    let (now, schedule) = (start(), WEBHOOKS);
    let none = Stored::default();
    assert_eq!(planned_step(&none, "", now, None), Step::Issue);
    let fresh = with_step(&none, Step::Issue, now);
    assert_eq!(planned_step(&fresh, "", now, None), Step::Trust);
    assert_eq!(
        planned_step(&fresh, &fresh.trust_bundle(), now, None),
        Step::Rest(schedule.rest)
    );

    let due = now + schedule.life - schedule.renew_before;
    let almost = due - Duration::from_secs(7);
    assert_eq!(
        planned_step(&fresh, &fresh.trust_bundle(), almost, None),
        Step::Rest(Duration::from_secs(7))
    );
    assert_eq!(planned_step(&fresh, &fresh.trust_bundle(), due, None), Step::Prepare);
    let prepared = with_step(&fresh, Step::Prepare, due);
    assert_eq!(prepared.current, fresh.current, "what was prepared is not served");
    assert_eq!(planned_step(&prepared, &fresh.trust_bundle(), due, None), Step::Trust);
    assert_eq!(
        planned_step(&prepared, &prepared.trust_bundle(), due, None),
        Step::Settle
    );
    let early = due + schedule.settle - Duration::from_secs(1);
    let rest = Step::Rest(Duration::from_secs(1));
    assert_eq!(
        planned_step(&prepared, &prepared.trust_bundle(), early, Some(due)),
        rest
    );
    let settled = due + schedule.settle;
    assert_eq!(
        planned_step(&prepared, &prepared.trust_bundle(), settled, Some(due)),
        Step::Promote
    );
    // A bundle that somebody has reset is restored first, however long it was complete.
    assert_eq!(
        planned_step(&prepared, &fresh.trust_bundle(), settled, Some(due)),
        Step::Trust
    );

    let promoted = with_step(&prepared, Step::Promote, settled);
    assert_eq!((&promoted.current, &promoted.next), (&prepared.next, &None));
    assert_eq!(parse_certificates(&promoted.trust_bundle()).len(), 2);
    let bundle = promoted.trust_bundle();
    assert_eq!(
        planned_step(&promoted, &bundle, settled, None),
        Step::Rest(schedule.rest)
    );
    let ended = now + schedule.life;
    assert_eq!(planned_step(&promoted, &bundle, ended, None), Step::Forget);
    let forgot = with_step(&promoted, Step::Forget, ended);
    assert_eq!(parse_certificates(&forgot.trust_bundle()).len(), 1);
    assert_eq!(planned_step(&forgot, &bundle, ended, None), Step::Trust);
}

#[test]
fn unacceptable_certificate_is_replaced_at_once() {
    let now = start();
    let good = issue_credential(now, 300 * DAY);
    type Change = fn(&mut Credential);
    let changes: [(&str, Change); 4] = [
        ("another's key", |it| it.key = issue_credential(start(), DAY).key),
        ("another's CA", |it| it.ca = issue_credential(start(), DAY).ca),
        ("no PEM", |it| it.certificate = "certificate".to_owned()),
        ("its CA has ended", |it| {
            it.ca = issue_credential(start() - 9 * DAY, DAY).ca
        }),
    ];
    for (what, change) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        let stored = Stored {
            current: Some(bad),
            ..Stored::default()
        };
        assert_eq!(
            planned_step(&stored, &stored.trust_bundle(), now, None),
            Step::Issue,
            "{what}"
        );
    }
    let stored = Stored {
        current: Some(good.clone()),
        ..Stored::default()
    };
    assert_eq!(
        planned_step(&stored, &stored.trust_bundle(), now + 300 * DAY, None),
        Step::Issue
    );
    let renamed = CaState {
        now,
        stored: &stored,
        names: &["webhooks.example".to_owned()],
        bundles: &[],
        trusted_since: None,
    };
    // The certificate stays valid for clients that use the old name.
    assert_eq!(next_step(&renamed, &WEBHOOKS), Step::Prepare);
    // Clients that use the old name still trust the certificate that a replica may serve.
    assert!(with_step(&stored, Step::Issue, now).trust_bundle().contains(&good.ca));
    assert!(matches!(
        Credential::issue(&["*.".to_owned()], now, &schedule_with_life(DAY)),
        Err(Error::Names(_))
    ));
}

/// A Secret of KusionStack's manager: ten years, and copied keys.
#[test]
fn secret_of_kusionstack_is_taken_over() {
    let now = start();
    let theirs = issue_credential(now - 365 * DAY, 3650 * DAY);
    let text = |text: &str| k8s_openapi::ByteString(text.as_bytes().to_vec());
    let keys = [
        ("ca-cert.pem", &theirs.ca),
        ("ca-key.pem", &theirs.ca_key),
        ("cert.pem", &theirs.certificate),
        ("tls.crt", &theirs.certificate),
        ("key.pem", &theirs.key),
        ("tls.key", &theirs.key),
    ];
    let data = BTreeMap::from(keys.map(|(key, value)| (key.to_owned(), text(value))));
    let secret = Secret {
        data: Some(data.clone()),
        ..Secret::default()
    };
    let stored = Stored::from_secret(&secret);
    assert_eq!(planned_step(&stored, &theirs.ca, now, None), Step::Rest(WEBHOOKS.rest));
    let mut written = data.clone();
    stored.write(&mut written);
    assert_eq!(written, data);
    // KusionStack's manager finds the served certificate under its names.
    let mut rotated = data.clone();
    let promoted = with_step(&with_step(&stored, Step::Prepare, now), Step::Promote, now);
    promoted.write(&mut rotated);
    assert_eq!(
        rotated["cert.pem"],
        text(&promoted.current.clone().unwrap().certificate)
    );
    let rotated = Secret {
        data: Some(rotated),
        ..Secret::default()
    };
    assert_eq!(Stored::from_secret(&rotated), promoted);
}

#[test]
fn keys_are_not_printed() {
    let stored = with_step(&Stored::default(), Step::Issue, start());
    let printed = format!("{stored:?}");
    assert!(!printed.contains("KEY") && !printed.contains("BEGIN"), "{printed}");
}

/// A cluster with API servers that are slow to read bundles, and replicas that may never see the Secret again.
struct Fixture {
    now: SystemTime,
    names: Vec<String>,
    stored: Stored,
    bundles: [String; 2],
    trusted_since: Option<SystemTime>,
    /// Bundles that were replaced, and when.
    replaced: Vec<(SystemTime, String)>,
    /// All credentials that a replica may still serve.
    served: Vec<Credential>,
}

impl Fixture {
    fn new() -> Self {
        Self {
            now: start(),
            names: names(),
            stored: Stored::default(),
            bundles: Default::default(),
            trusted_since: None,
            replaced: Vec::new(),
            served: Vec::new(),
        }
    }

    /// The leader does steps until there is nothing to do.
    fn run_all_steps(&mut self) {
        for _ in 0..20 {
            let state = CaState {
                now: self.now,
                stored: &self.stored,
                names: &self.names,
                bundles: &self.bundles,
                trusted_since: self.trusted_since,
            };
            let step = next_step(&state, &WEBHOOKS);
            match step {
                Step::Rest(_) => return,
                Step::Settle => self.trusted_since = Some(self.now),
                Step::Trust => {
                    let bundle = self.stored.trust_bundle();
                    self.set_bundles(&bundle);
                }
                step => {
                    self.trusted_since = None;
                    let after = self.stored.with_step(step, &self.names, self.now, &WEBHOOKS);
                    self.stored = after.unwrap();
                }
            }
            self.check(step);
        }
        panic!("there is always something to do");
    }

    fn set_bundles(&mut self, bundle: &str) {
        self.trusted_since = None;
        for old in &mut self.bundles {
            self.replaced
                .push((self.now, std::mem::replace(old, bundle.to_owned())));
        }
    }

    /// Fails unless clients with any bundle that an API server may still use accept every credential that a replica may serve.
    fn check(&mut self, step: Step) {
        let current = self.stored.current.clone().unwrap();
        if !self.served.contains(&current) {
            // Before the first credential there are no clients.
            if self.served.is_empty() {
                self.replaced.clear();
                self.bundles = Default::default();
            }
            self.served.push(current);
        }
        let (now, settle) = (self.now, WEBHOOKS.settle);
        self.replaced.retain(|(at, _)| now < *at + settle);
        self.served.retain(|it| it.first_expiry().unwrap() > now);
        let old = self.replaced.iter().map(|(_, bundle)| bundle);
        for bundle in old.chain(&self.bundles).filter(|bundle| !bundle.is_empty()) {
            for served in &self.served {
                let is_accepted = verify_certificate(&served.certificate, &parse_certificates(bundle), &[], now);
                assert!(is_accepted, "after {step:?} somebody is cut off");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn clients_are_never_cut_off(
        waits in proptest::collection::vec((0_usize..7, any::<u8>()), 150),
    ) {
        const WAITS: [u64; 7] = [1, 60, 299, 301, 3_600, 86_400, 15 * 86_400];
        let mut fixture = Fixture::new();
        fixture.run_all_steps();
        let mut rotations = 0;
        // A year without events at the end, so that there is at least one rotation.
        for (wait, event) in waits.into_iter().chain(vec![(6, u8::MAX); 25]) {
            fixture.now += Duration::from_secs(WAITS[wait]);
            match event {
                // `kubectl apply` of the manifests.
                0..16 => fixture.set_bundles(""),
                // Another leader.
                16..32 => fixture.trusted_since = None,
                // `WEBHOOK_HOST` changes.
                32..48 => fixture.names = vec![format!("webhooks-{event}.example")],
                _ => {}
            }
            let before = fixture.stored.current.clone();
            fixture.run_all_steps();
            rotations += usize::from(before != fixture.stored.current);
        }
        prop_assert!(rotations > 0);
        let current = fixture.stored.current.unwrap();
        prop_assert!(current.is_accepted(&fixture.names, fixture.now), "it has the names that the server is called by");
    }
}
