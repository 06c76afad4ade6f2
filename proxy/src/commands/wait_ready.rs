//! `ctrlmesh-proxy wait-ready`: ends when the sidecar next to it is ready. Kubelet runs it as the sidecar's `postStart` hook: containers
//! after it are started once the hook has ended. With a startup probe, kubelet would notice up to a second later.
//!
//! If the sidecar answers but lacks its chain, the wait is short: its ports are open, and connections wait for the chain. Besides, kubelet
//! updates no volume while a hook runs, so the chain could not arrive.
//!
//! Fails if there is no response within the time: kubelet then restarts the sidecar, and an Event has the reason.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use crate::commands;

/// Interval between queries, which is the maximum unnecessary delay of a controller's start.
const QUERY_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit of one response. The sidecar answers from memory.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for a sidecar that answers to become ready, by compiling its plugins.
const READY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response. It names the missing parts in a few lines.
const MAX_RESPONSE_BYTES: u64 = 16 << 10;

/// Waits, and prints the reason if the wait fails.
#[must_use]
pub fn run(address: SocketAddr, time: Duration) -> ExitCode {
    match wait_until_ready(address, time, READY_TIMEOUT) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            commands::print_error(&problem);
            ExitCode::FAILURE
        }
    }
}

/// Blocks until `/readyz` at this address answers 200, or has answered otherwise for `ready_timeout`.
///
/// # Errors
/// The reason why there was no response when the time is over.
fn wait_until_ready(address: SocketAddr, time: Duration, ready_timeout: Duration) -> Result<(), String> {
    let end = Instant::now() + time;
    let mut answered = None;
    loop {
        let problem = match request_readiness(address) {
            Ok(response) if response.starts_with("HTTP/1.1 200 ") => return Ok(()),
            Ok(response) if response.starts_with("HTTP/1.1 503 ") => {
                if answered.get_or_insert_with(Instant::now).elapsed() >= ready_timeout {
                    return Ok(());
                }
                None
            }
            Ok(response) => Some(response.lines().next().unwrap_or_default().to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(problem) = problem {
            answered = None;
            if Instant::now() + QUERY_INTERVAL >= end {
                let seconds = time.as_secs();
                return Err(format!(
                    "no sidecar answered at {address} within {seconds} s: {problem}"
                ));
            }
        }
        thread::sleep(QUERY_INTERVAL);
    }
}

fn request_readiness(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, RESPONSE_TIMEOUT)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: sidecar\r\nconnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response)?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A server that gives these responses, one for each query.
    fn start_server(responses: &'static [&'static str]) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for response in responses.iter().cycle() {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 1024];
                let read = stream.read(&mut head).unwrap();
                assert!(head[..read].starts_with(b"GET /readyz HTTP/1.1\r\n"));
                stream.write_all(response.as_bytes()).unwrap();
            }
        });
        address
    }

    const NOT_YET: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 11\r\n\r\nfirst chain";
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(50);

    #[test]
    fn wait_ready_succeeds_when_sidecar_is_ready() {
        let address = start_server(&[NOT_YET, NOT_YET, "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]);
        assert_eq!(wait_until_ready(address, LONG, LONG), Ok(()));
    }

    /// Connections to this sidecar wait for the chain.
    #[test]
    fn wait_ready_succeeds_when_sidecar_has_lacked_its_chain_for_long_enough() {
        let start = Instant::now();
        assert_eq!(wait_until_ready(start_server(&[NOT_YET]), LONG, SHORT), Ok(()));
        assert!(start.elapsed() >= SHORT && start.elapsed() < LONG);
    }

    #[test]
    fn wait_ready_fails_and_names_unmet_conditions() {
        let problem = wait_until_ready(start_server(&["HTTP/1.1 404 Not Found\r\n\r\n"]), SHORT, LONG).unwrap_err();
        assert!(problem.ends_with("within 0 s: HTTP/1.1 404 Not Found"), "{problem}");
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let nobody = listener.local_addr().unwrap();
        drop(listener);
        let problem = wait_until_ready(nobody, SHORT, LONG).unwrap_err();
        assert!(problem.contains("refused"), "{problem}");
    }
}
