//! Requests that end early, on any port: with a response of the sidecar's own, or broken off because a plugin asked for it.
//!
//! Leaves messages and status codes to `respond`.

use std::rc::Rc;

use http::Response;

use crate::chain::phases::Stop;
use crate::connection::Connection;
use crate::observe::record::Record;
use crate::plugin::verdict::{Failure, Reset};
use crate::respond::{self, Accept, Reply};
use crate::stream::body::ClientBody;
use crate::stream::shape::{BrokenOff, LONGEST_HANG};
use crate::upstream::BoxError;

/// The result of serving a request. An error means no response: hyper resets the stream or closes the connection.
pub(crate) type ServeResult = Result<Response<ClientBody>, BoxError>;

/// A response of the sidecar's own.
pub(crate) fn sidecar_response(record: &Rc<Record>, accept: &Accept, reply: Reply) -> Response<ClientBody> {
    record.record_failure(reply.failure);
    record.set_status(reply.code());
    reply
        .into_response(accept)
        .map(|body| ClientBody::full(body, Some(Rc::clone(record))))
}

/// Ends the exchange in the way that a plugin asked for.
pub(crate) async fn end_exchange(
    connection: &Connection,
    record: &Rc<Record>,
    stop: Stop,
    accept: &Accept,
) -> ServeResult {
    match stop {
        Stop::Reply(reply) => Ok(sidecar_response(record, accept, reply)),
        Stop::Answer(plain) => {
            record.record_failure(Failure::Refused);
            record.set_status(plain.code);
            let closes = plain.close_connection;
            let mut response = respond::plain_response(plain);
            if closes {
                connection.retire_with(response.headers_mut());
            }
            let record = Some(Rc::clone(record));
            Ok(response.map(|body| ClientBody::full(body, record)))
        }
        Stop::Reset(how) => break_off(connection, record, how).await,
        Stop::RefuseConnections(length) => {
            connection.refuse_connections(length);
            break_off(connection, record, Reset::Close).await
        }
    }
}

async fn break_off(connection: &Connection, record: &Record, how: Reset) -> ServeResult {
    record.record_failure(Failure::PluginReset);
    match how {
        Reset::Hang => tokio::time::sleep(LONGEST_HANG).await,
        Reset::BlackHole => {
            connection.silence();
            tokio::time::sleep(LONGEST_HANG).await;
        }
        Reset::Close => connection.close(),
        Reset::Cancel | Reset::InternalError => {}
    }
    Err(BrokenOff::new(how).into())
}
