use super::*;

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

fn message(result: Result<Url, Failure>) -> String {
    result.map_or_else(|failure| failure.message, |url| url.to_string())
}

#[test]
fn redirect_may_leave_registry_but_not_reach_managers_pod_or_machine() {
    let registry = url("https://ghcr.io/v2/a/blobs/sha256:0");
    let policy = AddressPolicy::for_registry(&registry);
    let to = |location: &str| redirect_target(&registry, location, policy);
    for location in [
        "https://bucket.s3.amazonaws.com/x?sig=1",
        "https://10.1.2.3/x",
        "/other",
        "https://minio.storage.svc:9000/x",
    ] {
        assert!(to(location).is_ok(), "{location}");
    }
    for location in [
        "http://bucket.s3.amazonaws.com/x",
        "http://ghcr.io/x",
        "file:///etc/passwd",
        "ftp://ghcr.io/x",
        "https://127.0.0.1:8080/x",
        "https://127.9.9.9/x",
        "https://localhost/x",
        "https://localhost./x",
        "https://a.localhost/x",
        "https://[::1]/x",
        "https://[::ffff:127.0.0.1]/x",
        "https://0.0.0.0/x",
        "https://2130706433/x",
        "https://169.254.169.254/latest/meta-data",
        "https://[fe80::1]/x",
        "https://[fd00:ec2::254]/x",
        "https://[64:ff9b::169.254.169.254]/x",
        "https://[2002:a9fe:a9fe::]/x",
        "https://100.100.100.200/x",
        "https://224.0.0.1/x",
        "https://",
    ] {
        let failure = to(location).unwrap_err();
        assert_eq!(failure.reason, FailureReason::UnsafeRedirect, "{location}");
    }
}

#[test]
fn local_registry_may_redirect_to_loopback() {
    for local in [
        "http://127.0.0.1:5000/v2/",
        "http://localhost:5000/v2/",
        "http://[::1]:5000/v2/",
    ] {
        let registry = url(local);
        let policy = AddressPolicy::for_registry(&registry);
        assert!(
            redirect_target(&registry, "http://127.0.0.1:5001/x", policy).is_ok(),
            "{local}"
        );
        assert!(
            redirect_target(&registry, "http://169.254.169.254/x", policy).is_err(),
            "{local}"
        );
    }
    assert!(
        AddressPolicy::FromObject
            .check(&url("https://169.254.169.254/v2/"))
            .is_err()
    );
    assert!(AddressPolicy::FromObject.check(&url("https://10.0.0.1/v2/")).is_ok());
}

#[test]
fn token_realm_must_be_on_registrys_site() {
    let at =
        |registry: &str, to: &str| message(token_server_url(&url(registry), to, |host| host == "login.example.com"));
    for (registry, to) in [
        ("https://ghcr.io/v2/", "https://ghcr.io/token"),
        ("https://index.docker.io/v2/", "https://auth.docker.io/token"),
        ("https://registry.gitlab.com/v2/", "https://gitlab.com/jwt/auth"),
        ("https://registry.example.co.uk/v2/", "https://auth.example.co.uk/token"),
        ("https://registry.dev:5000/v2/", "https://registry.dev:5001/token"),
        ("http://registry.dev:5000/v2/", "http://registry.dev:5000/token"),
        ("https://elsewhere.net/v2/", "https://login.example.com/token"),
    ] {
        assert_eq!(at(registry, to), to, "{registry}");
    }
    for (registry, to, expected) in [
        ("https://ghcr.io/v2/", "https://evil.com/token", "another site"),
        (
            "https://ghcr.io/v2/",
            "https://evil.com/token",
            "--registry-auth-host=evil.com",
        ),
        ("https://a.co.uk/v2/", "https://b.co.uk/token", "another site"),
        (
            "https://evil.k8s.io/v2/",
            "https://registry.k8s.io/token",
            "another site",
        ),
        (
            "https://evil-docker.io/v2/",
            "https://auth.docker.io/token",
            "another site",
        ),
        ("https://ghcr.io/v2/", "http://ghcr.io/token", "without TLS"),
        (
            "http://registry.dev/v2/",
            "http://auth.registry.dev/token",
            "without TLS",
        ),
        ("https://ghcr.io/v2/", "http://login.example.com/token", "without TLS"),
        ("https://10.0.0.1/v2/", "https://10.0.0.2/token", "another site"),
        ("https://registry/v2/", "https://auth/token", "another site"),
        ("https://ghcr.io/v2/", "/token", "invalid URL"),
    ] {
        let text = at(registry, to);
        assert!(text.contains(expected), "{registry} {to}: {text}");
    }
}

#[tokio::test]
async fn names_that_resolve_to_loopback_are_not_found() {
    let hosts = [
        ("inside.example.com", "127.0.0.1"),
        ("metadata.example.com", "169.254.169.254"),
        ("cluster.example.com", "10.0.0.1"),
    ];
    let hosts: BTreeMap<String, IpAddr> = hosts
        .iter()
        .map(|(name, ip)| ((*name).to_owned(), ip.parse().unwrap()))
        .collect();
    let resolver = |policy| Resolver {
        policy,
        hosts: Arc::new(hosts.clone()),
        proxies: Arc::new(vec!["proxy.example.com".to_owned()]),
    };
    let finds = async |policy, name: &str| {
        resolver(policy)
            .resolve(name.parse().unwrap())
            .await
            .map(Iterator::count)
    };
    assert_eq!(
        finds(AddressPolicy::FromRegistry, "cluster.example.com").await.unwrap(),
        1
    );
    assert_eq!(finds(AddressPolicy::FromObject, "inside.example.com").await.unwrap(), 1);
    for (policy, name) in [
        (AddressPolicy::FromRegistry, "inside.example.com"),
        (AddressPolicy::FromRegistry, "metadata.example.com"),
        (AddressPolicy::FromObject, "metadata.example.com"),
    ] {
        let error = finds(policy, name).await.unwrap_err();
        assert!(is_out_of_reach(error.as_ref()), "{name}: {error}");
    }
    let mut named = hosts.clone();
    named.insert("proxy.example.com".to_owned(), "127.0.0.1".parse().unwrap());
    let through = Resolver {
        hosts: Arc::new(named),
        ..resolver(AddressPolicy::FromRegistry)
    };
    assert_eq!(
        through
            .resolve("proxy.example.com".parse().unwrap())
            .await
            .unwrap()
            .count(),
        1
    );
}
