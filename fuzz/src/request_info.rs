//! Request info: a first line with the method, then the request target.

use std::borrow::Cow;
use std::fmt::Write;

use ctrlmesh_wire::{Query, RequestInfo, Verb};

/// No panic; the parts fit together; spelling the path in another way changes nothing; only requests that a server would
/// refuse are refused.
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
    parts_fit_together(&info, query.unwrap_or(""));
    let spelled = spelled_out(&info.path);
    let again = RequestInfo::parse(method, &spelled, query).expect("an encoded path is read");
    assert_eq!(again, info, "{path} spelled as {spelled}");
}

fn parts_fit_together(info: &RequestInfo<'_>, query: &str) {
    let parts: Vec<&str> = info.parts().collect();
    assert_eq!(info.resource, parts.first().copied().unwrap_or(""));
    assert_eq!(info.is_resource_request, info.verb != Verb::NonResource);
    if !info.is_resource_request {
        assert!(parts.is_empty() && info.namespace.is_empty() && info.version.is_empty());
    }
    let path_name = parts.get(1).copied().unwrap_or("");
    if info.name != path_name {
        // Only a field selector can give another name, and only to a request for a collection.
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
