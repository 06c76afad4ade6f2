//! Patterns with `*` at one end, as in the interface's `match-rule`: for Kubernetes names, which never contain a `*`. [`Lists`] says what
//! an absent list means.

use ctrlmesh_sdk::settings::Invalid;

/// The meaning of an absent list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lists {
    /// Absent is an error, as in a CircuitBreaker; an empty list matches nothing.
    Required,
    /// Absent or empty matches everything, as in a FaultInjection.
    AbsentIsAll,
}

impl Lists {
    /// The values of a list, by its meaning.
    pub(crate) fn values_of<'a>(self, written: Option<&'a [String]>, field: &str) -> Result<&'a [String], Invalid> {
        match (self, written) {
            (Self::Required, None) => Err(Invalid::new("missing; write [\"*\"] for all").field(field)),
            (Self::Required, Some(values)) => Ok(values),
            (Self::AbsentIsAll, Some(values)) if !values.is_empty() => Ok(values),
            (Self::AbsentIsAll, _) => Ok(star_list()),
        }
    }
}

/// `["*"]`.
fn star_list() -> &'static [String] {
    static ALL: std::sync::LazyLock<[String; 1]> = std::sync::LazyLock::new(|| ["*".to_owned()]);
    &*ALL
}

#[derive(Clone, Debug)]
enum Shape {
    Exact(String),
    StartsWith(String),
    EndsWith(String),
    Contains(String),
}

/// Patterns of which one must match.
#[derive(Clone, Debug)]
pub(crate) enum Patterns {
    Any,
    /// One of these; an empty list matches nothing.
    OneOf(Vec<TextPattern>),
}

/// Texts of which one must match, each with `*` at either end, at both or at none; `*` alone matches everything.
#[derive(Clone, Debug)]
pub struct TextPatterns(Patterns);

#[derive(Clone, Debug)]
pub(crate) struct TextPattern {
    written: String,
    shape: Shape,
}

impl TextPattern {
    /// Returns `None` for `*` alone, which matches everything.
    pub(crate) fn parse(written: &str) -> Result<Option<Self>, Invalid> {
        let shape = match (written.strip_prefix('*'), written.strip_suffix('*')) {
            (Some(""), _) => return Ok(None),
            (Some(rest), Some(_)) => Shape::Contains(rest.strip_suffix('*').unwrap_or(rest).to_owned()),
            (Some(end), None) => Shape::EndsWith(end.to_owned()),
            (None, Some(start)) => Shape::StartsWith(start.to_owned()),
            (None, None) => Shape::Exact(written.to_owned()),
        };
        let (Shape::Exact(text) | Shape::StartsWith(text) | Shape::EndsWith(text) | Shape::Contains(text)) = &shape;
        if text.contains('*') {
            let message = format!("{written:?} has a '*' inside; write it alone, at the beginning or at the end");
            return Err(Invalid::new(message));
        }
        let is_everything = text.is_empty() && !matches!(shape, Shape::Exact(_));
        let written = written.to_owned();
        Ok((!is_everything).then_some(Self { written, shape }))
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        match &self.shape {
            Shape::Exact(exact) => text == exact,
            Shape::StartsWith(start) => text.starts_with(start),
            Shape::EndsWith(end) => text.ends_with(end),
            Shape::Contains(part) => text.contains(part),
        }
    }

    pub(crate) fn is_exact(&self) -> bool {
        matches!(self.shape, Shape::Exact(_))
    }

    /// The text for a match rule.
    pub(crate) fn match_rule_text(&self) -> &str {
        &self.written
    }
}

impl Patterns {
    pub(crate) fn parse(written: &[String]) -> Result<Self, Invalid> {
        let mut patterns = Vec::with_capacity(written.len());
        let mut has_any = false;
        for (index, text) in written.iter().enumerate() {
            match TextPattern::parse(text).map_err(|error| error.index(index))? {
                Some(pattern) => patterns.push(pattern),
                None => has_any = true,
            }
        }
        Ok(if has_any { Self::Any } else { Self::OneOf(patterns) })
    }

    /// Whether a text matches, which is asked for only if that depends on it.
    pub(crate) fn matches<T: AsRef<str>>(&self, text: impl FnOnce() -> T) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(patterns) if patterns.is_empty() => false,
            Self::OneOf(patterns) => {
                let text = text();
                patterns.iter().any(|pattern| pattern.matches(text.as_ref()))
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Self::OneOf(patterns) if patterns.is_empty())
    }

    /// The texts for a field of a match rule, where an empty list matches everything.
    pub(crate) fn match_rule_texts(&self) -> Vec<String> {
        match self {
            Self::Any => Vec::new(),
            Self::OneOf(patterns) => patterns.iter().map(|pattern| pattern.written.clone()).collect(),
        }
    }
}

impl TextPatterns {
    /// Parses the texts.
    ///
    /// # Errors
    ///
    /// If a text has a `*` inside; names its index.
    pub fn parse(written: &[String]) -> Result<Self, Invalid> {
        Patterns::parse(written).map(Self)
    }

    /// Whether a text matches, which is asked for only if that depends on it. Without patterns nothing matches.
    pub fn matches<T: AsRef<str>>(&self, text: impl FnOnce() -> T) -> bool {
        self.0.matches(text)
    }
}
