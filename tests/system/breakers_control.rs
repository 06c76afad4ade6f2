//! The real circuit-breaker plugin under changes by people: policies, reset by hand, reloads, and lists of allowed external calls.

use ctrlmesh_tests::{Client, EntrySpec, Target, TestEnv};
use http::Method;
use serde_json::{Value, json};

use crate::breakers::{
    breaker_entry, fail_config_maps, get_report, get_statuses, plugin_count, rule_for_all, sleeping_policy, wait_state,
};
use crate::external::start_env;
use crate::limits::LIST;
use crate::limits_reload::with_custom_section;

async fn start_with_open_breaker(rule: Value) -> anyhow::Result<TestEnv> {
    let env = TestEnv::start(vec![breaker_entry(json!([rule]))]).await?;
    fail_config_maps(&env, 500);
    get_statuses(&env.client(), LIST, 3).await?;
    wait_state(&env, "api", "Opened").await?;
    Ok(env)
}

#[tokio::test]
async fn forced_open_refuses_everything_and_forced_closed_refuses_nothing() -> anyhow::Result<()> {
    let policy = |policy: &str| breaker_entry(json!([rule_for_all(json!({ "triggerPolicy": policy }))]));
    let mut env = TestEnv::start(vec![policy("ForceOpened")]).await?;
    let client = env.client();
    assert_eq!(get_statuses(&client, LIST, 3).await?, [429; 3]);
    assert_eq!(env.api.requests().count("list"), 0);
    let shown = get_report(&env, "api").await?;
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&"Opened".into(), &"forced".into())
    );

    env.publish(vec![policy("ForceClosed")]).await?;
    fail_config_maps(&env, 500);
    assert_eq!(get_statuses(&client, LIST, 9).await?, [500; 9]);
    let shown = get_report(&env, "api").await?;
    assert_eq!(
        (&shown["state"], &shown["reason"]),
        (&"Closed".into(), &"forced".into())
    );

    env.publish(vec![policy("Normal")]).await?;
    assert_eq!(get_statuses(&client, LIST, 3).await?, [500; 3], "it starts closed");
    wait_state(&env, "api", "Opened").await?;
    env.publish(vec![policy("LimiterOnly")]).await?;
    assert_eq!(get_statuses(&client, LIST, 3).await?, [500; 3], "not this plugin's");
    assert_eq!(get_report(&env, "api").await?, Value::Null);
    Ok(())
}

/// A plain name does not match subresources; `*/name` matches that subresource of every resource.
#[tokio::test]
async fn cb_03_subresources_are_named_with_a_slash() -> anyhow::Result<()> {
    let forced = |resources: &[&str]| {
        let rule = json!({ "apiGroups": ["*"], "resources": resources, "verbs": ["*"], "namespaces": ["*"] });
        let forced = json!({ "triggerPolicy": "ForceOpened", "resourceRules": [rule] });
        breaker_entry(json!([rule_for_all(forced)]))
    };
    let mut env = TestEnv::start(vec![forced(&["secrets"])]).await?;
    let client = env.client();
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
        env.publish(vec![forced(&resources)]).await?;
        for (path, is_refused) in paths.iter().zip(refused) {
            let status = client.get(path).await?.status;
            assert_eq!(status == 429, is_refused, "{resources:?}: {path} gets {status}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn new_recover_value_closes_breaker_once() -> anyhow::Result<()> {
    let rule = |recover: &str| rule_for_all(json!({ "recoverPolicy": { "type": "Manual" }, "recover": recover }));
    let mut env = start_with_open_breaker(rule("monday")).await?;
    let client = env.client();
    env.publish(vec![breaker_entry(json!([rule("tuesday")]))]).await?;
    wait_state(&env, "api", "Closed").await?;
    assert_eq!(get_statuses(&client, LIST, 3).await?, [500; 3]);
    wait_state(&env, "api", "Opened").await?;
    for again in ["tuesday", "monday"] {
        let edited = json!([
            rule(again),
            rule_for_all(json!({ "name": "other", "triggerPolicy": "ForceClosed" }))
        ]);
        env.publish(vec![breaker_entry(edited)]).await?;
        assert_eq!(client.get(LIST).await?.status, 429, "{again} is no new value");
    }
    Ok(())
}

#[tokio::test]
async fn cb_11_open_breaker_survives_other_bytes_and_goes_with_its_rule() -> anyhow::Result<()> {
    let rule = rule_for_all(json!({ "recoverPolicy": sleeping_policy("1h") }));
    let mut env = start_with_open_breaker(rule.clone()).await?;
    let client = env.client();
    let next = with_custom_section(ctrlmesh_plugins_builtin::CIRCUIT_BREAKER);
    let next = EntrySpec::new("circuit-breaker/test", &next).with_settings(json!({ "rateLimitings": [rule] }));
    let before = get_report(&env, "api").await?;
    env.publish(vec![next]).await?;
    assert_eq!(client.get(LIST).await?.status, 429);
    assert_eq!(get_report(&env, "api").await?["state"], before["state"]);
    env.publish(vec![breaker_entry(json!([]))]).await?;
    assert_eq!(client.get(LIST).await?.status, 500);
    env.publish(vec![breaker_entry(json!([rule]))]).await?;
    assert_eq!(client.get(LIST).await?.status, 500, "it starts closed");
    Ok(())
}

#[tokio::test]
async fn open_watch_survives_breaker_opening_and_chain_reload() -> anyhow::Result<()> {
    let rule = rule_for_all(json!({ "recoverPolicy": sleeping_policy("1h") }));
    let mut env = TestEnv::start(vec![breaker_entry(json!([rule]))]).await?;
    let mut watch = env.client().open_stream("/api/v1/secrets?watch=1").await?;
    fail_config_maps(&env, 500);
    get_statuses(&env.client(), LIST, 3).await?;
    wait_state(&env, "api", "Opened").await?;
    let edited = rule_for_all(json!({ "recoverPolicy": sleeping_policy("2h") }));
    env.publish(vec![breaker_entry(json!([edited]))]).await?;
    ctrlmesh_tests::wait_until("the watch was asked about", || async {
        Ok(env.sidecar.metric_value("ctrlmesh_rechecks_total").await? >= 1.0)
    })
    .await?;
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s", "namespace": "default" } });
    env.api.store().put(secret)?;
    assert_eq!(watch.next_event().await?["type"], "ADDED");
    env.publish(vec![breaker_entry(json!([rule_for_all(
        json!({ "triggerPolicy": "ForceOpened" })
    )]))])
    .await?;
    let ended = watch.next_event().await?;
    assert_eq!(
        (&ended["type"], &ended["object"]["code"]),
        (&"ERROR".into(), &410.into())
    );
    Ok(())
}

fn entry_with_lists(lists: Value) -> EntrySpec {
    let plugin = ctrlmesh_plugins_builtin::CIRCUIT_BREAKER;
    EntrySpec::new("circuit-breaker/test", plugin).with_settings(json!({ "trafficInterceptRules": lists }))
}

fn call_list(kind: &str, content: &str, contents: &[&str], methods: &[&str]) -> Value {
    json!({
        "name": kind.to_lowercase(), "interceptType": kind, "contentType": content, "contents": contents, "methods": methods,
    })
}

/// By URL, by header, and by CONNECT.
async fn statuses_of_all_forms(client: &Client, host: &str, port: u16) -> anyhow::Result<[u16; 3]> {
    let url = format!("http://{host}:{port}/p");
    Ok([
        client.get(&url).await?.status,
        client
            .clone()
            .with_header("mesh-real-endpoint", &url)
            .get("/")
            .await?
            .status,
        client
            .open_stream_with(Method::CONNECT, &format!("{host}:{port}"))
            .await?
            .head
            .status
            .as_u16(),
    ])
}

#[tokio::test]
async fn cb_allow_and_deny_lists_hold_for_every_way_in() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let port = target.port();
    let own = format!("127.0.0.1:{port}");
    for (rules, address, name) in [
        (
            json!([call_list("Blacklist", "Normal", &["localhost"], &["*"])]),
            200,
            403,
        ),
        (json!([call_list("Blacklist", "Normal", &[&own], &["*"])]), 403, 200),
        (
            json!([call_list("Whitelist", "Normal", &["LOCALHOST"], &["*"])]),
            403,
            200,
        ),
        (
            json!([call_list("Whitelist", "Regexp", &["^127\\..*"], &["get", "connect"])]),
            200,
            403,
        ),
        (json!([call_list("Whitelist", "Normal", &["*"], &["post"])]), 403, 403),
        (
            json!([
                call_list("Whitelist", "Normal", &["*"], &["*"]),
                call_list("Blacklist", "Regexp", &["local"], &["*"])
            ]),
            200,
            403,
        ),
    ] {
        let (mut env, client) = start_env(vec![entry_with_lists(rules.clone())], &[]).await?;
        assert_eq!(
            statuses_of_all_forms(&client, "127.0.0.1", port).await?,
            [address; 3],
            "{rules}"
        );
        assert_eq!(
            statuses_of_all_forms(&client, "localhost", port).await?,
            [name; 3],
            "{rules}"
        );
        assert_eq!(env.client().get(LIST).await?.status, 200, "not its traffic");
        env.publish(vec![entry_with_lists(json!([]))]).await?;
        for host in ["127.0.0.1", "localhost"] {
            assert_eq!(
                statuses_of_all_forms(&client, host, port).await?,
                [200; 3],
                "{rules} is gone"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn call_refused_by_list_is_forbidden_and_counted() -> anyhow::Result<()> {
    let target = Target::start_plain().await?;
    let deny = call_list("Blacklist", "Normal", &["127.0.0.1"], &["DELETE"]);
    let (env, client) = start_env(vec![entry_with_lists(json!([deny]))], &[]).await?;
    let url = format!("http://127.0.0.1:{}/p", target.port());
    let denied = client.send(Method::DELETE, &url, "").await?;
    assert_eq!((denied.status, denied.headers.get("retry-after")), (403, None));
    assert_eq!(denied.json()["details"]["causes"][0]["message"], "blacklist");
    assert_eq!(client.get(&url).await?.status, 200);
    assert_eq!(plugin_count(&env, "denied", "blacklist").await?, 1.0);
    assert_eq!(target.arrived_requests().len(), 1);
    Ok(())
}

#[tokio::test]
async fn responses_of_external_services_are_judged() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 2 },
        "failures": { "statusCodes": ["200"] }, "restRules": [{ "url": "*", "method": "*" }],
    });
    let (env, client) = start_env(vec![breaker_entry(json!([rule]))], &[]).await?;
    let target = Target::start_plain().await?;
    let url = format!("http://127.0.0.1:{}/p", target.port());
    assert_eq!(get_statuses(&client, &url, 2).await?, [200; 2]);
    wait_state(&env, "cloud", "Opened").await?;
    Ok(())
}

#[tokio::test]
async fn each_host_has_its_own_breaker() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 2 }, "key": "host",
        "restRules": [{ "url": "*", "method": "*" }], "recoverPolicy": sleeping_policy("1h"),
    });
    let (env, client) = start_env(vec![breaker_entry(json!([rule]))], &[]).await?;
    let (bad, good) = (Target::start_plain().await?, Target::start_plain().await?);
    let url = |target: &Target, path: &str| format!("http://127.0.0.1:{}{path}", target.port());
    for _ in 0..2 {
        assert_eq!(client.send(Method::POST, &url(&bad, "/reset"), "").await?.status, 502);
    }
    wait_state(&env, &format!("cloud/127.0.0.1:{}", bad.port()), "Opened").await?;
    let refused = client.get(&url(&bad, "/p")).await?;
    assert!(
        refused.status == 503 && refused.headers.contains_key("retry-after"),
        "{refused:?}"
    );
    assert_eq!(client.get(&url(&good, "/p")).await?.status, 200);
    assert_eq!(bad.arrived_requests().len(), 2);
    Ok(())
}

/// The content of a tunnel can't be read, so its opening counts as success at once.
#[tokio::test]
async fn tunnel_closes_the_breaker_when_it_opens() -> anyhow::Result<()> {
    let rule = json!({
        "name": "cloud", "triggerPolicy": "Normal", "trip": { "consecutiveFailures": 2 },
        "restRules": [{ "url": "*", "method": "*" }], "recoverPolicy": sleeping_policy("1ms"),
    });
    let (env, client) = start_env(vec![breaker_entry(json!([rule]))], &[]).await?;
    // A bound port on which nobody listens yet.
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    let target = socket.local_addr()?.to_string();
    for _ in 0..2 {
        let refused = client.open_stream_with(Method::CONNECT, &target).await?;
        assert_eq!(refused.head.status, 503);
    }
    wait_state(&env, "cloud", "Opened").await?;
    let _listener = socket.listen(8)?;
    let tunnel = client.open_stream_with(Method::CONNECT, &target).await?;
    assert_eq!(tunnel.head.status, 200);
    wait_state(&env, "cloud", "Closed").await?;
    drop(tunnel);
    Ok(())
}
