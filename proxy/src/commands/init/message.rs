//! Netlink messages as bytes: headers and attributes (`include/uapi/linux/netlink.h`, `nfnetlink.h`). Their content is in `rules`.

/// Every message requests an acknowledgement, so that each error is seen.
pub(super) const REQUEST: u16 = 0x1;
pub(super) const ACKNOWLEDGE: u16 = 0x4;
pub(super) const CREATE: u16 = 0x400;
pub(super) const APPEND: u16 = 0x800;

const HEADER: usize = 16;
/// Type of a message that reports the result of another one.
const ERROR: u16 = 2;
/// Flag in an attribute's type: the attribute contains attributes.
const NESTED: u16 = 0x8000;
const ATTRIBUTE_HEADER: usize = 4;

/// A list of attributes, each at a multiple of four bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn with_bytes(mut self, kind: u16, content: &[u8]) -> Self {
        // No attribute here has more than a few hundred bytes.
        let length = u16::try_from(ATTRIBUTE_HEADER + content.len()).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(super) fn text(self, kind: u16, text: &str) -> Self {
        let mut content = text.as_bytes().to_vec();
        content.push(0);
        self.with_bytes(kind, &content)
    }

    /// nf_tables uses network byte order for numbers.
    pub(super) fn with_number(self, kind: u16, number: u32) -> Self {
        self.with_bytes(kind, &number.to_be_bytes())
    }

    pub(super) fn with_nested(self, kind: u16, content: &Self) -> Self {
        self.with_bytes(kind | NESTED, &content.0)
    }
}

/// A message to netfilter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) family: u8,
    /// Number of the subsystem; set only in the messages that begin and end a batch.
    pub(super) resource: u16,
    pub(super) attributes: Attributes,
}

impl Message {
    pub(super) fn encode(&self, sequence: u32) -> Vec<u8> {
        const NETFILTER_HEADER: usize = 4;
        let length = HEADER + NETFILTER_HEADER + self.attributes.0.len();
        let mut bytes = Vec::with_capacity(length);
        bytes.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        // The sender's port, which the kernel fills in.
        bytes.extend(0_u32.to_ne_bytes());
        bytes.extend([self.family, 0]);
        bytes.extend(self.resource.to_be_bytes());
        bytes.extend(&self.attributes.0);
        bytes
    }

    pub(super) const fn is_answered(&self) -> bool {
        self.flags & ACKNOWLEDGE != 0
    }
}

/// The result of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Sequence number of the message.
    pub(super) sequence: u32,
    /// Error number; 0 means success.
    pub(super) error: i32,
}

/// The results of messages in a datagram from the kernel; other content is skipped.
pub(super) fn read_outcomes(mut datagram: &[u8]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    while let Some((length, kind, sequence)) = parse_header(datagram) {
        let (message, rest) = datagram
            .split_at_checked(length.next_multiple_of(4))
            .unwrap_or((datagram, &[]));
        let error = message.get(HEADER..).and_then(|body| body.first_chunk().copied());
        if let Some(error) = error.filter(|_| kind == ERROR) {
            // The kernel sends negative error numbers, such as -EPERM.
            let error = i32::from_ne_bytes(error).saturating_neg();
            outcomes.push(Outcome { sequence, error });
        }
        datagram = rest;
    }
    outcomes
}

fn parse_header(bytes: &[u8]) -> Option<(usize, u16, u32)> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (kind, rest) = rest.split_first_chunk()?;
    let (_flags, rest) = rest.split_first_chunk::<2>()?;
    let sequence = rest.first_chunk()?;
    let length = usize::try_from(u32::from_ne_bytes(*length)).ok()?;
    // A length shorter than the header would make the loop read the same message forever.
    (length >= HEADER).then(|| (length, u16::from_ne_bytes(*kind), u32::from_ne_bytes(*sequence)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer_bytes(kind: u16, sequence: u32, error: i32, more: &[u8]) -> Vec<u8> {
        let length = u32::try_from(HEADER + 4 + more.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(error.to_ne_bytes());
        bytes.extend(more);
        bytes
    }

    #[test]
    fn datagram_yields_every_reply() {
        let mut datagram = answer_bytes(ERROR, 2, 0, &[7; 18]);
        // Padding to a multiple of four.
        datagram.extend([0; 2]);
        datagram.extend(answer_bytes(3, 9, -5, &[]));
        datagram.extend(answer_bytes(ERROR, 3, -1, &[]));
        let expected = [(2, 0), (3, 1)].map(|(sequence, error)| Outcome { sequence, error });
        assert_eq!(read_outcomes(&datagram), expected);
        // The kernel may truncate the message that it quotes.
        assert_eq!(
            read_outcomes(&answer_bytes(ERROR, 4, -2, &[7; 40])[..30]),
            [Outcome { sequence: 4, error: 2 }]
        );
    }

    proptest! {
        #[test]
        fn parser_of_outcomes_ends_on_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..80), length in 0_u32..40) {
            read_outcomes(&bytes);
            read_outcomes(&[&length.to_ne_bytes()[..], &bytes].concat());
        }
    }
}
