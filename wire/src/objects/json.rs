//! Leaves objects out of lists, tables and watches in JSON.
//!
//! | module | holds |
//! |---|---|
//! | `watch` | watches of objects and of tables |
//! | `list` | lists and tables |
//! | `dropped` | the members that are left out of kept objects |
//! | `item` | the metadata of one object |
//! | `scanner` | finds the end of a value in chunks of any size, and notes where members of objects are |
//! | `text` | keys and texts with their quotes and escapes |

mod dropped;
mod item;
mod list;
mod scanner;
mod text;
mod watch;

pub use list::JsonListFilter;
pub use watch::JsonWatchFilter;

use super::FilterError;

fn malformed(problem: &'static str, position: usize) -> FilterError {
    FilterError::Malformed {
        format: "JSON",
        problem,
        position,
    }
}
