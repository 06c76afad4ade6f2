//! A page of a collection: reads the objects that match from a list in JSON, while its bytes come in.
//!
//! Guarantees: at most one object of the list is buffered, however many there are; of the others, those that match are kept with name and
//! UID alone; a list that cannot be read to its end gives no page.

use std::pin::pin;

use bytes::Bytes;
use ctrlmesh_wire::objects::{JsonListFilter, MetadataFields, ObjectMetadata, Predicate};
use http_body::Body;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::respond::Reply;
use crate::upstream::BoxError;

/// Longest list without its objects, in bytes: its metadata has a continue token, which holds one key of etcd.
const MAX_REST_BYTES: usize = 64 << 10;

/// Bytes that are read in one turn. A long list must not take the thread for itself.
const BYTES_PER_TURN: usize = 1 << 20;

/// The fields of an object by which it is deleted.
const FIELDS_OF_TARGET: MetadataFields = MetadataFields {
    resource_version: false,
    labels: false,
    annotations: false,
    controller: false,
    ..MetadataFields::ALL
};

/// An object that matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedObject {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl ListedObject {
    fn of_metadata(metadata: &ObjectMetadata<'_>) -> Self {
        Self {
            namespace: metadata.namespace.to_string(),
            name: metadata.name.to_string(),
            uid: metadata.uid.to_string(),
        }
    }

    /// Estimated memory.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.namespace.len() + self.name.len() + self.uid.len()
    }
}

/// The part of a list that a request gives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    /// Those that match.
    pub(super) objects: Vec<ListedObject>,
    /// Memory that was held for them.
    pub(super) bytes: usize,
    /// The continue token of the next page.
    pub(super) next: Option<String>,
}

/// A list without its objects.
#[derive(Deserialize)]
struct ListRest {
    /// Another object than a list has none.
    #[serde(rename = "items")]
    _items: IgnoredAny,
    metadata: Option<ListMetadata>,
}

#[derive(Deserialize)]
struct ListMetadata {
    #[serde(rename = "continue")]
    token: Option<String>,
}

/// Reads a list. `hold` reserves memory for objects that match.
///
/// # Errors
/// The reply to send if the body is no list or broken off, or if there is no memory for its objects.
pub(super) async fn read_page<B>(
    body: B,
    predicates: &[&Predicate],
    hold: impl Fn(usize) -> Result<(), Reply>,
) -> Result<Page, Reply>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let fields = predicates.iter().map(|predicate| predicate.fields());
    let mut filter = JsonListFilter::new(fields.fold(FIELDS_OF_TARGET, MetadataFields::union));
    let (mut objects, mut rest, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut bytes_of_turn = 0;
    let mut body = pin!(body);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Reply::broken_body(&error.into()))?;
        let Some(data) = frame.data_ref() else { continue };
        let mut bytes_of_frame = 0;
        let mut decide = |listed: &[ObjectMetadata<'_>], are_kept: &mut [bool]| {
            are_kept.fill(false);
            let matching = |object: &&ObjectMetadata<'_>| predicates.iter().all(|predicate| predicate.matches(object));
            for object in listed.iter().filter(matching) {
                let object = ListedObject::of_metadata(object);
                bytes_of_frame += object.bytes();
                objects.push(object);
            }
        };
        let pushed = filter.push(data, &mut rest, &mut decide);
        pushed.map_err(|error| Reply::unfinished_deletion(&error.to_string()))?;
        hold(bytes_of_frame)?;
        bytes += bytes_of_frame;
        if rest.len() > MAX_REST_BYTES {
            return Err(Reply::unfinished_deletion("the metadata of the list exceeds 64 KiB"));
        }
        bytes_of_turn += data.len();
        if bytes_of_turn >= BYTES_PER_TURN {
            bytes_of_turn = 0;
            tokio::task::yield_now().await;
        }
    }
    let ended = filter.finish();
    ended.map_err(|error| Reply::unfinished_deletion(&error.to_string()))?;
    let list: Result<ListRest, _> = serde_json::from_slice(&rest);
    let list = list.map_err(|error| Reply::unfinished_deletion(&error.to_string()))?;
    let token = list.metadata.and_then(|metadata| metadata.token);
    Ok(Page {
        objects,
        bytes,
        next: token.filter(|token| !token.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;

    use ctrlmesh_wire::LabelSelector;
    use ctrlmesh_wire::objects::NameSet;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    fn labels(selector: &str) -> Predicate {
        Predicate::labels(LabelSelector::parse(selector).unwrap()).unwrap()
    }

    fn object(name: &str) -> ListedObject {
        ListedObject {
            namespace: "n".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
        }
    }

    /// A list of objects with their labels `team`, in frames of this size.
    fn list(objects: &[(&str, &str)], metadata: &str, frame: usize) -> Vec<Bytes> {
        let items: Vec<String> = objects
            .iter()
            .map(|(name, team)| {
                format!(
                    r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"uid-{name}","labels":{{"team":"{team}"}}}}}}"#
                )
            })
            .collect();
        let text = format!(
            r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{metadata},"items":[{}]}}"#,
            items.join(",")
        );
        text.as_bytes().chunks(frame).map(Bytes::copy_from_slice).collect()
    }

    async fn read(frames: Vec<Bytes>, predicates: &[&Predicate]) -> Result<Page, Reply> {
        let frames = frames.into_iter().map(|data| Ok::<_, Infallible>(Frame::data(data)));
        read_page(StreamBody::new(stream::iter(frames)), predicates, |_| Ok(())).await
    }

    #[tokio::test]
    async fn page_has_the_objects_that_all_predicates_match() {
        let objects = [("a", "x"), ("b", "y"), ("c", "x"), ("d", "x")];
        let (of_team, named) = (
            labels("team=x"),
            Predicate::Names(NameSet::of_names(["a", "b", "c"]).unwrap()),
        );
        for frame in [1, 7, 10_000] {
            let frames = list(&objects, r#"{"resourceVersion":"7","continue":"t"}"#, frame);
            let page = read(frames.clone(), &[&of_team]).await.unwrap();
            assert_eq!(page.objects, [object("a"), object("c"), object("d")], "{frame}");
            assert_eq!(page.next.as_deref(), Some("t"));
            let page = read(frames, &[&of_team, &named]).await.unwrap();
            assert_eq!(page.objects, [object("a"), object("c")], "{frame}");
        }
    }

    #[tokio::test]
    async fn last_page_has_no_token() {
        let of_team = labels("team=x");
        for metadata in [r#"{"continue":""}"#, r#"{"continue":null}"#, "{}", "null"] {
            let page = read(list(&[("a", "y")], metadata, 100), &[&of_team]).await.unwrap();
            let expected = Page {
                objects: Vec::new(),
                bytes: 0,
                next: None,
            };
            assert_eq!(page, expected, "{metadata}");
        }
    }

    #[tokio::test]
    async fn body_that_is_no_whole_list_gives_no_page() {
        let of_team = labels("team=x");
        let mut cut_off = list(&[("a", "x"), ("b", "x")], "{}", 20);
        cut_off.pop();
        let long = format!(r#"{{"continue":"{}"}}"#, "t".repeat(MAX_REST_BYTES));
        for frames in [
            cut_off,
            list(&[("a", "x")], &long, 1000),
            vec![Bytes::from_static(
                br#"{"kind":"Status","apiVersion":"v1","status":"Success"}"#,
            )],
            vec![Bytes::from_static(br#"{"kind":"List","items":[{"spec":{}}]}"#)],
            vec![Bytes::from_static(b"[]")],
            Vec::new(),
        ] {
            let reply = read(frames, &[&of_team]).await.unwrap_err();
            assert_eq!(reply.code(), 502);
        }
    }

    #[tokio::test]
    async fn memory_is_held_for_objects_that_match() {
        let of_team = labels("team=x");
        let frames = list(&[("a", "x"), ("b", "y"), ("c", "x")], "{}", 50);
        let frames = frames.into_iter().map(|data| Ok::<_, Infallible>(Frame::data(data)));
        let held = Cell::new(0);
        let hold = |bytes: usize| {
            held.set(held.get() + bytes);
            Ok(())
        };
        let page = read_page(StreamBody::new(stream::iter(frames)), &[&of_team], hold)
            .await
            .unwrap();
        assert_eq!((page.bytes, page.objects.len()), (held.get(), 2));
        assert_eq!(held.get(), object("a").bytes() + object("c").bytes());
    }
}
