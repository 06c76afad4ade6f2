//! Which pages are asked for, and which of them the client gets.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use ctrlmesh_wire::WatchEncoding;
use http_body_util::{BodyExt, Full};
use serde_json::Value;

use super::*;
use crate::stream::held_page::tests::{filtered, json_page};
use crate::upstream::BoxError;

/// A page of which the object with the name `mine` is kept.
fn page(names: &[&str], token: &str) -> Page {
    let body = Full::new(Bytes::from(json_page(names, token))).map_err(|never| -> BoxError { match never {} });
    let body = HeldPage::new(filtered(Box::pin(body), WatchEncoding::Json));
    let (head, ()) = Response::new(()).into_parts();
    Page { head, body }
}

/// The token of the page, and the names of its objects.
async fn content(response: PageResponse) -> (String, Vec<String>) {
    let PageResponse::Page(page) = response else {
        panic!("no page");
    };
    let list: Value = serde_json::from_slice(&page.body.collect().await.unwrap().to_bytes()).unwrap();
    let names = list["items"].as_array().unwrap().iter();
    let names = names.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
    (
        list["metadata"]["continue"].as_str().unwrap().to_owned(),
        names.collect(),
    )
}

fn in_a_minute() -> Instant {
    Instant::now() + MAX_TIME
}

fn sent() -> Uri {
    Uri::from_static("/api/v1/configmaps?limit=1")
}

/// The content of the page that the client gets, and the targets that were asked for, if these pages follow each other.
async fn response_of(first: Page, others: Vec<Page>) -> ((String, Vec<String>), Vec<String>) {
    let others = RefCell::new(others.into_iter());
    let targets = RefCell::new(Vec::new());
    let ask = async |target: Uri| -> Result<PageResponse, SendError> {
        targets.borrow_mut().push(target.to_string());
        Ok(PageResponse::Page(Box::new(others.borrow_mut().next().unwrap())))
    };
    let response = find_object(Box::new(first), &sent(), in_a_minute(), ask).await.unwrap();
    (content(response).await, targets.take())
}

#[tokio::test]
async fn pages_are_read_until_one_has_an_object() {
    let others = vec![page(&["b"], "t2"), page(&["mine"], "t3"), page(&["mine"], "")];
    let (content, targets) = response_of(page(&["a"], "t1"), others).await;
    assert_eq!(content, ("t3".to_owned(), vec!["mine".to_owned()]));
    let target = |token: &str| format!("{}&continue={token}", sent());
    assert_eq!(targets, [target("t1"), target("t2")]);
}

#[tokio::test]
async fn last_page_ends_an_empty_list() {
    let (content, targets) = response_of(page(&["a"], "t1"), vec![page(&["b"], "")]).await;
    assert_eq!((content, targets.len()), ((String::new(), vec![]), 1));
}

#[tokio::test]
async fn page_with_an_object_is_sent_at_once() {
    for first in [page(&["a", "mine"], "t1"), page(&["mine"], "")] {
        let (content, targets) = response_of(first, vec![]).await;
        assert_eq!((content.1, targets.len()), (vec!["mine".to_owned()], 0));
    }
}

#[tokio::test(start_paused = true)]
async fn empty_page_is_sent_with_its_token_when_the_time_is_over() {
    let (start, asked) = (Instant::now(), Cell::new(0));
    let ask = async |_: Uri| -> Result<PageResponse, SendError> {
        asked.set(asked.get() + 1);
        if asked.get() == 3 {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(MAX_TIME / 4).await;
        Ok(PageResponse::Page(Box::new(page(&["a"], &format!("t{}", asked.get())))))
    };
    let response = find_object(Box::new(page(&["a"], "t0")), &sent(), in_a_minute(), ask)
        .await
        .unwrap();
    assert_eq!(content(response).await, ("t2".to_owned(), vec![]));
    assert!((MAX_TIME..MAX_TIME * 2).contains(&start.elapsed()));
}

#[tokio::test]
async fn error_of_a_further_page_is_the_clients() {
    let ask = async |_: Uri| -> Result<PageResponse, SendError> { Err(SendError::HeadTimeout { timeout: MAX_TIME }) };
    let response = find_object(Box::new(page(&["a"], "t1")), &sent(), in_a_minute(), ask).await;
    assert!(matches!(response, Err(SendError::HeadTimeout { .. })));
}

#[test]
fn next_target_has_the_token_in_place_of_a_version() {
    for (query, expected) in [
        ("limit=1", "limit=1&continue=a%2Bb"),
        ("continue=old&limit=1", "continue=a%2Bb&limit=1"),
        (
            "resourceVersion=7&limit=1&labelSelector=a%3Db&resourceVersionMatch=Exact&x",
            "limit=1&labelSelector=a%3Db&x&continue=a%2Bb",
        ),
    ] {
        let sent = Uri::try_from(format!("/api/v1/configmaps?{query}")).unwrap();
        let target = next_target(&sent, "a+b").unwrap();
        assert_eq!(target.to_string(), format!("/api/v1/configmaps?{expected}"));
    }
    assert_eq!(next_target(&sent(), &"t".repeat(1 << 16)), None);
}
