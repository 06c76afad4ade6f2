//! Issues certificates for the manager's own servers: a CA and the certificates that it signed, in a Secret, replaced before they
//! expire so that no client is refused.
//!
//! | file | holds |
//! |---|---|
//! | `plan` | the next step for a certificate |
//! | `stored` | the Secret's content |
//! | `credential` | a CA with a certificate that it signed |
//! | `validity` | reads dates and names of X.509 certificates |
//!
//! A [`TrustDomain`] decides who trusts the CA and who serves its certificates. There are two: the webhook server, which API
//! servers trust, and sidecars, which the containers beside them trust.

mod credential;
mod plan;
mod stored;
#[cfg(test)]
mod tests;
mod validity;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::stream::{BoxStream, SelectAll};
use futures_util::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher;

use crate::certificates::lifetimes::Schedule;
use crate::cluster::{Context, error_text, post_params};
#[cfg(test)]
pub(crate) use credential::verify_certificate;
pub(crate) use credential::{Credential, parse_certificates};
use plan::{CaState, Step, next_step};
pub(crate) use stored::{Stored, split_certificates};
pub(crate) use validity::{not_after, subject_common_name};

/// Pause after a failure or an undone change; doubled each time, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Why a certificate can't be issued, read or distributed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate can't be created.
    #[error(
        "failed to issue a certificate: {0}; check that WEBHOOK_HOST, SERVICE_NAME and --proxy-serving-names (CTRLMESH_PROXY_SERVING_NAMES) are valid names"
    )]
    Issue(#[from] rcgen::Error),
    /// The certificate was created, and clients would refuse it.
    #[error(
        "clients would refuse a certificate for {0}; correct WEBHOOK_HOST, SERVICE_NAME or --proxy-serving-names \
         (CTRLMESH_PROXY_SERVING_NAMES)"
    )]
    Names(String),
    /// A file or a key of the Secret.
    #[error("the {0} is missing or not PEM")]
    NotPem(&'static str),
    /// Certificate and key don't belong together, or rustls can't use them.
    #[error("the certificate and its key are unusable: {0}")]
    Pair(#[source] rustls::Error),
    #[error("{path}: {source}")]
    File { path: String, source: std::io::Error },
    /// The API server, or the way to it.
    #[error("the API server: {}", error_text(.0))]
    Api(#[from] kube::Error),
    /// The same, about an object that somebody waits for.
    #[error("failed to write {kind} {name}: {}", error_text(.source))]
    Refused {
        kind: String,
        name: &'static str,
        source: kube::Error,
    },
}

impl From<Error> for crate::cluster::Error {
    fn from(error: Error) -> Self {
        Self::Certificate(error.into())
    }
}

/// The clients that trust a CA, and the servers with its certificates.
pub(crate) trait TrustDomain: Send {
    /// Events of the domain's watches.
    type Seen: Send + 'static;

    /// Records an event. Returns whether there may be something to do.
    fn observe(&mut self, seen: Self::Seen) -> bool;

    /// Names that clients use for the servers; `None`: not known yet.
    fn names(&self) -> Option<Vec<String>>;

    /// Every bundle that clients trust, PEM; `None`: not known yet.
    fn bundles_in_force(&self) -> Option<Vec<String>>;

    /// Replaces every bundle by this one.
    fn set_bundles(&mut self, bundle: &str) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives bundles and certificates to those who need and lack them.
    fn distribute(&mut self, stored: &Stored) -> impl Future<Output = Result<(), Error>> + Send;
}

/// The Secret of a CA, and the lifetimes of its certificates.
#[derive(Clone, Debug)]
pub(crate) struct CaSecret {
    /// The CA's purpose, for logs.
    pub(crate) purpose: String,
    /// The Secret's metadata when it is created. It is in the manager's namespace.
    pub(crate) secret: ObjectMeta,
    pub(crate) schedule: Schedule,
}

/// Keeps the certificate until the manager stops. Failures are logged and retried. `secrets` are states of the Secret, `others` are
/// events of the domain.
pub(crate) async fn maintain<T: TrustDomain>(
    context: Context,
    ca_secret: CaSecret,
    secrets: BoxStream<'static, Option<Secret>>,
    others: SelectAll<BoxStream<'static, T::Seen>>,
    domain: T,
) {
    let secrets = secrets.map(|secret| CaEvent::Secret(Box::new(secret))).boxed();
    let mut seen = futures_util::stream::select_all([secrets, others.map(CaEvent::Other).boxed()]);
    let purpose = ca_secret.purpose.clone();
    let mut keeper = CaKeeper::new(context, ca_secret, domain);
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        let (rest, is_firm) = match keeper.take_step(SystemTime::now()).await {
            Ok(Step::Rest(rest)) => (rest, false),
            Ok(step) => {
                tracing::info!(?step, purpose, "certificate step done");
                if last.replace(step) != Some(step) {
                    continue;
                }
                // Somebody undoes the change each time.
                (pause, true)
            }
            Err(error) => {
                tracing::warn!(%error, purpose, "failed to maintain the certificate; retrying");
                (pause, true)
            }
        };
        match keeper.wait_for_event(&mut seen, rest, is_firm).await {
            WaitOutcome::Stopped => return,
            WaitOutcome::Changed => {}
            WaitOutcome::All if is_firm => pause = (pause * 2).min(MAX_PAUSE),
            WaitOutcome::All => (pause, last) = (FIRST_PAUSE, None),
        }
    }
}

/// Why a wait ended.
enum WaitOutcome {
    All,
    Changed,
    Stopped,
}

/// An event of a watch.
enum CaEvent<S> {
    Secret(Box<Option<Secret>>),
    Other(S),
}

/// Logs errors of a watch, which retries by itself.
pub(crate) fn log_watch_errors<T: Send + 'static>(
    stream: impl Stream<Item = watcher::Result<T>> + Send + 'static,
) -> BoxStream<'static, T> {
    let stream = stream.default_backoff().filter_map(|seen| async move {
        seen.inspect_err(|error| tracing::warn!(error = error_text(error), "watch for certificates failed; retrying"))
            .ok()
    });
    stream.boxed()
}

struct CaKeeper<T> {
    context: Context,
    ca_secret: CaSecret,
    domain: T,
    /// `None`: not seen yet.
    secret: Option<Option<Secret>>,
    trusted_since: Option<SystemTime>,
}

impl<T: TrustDomain> CaKeeper<T> {
    fn new(context: Context, ca_secret: CaSecret, domain: T) -> Self {
        Self {
            context,
            ca_secret,
            domain,
            secret: None,
            trusted_since: None,
        }
    }

    /// Records an event. Returns whether there may be something to do.
    fn observe(&mut self, seen: CaEvent<T::Seen>) -> bool {
        match seen {
            CaEvent::Secret(secret) => {
                self.secret = Some(*secret);
                true
            }
            CaEvent::Other(seen) => self.domain.observe(seen),
        }
    }

    /// Waits for `time` or, unless the wait is firm, until something changes.
    async fn wait_for_event(
        &mut self,
        seen: &mut SelectAll<BoxStream<'static, CaEvent<T::Seen>>>,
        time: Duration,
        is_firm: bool,
    ) -> WaitOutcome {
        let mut time = std::pin::pin!(tokio::time::sleep(time));
        loop {
            tokio::select! {
                () = self.context.stop.cancelled() => return WaitOutcome::Stopped,
                () = time.as_mut() => return WaitOutcome::All,
                Some(seen) = seen.next() => {
                    if self.observe(seen) && !is_firm {
                        return WaitOutcome::Changed;
                    }
                }
            }
        }
    }

    /// Does the next step and returns it.
    async fn take_step(&mut self, now: SystemTime) -> Result<Step, Error> {
        let schedule = self.ca_secret.schedule;
        let known = (&self.secret, self.domain.names(), self.domain.bundles_in_force());
        let (Some(secret), Some(names), Some(bundles)) = known else {
            return Ok(Step::Rest(schedule.rest));
        };
        let stored = secret.as_ref().map(Stored::from_secret).unwrap_or_default();
        let state = CaState {
            now,
            stored: &stored,
            names: &names,
            bundles: &bundles,
            trusted_since: self.trusted_since,
        };
        let step = next_step(&state, &schedule);
        match step {
            Step::Rest(_) => {}
            Step::Settle => self.trusted_since = Some(now),
            Step::Trust => {
                self.trusted_since = None;
                self.domain.set_bundles(&stored.trust_bundle()).await?;
            }
            Step::Issue | Step::Sign | Step::Prepare | Step::Promote | Step::Forget => {
                // A new certificate of the same CA does not change the bundle.
                if step != Step::Sign {
                    self.trusted_since = None;
                }
                let stored = stored.with_step(step, &names, now, &schedule)?;
                let written = self.write(&stored).await?;
                self.secret = Some(Some(written));
                return Ok(step);
            }
        }
        self.domain.distribute(&stored).await?;
        Ok(step)
    }

    /// Writes the version that was read, so that two leaders do not undo each other's work.
    async fn write(&self, stored: &Stored) -> Result<Secret, Error> {
        let name = self.ca_secret.secret.name.as_deref().unwrap_or_default();
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &self.context.args.namespace);
        let options = post_params();
        if let Some(Some(secret)) = &self.secret {
            let mut secret = secret.clone();
            stored.write(secret.data.get_or_insert_default());
            return Ok(secrets.replace(name, &options, &secret).await?);
        }
        let mut data = BTreeMap::new();
        stored.write(&mut data);
        let secret = Secret {
            metadata: self.ca_secret.secret.clone(),
            data: Some(data),
            ..Secret::default()
        };
        Ok(secrets.create(&options, &secret).await?)
    }
}
