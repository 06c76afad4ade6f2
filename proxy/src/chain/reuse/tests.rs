mod differential;

use http::Method;

use super::*;
use crate::plugin::tally::CountingRule;
use crate::plugin::verdict::{CellWrite, Details, Phases};
use crate::wasm::harness::request;
use crate::wasm::{Claim, Clock, ReuseObstacle, Rule, SeriesValue, StateStore};

/// A call that reads the name of a header's value and of a cell, and takes a token of two.
struct Fixture {
    calls: RememberedCalls,
    state: Arc<EntryState>,
    clock: Clock,
}

fn fixture() -> Fixture {
    let clock = Clock::manual();
    Fixture {
        calls: RememberedCalls::default(),
        state: StateStore::with_clock(clock.clone()).entry("e"),
        clock,
    }
}

fn verdict(edit: &str, reuse: Reuse) -> Rc<RequestVerdict> {
    Rc::new(RequestVerdict {
        delay: Duration::ZERO,
        action: RequestAction::Proceed(vec![RequestEdit::AndLabelSelector(edit.into())]),
        reuse,
        later: Phases::ALL,
        outcomes: None,
    })
}

fn outcome_rule(tally: &str) -> OutcomeRule {
    OutcomeRule {
        tally: tally.to_owned(),
        cells: Vec::new(),
        counting: CountingRule::default(),
    }
}

fn view(name: &str) -> RequestView {
    request(Method::GET, &format!("/api/v1/namespaces/a/pods/{name}")).view()
}

fn never_audited() -> AuditDraw {
    AuditDraw::new(NonZeroU64::MAX)
}

fn always_audited() -> AuditDraw {
    AuditDraw::new(NonZeroU64::MIN)
}

fn ask() -> Ask {
    Ask::available_now(Claim {
        key: "tokens".into(),
        rule: Rule {
            limit: 1,
            interval_ms: 100,
            burst: 2,
        },
        tokens: 1,
    })
}

impl Fixture {
    /// The trace of a call that reads the name of the object.
    fn trace(&self, request: &RequestView) -> Trace {
        let mut trace = Trace::default();
        trace.record_read(Step::Name, &Step::Name.evaluate(request, false));
        trace
    }

    fn learn(&mut self, trace: Trace, verdict: &Rc<RequestVerdict>) -> Result<(), Impure> {
        let now_ms = unix_ms(&self.state);
        self.calls.learn(trace, verdict, None, now_ms, &self.state)
    }

    /// The edit that is repeated for this request.
    fn repeated(&mut self, request: &RequestView) -> Option<String> {
        match self.calls.look_up(request, &self.state, &never_audited(), None) {
            LookUp::Repeated(verdict) => match &verdict.action {
                RequestAction::Proceed(edits) => match edits.as_slice() {
                    [RequestEdit::AndLabelSelector(selector)] => Some(selector.to_string()),
                    other => panic!("{other:?}"),
                },
                other => panic!("{other:?}"),
            },
            _ => None,
        }
    }

    fn audited(&mut self, request: &RequestView) -> Rc<RememberedCall> {
        match self.calls.look_up(request, &self.state, &always_audited(), None) {
            LookUp::Audit(call) => call,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn verdict_is_repeated_for_requests_that_look_the_same_to_the_plugin() {
    let mut fixture = fixture();
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
    assert_eq!(fixture.repeated(&view("b")), None);
    let post = request(Method::DELETE, "/api/v1/namespaces/b/secrets/a").view();
    assert_eq!(fixture.repeated(&post).as_deref(), Some("x"), "only the name was read");
    fixture.calls.clear();
    assert_eq!(fixture.repeated(&view("a")), None);
}

#[test]
fn verdict_without_mark_or_with_an_obstacle_is_not_repeated() {
    let mut fixture = fixture();
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", Reuse::Never)).unwrap();
    let mut trace = fixture.trace(&view("a"));
    trace.end(ReuseObstacle::Random);
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    let mut trace = fixture.trace(&view("a"));
    trace.record_clock();
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    assert_eq!(fixture.repeated(&view("a")), None);
}

#[test]
fn effects_are_repeated_and_nothing_is_when_tokens_are_short() {
    let mut fixture = fixture();
    let mut trace = fixture.trace(&view("a"));
    trace.record_grant(&[ask()], &[]);
    trace.record_count("seen", "l", 2);
    trace.record_note(7);
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    let entry = Arc::as_ptr(&fixture.state).addr();
    for _ in 0..2 {
        let request = view("a");
        assert_eq!(fixture.repeated(&request).as_deref(), Some("x"));
        assert_eq!(request.state.note(entry), 7);
    }
    let request = view("a");
    assert_eq!(fixture.repeated(&request), None, "the bucket had two tokens");
    assert_eq!(request.state.note(entry), 0);
    let (series, _) = fixture.state.series().snapshot();
    assert_eq!(series.len(), 1);
    assert_eq!(series[0].value, SeriesValue::Counter(4), "twice two");
    fixture.clock.advance(Duration::from_millis(100));
    assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
}

#[test]
fn repetitions_add_to_the_series_of_the_call_and_drop_what_it_dropped() {
    let mut fixture = fixture();
    let series = |fixture: &Fixture| {
        let (series, dropped) = fixture.state.series().snapshot();
        let counts = series.iter().map(|series| (series.name.clone(), series.value));
        (counts.collect::<Vec<_>>(), dropped)
    };
    fixture.state.series().gauge("level", "", 1.0);
    let mut trace = fixture.trace(&view("a"));
    for (name, by) in [("seen", 2), ("level", 1), ("Bad", 1), ("seen", 3)] {
        fixture.state.series().count(name, "", by);
        trace.record_count(name, "", by);
    }
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    for requests in 1..=4 {
        let expected = [
            ("level", SeriesValue::Gauge(1.0)),
            ("seen", SeriesValue::Counter(5 * requests)),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value)).to_vec();
        assert_eq!(series(&fixture), (expected, 2 * requests));
        assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
    }
}

impl Fixture {
    /// The value of a counter of the state.
    fn count(&self, key: &str) -> Option<i64> {
        self.state.add(key, 0, None).unwrap()
    }
}

#[test]
fn repetitions_increment_counters_of_the_state_if_tokens_are_there() {
    let mut fixture = fixture();
    let mut trace = fixture.trace(&view("a"));
    trace.record_increment("matched", 1);
    trace.record_grant(&[ask()], &[]);
    trace.record_increment("fired", 3);
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    let counts = |fixture: &Fixture| (fixture.count("matched"), fixture.count("fired"));
    assert_eq!(counts(&fixture), (Some(0), Some(0)), "the call itself has counted");
    for number in 1..=2 {
        assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
        assert_eq!(counts(&fixture), (Some(number), Some(3 * number)));
    }
    assert_eq!(fixture.repeated(&view("a")), None, "the bucket had two tokens");
    assert_eq!(counts(&fixture), (Some(2), Some(6)), "the call will count");
}

#[test]
fn verdict_does_not_depend_on_a_counter_that_its_call_only_increments() {
    let mut fixture = fixture();
    let mut trace = fixture.trace(&view("a"));
    trace.record_increment("n", 1);
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    fixture.state.increment("n", 5);
    assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
    fixture.state.remove("n");
    assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
    assert_eq!(fixture.count("n"), Some(1));
}

/// A counter's value is read by `add`, which ends the reuse. `get` shows only that a key holds no counter.
#[test]
fn verdict_that_read_a_key_is_not_repeated_after_a_repetition_counted_in_it() {
    let mut fixture = fixture();
    let mut trace = fixture.trace(&view("reads"));
    let (found, write) = fixture.state.get_with_write("n").unwrap();
    assert_eq!(found, None);
    trace.record_read(Step::Cell("n"), &Seen::Number(write));
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    let mut trace = fixture.trace(&view("counts"));
    trace.record_increment("n", 1);
    fixture.learn(trace, &verdict("y", Reuse::WhileUnchanged)).unwrap();
    assert_eq!(fixture.repeated(&view("reads")).as_deref(), Some("x"));
    assert_eq!(fixture.repeated(&view("counts")).as_deref(), Some("y"));
    assert_eq!(fixture.repeated(&view("reads")), None);
    assert_eq!(fixture.repeated(&view("counts")).as_deref(), Some("y"));
}

#[test]
fn audit_counts_once_and_finds_other_increments() {
    let mut fixture = fixture();
    let call = |fixture: &Fixture, increments: &[(&str, u64)]| {
        let mut trace = fixture.trace(&view("a"));
        for (key, by) in increments {
            fixture.state.increment(key, *by);
            trace.record_increment(key, *by);
        }
        trace
    };
    let trace = call(&fixture, &[("n", 1)]);
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    let mut audit = |increments: &[(&str, u64)]| {
        let before = fixture.count("n");
        let audited = fixture.audited(&view("a"));
        assert_eq!(fixture.count("n"), before, "the audit's call counts");
        let trace = call(&fixture, increments);
        let verdict = verdict("x", Reuse::WhileUnchanged);
        fixture.calls.learn(trace, &verdict, Some(&audited), 0, &fixture.state)
    };
    assert_eq!(audit(&[("n", 1)]), Ok(()));
    for others in [&[][..], &[("n", 2)], &[("m", 1)], &[("n", 1), ("n", 1)]] {
        let impure = audit(others).unwrap_err();
        assert!(impure.contradiction.contains("counted"), "{impure:?}");
    }
}

#[test]
fn verdict_is_not_repeated_after_a_cell_was_written() {
    let mut fixture = fixture();
    let read = |fixture: &Fixture| {
        let mut trace = Trace::default();
        let (_, write) = fixture.state.get_with_write("k").unwrap();
        trace.record_read(Step::Cell("k"), &Seen::Number(write));
        trace
    };
    let trace = read(&fixture);
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
    fixture.state.compare_and_swap("k", 0, vec![1]).unwrap();
    assert_eq!(fixture.repeated(&view("a")), None);
    let trace = read(&fixture);
    fixture.learn(trace, &verdict("y", Reuse::WhileUnchanged)).unwrap();
    assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("y"));
    fixture.state.remove("k");
    fixture.state.compare_and_swap("k", 0, vec![1]).unwrap();
    assert_eq!(fixture.repeated(&view("a")), None, "its version is 1 again");
}

#[test]
fn verdict_with_a_time_holds_until_then_and_not_before_its_call() {
    let mut fixture = fixture();
    fixture.clock.advance(Duration::from_millis(50));
    let mut trace = fixture.trace(&view("a"));
    trace.record_clock();
    fixture.learn(trace, &verdict("x", Reuse::UntilUnixMs(60))).unwrap();
    fixture.clock.advance(Duration::from_millis(9));
    assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("x"));
    fixture.clock.advance(Duration::from_millis(1));
    assert_eq!(fixture.repeated(&view("a")), None);
    let trace = fixture.trace(&view("b"));
    let later = unix_ms(&fixture.state) + 5;
    let until = verdict("x", Reuse::UntilUnixMs(later + 10));
    fixture.calls.learn(trace, &until, None, later, &fixture.state).unwrap();
    assert_eq!(
        fixture.repeated(&view("b")),
        None,
        "the clock was set back since the call"
    );
}

#[test]
fn audit_finds_a_verdict_that_differs_and_effects_that_differ() {
    let mut fixture = fixture();
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    let mut audit = |trace: Trace, verdict: &Rc<RequestVerdict>| {
        let audited = fixture.audited(&view("a"));
        fixture.calls.learn(trace, verdict, Some(&audited), 0, &fixture.state)
    };
    let mut name = Trace::default();
    name.record_read(Step::Name, &Seen::Text("a".into()));
    let same = |obstacle: Option<ReuseObstacle>| {
        let mut trace = Trace::default();
        trace.record_read(Step::Name, &Seen::Text("a".into()));
        obstacle.into_iter().for_each(|obstacle| trace.end(obstacle));
        trace
    };
    assert_eq!(audit(same(None), &verdict("x", Reuse::WhileUnchanged)), Ok(()));
    assert!(audit(same(None), &verdict("y", Reuse::WhileUnchanged)).is_err());
    assert!(audit(same(None), &verdict("y", Reuse::Never)).is_err());
    assert_eq!(
        audit(same(Some(ReuseObstacle::Admission)), &verdict("y", Reuse::Never)),
        Ok(()),
        "tokens were short, which is no difference of the plugin"
    );
    name.record_count("seen", "", 1);
    assert!(audit(name, &verdict("x", Reuse::WhileUnchanged)).is_err());
    assert_eq!(audit(same(None), &verdict("x", Reuse::WhileUnchanged)), Ok(()));
    let counted = Rc::new(RequestVerdict {
        outcomes: Some(Rc::new([outcome_rule("t")])),
        ..Rc::unwrap_or_clone(verdict("x", Reuse::WhileUnchanged))
    });
    assert!(audit(same(None), &counted).is_err());
    let mut other_reads = Trace::default();
    other_reads.record_read(Step::Group, &Seen::Text("".into()));
    assert!(audit(other_reads, &verdict("x", Reuse::Never)).is_err());
}

/// Remembers a call that takes a token, and audits it by one that takes it several times and then has these obstacles.
fn audit_of_grants(remembered: Reuse, grants: usize, obstacles: &[ReuseObstacle]) -> Result<(), Impure> {
    let mut fixture = fixture();
    let call = |grants: usize| {
        let mut trace = Trace::default();
        trace.record_read(Step::Name, &Seen::Text("a".into()));
        (0..grants).for_each(|_| trace.record_grant(&[ask()], &[]));
        trace
    };
    fixture.learn(call(1), &verdict("x", remembered)).unwrap();
    let audited = fixture.audited(&view("a"));
    let mut trace = call(grants);
    obstacles.iter().for_each(|obstacle| trace.end(*obstacle));
    let verdict = verdict("x", remembered);
    fixture.calls.learn(trace, &verdict, Some(&audited), 0, &fixture.state)
}

#[test]
fn audit_finds_call_that_takes_the_same_tokens_twice() {
    for remembered in [Reuse::WhileUnchanged, Reuse::UntilUnixMs(60)] {
        assert_eq!(audit_of_grants(remembered, 1, &[]), Ok(()));
        let impure = audit_of_grants(remembered, 2, &[]).unwrap_err();
        assert!(impure.contradiction.contains("took"), "{impure:?}");
        for change in [ReuseObstacle::Admission, ReuseObstacle::Changed] {
            assert_eq!(audit_of_grants(remembered, 2, &[change]), Ok(()), "{change:?}");
        }
    }
}

/// Remembers a call, and audits it by a call with these obstacles whose verdict has this mark.
fn audit_of_call(remembered: Reuse, obstacles: &[ReuseObstacle], reuse: Reuse) -> (Fixture, Result<(), Impure>) {
    let mut fixture = fixture();
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", remembered)).unwrap();
    let audited = fixture.audited(&view("a"));
    let mut trace = fixture.trace(&view("a"));
    obstacles.iter().for_each(|obstacle| trace.end(*obstacle));
    let learnt = fixture
        .calls
        .learn(trace, &verdict("x", reuse), Some(&audited), 0, &fixture.state);
    (fixture, learnt)
}

#[test]
fn audit_finds_call_that_writes_draws_or_withdraws_its_mark() {
    use ReuseObstacle::{Admission, Changed, Clock, Random, TooMuch, Write};
    let audit = |obstacles: &[ReuseObstacle], reuse| audit_of_call(Reuse::WhileUnchanged, obstacles, reuse).1;
    for obstacle in [Write, Random] {
        let alone = audit(&[obstacle], Reuse::WhileUnchanged).unwrap_err();
        let after_another = audit(&[TooMuch, obstacle], Reuse::WhileUnchanged).unwrap_err();
        assert!(
            alone.contradiction.contains("drew") && alone == after_another,
            "{alone:?}"
        );
        // A plugin may write because a cell has changed or tokens are short.
        for change in [Changed, Admission] {
            for obstacles in [[obstacle, change], [change, obstacle]] {
                assert_eq!(audit(&obstacles, Reuse::Never), Ok(()), "{obstacles:?}");
            }
        }
    }
    let impure = audit(&[], Reuse::Never).unwrap_err();
    assert!(impure.contradiction.contains("any more"), "{impure:?}");
    assert_eq!(audit(&[Clock], Reuse::WhileUnchanged), Ok(()));
}

#[test]
fn timed_verdict_is_not_repeated_after_an_audit_that_differs_in_what_can_be_repeated() {
    let until = Reuse::UntilUnixMs(60);
    let audits: [(&[ReuseObstacle], Reuse); 3] = [
        (&[ReuseObstacle::Write], until),
        (&[ReuseObstacle::Random], until),
        (&[], Reuse::Never),
    ];
    for (obstacles, reuse) in audits {
        let (mut fixture, learnt) = audit_of_call(until, obstacles, reuse);
        assert_eq!((learnt, fixture.repeated(&view("a"))), (Ok(()), None), "{obstacles:?}");
        let trace = fixture.trace(&view("a"));
        fixture.learn(trace, &verdict("y", until)).unwrap();
        assert_eq!(fixture.repeated(&view("a")).as_deref(), Some("y"));
    }
}

#[test]
fn timed_verdict_is_not_repeated_after_an_audit_that_reads_something_else() {
    let mut fixture = fixture();
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", Reuse::UntilUnixMs(60))).unwrap();
    let audited = fixture.audited(&view("a"));
    let mut trace = Trace::default();
    trace.record_read(Step::Group, &Seen::Text("".into()));
    let learnt = fixture
        .calls
        .learn(trace, &verdict("x", Reuse::Never), Some(&audited), 0, &fixture.state);
    assert_eq!((learnt, fixture.repeated(&view("a"))), (Ok(()), None));
}

#[test]
fn first_contradiction_of_a_plugin_stays() {
    let state = ReuseState::default();
    assert_eq!((state.is_impure(), state.first_contradiction()), (false, None));
    assert!(state.set_impure("first"));
    assert!(!state.set_impure("second"));
    assert_eq!((state.is_impure(), state.first_contradiction()), (true, Some("first")));
}

#[test]
fn audit_does_not_compare_after_the_time_of_a_verdict_has_passed() {
    let mut fixture = fixture();
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", Reuse::UntilUnixMs(60))).unwrap();
    let audited = fixture.audited(&view("a"));
    // The call begins before that moment, and reads the clock after it.
    fixture.clock.advance(Duration::from_millis(60));
    let trace = fixture.trace(&view("a"));
    let learnt = fixture
        .calls
        .learn(trace, &verdict("y", Reuse::Never), Some(&audited), 59, &fixture.state);
    assert_eq!(learnt, Ok(()));
}

#[test]
fn size_of_a_call_counts_all_texts_of_its_verdict() {
    let text = "x".repeat(1000);
    let refusal = Refusal {
        code: 403,
        reason: text.clone(),
        message: text.clone(),
        retry_after_seconds: None,
        cause: Some(text.clone()),
        details: Some(Details {
            name: text.clone(),
            group: text.clone(),
            kind: text.clone(),
            causes: vec![Cause {
                reason: text.clone(),
                message: text.clone(),
                field: text.clone(),
            }],
        }),
    };
    let answer = Answer {
        code: 200,
        headers: vec![(
            http::HeaderName::from_static("x-a"),
            http::HeaderValue::from_str(&text).unwrap(),
        )],
        body: text.clone().into(),
        close_connection: false,
    };
    for (action, texts) in [(RequestAction::Refuse(refusal), 9), (RequestAction::Answer(answer), 2)] {
        let verdict = Rc::new(RequestVerdict {
            action,
            ..Rc::unwrap_or_clone(verdict("", Reuse::WhileUnchanged))
        });
        let call = RememberedCall::new(verdict, Effects::default(), None);
        assert!(call.bytes() > texts * text.len(), "{}", call.bytes());
    }
    let mut trace = Trace::default();
    let key = "k".repeat(500);
    (0..4).for_each(|_| trace.record_increment(&key, 1));
    let call = RememberedCall::new(verdict("", Reuse::WhileUnchanged), trace.into_parts().1, None);
    assert!(call.bytes() > 4 * key.len(), "{}", call.bytes());
    let mut rule = outcome_rule(&text);
    rule.cells.push(CellWrite {
        key: text.clone(),
        write: 1,
    });
    let verdict = Rc::new(RequestVerdict {
        outcomes: Some(Rc::new([rule])),
        ..Rc::unwrap_or_clone(verdict("", Reuse::WhileUnchanged))
    });
    let call = RememberedCall::new(verdict, Effects::default(), None);
    assert!(call.bytes() > 2 * text.len(), "{}", call.bytes());
}

#[test]
fn audit_does_not_compare_after_a_cell_was_written() {
    let mut fixture = fixture();
    let read = |write| {
        let mut trace = Trace::default();
        trace.record_read(Step::Cell("k"), &Seen::Number(write));
        trace
    };
    fixture.learn(read(0), &verdict("x", Reuse::WhileUnchanged)).unwrap();
    let audited = fixture.audited(&view("a"));
    let learnt = fixture.calls.learn(
        read(1),
        &verdict("y", Reuse::WhileUnchanged),
        Some(&audited),
        0,
        &fixture.state,
    );
    assert_eq!(learnt, Ok(()));
}

#[test]
fn calls_of_a_plugin_that_marks_nothing_are_rarely_recorded() {
    let mut fixture = fixture();
    let mut recorded = 0;
    for _ in 0..UNMARKED_CALLS + 10 * RECORDED_UNMARKED {
        if fixture.calls.records_next_call() {
            recorded += 1;
            let trace = fixture.trace(&view("a"));
            fixture.learn(trace, &verdict("x", Reuse::Never)).unwrap();
        }
    }
    assert_eq!(recorded, UNMARKED_CALLS + 10);
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    assert!(fixture.calls.records_next_call());
}

#[tokio::test(start_paused = true)]
async fn remembering_pauses_when_nothing_is_repeated() {
    let mut fixture = fixture();
    for number in 0..INSERTS_BEFORE_PAUSE {
        assert!(fixture.calls.records_next_call());
        let trace = fixture.trace(&view(&number.to_string()));
        fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    }
    assert!(!fixture.calls.records_next_call());
    assert_eq!(fixture.calls.table.len(), 0);
    tokio::time::advance(PAUSE).await;
    assert!(fixture.calls.records_next_call());
}

#[test]
fn remembering_goes_on_when_every_repetition_is_audited() {
    let mut fixture = fixture();
    let trace = fixture.trace(&view("a"));
    fixture.learn(trace, &verdict("x", Reuse::WhileUnchanged)).unwrap();
    for _ in 0..2 * INSERTS_BEFORE_PAUSE {
        let audited = fixture.audited(&view("a"));
        let trace = fixture.trace(&view("a"));
        let verdict = verdict("x", Reuse::WhileUnchanged);
        fixture
            .calls
            .learn(trace, &verdict, Some(&audited), 0, &fixture.state)
            .unwrap();
    }
    assert!(fixture.calls.records_next_call());
    assert_eq!(fixture.calls.table.len(), 1);
}

#[test]
fn audits_are_drawn_at_the_given_rate() {
    let draw = AuditDraw::new(NonZeroU64::new(100).unwrap());
    let audited = (0..100_000).filter(|_| draw.next()).count();
    assert!((800..1200).contains(&audited), "{audited}");
    assert!((0..1000).all(|_| always_audited().next() && !never_audited().next()));
}
