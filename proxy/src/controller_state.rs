//! State of the controller that is remembered from one request to the next. Shared by all worker threads.
//!
//! | file | what is in it |
//! |---|---|
//! | `list_views` | the view that each client listed under, so that no watch resumes under another one |
//! | `leadership` | the pod that leads, observed from the controller's own requests |
//! | `leader_locks` | the objects that are locks of a leader election |

pub(crate) mod leader_locks;
pub(crate) mod leadership;
pub(crate) mod list_views;
