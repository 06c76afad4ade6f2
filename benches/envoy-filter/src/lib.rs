//! A token bucket for lists, as a filter of the proxy-wasm ABI: what the rate-limit plugin does in the benchmarks, written for Envoy.
//!
//! The bucket is kept in the module's memory, so that a request costs the host calls it needs and no more: its method, its path, the time.

use std::time::{Duration, SystemTime};

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

/// So many that each request of a benchmark gets one.
const TOKENS_PER_SECOND: f64 = 1e6;
const BURST: f64 = 1e6;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(Root));
}}

struct Root;

impl Context for Root {}

impl RootContext for Root {
    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, _context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Request))
    }
}

struct Request;

impl Context for Request {}

impl HttpContext for Request {
    fn on_http_request_headers(&mut self, _headers: usize, _end_of_stream: bool) -> Action {
        let method = self.get_http_request_header(":method");
        let path = self.get_http_request_header(":path");
        let is_limited = method.as_deref() == Some("GET") && path.is_some_and(|path| path.starts_with("/api"));
        if !is_limited || take_token(self.get_current_time()) {
            return Action::Continue;
        }
        self.send_http_response(429, vec![("retry-after", "1")], None);
        Action::Pause
    }
}

struct Bucket {
    tokens: f64,
    filled_at: SystemTime,
}

thread_local! {
    static BUCKET: std::cell::RefCell<Bucket> =
        const { std::cell::RefCell::new(Bucket { tokens: BURST, filled_at: SystemTime::UNIX_EPOCH }) };
}

fn take_token(now: SystemTime) -> bool {
    BUCKET.with_borrow_mut(|bucket| {
        let passed = now.duration_since(bucket.filled_at).unwrap_or(Duration::ZERO);
        bucket.tokens = (bucket.tokens + passed.as_secs_f64() * TOKENS_PER_SECOND).min(BURST);
        bucket.filled_at = now;
        let is_granted = bucket.tokens >= 1.0;
        if is_granted {
            bucket.tokens -= 1.0;
        }
        is_granted
    })
}
