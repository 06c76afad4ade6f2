//! A watch whose object has another name at the API server: each event is rewritten in transit.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use ctrlmesh_wire::WatchEncoding;
use ctrlmesh_wire::rename::{Rename, RenameError, WatchRenamer};
use http_body::{Body, Frame};

use crate::controller_state::leadership::LockExchange;
use crate::upstream::BoxError;

pub(crate) struct RenamedWatch<B> {
    inner: B,
    encoding: WatchEncoding,
    renamer: WatchRenamer,
    lock_exchange: Option<LockExchange>,
}

impl<B> RenamedWatch<B> {
    /// `rename` goes from the API server's name to the controller's. `lock_exchange` observes the events.
    pub(crate) fn new(inner: B, encoding: WatchEncoding, rename: Rename, lock_exchange: Option<LockExchange>) -> Self {
        Self {
            inner,
            encoding,
            renamer: WatchRenamer::new(encoding, rename),
            lock_exchange,
        }
    }

    fn push(&mut self, data: &[u8]) -> Result<Vec<u8>, RenameError> {
        let Some(lock_exchange) = &self.lock_exchange else {
            return self.renamer.push(data);
        };
        self.renamer
            .push_seen(data, |event| lock_exchange.observe_event(self.encoding, event))
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for RenamedWatch<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(cx)?) else {
                return Poll::Ready(None);
            };
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            let events = self.push(&data)?;
            if !events.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(events.into()))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}
