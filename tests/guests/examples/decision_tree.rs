//! Decides by the tree of its settings, which asks the host one question after another, so that tests can generate plugins.
//!
//! ```yaml
//! root:
//!   ask: {header: x-a}                 # verb, group, namespace, {query: q}, {cell: k}, {cells: [k, l]} …; null is another answer
//!   answers: [[{one: "1"}, {leaf: {edit: a=1, reuse: whileUnchanged, counts: [[seen, l, 2]], tokens: {key: t, burst: 3}}}]]
//!   otherwise: {leaf: {write: k, increments: [[n, 2]], reuse: never}}
//! ```
//!
//! A leaf may have an action in the grammar of `scripted` instead of `edit`: `{leaf: {then: {refuse: {code: 429}}, later: none}}`.

use ctrlmesh_sdk::{
    Admission, Ask, Bucket, Claim, Counted, Crossing, Host, InstanceInfo, MatchRule, Outcome, OutcomeRule,
    OutcomeWindow, Part, Phases, Place, Plugin, Request, RequestAction, RequestEdit, RequestVerdict, ResponseHead,
    ResponsePlan, ResponseVerdict, Subscription,
};
use ctrlmesh_test_guests::script::ActionText;
use serde::Deserialize;

struct DecisionTree {
    root: Node,
    /// Whether verdicts alternate, which is what no reusable verdict may do.
    alternates: bool,
    calls: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Settings {
    root: Node,
    #[serde(default)]
    alternates: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Node {
    Question(Box<Question>),
    Leaf(Box<Leaf>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    ask: Fact,
    answers: Vec<(String, Node)>,
    otherwise: Node,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Fact {
    Traffic,
    Verb,
    Group,
    Version,
    Resource,
    Subresource,
    Namespace,
    Name,
    Facts,
    Method,
    Path,
    Host,
    Port,
    Size,
    UserAgent,
    LabelSelector,
    FieldSelector,
    IsLeaderLock,
    IsRecheck,
    Note,
    Header(String),
    Query(String),
    Cell(String),
    Cells(Vec<String>),
    /// Whether this many milliseconds since 1970 have passed.
    IsAfter(u64),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Leaf {
    /// The label selector of an edit; empty: no edit.
    edit: String,
    /// The action instead of that edit.
    then: Option<ActionText>,
    delay_ms: u32,
    /// The later phases that are wanted; all by default.
    later: Option<Later>,
    reuse: Reuse,
    counts: Vec<(String, String, u64)>,
    counts_at_once: bool,
    /// Counters of the state, and what is added to each.
    increments: Vec<(String, u64)>,
    note: Option<u64>,
    rule: Option<String>,
    tokens: Option<Tokens>,
    place: Option<Tokens>,
    outcome: Option<OutcomeText>,
    /// A cell that is written, and one that is removed.
    write: Option<String>,
    remove: Option<String>,
    logs: bool,
    prints: bool,
    /// The gauge `level`, and a report.
    gauge: Option<u32>,
    report: Option<u32>,
    /// Whether an edit has a random number, if the request may proceed.
    draws: bool,
    reads_clock: bool,
    adds: Option<String>,
    /// Whether the call traps after all of this.
    traps: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Later {
    None,
    Response,
    Complete,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Tokens {
    key: String,
    /// Tokens in the bucket, or number of places.
    burst: u32,
    #[serde(default)]
    max_wait_ms: u32,
}

/// How the outcome is counted.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct OutcomeText {
    tally: String,
    /// Cells that are read for it.
    cells: Vec<String>,
    at_head: bool,
    /// Failures in a row, and the share of them in a second.
    failures: Option<u32>,
    percent: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Reuse {
    #[default]
    Never,
    WhileUnchanged,
    Until(u64),
}

impl Plugin for DecisionTree {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
        let plugin = Self {
            root: settings.root,
            alternates: settings.alternates,
            calls: 0,
        };
        Ok((plugin, Subscription::new(Phases::all(), vec![MatchRule::any()])))
    }

    fn on_request(&mut self, req: &dyn Request, host: &dyn Host) -> RequestVerdict {
        self.calls += 1;
        let mut node = &self.root;
        loop {
            match node {
                Node::Question(question) => {
                    let answer = question.ask.answer(req, host);
                    let known = question.answers.iter().find(|(value, _)| *value == answer);
                    node = known.map_or(&question.otherwise, |(_, node)| node);
                }
                Node::Leaf(leaf) => {
                    let odd = self.alternates && self.calls % 2 == 1;
                    return leaf.verdict(req, host, if odd { ",odd" } else { "" });
                }
            }
        }
    }

    fn on_complete(&mut self, req: &dyn Request, outcome: &Outcome, host: &dyn Host) {
        host.count("completed", &format!("{} {}", req.note(), outcome.status), 1);
    }

    /// Adds the note of the request to the response.
    fn on_response(&mut self, req: &dyn Request, res: &dyn ResponseHead, host: &dyn Host) -> ResponseVerdict {
        let seen = format!("{} {}", req.note(), res.status());
        host.count("responded", &seen, 1);
        ResponseVerdict::edit(ResponsePlan::default().set_header("x-noted", seen))
    }

    fn on_crossed(&mut self, crossings: &[Crossing], host: &dyn Host) {
        for crossing in crossings {
            let label = format!("{} {:?}", crossing.tally, crossing.versions);
            host.count("crossed", &label, 1);
            // Some crossings change a cell, as those of a breaker do.
            if crossing.counts.requests % 2 == 1 {
                let version = host.get("k").ok().flatten().map_or(0, |cell| cell.version);
                let _ = host.compare_and_swap("k", version, &[3]);
            }
        }
    }
}

impl Fact {
    fn answer(&self, req: &dyn Request, host: &dyn Host) -> String {
        let cell = |cell: Option<ctrlmesh_sdk::Cell>| format!("{:?}", cell.map(|cell| (cell.value, cell.version)));
        match self {
            Self::Traffic => format!("{:?}", req.traffic()),
            Self::Verb => format!("{:?}", req.verb()),
            Self::Group => req.group().to_owned(),
            Self::Version => req.version().to_owned(),
            Self::Resource => req.resource().to_owned(),
            Self::Subresource => req.subresource().to_owned(),
            Self::Namespace => req.namespace().to_owned(),
            Self::Name => req.name().to_owned(),
            Self::Facts => {
                let facts = req.facts();
                format!("{:?} {} {}", facts.verb, facts.resource, facts.name)
            }
            Self::Method => req.method(),
            Self::Path => req.path(),
            Self::Host => req.host(),
            Self::Port => req.port().to_string(),
            Self::Size => format!("{:?}", req.size()),
            Self::UserAgent => req.user_agent(),
            Self::LabelSelector => req.label_selector(),
            Self::FieldSelector => req.field_selector(),
            Self::IsLeaderLock => req.is_leader_lock().to_string(),
            Self::IsRecheck => req.is_recheck().to_string(),
            Self::Note => req.note().to_string(),
            Self::Header(name) => req.header(name).unwrap_or_else(|| "none".into()),
            Self::Query(name) => req.query(name).unwrap_or_else(|| "none".into()),
            Self::Cell(key) => host.get(key).map_or_else(|error| format!("{error:?}"), cell),
            Self::Cells(keys) => match host.get_all(keys) {
                Ok(cells) => cells.into_iter().map(cell).collect(),
                Err(error) => format!("{error:?}"),
            },
            Self::IsAfter(unix_ms) => (host.unix_ms() >= *unix_ms).to_string(),
        }
    }
}

impl Leaf {
    fn verdict(&self, req: &dyn Request, host: &dyn Host, suffix: &str) -> RequestVerdict {
        self.count(host);
        if let Some(note) = self.note {
            req.set_note(note);
        }
        if let Some(rule) = &self.rule {
            host.name_rule(rule, Part::Action);
        }
        let mut delay_ms = self.delay_ms;
        let mut action = self.action(suffix);
        if self.tokens.is_some() || self.place.is_some() {
            match host.admit(&self.asks(), &self.places()) {
                Ok(Admission::Granted(wait)) => delay_ms += wait,
                Ok(Admission::Short(short)) => action = narrow(format!("short={}", short.ask)),
                Ok(Admission::Full(place)) => action = narrow(format!("full={place}")),
                Err(error) => action = narrow(format!("error={error:?}")),
            }
        }
        self.write(host);
        if self.draws {
            let drawn = host.random() % 4;
            if let RequestAction::Proceed(edits) = &mut action {
                edits.push(RequestEdit::set_header("x-drawn", drawn.to_string()));
            }
        }
        if self.reads_clock {
            let _ = host.monotonic_ns();
        }
        let rule = self.outcome.as_ref().map(|outcome| outcome.rule(host));
        if self.traps {
            std::process::abort();
        }
        let verdict = RequestVerdict::from(action).after_ms(delay_ms);
        let verdict = match rule {
            Some(rule) => verdict.count_outcome(rule),
            None => verdict,
        };
        let verdict = match self.later {
            None => verdict,
            Some(Later::None) => verdict.later(Phases::empty()),
            Some(Later::Response) => verdict.later(Phases::ON_RESPONSE),
            Some(Later::Complete) => verdict.later(Phases::ON_COMPLETE),
        };
        match self.reuse {
            Reuse::Never => verdict,
            Reuse::WhileUnchanged => verdict.reusable(),
            Reuse::Until(unix_ms) => verdict.reusable_until(unix_ms),
        }
    }

    /// The action if tokens and places are there.
    fn action(&self, suffix: &str) -> RequestAction {
        if let Some(then) = &self.then {
            return then.action();
        }
        match format!("{}{suffix}", self.edit) {
            selector if selector.is_empty() => RequestAction::Proceed(Vec::new()),
            selector => narrow(selector),
        }
    }

    /// Does what must not be done again when the verdict is repeated.
    #[expect(
        clippy::print_stdout,
        reason = "a plugin may print, and the host must not lose a line"
    )]
    fn write(&self, host: &dyn Host) {
        if let Some(key) = &self.write {
            let version = host.get(key).ok().flatten().map_or(0, |cell| cell.version);
            let _ = host.compare_and_swap(key, version, &[7]);
        }
        if let Some(key) = &self.remove {
            host.remove(key);
        }
        if self.logs {
            host.info("decided");
        }
        if self.prints {
            println!("decided");
        }
        if let Some(level) = self.gauge {
            host.gauge("level", "", f64::from(level));
        }
        if let Some(number) = self.report {
            host.put_report("decided", &number.to_string());
        }
        if let Some(key) = &self.adds {
            let _ = host.add(key, 1, None);
        }
    }

    fn count(&self, host: &dyn Host) {
        if self.counts_at_once {
            let counted: Vec<Counted> = self
                .counts
                .iter()
                .map(|(name, label, by)| Counted::new(name, label, *by))
                .collect();
            host.count_all(&counted);
        } else {
            for (name, label, by) in &self.counts {
                host.count(name, label, *by);
            }
        }
        for (key, by) in &self.increments {
            host.increment(key, *by);
        }
    }

    fn asks(&self) -> Vec<Ask> {
        let ask = |tokens: &Tokens| Ask {
            claim: Claim {
                key: tokens.key.clone(),
                bucket: Bucket {
                    limit: 1,
                    interval_ms: 100,
                    burst: tokens.burst,
                },
                tokens: 1,
            },
            max_wait_ms: tokens.max_wait_ms,
        };
        self.tokens.iter().map(ask).collect()
    }

    fn places(&self) -> Vec<Place> {
        let place = |tokens: &Tokens| Place {
            key: tokens.key.clone(),
            max: tokens.burst,
        };
        self.place.iter().map(place).collect()
    }
}

/// Proceed, narrowed by this label selector.
fn narrow(selector: String) -> RequestAction {
    RequestAction::Proceed(vec![RequestEdit::AndLabelSelector(selector)])
}

impl OutcomeText {
    fn rule(&self, host: &dyn Host) -> OutcomeRule {
        let mut rule = OutcomeRule::new(&self.tally).at_head(self.at_head);
        for key in &self.cells {
            let _ = host.get(key);
            rule = rule.cell(key);
        }
        if let Some(failures) = self.failures {
            rule = rule.consecutive_failures(failures);
        }
        if let Some(percent) = self.percent {
            rule = rule.window(OutcomeWindow {
                length_ms: 1000,
                slots: 10,
                minimum_requests: 3,
                failure_percent: Some(percent),
                slow_percent: None,
            });
        }
        rule
    }
}

ctrlmesh_sdk::export_plugin!(DecisionTree);
