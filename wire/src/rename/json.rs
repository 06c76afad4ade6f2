//! Names in JSON: objects, lists, Tables, Status, Events and merge patches, told apart by their `kind`, which may come
//! before or behind the names.

use super::json_scanner::{JsonString, Scanner, Splice, apply_splices};
use super::{Rename, RenameError, is_lock_kind};

/// Renames in one document.
pub(super) fn rename(body: &[u8], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    let names = Names {
        rename,
        quoted: quoted_names(rename),
    };
    let mut scanner = Scanner::new(body);
    let splices = names.scan_object(&mut scanner, Level::Top)?.into_splices();
    scanner.expect_end()?;
    Ok(apply_splices(body, splices))
}

/// Renames in the `object` of one JSON watch event.
pub(super) fn rename_watch_event(event: &[u8], rename: &Rename) -> Result<Option<Vec<u8>>, RenameError> {
    let names = Names {
        rename,
        quoted: quoted_names(rename),
    };
    let mut scanner = Scanner::new(event);
    let mut splices = Vec::new();
    scanner.visit_members(|scanner, key| match key {
        "object" => {
            splices.extend(names.scan_object(scanner, Level::Top)?.into_splices());
            Ok(())
        }
        _ => scanner.skip_value(),
    })?;
    scanner.expect_end()?;
    Ok(apply_splices(event, splices))
}

/// The condition of a replacement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplaceRule {
    /// `metadata.name`, in an object of any kind.
    Name,
    /// Within the items of a list.
    Item,
    /// The object that an Event is about.
    Reference,
    /// The object that an Event is about, in an item that does not tell its kind.
    ItemReference,
    /// The object in a row of a Table.
    Row,
    /// The object that a Status is about.
    Status,
}

/// Lists and Tables hold objects, but those hold no further ones: bounds the recursion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Top,
    Inner,
}

/// Replacements in an object, before its kind is known.
#[derive(Default)]
struct Found {
    kind: Option<String>,
    splices: Vec<(ReplaceRule, Splice)>,
}

impl Found {
    /// Keeps what fits the kind.
    fn into_splices(self) -> Vec<Splice> {
        let kind = self.kind.as_deref().unwrap_or("");
        let fits = |rule| match rule {
            ReplaceRule::Name => true,
            ReplaceRule::Item => kind.ends_with("List"),
            ReplaceRule::Reference => kind == "Event",
            ReplaceRule::ItemReference => kind == "EventList",
            ReplaceRule::Row => kind == "Table",
            ReplaceRule::Status => kind == "Status",
        };
        self.splices
            .into_iter()
            .filter(|(rule, _)| fits(*rule))
            .map(|(_, splice)| splice)
            .collect()
    }
}

struct Names<'r> {
    rename: &'r Rename,
    /// From and to, quoted, as they stand inside of a JSON string.
    quoted: (Vec<u8>, Vec<u8>),
}

impl Names<'_> {
    fn scan_object(&self, scanner: &mut Scanner<'_>, level: Level) -> Result<Found, RenameError> {
        let mut found = Found::default();
        let splices = &mut found.splices;
        scanner.visit_members(|scanner, key| match key {
            "kind" => {
                found.kind = scanner.string_value()?.and_then(|kind| kind.decode()).map(Into::into);
                Ok(())
            }
            "metadata" => self.scan_member(scanner, "name", ReplaceRule::Name, splices),
            "message" => self.message(scanner, splices),
            "details" => self.details(scanner, splices),
            "involvedObject" | "regarding" => self.scan_reference(scanner, splices),
            "items" if level == Level::Top => scanner.visit_elements(|scanner| self.scan_item(scanner, splices)),
            "rows" if level == Level::Top => scanner.visit_elements(|scanner| self.scan_row(scanner, splices)),
            _ => scanner.skip_value(),
        })?;
        Ok(found)
    }

    fn scan_item(
        &self,
        scanner: &mut Scanner<'_>,
        splices: &mut Vec<(ReplaceRule, Splice)>,
    ) -> Result<(), RenameError> {
        let item = self.scan_object(scanner, Level::Inner)?;
        // Items of a typed list have no kind of their own: the list tells whether they are Events.
        let has_no_kind = item.kind.is_none();
        let is_event = item.kind.as_deref() == Some("Event");
        for (rule, splice) in item.splices {
            match rule {
                ReplaceRule::Name => splices.push((ReplaceRule::Item, splice)),
                ReplaceRule::Reference if is_event => splices.push((ReplaceRule::Item, splice)),
                ReplaceRule::Reference if has_no_kind => splices.push((ReplaceRule::ItemReference, splice)),
                _ => {}
            }
        }
        Ok(())
    }

    fn scan_row(&self, scanner: &mut Scanner<'_>, splices: &mut Vec<(ReplaceRule, Splice)>) -> Result<(), RenameError> {
        scanner.visit_members(|scanner, key| match key {
            "cells" => scanner.visit_elements(|scanner| self.name(scanner, ReplaceRule::Row, splices)),
            "object" => {
                let object = self.scan_object(scanner, Level::Inner)?.into_splices();
                splices.extend(object.into_iter().map(|splice| (ReplaceRule::Row, splice)));
                Ok(())
            }
            _ => scanner.skip_value(),
        })
    }

    fn details(&self, scanner: &mut Scanner<'_>, splices: &mut Vec<(ReplaceRule, Splice)>) -> Result<(), RenameError> {
        scanner.visit_members(|scanner, key| match key {
            "name" => self.name(scanner, ReplaceRule::Status, splices),
            "causes" => scanner.visit_elements(|scanner| {
                scanner.visit_members(|scanner, key| match key {
                    "message" => self.message(scanner, splices),
                    _ => scanner.skip_value(),
                })
            }),
            _ => scanner.skip_value(),
        })
    }

    fn scan_reference(
        &self,
        scanner: &mut Scanner<'_>,
        splices: &mut Vec<(ReplaceRule, Splice)>,
    ) -> Result<(), RenameError> {
        let mut is_lock = false;
        let mut names = Vec::new();
        scanner.visit_members(|scanner, key| match key {
            "kind" => {
                is_lock = scanner
                    .string_value()?
                    .and_then(|kind| kind.decode())
                    .is_some_and(|kind| is_lock_kind(&kind));
                Ok(())
            }
            "name" => self.name(scanner, ReplaceRule::Reference, &mut names),
            _ => scanner.skip_value(),
        })?;
        if is_lock {
            splices.append(&mut names);
        }
        Ok(())
    }

    fn scan_member(
        &self,
        scanner: &mut Scanner<'_>,
        expected_key: &str,
        rule: ReplaceRule,
        splices: &mut Vec<(ReplaceRule, Splice)>,
    ) -> Result<(), RenameError> {
        scanner.visit_members(|scanner, key| match key {
            key if key == expected_key => self.name(scanner, rule, splices),
            _ => scanner.skip_value(),
        })
    }

    fn name(
        &self,
        scanner: &mut Scanner<'_>,
        rule: ReplaceRule,
        splices: &mut Vec<(ReplaceRule, Splice)>,
    ) -> Result<(), RenameError> {
        if let Some(splice) = scanner
            .string_value()?
            .and_then(|name| rename_string(&name, self.rename))
        {
            splices.push((rule, splice));
        }
        Ok(())
    }

    /// A message names the object in quotes: `leases.coordination.k8s.io "lock" not found`.
    fn message(&self, scanner: &mut Scanner<'_>, splices: &mut Vec<(ReplaceRule, Splice)>) -> Result<(), RenameError> {
        let Some(message) = scanner.string_value()? else {
            return Ok(());
        };
        let (from, to) = &self.quoted;
        let mut position = 0;
        while let Some(rest) = message.raw.get(position..) {
            let Some(found) = rest.windows(from.len()).position(|window| window == from.as_slice()) else {
                break;
            };
            let start = message.range.start + position + found;
            splices.push((
                ReplaceRule::Status,
                Splice {
                    range: start..start + from.len(),
                    with: to.clone(),
                },
            ));
            position += found + from.len();
        }
        Ok(())
    }
}

/// The replacement of a whole string, if it is the name.
pub(super) fn rename_string(string: &JsonString<'_>, rename: &Rename) -> Option<Splice> {
    let is_name = string.decode().is_some_and(|text| text == rename.from);
    is_name.then(|| Splice {
        range: string.range.clone(),
        with: quote(&rename.to).into_bytes(),
    })
}

/// Encodes a text as a JSON string, with its quotation marks.
pub(super) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Both names as a quoted word within a JSON string.
fn quoted_names(rename: &Rename) -> (Vec<u8>, Vec<u8>) {
    let within = |name: &str| {
        let quoted = quote(&quote(name));
        quoted.get(1..quoted.len() - 1).unwrap_or("").as_bytes().to_vec()
    };
    (within(&rename.from), within(&rename.to))
}
