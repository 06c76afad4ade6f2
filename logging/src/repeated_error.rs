//! Logs an error of a periodic check once, and not each time that the check fails in the same way.

/// The last error of a check.
#[derive(Debug, Default)]
pub struct RepeatedError(Option<String>);

impl RepeatedError {
    /// Notes the result of a check. Returns the error's text if it differs from that of the check before.
    pub fn note<E: std::fmt::Display>(&mut self, result: Result<(), E>) -> Option<&str> {
        let error = result.err().map(|error| error.to_string());
        let is_new = error != self.0;
        self.0 = error;
        self.0.as_deref().filter(|_| is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_logged_when_it_differs_from_that_of_the_check_before() {
        let mut last = RepeatedError::default();
        assert_eq!(last.note(Err("a")), Some("a"));
        assert_eq!(last.note(Err("a")), None);
        assert_eq!(last.note(Err("b")), Some("b"));
        assert_eq!(last.note(Ok::<(), &str>(())), None);
        assert_eq!(last.note(Err("b")), Some("b"), "it is back");
    }
}
