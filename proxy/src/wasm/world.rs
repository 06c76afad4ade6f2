//! Checks which world a component was built for. The contract has the rules, so that the manager, which does not compile, reaches the same
//! result before it distributes a plugin.

pub(crate) use ctrlmesh_contract::world::Version;
use ctrlmesh_contract::world::{self, Problem};

use super::error::Error;

/// Returns the interface version of a component. Refuses components that are not plugins or import more than plugins get.
pub(crate) fn checked_version(imports: &[&str], exports: &[&str], digest: &str) -> Result<Version, Error> {
    let digest = digest.to_owned();
    world::check_component(imports, exports).map_err(|problem| match problem {
        Problem::World(missing) => Error::WrongWorld { digest, missing },
        Problem::Version(version) => Error::Version { digest, version },
        Problem::Import(import) => Error::Import { digest, import },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORTS: [&str; 6] = [
        "configure",
        "on-request",
        "on-response",
        "on-objects",
        "on-complete",
        "on-crossed",
    ];

    #[test]
    fn world_problems_have_messages() {
        let result_of = |imports: &[&str], exports: &[&str]| {
            checked_version(imports, exports, "sha256:00")
                .map_or_else(|error| error.to_string(), |version| format!("{version:?}"))
        };
        assert_eq!(result_of(&["ctrlmesh:plugin/types@0.1.0"], &EXPORTS), "V0_1");
        assert_eq!(result_of(&["ctrlmesh:plugin/types@0.2.0"], &EXPORTS), "V0_2");
        let text = result_of(&["ctrlmesh:plugin/types@0.3.0"], &EXPORTS);
        assert!(text.contains("ctrlmesh:plugin@0.3.0, this sidecar supports"), "{text}");
        let text = result_of(&["ctrlmesh:plugin/types@0.1.0", "wasi:sockets/tcp@0.2.6"], &EXPORTS);
        assert!(
            text.contains("imports wasi:sockets/tcp@0.2.6, which a plugin is not given"),
            "{text}"
        );
        let text = result_of(&["ctrlmesh:plugin/types@0.1.0"], &[]);
        assert!(text.contains("does not export `configure`"), "{text}");
    }
}
