//! The real circuit-breaker plugin, and what people do to it: policies, recovery by hand, reloads, and which other services
//! may be called at all.

use ctrlmesh_tests::{Client, EntrySpec, Stand, Target};
use http::Method;
use serde_json::{Value, json};

use crate::circuits::{all, breaker, counted, failing, report, sleeping, statuses, wait_state};
use crate::external::stand;
use crate::limits::LIST;
use crate::limits_reload::other_bytes;

async fn opened(rule: Value) -> anyhow::Result<Stand> {
    let stand = Stand::start(vec![breaker(json!([rule]))]).await?;
    failing(&stand, 500);
    statuses(&stand.client(), LIST, 3).await?;
    wait_state(&stand, "api", "Opened").await?;
    Ok(stand)
}

#[tokio::test]
async fn forced_open_refuses_everything_and_forced_closed_nothing() -> anyhow::Result<()> {
    let policy = |policy: &str| breaker(json!([all(json!({ "triggerPolicy": policy }))]));
    let mut stand = Stand::start(vec![policy("ForceOpened")]).await?;
    let client = stand.client();
    assert_eq!(statuses(&client, LIST, 3).await?, [429; 3]);
    assert_eq!(stand.api.requests().count("list"), 0);
    let shown = report(&stand, "api").await?;
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&"Opened".into(), &"forced".into())
    );

    stand.publish(vec![policy("ForceClosed")]).await?;
    failing(&stand, 500);
    assert_eq!(statuses(&client, LIST, 9).await?, [500; 9]);
    let shown = report(&stand, "api").await?;
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&"Closed".into(), &"forced".into())
    );

    stand.publish(vec![policy("Normal")]).await?;
    assert_eq!(statuses(&client, LIST, 3).await?, [500; 3], "it starts closed");
    wait_state(&stand, "api", "Opened").await?;
    stand.publish(vec![policy("LimiterOnly")]).await?;
    assert_eq!(statuses(&client, LIST, 3).await?, [500; 3], "not this plugin's");
    assert_eq!(report(&stand, "api").await?, Value::Null);
    Ok(())
}

/// A plain name leaves subresources alone, and `*/name` is that subresource of everything.
#[tokio::test]
async fn cb_03_subresources_are_named_with_a_slash() -> anyhow::Result<()> {
    let forced = |resources: &[&str]| {
        let rule = json!({ "apiGroups": ["*"], "resources": resources, "verbs": ["*"], "namespaces": ["*"] });
        let forced = json!({ "triggerPolicy": "ForceOpened", "resourceRules": [rule] });
        breaker(json!([all(forced)]))
    };
    let mut stand = Stand::start(vec![forced(&["secrets"])]).await?;
    let client = stand.client();
    let paths = [
        "/api/v1/namespaces/default/pods/p",
        "/api/v1/namespaces/default/pods/p/status",
        "/apis/apps/v1/namespaces/default/deployments/d/scale",
    ];
    for (resources, refused) in [
        (vec!["pods"], [true, false, false]),
        (vec!["pods/status"], [false, true, false]),
        (vec!["pods/*"], [false, true, false]),
        (vec!["*/scale"], [false, false, true]),
        (vec!["pods", "*/scale"], [true, false, true]),
        (vec!["*/*"], [true; 3]),
    ] {
        stand.publish(vec![forced(&resources)]).await?;
        for (path, is_refused) in paths.iter().zip(refused) {
            let status = client.get(path).await?.status;
            assert_eq!(status == 429, is_refused, "{resources:?}: {path} gets {status}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_new_value_of_recover_closes_it_once() -> anyhow::Result<()> {
    let rule = |recover: &str| all(json!({ "recoverPolicy": { "type": "Manual" }, "recover": recover }));
    let mut stand = opened(rule("monday")).await?;
    let client = stand.client();
    stand.publish(vec![breaker(json!([rule("tuesday")]))]).await?;
    wait_state(&stand, "api", "Closed").await?;
    assert_eq!(statuses(&client, LIST, 3).await?, [500; 3]);
    wait_state(&stand, "api", "Opened").await?;
    for again in ["tuesday", "monday"] {
        let edited = json!([
            rule(again),
            all(json!({ "name": "other", "triggerPolicy": "ForceClosed" }))
        ]);
        stand.publish(vec![breaker(edited)]).await?;
        assert_eq!(client.get(LIST).await?.status, 429, "{again} is no new value");
    }
    Ok(())
}

#[tokio::test]
async fn cb_11_an_open_breaker_outlives_other_bytes_and_goes_with_its_rule() -> anyhow::Result<()> {
    let rule = all(json!({ "recoverPolicy": sleeping("1h") }));
    let mut stand = opened(rule.clone()).await?;
    let client = stand.client();
    let next = other_bytes(ctrlmesh_plugins_builtin::CIRCUIT_BREAKER);
    let next = EntrySpec::new("circuit-breaker/test", &next).settings(json!({ "rateLimitings": [rule] }));
    let before = report(&stand, "api").await?;
    stand.publish(vec![next]).await?;
    assert_eq!(client.get(LIST).await?.status, 429);
    assert_eq!(report(&stand, "api").await?["state"], before["state"]);
    stand.publish(vec![breaker(json!([]))]).await?;
    assert_eq!(client.get(LIST).await?.status, 500);
    stand.publish(vec![breaker(json!([rule]))]).await?;
    assert_eq!(client.get(LIST).await?.status, 500, "it starts closed");
    Ok(())
}

#[tokio::test]
async fn an_open_watch_goes_on_when_a_breaker_opens_and_when_a_chain_is_reloaded() -> anyhow::Result<()> {
    let rule = all(json!({ "recoverPolicy": sleeping("1h") }));
    let mut stand = Stand::start(vec![breaker(json!([rule]))]).await?;
    let mut watch = stand.client().stream("/api/v1/secrets?watch=1").await?;
    failing(&stand, 500);
    statuses(&stand.client(), LIST, 3).await?;
    wait_state(&stand, "api", "Opened").await?;
    let edited = all(json!({ "recoverPolicy": sleeping("2h") }));
    stand.publish(vec![breaker(json!([edited]))]).await?;
    ctrlmesh_tests::wait_until("the watch was asked about", || async {
        Ok(stand.sidecar.metric("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s", "namespace": "default" } });
    stand.api.store().put(secret)?;
    assert_eq!(watch.event().await?["type"], "ADDED");
    stand
        .publish(vec![breaker(json!([all(json!({ "triggerPolicy": "ForceOpened" }))]))])
        .await?;
    let ended = watch.event().await?;
    assert_eq!(
        (&ended["type"], &ended["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    Ok(())
}

fn lists(lists: Value) -> EntrySpec {
    let plugin = ctrlmesh_plugins_builtin::CIRCUIT_BREAKER;
    EntrySpec::new("circuit-breaker/test", plugin).settings(json!({ "trafficInterceptRules": lists }))
}

fn list(kind: &str, content: &str, contents: &[&str], methods: &[&str]) -> Value {
    json!({
        "name": kind.to_lowercase(), "interceptType": kind, "contentType": content, "contents": contents, "methods": methods,
    })
}

/// By URL, by header, and by CONNECT.
async fn three_ways(client: &Client, host: &str, port: u16) -> anyhow::Result<[u16; 3]> {
    let url = format!("http://{host}:{port}/p");
    Ok([
        client.get(&url).await?.status,
        client.clone().with("mesh-real-endpoint", &url).get("/").await?.status,
        client
            .stream_of(Method::CONNECT, &format!("{host}:{port}"))
            .await?
            .head
            .status
            .as_u16(),
    ])
}

#[tokio::test]
async fn cb_allow_and_deny_lists_hold_for_every_way_in_and_leave_nothing_behind() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let port = target.port();
    let own = format!("127.0.0.1:{port}");
    for (rules, address, name) in [
        (json!([list("Blacklist", "Normal", &["localhost"], &["*"])]), 200, 403),
        (json!([list("Blacklist", "Normal", &[&own], &["*"])]), 403, 200),
        (json!([list("Whitelist", "Normal", &["LOCALHOST"], &["*"])]), 403, 200),
        (
            json!([list("Whitelist", "Regexp", &["^127\\..*"], &["get", "connect"])]),
            200,
            403,
        ),
        (json!([list("Whitelist", "Normal", &["*"], &["post"])]), 403, 403),
        (
            json!([
                list("Whitelist", "Normal", &["*"], &["*"]),
                list("Blacklist", "Regexp", &["local"], &["*"])
            ]),
            200,
            403,
        ),
    ] {
        let (mut stand, client) = stand(vec![lists(rules.clone())], &[]).await?;
        assert_eq!(three_ways(&client, "127.0.0.1", port).await?, [address; 3], "{rules}");
        assert_eq!(three_ways(&client, "localhost", port).await?, [name; 3], "{rules}");
        assert_eq!(stand.client().get(LIST).await?.status, 200, "not its traffic");
        stand.publish(vec![lists(json!([]))]).await?;
        for host in ["127.0.0.1", "localhost"] {
            assert_eq!(three_ways(&client, host, port).await?, [200; 3], "{rules} is gone");
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_a_list_refuses_is_forbidden_for_good_and_counted() -> anyhow::Result<()> {
    let target = Target::plain().await?;
    let deny = list("Blacklist", "Normal", &["127.0.0.1"], &["DELETE"]);
    let (stand, client) = stand(vec![lists(json!([deny]))], &[]).await?;
    let url = format!("http://127.0.0.1:{}/p", target.port());
    let denied = client.send(Method::DELETE, &url, "").await?;
    assert_eq!((denied.status, denied.headers.get("retry-after")), (403, None));
    assert_eq!(denied.json()["details"]["causes"][0]["message"], "blacklist");
    assert_eq!(client.get(&url).await?.status, 200);
    assert_eq!(counted(&stand, "denied", "blacklist").await?, 1.0);
    assert_eq!(target.arrived().len(), 1);
    Ok(())
}

#[tokio::test]
async fn what_another_service_answers_is_judged() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 2 },
        "failures": { "statusCodes": ["200"] }, "restRules": [{ "url": "*", "method": "*" }],
    });
    let (stand, client) = stand(vec![breaker(json!([rule]))], &[]).await?;
    let target = Target::plain().await?;
    let url = format!("http://127.0.0.1:{}/p", target.port());
    assert_eq!(statuses(&client, &url, 2).await?, [200; 2]);
    wait_state(&stand, "cloud", "Opened").await?;
    Ok(())
}

#[tokio::test]
async fn each_host_has_a_circuit_of_its_own() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 2 }, "key": "host",
        "restRules": [{ "url": "*", "method": "*" }], "recoverPolicy": sleeping("1h"),
    });
    let (stand, client) = stand(vec![breaker(json!([rule]))], &[]).await?;
    let (bad, good) = (Target::plain().await?, Target::plain().await?);
    let url = |target: &Target, path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    for _ in 0..2 {
        assert_eq!(client.send(Method::POST, &url(&bad, "/reset"), "").await?.status, 502);
    }
    wait_state(&stand, &format!("cloud/127.0.0.1:{}", bad.port()), "Opened").await?;
    let refused = client.get(&url(&bad, "/p")).await?;
    assert!(
        refused.status == 503 && refused.headers.contains_key("retry-after"),
        "{refused:?}"
    );
    assert_eq!(client.get(&url(&good, "/p")).await?.status, 200);
    assert_eq!(bad.arrived().len(), 2);
    Ok(())
}

/// Nothing of what passes a tunnel can be read: that it opens is a success, and told at once.
#[tokio::test]
async fn a_tunnel_that_opens_closes_the_circuit_again() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 2 },
        "restRules": [{ "url": "*", "method": "*" }], "recoverPolicy": sleeping("1ms"),
    });
    let (stand, client) = stand(vec![breaker(json!([rule]))], &[]).await?;
    // A port that is taken, and where nobody listens yet.
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    let target = socket.local_addr()?.to_string();
    for _ in 0..2 {
        let refused = client.stream_of(Method::CONNECT, &target).await?;
        assert_eq!(refused.head.status, 503);
    }
    wait_state(&stand, "cloud", "Opened").await?;
    let _listener = socket.listen(8)?;
    let tunnel = client.stream_of(Method::CONNECT, &target).await?;
    assert_eq!(tunnel.head.status, 200);
    wait_state(&stand, "cloud", "Closed").await?;
    drop(tunnel);
    Ok(())
}
