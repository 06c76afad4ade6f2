//! Errors of a chain document, its signature or a name, with messages that say what to do.
//!
//! Leaves to the sidecar what is wrong with files and plugins.

use std::fmt;

/// Maximum of mistakes in a message, so that an invalid document does not make a message of megabytes.
pub const MAX_MISTAKES: usize = 32;

/// Maximum of quoted characters of an input.
const MAX_QUOTED: usize = 80;

/// Why a part of the contract was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The document is larger than a ConfigMap can be.
    #[error(
        "the chain document has {bytes} bytes, at most {limit} are allowed; split the namespace or shorten settings"
    )]
    TooLarge {
        /// Size of the document, in bytes.
        bytes: usize,
        /// Largest allowed size, in bytes.
        limit: usize,
    },
    /// The document is empty.
    #[error("the chain document is empty; write apiVersion, namespace, generation and entries (which may be [])")]
    Empty,
    /// The document is not UTF-8.
    #[error("the chain document is not UTF-8 text; write YAML or JSON")]
    NotText,
    /// The document can't be read as YAML or JSON, or uses what we refuse (aliases, duplicate keys).
    #[error("the chain document is not valid {format}: {problem}")]
    Syntax {
        /// `YAML` or `JSON`.
        format: &'static str,
        /// The parser's message with its position.
        problem: String,
    },
    /// The file has more than one YAML document, not counting empty ones.
    #[error("the file has {count} documents; write one")]
    SeveralDocuments {
        /// The number of documents that are not empty.
        count: usize,
    },
    /// The document is well-formed but invalid.
    #[error("the chain document has {mistakes}")]
    Mistakes {
        /// The mistakes that were found.
        mistakes: Mistakes,
    },
    /// The text is not a digest.
    #[error("{text} is not a digest; write sha256: and 64 lower-case hexadecimal digits")]
    Digest {
        /// The refused text, in quotes.
        text: String,
    },
    /// The text is not a public key.
    #[error(
        "this is not a public key for chains: {problem}; write ed25519: and 44 base64 characters, as part `public` of the Secret ctrlmesh-chain-key is"
    )]
    PublicKey {
        /// The mistake in the key.
        problem: &'static str,
    },
    /// The bytes are not a private key.
    #[error("this is not an ed25519 private key in PKCS #8; generate a new one")]
    PrivateKey,
    /// The key generator failed.
    #[error("the system's random numbers are not available, so no key can be made")]
    Random,
    /// A public key is set, but the document has no signature.
    #[error(
        "a public key is set, but the chain is not signed; let the manager write it, or remove the key from the pod"
    )]
    NotSigned,
    /// The signature is malformed.
    #[error("the chain's signature is malformed: {problem}; it must be the base64 of 64 bytes")]
    SignatureForm {
        /// The mistake in the signature.
        problem: &'static str,
    },
    /// The signature is of another document or by another key.
    #[error(
        "the chain's signature does not fit the document and the configured public key; the document was changed after \
         signing, or was signed with another key"
    )]
    SignatureMismatch,
}

impl Error {
    pub(crate) fn digest(text: &str) -> Self {
        Self::Digest { text: quote(text) }
    }
}

/// A mistake in a document: the field, and the correction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Path of the field, as in `entries[2].timeoutMs`.
    pub path: String,
    /// The mistake, and the content to write instead.
    pub problem: String,
}

/// Mistakes in the order in which they were found. Bounded by [`MAX_MISTAKES`]; what is beyond is counted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mistakes {
    list: Vec<Mistake>,
    untold: usize,
}

impl Mistakes {
    /// Adds a mistake. Those beyond [`MAX_MISTAKES`] are only counted.
    pub fn add(&mut self, path: impl Into<String>, problem: impl Into<String>) {
        if self.list.len() < MAX_MISTAKES {
            self.list.push(Mistake {
                path: path.into(),
                problem: problem.into(),
            });
        } else {
            self.untold += 1;
        }
    }

    /// The mistakes that are listed one by one.
    #[must_use]
    pub fn list(&self) -> &[Mistake] {
        &self.list
    }

    /// The number of further mistakes.
    #[must_use]
    pub const fn omitted_count(&self) -> usize {
        self.untold
    }

    /// Fails if there is any mistake.
    ///
    /// # Errors
    /// [`Error::Mistakes`] with all of them.
    pub fn into_result(self) -> Result<(), Error> {
        if self.list.is_empty() {
            Ok(())
        } else {
            Err(Error::Mistakes { mistakes: self })
        }
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.list.len() + self.untold {
            1 => write!(f, "a mistake")?,
            n => write!(f, "{n} mistakes")?,
        }
        for (at, Mistake { path, problem }) in self.list.iter().enumerate() {
            write!(f, "{} {path}: {problem}", if at == 0 { ":" } else { ";" })?;
        }
        if self.untold > 0 {
            write!(f, "; and {} more", self.untold)?;
        }
        Ok(())
    }
}

/// The path of a field of a mapping; an empty path is that of the document.
#[must_use]
pub fn field_path(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Quotes an input for a message: escaped, and cut if it is long.
#[must_use]
pub fn quote(text: &str) -> String {
    match text.char_indices().nth(MAX_QUOTED) {
        Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_listed_up_to_the_bound() {
        let mut mistakes = Mistakes::default();
        for n in 0..MAX_MISTAKES + 5 {
            mistakes.add(format!("entries[{n}]"), "is wrong");
        }
        let text = mistakes.clone().into_result().unwrap_err().to_string();
        assert!(
            text.starts_with("the chain document has 37 mistakes: entries[0]: is wrong; entries[1]"),
            "{text}"
        );
        assert!(text.ends_with("and 5 more"), "{text}");
        assert_eq!((mistakes.list().len(), mistakes.omitted_count()), (MAX_MISTAKES, 5));
    }

    #[test]
    fn field_path_of_the_document_is_the_name() {
        assert_eq!(field_path("", "entries"), "entries");
        assert_eq!(field_path("spec", "limits"), "spec.limits");
    }

    #[test]
    fn long_input_is_cut_between_characters() {
        let quoted = quote(&"ü".repeat(1000));
        assert_eq!(quoted.chars().count(), MAX_QUOTED + 3);
        assert_eq!(quote("a\nb"), r#""a\nb""#);
    }
}
