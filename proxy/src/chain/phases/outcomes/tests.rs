//! Requests through a real plugin that hands over how they are counted.

use std::time::Duration;

use http::Response;
use serde_json::{Value, json};

use super::*;
use crate::chain::tests::worker::Worker;
use crate::connection::Connection;

async fn admit(worker: &Worker) -> Plugins {
    let (plugins, _) = worker.admit().await;
    plugins
}

/// How often the plugin of the first entry was told of a crossing.
fn crossings(worker: &Worker) -> u64 {
    worker.counter(0, "crossed")
}

async fn receive_head(plugins: &Plugins, status: u16) {
    let (mut head, ()) = Response::builder().status(status).body(()).unwrap().into_parts();
    let _ = plugins.edit_response(&mut head, &Connection::default()).await;
}

fn ended_with(status: u16) -> Outcome {
    Outcome {
        status,
        upstream_status: status,
        failure: None,
        duration: Duration::from_millis(2),
        upstream: Duration::from_millis(1),
        request_bytes: 0,
        response_bytes: 0,
    }
}

/// A script that lets all requests pass, and counts failures in a row.
fn counting(failures: u32, at_head: bool) -> Value {
    let outcomes = json!([{"tally": "t", "cells": ["c"], "failures": failures, "atHead": at_head}]);
    json!({"onRequest": [{"reuse": "whileUnchanged", "outcomes": outcomes, "then": {"proceed": []}}]})
}

#[tokio::test]
async fn repeated_verdict_counts_like_the_first_one() {
    let worker = Worker::new(&[("scripted", counting(3, false))]);
    for _ in 0..3 {
        assert_eq!(crossings(&worker), 0);
        let plugins = admit(&worker).await;
        plugins.on_complete(&ended_with(500), Instant::now());
    }
    assert_eq!((worker.instances.repeated_verdicts(), crossings(&worker)), (2, 1));
    admit(&worker).await.on_complete(&ended_with(500), Instant::now());
    assert_eq!(crossings(&worker), 1, "told once");
}

#[tokio::test]
async fn outcome_under_earlier_chain_is_not_counted_after_one_under_later_chain() {
    let earlier = Worker::new(&[("scripted", counting(1, false))]);
    let later = earlier.reloaded(&[("scripted", counting(2, false))]);
    let requests = [admit(&earlier).await, admit(&earlier).await];
    admit(&later).await.on_complete(&ended_with(500), Instant::now());
    for request in requests {
        request.on_complete(&ended_with(500), Instant::now());
    }
    assert_eq!(crossings(&later), 0);
    admit(&later).await.on_complete(&ended_with(500), Instant::now());
    assert_eq!(crossings(&later), 1);
}

#[tokio::test]
async fn request_is_counted_at_its_head_or_at_its_end() {
    let worker = Worker::new(&[("scripted", counting(2, true))]);
    let plugins = admit(&worker).await;
    receive_head(&plugins, 500).await;
    plugins.on_complete(&ended_with(500), Instant::now());
    assert_eq!(crossings(&worker), 0, "counted once");
    let plugins = admit(&worker).await;
    let unreachable = Outcome {
        failure: Some(crate::plugin::verdict::Failure::Unreachable),
        ..ended_with(0)
    };
    plugins.on_complete(&unreachable, Instant::now());
    assert_eq!(crossings(&worker), 1);
    let worker = Worker::new(&[("scripted", counting(1, false))]);
    receive_head(&admit(&worker).await, 500).await;
    assert_eq!(crossings(&worker), 0, "its end counts");
}

#[tokio::test]
async fn tunnel_is_counted_at_its_head_under_any_rule() {
    for at_head in [false, true] {
        let worker = Worker::new(&[("scripted", counting(2, at_head))]);
        let fail = async || {
            let plugins = admit(&worker).await;
            receive_head(&plugins, 500).await;
            plugins.on_complete(&ended_with(500), Instant::now());
        };
        fail().await;
        let tunnel = admit(&worker).await;
        receive_head(&tunnel, 101).await;
        fail().await;
        assert_eq!(crossings(&worker), 0, "the 101 has ended the row");
        tunnel.on_complete(&ended_with(101), Instant::now());
        fail().await;
        assert_eq!(crossings(&worker), 1, "the end of the tunnel does not count");
    }
}

#[tokio::test]
async fn head_is_counted_unless_a_later_plugin_replaces_the_response() {
    let passing = json!({"onResponse": [{"then": {"proceed": {}}}]});
    let replacing = json!({"onResponse": [{"then": {"replace": {"code": 503, "message": "no"}}}]});
    for (other, expected) in [(passing, 1), (replacing, 0)] {
        let worker = Worker::new(&[("scripted", counting(1, true)), ("scripted", other)]);
        receive_head(&admit(&worker).await, 500).await;
        assert_eq!(crossings(&worker), expected);
    }
}

#[tokio::test]
async fn plugin_that_fails_on_a_crossing_is_told_again() {
    let worker = Worker::new(&[("trap", json!({"in": "on-crossed", "how": "panic"}))]);
    for faults in 1..3 {
        admit(&worker).await.on_complete(&ended_with(500), Instant::now());
        assert_eq!(worker.handle.metrics().current_counts().faults, faults);
    }
    admit(&worker).await.on_complete(&ended_with(200), Instant::now());
    assert_eq!(worker.handle.metrics().current_counts().faults, 2);
}
