//! Repeatable random choices: each depends on the seed, the rule, the object, the verb, and how often that object has met the rule, but
//! never on a stream that threads share. Pure.

use ctrlmesh_sdk::{Request, Traffic, Verb};

/// The alphabet of generated names (k8s.io/apimachinery `pkg/util/rand/rand.go`): no vowels, no digits that look like one.
const GENERATED: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of the suffix that the API server appends to `generateName` (k8s.io/apiserver `pkg/storage/names/generate.go`).
const SUFFIX: usize = 5;
/// Length of a pod template's hash: an FNV-32 in that alphabet (k8s.io/kubernetes `pkg/controller/controller_utils.go`).
const TEMPLATE_HASH: std::ops::RangeInclusive<usize> = 8..=10;

/// The subject of a choice, without the number of the occurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// The object: group, resource, namespace and name; host and path for external calls.
    pub(crate) object: String,
    /// Kubernetes verb, or HTTP method.
    pub(crate) verb: String,
}

impl Subject {
    /// Object and verb of a request. A generated suffix of the name is left out, because it differs in each run.
    pub(crate) fn from_request(req: &dyn Request) -> Self {
        let facts = req.facts();
        if facts.traffic == Traffic::External || facts.verb == Verb::NonResource {
            return Self {
                object: format!("{}{}", req.host(), req.path()),
                verb: req.method(),
            };
        }
        let name = without_generated_suffix(&facts.name);
        Self {
            object: format!(
                "{}/{}/{}/{}/{name}",
                facts.group, facts.resource, facts.subresource, facts.namespace
            ),
            verb: verb_name(facts.verb).to_owned(),
        }
    }

    /// The key of the occurrence counter. It is short, because names may be long and the host's keys may not.
    pub(crate) fn counter_key(&self, rule: &str) -> String {
        let mut hash = Hash::new();
        hash.text(rule).text(&self.object).text(&self.verb);
        format!("o/{:016x}", hash.finish())
    }
}

pub(crate) fn verb_name(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "get",
        Verb::List => "list",
        Verb::Watch => "watch",
        Verb::Create => "create",
        Verb::Update => "update",
        Verb::Patch => "patch",
        Verb::Delete => "delete",
        Verb::Deletecollection => "deletecollection",
        Verb::Proxy => "proxy",
        Verb::NonResource => "nonresource",
    }
}

/// Removes a generated suffix: `web-7d4b9c5f6d-x2b4c` becomes `web`, which is the same in every run.
fn without_generated_suffix(name: &str) -> &str {
    let Some(base) = strip_suffix_of_length(name, |length| length == SUFFIX) else {
        return name;
    };
    strip_suffix_of_length(base, |length| TEMPLATE_HASH.contains(&length)).unwrap_or(base)
}

fn strip_suffix_of_length(name: &str, is_length: impl Fn(usize) -> bool) -> Option<&str> {
    let (base, suffix) = name.rsplit_once('-')?;
    let is_generated = is_length(suffix.len()) && suffix.bytes().all(|byte| GENERATED.contains(&byte));
    (is_generated && !base.is_empty()).then_some(base)
}

/// All choices of one rule for one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw(u64);

impl Draw {
    /// `occurrence` is the number of the request among those of this subject.
    pub(crate) fn new(seed: u64, rule: &str, subject: &Subject, occurrence: i64) -> Self {
        let mut hash = Hash::new();
        hash.hash_number(seed)
            .text(rule)
            .text(&subject.object)
            .text(&subject.verb);
        hash.hash_number(occurrence.unsigned_abs());
        Self(hash.finish())
    }

    /// A number in [0, 1), different for each purpose.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit the fraction of an f64 exactly")]
    pub(crate) fn unit_number(self, purpose: &str) -> f64 {
        let mut hash = Hash::new();
        hash.hash_number(self.0).text(purpose);
        (hash.finish() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something happens that has this probability in percent.
    pub(crate) fn is_hit(self, purpose: &str, percent: f64) -> bool {
        self.unit_number(purpose) * 100.0 < percent
    }
}

/// FNV-1a with the finalizer of SplitMix64, so that all bits are equally good. Lengths are hashed with texts, so that `ab`, `c` and
/// `a`, `bc` differ. Not for secrets.
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn hash_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.hash_number(text.len() as u64).hash_bytes(text.as_bytes())
    }

    fn hash_number(&mut self, number: u64) -> &mut Self {
        self.hash_bytes(&number.to_le_bytes())
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// 16 bits that identify a rule.
pub(crate) fn rule_mark(rule: &str) -> u16 {
    let mut hash = Hash::new();
    hash.text(rule);
    u16::try_from(hash.finish() >> 48).unwrap_or(u16::MAX)
}
