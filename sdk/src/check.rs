//! Validates settings with a plugin outside of a sidecar, so that the manager can refuse them before it distributes a chain.
//!
//! Leaves to the sidecar what depends on its state. Native tests of behaviour have `testing`.

use std::cell::RefCell;

use crate::{
    Admission, Ask, Cell, Claim, Counted, Grant, Host, InstanceInfo, Level, Part, Place, Plugin, StateError, settings,
};

/// Configures the plugin once on a host that keeps nothing. Returns its warnings.
///
/// # Errors
///
/// The text with which a sidecar would refuse the chain: the field, and what to write instead.
pub fn check<P: Plugin>(settings: &str, about: &InstanceInfo) -> Result<Vec<String>, String> {
    let host = Nowhere::default();
    let settings = settings::parse::<P::Settings>(settings)?;
    P::configure(settings, about, &host)?;
    Ok(host.warnings.into_inner())
}

/// A host without time, state or metrics.
#[derive(Default)]
struct Nowhere {
    warnings: RefCell<Vec<String>>,
}

impl Host for Nowhere {
    fn unix_ms(&self) -> u64 {
        0
    }

    fn monotonic_ns(&self) -> u64 {
        0
    }

    fn random(&self) -> u64 {
        0
    }

    fn log(&self, level: Level, message: &str) {
        if level == Level::Warn {
            self.warnings.borrow_mut().push(message.to_owned());
        }
    }

    fn count(&self, _: &str, _: &str, _: u64) {}

    fn count_all(&self, _: &[Counted]) {}

    fn gauge(&self, _: &str, _: &str, _: f64) {}

    fn take(&self, _: &[Claim]) -> Result<Grant, StateError> {
        Err(StateError::TooManyKeys)
    }

    fn admit(&self, _: &[Ask], _: &[Place]) -> Result<Admission, StateError> {
        Err(StateError::TooManyKeys)
    }

    fn put_report(&self, _: &str, _: &str) {}

    fn remove_report(&self, _: &str) {}

    fn show_counters(&self, _: &str, _: &[(String, String)]) {}

    fn name_rule(&self, _: &str, _: Part) {}

    fn add(&self, _: &str, _: i64, _: Option<i64>) -> Result<Option<i64>, StateError> {
        Err(StateError::TooManyKeys)
    }

    fn increment(&self, _: &str, _: u64) {}

    fn window_add(&self, _: &str, _: u32, _: u32, _: u64) -> Result<u64, StateError> {
        Err(StateError::TooManyKeys)
    }

    fn get(&self, _: &str) -> Result<Option<Cell>, StateError> {
        Ok(None)
    }

    fn get_all(&self, keys: &[String]) -> Result<Vec<Option<Cell>>, StateError> {
        Ok(vec![None; keys.len()])
    }

    fn compare_and_swap(&self, _: &str, _: u64, _: &[u8]) -> Result<Option<u64>, StateError> {
        Err(StateError::TooManyKeys)
    }

    fn remove(&self, _: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Phases, Subscription};

    struct Strict;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Settings {
        percent: u8,
    }

    impl Plugin for Strict {
        type Settings = Settings;

        fn configure(settings: Settings, _: &InstanceInfo, host: &dyn Host) -> Result<(Self, Subscription), String> {
            if settings.percent == 0 {
                host.warn("0 does nothing");
            }
            host.info("not worth telling");
            if settings.percent > 100 {
                return Err("percent: write 0 to 100".to_owned());
            }
            Ok((Self, Subscription::new(Phases::ON_REQUEST, Vec::new())))
        }
    }

    #[test]
    fn settings_are_validated_like_in_a_sidecar() {
        let judged = |settings| check::<Strict>(settings, &crate::testing::test_instance_info());
        assert_eq!(judged(r#"{"percent": 1}"#), Ok(vec![]));
        assert_eq!(judged(r#"{"percent": 0}"#), Ok(vec!["0 does nothing".to_owned()]));
        assert_eq!(judged(r#"{"percent": 200}"#), Err("percent: write 0 to 100".to_owned()));
        assert_eq!(
            judged(r#"{"percentage": 1}"#),
            Err("percentage: unknown field `percentage`, expected `percent`".to_owned())
        );
    }
}
