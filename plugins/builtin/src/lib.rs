//! The plugins that ship with ctrlmesh, as WebAssembly components that the build script makes from the sources of the same commit. They
//! have no privileges over a user's plugin.

include!(concat!(env!("OUT_DIR"), "/components.rs"));

#[cfg(feature = "guests")]
mod compile_bomb;

/// A plugin that ships with ctrlmesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Name in a configuration.
    pub name: &'static str,
    /// The bytes of the component.
    pub bytes: &'static [u8],
}

/// All plugins that ship with ctrlmesh, by name.
#[must_use]
pub fn builtin() -> &'static [Builtin] {
    static BUILTIN: [Builtin; 5] = [
        Builtin {
            name: "circuit-breaker",
            bytes: CIRCUIT_BREAKER,
        },
        Builtin {
            name: "fault-inject",
            bytes: FAULT_INJECT,
        },
        Builtin {
            name: "rate-limit",
            bytes: RATE_LIMIT,
        },
        Builtin {
            name: "shard-selector",
            bytes: SHARD_SELECTOR,
        },
        Builtin {
            name: "trim-objects",
            bytes: TRIM_OBJECTS,
        },
    ];
    &BUILTIN
}

/// Guests for tests of the host: each misbehaves or uses one part of the contract. Sources: `tests/guests`.
#[cfg(feature = "guests")]
pub mod guests {
    /// The component of a guest, by the name of its source file.
    #[must_use]
    pub fn get(name: &str) -> Option<&'static [u8]> {
        super::GUESTS
            .iter()
            .find(|(guest, _)| *guest == name)
            .map(|(_, bytes)| *bytes)
    }

    /// A small component that takes hundreds of megabytes to compile.
    #[must_use]
    pub fn compile_bomb() -> Vec<u8> {
        super::compile_bomb::build_component()
    }

    /// The names of all guests, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        super::GUESTS.iter().map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic number, version 13 and layer 1: a component, not a core module (component-model, Binary.md).
    const COMPONENT: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];

    #[test]
    fn builtins_are_components_that_fit_a_config_map() {
        for plugin in builtin() {
            assert_eq!(plugin.bytes.get(..8), Some(&COMPONENT[..]), "{}", plugin.name);
            // A ConfigMap holds 1 MiB. Each component must fit one even uncompressed; compressed, as a manager ships them, they have less than half
            // of that size.
            assert!(
                plugin.bytes.len() < 640 * 1024,
                "{} has {} bytes",
                plugin.name,
                plugin.bytes.len()
            );
        }
    }

    #[test]
    fn components_contain_no_build_paths() {
        let home = env!("CARGO_MANIFEST_DIR").as_bytes();
        for bytes in [
            CIRCUIT_BREAKER,
            FAULT_INJECT,
            RATE_LIMIT,
            SHARD_SELECTOR,
            TRIM_OBJECTS,
            samples::HELLO,
        ] {
            let contains = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
            assert!(!contains(home) && !contains(b"/.cargo/registry/"));
        }
    }

    #[test]
    fn next_shard_selector_has_other_bytes() {
        assert_ne!(samples::SHARD_SELECTOR_NEXT, SHARD_SELECTOR);
    }

    #[cfg(feature = "guests")]
    #[test]
    fn guests_are_components_and_are_documented() {
        let readme = include_str!("../../../tests/guests/README.md");
        assert!(guests::names().count() >= 20);
        for name in guests::names() {
            let bytes = guests::get(name).unwrap();
            assert_eq!(bytes.get(..8), Some(&COMPONENT[..]), "{name}");
            assert!(
                readme.contains(&format!("| `{name}` |")),
                "tests/guests/README.md does not describe {name}"
            );
        }
    }
}
