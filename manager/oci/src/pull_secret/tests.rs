use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::*;

fn secret(key: &str, content: &str) -> Secret {
    Secret {
        data: Some([(key.to_owned(), ByteString(content.as_bytes().to_vec()))].into()),
        type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
        ..Secret::default()
    }
}

fn chosen_user(auths: &Value, image: &str) -> Result<String, String> {
    let secret = secret(".dockerconfigjson", &json!({ "auths": auths }).to_string());
    credentials_in(&secret, &Image::parse(image).unwrap()).map(|credentials| credentials.user)
}

fn auth_of_user(name: &str) -> Value {
    json!({ "username": name, "password": "p" })
}

#[test]
fn most_specific_entry_is_taken_as_kubelet_does() {
    let auths = json!({
        "ghcr.io": auth_of_user("host"),
        "https://ghcr.io/you": auth_of_user("path"),
        "registry.dev:5000": auth_of_user("port"),
        "*.example.com": auth_of_user("wildcard"),
        "eu.example.com": auth_of_user("exact"),
        "http://old.dev/v1/": auth_of_user("old"),
        "https://index.docker.io/v1/": auth_of_user("hub"),
    });
    for (image, expected) in [
        ("oci://ghcr.io/other/plugin:1", Some("host")),
        ("oci://ghcr.io/you/plugin:1", Some("path")),
        ("oci://registry.dev:5000/plugin:1", Some("port")),
        ("oci://registry.dev/plugin:1", None),
        ("oci://ghcr.io:443/plugin:1", None),
        ("oci://us.example.com/plugin:1", Some("wildcard")),
        ("oci://eu.example.com/plugin:1", Some("exact")),
        ("oci://a.b.example.com/plugin:1", None),
        ("oci://example.com/plugin:1", None),
        ("oci://old.dev/plugin:1", Some("old")),
        ("oci://docker.io/you/plugin:1", Some("hub")),
    ] {
        assert_eq!(chosen_user(&auths, image).ok().as_deref(), expected, "{image}");
    }
}

#[test]
fn wildcard_matches_part_of_label() {
    for (pattern, label, expected) in [
        ("*", "", true),
        ("a*", "abc", true),
        ("*c", "abc", true),
        ("a*c", "abc", true),
        ("a*b*d", "axbyd", true),
        ("a*c", "abd", false),
        ("a", "ab", false),
    ] {
        assert_eq!(label_fits(pattern, label), expected, "{pattern} {label}");
    }
}

#[test]
fn pull_secret_is_read_in_both_types_and_entry_forms() {
    let image = Image::parse("oci://ghcr.io/you/plugin:1").unwrap();
    let auth = json!({ "ghcr.io": { "auth": STANDARD.encode("me:a:b") } });
    let expected = Credentials {
        user: "me".to_owned(),
        password: "a:b".to_owned(),
    };
    let new = secret(".dockerconfigjson", &json!({ "auths": auth }).to_string());
    assert_eq!(credentials_in(&new, &image), Ok(expected.clone()));
    let legacy = secret(".dockercfg", &auth.to_string());
    assert_eq!(credentials_in(&legacy, &image), Ok(expected));
}

#[test]
fn unusable_secret_is_reported_without_its_content() {
    let image = Image::parse("oci://ghcr.io/you/plugin:1").unwrap();
    let config = |entry: Value| {
        secret(
            ".dockerconfigjson",
            &json!({ "auths": { "ghcr.io": entry } }).to_string(),
        )
    };
    for (secret, expected) in [
        (secret("token", "x"), "neither .dockerconfigjson nor .dockercfg"),
        (secret(".dockerconfigjson", "hunter2"), "no JSON of Docker"),
        (secret(".dockercfg", "hunter2"), "no JSON of Docker"),
        (config(json!({ "auth": "hunter2" })), "not the base64 of user:password"),
        (config(json!({ "identitytoken": "hunter2" })), "not supported"),
        (config(json!({ "email": "me" })), "neither user nor password"),
        (secret(".dockerconfigjson", "{}"), "it has some for: nothing"),
        (
            secret(".dockerconfigjson", r#"{"auths":{"quay.io":{}}}"#),
            "it has some for: quay.io",
        ),
    ] {
        let problem = credentials_in(&secret, &image).unwrap_err();
        assert!(problem.contains(expected) && !problem.contains("hunter2"), "{problem}");
    }
    let shown = format!(
        "{:?}",
        Credentials {
            user: "me".to_owned(),
            password: "hunter2".to_owned()
        }
    );
    assert!(!shown.contains("hunter2"));
}
