//! Reads the end of a certificate and the name of its subject from its DER. Nothing else is needed here, because rustls decides
//! whether a certificate is valid.

use std::time::SystemTime;

use k8s_openapi::jiff::civil::DateTime;
use k8s_openapi::jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8: u8 = 0x0c;
const PRINTABLE: u8 = 0x13;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// `2.5.4.3`.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// `[0] EXPLICIT`, the version of a certificate.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The second after which the certificate is no longer valid (RFC 5280, 4.1.2.5). `None`: not a certificate.
pub(crate) fn not_after(certificate: &[u8]) -> Option<SystemTime> {
    // After serial number, signature algorithm and issuer.
    let (validity, _) = read_sequence(fields_after(certificate, 3)?)?;
    let (_, _not_before, rest) = read_element(validity)?;
    let (tag, text, _) = read_element(rest)?;
    parse_time(tag, std::str::from_utf8(text).ok()?)
}

/// The last part of the subject's name. In our certificates it is the whole name.
pub(super) fn common_name(certificate: &[u8]) -> Option<String> {
    // After the validity, too.
    let (mut parts, _) = read_sequence(fields_after(certificate, 4)?)?;
    let mut last = None;
    while !parts.is_empty() {
        let (tag, part, rest) = read_element(parts)?;
        last = (tag == SET).then_some(part);
        parts = rest;
    }
    let (pair, _) = read_sequence(last?)?;
    let (_, _kind, value) = read_element(pair)?;
    let (tag, name, _) = read_element(value)?;
    (tag == UTF8).then(|| String::from_utf8(name.to_vec()).ok())?
}

/// The common name of the subject, at any position. `None`: it has none, or more than one.
pub(crate) fn subject_common_name(certificate: &[u8]) -> Option<String> {
    let (mut parts, _) = read_sequence(fields_after(certificate, 4)?)?;
    let mut names = Vec::new();
    while !parts.is_empty() {
        let (tag, mut pairs, rest) = read_element(parts)?;
        parts = rest;
        while tag == SET && !pairs.is_empty() {
            let (pair, others) = read_sequence(pairs)?;
            pairs = others;
            let (OBJECT_IDENTIFIER, COMMON_NAME, value) = read_element(pair)? else {
                continue;
            };
            let (tag, name, _) = read_element(value)?;
            if !matches!(tag, UTF8 | PRINTABLE) {
                return None;
            }
            names.push(std::str::from_utf8(name).ok()?.to_owned());
        }
    }
    <[String; 1]>::try_from(names).ok().map(|[name]| name)
}

/// The bytes after the first `count` fields of a certificate.
fn fields_after(certificate: &[u8], count: usize) -> Option<&[u8]> {
    let (certificate, _) = read_sequence(certificate)?;
    let (mut fields, _) = read_sequence(certificate)?;
    let (tag, _, after_version) = read_element(fields)?;
    if tag == VERSION {
        fields = after_version;
    }
    for _ in 0..count {
        (_, _, fields) = read_element(fields)?;
    }
    Some(fields)
}

fn parse_time(tag: u8, text: &str) -> Option<SystemTime> {
    let text = match tag {
        GENERALIZED_TIME => text.to_owned(),
        // Years have two digits: 50 is 1950.
        UTC_TIME if text.get(..2)?.parse::<u8>().ok()? >= 50 => format!("19{text}"),
        UTC_TIME => format!("20{text}"),
        _ => return None,
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp().into())
}

fn read_sequence(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (tag, content, rest) = read_element(der)?;
    (tag == SEQUENCE).then_some((content, rest))
}

/// Tag, content, and the remaining bytes.
fn read_element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => {
            let (&[length], rest) = rest.split_first_chunk::<1>()?;
            (usize::from(length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        // No certificate has more than 64 KiB.
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn certificate_ending(seconds: u64) -> (Vec<u8>, SystemTime) {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
        params.not_after = end.into();
        let key = rcgen::KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().der().to_vec(), end)
    }

    #[test]
    fn end_of_certificate_is_read_in_both_forms() {
        // 1999, 2026, 2049 (UTCTime) and 2050, 2100 (GeneralizedTime).
        for seconds in [946_684_799, 1_795_000_000, 2_524_607_999, 2_524_608_000, 4_102_444_800] {
            let (der, end) = certificate_ending(seconds);
            assert_eq!(not_after(&der), Some(end), "{seconds}");
        }
    }

    #[test]
    fn part_of_certificate_is_refused() {
        let (der, end) = certificate_ending(1_795_000_000);
        for length in 0..der.len() {
            assert_eq!(not_after(&der[..length]), None, "{length}");
            assert_eq!(common_name(&der[..length]), None, "{length}");
            assert_eq!(subject_common_name(&der[..length]), None, "{length}");
        }
        assert_eq!(not_after(&der), Some(end));
    }

    #[test]
    fn common_name_is_found_at_any_position() {
        use rcgen::DnType::{CommonName, OrganizationName};
        use rcgen::DnValue;
        let printable = || DnValue::PrintableString("api server".try_into().unwrap());
        let organization = || DnValue::from("system:masters");
        for (subject, expected) in [
            (vec![(CommonName, DnValue::from("api server"))], Some("api server")),
            // The form that Go writes for Kubernetes' certificates.
            (
                vec![(OrganizationName, organization()), (CommonName, printable())],
                Some("api server"),
            ),
            (
                vec![(CommonName, printable()), (OrganizationName, organization())],
                Some("api server"),
            ),
            (vec![(OrganizationName, organization())], None),
        ] {
            let mut params = rcgen::CertificateParams::default();
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, value) in subject {
                params.distinguished_name.push(kind, value);
            }
            let key = rcgen::KeyPair::generate().unwrap();
            let der = params.self_signed(&key).unwrap().der().to_vec();
            assert_eq!(subject_common_name(&der).as_deref(), expected);
        }
    }

    proptest! {
        #[test]
        fn random_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), tag in 0_u8..4) {
            let mut nested = vec![SEQUENCE, 64, SEQUENCE, 60, tag, 2];
            nested.extend(&bytes);
            not_after(&nested);
            not_after(&bytes);
            common_name(&nested);
            common_name(&bytes);
            subject_common_name(&nested);
            subject_common_name(&bytes);
        }
    }
}
