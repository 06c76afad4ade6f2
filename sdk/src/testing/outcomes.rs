//! The host's part in outcome rules: keeps them with the request, counts by them, and reports crossings to the plugin.

use std::collections::BTreeSet;

use super::bench::Bench;
use super::host::FakeHost;
use super::kept_verdict::{KeptRule, KeptVerdict};
use super::objects;
use super::request::{TestRequest, TestResponse};
use super::tally::{ConnectionFailures, CountingRule, Crossed, End, EndCause, Judged, WindowRule};
use crate::{Crossing, Failure, Outcome, OutcomeRule, Phases, Plugin, RequestVerdict, TallyCounts, Threshold};

/// Bounds of the contract (`wit/types.wit`, `outcome-rule`).
const MAX_RULES: usize = 24;
const MAX_CELLS: usize = 4;

impl FakeHost {
    /// Keeps what a verdict says about the rest of its request, as a host does. [`Bench::on_request`] does so; a test that calls
    /// the plugin itself does it afterwards.
    ///
    /// # Panics
    ///
    /// An outcome rule is invalid, or names a cell that was not read for this verdict, or the verdict asks for too many annotations: a
    /// fault of the plugin in a real host.
    pub fn keep_verdict(&self, req: &TestRequest, verdict: &RequestVerdict) {
        let reads = self.cell_log.take_reads();
        let keep = |rule: &OutcomeRule| {
            let unread = rule.cells.iter().find(|key| !reads.contains_key(*key));
            assert_eq!(unread, None, "an outcome rule names a cell that the call has not read");
            assert!(rule.cells.len() <= MAX_CELLS, "more than {MAX_CELLS} cells: {rule:?}");
            let counting = counting_rule(rule);
            assert_eq!(counting.check(), Ok(()), "{rule:?}");
            let read = |key: &String| Some((key.clone(), *reads.get(key)?));
            KeptRule {
                tally: rule.tally.clone(),
                cells: rule.cells.iter().filter_map(read).collect(),
                counting,
                settings: self.settings_number(),
            }
        };
        let rules: Vec<KeptRule> = verdict.outcomes.iter().map(keep).collect();
        let tallies: BTreeSet<&str> = rules.iter().map(|rule| rule.tally.as_str()).collect();
        assert!(
            rules.len() <= MAX_RULES && tallies.len() == rules.len(),
            "at most {MAX_RULES} outcome rules, each with another tally"
        );
        req.keep_verdict(Some(KeptVerdict {
            later: verdict.later,
            rules,
            asked_annotations: objects::asked_annotations(verdict),
        }));
    }

    /// Counts a response head by the rules that were kept with the request. Returns what the plugin's `on_crossed` is to be called
    /// with; empty if it is not called.
    pub fn count_head(&self, req: &TestRequest, status: u16) -> Vec<Crossing> {
        self.count(req, |rule| rule.counting.judge_head(status))
    }

    /// Counts the end of a request by the rules that were kept with it. Returns the same as [`FakeHost::count_head`].
    pub fn count_end(&self, req: &TestRequest, outcome: &Outcome) -> Vec<Crossing> {
        let end = end_of(outcome);
        self.count(req, |rule| rule.counting.judge_end(&end))
    }

    /// How many outcomes could not be counted, because the entry had no room for another key.
    #[must_use]
    pub fn uncounted_outcomes(&self) -> u64 {
        self.uncounted.get()
    }

    fn count(&self, req: &TestRequest, judge: impl Fn(&KeptRule) -> Option<Judged>) -> Vec<Crossing> {
        let mut crossings = Vec::new();
        for rule in req.kept_verdict().iter().flat_map(|kept| &kept.rules) {
            let is_current = rule
                .cells
                .iter()
                .all(|(key, changes)| self.cell_log.changes_of(key) == *changes);
            let Some(judged) = judge(rule).filter(|_| is_current) else {
                continue;
            };
            match self.count_in_tally(rule, judged) {
                Ok(Some((crossed, counts))) => crossings.push(Crossing {
                    tally: rule.tally.clone(),
                    versions: rule.cells.iter().map(|(key, _)| self.cell_version(key)).collect(),
                    threshold: match crossed {
                        Crossed::ConsecutiveFailures => Threshold::ConsecutiveFailures,
                        Crossed::FailurePercent => Threshold::FailurePercent,
                        Crossed::SlowPercent => Threshold::SlowPercent,
                    },
                    counts: TallyCounts {
                        requests: counts.requests,
                        failures: counts.failures,
                        slow: counts.slow,
                        consecutive_failures: counts.consecutive_failures,
                    },
                }),
                Ok(None) => {}
                Err(_) => self.uncounted.set(self.uncounted.get() + 1),
            }
        }
        crossings
    }
}

impl<P: Plugin> Bench<P> {
    /// Does what a host does when the response head of a request arrives: calls `on_response` if the plugin has subscribed to it
    /// and its verdict wants it, and counts by outcome rules that judge heads.
    pub fn respond(&mut self, req: &TestRequest, res: &TestResponse) {
        let crossings = self.host.count_head(req, res.status_code());
        self.tell_crossings(&crossings);
        if self.wants(req, Phases::ON_RESPONSE) {
            self.on_response(req, res);
        }
    }

    /// Does what a host does when a request is over: calls `on_complete` if the plugin has subscribed to it and its verdict wants
    /// it, and counts by outcome rules.
    pub fn finish(&mut self, req: &TestRequest, outcome: &Outcome) {
        if self.wants(req, Phases::ON_COMPLETE) {
            self.on_complete(req, outcome);
        }
        let crossings = self.host.count_end(req, outcome);
        self.tell_crossings(&crossings);
    }

    fn wants(&self, req: &TestRequest, phase: Phases) -> bool {
        let later = req.kept_verdict().map_or(Phases::all(), |kept| kept.later);
        self.subscription.phases.contains(phase) && later.contains(phase)
    }

    fn tell_crossings(&mut self, crossings: &[Crossing]) {
        if !crossings.is_empty() {
            self.plugin.on_crossed(crossings, &self.host);
            self.host.cell_log.forget_reads();
        }
    }
}

fn counting_rule(rule: &OutcomeRule) -> CountingRule {
    let ranges = rule.failing_statuses.iter();
    CountingRule {
        at_head: rule.at_head,
        failing_statuses: ranges.map(|range| (range.first, range.last)).collect(),
        failing_connections: ConnectionFailures {
            unreachable: rule
                .failing_connections
                .contains(crate::ConnectionFailures::UNREACHABLE),
            upstream_reset: rule
                .failing_connections
                .contains(crate::ConnectionFailures::UPSTREAM_RESET),
            timeout: rule.failing_connections.contains(crate::ConnectionFailures::TIMEOUT),
        },
        slower_than_us: rule.slower_than_us,
        window: rule.window.map(|window| WindowRule {
            length_ms: window.length_ms,
            slots: window.slots,
            minimum_requests: window.minimum_requests,
            failure_percent: window.failure_percent,
            slow_percent: window.slow_percent,
        }),
        consecutive_failures: rule.consecutive_failures,
    }
}

fn end_of(outcome: &Outcome) -> End {
    End {
        cause: match outcome.failure {
            Some(Failure::ClientGone) => EndCause::ClientGone,
            Some(Failure::Unreachable) => EndCause::Unreachable,
            Some(Failure::UpstreamReset) => EndCause::UpstreamReset,
            Some(Failure::Timeout) => EndCause::Timeout,
            Some(Failure::Refused | Failure::PluginReset | Failure::PluginFailed) | None => EndCause::Other,
        },
        upstream_status: outcome.upstream_status,
        duration_us: outcome.duration_us,
        upstream_us: outcome.upstream_us,
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::settings::NoSettings;
    use crate::testing::bench::test_instance_info;
    use crate::{Host, InstanceInfo, MatchRule, OutcomeWindow, Request, ResponseHead, ResponseVerdict, Subscription};

    /// Counts two failures in a row, in a tally that belongs to a cell.
    struct Counter {
        crossings: Vec<Crossing>,
    }

    impl Plugin for Counter {
        type Settings = NoSettings;

        fn configure(_: NoSettings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
            let crossings = Vec::new();
            Ok((
                Self { crossings },
                Subscription::new(Phases::ON_REQUEST, [MatchRule::any()]),
            ))
        }

        fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
            let _ = host.get("c");
            let is_watch = req.verb() == crate::Verb::Watch;
            let rule = OutcomeRule::new("t").cell("c").at_head(is_watch);
            RequestVerdict::proceed().count_outcome(rule.consecutive_failures(2))
        }

        fn on_crossed(&mut self, crossings: &[Crossing], _: &dyn Host) {
            self.crossings.extend_from_slice(crossings);
        }
    }

    fn ended(status: u16) -> Outcome {
        Outcome {
            status,
            upstream_status: status,
            failure: None,
            duration_us: 2,
            upstream_us: 1,
            request_bytes: 0,
            response_bytes: 0,
        }
    }

    fn bench() -> Bench<Counter> {
        Bench::new("{}").unwrap()
    }

    fn admitted(bench: &mut Bench<Counter>, req: TestRequest) -> TestRequest {
        bench.on_request(&req);
        req
    }

    #[test]
    fn plugin_learns_once_of_a_threshold_that_is_reached() {
        let mut bench = bench();
        for _ in 0..3 {
            let req = admitted(&mut bench, TestRequest::get("", "pods", "p"));
            bench.finish(&req, &ended(500));
        }
        let expected = Crossing {
            tally: "t".to_owned(),
            versions: vec![0],
            threshold: Threshold::ConsecutiveFailures,
            counts: TallyCounts {
                requests: 0,
                failures: 0,
                slow: 0,
                consecutive_failures: 2,
            },
        };
        assert_eq!(bench.plugin.crossings, [expected]);
    }

    #[test]
    fn outcome_from_before_a_change_of_the_cell_is_not_counted() {
        let mut bench = bench();
        let early: Vec<TestRequest> = (0..4)
            .map(|_| admitted(&mut bench, TestRequest::get("", "pods", "p")))
            .collect();
        bench.finish(&early[0], &ended(500));
        bench.host.compare_and_swap("c", 0, b"1").unwrap();
        bench.finish(&early[1], &ended(500));
        bench.host.remove("c");
        bench.finish(&early[2], &ended(500));
        assert_eq!(bench.plugin.crossings, []);
        for _ in 0..2 {
            let req = admitted(&mut bench, TestRequest::get("", "pods", "p"));
            bench.finish(&req, &ended(500));
        }
        assert_eq!(bench.plugin.crossings.len(), 1, "the tally began anew");
        bench.finish(&early[3], &ended(500));
        assert_eq!(bench.plugin.crossings.len(), 1);
    }

    #[test]
    fn outcome_under_earlier_settings_is_not_counted_after_one_under_later_settings() {
        let host = FakeHost::default();
        let rule = |length_ms| {
            OutcomeRule::new("t").window(OutcomeWindow {
                length_ms,
                slots: 10,
                minimum_requests: 4,
                failure_percent: Some(50),
                slow_percent: None,
            })
        };
        let admit = |settings: &str, rule: OutcomeRule| {
            host.begin_settings(settings);
            let req = TestRequest::list("", "pods");
            host.keep_verdict(&req, &RequestVerdict::proceed().count_outcome(rule));
            req
        };
        let early: Vec<TestRequest> = (0..4)
            .map(|_| admit("early", rule(1000).consecutive_failures(2)))
            .collect();
        assert_eq!(host.count_end(&early[0], &ended(500)), []);
        for request in &early[1..] {
            assert_eq!(host.count_end(&admit("late", rule(2000)), &ended(500)), []);
            assert_eq!(host.count_end(request, &ended(500)), []);
        }
        let crossings = host.count_end(&admit("late", rule(2000)), &ended(500));
        let requests: Vec<u32> = crossings.iter().map(|crossing| crossing.counts.requests).collect();
        assert_eq!(requests, [4], "the window was neither emptied nor filled by the others");
    }

    #[test]
    fn reload_with_the_same_settings_goes_on_counting_requests_from_before() {
        for (settings, expected) in [("{}", 1), ("{ }", 0)] {
            let mut bench = bench();
            let early: Vec<TestRequest> = (0..2)
                .map(|_| admitted(&mut bench, TestRequest::get("", "pods", "p")))
                .collect();
            let mut bench = Bench::<Counter>::on(bench.host, settings, &test_instance_info()).unwrap();
            let late = admitted(&mut bench, TestRequest::get("", "pods", "p"));
            bench.finish(&late, &ended(200));
            for request in &early {
                bench.finish(request, &ended(500));
            }
            assert_eq!(bench.plugin.crossings.len(), expected, "{settings}");
        }
    }

    #[test]
    fn watch_is_counted_at_its_head_or_at_its_end_without_one() {
        let mut bench = bench();
        let watch = admitted(&mut bench, TestRequest::watch("", "pods"));
        bench.respond(&watch, &TestResponse::new(500));
        bench.finish(&watch, &ended(500));
        assert_eq!(bench.plugin.crossings, [], "counted once");
        let watch = admitted(&mut bench, TestRequest::watch("", "pods"));
        let unreachable = Outcome {
            failure: Some(Failure::Unreachable),
            ..ended(0)
        };
        bench.finish(&watch, &unreachable);
        assert_eq!(bench.plugin.crossings.len(), 1);
    }

    #[test]
    fn tunnel_is_counted_at_its_head_under_any_rule() {
        let mut bench = bench();
        let get = || TestRequest::get("", "pods", "p");
        let fail = |bench: &mut Bench<Counter>| {
            let req = admitted(bench, get());
            bench.finish(&req, &ended(500));
        };
        fail(&mut bench);
        let tunnel = admitted(&mut bench, get().subresource("vnc"));
        bench.respond(&tunnel, &TestResponse::new(101));
        fail(&mut bench);
        assert_eq!(bench.plugin.crossings, [], "the 101 has ended the row");
        bench.finish(&tunnel, &ended(101));
        fail(&mut bench);
        assert_eq!(bench.plugin.crossings.len(), 1, "the end of the tunnel does not count");
    }

    #[test]
    fn rule_belongs_to_a_cell_as_it_was_read_last() {
        let (host, req) = (FakeHost::default(), TestRequest::list("", "pods"));
        let rule = OutcomeRule::new("t").cell("c").consecutive_failures(1);
        let verdict = RequestVerdict::proceed().count_outcome(rule);
        host.get("c").unwrap();
        host.compare_and_swap("c", 0, b"1").unwrap();
        host.keep_verdict(&req, &verdict);
        assert_eq!(host.count_end(&req, &ended(500)), [], "written after it was read");
        host.get("c").unwrap();
        host.keep_verdict(&req, &verdict);
        assert_eq!(host.count_end(&req, &ended(500)).len(), 1);
    }

    #[test]
    fn removal_of_a_cell_that_does_not_exist_is_no_change() {
        let (host, req) = (FakeHost::default(), TestRequest::list("", "pods"));
        let rule = OutcomeRule::new("t").cell("c").consecutive_failures(1);
        host.get("c").unwrap();
        host.keep_verdict(&req, &RequestVerdict::proceed().count_outcome(rule));
        host.remove("c");
        assert_eq!(host.count_end(&req, &ended(500)).len(), 1);
    }

    #[test]
    #[should_panic(expected = "a cell that the call has not read")]
    fn rule_of_a_cell_that_was_not_read_is_invalid() {
        let rule = OutcomeRule::new("t").cell("c").consecutive_failures(1);
        let verdict = RequestVerdict::proceed().count_outcome(rule);
        FakeHost::default().keep_verdict(&TestRequest::list("", "pods"), &verdict);
    }

    /// Names a cell for its verdicts that it reads in all other phases.
    struct EarlyReader;

    impl Plugin for EarlyReader {
        type Settings = NoSettings;

        fn configure(_: NoSettings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
            let _ = host.get("c");
            Ok((Self, Subscription::new(Phases::ON_REQUEST, [MatchRule::any()])))
        }

        fn on_request(&mut self, _: &dyn Request, _: &dyn Host) -> RequestVerdict {
            RequestVerdict::proceed().count_outcome(OutcomeRule::new("t").cell("c").consecutive_failures(1))
        }

        fn on_response(&mut self, _: &dyn Request, _: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
            let _ = host.get("c");
            ResponseVerdict::proceed()
        }

        fn on_complete(&mut self, _: &dyn Request, _: &Outcome, host: &dyn Host) {
            let _ = host.get("c");
        }

        fn on_crossed(&mut self, _: &[Crossing], host: &dyn Host) {
            let _ = host.get("c");
        }
    }

    #[test]
    fn rule_of_a_cell_that_another_phase_has_read_is_invalid() {
        let crossing = || Crossing {
            tally: "t".to_owned(),
            versions: Vec::new(),
            threshold: Threshold::ConsecutiveFailures,
            counts: TallyCounts {
                requests: 0,
                failures: 0,
                slow: 0,
                consecutive_failures: 1,
            },
        };
        for phase in ["configure", "on_response", "on_complete", "on_crossed"] {
            let mut bench = Bench::<EarlyReader>::new("{}").unwrap();
            let req = TestRequest::list("", "pods");
            match phase {
                "on_response" => drop(bench.on_response(&req, &TestResponse::new(200))),
                "on_complete" => bench.on_complete(&req, &ended(200)),
                "on_crossed" => bench.tell_crossings(&[crossing()]),
                _ => {}
            }
            let verdict = bench.plugin.on_request(&req, &bench.host);
            let kept = catch_unwind(AssertUnwindSafe(|| bench.host.keep_verdict(&req, &verdict)));
            assert!(kept.is_err(), "{phase}");
        }
    }

    #[test]
    #[should_panic(expected = "a cell that the call has not read")]
    fn rule_of_a_cell_that_was_read_before_the_call_is_invalid() {
        let mut bench = Bench::<EarlyReader>::new("{}").unwrap();
        bench.host.get("c").unwrap();
        bench.on_request(&TestRequest::list("", "pods"));
    }
}
