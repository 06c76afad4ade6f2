use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::testing::{Bench, TestRequest};
use crate::{
    Ask, Bucket, Claim, Host, InstanceInfo, Level, MatchRule, Part, Phases, Place, Plugin, Refusal, Request,
    RequestAction, RequestVerdict, Subscription, Verb, settings,
};

type Decide = fn(&dyn Request, &dyn Host) -> RequestVerdict;

thread_local! {
    /// How the plugin of a test decides.
    static DECIDE: Cell<Decide> = const { Cell::new(proceed as Decide) };
    /// A value that a plugin keeps in a static.
    static REMEMBERED: RefCell<Option<String>> = const { RefCell::new(None) };
    /// An extra action of the test's plugin in its second call.
    static SECOND: Cell<Act> = const { Cell::new(nothing as Act) };
}

type Act = fn(&dyn Host);

fn nothing(_: &dyn Host) {}

struct Deciding {
    calls: u32,
}

impl Plugin for Deciding {
    type Settings = settings::NoSettings;

    fn configure(_: Self::Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        let subscription = Subscription::new(Phases::ON_REQUEST, [MatchRule::any()]);
        Ok((Self { calls: 0 }, subscription))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        self.calls += 1;
        DECIDE.get()(req, host)
    }
}

fn bench(decide: Decide) -> Bench<Deciding> {
    DECIDE.set(decide);
    Bench::new("{}").unwrap()
}

fn get() -> TestRequest {
    TestRequest::get("", "pods", "p").header_field("x-team", "a")
}

/// The message with which the bench fails.
fn failure(bench: &mut Bench<Deciding>, req: &TestRequest) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| bench.on_request(req)));
    *failed
        .expect_err("the bench did not fail")
        .downcast::<String>()
        .unwrap()
}

fn proceed(_: &dyn Request, _: &dyn Host) -> RequestVerdict {
    RequestVerdict::proceed()
}

fn forbidden() -> RequestVerdict {
    RequestVerdict::refuse(Refusal::new(403, "no"))
}

fn forbidden_if(is_forbidden: bool) -> RequestVerdict {
    if is_forbidden {
        forbidden()
    } else {
        RequestVerdict::proceed()
    }
}

fn remembered() -> Option<String> {
    REMEMBERED.with_borrow(Clone::clone)
}

fn remember(text: Option<String>) {
    REMEMBERED.set(text);
}

#[test]
fn verdict_by_header_of_an_earlier_call_is_found() {
    let mut bench = bench(|req, _| {
        if req.verb() == Verb::Create {
            remember(req.header("x-team"));
            return RequestVerdict::proceed();
        }
        forbidden_if(remembered().as_deref() == Some("b")).reusable()
    });
    let create = |team| TestRequest::api(Verb::Create, "", "pods").header_field("x-team", team);
    bench.on_request(&create("a"));
    assert_eq!(bench.on_request(&get()), RequestVerdict::proceed().reusable());
    assert_eq!(bench.on_request(&get()), RequestVerdict::proceed().reusable());
    bench.on_request(&create("b"));
    let message = failure(&mut bench, &get());
    assert!(
        message.contains("an earlier call that read the same values"),
        "{message}"
    );
    assert!(message.contains("read: verb\n"), "{message}");
    let (_, verdicts) = message.split_once("first verdict: ").unwrap();
    let (first, second) = verdicts.split_once("second verdict: ").unwrap();
    assert!(first.contains("Proceed") && second.contains("403"), "{message}");
}

#[test]
fn verdict_that_changes_with_the_next_call_is_found() {
    let mut bench = bench(|req, _| {
        let before = remembered();
        remember(Some(req.name().to_owned()));
        forbidden_if(before.is_some()).reusable()
    });
    let message = failure(&mut bench, &get());
    assert!(message.contains("a second call"), "{message}");
    let changed = "changed: traffic, verb, group, version, resource, subresource, namespace, method, path, host, \
                   header x-team, port, header content-length, is_leader_lock, is_recheck, header user-agent, \
                   header x-unread\n";
    assert!(message.contains(changed), "{message}");
}

#[test]
fn question_that_is_asked_only_once_is_found() {
    let mut bench = bench(|req, _| {
        if remembered().is_none() {
            remember(req.header("X-Team"));
        }
        RequestVerdict::proceed().reusable()
    });
    let message = failure(&mut bench, &get());
    assert!(message.contains("read: header x-team\n"), "{message}");
    assert!(message.ends_with("read by the second call: "), "{message}");
}

#[test]
fn effect_that_changes_is_found() {
    let mut bench = bench(|_, host| {
        let label = remembered().unwrap_or_default();
        remember(Some(format!("{label}x")));
        host.count("seen", &label, 1);
        RequestVerdict::proceed().reusable()
    });
    let message = failure(&mut bench, &get());
    assert!(
        message.contains("first effects: ") && message.contains("second effects: "),
        "{message}"
    );
    assert_eq!(
        (bench.host.counter("seen", ""), bench.host.counter("seen", "x")),
        (1, 0)
    );
}

#[test]
fn counter_that_is_incremented_by_another_amount_is_found() {
    let mut bench = bench(|_, host| {
        let is_second = remembered().is_some();
        remember(Some(String::new()));
        host.increment("n", if is_second { 2 } else { 1 });
        RequestVerdict::proceed().reusable()
    });
    let message = failure(&mut bench, &get());
    assert!(message.contains(r#"increments: [("n", 2)]"#), "{message}");
    assert_eq!(bench.host.add("n", 0, None), Ok(Some(1)));
}

#[test]
fn cell_that_was_not_read_is_changed() {
    let mut bench = bench(|req, host| {
        let keys: &[_] = if remembered().is_some() {
            &["read", "other"]
        } else {
            &["read"]
        };
        remember(Some(String::new()));
        let is_own = keys.iter().all(|key| host.get(key).unwrap().unwrap().value == b"own");
        if is_own && req.verb() == Verb::Get {
            RequestVerdict::proceed().reusable()
        } else {
            forbidden()
        }
    });
    for key in ["read", "other"] {
        bench.host.compare_and_swap(key, 0, b"own").unwrap();
    }
    let message = failure(&mut bench, &get());
    assert!(message.contains("cell other") && message.contains("403"), "{message}");
    for key in ["read", "other"] {
        assert_eq!(bench.host.get(key).unwrap().unwrap().value, b"own");
    }
}

#[test]
fn timed_verdict_must_hold_to_its_end() {
    const END: u64 = 1_767_225_600_000 + 1_000;
    let decide: Decide = |_, host| {
        let verdict = forbidden_if(host.unix_ms() + 10 >= END);
        verdict.reusable_until(END - remembered().map_or(0, |_| 10))
    };
    let message = failure(&mut bench(decide), &get());
    assert!(message.contains("the time"), "{message}");
    remember(Some(String::new()));
    let mut bench = bench(decide);
    let now = bench.host.unix_ms();
    assert_eq!(
        bench.on_request(&get()),
        RequestVerdict::proceed().reusable_until(END - 10)
    );
    assert_eq!(bench.host.unix_ms(), now);
    bench.host.advance_ms(990);
    assert!(matches!(bench.on_request(&get()).action, RequestAction::Refuse(_)));
}

/// Functions whose effect or result a host does not repeat, each with a call of it.
const USED_ONCE: [(&str, Act); 11] = [
    ("random", |host| {
        let _ = host.random();
    }),
    ("log", |host| host.log(Level::Info, "again")),
    ("gauge", |host| host.gauge("level", "", 1.0)),
    ("take", |host| {
        let _ = host.take(&[]);
    }),
    ("put_report", |host| host.put_report("r", "1")),
    ("remove_report", |host| host.remove_report("r")),
    ("show_counters", |host| host.show_counters("r", &[])),
    ("add", |host| {
        let _ = host.add("n", 1, None);
    }),
    ("window_add", |host| {
        let _ = host.window_add("w", 1000, 10, 1);
    }),
    ("compare_and_swap", |host| {
        let _ = host.compare_and_swap("cell", 0, b"x");
    }),
    ("remove", |host| host.remove("cell")),
];

#[test]
fn second_call_that_does_what_is_not_repeated_is_found() {
    for (function, act) in USED_ONCE {
        SECOND.set(act);
        remember(None);
        let mut bench = bench(|_, host| {
            if remembered().is_some() {
                SECOND.get()(host);
            }
            remember(Some(String::new()));
            RequestVerdict::proceed().reusable()
        });
        let message = failure(&mut bench, &get());
        assert!(
            message.contains(&format!("the second call used {function},")),
            "{message}"
        );
        let host = &bench.host;
        assert_eq!((host.logs().len(), host.report("r")), (0, None));
        assert_eq!((host.gauge_value("level", ""), host.get("cell").unwrap()), (None, None));
        assert_eq!(host.add("n", 0, None), Ok(Some(0)));
    }
}

/// The third call is one of the next request: the second one audited the first.
#[test]
fn later_call_that_writes_although_an_earlier_one_was_marked_is_found() {
    let mut bench = bench(|_, host| {
        let before = remembered().unwrap_or_default();
        if before.len() == 2 {
            host.put_report("r", "1");
        }
        remember(Some(before + "x"));
        RequestVerdict::proceed().reusable()
    });
    bench.on_request(&get());
    let message = failure(&mut bench, &get());
    assert!(
        message.contains("an earlier call that read the same values"),
        "{message}"
    );
    assert!(message.contains("the second call used put_report,"), "{message}");
}

#[test]
fn second_verdict_without_the_mark_of_the_first_is_found() {
    let mut bench = bench(|_, _| {
        let is_second = remembered().is_some();
        remember(Some(String::new()));
        if is_second {
            RequestVerdict::proceed()
        } else {
            RequestVerdict::proceed().reusable()
        }
    });
    let message = failure(&mut bench, &get());
    assert!(
        message.ends_with("the second verdict is not marked as reusable"),
        "{message}"
    );
}

#[test]
fn mark_of_a_timed_verdict_may_end_before_its_time() {
    let mut bench = bench(|_, host| {
        let is_second = remembered().is_some();
        remember(Some(String::new()));
        if is_second {
            RequestVerdict::proceed()
        } else {
            RequestVerdict::proceed().reusable_until(host.unix_ms() + 1_000)
        }
    });
    bench.on_request(&get());
    assert_eq!(bench.plugin.calls, 2);
}

/// The second call takes a token and a place, counts, increments, notes and names a rule as the first one does.
#[test]
fn second_call_leaves_nothing_behind() {
    let mut bench = bench(|req, host| {
        let bucket = Bucket {
            limit: 1,
            interval_ms: 1_000,
            burst: 3,
        };
        let claim = Claim {
            key: "b".to_owned(),
            bucket,
            tokens: 1,
        };
        let ask = Ask { claim, max_wait_ms: 0 };
        let place = Place {
            key: "p".to_owned(),
            max: 10,
        };
        if host.admit(&[ask], &[place]) != Ok(crate::Admission::Granted(0)) {
            return forbidden();
        }
        host.count("seen", req.name(), 1);
        host.increment("n", 1);
        host.name_rule("rule", Part::Action);
        req.set_note(req.note() + 1);
        RequestVerdict::proceed().reusable()
    });
    let req = get();
    assert_eq!(bench.on_request(&req), RequestVerdict::proceed().reusable());
    assert_eq!(bench.plugin.calls, 2);
    assert_eq!((req.note(), req.take_reads()), (1, vec!["name", "note"]));
    let host = &bench.host;
    assert_eq!((host.counter("seen", "p"), host.counter("seen", "p-other")), (1, 0));
    assert_eq!(host.take_named_rules(), [("rule".to_owned(), Part::Action)]);
    assert_eq!(host.held_places("p"), 1);
    assert_eq!(host.add("n", 0, None), Ok(Some(1)));
    for _ in 0..2 {
        assert_eq!(bench.on_request(&get()).action, RequestAction::Proceed(Vec::new()));
    }
    assert_eq!(
        bench.on_request(&get()),
        forbidden(),
        "each request has taken one token"
    );
    assert_eq!(bench.host.held_places("p"), 3);
}

#[test]
fn verdict_that_is_not_repeated_is_not_audited() {
    let mut once = bench(|req, _| RequestVerdict::edit([crate::RequestEdit::remove_header(req.name())]));
    once.on_request(&get());
    assert_eq!(once.plugin.calls, 1);
    let mut logs = bench(|_, host| {
        host.info("seen");
        RequestVerdict::proceed().reusable()
    });
    logs.on_request(&get());
    assert_eq!((logs.plugin.calls, logs.host.logs().len()), (1, 1));
    let mut past = bench(|_, host| RequestVerdict::proceed().reusable_until(host.unix_ms()));
    past.on_request(&get());
    assert_eq!(past.plugin.calls, 1);
}
