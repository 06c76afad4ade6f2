//! Rules for names in the Kubernetes API (apimachinery `pkg/api/validate/content`).

/// Longest name part of a label key, and longest label value, in bytes (`content.LabelValueMaxLength`).
const MAX_LABEL_NAME_BYTES: usize = 63;
/// Longest DNS subdomain, in bytes (`content.DNS1123SubdomainMaxLength`).
const MAX_SUBDOMAIN_BYTES: usize = 253;

/// Whether this is a label key: a name, or a DNS subdomain, a slash and a name (`content.IsLabelKey`).
#[must_use]
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key
        .split_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    // A second slash fails as a character of the name.
    prefix.is_none_or(is_dns_subdomain) && is_label_name(name)
}

/// Whether this is the value of a label: empty, or like the name part of a key (`content.IsLabelValue`).
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_label_name(value)
}

/// Whether this is a DNS subdomain in lower case, which is also the rule for the names of most objects
/// (`content.IsDNS1123Subdomain`; its labels have no bound of their own there).
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN_BYTES && text.split('.').all(is_dns_label)
}

/// Whether this is one label of a DNS name, without the bound of 63 bytes that `metadata.namespace` adds.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let is_alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(is_alphanumeric)
        && bytes.last().is_some_and(is_alphanumeric)
        && bytes.iter().all(|byte| is_alphanumeric(byte) || *byte == b'-')
}

fn is_label_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= MAX_LABEL_NAME_BYTES
        && is_alphanumeric(bytes.first())
        && is_alphanumeric(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dns_subdomain_is_judged_like_upstream() {
        for (text, expected) in [
            ("a", true),
            ("a-b.c1", true),
            ("a---b", true),
            ("", false),
            (".", false),
            ("a.", false),
            (".a", false),
            ("a..b", false),
            ("-a", false),
            ("a-", false),
            ("A", false),
            ("a_b", false),
            ("*", false),
        ] {
            assert_eq!(is_dns_subdomain(text), expected, "{text:?}");
        }
        assert!(is_dns_subdomain(&"a".repeat(253)) && !is_dns_subdomain(&"a".repeat(254)));
    }

    #[test]
    fn label_key_has_at_most_one_prefix() {
        for (key, expected) in [
            ("a", true),
            ("A_b.c", true),
            ("example.com/a", true),
            ("UPPER.io/a", false),
            ("/a", false),
            ("example.com/", false),
            ("a/b/c", false),
            ("", false),
        ] {
            assert_eq!(is_label_key(key), expected, "{key:?}");
        }
    }
}
