//! Constructors for refusals and plain answers. Their meaning is defined in `wit/types.wit`.

use crate::{Answer, Cause, Details, Field, Refusal};

impl Refusal {
    /// A refusal with the usual reason for its code (400 to 599).
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self {
            code,
            reason: String::new(),
            message: message.into(),
            retry_after_seconds: None,
            cause: None,
            details: None,
        }
    }

    /// 429 with `Retry-After`: client-go waits and tries again.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, message).retry_after(retry_after_seconds)
    }

    /// The machine-readable reason of the `Status`.
    #[must_use]
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = reason.into();
        self
    }

    /// Seconds after which a retry makes sense. client-go retries 429 and 5xx only with it.
    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Sets what refused the request, for `details.causes`.
    #[must_use]
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Sets the object of the refusal, as the API server writes it into `details`.
    #[must_use]
    pub fn details(mut self, details: Details) -> Self {
        self.details = Some(details);
        self
    }
}

impl Details {
    /// About an object; `kind` is its resource, as the API server writes it here. The name of a create is filled in by the host
    /// if the message says `{name}`.
    pub fn new(group: impl Into<String>, kind: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            group: group.into(),
            kind: kind.into(),
            causes: Vec::new(),
        }
    }

    /// Adds an element to `details.causes` of the `Status`.
    #[must_use]
    pub fn cause(mut self, reason: impl Into<String>, message: impl Into<String>, field: impl Into<String>) -> Self {
        self.causes.push(Cause {
            reason: reason.into(),
            message: message.into(),
            field: field.into(),
        });
        self
    }
}

impl Answer {
    /// A response with this body as `text/plain; charset=utf-8`, as the API server's own plain responses.
    pub fn text(code: u16, body: impl Into<String>) -> Self {
        Self {
            code,
            headers: vec![Field::new("content-type", "text/plain; charset=utf-8")],
            body: body.into().into_bytes(),
            close_connection: false,
        }
    }

    /// Adds this header field.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(Field::new(name, value));
        self
    }

    /// Closes the connection after this response: GOAWAY, or `connection: close` on HTTP/1.1.
    #[must_use]
    pub fn close_connection(mut self) -> Self {
        self.close_connection = true;
        self
    }
}
