//! The rules for a guest's results in any interface version. Each `Err` is the text of a [`Fault::Invalid`](super::Fault::Invalid).
//!
//! Leaves checks that need the request to the chain: whether a selector parses, whether an edit is legal for the verb.

use std::collections::BTreeSet;
use std::time::Duration;

use ctrlmesh_wire::objects::{MAX_DROPPED_PATHS, MAX_PATTERNS, MAX_PREDICATE_NODES};
use http::{HeaderName, HeaderValue};

use super::state::MAX_KEY_BYTES;
use crate::plugin::dropped_fields::PluginDroppedFields;
use crate::plugin::object_metadata::ObjectQuestion;
use crate::plugin::verdict::{BodyShape, OutcomeRule, Refusal};

/// Maximum number of edits in one verdict.
const MAX_EDITS: usize = 64;
/// Maximum number of paths in all `drop-fields` edits of one verdict: those of four edits with the most paths.
const MAX_VERDICT_PATHS: usize = 4 * MAX_DROPPED_PATHS;
/// Maximum number of different annotations that a verdict asks for.
const MAX_ASKED_ANNOTATIONS: usize = 16;
/// Maximum length of the key of an annotation: a prefix of 253, a slash and a name of 63 (apimachinery `pkg/util/validation`,
/// `IsQualifiedName`).
const MAX_ANNOTATION_KEY_BYTES: usize = 317;
/// Maximum size of the text in one result: selectors, header values, messages together.
const MAX_TEXT_BYTES: usize = 64 * 1024;
/// Maximum number of causes of a refusal; the API server's longest responses have a handful.
const MAX_CAUSES: usize = 16;
/// Maximum number of outcome rules in a verdict.
const MAX_OUTCOME_RULES: usize = 24;
/// Maximum number of cells of an outcome rule.
const MAX_RULE_CELLS: usize = 4;
/// Maximum number of match rules in a subscription.
const MAX_RULES: usize = 256;
/// Maximum delay before an action. Longer ones are cut, as the interface says.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Maximum time for which a body is delayed, or until a watch is ended. Clients and load balancers give up before.
const MAX_BODY_DELAY: Duration = Duration::from_secs(3600);
/// Maximum length of an object name (apimachinery `pkg/util/validation`, DNS-1123 subdomain).
const MAX_NAME_BYTES: usize = 253;
/// Maximum length of a refusal's reason; upstream's longest has 22 characters.
const MAX_REASON_BYTES: usize = 128;

/// Header fields that belong to the connection or to the framing of a message (RFC 9110 §7.6.1, RFC 9113 §8.2.2), or describe the encoding of
/// a body, which an edit of the head cannot change.
const FRAMING_FIELDS: [&str; 14] = [
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Header field of a 101 with the protocol of the tunnel (apimachinery `pkg/util/httpstream`). A client may offer any protocol, so the field
/// of a request may be edited.
const TUNNEL_PROTOCOL_FIELD: &str = "x-stream-protocol-version";

/// Header fields that define the identity of a request. A plugin that could set or drop one would act with rights that nobody granted: a
/// request without `authorization` gets the sidecar's own.
const IDENTITY_FIELDS: [&str; 4] = ["authorization", "cookie", "proxy-authorization", "set-cookie"];
const IDENTITY_PREFIXES: [&str; 3] = ["impersonate-", "x-remote-", "sec-websocket-"];

/// Query parameters that the host controls (`set-query` in wit/types.wit names the same ones): a client's own selection is never widened,
/// and `watch` would turn a list, once its verb was matched, into a watch.
const RESERVED_PARAMETERS: [&str; 4] = ["labelSelector", "fieldSelector", "shardSelector", "watch"];

/// Limits the text of one result.
#[derive(Debug, Default)]
pub(crate) struct TextLimit {
    used: usize,
}

impl TextLimit {
    /// Returns the text if all texts so far fit into [`MAX_TEXT_BYTES`].
    pub(crate) fn take(&mut self, text: String) -> Result<String, String> {
        // One more for its place in a list, even if it is empty.
        self.count(text.len() + 1)?;
        Ok(text)
    }

    /// Counts bytes, or small values.
    pub(crate) fn count(&mut self, count: usize) -> Result<(), String> {
        self.used = self.used.saturating_add(count);
        if self.used > MAX_TEXT_BYTES {
            return Err(format!("more than {MAX_TEXT_BYTES} bytes of text"));
        }
        Ok(())
    }
}

/// Bounds the number of edits.
pub(crate) fn edit_count(count: usize) -> Result<(), String> {
    check_count("edits", count, MAX_EDITS)
}

/// Bounds the number of match rules.
pub(crate) fn rule_count(count: usize) -> Result<(), String> {
    check_count("match rules", count, MAX_RULES)
}

/// Bounds the number of causes.
pub(crate) fn cause_count(count: usize) -> Result<(), String> {
    check_count("causes", count, MAX_CAUSES)
}

/// Bounds the number of outcome rules.
pub(crate) fn outcome_rule_count(count: usize) -> Result<(), String> {
    check_count("outcome rules", count, MAX_OUTCOME_RULES)
}

/// Bounds the number of cells of an outcome rule.
pub(crate) fn cell_count(count: usize) -> Result<(), String> {
    check_count("cells of an outcome rule", count, MAX_RULE_CELLS)
}

/// Bounds the nodes of a predicate.
pub(crate) fn predicate_node_count(count: usize) -> Result<(), String> {
    check_count("nodes of a predicate", count, MAX_PREDICATE_NODES)
}

/// Bounds the patterns in all predicates of a verdict: each is compiled for the call.
pub(crate) fn pattern_count(count: usize) -> Result<(), String> {
    check_count("patterns in a verdict", count, MAX_PATTERNS)
}

/// Bounds the paths of dropped fields in all edits of a verdict: the fields of all edits are merged for each request.
pub(crate) fn dropped_path_count(count: usize) -> Result<(), String> {
    check_count("paths of dropped fields in a verdict", count, MAX_VERDICT_PATHS)
}

/// A plugin decides on each object that it is asked about.
pub(crate) fn flag_count(flags: usize, objects: usize) -> Result<(), String> {
    if flags == objects {
        Ok(())
    } else {
        Err(format!("{flags} flags for {objects} objects: each object needs one"))
    }
}

/// Bounds the key of a tally.
pub(crate) fn tally_key(key: &str) -> Result<(), String> {
    check_count("bytes in the key of a tally", key.len(), MAX_KEY_BYTES)
}

/// Each tally counts an outcome once.
pub(crate) fn distinct_tallies(rules: &[OutcomeRule]) -> Result<(), String> {
    for (at, rule) in rules.iter().enumerate() {
        if rules.iter().skip(at + 1).any(|other| other.tally == rule.tally) {
            return Err("two outcome rules have the same tally".into());
        }
    }
    Ok(())
}

/// The status of a response that is no `Status`.
pub(crate) fn answer_code(code: u16) -> Result<u16, String> {
    if (200..=599).contains(&code) {
        Ok(code)
    } else {
        Err(format!("an answer with the code {code}: it must be 200 to 599"))
    }
}

fn check_count(what: &str, count: usize, limit: usize) -> Result<(), String> {
    if count > limit {
        Err(format!("{count} {what}, at most {limit} are allowed"))
    } else {
        Ok(())
    }
}

/// A delay before an action, cut to the host's maximum.
pub(crate) fn bounded_delay(milliseconds: u32) -> Duration {
    Duration::from_millis(milliseconds.into()).min(MAX_DELAY)
}

/// A waiting time of a body, cut to the host's maximum.
pub(crate) fn body_delay(milliseconds: u32) -> Duration {
    Duration::from_millis(milliseconds.into()).min(MAX_BODY_DELAY)
}

pub(crate) fn checked_selector(text: String) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("an empty selector: leave the edit out where nothing is to be narrowed".into());
    }
    Ok(text)
}

/// The paths of the fields that are left out of objects.
pub(crate) fn dropped_fields(paths: Vec<String>) -> Result<PluginDroppedFields, String> {
    if paths.is_empty() {
        return Err("drop-fields without paths: leave the edit out where no field is dropped".into());
    }
    PluginDroppedFields::parse(paths).map_err(|error| format!("drop-fields: {error}"))
}

/// The annotations that a verdict asks for in one edit.
pub(crate) fn object_question(annotations: Vec<String>) -> Result<ObjectQuestion, String> {
    if let Some(key) = annotations
        .iter()
        .find(|key| key.is_empty() || key.len() > MAX_ANNOTATION_KEY_BYTES)
    {
        return Err(format!(
            "ask-about-objects: {key:?} is no key of an annotation: it has 1 to {MAX_ANNOTATION_KEY_BYTES} bytes"
        ));
    }
    Ok(ObjectQuestion::new(annotations))
}

/// Bounds the different annotations that all edits of a verdict ask for.
pub(crate) fn asked_annotation_count<'a>(questions: impl Iterator<Item = &'a ObjectQuestion>) -> Result<(), String> {
    let keys: BTreeSet<&str> = questions.flat_map(ObjectQuestion::annotations).collect();
    check_count("annotations that a verdict asks for", keys.len(), MAX_ASKED_ANNOTATIONS)
}

/// The name of a query parameter that a plugin may set or remove.
pub(crate) fn query_name(name: String) -> Result<String, String> {
    if name.is_empty() {
        return Err("a query parameter without a name".into());
    }
    if RESERVED_PARAMETERS.contains(&name.as_str()) {
        return Err(format!(
            "the query parameter {name} is the host's: and-label-selector and and-field-selector narrow what is seen, \
             nothing widens it or turns a list into a watch"
        ));
    }
    Ok(name)
}

/// The name of a header field that a plugin may set or remove.
pub(crate) fn header_name(name: &str) -> Result<HeaderName, String> {
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| format!("{name:?} is no header name"))?;
    let lower = parsed.as_str();
    if FRAMING_FIELDS.contains(&lower) {
        return Err(format!(
            "the header {lower} belongs to the connection and is the host's"
        ));
    }
    if IDENTITY_FIELDS.contains(&lower) || IDENTITY_PREFIXES.iter().any(|prefix| lower.starts_with(prefix)) {
        return Err(format!(
            "the header {lower} says who the client is, which no plugin may change"
        ));
    }
    Ok(parsed)
}

/// The name of a header field of a response that a plugin may set or remove.
pub(crate) fn response_header_name(name: &str) -> Result<HeaderName, String> {
    let name = header_name(name)?;
    if name.as_str() == TUNNEL_PROTOCOL_FIELD {
        return Err(format!("the header {name} belongs to the tunnel and is the host's"));
    }
    Ok(name)
}

/// The value of a header field.
pub(crate) fn header_value(name: &HeaderName, value: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(value)
        .map_err(|_| format!("the value of the header {name} has a character that is not allowed"))
}

/// An object name as the API server accepts it in a path segment (apimachinery `pkg/api/validation/path`).
pub(crate) fn object_name(name: String) -> Result<String, String> {
    let legal = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name != "."
        && name != ".."
        && !name.contains(['/', '%'])
        && !name.contains(char::is_control);
    if legal {
        Ok(name)
    } else {
        Err(format!("{name:?} is no object name"))
    }
}

pub(crate) fn checked_refusal(refusal: Refusal, text: &mut TextLimit) -> Result<Refusal, String> {
    if !(400..=599).contains(&refusal.code) {
        return Err(format!(
            "a refusal with the code {}: it must be 400 to 599",
            refusal.code
        ));
    }
    let reason = &refusal.reason;
    if reason.len() > MAX_REASON_BYTES || !reason.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(format!(
            "{:?} is no reason of a Status: it is one word such as TooManyRequests",
            refusal.reason
        ));
    }
    Ok(Refusal {
        message: text.take(refusal.message)?,
        cause: refusal.cause.map(|cause| text.take(cause)).transpose()?,
        ..refusal
    })
}

/// Validates the shape of a body.
pub(crate) fn body_shape(shape: BodyShape) -> Result<BodyShape, String> {
    if shape.pace == Some(0) {
        return Err("a pace of 0 bytes per second never ends: use reset".into());
    }
    if shape.expired && shape.end_after.is_none() {
        return Err("expired without end-after-ms".into());
    }
    Ok(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_connection_and_of_client_are_refused_in_any_case() {
        for name in FRAMING_FIELDS.iter().chain(&IDENTITY_FIELDS) {
            assert!(header_name(&name.to_uppercase()).is_err(), "{name}");
        }
        for name in [
            "Impersonate-User",
            "x-remote-group",
            "Sec-WebSocket-Protocol",
            ":path",
            "a b",
            "",
            "a\r\nb",
        ] {
            assert!(header_name(name).is_err(), "{name}");
        }
        assert!(header_name("X-Shard").is_ok());
        assert!(header_name("accept").is_ok());
    }

    #[test]
    fn headers_of_upgrade_are_refused() {
        for name in [
            "Connection",
            "Upgrade",
            "Sec-WebSocket-Accept",
            "Sec-WebSocket-Extensions",
            "Sec-WebSocket-Protocol",
        ] {
            assert!(header_name(name).is_err(), "{name}");
            assert!(response_header_name(name).is_err(), "{name}");
        }
        assert!(response_header_name("X-Stream-Protocol-Version").is_err());
        assert!(header_name("X-Stream-Protocol-Version").is_ok(), "a client offers it");
        assert!(response_header_name("X-Shard").is_ok());
    }

    #[test]
    fn header_value_can_not_start_new_line() {
        let name = HeaderName::from_static("x-shard");
        assert!(header_value(&name, "a\r\nhost: evil").is_err());
        assert!(header_value(&name, "a").is_ok());
    }

    #[test]
    fn object_names_that_change_path_are_refused() {
        for name in ["", ".", "..", "a/b", "a%2fb", "a\nb", &"x".repeat(254)] {
            assert!(object_name(name.to_owned()).is_err(), "{name:?}");
        }
        assert!(object_name("operator---shard-0".into()).is_ok());
        assert!(object_name("system:node:a".into()).is_ok());
    }

    #[test]
    fn selectors_are_narrowed_and_never_set() {
        for name in RESERVED_PARAMETERS {
            assert!(query_name(name.into()).is_err(), "{name}");
        }
        assert!(query_name(String::new()).is_err());
        assert!(query_name("limit".into()).is_ok());
        assert!(checked_selector("  ".into()).is_err());
    }

    #[test]
    fn dropped_fields_have_paths_of_contract() {
        let checked = |paths: &[&str]| dropped_fields(paths.iter().map(|&path| path.to_owned()).collect());
        assert!(checked(&["metadata.managedFields", "spec.template"]).is_ok());
        for paths in [
            &[""][..],
            &[],
            &["spec", "metadata.name"],
            &["kind"],
            &["a."],
            &["a"; 17],
        ] {
            let found = checked(paths).unwrap_err();
            assert!(found.starts_with("drop-fields"), "{paths:?}: {found}");
        }
    }

    #[test]
    fn contract_bounds_dropped_paths_of_verdict() {
        assert!(dropped_path_count(64).is_ok());
        let found = dropped_path_count(65).unwrap_err();
        assert_eq!(found, "65 paths of dropped fields in a verdict, at most 64 are allowed");
    }

    #[test]
    fn each_object_has_one_flag() {
        assert!(flag_count(0, 0).is_ok() && flag_count(3, 3).is_ok());
        for flags in [0, 2, 4] {
            let found = flag_count(flags, 3).unwrap_err();
            assert_eq!(found, format!("{flags} flags for 3 objects: each object needs one"));
        }
    }

    #[test]
    fn asked_annotations_have_bounds_of_contract() {
        let keys = |from: usize, to: usize| (from..to).map(|key| format!("example.com/{key}")).collect();
        let question = |keys| object_question(keys).unwrap();
        let count = |questions: &[ObjectQuestion]| asked_annotation_count(questions.iter());
        assert!(count(&[]).is_ok());
        assert!(
            count(&[question(keys(0, 16)), question(keys(0, 16))]).is_ok(),
            "each key once"
        );
        let found = count(&[question(keys(0, 9)), question(keys(9, 17))]).unwrap_err();
        assert_eq!(found, "17 annotations that a verdict asks for, at most 16 are allowed");
        assert!(object_question(vec!["k".repeat(317)]).is_ok());
        for key in [String::new(), "k".repeat(318)] {
            let found = object_question(vec!["a".to_owned(), key]).unwrap_err();
            assert!(found.starts_with("ask-about-objects: "), "{found}");
        }
    }

    #[test]
    fn contract_names_reserved_query_parameters() {
        let contract = include_str!("../../../wit/types.wit");
        let (before, _) = contract.split_once("set-query(").unwrap();
        let (_, rule) = before.rsplit_once("Not `").unwrap();
        let named: Vec<&str> = rule.split("///\n").next().unwrap().split('`').step_by(2).collect();
        assert_eq!(named, RESERVED_PARAMETERS);
    }

    #[test]
    fn delays_are_cut_to_minute() {
        assert_eq!(bounded_delay(59_999), Duration::from_millis(59_999));
        assert_eq!(bounded_delay(u32::MAX), Duration::from_secs(60));
        assert_eq!(body_delay(u32::MAX), Duration::from_secs(3600));
    }

    #[test]
    fn text_is_bounded_over_whole_verdict() {
        let mut text = TextLimit::default();
        assert!(text.take("x".repeat(MAX_TEXT_BYTES - 1)).is_ok());
        assert!(text.take(String::new()).is_err());
    }

    #[test]
    fn refusal_has_http_error_status() {
        let with = |code: u16, reason: &str| {
            let refused = Refusal {
                code,
                reason: reason.into(),
                message: String::new(),
                retry_after_seconds: None,
                cause: None,
                details: None,
            };
            checked_refusal(refused, &mut TextLimit::default()).is_ok()
        };
        assert_eq!(
            [with(399, ""), with(400, ""), with(599, "Timeout"), with(600, "")],
            [false, true, true, false]
        );
        assert!(!with(429, "Too Many"));
    }

    #[test]
    fn outcome_rules_have_tallies_of_their_own() {
        let rule = |tally: &str| OutcomeRule {
            tally: tally.into(),
            cells: Vec::new(),
            counting: crate::plugin::tally::CountingRule::default(),
        };
        assert!(distinct_tallies(&[rule("a"), rule("b")]).is_ok());
        assert!(distinct_tallies(&[rule("a"), rule("b"), rule("a")]).is_err());
        assert!(outcome_rule_count(24).is_ok() && outcome_rule_count(25).is_err());
    }

    #[test]
    fn body_shape_must_end() {
        let shape = BodyShape {
            pace: None,
            hold: None,
            cut_after: None,
            end_after: None,
            expired: false,
            reset: crate::plugin::verdict::Reset::Cancel,
        };
        assert!(body_shape(shape.clone()).is_ok());
        assert!(
            body_shape(BodyShape {
                pace: Some(0),
                ..shape.clone()
            })
            .is_err()
        );
        assert!(body_shape(BodyShape { expired: true, ..shape }).is_err());
    }
}
