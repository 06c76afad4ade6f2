//! A YAML or JSON text as a tree of source positions: where each field or item begins and ends. The values are read by serde-saphyr;
//! callers walk both side by side.

use std::ops::Range;

use ctrlmesh_contract::Mistake;
use ctrlmesh_contract::error::quote;
use ctrlmesh_manager_planner::validate::Step;
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput, StructureStyle};

/// Maximum of consecutive comments; more than any file has.
const MAX_COMMENTS: usize = 100_000;

#[derive(Debug)]
pub(super) struct Document {
    /// Byte range from `---`, if there is one, to the next.
    pub(super) range: Range<usize>,
    /// First line, from 1.
    pub(super) line: usize,
    /// Number of comments after its start.
    pub(super) comments: usize,
    /// The root node; or line and message of the error.
    pub(super) root: Result<Node, (usize, String)>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) kind: Kind,
    /// Byte range without surrounding comments and blanks.
    pub(super) span: Range<usize>,
    /// First line, from 1.
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) enum Kind {
    Scalar(ScalarStyle),
    /// An alias of another value.
    Alias,
    Mapping {
        /// In braces: `{a: 1}`.
        is_flow: bool,
        fields: Vec<Field>,
    },
    Sequence {
        /// In brackets: `[1, 2]`.
        is_flow: bool,
        items: Vec<Node>,
    },
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) key: Node,
    pub(super) value: Node,
}

/// Every document of a text. An unreadable one does not hide the others.
pub(super) fn parse_documents(text: &str) -> Vec<Document> {
    let options = serde_saphyr::granit_parser::options! { max_buffered_comment_events: MAX_COMMENTS };
    let mut reader = Reader {
        text,
        parser: Parser::new_from_str_with_options(text, options),
        comments: 0,
    };
    let mut documents: Vec<Document> = Vec::new();
    loop {
        match reader.read_document() {
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
    /// The next event that is not a comment; comments are counted.
    fn next_event(&mut self) -> Result<Option<(Event<'t>, Span)>, ScanError> {
        loop {
            match self.parser.next_event().transpose()? {
                Some((Event::Comment(..), _)) => self.comments += 1,
                event => return Ok(event),
            }
        }
    }

    fn read_document(&mut self) -> Result<Option<Document>, ScanError> {
        loop {
            let Some((event, span)) = self.next_event()? else {
                return Ok(None);
            };
            if !matches!(event, Event::DocumentStart(..)) {
                continue;
            }
            let before = self.comments;
            let begin = self.line_start(byte_range(&span).start);
            let Some((event, first)) = self.next_event()? else {
                return Ok(None);
            };
            let root = self.read_node(event, &first)?;
            let end = self
                .next_event()?
                .map_or(root.span.end, |(_, span)| byte_range(&span).start);
            return Ok(Some(Document {
                range: begin..self.line_end(end.max(root.span.end)),
                line: span.start.line(),
                comments: self.comments - before,
                root: Ok(root),
            }));
        }
    }

    /// Start of the line of a position, if only blanks precede it.
    fn line_start(&self, at: usize) -> usize {
        let before = self.text.get(..at).unwrap_or_default();
        let start = before.trim_end_matches(' ').len();
        if start == 0 || before.get(..start).is_some_and(|before| before.ends_with('\n')) {
            start
        } else {
            at
        }
    }

    /// End of the line of a position, unless the position is the start of one.
    fn line_end(&self, at: usize) -> usize {
        let (before, rest) = self.text.split_at_checked(at).unwrap_or((self.text, ""));
        match rest.find('\n') {
            _ if before.ends_with('\n') => at,
            Some(newline) => at + newline + 1,
            None => self.text.len(),
        }
    }

    /// The node that begins with an event. The parser bounds the recursion (255 levels).
    fn read_node(&mut self, event: Event<'t>, span: &Span) -> Result<Node, ScanError> {
        let (begin, line) = (byte_range(span).start, span.start.line());
        let (kind, end) = match event {
            Event::MappingStart(style, ..) => {
                let (fields, close) = self.read_fields()?;
                let is_flow = style == StructureStyle::Flow;
                let last = fields.last().map_or(begin, |field| field.value.span.end);
                (Kind::Mapping { is_flow, fields }, if is_flow { close } else { last })
            }
            Event::SequenceStart(style, ..) => {
                let (items, close) = self.read_items()?;
                let is_flow = style == StructureStyle::Flow;
                let last = items.last().map_or(begin, |item| item.span.end);
                (Kind::Sequence { is_flow, items }, if is_flow { close } else { last })
            }
            Event::Scalar(_, style, ..) => (Kind::Scalar(style), byte_range(span).end),
            _ => (Kind::Alias, byte_range(span).end),
        };
        Ok(Node {
            kind,
            span: begin..end.max(begin),
            line,
        })
    }

    /// The fields of a mapping, and the end of the mapping.
    fn read_fields(&mut self) -> Result<(Vec<Field>, usize), ScanError> {
        let mut fields = Vec::new();
        while let Some((event, span)) = self.next_event()? {
            if event == Event::MappingEnd {
                return Ok((fields, byte_range(&span).end));
            }
            let name = event.scalar().map_or_else(String::new, |(name, _)| name.to_owned());
            let key = self.read_node(event, &span)?;
            let Some((event, span)) = self.next_event()? else { break };
            let mut value = self.read_node(event, &span)?;
            if value.span.is_empty() {
                // A missing value has the position of the next token.
                (value.span, value.line) = (key.span.end..key.span.end, key.line);
            }
            fields.push(Field { name, key, value });
        }
        Ok((fields, 0))
    }

    /// The items of a list, and the end of the list.
    fn read_items(&mut self) -> Result<(Vec<Node>, usize), ScanError> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next_event()? {
            if event == Event::SequenceEnd {
                return Ok((items, byte_range(&span).end));
            }
            items.push(self.read_node(event, &span)?);
        }
        Ok((items, 0))
    }
}

/// In a text in memory, all positions are known.
fn byte_range(span: &Span) -> Range<usize> {
    span.byte_range().unwrap_or_default()
}

impl Node {
    /// Whether the value is missing, or written as null.
    pub(super) fn is_null(&self, text: &str) -> bool {
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

    pub(super) fn node_at(&self, path: &[Step]) -> Option<&Self> {
        path.iter().try_fold(self, |node, step| match step {
            Step::Key(key) => node.field(key).map(|field| &field.value),
            Step::Index(index) => node.items().get(*index),
        })
    }

    /// Duplicate fields in any mapping, counted as the parser does except for merge keys (`<<`). The parser bounds the recursion.
    pub(super) fn fields_written_twice(&self) -> Vec<Mistake> {
        let mut found = Vec::new();
        self.find_twice("", &mut found);
        found
    }

    fn find_twice(&self, path: &str, found: &mut Vec<Mistake>) {
        for (at, field) in self.fields().iter().enumerate() {
            let path = match path {
                "" => field.name.clone(),
                path => format!("{path}.{}", path_segment(&field.name)),
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

    /// The line of a field by its path, such as `spec.limits[0].selector`; that of its parent if it is missing.
    pub(super) fn line_of(&self, path: &str) -> usize {
        let (mut node, mut line, mut path) = (self, self.line, path);
        loop {
            path = path.trim_start_matches('.');
            let fields = node.fields().iter();
            let named = fields.filter_map(|field| Some((field, strip_field(path, &field.name)?)));
            // Label names have dots in them, so the longest field name that fits is meant.
            if let Some((field, rest)) = named.max_by_key(|(field, _)| field.name.len()) {
                (node, line, path) = (&field.value, field.key.line, rest);
                continue;
            }
            let Some((item, rest)) = split_element(node, path) else {
                return line;
            };
            (node, line, path) = (item, item.line, rest);
        }
    }
}

/// A field name in a path: quoted if it has dots or the like.
fn path_segment(name: &str) -> String {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_plain { name.to_owned() } else { quote(name) }
}

/// The rest of a path after the field's name at its start.
fn strip_field<'p>(path: &'p str, name: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(name).or_else(|| path.strip_prefix(&quote(name)))?;
    let ends = rest.is_empty() || rest.starts_with(['.', '[']);
    (ends && !name.is_empty()).then_some(rest)
}

/// The item at the start of a path, and the rest of the path.
fn split_element<'n, 'p>(node: &'n Node, path: &'p str) -> Option<(&'n Node, &'p str)> {
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
    fn unknown_field_has_the_line_of_its_parent() {
        let documents = parse_documents(TEXT);
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
        assert!(documents[1].root.as_ref().unwrap().is_null(TEXT));
        let json = documents[2].root.as_ref().unwrap();
        assert_eq!((json.line_of("kind"), json.line_of("spec.x[0].y")), (14, 16));
        assert_eq!(documents[0].comments, 1, "the first stands before it");
    }

    #[test]
    fn duplicate_fields_are_found_with_their_lines() {
        let text = "a: 1\nb:\n  c/d: 1\n  x: {y: 1, z: 2, y: 3}\n  c/d: 2\nlist:\n- a: 1\n  <<: {b: 1}\n  <<: {c: 1}\n- a: 1\n  a: 2\na: 2\n";
        let documents = parse_documents(text);
        let root = documents[0].root.as_ref().unwrap();
        let messages: Vec<_> = root
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
        assert_eq!(messages, expected.map(|(line, message)| (line, message.to_owned())));
    }

    #[test]
    fn node_ranges_match_the_text() {
        let documents = parse_documents(TEXT);
        let root = documents[0].root.as_ref().unwrap();
        let list = root
            .node_at(&[Step::Key("spec".to_owned()), Step::Key("list".to_owned())])
            .unwrap();
        let written = |node: &Node| TEXT[node.span.clone()].to_owned();
        assert_eq!(written(&list.items()[0]), "x: 1\n    y: {z: [1, 2]}");
        assert_eq!(written(&list.items()[1]), "\"quoted\"");
        assert_eq!(written(&list.items()[0].field("y").unwrap().value), "{z: [1, 2]}");
        let json = &TEXT[documents[2].range.clone()];
        assert!(json.trim_end().ends_with("{\"y\": 1}]}}"), "{json:?}");
    }

    #[test]
    fn unreadable_document_hides_no_other() {
        let documents = parse_documents("a: [\n---\nb: 1\n---\nc: }\n---\ne: 2\n");
        let lines: Vec<_> = documents
            .iter()
            .map(|document| document.root.as_ref().map(|root| root.line))
            .collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].is_err() && lines[2].is_err(), "{lines:?}");
        assert_eq!((lines[1].as_ref().ok(), lines[3].as_ref().ok()), (Some(&3), Some(&7)));
    }
}
