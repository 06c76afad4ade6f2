//! Parses the method and URL of a request into verb, resource, namespace and name, with the same result as upstream's
//! `RequestInfoFactory` (k8s.io/apiserver v0.36.3 `pkg/endpoints/request/requestinfo.go`) with the prefixes `api` and
//! `apis`. Callers decide whether the request is allowed or rewritten.

mod list_options;
mod path;
mod unclean;

use std::borrow::Cow;
use std::fmt;

use crate::{ParsedQuery, Query, QueryError};
use path::{PathParts, split_segment};
pub use unclean::UncleanPath;

/// The verb of a request (apiserver `pkg/endpoints/request/requestinfo.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// GET or HEAD of one object by its name.
    Get,
    /// GET or HEAD of a collection.
    List,
    /// GET that streams changes, of a collection or of one object.
    Watch,
    /// POST.
    Create,
    /// PUT, which replaces an object.
    Update,
    /// PATCH of any kind: merge, JSON, strategic or apply.
    Patch,
    /// DELETE of one object by its name.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// The deprecated `/proxy/` prefix.
    Proxy,
    /// A request that names no resource.
    NonResource,
    /// About a resource, with a method that has no verb (`OPTIONS`, `TRACE`): the empty verb upstream.
    Unknown,
}

impl Verb {
    /// The verb as rules and access reviews spell it; empty for [`Verb::NonResource`] (see [`RequestInfo::verb_str`])
    /// and [`Verb::Unknown`].
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::NonResource | Self::Unknown => "",
        }
    }

    /// Whether the request reads, watches or deletes a collection, which is where selectors take effect.
    #[must_use]
    pub fn takes_selectors(self) -> bool {
        matches!(self, Self::List | Self::Watch | Self::DeleteCollection)
    }

    fn of_method(method: &str) -> Self {
        match method {
            "POST" => Self::Create,
            "GET" | "HEAD" => Self::Get,
            "PUT" => Self::Update,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a URL has no request info. A server answers 400, and 414 for [`RequestInfoError::Query`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestInfoError {
    /// A `%` in the path without two hexadecimal digits.
    #[error("the path holds a bad percent escape: write a literal % as %25")]
    BadEscape,
    /// A raw control character in the path or the query, which Go's URL parser refuses.
    #[error("the URL holds a raw control character: percent-encode it")]
    ControlCharacter,
    /// `/api/v1/watch` and the like, with nothing behind the special verb.
    #[error("unable to determine kind and namespace from the path: name a resource behind `watch` or `proxy`")]
    NoResource,
    /// The query is too large to be read.
    #[error(transparent)]
    Query(#[from] QueryError),
}

/// A parsed request. Text is borrowed from the path and the query unless they are percent-encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// Whether the request is about an API resource or subresource.
    pub is_resource_request: bool,
    /// The verb by which authorization and rules of plugins know the request.
    pub verb: Verb,
    /// The HTTP method as given.
    pub method: &'a str,
    /// The decoded path, whole.
    pub path: Cow<'a, str>,
    /// `api`, `apis`, or empty.
    pub api_prefix: Cow<'a, str>,
    /// API group; empty for the core group.
    pub group: Cow<'a, str>,
    /// Version of the API group, such as `v1`; empty without a group version in the path.
    pub version: Cow<'a, str>,
    /// Namespace; also the name of the namespace when the request is about one.
    pub namespace: Cow<'a, str>,
    /// Resource, such as `pods`.
    pub resource: Cow<'a, str>,
    /// Subresource, such as `status`.
    pub subresource: Cow<'a, str>,
    /// Name from the path, or from a `metadata.name` field selector of a list or watch.
    pub name: Cow<'a, str>,
    /// The `labelSelector` parameter, unparsed, where upstream honours it: list, watch and deletecollection, but not
    /// under the deprecated `/watch/` prefix. An edit of selectors starts from the [`Query`].
    pub label_selector: Option<Cow<'a, str>>,
    /// The `fieldSelector` parameter, as `label_selector`.
    pub field_selector: Option<Cow<'a, str>>,
    /// Whether the verb comes from a deprecated `/watch/` or `/proxy/` path prefix.
    pub verb_from_prefix: bool,
    /// The path from the resource on; see [`RequestInfo::path_parts`].
    rest: Cow<'a, str>,
}

impl<'a> RequestInfo<'a> {
    /// Reads a request line. `method` is the HTTP method; `raw_path` and `raw_query` are the two halves of the request
    /// target, undecoded and without the `?`. Authority and scheme play no part.
    ///
    /// # Errors
    /// Where upstream finds no request info, or Go's HTTP server would already have refused the URL, or the query
    /// exceeds a bound.
    pub fn parse(method: &'a str, raw_path: &'a str, raw_query: Option<&'a str>) -> Result<Self, RequestInfoError> {
        let raw_query = raw_query.unwrap_or("");
        if raw_path
            .bytes()
            .chain(raw_query.bytes())
            .any(|byte| byte.is_ascii_control())
        {
            return Err(RequestInfoError::ControlCharacter);
        }
        let query = Query::new(raw_query);
        query.check()?;
        let path = crate::percent::decode_path(raw_path).map_err(|_| RequestInfoError::BadEscape)?;
        let mut info = match path {
            Cow::Borrowed(path) => {
                Self::from_parts(method, Cow::Borrowed(path), PathParts::parse(path)?, Cow::Borrowed)
            }
            Cow::Owned(path) => {
                let parts = PathParts::parse(&path)?;
                Self::from_parts(method, Cow::Owned(path.clone()), parts, |text| {
                    Cow::Owned(text.to_owned())
                })
            }
        };
        info.read_query(raw_query);
        Ok(info)
    }

    fn from_parts<'p>(
        method: &'a str,
        path: Cow<'a, str>,
        parts: PathParts<'p>,
        keep: impl Fn(&'p str) -> Cow<'a, str>,
    ) -> Self {
        let verb = match (parts.special_verb, parts.is_resource_request) {
            (_, false) => Verb::NonResource,
            (Some(verb), true) => verb,
            (None, true) => Verb::of_method(method),
        };
        let (resource, behind) = split_segment(parts.rest);
        let (name, behind) = split_segment(behind.unwrap_or(""));
        // The deprecated proxy prefix takes all of the rest as the path behind the proxy.
        let subresource = if verb == Verb::Proxy {
            ""
        } else {
            split_segment(behind.unwrap_or("")).0
        };
        Self {
            is_resource_request: parts.is_resource_request,
            verb,
            method,
            path,
            api_prefix: keep(parts.api_prefix),
            group: keep(parts.group),
            version: keep(parts.version),
            namespace: keep(parts.namespace),
            resource: keep(resource),
            subresource: keep(subresource),
            name: keep(name),
            label_selector: None,
            field_selector: None,
            verb_from_prefix: parts.special_verb.is_some(),
            rest: keep(parts.rest),
        }
    }

    fn read_query(&mut self, raw_query: &'a str) {
        let is_unnamed = self.name.is_empty() && matches!(self.verb, Verb::Get | Verb::Delete);
        if !is_unnamed && !self.verb.takes_selectors() {
            return;
        }
        let query = ParsedQuery::new(raw_query);
        if self.name.is_empty() && self.verb == Verb::Get {
            let options = list_options::read(&query);
            self.verb = if options.watch { Verb::Watch } else { Verb::List };
            self.name = Cow::Owned(options.name);
        }
        if self.name.is_empty() && self.verb == Verb::Delete {
            self.verb = Verb::DeleteCollection;
        }
        // Under the prefix only some endpoints honour selectors, so upstream does not report them.
        if !self.verb_from_prefix && self.verb.takes_selectors() {
            self.label_selector = query.value("labelSelector").cloned();
            self.field_selector = query.value("fieldSelector").cloned();
        }
    }

    /// A copy that borrows nothing. `None` for a method that has no verb, because its text is the client's.
    #[must_use]
    pub fn to_static(&self) -> Option<RequestInfo<'static>> {
        let method = match self.method {
            "GET" => "GET",
            "HEAD" => "HEAD",
            "POST" => "POST",
            "PUT" => "PUT",
            "PATCH" => "PATCH",
            "DELETE" => "DELETE",
            _ => return None,
        };
        Some(RequestInfo {
            is_resource_request: self.is_resource_request,
            verb: self.verb,
            method,
            path: owned(&self.path),
            api_prefix: owned(&self.api_prefix),
            group: owned(&self.group),
            version: owned(&self.version),
            namespace: owned(&self.namespace),
            resource: owned(&self.resource),
            subresource: owned(&self.subresource),
            name: owned(&self.name),
            label_selector: self.label_selector.as_deref().map(owned),
            field_selector: self.field_selector.as_deref().map(owned),
            verb_from_prefix: self.verb_from_prefix,
            rest: owned(&self.rest),
        })
    }

    /// The verb as upstream spells it: for a request about no resource the HTTP method in lower case.
    #[must_use]
    pub fn verb_str(&self) -> Cow<'a, str> {
        match self.verb {
            Verb::NonResource => match self.method {
                "GET" => Cow::Borrowed("get"),
                "POST" => Cow::Borrowed("post"),
                "HEAD" => Cow::Borrowed("head"),
                method => Cow::Owned(method.to_ascii_lowercase()),
            },
            verb => Cow::Borrowed(verb.as_str()),
        }
    }

    /// The path segments from the resource on: resource, name, subresource and what follows. None for a request about
    /// no resource.
    pub fn path_parts(&self) -> impl Iterator<Item = &str> {
        self.rest.split('/').filter(|_| !self.rest.is_empty())
    }

    /// Whether no deadline for ordinary requests may apply (apiserver `filters/longrunning.go` with the API server's
    /// settings): watches, proxies, and the subresources that stream.
    #[must_use]
    pub fn is_long_running(&self) -> bool {
        match self.verb {
            Verb::Watch | Verb::Proxy => true,
            Verb::NonResource => self.path.starts_with("/debug/pprof/"),
            _ => matches!(&*self.subresource, "attach" | "exec" | "proxy" | "log" | "portforward"),
        }
    }

    /// Whether the connection may turn into a tunnel: a watch over WebSocket, or any subresource, because API servers of
    /// others stream from theirs as well (`virtualmachineinstances/console`). Anything else is answered over HTTP.
    #[must_use]
    pub fn may_upgrade(&self) -> bool {
        self.is_resource_request && (matches!(self.verb, Verb::Watch | Verb::Proxy) || !self.subresource.is_empty())
    }
}

fn owned(text: &str) -> Cow<'static, str> {
    Cow::Owned(text.to_owned())
}

#[cfg(test)]
mod tests;
