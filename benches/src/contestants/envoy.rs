//! Envoy as a plain proxy to the origin, one worker, HTTP/2 upstream if the origin speaks TLS; without filters, with one in Lua and with one
//! in WebAssembly.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value, json};

use super::{Contestant, is_program};
use crate::origin::OriginPort;
use crate::process::{Process, find_free_address, wait_for_port};

/// Starting V8 and compiling a filter takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

const LUA_FILTER: &str = "function envoy_on_request(handle) handle:headers():add('x-bench', 'a') end";

/// Name of Envoy with a Wasm filter in tables.
pub(crate) const ENVOY_WASM: &str = "envoy, Wasm filter";

/// The filter in front of Envoy's router.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Filter<'a> {
    Nothing,
    /// Adds a header to each request.
    Lua,
    /// A module of the proxy-wasm ABI.
    Wasm(&'a Path),
}

impl Filter<'_> {
    const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "envoy, no filter",
            Self::Lua => "envoy, Lua filter",
            Self::Wasm(_) => ENVOY_WASM,
        }
    }

    fn to_json(self) -> Option<Value> {
        match self {
            Self::Nothing => None,
            Self::Lua => Some(json!({
                "name": "envoy.filters.http.lua",
                "typed_config": {
                    "@type": type_url("filters.http.lua.v3.Lua"),
                    "default_source_code": { "inline_string": LUA_FILTER },
                },
            })),
            Self::Wasm(module) => Some(json!({
                "name": "envoy.filters.http.wasm",
                "typed_config": {
                    "@type": type_url("filters.http.wasm.v3.Wasm"),
                    "config": {
                        "name": "bench",
                        "vm_config": {
                            "runtime": "envoy.wasm.runtime.v8",
                            "code": { "local": { "filename": module } },
                        },
                    },
                },
            })),
        }
    }
}

fn type_url(name: &str) -> String {
    format!("type.googleapis.com/envoy.extensions.{name}")
}

/// The binary: the given one, or that on the `PATH`.
pub(crate) fn find_program(given: Option<&Path>) -> Option<PathBuf> {
    let program = given.unwrap_or(Path::new("envoy"));
    is_program(program, "--version").then(|| program.to_owned())
}

/// Returns when it accepts connections.
pub(crate) fn start_envoy(
    program: &Path,
    folder: &Path,
    origin: &OriginPort,
    filter: Filter<'_>,
) -> anyhow::Result<Contestant> {
    std::fs::create_dir_all(folder)?;
    let address = find_free_address()?;
    let settings = folder.join("envoy.json");
    std::fs::write(&settings, serde_json::to_vec(&envoy_config(origin, address, filter))?)?;
    let mut command = Command::new(program);
    command
        .args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "error"])
        .arg("--config-path")
        .arg(&settings);
    let process = Process::start(command)?;
    wait_for_port(&process, address, PATIENCE).with_context(|| format!("starting {}", filter.name()))?;
    Ok(Contestant::new(filter.name(), process, address, origin.best_http()))
}

fn envoy_config(origin: &OriginPort, address: SocketAddr, filter: Filter<'_>) -> Value {
    json!({ "static_resources": { "listeners": [listener(address, filter)], "clusters": [cluster(origin)] } })
}

fn listener(address: SocketAddr, filter: Filter<'_>) -> Value {
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": type_url("filters.http.router.v3.Router") },
    });
    let filters: Vec<Value> = filter.to_json().into_iter().chain([router]).collect();
    let manager = json!({
        "@type": type_url("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "bench",
        // HTTP/1.1, or HTTP/2 with prior knowledge.
        "codec_type": "AUTO",
        "generate_request_id": false,
        "route_config": {
            "virtual_hosts": [{
                "name": "origin",
                "domains": ["*"],
                "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "origin", "timeout": "0s" } }],
            }],
        },
        "http_filters": filters,
    });
    json!({
        "name": "clients",
        "address": socket_address(address),
        "filter_chains": [{
            "filters": [{ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager }],
        }],
    })
}

/// Limits are far above those of a measurement.
fn cluster(origin: &OriginPort) -> Value {
    let protocol = if origin.ca.is_some() {
        "http2_protocol_options"
    } else {
        "http_protocol_options"
    };
    let mut cluster = json!({
        "name": "origin",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "origin",
            "endpoints": [{
                "lb_endpoints": [{ "endpoint": { "address": socket_address(origin.address) } }],
            }],
        },
        "circuit_breakers": {
            "thresholds": [{ "max_connections": 4096, "max_pending_requests": 4096, "max_requests": 4096 }],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": type_url("upstreams.http.v3.HttpProtocolOptions"),
                "explicit_http_config": { protocol: {} },
            },
        },
    });
    if let (Some(ca), Some(cluster)) = (&origin.ca, cluster.as_object_mut()) {
        let tls = json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": type_url("transport_sockets.tls.v3.UpstreamTlsContext"),
                "common_tls_context": {
                    "alpn_protocols": ["h2"],
                    "validation_context": { "trusted_ca": { "filename": ca } },
                },
            },
        });
        cluster.insert("transport_socket".to_owned(), tls);
    }
    cluster
}

fn socket_address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_comes_before_router() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let origin = OriginPort {
            address: at(1),
            ca: None,
        };
        for (filter, expected) in [
            (Filter::Nothing, vec!["envoy.filters.http.router"]),
            (Filter::Lua, vec!["envoy.filters.http.lua", "envoy.filters.http.router"]),
            (
                Filter::Wasm(Path::new("/f.wasm")),
                vec!["envoy.filters.http.wasm", "envoy.filters.http.router"],
            ),
        ] {
            let config = envoy_config(&origin, at(2), filter);
            let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters";
            let filters = config.pointer(manager).and_then(Value::as_array).unwrap();
            let names: Vec<&str> = filters.iter().map(|filter| filter["name"].as_str().unwrap()).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn origin_with_tls_gets_http2() {
        let origin = |ca| OriginPort {
            address: SocketAddr::from(([127, 0, 0, 1], 1)),
            ca,
        };
        let (plain, encrypted) = (cluster(&origin(None)), cluster(&origin(Some("/ca".into()))));
        assert!(plain.get("transport_socket").is_none() && !plain.to_string().contains("http2_protocol_options"));
        assert!(encrypted.to_string().contains("http2_protocol_options"));
        let ca = "/transport_socket/typed_config/common_tls_context/validation_context/trusted_ca/filename";
        assert_eq!(encrypted.pointer(ca).and_then(Value::as_str), Some("/ca"));
    }
}
