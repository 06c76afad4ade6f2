use http::HeaderValue;
use proptest::prelude::*;

use super::*;

fn read_destination(method: &str, target: &str, endpoints: &[&str]) -> Result<Destination, DestinationError> {
    let mut headers = HeaderMap::new();
    for endpoint in endpoints {
        headers.append(ENDPOINT, HeaderValue::from_str(endpoint).unwrap());
    }
    let method: Method = method.parse().unwrap();
    let form = proxy_form_of(&method, &headers);
    Destination::read(form, &target.parse().unwrap(), &headers)
}

fn destination_parts(destination: &Destination) -> (ProxyForm, bool, String, u16, String) {
    let TargetKey { is_tls, port, .. } = destination.target;
    (
        destination.form,
        is_tls,
        destination.host().into_owned(),
        port,
        destination.uri.path().to_owned(),
    )
}

/// Method, target, endpoint header, and the expected destination: way, TLS, host, port, path.
type Case = (
    &'static str,
    &'static str,
    &'static str,
    (ProxyForm, bool, &'static str, u16, &'static str),
);

fn assert_destination(case: Case) {
    let (method, target, endpoint, (form, is_tls, host, port, path)) = case;
    let endpoints: Vec<&str> = Some(endpoint).filter(|text| !text.is_empty()).into_iter().collect();
    let destination = read_destination(method, target, &endpoints).unwrap();
    assert_eq!(
        destination_parts(&destination),
        (form, is_tls, host.to_owned(), port, path.to_owned()),
        "{method} {target} {endpoint}"
    );
}

#[test]
fn absolute_target_determines_destination() {
    assert_destination((
        "GET",
        "http://a.example/p?q",
        "",
        (ProxyForm::Absolute, false, "a.example", 80, "/p"),
    ));
    assert_destination((
        "GET",
        "https://a.example",
        "",
        (ProxyForm::Absolute, true, "a.example", 443, "/"),
    ));
    assert_destination((
        "PUT",
        "HTTP://A.Example.:8080/p",
        "",
        (ProxyForm::Absolute, false, "a.example", 8080, "/p"),
    ));
    assert_destination((
        "GET",
        "http://a.example:/p",
        "",
        (ProxyForm::Absolute, false, "a.example", 80, "/p"),
    ));
    assert_destination((
        "GET",
        "http://[2001:DB8::1]:81/",
        "",
        (ProxyForm::Absolute, false, "2001:db8::1", 81, "/"),
    ));
    assert_destination((
        "GET",
        "http://[::ffff:192.0.2.1]/",
        "",
        (ProxyForm::Absolute, false, "192.0.2.1", 80, "/"),
    ));
    assert_destination((
        "GET",
        "http://192.0.2.7:8080/",
        "",
        (ProxyForm::Absolute, false, "192.0.2.7", 8080, "/"),
    ));
}

#[test]
fn header_and_connect_determine_destination() {
    assert_destination((
        "GET",
        "/other?x",
        "https://a.example/p",
        (ProxyForm::Header, true, "a.example", 443, "/p"),
    ));
    let elsewhere = "http://b.example/other";
    assert_destination((
        "GET",
        elsewhere,
        "http://a.example/p",
        (ProxyForm::Header, false, "a.example", 80, "/p"),
    ));
    assert_destination((
        "OPTIONS",
        "*",
        " http://my_host/p#f ",
        (ProxyForm::Header, false, "my_host", 80, "/p"),
    ));
    assert_destination((
        "CONNECT",
        "A.example:443",
        "",
        (ProxyForm::Connect, false, "a.example", 443, ""),
    ));
    assert_destination(("CONNECT", "[::1]:443", "", (ProxyForm::Connect, false, "::1", 443, "")));
}

#[test]
fn unclear_destination_is_refused() {
    use DestinationError as E;
    for (method, target, endpoints, expected) in [
        ("GET", "/p", &[][..], E::NoTarget),
        ("OPTIONS", "*", &[], E::NoTarget),
        ("GET", "a.example:80", &[], E::NoTarget),
        ("GET", "ftp://a.example/", &[], E::Scheme),
        ("GET", "http://user:secret@a.example/", &[], E::User),
        ("GET", "http://b.example@a.example/", &[], E::User),
        ("GET", "http://a.example:0/", &[], E::Port),
        ("GET", "http://a.example:99999/", &[], E::Port),
        ("GET", "/", &["http://a/", "http://b/"], E::Endpoint),
        ("GET", "/", &[""], E::Endpoint),
        ("GET", "/", &["a.example/p"], E::Endpoint),
        ("GET", "/", &["//a.example/p"], E::Endpoint),
        ("GET", "/", &["http://a.example/a b"], E::Endpoint),
        ("GET", "/", &["file:///etc/passwd"], E::Endpoint),
        ("GET", "/", &["gopher://a.example/"], E::Scheme),
        ("GET", "/", &["http://user@a.example/"], E::User),
        ("CONNECT", "a.example", &[], E::Connect),
        ("CONNECT", "http://a.example:443/", &[], E::Connect),
        ("CONNECT", "a.example:443", &["http://a.example/"], E::Connect),
        ("CONNECT", "user@a.example:443", &[], E::User),
        ("CONNECT", "a.example:0", &[], E::Port),
    ] {
        assert_eq!(
            read_destination(method, target, endpoints),
            Err(expected),
            "{method} {target} {endpoints:?}"
        );
    }
    let long = format!("http://a.example/{}", "x".repeat(MAX_URI));
    assert_eq!(read_destination("GET", &long, &[]), Err(E::TooLong { limit: MAX_URI }));
    let mut headers = HeaderMap::new();
    headers.append(HOST, HeaderValue::from_static("a.example"));
    headers.append(HOST, HeaderValue::from_static("b.example"));
    let uri = "http://a.example/".parse().unwrap();
    assert_eq!(
        Destination::read(ProxyForm::Absolute, &uri, &headers),
        Err(E::ManyHosts)
    );
}

#[test]
fn odd_spellings_of_address_are_refused() {
    for host in [
        "2130706433",
        "0x7f000001",
        "0X7F000001",
        "0177.0.0.1",
        "127.1",
        "127.0.1",
        "0x7f.0.0.1",
        "0",
        "127.0.0.1.2",
        "1.2.3.256",
        "a.0x7f",
        "a.1",
        "127.0.0.01",
        "0x",
    ] {
        for spelled in [host.to_owned(), format!("{host}.")] {
            let error = DestinationError::OddAddress { host: spelled.clone() };
            assert_eq!(server_name(&spelled), Err(error), "{spelled}");
        }
    }
    for host in [
        "",
        ".",
        "..",
        "a..b",
        "a.example..",
        "-a",
        "a b",
        "a%2eb",
        "[::1",
        "[fe80::1%25eth0]",
        "[127.0.0.1]",
        "ü.example",
        "a/b",
    ] {
        let wrong = server_name(host);
        assert!(matches!(wrong, Err(DestinationError::Host { .. })), "{host}: {wrong:?}");
    }
}

proptest! {
    #[test]
    fn hosts_have_one_canonical_spelling(host in "[0-9a-fxX.:\\[\\]%@-]{0,20}") {
        // A canonical spelling keeps its meaning when it is parsed again, and is either an address or no number for any parser.
        if let Ok(name) = server_name(&host) {
            let text = name.to_str().into_owned();
            match text.parse::<IpAddr>() {
                Ok(address) => prop_assert_eq!(address, address.to_canonical()),
                Err(_) => prop_assert_eq!(server_name(&text), Ok(name)),
            }
        }
    }
}
