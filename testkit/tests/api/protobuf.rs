//! Objects in protobuf, as client-go's typed clients send and expect them; and kinds without protobuf.

use bytes::Bytes;
use ctrlmesh_testkit::{ApiServer, Resource};
use ctrlmesh_wire::protobuf::{Message, envelope, fields};
use ctrlmesh_wire::{Status, object_name};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::support::{
    CONFIGMAPS, Connection, PATIENCE, WIDGETS, build_request, configmap, server_builder, start_server, widget,
};

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// The `Accept` header of controller-runtime's typed clients.
const PROTOBUF_OR_ANY: &str = "application/vnd.kubernetes.protobuf, */*";
/// The `Accept` header of client-go's metadata client.
const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,\
                        application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
const METADATA_LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                             application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// A response with its body as bytes.
struct ReceivedResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl ReceivedResponse {
    fn content_type(&self) -> &str {
        self.headers["content-type"].to_str().expect("text")
    }

    /// The name of the object in the body.
    fn name(&self) -> String {
        object_name(self.content_type(), &self.body).unwrap_or_else(|| panic!("no object in {:?}", self.body))
    }

    /// The names of the list items in the body.
    fn names(&self) -> Vec<String> {
        assert_eq!((self.status, self.content_type()), (StatusCode::OK, PROTOBUF));
        let list = field_payloads(&field_payloads(&self.body[4..], 2)[0], 2);
        list.iter()
            .map(|item| field_text(&field_payloads(item, 1)[0], 1))
            .collect()
    }
}

/// The payloads of the fields with this number.
fn field_payloads(message: &[u8], number: u32) -> Vec<Vec<u8>> {
    let fields = fields(message).map(|field| field.expect("a whole message"));
    fields
        .filter(|field| field.number == number)
        .map(|field| field.payload.expect("bytes").to_vec())
        .collect()
}

fn field_text(message: &[u8], number: u32) -> String {
    let found = field_payloads(message, number);
    String::from_utf8(found.concat()).expect("UTF-8")
}

fn with_body(method: Method, target: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Request<Full<Bytes>> {
    build_request(method, target, headers, String::new()).map(|_| Full::new(body.into()))
}

async fn open_response(client: &Connection, target: &str, accept: &str) -> Response<Incoming> {
    let request = with_body(Method::GET, target, &[("accept", accept)], Vec::new());
    client.send(request).await.expect("a response")
}

async fn send_request(client: &Connection, request: Request<Full<Bytes>>) -> ReceivedResponse {
    let (parts, body) = client.send(request).await.expect("a response").into_parts();
    let body = tokio::time::timeout(PATIENCE, body.collect()).await;
    ReceivedResponse {
        status: parts.status,
        headers: parts.headers,
        body: body.expect("a body in time").expect("a whole body").to_bytes(),
    }
}

async fn get_accepting(client: &Connection, target: &str, accept: &str) -> ReceivedResponse {
    let request = with_body(Method::GET, target, &[("accept", accept)], Vec::new());
    send_request(client, request).await
}

/// Sends a protobuf body and accepts nothing else.
async fn send_protobuf(client: &Connection, method: Method, target: &str, body: Vec<u8>) -> ReceivedResponse {
    let headers = [("content-type", PROTOBUF), ("accept", PROTOBUF)];
    send_request(client, with_body(method, target, &headers, body)).await
}

fn config_map(name: &str, resource_version: &str, value: &str) -> Vec<u8> {
    let metadata = Message::new()
        .string(1, name)
        .string(6, resource_version)
        .message(11, &Message::new().string(1, "app").string(2, "x"));
    let data = Message::new().string(1, "key").string(2, value);
    envelope(
        "v1",
        "ConfigMap",
        &Message::new().message(1, &metadata).message(2, &data),
    )
}

fn stored_object(server: &ApiServer, resource: &str, name: &str) -> Option<Value> {
    server
        .store()
        .read(|state| state.get(resource, "default", name).cloned())
}

/// The events of a watch in protobuf.
struct Frames {
    body: Incoming,
    left: Vec<u8>,
}

impl Frames {
    async fn open(client: &Connection, target: &str, accept: &str) -> Self {
        let response = open_response(client, target, accept).await;
        assert_eq!(
            (response.status(), response.headers()["content-type"].as_bytes()),
            (StatusCode::OK, STREAM.as_bytes()),
            "{target}"
        );
        Self {
            body: response.into_body(),
            left: Vec::new(),
        }
    }

    /// The next event: its type and its object; `None` at the end.
    async fn next(&mut self) -> Option<(String, Vec<u8>)> {
        loop {
            if let Some((length, rest)) = self.left.split_first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if let Some(frame) = rest.get(..length) {
                    let (kind, object) = (
                        field_text(frame, 1),
                        field_payloads(&field_payloads(frame, 2)[0], 1).remove(0),
                    );
                    self.left.drain(..4 + length);
                    return Some((kind, object));
                }
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await;
            let data = frame.expect("an event in time")?.expect("a whole stream").into_data();
            self.left.extend_from_slice(&data.expect("no trailers"));
        }
    }

    /// Asserts type and object of the next event.
    async fn expect_event(&mut self, kind: &str, name: &str) {
        let (found, object) = self.next().await.expect("an event");
        let named = object_name(PROTOBUF, &object).unwrap_or_default();
        assert_eq!((found.as_str(), named.as_str()), (kind, name));
    }
}

#[tokio::test]
async fn objects_are_created_updated_and_deleted_in_protobuf() {
    let server = start_server().await;
    for client in [
        Connection::connect_http1(&server).await,
        Connection::connect_h2c(&server).await,
    ] {
        let target = format!("{CONFIGMAPS}/a");
        let created = send_protobuf(&client, Method::POST, CONFIGMAPS, config_map("a", "", "one")).await;
        assert_eq!(
            (created.status, created.content_type()),
            (StatusCode::CREATED, PROTOBUF)
        );
        assert_eq!(created.name(), "a");
        let first = stored_object(&server, "configmaps", "a").expect("stored");
        assert_eq!(
            (&first["kind"], &first["data"], &first["metadata"]["labels"]),
            (&json!("ConfigMap"), &json!({ "key": "one" }), &json!({ "app": "x" }))
        );
        let version = first["metadata"]["resourceVersion"].as_str().expect("a version");
        let updated = send_protobuf(&client, Method::PUT, &target, config_map("a", version, "two")).await;
        assert_eq!((updated.status, updated.name()), (StatusCode::OK, "a".to_owned()));
        let stale = send_protobuf(&client, Method::PUT, &target, config_map("a", version, "three")).await;
        assert_eq!((stale.status, stale.content_type()), (StatusCode::CONFLICT, PROTOBUF));
        assert_eq!(client.get(&target).await.body["data"], json!({ "key": "two" }));
        let deleted = send_protobuf(&client, Method::DELETE, &target, Vec::new()).await;
        assert_eq!((deleted.status, deleted.content_type()), (StatusCode::OK, PROTOBUF));
        assert_eq!(stored_object(&server, "configmaps", "a"), None);
    }
}

#[tokio::test]
async fn every_built_in_kind_is_listed_in_protobuf() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let mut listed = 0;
    for group in [
        "api/v1",
        "apis/apps/v1",
        "apis/batch/v1",
        "apis/coordination.k8s.io/v1",
        "apis/events.k8s.io/v1",
        "apis/rbac.authorization.k8s.io/v1",
    ] {
        let resources = client.get(&format!("/{group}")).await.body["resources"].clone();
        let names = resources.as_array().expect("resources").iter();
        for name in names.filter_map(|resource| resource["name"].as_str()) {
            if !name.contains('/') {
                let list = get_accepting(&client, &format!("/{group}/{name}"), PROTOBUF).await;
                assert_eq!((list.status, list.content_type()), (StatusCode::OK, PROTOBUF), "{name}");
                listed += 1;
            }
        }
    }
    assert!(listed > 25, "only {listed} kinds");
}

#[tokio::test]
async fn list_pages_are_in_protobuf() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    for name in ["a", "b", "c"] {
        server.store().put(configmap("default", name, "x")).expect("stored");
    }
    let all = get_accepting(&client, CONFIGMAPS, PROTOBUF_OR_ANY).await;
    assert_eq!(all.names(), ["a", "b", "c"]);
    let page = get_accepting(&client, &format!("{CONFIGMAPS}?limit=2"), PROTOBUF).await;
    assert_eq!(page.names(), ["a", "b"]);
    let metadata = field_payloads(&field_payloads(&page.body[4..], 2)[0], 1).remove(0);
    let next = format!("{CONFIGMAPS}?limit=2&continue={}", field_text(&metadata, 3));
    assert_eq!(get_accepting(&client, &next, PROTOBUF).await.names(), ["c"]);
}

#[tokio::test]
async fn watches_are_framed_in_protobuf() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(configmap("default", "a", "x")).expect("stored");
    let target = format!(
        "{CONFIGMAPS}?watch=1&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
    );
    let mut watch = Frames::open(&client, &target, PROTOBUF_OR_ANY).await;
    watch.expect_event("ADDED", "a").await;
    let (kind, bookmark) = watch.next().await.expect("an event");
    assert_eq!(kind, "BOOKMARK");
    let metadata = field_payloads(&field_payloads(&field_payloads(&bookmark[4..], 2)[0], 1)[0], 12);
    assert_eq!(field_text(&metadata[0], 1), "k8s.io/initial-events-end");
    let created = send_protobuf(&client, Method::POST, CONFIGMAPS, config_map("b", "", "one")).await;
    assert_eq!(created.status, StatusCode::CREATED);
    watch.expect_event("ADDED", "b").await;
    client.call(Method::DELETE, &format!("{CONFIGMAPS}/b"), None).await;
    watch.expect_event("DELETED", "b").await;
    server.expire_watches();
    let (kind, status) = watch.next().await.expect("an event");
    let expired = Status {
        code: 410,
        reason: "Expired".into(),
        message: "the watch was expired on request".into(),
        details: None,
    };
    assert_eq!((kind.as_str(), status), ("ERROR", expired.to_protobuf()));
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn error_status_uses_the_accepted_encoding() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let missing = format!("{CONFIGMAPS}/none");
    let json = client.get(&missing).await.body.to_string();
    let expected = Status::from_json(json.as_bytes()).expect("a Status");
    for accept in [PROTOBUF, PROTOBUF_OR_ANY] {
        let answer = get_accepting(&client, &missing, accept).await;
        assert_eq!(
            (answer.status, answer.content_type()),
            (StatusCode::NOT_FOUND, PROTOBUF)
        );
        assert_eq!(answer.body, expected.to_protobuf(), "{accept}");
    }
    let broken = send_protobuf(&client, Method::POST, CONFIGMAPS, b"{}".to_vec()).await;
    assert_eq!(
        (broken.status, broken.content_type()),
        (StatusCode::BAD_REQUEST, PROTOBUF)
    );
    let mistaken = envelope("v1", "Secret", &Message::new());
    let mistaken = send_protobuf(&client, Method::POST, CONFIGMAPS, mistaken).await;
    assert_eq!(mistaken.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn custom_kinds_are_answered_in_json_or_with_406() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(widget("w")).expect("stored");
    for target in [WIDGETS, &format!("{WIDGETS}/w"), &format!("{WIDGETS}?watch=1")] {
        let answer = get_accepting(&client, target, PROTOBUF).await;
        let status = Status {
            code: 406,
            reason: "NotAcceptable".into(),
            message: "only the following media types are accepted: application/json".into(),
            details: None,
        };
        assert_eq!(
            (answer.status.as_u16(), answer.body),
            (406, status.to_protobuf().into()),
            "{target}"
        );
    }
    for accept in [PROTOBUF_OR_ANY, "application/vnd.kubernetes.protobuf,application/json"] {
        let answer = get_accepting(&client, WIDGETS, accept).await;
        assert_eq!(
            (answer.status, answer.content_type()),
            (StatusCode::OK, "application/json")
        );
    }
    let body = envelope("example.com/v1", "Widget", &Message::new());
    let headers = [("content-type", PROTOBUF)];
    for (method, target) in [(Method::POST, WIDGETS), (Method::PUT, &format!("{WIDGETS}/w"))] {
        let answer = send_request(&client, with_body(method, target, &headers, body.clone())).await;
        let status: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert_eq!(
            (answer.status.as_u16(), &status["reason"], &status["message"]),
            (
                415,
                &json!("UnsupportedMediaType"),
                &json!(
                    "the body of the request was in an unknown format (application/vnd.kubernetes.protobuf) - accepted: \
                     application/json"
                )
            )
        );
    }
}

#[tokio::test]
async fn custom_kind_metadata_is_in_protobuf() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    server.store().put(widget("w")).expect("stored");
    let one = get_accepting(&client, &format!("{WIDGETS}/w"), METADATA).await;
    assert_eq!(
        (one.status, one.content_type(), one.name()),
        (StatusCode::OK, PROTOBUF, "w".into())
    );
    assert_eq!(get_accepting(&client, WIDGETS, METADATA_LIST).await.names(), ["w"]);
    let mut watch = Frames::open(&client, &format!("{WIDGETS}?watch=1"), METADATA).await;
    watch.expect_event("ADDED", "w").await;
}

#[tokio::test]
async fn delete_options_are_read_in_protobuf_for_every_kind() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let options = |uid: &str| {
        let preconditions = Message::new().string(1, uid);
        envelope("v1", "DeleteOptions", &Message::new().message(2, &preconditions))
    };
    server.store().put(configmap("default", "a", "x")).expect("stored");
    server.store().put(widget("a")).expect("stored");
    for (collection, resource) in [(CONFIGMAPS, "configmaps"), (WIDGETS, "widgets.example.com")] {
        let (target, headers) = (format!("{collection}/a"), [("content-type", PROTOBUF)]);
        let delete = |uid: &str| with_body(Method::DELETE, &target, &headers, options(uid));
        let uid = stored_object(&server, resource, "a").expect("stored")["metadata"]["uid"].clone();
        assert_eq!(
            send_request(&client, delete("another")).await.status,
            StatusCode::CONFLICT,
            "{resource}"
        );
        let answer = send_request(&client, delete(uid.as_str().expect("a UID"))).await;
        assert_eq!(
            (answer.status, stored_object(&server, resource, "a")),
            (StatusCode::OK, None),
            "{resource}"
        );
    }
}

#[tokio::test]
async fn registered_kind_of_known_group_is_in_protobuf() {
    let bindings = Resource::namespaced("", "v1", "bindings", "Binding");
    let server = server_builder()
        .resource(bindings)
        .start()
        .await
        .expect("the server starts");
    let client = Connection::connect_h2c(&server).await;
    let target = "/api/v1/namespaces/default/bindings";
    let binding = Message::new().message(1, &Message::new().string(1, "a"));
    let created = send_protobuf(&client, Method::POST, target, envelope("v1", "Binding", &binding)).await;
    assert_eq!((created.status, created.name()), (StatusCode::CREATED, "a".to_owned()));
}

#[tokio::test]
async fn unencodable_object_is_an_error_that_names_the_field() {
    let server = start_server().await;
    let client = Connection::connect_h2c(&server).await;
    let mut object = configmap("default", "a", "x");
    object["data"] = json!({ "n": 1 });
    server.store().put(object).expect("stored");
    let problem = "has no encoding in protobuf; correct it, or ask for JSON";
    let field = "data[\"n\"]: expected a string, found 1";
    for (target, expected) in [
        (format!("{CONFIGMAPS}/a"), format!("\"a\" {problem}: {field}")),
        (CONFIGMAPS.to_owned(), format!("configmaps {problem}: items[0].{field}")),
    ] {
        let answer = get_accepting(&client, &target, PROTOBUF).await;
        assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(field_text(&field_payloads(&answer.body[4..], 2)[0], 3), expected);
    }
    let mut watch = Frames::open(&client, &format!("{CONFIGMAPS}?watch=1"), PROTOBUF).await;
    let (kind, status) = watch.next().await.expect("an event");
    assert_eq!(kind, "ERROR");
    assert_eq!(
        field_text(&field_payloads(&status[4..], 2)[0], 3),
        format!("\"a\" {problem}: {field}")
    );
    assert!(watch.next().await.is_none());
    assert_eq!(client.get(CONFIGMAPS).await.status, StatusCode::OK);
}
