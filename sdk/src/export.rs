//! From the component's exports to a [`Plugin`]: the slot that holds the configured value, and the export macro. Nothing
//! here decides.

use std::cell::RefCell;

use crate::bindings::ctrlmesh::plugin::exchange;
use crate::host::Imports;
use crate::request::{Live, LiveHead};
use crate::{
    Crossing, InstanceInfo, ObjectMetadata, Outcome, Plugin, RequestVerdict, ResponseVerdict, Subscription, settings,
};

/// Holds the plugin of one instance. Used by [`crate::export_plugin!`] alone.
pub struct Slot<P>(RefCell<Option<P>>);

impl<P: Plugin> Slot<P> {
    /// A slot before `configure`.
    #[must_use]
    pub const fn new() -> Self {
        Self(RefCell::new(None))
    }

    /// The export `configure`.
    ///
    /// # Errors
    ///
    /// The text of a setting that is wrong.
    pub fn configure(&self, text: &str, about: &InstanceInfo) -> Result<Subscription, String> {
        let (plugin, subscription) = P::configure(settings::parse(text)?, about, &Imports)?;
        self.0.replace(Some(plugin));
        Ok(subscription)
    }

    /// The export `on-request`.
    pub fn on_request(&self, req: &exchange::Request) -> RequestVerdict {
        self.with_plugin(|plugin| plugin.on_request(&Live::new(req), &Imports))
    }

    /// The export `on-response`.
    pub fn on_response(&self, req: &exchange::Request, res: &exchange::ResponseHead) -> ResponseVerdict {
        self.with_plugin(|plugin| plugin.on_response(&Live::new(req), &LiveHead(res), &Imports))
    }

    /// The export `on-objects`.
    pub fn on_objects(&self, req: &exchange::Request, objects: &[ObjectMetadata]) -> Vec<bool> {
        self.with_plugin(|plugin| plugin.on_objects(&Live::new(req), objects, &Imports))
    }

    /// The export `on-complete`.
    pub fn on_complete(&self, req: &exchange::Request, outcome: &Outcome) {
        self.with_plugin(|plugin| plugin.on_complete(&Live::new(req), outcome, &Imports));
    }

    /// The export `on-crossed`.
    pub fn on_crossed(&self, crossings: &[Crossing]) {
        self.with_plugin(|plugin| plugin.on_crossed(crossings, &Imports));
    }

    #[expect(
        clippy::expect_used,
        reason = "the contract calls configure first; a host that does not must meet a trap"
    )]
    fn with_plugin<R>(&self, call: impl FnOnce(&mut P) -> R) -> R {
        call(
            self.0
                .borrow_mut()
                .as_mut()
                .expect("configure was not called, or it failed"),
        )
    }
}

impl<P: Plugin> Default for Slot<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// Makes a [`Plugin`] type the component's exports. Once per plugin, at the top level of its crate.
///
/// Does nothing but check the type when compiled natively, so that plugins can be linked into tests.
#[macro_export]
macro_rules! export_plugin {
    ($plugin:ty) => {
        const _: () = {
            const fn is_plugin<P: $crate::Plugin>() {}
            is_plugin::<$plugin>();
        };

        #[cfg(target_family = "wasm")]
        const _: () = {
            ::std::thread_local! {
                static SLOT: $crate::Slot<$plugin> = const { $crate::Slot::new() };
            }

            struct Component;

            impl $crate::bindings::Guest for Component {
                fn configure(
                    settings: ::std::string::String,
                    about: $crate::InstanceInfo,
                ) -> ::std::result::Result<$crate::Subscription, ::std::string::String> {
                    SLOT.with(|slot| slot.configure(&settings, &about))
                }

                fn on_request(req: &$crate::bindings::Request) -> $crate::RequestVerdict {
                    SLOT.with(|slot| slot.on_request(req))
                }

                fn on_response(
                    req: &$crate::bindings::Request,
                    res: &$crate::bindings::ResponseHead,
                ) -> $crate::ResponseVerdict {
                    SLOT.with(|slot| slot.on_response(req, res))
                }

                fn on_objects(
                    req: &$crate::bindings::Request,
                    objects: ::std::vec::Vec<$crate::ObjectMetadata>,
                ) -> ::std::vec::Vec<bool> {
                    SLOT.with(|slot| slot.on_objects(req, &objects))
                }

                fn on_complete(req: &$crate::bindings::Request, outcome: $crate::Outcome) {
                    SLOT.with(|slot| slot.on_complete(req, &outcome));
                }

                fn on_crossed(crossings: ::std::vec::Vec<$crate::Crossing>) {
                    SLOT.with(|slot| slot.on_crossed(&crossings));
                }
            }

    $crate::bindings::export_component!(Component with_types_in $crate::bindings);
        };
    };
}
