//! The plugin: compiles the rules once, then finds those of each request.

use ctrlmesh_plugin_rules::match_rules;
use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{Host, InstanceInfo, Phases, Plugin, Request, RequestVerdict, Subscription};

use crate::rule::Rule;
use crate::settings::Settings;

/// Maximum of rules; all can match one request, and a verdict has at most 64 edits.
const MAX_RULES: usize = 64;
/// Maximum of fields in all rules; all can be in one verdict, which has at most 64 paths.
const MAX_FIELDS: usize = 64;
/// Maximum bytes of all fields; all can be in one verdict, whose text has at most 64 KiB.
const MAX_FIELD_BYTES: usize = 32 << 10;

pub(crate) struct TrimObjects {
    rules: Vec<Rule>,
}

impl Plugin for TrimObjects {
    type Settings = Settings;

    fn configure(settings: Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
        let rules = compile_rules(&settings).map_err(|error| error.field("rules"))?;
        if rules.is_empty() {
            host.warn("there are no rules: nothing is left out");
        }
        for (index, rule) in rules.iter().enumerate() {
            for warning in rule.warnings() {
                host.warn(&format!("rules[{index}]: {warning}"));
            }
        }
        let subscribed = match_rules(rules.iter().map(|rule| &rule.rules));
        Ok((Self { rules }, Subscription::new(Phases::ON_REQUEST, subscribed)))
    }

    fn on_request(&mut self, req: &dyn Request, _: &dyn Host) -> RequestVerdict {
        let matching = self.rules.iter().filter(|rule| rule.matches(req));
        // The edits depend on nothing but the settings and the request.
        RequestVerdict::edit(matching.map(Rule::edit)).reusable()
    }
}

fn compile_rules(settings: &Settings) -> Result<Vec<Rule>, Invalid> {
    let written = settings.rules.as_deref().unwrap_or_default();
    if written.len() > MAX_RULES {
        let message = format!("{} rules; at most {MAX_RULES} are allowed", written.len());
        return Err(Invalid::new(message));
    }
    let mut rules = Vec::with_capacity(written.len());
    for (index, rule) in written.iter().enumerate() {
        rules.push(Rule::new(rule).map_err(|error| error.index(index))?);
    }
    let fields: usize = rules.iter().map(Rule::field_count).sum();
    if fields > MAX_FIELDS {
        let message = format!(
            "they have {fields} fields together; at most {MAX_FIELDS} are allowed: merge rules, or leave out a field that holds several"
        );
        return Err(Invalid::new(message));
    }
    let bytes: usize = rules.iter().map(Rule::text_bytes).sum();
    if bytes > MAX_FIELD_BYTES {
        let message = format!("their fields have {bytes} bytes together; at most {MAX_FIELD_BYTES} are allowed");
        return Err(Invalid::new(message));
    }
    Ok(rules)
}
