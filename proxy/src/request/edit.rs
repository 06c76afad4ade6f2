//! Applies the edits that plugins asked for to a request head: query, selectors, headers, object name.
//!
//! Guarantees: a client selector can only be narrowed; a request that cannot be parsed the way the API server does is refused, never sent
//! on unfiltered; parameters that no edit names keep their order and bytes; an edit that the API server would not read counts as a mistake
//! of its plugin. Leaves bodies to `renaming`, `delete_options` and `object_filter`.

use ctrlmesh_wire::objects::METRIC_VALUE_GROUPS;
use ctrlmesh_wire::rename::{self, Rename};
use ctrlmesh_wire::{
    DeleteOption, DeleteOptionEdit, FieldSelector, LabelSelector, ParsedQuery, QueryEditor, RequestInfo, Verb,
};
use http::Uri;

use crate::chain::phases::{Attributed, EditError};
use crate::plugin::label_selector::PluginLabelSelector;
use crate::plugin::verdict::RequestEdit;
use crate::respond::Reply;

/// A request head after the edits.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Edited {
    /// New path and query; `None` keeps the client's own.
    pub(crate) path_and_query: Option<String>,
    /// Several only for a create, whose body shows which of them applies.
    pub(crate) renames: Vec<Rename>,
    /// Edits for the body of a DELETE, if it has one. The query contains them as well.
    pub(crate) delete_options: Vec<DeleteOptionEdit>,
}

/// Applies the edits to the request's target, one by one. `query` is that of `uri`. `Plugins::apply_edits` applies those of headers, once
/// all the others have turned out to be possible.
///
/// # Errors
/// Either the client's request or a plugin's edit is refused.
pub(crate) fn apply(
    info: &RequestInfo<'_>,
    uri: &Uri,
    query: &ParsedQuery<'_>,
    edits: &[Attributed],
) -> Result<Edited, EditError> {
    if edits.iter().any(|(_, edit)| edit.edits_target())
        && let Some(pair) = query.malformed_pair()
    {
        // The API server would drop the pair, and everything glued to it, so the request is refused.
        return Err(EditError::Client(Reply::bad_request(format!(
            "malformed query parameter {pair:?}"
        ))));
    }
    let mut work = Work {
        info,
        query: query.edit(),
        renames: Vec::new(),
        delete_options: Vec::new(),
        filters_objects: false,
    };
    for (entry, edit) in edits {
        work.apply_edit(edit).map_err(|refused| match refused {
            Refused::Client(message) => EditError::Client(Reply::bad_request(message)),
            Refused::Plugin(what) => EditError::Plugin { entry: *entry, what },
        })?;
    }
    work.finish(uri)
}

enum Refused {
    Client(String),
    Plugin(String),
}

struct Work<'a> {
    info: &'a RequestInfo<'a>,
    query: QueryEditor<'a>,
    renames: Vec<Rename>,
    delete_options: Vec<DeleteOptionEdit>,
    /// Whether the response is filtered object by object.
    filters_objects: bool,
}

impl Work<'_> {
    fn apply_edit(&mut self, edit: &RequestEdit) -> Result<(), Refused> {
        match edit {
            RequestEdit::AndLabelSelector(selector) => self.and_labels(selector),
            RequestEdit::AndFieldSelector(text) => self.and_fields(text),
            RequestEdit::SetQuery(name, value) => self.set_query(name, value),
            RequestEdit::RemoveQuery(name) => {
                self.query.remove(name);
                self.delete_options
                    .extend(self.delete_option(name).map(DeleteOption::remove));
                Ok(())
            }
            RequestEdit::SetHeader(..) | RequestEdit::RemoveHeader(_) => Ok(()),
            RequestEdit::RenameObject { from, to } => {
                let is_named_by_body = self.info.verb == Verb::Create && self.info.name.is_empty();
                let has_own_name = |other: &Rename| is_named_by_body && other.from != *from;
                if !self.renames.iter().all(has_own_name) {
                    return Err(Refused::Plugin(
                        "two entries rename the object of one request".to_owned(),
                    ));
                }
                self.renames.push(Rename {
                    from: from.clone(),
                    to: to.clone(),
                });
                Ok(())
            }
            RequestEdit::KeepObjects(_) => self.keep_objects(),
            RequestEdit::AskAboutObjects(_) => self.ask_about_objects(),
            RequestEdit::DropFields(_) => self.drop_fields(),
            RequestEdit::RequireObjectMatch(..) => self.check_is_about_object(),
        }
    }

    fn set_query(&mut self, name: &str, value: &str) -> Result<(), Refused> {
        if let Some(readers) = verbs_that_read(self.info, name)
            && !readers.contains(&self.info.verb)
        {
            let verbs: Vec<&str> = readers.iter().map(|verb| verb.as_str()).collect();
            return Err(Refused::Plugin(format!(
                "set-query {name} on {} {}: the API server reads it on {}",
                self.info.verb,
                self.info.resource,
                if verbs.is_empty() {
                    "nothing of the kind".to_owned()
                } else {
                    verbs.join(", ")
                },
            )));
        }
        if let Some(option) = self.delete_option(name) {
            let edit = option
                .set(value)
                .ok_or_else(|| Refused::Plugin(format!("set-query {name}: {value:?} is no number")))?;
            self.delete_options.push(edit);
        }
        self.query.set(name, value);
        Ok(())
    }

    /// The option that a query parameter of a DELETE stands for.
    fn delete_option(&self, name: &str) -> Option<DeleteOption> {
        let is_delete = matches!(self.info.verb, Verb::Delete | Verb::DeleteCollection);
        DeleteOption::of_query(name).filter(|_| is_delete)
    }

    fn and_labels(&mut self, selector: &PluginLabelSelector) -> Result<(), Refused> {
        self.is_collection("and-label-selector")?;
        let more = selector
            .parsed()
            .map_err(|error| Refused::Plugin(format!("label selector {:?}: {error}", selector.text())))?;
        let sent = self.query.get("labelSelector").unwrap_or_default();
        if sent.is_empty() {
            if !more.selector.is_empty() {
                self.query.set("labelSelector", &more.text);
            }
            return Ok(());
        }
        let mut narrowed = LabelSelector::parse(&sent).map_err(|error| Refused::Client(error.to_string()))?;
        narrowed.narrow_by(more.selector.clone());
        if !narrowed.is_empty() {
            self.query.set("labelSelector", &narrowed.to_string());
        }
        Ok(())
    }

    fn and_fields(&mut self, text: &str) -> Result<(), Refused> {
        self.is_collection("and-field-selector")?;
        let more =
            FieldSelector::parse(text).map_err(|error| Refused::Plugin(format!("field selector {text:?}: {error}")))?;
        let sent = self.query.get("fieldSelector").unwrap_or_default();
        let mut selector = FieldSelector::parse(&sent).map_err(|error| Refused::Client(error.to_string()))?;
        selector.narrow_by(more);
        self.query.set("fieldSelector", &selector.to_string());
        Ok(())
    }

    fn is_collection(&self, edit: &str) -> Result<(), Refused> {
        match self.info.verb {
            Verb::List | Verb::Watch | Verb::DeleteCollection => Ok(()),
            other => Err(Refused::Plugin(format!(
                "{edit} on {other}: it is legal on list, watch and deletecollection"
            ))),
        }
    }

    fn keep_objects(&mut self) -> Result<(), Refused> {
        self.is_collection("keep-objects")?;
        // A deletion lists the objects itself.
        self.filters_objects |= self.info.verb != Verb::DeleteCollection;
        Ok(())
    }

    fn ask_about_objects(&mut self) -> Result<(), Refused> {
        if self.info.verb == Verb::DeleteCollection {
            // Refused whatever the failure policy: without the plugin's edits, objects would be deleted that it does not keep.
            return Err(Refused::Client(
                "a plugin asks about the objects of this collection, which is legal on list and watch only: delete objects by name"
                    .to_owned(),
            ));
        }
        self.check_is_read("ask-about-objects")?;
        self.filters_objects = true;
        Ok(())
    }

    fn drop_fields(&mut self) -> Result<(), Refused> {
        if self.info.verb == Verb::DeleteCollection {
            // Refused whatever the failure policy: without the plugin's edits, its selectors would not hold either.
            return Err(Refused::Client(
                "a plugin drops fields of the objects of this collection, which is legal on list and watch only: delete objects by name"
                    .to_owned(),
            ));
        }
        self.check_is_read("drop-fields")?;
        // Nothing is left out of values of metrics.
        self.filters_objects |= !METRIC_VALUE_GROUPS.contains(&&*self.info.group);
        Ok(())
    }

    fn check_is_about_object(&self) -> Result<(), Refused> {
        let is_legal = match self.info.verb {
            Verb::Get | Verb::Update | Verb::Patch | Verb::Delete => true,
            Verb::Create => !self.info.subresource.is_empty(),
            _ => false,
        };
        if !is_legal {
            return Err(Refused::Plugin(format!(
                "require-object-match on {}: it is legal on get, update, patch and delete, and on subresources",
                self.info.verb
            )));
        }
        if self.info.name.is_empty() {
            // The client's mistake: API servers know no such request.
            return Err(Refused::Client(format!(
                "a request with the method {} must name an object in its path",
                self.info.method
            )));
        }
        Ok(())
    }

    fn check_is_read(&self, edit: &str) -> Result<(), Refused> {
        match self.info.verb {
            Verb::List | Verb::Watch => Ok(()),
            other => Err(Refused::Plugin(format!(
                "{edit} on {other}: it is legal on list and watch"
            ))),
        }
    }

    fn finish(mut self, uri: &Uri) -> Result<Edited, EditError> {
        // A row without an object could not be filtered.
        if self.filters_objects && self.query.get("includeObject").as_deref() == Some("None") {
            self.query.set("includeObject", "Metadata");
        }
        let changed = self.query.is_changed();
        let mut query = if changed { Some(self.query.finish()) } else { None };
        let mut path = None;
        let (renames, delete_options) = (self.renames, self.delete_options);
        // A create has the name in its body.
        if let [rename] = &renames[..] {
            path = rename::path(uri.path(), self.info, rename);
            let sent = query.as_deref().or(uri.query()).unwrap_or_default();
            let renamed = rename::field_selector(sent, rename)
                .map_err(|error| EditError::Client(Reply::bad_request(error.to_string())))?;
            query = renamed.or(query);
        }
        let path_and_query = if path.is_some() || query.is_some() {
            let path = path.as_deref().unwrap_or(uri.path());
            Some(match query.as_deref().or(uri.query()) {
                Some(query) if !query.is_empty() => [path, "?", query].concat(),
                _ => path.to_owned(),
            })
        } else {
            None
        };
        Ok(Edited {
            path_and_query,
            renames,
            delete_options,
        })
    }
}

const WRITES: &[Verb] = &[Verb::Create, Verb::Update, Verb::Patch];
const DELETES: &[Verb] = &[Verb::Delete, Verb::DeleteCollection];
const COLLECTIONS: &[Verb] = &[Verb::List, Verb::Watch, Verb::DeleteCollection];
const READS: &[Verb] = &[Verb::Get, Verb::List, Verb::Watch, Verb::DeleteCollection];
const CHANGES: &[Verb] = &[
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
];

/// Whether the parameter exists in `DeleteOptions` only.
fn is_delete_option(name: &str) -> bool {
    matches!(
        name,
        "gracePeriodSeconds"
            | "propagationPolicy"
            | "orphanDependents"
            | "ignoreStoreReadErrorWithClusterBreakingPotential"
    )
}

/// The verbs for which the API server reads a query parameter (`ListOptions` to `DeleteOptions` in apimachinery
/// `pkg/apis/meta/v1/types.go`). Returns `None` for parameters without such a rule: those of subresources, of aggregated API servers and of
/// proxied services.
fn verbs_that_read(info: &RequestInfo<'_>, name: &str) -> Option<&'static [Verb]> {
    if !info.is_resource_request || info.verb == Verb::Proxy {
        return None;
    }
    match (&*info.subresource, name) {
        ("attach" | "exec" | "portforward" | "log", "dryRun") => Some(&[]),
        // An eviction deletes by the options of its body. Of its query, a create's options count: `propagateDryRun` in upstream's
        // `pkg/registry/core/pod/storage/eviction.go`.
        ("eviction", _) if info.group.is_empty() && info.resource == "pods" => match name {
            "dryRun" => Some(&[Verb::Create]),
            name if is_delete_option(name) => Some(&[]),
            _ => None,
        },
        ("" | "status" | "scale", _) => match name {
            "dryRun" => Some(CHANGES),
            name if is_delete_option(name) => Some(DELETES),
            "fieldManager" | "fieldValidation" => Some(WRITES),
            "force" => Some(&[Verb::Patch]),
            "limit" | "continue" | "resourceVersionMatch" | "timeoutSeconds" => Some(COLLECTIONS),
            "allowWatchBookmarks" | "sendInitialEvents" => Some(&[Verb::Watch]),
            "resourceVersion" => Some(READS),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests;
