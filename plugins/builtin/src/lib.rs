//! The bytes of the plugins that come with ctrlmesh: WebAssembly components, built by this package's build script from the
//! sources of the same commit. They get nothing that a user's plugin could not have.

include!(concat!(env!("OUT_DIR"), "/components.rs"));

#[cfg(feature = "guests")]
mod compile_bomb;

/// A plugin that comes with ctrlmesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Name under which a configuration refers to it.
    pub name: &'static str,
    /// The component.
    pub bytes: &'static [u8],
}

/// All plugins that come with ctrlmesh, by name.
#[must_use]
pub fn builtin() -> &'static [Builtin] {
    static BUILTIN: [Builtin; 4] = [
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
    ];
    &BUILTIN
}

/// Guests that misbehave or exercise one part of the contract each; for tests of the host. Sources: `tests/guests`.
#[cfg(feature = "guests")]
pub mod guests {
    /// The component of a guest by the name of its source file.
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
        super::compile_bomb::component()
    }

    /// The names of all guests, sorted.
    pub fn names() -> impl Iterator<Item = &'static str> {
        super::GUESTS.iter().map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Magic number, then version 13 and layer 1: a component and not a core module (component-model, Binary.md).
    const COMPONENT: [u8; 8] = [0, b'a', b's', b'm', 0x0d, 0, 1, 0];

    #[test]
    fn every_builtin_is_a_component_that_fits_its_config_map() {
        for plugin in builtin() {
            assert_eq!(plugin.bytes.get(..8), Some(&COMPONENT[..]), "{}", plugin.name);
            // A ConfigMap holds 1 MiB. Each must fit one of its own even unpacked; packed, as a manager ships them, they are
            // less than half as large.
            assert!(
                plugin.bytes.len() < 640 * 1024,
                "{} has {} bytes",
                plugin.name,
                plugin.bytes.len()
            );
        }
    }

    #[test]
    fn components_do_not_tell_where_they_were_built() {
        let home = env!("CARGO_MANIFEST_DIR").as_bytes();
        for bytes in [
            CIRCUIT_BREAKER,
            FAULT_INJECT,
            RATE_LIMIT,
            SHARD_SELECTOR,
            samples::HELLO,
        ] {
            let contains = |text: &[u8]| bytes.windows(text.len()).any(|window| window == text);
            assert!(!contains(home) && !contains(b"/.cargo/registry/"));
        }
    }

    #[test]
    fn next_shard_selector_is_another_component() {
        assert_ne!(samples::SHARD_SELECTOR_NEXT, SHARD_SELECTOR);
    }

    #[cfg(feature = "guests")]
    #[test]
    fn every_guest_is_a_component_and_is_described() {
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
