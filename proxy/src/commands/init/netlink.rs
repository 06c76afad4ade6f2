//! Sends a batch to the kernel, which acknowledges each of its messages.

use std::io::{self, Read as _};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::message::{Message, read_outcomes};

/// `AF_NETLINK`, `NETLINK_NETFILTER`; the socket library has no names for them.
const NETLINK: i32 = 16;
const NETFILTER: i32 = 12;

/// Time limit of a response. The kernel answers while the message is being sent.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Buffer for a response, which quotes a few hundred bytes of the message; longer ones are truncated.
const RESPONSE_BYTES: usize = 16 << 10;

/// Makes the kernel apply the messages as a whole.
///
/// # Errors
/// The first error that the kernel reports. Nothing has changed then.
pub(super) fn send_batch(messages: &[Message]) -> io::Result<()> {
    let socket = Socket::new(Domain::from(NETLINK), Type::DGRAM, Some(Protocol::from(NETFILTER)))?;
    socket.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    socket.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    let batch: Vec<u8> = (1..)
        .zip(messages)
        .flat_map(|(sequence, message)| message.encode(sequence))
        .collect();
    socket.send(&batch)?;
    let mut missing = messages.iter().filter(|message| message.is_answered()).count();
    let mut response = vec![0; RESPONSE_BYTES];
    while missing > 0 {
        let length = (&socket).read(&mut response)?;
        for outcome in read_outcomes(response.get(..length).unwrap_or_default()) {
            if outcome.error != 0 {
                return Err(io::Error::from_raw_os_error(outcome.error));
            }
            missing = missing.saturating_sub(1);
        }
    }
    Ok(())
}
