//! Lets a plugin check one rule of an object. A plugin stops at the first mistake in its settings, so elements of the rule's lists are
//! also checked one by one: a mistake in one of them must not hide those in the others.

use ctrlmesh_contract::Mistake;
use serde_json::Value;

use super::Findings;
use super::findings::at_index;
use crate::built_in::BuiltIn;

/// Elements of one list that are checked alone. Those after them have at most one mistake reported.
const MAX_ELEMENTS: usize = 256;

/// A rule in the settings of its plugin.
pub(super) struct RuleCheck<'r> {
    pub(super) plugin: BuiltIn,
    pub(super) namespace: &'r str,
    /// Settings with this rule alone.
    pub(super) settings: Value,
    /// The list of rules in the settings: `rateLimitings`.
    pub(super) rules: &'static str,
    /// Lists of the rule whose elements do not depend on each other: `match.resources`.
    pub(super) lists: &'static [&'static str],
}

impl RuleCheck<'_> {
    /// Adds the mistakes of the rule. `index`: that of the rule in the object.
    pub(super) fn add_mistakes(&self, index: usize, findings: &mut Findings) {
        for Mistake { path, problem } in self.mistakes() {
            findings.refuse(format!("spec.{}", at_index(&path, self.rules, index)), problem);
        }
    }

    fn mistakes(&self) -> Vec<Mistake> {
        let Some(first) = self.first_mistake(&self.settings) else {
            return Vec::new();
        };
        let mut empty = self.settings.clone();
        for list in self.lists {
            if let Some(elements) = self.elements_mut(&mut empty, list) {
                elements.clear();
            }
        }
        let (mut rest, mut found) = (empty.clone(), Vec::new());
        for list in self.lists {
            for (index, element) in self.elements(list).iter().enumerate().take(MAX_ELEMENTS) {
                let mut alone = empty.clone();
                self.add_element(&mut alone, list, element);
                let mistake = self.first_mistake(&alone);
                match mistake.and_then(|mistake| self.at_element(list, index, mistake)) {
                    Some(mistake) => found.push(mistake),
                    None => self.add_element(&mut rest, list, element),
                }
            }
        }
        // Without its invalid elements, a list may have too few of them.
        let of_rest = self.first_mistake(&rest);
        found.extend(of_rest.filter(|mistake| !self.is_about_lists(&mistake.path)));
        if !found.contains(&first) {
            found.insert(0, first);
        }
        found
    }

    fn first_mistake(&self, settings: &Value) -> Option<Mistake> {
        self.plugin.check(settings, self.namespace).err()
    }

    fn pointer(&self, list: &str) -> String {
        format!("/{}/0/{}", self.rules, list.replace('.', "/"))
    }

    fn elements(&self, list: &str) -> &[Value] {
        let elements = self.settings.pointer(&self.pointer(list)).and_then(Value::as_array);
        elements.map(Vec::as_slice).unwrap_or_default()
    }

    fn elements_mut<'s>(&self, settings: &'s mut Value, list: &str) -> Option<&'s mut Vec<Value>> {
        settings.pointer_mut(&self.pointer(list))?.as_array_mut()
    }

    fn add_element(&self, settings: &mut Value, list: &str, element: &Value) {
        if let Some(elements) = self.elements_mut(settings, list) {
            elements.push(element.clone());
        }
    }

    /// The mistake of an element that was checked alone, with the element's own index. `None`: the mistake is elsewhere.
    fn at_element(&self, list: &str, index: usize, mistake: Mistake) -> Option<Mistake> {
        let Mistake { path, problem } = mistake;
        let element = |index: usize| format!("{}[0].{list}[{index}]", self.rules);
        let inner = path.strip_prefix(&element(0))?;
        let path = format!("{}{inner}", element(index));
        Some(Mistake { path, problem })
    }

    /// Whether a path is that of one of the lists, or of the field that has them.
    fn is_about_lists(&self, path: &str) -> bool {
        let first_field = |path: &str| path.split(['.', '[']).next().unwrap_or_default().to_owned();
        let in_rule = path.strip_prefix(&format!("{}[0].", self.rules));
        in_rule.is_some_and(|path| {
            let field = first_field(path);
            self.lists.iter().any(|list| first_field(list) == field)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::samples;
    use crate::validate::validate;

    fn mistakes_of(document: &Value) -> Vec<String> {
        let findings = validate(document);
        let mistakes = findings.mistakes.list().iter();
        mistakes.map(|it| format!("{}: {}", it.path, it.problem)).collect()
    }

    fn assert_paths(document: &Value, expected: &[&str]) {
        let mistakes = mistakes_of(document);
        let is_at = |(mistake, path): (&String, &&str)| mistake.starts_with(&format!("{path}: "));
        assert!(
            mistakes.len() == expected.len() && mistakes.iter().zip(expected).all(is_at),
            "{mistakes:#?}"
        );
    }

    #[test]
    fn mistakes_of_all_elements_of_a_rule_are_reported() {
        let mut rule = samples::limit("LimiterOnly", "slow");
        rule["restRules"] = json!([
            {"url": "ftp://a", "method": "*"},
            {"url": "https://b/*", "method": "*"},
            {"url": "https://c:x/", "method": "*"},
        ]);
        rule["bucket"]["limit"] = json!(0);
        let list = json!({"name": "hosts", "interceptType": "Whitelist", "contentType": "Normal", "methods": ["*"],
            "contents": ["https://a", "b", "c:x"]});
        assert_paths(
            &samples::breaker("b", &json!({}), &[rule], &[list]),
            &[
                "spec.rateLimitings[0].restRules[0].url",
                "spec.rateLimitings[0].restRules[2].url",
                "spec.rateLimitings[0].bucket.limit",
                "spec.trafficInterceptRules[0].contents[0]",
                "spec.trafficInterceptRules[0].contents[2]",
            ],
        );
    }

    #[test]
    fn fault_whose_only_match_is_invalid_has_one_mistake() {
        let fault = |urls: &[&str]| {
            let rules: Vec<Value> = urls
                .iter()
                .map(|url| json!({"url": [url], "method": ["GET"]}))
                .collect();
            let rule = json!({"match": {"httpMatch": rules}, "abort": {"httpStatus": 500}});
            samples::object("FaultInjection", "f", &json!({"selector": {}, "httpFault": [rule]}))
        };
        assert_paths(&fault(&["ftp://a"]), &["spec.httpFault[0].match.httpMatch[0].url[0]"]);
        assert_paths(
            &fault(&["ftp://a", "https://b/*", "ftp://c"]),
            &[
                "spec.httpFault[0].match.httpMatch[0].url[0]",
                "spec.httpFault[0].match.httpMatch[2].url[0]",
            ],
        );
    }
}
