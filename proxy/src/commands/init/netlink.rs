//! The way to the kernel: a batch is sent, every message of it is answered.

use std::io::{self, Read as _};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::message::{Message, outcomes};

/// `AF_NETLINK`, `NETLINK_NETFILTER`; the socket has neither of them by name.
const NETLINK: i32 = 16;
const NETFILTER: i32 = 12;

/// The kernel answers while the message is sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer quotes what it is about, a few hundred bytes; what is longer is cut off.
const ANSWER: usize = 16 << 10;

/// Has the kernel take the messages as a whole.
///
/// # Errors
/// The first mistake that it finds, as the system names it. Nothing has changed then.
pub(super) fn commit(messages: &[Message]) -> io::Result<()> {
    let socket = Socket::new(Domain::from(NETLINK), Type::DGRAM, Some(Protocol::from(NETFILTER)))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let batch: Vec<u8> = (1..)
        .zip(messages)
        .flat_map(|(sequence, it)| it.encode(sequence))
        .collect();
    socket.send(&batch)?;
    let mut missing = messages.iter().filter(|it| it.is_answered()).count();
    let mut answer = vec![0; ANSWER];
    while missing > 0 {
        let length = (&socket).read(&mut answer)?;
        for outcome in outcomes(answer.get(..length).unwrap_or_default()) {
            if outcome.error != 0 {
                return Err(io::Error::from_raw_os_error(outcome.error));
            }
            missing = missing.saturating_sub(1);
        }
    }
    Ok(())
}
