//! Besides headers, plugins may change the query of an external request. Objects, selectors and views exist in the Kubernetes API only.

use ctrlmesh_wire::QueryEditor;
use http::Uri;
use http::uri::PathAndQuery;

use crate::chain::phases::Attributed;
use crate::chain::phases::EditError;
use crate::plugin::verdict::RequestEdit;
use crate::respond::Reply;

/// Applies the edits, in order. Returns the new path and query; `None` keeps the client's own.
///
/// # Errors
/// A plugin's edit is impossible, or leads to an invalid request target.
pub(super) fn apply(uri: &Uri, edits: &[Attributed]) -> Result<Option<PathAndQuery>, EditError> {
    let mut query = QueryEditor::new(uri.query().unwrap_or_default());
    for (entry, edit) in edits {
        match edit {
            RequestEdit::SetQuery(name, value) => query.set(name, value),
            RequestEdit::RemoveQuery(name) => query.remove(name),
            // `Plugins::apply_edits` applies them.
            RequestEdit::SetHeader(..) | RequestEdit::RemoveHeader(_) => {}
            // There is no object that could have this name.
            RequestEdit::RenameObject { .. } => {}
            RequestEdit::AndLabelSelector(_) | RequestEdit::AndFieldSelector(_) => {
                return Err(EditError::Plugin {
                    entry: *entry,
                    what: "a selector on external traffic: it is legal on list, watch and deletecollection".to_owned(),
                });
            }
            RequestEdit::KeepObjects(_) => {
                return Err(EditError::Plugin {
                    entry: *entry,
                    what: "keep-objects on external traffic: it is legal on list, watch and deletecollection"
                        .to_owned(),
                });
            }
            RequestEdit::DropFields(_) => {
                return Err(EditError::Plugin {
                    entry: *entry,
                    what: "drop-fields on external traffic: it is legal on list and watch".to_owned(),
                });
            }
            RequestEdit::AskAboutObjects(_) => {
                return Err(EditError::Plugin {
                    entry: *entry,
                    what: "ask-about-objects on external traffic: it is legal on list and watch".to_owned(),
                });
            }
            RequestEdit::RequireObjectMatch(..) => {
                return Err(EditError::Plugin {
                    entry: *entry,
                    what: "require-object-match on external traffic: it is legal on requests for one object".to_owned(),
                });
            }
        }
    }
    if !query.is_changed() {
        return Ok(None);
    }
    let target = match query.finish() {
        query if query.is_empty() => uri.path().to_owned(),
        query => format!("{}?{query}", uri.path()),
    };
    match target.parse() {
        Ok(target) => Ok(Some(target)),
        Err(error) => Err(EditError::Client(Reply::bad_request(format!(
            "the edited request target is no URI: {error}"
        )))),
    }
}

#[cfg(test)]
mod tests {
    use ctrlmesh_wire::objects::Predicate;
    use http::header::ACCEPT;

    use super::*;
    use crate::chain::EntryId;
    use crate::plugin::dropped_fields::PluginDroppedFields;
    use crate::plugin::object_metadata::ObjectQuestion;
    use crate::plugin::verdict::ObjectRefusal;

    fn edit_result(uri: &'static str, edits: Vec<RequestEdit>) -> Result<Option<PathAndQuery>, EditError> {
        let id = EntryId::next_id();
        let edits: Vec<Attributed> = edits.into_iter().map(|edit| (id, edit)).collect();
        apply(&Uri::from_static(uri), &edits)
    }

    #[test]
    fn query_edit_keeps_bytes_of_other_parameters() {
        let set = |name: &str| RequestEdit::SetQuery(name.to_owned(), "1 2".to_owned());
        let remove = |name: &str| RequestEdit::RemoveQuery(name.to_owned());
        let target = |uri, edits| edit_result(uri, edits).unwrap().map(|target| target.to_string());
        assert_eq!(
            target("http://h/p?b=%2f&a;x", vec![set("watch")]).unwrap(),
            "/p?b=%2f&a;x&watch=1%202"
        );
        assert_eq!(target("http://h/p?a=1", vec![remove("a")]).unwrap(), "/p");
        assert_eq!(target("http://h/p?a=1", vec![remove("b")]), None);
        assert_eq!(target("http://h", vec![set("a")]).unwrap(), "/?a=1%202");
    }

    #[test]
    fn edit_of_a_list_is_plugins_fault_and_rename_has_no_effect() {
        let everything = Predicate::All(Box::default());
        let managed_fields = PluginDroppedFields::parse(vec!["metadata.managedFields".to_owned()]).unwrap();
        for edit in [
            RequestEdit::AndLabelSelector("a=b".into()),
            RequestEdit::KeepObjects(everything.clone().into()),
            RequestEdit::RequireObjectMatch(everything.into(), ObjectRefusal::Conflict),
            RequestEdit::DropFields(managed_fields),
            RequestEdit::AskAboutObjects(ObjectQuestion::new(Vec::new())),
        ] {
            assert!(matches!(
                edit_result("http://h/", vec![edit]),
                Err(EditError::Plugin { .. })
            ));
        }
        let rename = RequestEdit::RenameObject {
            from: "a".to_owned(),
            to: "b".to_owned(),
        };
        assert_eq!(
            edit_result("http://h/a", vec![rename, RequestEdit::RemoveHeader(ACCEPT)]).unwrap(),
            None
        );
    }
}
