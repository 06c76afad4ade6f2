//! Request info: a first line with the method, then the request target.

use std::borrow::Cow;
use std::fmt::Write;

use ctrlmesh_wire::{Query, RequestInfo, Verb};

/// No panic; the parts are consistent; another spelling of the path changes nothing; only requests that a server would reject are
/// refused.
pub fn request_info(data: &[u8]) {
    let (method, target) = crate::split_line(data);
    let (Ok(method), Ok(target)) = (std::str::from_utf8(method), std::str::from_utf8(target)) else {
        return;
    };
    let (path, query) = target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)));
    let Ok(info) = RequestInfo::parse(method, path, query) else {
        return;
    };
    path_parts_fit_together(&info, query.unwrap_or(""));
    let spelled = spelled_out(&info.path);
    let again = RequestInfo::parse(method, &spelled, query).expect("an encoded path is read");
    assert_eq!(again, info, "{path} spelled as {spelled}");
    if info.check_path(path).is_ok() {
        let sent = info.path_without_empty_namespace();
        means_the_same_when_cleaned(method, sent.as_deref().unwrap_or(path), &info);
    }
}

/// Cleans the path like servers in front of the API server: decoded or not, with backslashes as slashes or not.
fn means_the_same_when_cleaned(method: &str, path: &str, info: &RequestInfo<'_>) {
    let once = percent_decoded(path);
    let twice = percent_decoded(&once);
    for text in [path, &once, &twice] {
        for text in [text.to_owned(), text.replace('\\', "/")] {
            // Parameters and queries in a segment belong to another program once the path is behind a proxy.
            let cleaned = clean_path(&text);
            let spelled_out = spelled_out(&percent_decoded(&cleaned));
            let Ok(seen) = RequestInfo::parse(method, &spelled_out, None) else {
                continue;
            };
            assert_eq!(
                seen.is_resource_request, info.is_resource_request,
                "{path} cleaned to {cleaned}"
            );
            assert_eq!(
                (&seen.group, &seen.namespace, &seen.resource, &seen.subresource),
                (&info.group, &info.namespace, &info.resource, &info.subresource),
                "{path} cleaned to {cleaned}"
            );
        }
    }
}

/// Merges slashes and resolves dot segments (RFC 3986 section 5.2.4).
fn clean_path(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            name => kept.push(name),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Decodes escapes and leaves the rest.
fn percent_decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text)
        .decode_utf8_lossy()
        .into_owned()
}

fn path_parts_fit_together(info: &RequestInfo<'_>, query: &str) {
    let parts: Vec<&str> = info.path_parts().collect();
    assert_eq!(info.resource, parts.first().copied().unwrap_or(""));
    assert_eq!(info.is_resource_request, info.verb != Verb::NonResource);
    if !info.is_resource_request {
        assert!(parts.is_empty() && info.namespace.is_empty() && info.version.is_empty());
    }
    let path_name = parts.get(1).copied().unwrap_or("");
    if info.name != path_name {
        // Only a field selector can give another name, and only in a request for a collection.
        assert!(path_name.is_empty() && Query::new(query).get("fieldSelector").is_some());
        assert!(matches!(info.verb, Verb::List | Verb::Watch));
    }
    if matches!(info.verb, Verb::Get | Verb::Delete) {
        assert!(
            !info.name.is_empty(),
            "a request without a name is one for a collection"
        );
    }
    if info.verb.takes_selectors() && !info.verb_from_prefix {
        assert_eq!(info.label_selector, Query::new(query).get("labelSelector"));
    } else {
        assert_eq!(info.label_selector, None::<Cow<'_, str>>);
    }
}

/// The same path with every byte but the slashes escaped.
fn spelled_out(path: &str) -> String {
    path.bytes().fold(String::new(), |mut spelled, byte| {
        match byte {
            b'/' => spelled.push('/'),
            byte => write!(spelled, "%{byte:02x}").expect("writing to a string"),
        }
        spelled
    })
}
