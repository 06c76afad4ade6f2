//! Warnings that any client of the port can cause: one in ten seconds.

use std::io::Write;
use std::sync::{Arc, Mutex};

use ctrlmesh_testkit::{Fault, Rule};
use serde_json::json;
use tracing::subscriber::DefaultGuard;

use super::clients::{Authority, is_answered, server_with_client_ca};
use super::reviews::Server;
use crate::webhook::routes::MUTATE_RESOURCE;

/// Records what is logged on this thread during its lifetime.
struct Log {
    written: Written,
    _guard: DefaultGuard,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn start() -> Self {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(tracing::Level::WARN)
            .with_writer(move || writer.clone())
            .finish();
        Self {
            written,
            _guard: tracing::subscriber::set_default(subscriber),
        }
    }

    fn count(&self, text: &str) -> usize {
        let written = self.written.0.lock().unwrap();
        String::from_utf8_lossy(&written).matches(text).count()
    }
}

#[tokio::test]
async fn clients_with_certificate_of_another_name_cause_one_warning() {
    let log = Log::start();
    let authority = Authority::new();
    let (server, _file) = server_with_client_ca(&authority, &["--webhook-client-name=api server"]).await;
    for _ in 0..3 {
        assert!(!is_answered(&server, Some(authority.client("other"))).await);
    }
    assert_eq!(log.count("common name is not in --webhook-client-name"), 1);
}

#[tokio::test]
async fn reviews_in_unreadable_namespaces_cause_one_warning() {
    let server = Server::start(&[]).await;
    let refused = Fault::Status {
        code: 403,
        retry_after: None,
    };
    let refused = Rule::new(refused).verb("list").resource("namespaces");
    server.env.server.faults().add(refused);
    let log = Log::start();
    for name in ["one", "two", "three"] {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": name}});
        assert_eq!(server.create(MUTATE_RESOURCE, &object).await.get("patch"), None);
    }
    assert_eq!(log.count("failed to read the object's namespace"), 1);
}
