//! Decides by the tree of its settings, which asks the host one question after another, so that tests can generate plugins.
//!
//! ```yaml
//! root:
//!   ask: {header: x-a}                 # verb, group, namespace, {query: q}, {cell: k}, {cells: [k, l]} …; null is another answer
//!   answers: [[{one: "1"}, {leaf: {edit: a=1, reuse: whileUnchanged, counts: [[seen, l, 2]], tokens: {key: t, burst: 3}}}]]
//!   otherwise: {leaf: {write: k, reuse: never}}
//! ```

use ctrlmesh_sdk::{
    Admission, Ask, Bucket, Claim, Counted, Crossing, Host, InstanceInfo, MatchRule, Outcome, OutcomeRule,
    OutcomeWindow, Part, Phases, Place, Plugin, Request, RequestEdit, RequestVerdict, ResponseHead, ResponseVerdict,
    Subscription,
};
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
    reuse: Reuse,
    counts: Vec<(String, String, u64)>,
    counts_at_once: bool,
    note: Option<u64>,
    rule: Option<String>,
    tokens: Option<Tokens>,
    place: Option<Tokens>,
    outcome: Option<OutcomeText>,
    /// A cell that is written, and one that is removed.
    write: Option<String>,
    remove: Option<String>,
    logs: bool,
    draws: bool,
    reads_clock: bool,
    adds: Option<String>,
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
        let phases = Phases::ON_REQUEST | Phases::ON_COMPLETE;
        let plugin = Self {
            root: settings.root,
            alternates: settings.alternates,
            calls: 0,
        };
        Ok((plugin, Subscription::new(phases, vec![MatchRule::any()])))
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

    fn on_response(&mut self, _: &dyn Request, _: &dyn ResponseHead, _: &dyn Host) -> ResponseVerdict {
        ResponseVerdict::proceed()
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
        let mut selector = format!("{}{suffix}", self.edit);
        self.count(host);
        if let Some(note) = self.note {
            req.set_note(note);
        }
        if let Some(rule) = &self.rule {
            host.name_rule(rule, Part::Action);
        }
        let mut delay_ms = 0;
        if self.tokens.is_some() || self.place.is_some() {
            match host.admit(&self.asks(), &self.places()) {
                Ok(Admission::Granted(wait)) => delay_ms = wait,
                Ok(Admission::Short(short)) => selector = format!("short={}", short.ask),
                Ok(Admission::Full(place)) => selector = format!("full={place}"),
                Err(error) => selector = format!("error={error:?}"),
            }
        }
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
        if self.draws {
            let _ = host.random();
        }
        if self.reads_clock {
            let _ = host.monotonic_ns();
        }
        if let Some(key) = &self.adds {
            let _ = host.add(key, 1, None);
        }
        let rule = self.outcome.as_ref().map(|outcome| outcome.rule(host));
        let verdict = match selector.as_str() {
            "" => RequestVerdict::proceed(),
            _ => RequestVerdict::edit(vec![RequestEdit::AndLabelSelector(selector)]),
        };
        let verdict = match rule {
            Some(rule) => verdict.count_outcome(rule),
            None => verdict,
        };
        let verdict = verdict.after_ms(delay_ms);
        match self.reuse {
            Reuse::Never => verdict,
            Reuse::WhileUnchanged => verdict.reusable(),
            Reuse::Until(unix_ms) => verdict.reusable_until(unix_ms),
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
