//! Exports the memory of clients to `/metrics`.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::memory::ClientMemory;

/// Memory of clients, as metrics to be registered under the prefix `ctrlmesh`.
#[derive(Debug)]
pub(crate) struct ClientMemorySeries(ClientMemory);

impl ClientMemorySeries {
    pub(crate) const fn new(memory: ClientMemory) -> Self {
        Self(memory)
    }
}

impl Collector for ClientMemorySeries {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, bytes: usize| {
            let encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            ConstGauge::new(bytes as u64).encode(encoder)
        };
        let ClientMemory { requests, responses } = &self.0;
        gauge(
            "request_memory_bytes",
            "Memory that requests reserve: heads, bodies that are kept, uploads",
            requests.reserved(),
        )?;
        gauge(
            "request_memory_limit_bytes",
            "Memory that all requests together may reserve",
            requests.bound(),
        )?;
        gauge(
            "response_memory_bytes",
            "Bytes of responses that are not written to their clients yet",
            responses.unsent(),
        )?;
        gauge(
            "response_memory_limit_bytes",
            "Bytes of responses that may be unwritten in all connections together",
            responses.bound(),
        )
    }
}
