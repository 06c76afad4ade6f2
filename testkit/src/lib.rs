//! An in-memory Kubernetes API server over real TCP, to test and demonstrate clients, controllers and proxies against.
//!
//! [`ApiServer`] listens on two ports: plaintext (HTTP/1.1, and HTTP/2 with prior knowledge) and TLS (ALPN `h2`,
//! `http/1.1`). It stores objects of the built-in kinds it knows and of those registered as [`Resource`], with resource
//! versions, optimistic concurrency, finalizers, status subresources, merge and JSON patch, server-side apply, paged
//! lists, selectors, watches with bookmarks and initial events, tables and discovery. [`Faults`] makes it misbehave,
//! [`RequestLog`] tells what it was asked, [`Store`] what it holds.
//!
//! [`registry`] has an OCI registry, for what pulls plugins.
//!
//! Objects are JSON; those of the core group, `apps`, `batch`, `coordination.k8s.io`, `events.k8s.io` and
//! `rbac.authorization.k8s.io` in version `v1` are protobuf, too, for clients that send it or accept it first (single
//! objects, lists, watches), and so are `DeleteOptions`, `PartialObjectMetadata` and a Status for every kind.
//!
//! It validates nothing, and has no controllers, garbage collector, authorisation or admission. What it does not do, it
//! refuses with a Status: protobuf bodies of other kinds, CBOR and YAML (415), answers that the client accepts only in
//! these (406), strategic merge patches that need a schema (415), OpenAPI (404), unknown kinds and subresources (404),
//! field selectors but for name and namespace (400), foreground and orphaning deletion, deletion of a namespace that
//! holds objects, watches over WebSocket (501). Discovery and health are JSON and text, whatever is accepted. An object
//! that was stored in JSON with a field that its kind can't have in protobuf is answered there with 500, which names
//! the field.
//!
//! | module | holds |
//! |---|---|
//! | `server` | the server as its program sees it |
//! | `connection` | one client connection |
//! | `route` | a request from its head to its answer; start here |
//! | `resources`, `discovery` | the verbs on resources; discovery and health |
//! | `exchange` | a request, its body and its answer |
//! | `shared`, `control` | what connections share; what a request can do to its connection |
//! | [`registry`] | an OCI registry |
//! | `upgrade`, `body` | tunnels, and response bodies with their faults |
//! | `watch_stream`, `list` | watches and lists |
//! | `faults`, `requests`, `activity`, `socket`, `tls` | faults, the request log, open connections, byte streams, certificates |
//! | `seed` | writes of the program |
//! | `delete` | deletions |
//! | `write` | writes of clients |
//! | `store` | the objects |
//! | `form` | the form of objects in answers |
//! | `table` | tables for `kubectl get` |
//! | `selection` | the objects that a request selects |
//! | `patch`, `apply`, `managed`, `admit` | the content of a write: patches, applies, field ownership, metadata |
//! | `refusal` | errors for clients |
//! | `object`, `resource`, `accept`, `protobuf` | one object, the kinds, media types, encodings |
//! | `error` | errors for the program |
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use ctrlmesh_testkit::{ApiServer, Fault, Resource, Rule};
//! use serde_json::json;
//!
//! let widgets = Resource::namespaced("example.com", "v1", "widgets", "Widget").with_status();
//! let server = ApiServer::builder().resource(widgets).start().await?;
//! server.store().put(json!({
//!     "apiVersion": "example.com/v1", "kind": "Widget",
//!     "metadata": { "name": "w1", "namespace": "default" }, "spec": { "size": 3 },
//! }))?;
//! server.faults().add(Rule::new(Fault::Status { code: 429, retry_after: Some(1) }).verb("list").times(1));
//! let kubeconfig = server.kubeconfig(); // hand it to the client under test
//! server.store().wait_until(|state| state.get("widgets.example.com", "default", "w1").is_some()).await?;
//! assert_eq!(server.requests().count("list"), 0);
//! server.stop().await;
//! # Ok::<_, ctrlmesh_testkit::Error>(()) }).unwrap();
//! ```

mod accept;
mod activity;
mod admit;
mod apply;
mod body;
mod connection;
mod control;
mod delete;
mod discovery;
mod error;
mod exchange;
mod faults;
mod form;
mod list;
mod managed;
mod object;
mod patch;
mod protobuf;
mod refusal;
pub mod registry;
mod requests;
mod resource;
mod resources;
mod route;
mod seed;
mod selection;
mod server;
mod shared;
mod socket;
mod store;
mod table;
mod tls;
mod upgrade;
mod watch_stream;
mod write;

pub use activity::Activity;
pub use error::Error;
pub use faults::{Fault, FaultTime, Faults, Gate, Rule, RuleId};
pub use requests::{RecordedRequest, RequestLog};
pub use resource::Resource;
pub use server::{ApiServer, Builder};
pub use store::{Snapshot, Store, WAIT_DEADLINE};
