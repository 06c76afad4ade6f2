//! Media types that a client accepts: the entries of its `Accept` headers in the order in which the server may choose them, as
//! apiserver `pkg/endpoints/handlers/negotiation` reads them.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::protobuf;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// `application/json`
    Json,
    /// `application/vnd.kubernetes.protobuf`
    Protobuf,
}

impl Encoding {
    /// `None` for a media type that the server neither reads nor writes. It must have no parameters.
    pub(crate) fn from_media_type(media_type: &str) -> Option<Self> {
        match media_type {
            "application/json" => Some(Self::Json),
            protobuf::MEDIA_TYPE => Some(Self::Protobuf),
            _ => None,
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => protobuf::MEDIA_TYPE,
        }
    }

    /// The encoding of a Status: the first accepted one that asks for no other form of an object.
    pub(crate) fn for_status(headers: &HeaderMap) -> Self {
        let ranges = media_ranges(headers).into_iter();
        let mut plain = ranges.filter(|range| range.target.is_none());
        plain.find_map(|range| range.written_encoding()).unwrap_or(Self::Json)
    }
}

/// One entry of an `Accept` header.
pub(crate) struct MediaRange<'a> {
    media_type: &'a str,
    /// The parameters `as`, `g`, `v`.
    pub(crate) target: Option<(&'a str, &'a str, &'a str)>,
    weight: f32,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts.filter_map(|parameter| parameter.split_once('=')).collect();
        let parameter = |key: &str| parameters.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
        let target = |kind| {
            let (group, version) = (parameter("g"), parameter("v"));
            (kind, group.unwrap_or_default(), version.unwrap_or_default())
        };
        Self {
            media_type,
            target: parameter("as").map(target),
            weight: parameter("q").and_then(|weight| weight.parse().ok()).unwrap_or(1.0),
        }
    }

    /// The encoding that the server writes for this range; JSON for a wildcard.
    pub(crate) fn written_encoding(&self) -> Option<Encoding> {
        match self.media_type {
            "application/*" | "*/*" | "" => Some(Encoding::Json),
            media_type => Encoding::from_media_type(media_type),
        }
    }
}

/// All entries by falling weight, those without a wildcard first, then in the order in which they were sent.
pub(crate) fn media_ranges(headers: &HeaderMap) -> Vec<MediaRange<'_>> {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges: Vec<_> = values
        .flat_map(|value| value.split(','))
        .map(MediaRange::parse)
        .collect();
    ranges.sort_by(|a, b| {
        let by_weight = b.weight.total_cmp(&a.weight);
        by_weight.then(a.media_type.contains('*').cmp(&b.media_type.contains('*')))
    });
    ranges
}

pub(crate) fn wants_aggregated_discovery(headers: &HeaderMap) -> bool {
    media_ranges(headers).iter().any(|range| {
        range.written_encoding() == Some(Encoding::Json)
            && range.target == Some(("APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted_encodings(accept: &'static str) -> Vec<Option<Encoding>> {
        let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
        media_ranges(&headers)
            .iter()
            .map(MediaRange::written_encoding)
            .collect()
    }

    #[test]
    fn accepted_types_are_ordered_by_weight_with_wildcards_last() {
        let (json, protobuf) = (Some(Encoding::Json), Some(Encoding::Protobuf));
        for (accept, expected) in [
            (
                "application/vnd.kubernetes.protobuf,application/json",
                vec![protobuf, json],
            ),
            ("application/vnd.kubernetes.protobuf, */*", vec![protobuf, json]),
            ("*/*,application/vnd.kubernetes.protobuf", vec![protobuf, json]),
            (
                "application/json;q=0.5, application/vnd.kubernetes.protobuf",
                vec![protobuf, json],
            ),
            (
                "application/json , application/vnd.kubernetes.protobuf",
                vec![json, protobuf],
            ),
            ("application/cbor,application/json", vec![None, json]),
        ] {
            assert_eq!(accepted_encodings(accept), expected, "{accept}");
        }
    }

    #[test]
    fn status_uses_first_encoding_that_asks_for_no_other_form() {
        for (accept, expected) in [
            ("application/vnd.kubernetes.protobuf", Encoding::Protobuf),
            (
                "application/yaml,application/vnd.kubernetes.protobuf",
                Encoding::Protobuf,
            ),
            ("application/cbor", Encoding::Json),
            (
                "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
                Encoding::Json,
            ),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
            assert_eq!(Encoding::for_status(&headers), expected, "{accept}");
        }
        assert_eq!(Encoding::for_status(&HeaderMap::new()), Encoding::Json);
    }
}
