//! A YAML or JSON text as a tree of places: which field or element begins and ends where, and on which line. Values are serde-saphyr's
//! matter; the two are walked side by side.

use std::ops::Range;

use ctrlmesh_contract::Mistake;
use ctrlmesh_contract::error::quote;
use ctrlmesh_manager_planner::validate::Step;
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, StructureStyle};

/// Comments in a row; more than any file has.
const MAX_COMMENTS: usize = 100_000;

/// One document of a text.
#[derive(Debug)]
pub(super) struct Document {
    /// Its bytes, from `---` if there is one to the next.
    pub(super) range: Range<usize>,
    /// Its first line, from 1.
    pub(super) line: usize,
    /// How many comments it has behind its start.
    pub(super) comments: usize,
    /// Its content; or where and why it can't be read.
    pub(super) root: Result<Node, (usize, String)>,
}

/// A value in a text.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Its bytes, without comments and blanks around them.
    pub(super) span: Range<usize>,
    /// Its first line, from 1.
    pub(super) line: usize,
}

/// What a value is.
#[derive(Debug)]
pub(super) enum Kind {
    Scalar(ScalarStyle),
    /// A reference to another value.
    Alias,
    Mapping {
        /// In braces.
        is_flow: bool,
        fields: Vec<Field>,
    },
    Sequence {
        /// In brackets.
        is_flow: bool,
        items: Vec<Node>,
    },
}

/// A field of a mapping.
#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) key: Node,
    pub(super) value: Node,
}

/// Every document of a text. One that can't be read keeps no other from being read.
pub(super) fn documents(text: &str) -> Vec<Document> {
    let options = serde_saphyr::granit_parser::options! { max_buffered_comment_events: MAX_COMMENTS };
    let mut reader = Reader {
        text,
        parser: Parser::new_from_str_with_options(text, options),
        comments: 0,
    };
    let mut documents: Vec<Document> = Vec::new();
    loop {
        match reader.document() {
            Ok(Some(document)) => documents.push(document),
            Ok(None) => break,
            Err(error) => {
                let line = error.marker().line();
                documents.push(Document {
                    range: 0..0,
                    line,
                    comments: 0,
                    root: Err((line, error.info())),
                });
                if !matches!(reader.parser.proceed_next_document(), Ok(true)) {
                    break;
                }
            }
        }
    }
    documents
}

struct Reader<'t> {
    text: &'t str,
    parser: Parser<'t, StrInput<'t>>,
    comments: usize,
}

impl<'t> Reader<'t> {
    /// The next event that is not a comment; these are counted.
    fn event(&mut self) -> Result<Option<(Event<'t>, Span)>, ScanError> {
        loop {
            match self.parser.next_event().transpose()? {
                Some((Event::Comment(..), _)) => self.comments += 1,
                event => return Ok(event),
            }
        }
    }

    fn document(&mut self) -> Result<Option<Document>, ScanError> {
        loop {
            let Some((event, span)) = self.event()? else {
                return Ok(None);
            };
            if !matches!(event, Event::DocumentStart(..)) {
                continue;
            }
            let before = self.comments;
            let begin = self.line_start(bytes(&span).start);
            let Some((event, first)) = self.event()? else {
                return Ok(None);
            };
            let root = self.node(event, &first)?;
            let end = self.event()?.map_or(root.span.end, |(_, span)| bytes(&span).start);
            return Ok(Some(Document {
                range: begin..self.line_end(end.max(root.span.end)),
                line: span.start.line(),
                comments: self.comments - before,
                root: Ok(root),
            }));
        }
    }

    /// Start of the line that a place is on, if only blanks are before it.
    fn line_start(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or_default();
        let start = before.trim_end_matches(' ').len();
        if start == 0 || before.get(..start).is_some_and(|before| before.ends_with('\n')) {
            start
        } else {
            at
        }
    }

    /// End of the line that a place is on, unless it is the start of one.
    fn line_end(&self, at: usize) -> usize {
        let (before, rest) = self.text.split_at_checked(at).unwrap_or((self.text, ""));
        match rest.find('\n') {
            _ if before.ends_with('\n') => at,
            Some(newline) => at + newline + 1,
            None => self.text.len(),
        }
    }

    /// The value that begins with an event. Recursion is bounded by the parser (255 levels).
    fn node(&mut self, event: Event<'t>, span: &Span) -> Result<Node, ScanError> {
        let (begin, line) = (bytes(span).start, span.start.line());
        let (kind, end) = match event {
            Event::MappingStart(style, ..) => {
                let (fields, close) = self.fields()?;
                let is_flow = style == StructureStyle::Flow;
                let last = fields.last().map_or(begin, |field| field.value.span.end);
                (Kind::Mapping { is_flow, fields }, if is_flow { close } else { last })
            }
            Event::SequenceStart(style, ..) => {
                let (items, close) = self.items()?;
                let is_flow = style == StructureStyle::Flow;
                let last = items.last().map_or(begin, |item| item.span.end);
                (Kind::Sequence { is_flow, items }, if is_flow { close } else { last })
            }
            Event::Scalar(_, style, ..) => (Kind::Scalar(style), bytes(span).end),
            _ => (Kind::Alias, bytes(span).end),
        };
        Ok(Node {
            kind,
            span: begin..end.max(begin),
            line,
        })
    }

    /// The fields of a mapping, and where it is closed.
    fn fields(&mut self) -> Result<(Vec<Field>, usize), ScanError> {
        let mut fields = Vec::new();
        while let Some((event, span)) = self.event()? {
            if event == Event::MappingEnd {
                return Ok((fields, bytes(&span).end));
            }
            let name = event.scalar().map_or_else(String::new, |(name, _)| name.to_owned());
            let key = self.node(event, &span)?;
            let Some((event, span)) = self.event()? else { break };
            let mut value = self.node(event, &span)?;
            if value.span.is_empty() {
                // A value that is not written is said to be where the next token is.
                (value.span, value.line) = (key.span.end..key.span.end, key.line);
            }
            fields.push(Field { name, key, value });
        }
        Ok((fields, 0))
    }

    /// The elements of a list, and where it is closed.
    fn items(&mut self) -> Result<(Vec<Node>, usize), ScanError> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.event()? {
            if event == Event::SequenceEnd {
                return Ok((items, bytes(&span).end));
            }
            items.push(self.node(event, &span)?);
        }
        Ok((items, 0))
    }
}

/// Of a text in memory, all places are known.
fn bytes(span: &Span) -> Range<usize> {
    span.byte_range().unwrap_or_default()
}

impl Node {
    /// Whether nothing is written.
    pub(super) fn is_nothing(&self, text: &str) -> bool {
        let written = text.get(self.span.clone()).unwrap_or_default();
        matches!(self.kind, Kind::Scalar(ScalarStyle::Plain)) && matches!(written, "" | "~" | "null")
    }

    pub(super) fn fields(&self) -> &[Field] {
        match &self.kind {
            Kind::Mapping { fields, .. } => fields,
            _ => &[],
        }
    }

    pub(super) fn items(&self) -> &[Self] {
        match &self.kind {
            Kind::Sequence { items, .. } => items,
            _ => &[],
        }
    }

    pub(super) const fn is_flow(&self) -> bool {
        matches!(
            self.kind,
            Kind::Mapping { is_flow: true, .. } | Kind::Sequence { is_flow: true, .. }
        )
    }

    pub(super) fn field(&self, name: &str) -> Option<&Field> {
        self.fields().iter().find(|field| field.name == name)
    }

    /// The part that steps lead to.
    pub(super) fn at(&self, path: &[Step]) -> Option<&Self> {
        path.iter().try_fold(self, |node, step| match step {
            Step::Key(key) => node.field(key).map(|field| &field.value),
            Step::Index(index) => node.items().get(*index),
        })
    }

    /// Fields that stand in one mapping twice, as a parser counts them but for merge keys (`<<`). Recursion is bounded by the parser.
    pub(super) fn fields_written_twice(&self) -> Vec<Mistake> {
        let mut found = Vec::new();
        self.find_twice("", &mut found);
        found
    }

    fn find_twice(&self, path: &str, found: &mut Vec<Mistake>) {
        for (at, field) in self.fields().iter().enumerate() {
            let path = match path {
                "" => field.name.clone(),
                path => format!("{path}.{}", plain(&field.name)),
            };
            let mut before = self.fields().iter().take(at);
            let is_name = !matches!(field.name.as_str(), "" | "<<");
            if let Some(first) = before.find(|other| is_name && other.name == field.name) {
                let problem = format!("is on line {}, too; write it once", first.key.line);
                found.push(Mistake {
                    path: path.clone(),
                    problem,
                });
            }
            field.value.find_twice(&path, found);
        }
        for (index, item) in self.items().iter().enumerate() {
            item.find_twice(&format!("{path}[{index}]"), found);
        }
    }

    /// The line of a field by its path, such as `spec.limits[0].selector`; of what is around it, if it is not there.
    pub(super) fn line_of(&self, path: &str) -> usize {
        let (mut node, mut line, mut path) = (self, self.line, path);
        loop {
            path = path.trim_start_matches('.');
            let fields = node.fields().iter();
            let named = fields.filter_map(|field| Some((field, after(path, &field.name)?)));
            // Names of labels have dots in them: the longest that fits is meant.
            if let Some((field, rest)) = named.max_by_key(|(field, _)| field.name.len()) {
                (node, line, path) = (&field.value, field.key.line, rest);
                continue;
            }
            let Some((item, rest)) = element(node, path) else {
                return line;
            };
            (node, line, path) = (item, item.line, rest);
        }
    }
}

/// A name as paths have it: in quotes if it has dots or the like.
fn plain(name: &str) -> String {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { name.to_owned() } else { quote(name) }
}

/// What follows a field's name at the start of a path.
fn after<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(name).or_else(|| path.strip_prefix(&quote(name)))?;
    let ends = rest.is_empty() || rest.starts_with(['.', '[']);
    (ends && !name.is_empty()).then_some(rest)
}

/// The element at the start of a path, and what follows.
fn element<'n, 'p>(node: &'n Node, path: &'p str) -> Option<(&'n Node, &'p str)> {
    let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
    Some((node.items().get(index.parse::<usize>().ok()?)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# A comment.
kind: A
spec:
  labels:
    a.b/c: d   # another
    nothing:
  list:
  - x: 1
    y: {z: [1, 2]}
  - \"quoted\"
---
# Nothing.
---
{\"kind\": \"B\",
 \"spec\": {\"x\": [
   {\"y\": 1}]}}
";

    #[test]
    fn each_field_has_its_line_and_unknown_ones_that_of_what_is_around() {
        let documents = documents(TEXT);
        assert_eq!(documents.len(), 3);
        let root = documents[0].root.as_ref().unwrap();
        for (path, line) in [
            ("kind", 2),
            ("spec.labels.a.b/c", 5),
            ("spec.labels.\"a.b/c\"", 5),
            ("spec.labels.nothing", 6),
            ("spec.labels.other", 4),
            ("spec.list[0].y.z[1]", 9),
            ("spec.list[1]", 10),
            ("spec.list[7].x", 7),
            ("metadata.name", 2),
            ("", 2),
        ] {
            assert_eq!(root.line_of(path), line, "{path}");
        }
        assert!(documents[1].root.as_ref().unwrap().is_nothing(TEXT));
        let json = documents[2].root.as_ref().unwrap();
        assert_eq!((json.line_of("kind"), json.line_of("spec.x[0].y")), (14, 16));
        assert_eq!(documents[0].comments, 1, "the first stands before it");
    }

    #[test]
    fn fields_that_stand_twice_are_found_where_they_stand() {
        let text = "a: 1\nb:\n  c/d: 1\n  x: {y: 1, z: 2, y: 3}\n  c/d: 2\nlist:\n- a: 1\n  <<: {b: 1}\n  <<: {c: 1}\n- a: 1\n  a: 2\na: 2\n";
        let documents = documents(text);
        let root = documents[0].root.as_ref().unwrap();
        let told: Vec<_> = root
            .fields_written_twice()
            .into_iter()
            .map(|it| (root.line_of(&it.path), format!("{}: {}", it.path, it.problem)))
            .collect();
        let expected = [
            (4, "b.x.y: is on line 4, too; write it once"),
            (5, "b.\"c/d\": is on line 3, too; write it once"),
            (11, "list[1].a: is on line 10, too; write it once"),
            (12, "a: is on line 1, too; write it once"),
        ];
        assert_eq!(told, expected.map(|(line, told)| (line, told.to_owned())));
    }

    #[test]
    fn places_are_those_in_the_text() {
        let documents = documents(TEXT);
        let root = documents[0].root.as_ref().unwrap();
        let list = root
            .at(&[Step::Key("spec".to_owned()), Step::Key("list".to_owned())])
            .unwrap();
        let written = |node: &Node| TEXT[node.span.clone()].to_owned();
        assert_eq!(written(&list.items()[0]), "x: 1\n    y: {z: [1, 2]}");
        assert_eq!(written(&list.items()[1]), "\"quoted\"");
        assert_eq!(written(&list.items()[0].field("y").unwrap().value), "{z: [1, 2]}");
        let json = &TEXT[documents[2].range.clone()];
        assert!(json.trim_end().ends_with("{\"y\": 1}]}}"), "{json:?}");
    }

    #[test]
    fn document_that_cannot_be_read_hides_no_other() {
        let documents = documents("a: [\n---\nb: 1\n---\nc: }\n---\ne: 2\n");
        let lines: Vec<_> = documents
            .iter()
            .map(|document| document.root.as_ref().map(|root| root.line))
            .collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].is_err() && lines[2].is_err(), "{lines:?}");
        assert_eq!((lines[1].as_ref().ok(), lines[3].as_ref().ok()), (Some(&3), Some(&7)));
    }
}
