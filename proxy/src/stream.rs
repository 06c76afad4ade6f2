//! Bodies in transit through the sidecar.
//!
//! | file | what is in it |
//! |---|---|
//! | `renaming` | bodies whose object has another name at the API server |
//! | `held_page` | a page of a list whose bytes wait until an object of it is kept |
//! | `kept_objects` | a list or watch without the objects that plugins leave out |
//! | `inflate` | a body without its compression |
//! | `body` | bodies of requests and responses: streamed, counted, or read whole for an edit |
//! | `shape` | a body that is delayed, slowed down, cut or ended for a plugin |
//! | `watch` | an open watch, ended when a new chain would change its view |

pub(crate) mod body;
pub(crate) mod held_page;
pub(crate) mod inflate;
pub(crate) mod kept_objects;
pub(crate) mod renaming;
pub(crate) mod shape;
pub(crate) mod watch;
