//! The label selector of an edit: a plugin's text, and what was parsed of it.

use std::cell::OnceCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

use ctrlmesh_wire::{LabelSelector, Requirement, SelectorError};

/// A label selector as a plugin wrote it. Copies share what was parsed of it, so the selector of a verdict that is repeated is parsed
/// once.
#[derive(Clone)]
pub struct PluginLabelSelector(Rc<Shared>);

struct Shared {
    text: String,
    parsed: OnceCell<Result<ParsedLabelSelector, SelectorError>>,
}

#[derive(Debug)]
pub(crate) struct ParsedLabelSelector {
    pub(crate) selector: LabelSelector,
    /// The selector's canonical text.
    pub(crate) text: String,
}

impl PluginLabelSelector {
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// The selector, which is parsed at the first call.
    ///
    /// # Errors
    /// The API server would refuse the text.
    pub(crate) fn parsed(&self) -> Result<&ParsedLabelSelector, &SelectorError> {
        let parsed = self.0.parsed.get_or_init(|| {
            let selector = LabelSelector::parse(self.text())?;
            let text = selector.to_string();
            Ok(ParsedLabelSelector { selector, text })
        });
        parsed.as_ref()
    }

    /// Estimated memory, once the text is parsed.
    pub(crate) fn bytes(&self) -> usize {
        let text = self.text();
        // Commas separate requirements, and values of a requirement.
        let parts = text.split(',').count();
        size_of::<Shared>() + 3 * text.len() + parts * size_of::<Requirement>()
    }
}

impl From<String> for PluginLabelSelector {
    fn from(text: String) -> Self {
        let parsed = OnceCell::new();
        Self(Rc::new(Shared { text, parsed }))
    }
}

impl From<&str> for PluginLabelSelector {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl fmt::Debug for PluginLabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.text(), f)
    }
}

impl fmt::Display for PluginLabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl PartialEq for PluginLabelSelector {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || self.text() == other.text()
    }
}

impl Eq for PluginLabelSelector {}

impl Hash for PluginLabelSelector {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_what_was_parsed() {
        let selector = PluginLabelSelector::from("b in (2,1), a");
        let copy = selector.clone();
        let parsed = selector.parsed().unwrap();
        assert_eq!(parsed.text, "a,b in (1,2)");
        assert!(std::ptr::eq(copy.parsed().unwrap(), parsed));
        assert_eq!(copy.to_string(), "b in (2,1), a");
    }

    #[test]
    fn selectors_are_equal_by_their_texts() {
        let selector = PluginLabelSelector::from("a=b");
        selector.parsed().unwrap();
        assert_eq!(selector, selector.clone());
        assert_eq!(selector, PluginLabelSelector::from("a=b"));
        assert_ne!(selector, PluginLabelSelector::from("a==b"));
        assert!(PluginLabelSelector::from("a in").parsed().is_err());
    }

    #[test]
    fn estimate_covers_requirements_and_values() {
        let many = ["a"; 100].join(",");
        let values = format!("a in ({many})");
        for text in [many, values] {
            assert!(PluginLabelSelector::from(text).bytes() > 100 * size_of::<Requirement>());
        }
    }
}
