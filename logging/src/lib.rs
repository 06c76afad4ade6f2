//! What the logs of all programs share. Pure: the caller passes the time and the environment.
//!
//! | module | holds |
//! |---|---|
//! | [`warning_rate`] | a limit for warnings that clients can cause many times a second |
//! | [`repeated_error`] | logs an error of a periodic check once |
//! | [`colour`] | whether output is coloured |

pub mod colour;
pub mod repeated_error;
pub mod warning_rate;

pub use repeated_error::RepeatedError;
pub use warning_rate::WarningRate;
