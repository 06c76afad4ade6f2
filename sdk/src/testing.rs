//! For native unit tests of a plugin: a fake host whose clock is moved by hand, requests and responses from a builder, a
//! matcher that tells whether a subscription would wake the plugin, and an audit of verdicts that it marks as reusable.
//!
//! ```
//! use ctrlmesh_sdk::testing::{self, TestRequest};
//! use ctrlmesh_sdk::{Host, InstanceInfo, MatchRule, Phases, Plugin, Request, RequestVerdict, Subscription, settings};
//!
//! struct Quiet;
//!
//! impl Plugin for Quiet {
//!     type Settings = settings::NoSettings;
//!     fn configure(_: Self::Settings, _: &InstanceInfo, _: &dyn Host) -> Result<(Self, Subscription), String> {
//!         Ok((Quiet, Subscription::new(Phases::ON_REQUEST, [MatchRule::api().resources(["pods"])])))
//!     }
//!     fn on_request(&mut self, _: &dyn Request, host: &dyn Host) -> RequestVerdict {
//!         host.count("seen", "", 1);
//!         RequestVerdict::proceed()
//!     }
//! }
//!
//! let mut bench = testing::Bench::<Quiet>::new("{}").expect("settings are right");
//! let pods = TestRequest::list("", "pods").namespace("team-a");
//! assert!(bench.wakes(&pods));
//! assert_eq!(bench.on_request(&pods), RequestVerdict::proceed());
//! assert_eq!(bench.host.counter("seen", ""), 1);
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `outcomes` | the host's part in outcome rules |
//! | `objects` | the host's part in `on-objects` |
//! | `bench` | a configured plugin on a fake host |
//! | `matcher` | whether a subscription would wake the plugin for a request |
//! | `audit` | audits verdicts that a plugin marks as reusable |
//! | `request` | requests and responses |
//! | `host` | the fake host |
//! | `state` | the state that a host keeps for an entry |
//! | `kept_verdict` | what a host keeps of a verdict until its request is over |
//! | `trace` | the reads and effects of one call |
//! | `tally` | counts of outcomes, and the thresholds that they cross |

mod audit;
mod bench;
mod host;
mod kept_verdict;
mod matcher;
mod objects;
mod outcomes;
mod request;
mod state;
mod tally;
mod trace;

pub use bench::{Bench, test_instance_info};
pub use host::FakeHost;
pub use request::{TestRequest, TestResponse};
