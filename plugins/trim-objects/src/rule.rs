//! One rule: whose objects lose which fields.

use ctrlmesh_plugin_rules::{Lists, ResourceRule, Rules, TextPatterns};
use ctrlmesh_sdk::settings::Invalid;
use ctrlmesh_sdk::{Request, RequestEdit};
use ctrlmesh_wire::objects::DroppedFields;

use crate::settings;

/// The one field that a client may write back without.
const MANAGED_FIELDS: &str = "metadata.managedFields";

/// A validated rule.
pub(crate) struct Rule {
    pub(crate) rules: Rules,
    /// `None`: all clients.
    user_agents: Option<TextPatterns>,
    fields: Vec<String>,
}

impl Rule {
    pub(crate) fn new(rule: &settings::Rule) -> Result<Self, Invalid> {
        let user_agents = match rule.user_agents.as_deref() {
            Some([]) => {
                let message = "an empty list would match no client; remove it for all clients";
                return Err(Invalid::new(message).field("userAgents"));
            }
            Some(written) => Some(TextPatterns::parse(written).map_err(|error| error.field("userAgents"))?),
            None => None,
        };
        Ok(Self {
            rules: matched_resources(rule.resources.as_deref()).map_err(|error| error.field("resources"))?,
            user_agents,
            fields: checked_fields(rule.fields.as_deref()).map_err(|error| error.field("fields"))?,
        })
    }

    /// Reads the user agent last, because it has the most values.
    pub(crate) fn matches(&self, req: &dyn Request) -> bool {
        let is_for_client = |patterns: &TextPatterns| patterns.matches(|| req.user_agent());
        self.rules.matches(req) && self.user_agents.as_ref().is_none_or(is_for_client)
    }

    pub(crate) fn edit(&self) -> RequestEdit {
        RequestEdit::drop_fields(&self.fields)
    }

    /// Number of the paths in a verdict.
    pub(crate) const fn field_count(&self) -> usize {
        self.fields.len()
    }

    /// Bytes of the paths in a verdict, as the host counts them.
    pub(crate) fn text_bytes(&self) -> usize {
        self.fields.iter().map(|field| field.len() + 1).sum()
    }

    /// Clients that must not match, and that the rule may match.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.user_agents.is_none() {
            warnings.push(
                "is for all clients, and some must not have it: a client that applies (server-side apply) what Extract... of client-go \
                 made from an object without managed fields gives up all fields that it owned; name the other clients in userAgents"
                    .to_owned(),
            );
        }
        let others: Vec<&str> = self
            .fields
            .iter()
            .map(String::as_str)
            .filter(|field| *field != MANAGED_FIELDS)
            .collect();
        if !others.is_empty() {
            warnings.push(format!(
                "drops {}, and a client that updates whole objects (PUT) would remove that from them; only {MANAGED_FIELDS} is safe for \
                 updates",
                others.join(", ")
            ));
        }
        warnings
    }
}

/// Fields are left out of lists and watches only.
fn matched_resources(written: Option<&[ResourceRule]>) -> Result<Rules, Invalid> {
    let written = written.unwrap_or_default();
    if written.is_empty() {
        let message = "missing; name what is trimmed, such as [{apiGroups: [\"\"], resources: [pods]}]";
        return Err(Invalid::new(message));
    }
    let mut resources = Vec::with_capacity(written.len());
    for (index, rule) in written.iter().enumerate() {
        if rule.verbs.is_some() {
            let message = "fields are left out of lists and watches alone; remove it";
            return Err(Invalid::new(message).field("verbs").index(index));
        }
        resources.push(ResourceRule {
            verbs: Some(vec!["list".to_owned(), "watch".to_owned()]),
            ..rule.clone()
        });
    }
    let mut rules = Rules::default();
    rules.add_resources(&resources, Lists::AbsentIsAll)?;
    Ok(rules)
}

fn checked_fields(written: Option<&[String]>) -> Result<Vec<String>, Invalid> {
    let fields = match written {
        Some([]) => return Err(Invalid::new("an empty list would leave nothing out; remove the rule")),
        Some(fields) => fields.to_vec(),
        None => vec![MANAGED_FIELDS.to_owned()],
    };
    for (index, field) in fields.iter().enumerate() {
        DroppedFields::parse([field.as_str()]).map_err(|error| Invalid::new(error.to_string()).index(index))?;
    }
    DroppedFields::parse(fields.iter().map(String::as_str)).map_err(|error| Invalid::new(error.to_string()))?;
    Ok(fields)
}
