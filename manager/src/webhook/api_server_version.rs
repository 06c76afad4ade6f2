//! The release of the API server. It is read again from time to time, because API servers are upgraded while the manager runs.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::cluster::lock_unpoisoned;

/// Validity of a response. During an upgrade, a cluster with several API servers has both releases.
const VERSION_LIFETIME: Duration = Duration::from_mins(1);
/// Timeout for a response if an earlier release is known, because a pod waits for it.
const VERSION_TIMEOUT: Duration = Duration::from_secs(1);

/// Major and minor; `None`: the response is not a release.
type Release = Option<(u32, u32)>;

/// The last release, and when it was read.
#[derive(Debug, Default)]
pub(super) struct ApiServerVersion(Mutex<Option<(Instant, Release)>>);

impl ApiServerVersion {
    /// The release. A recent one is reused; otherwise `ask` returns major and minor. If it fails or takes long, the last release
    /// stays valid for another period.
    ///
    /// # Errors
    /// `ask` fails, and no earlier release is known.
    pub(super) async fn release_of<E>(
        &self,
        now: Instant,
        ask: impl AsyncFnOnce() -> Result<(String, String), E>,
    ) -> Result<Release, E> {
        let known = *lock_unpoisoned(&self.0);
        let release = match known {
            Some((asked, release)) if now.duration_since(asked) < VERSION_LIFETIME => return Ok(release),
            Some((_, release)) => match tokio::time::timeout(VERSION_TIMEOUT, ask()).await {
                Ok(Ok((major, minor))) => parse_release(&major, &minor),
                Ok(Err(_)) | Err(_) => release,
            },
            None => {
                let (major, minor) = ask().await?;
                parse_release(&major, &minor)
            }
        };
        *lock_unpoisoned(&self.0) = Some((now, release));
        Ok(release)
    }
}

/// Vendors write `32+`.
fn parse_release(major: &str, minor: &str) -> Release {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
    Some((number(major)?, number(minor)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_is_parsed_with_vendor_suffix() {
        for (major, minor, release) in [
            ("1", "31", Some((1, 31))),
            ("1", "36+", Some((1, 36))),
            ("2", "0", Some((2, 0))),
            ("", "", None),
        ] {
            assert_eq!(parse_release(major, minor), release, "{major}.{minor}");
        }
    }

    #[tokio::test]
    async fn upgrade_is_noticed_and_failure_keeps_last_release() {
        let (version, start) = (ApiServerVersion::default(), Instant::now());
        let says = |minor: &'static str| async move || Ok::<_, &str>(("1".to_owned(), minor.to_owned()));
        let fails = async || Err("no response");
        assert_eq!(version.release_of(start, fails).await, Err("no response"));
        assert_eq!(version.release_of(start, says("31")).await, Ok(Some((1, 31))));
        let soon = start + VERSION_LIFETIME - Duration::from_secs(1);
        assert_eq!(
            version.release_of(soon, says("32")).await,
            Ok(Some((1, 31))),
            "not asked yet"
        );
        let later = start + VERSION_LIFETIME;
        assert_eq!(version.release_of(later, fails).await, Ok(Some((1, 31))), "as it was");
        assert_eq!(
            version.release_of(later + VERSION_LIFETIME, says("32")).await,
            Ok(Some((1, 32)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_api_server_is_given_up_after_timeout() {
        let (version, start) = (ApiServerVersion::default(), Instant::now());
        let says = async || Ok::<_, &str>(("1".to_owned(), "31".to_owned()));
        assert_eq!(version.release_of(start, says).await, Ok(Some((1, 31))));
        let hangs = async || std::future::pending::<Result<(String, String), &str>>().await;
        let begun = tokio::time::Instant::now();
        for _ in 0..3 {
            assert_eq!(
                version.release_of(start + VERSION_LIFETIME, hangs).await,
                Ok(Some((1, 31)))
            );
        }
        assert_eq!(begun.elapsed(), VERSION_TIMEOUT);
    }
}
