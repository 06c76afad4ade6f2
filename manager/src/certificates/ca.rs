//! Certificates that the manager makes for servers of its own: a CA and what it signed, in a Secret, replaced before they end so
//! that nobody is cut off.
//!
//! Leaves to whoever uses it who trusts the CA and who serves: [`TrustDomain`]. There are two: the webhook server, which API servers
//! trust, and sidecars, which the containers beside them trust.

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

use crate::cluster::{Context, error_text, post_params};
#[cfg(test)]
pub(crate) use credential::verify;
pub(crate) use credential::{Credential, certificates};
use plan::{Facts, Step, plan};
pub use plan::{Leaf, Schedule};
pub(crate) use stored::{Stored, blocks};
pub(crate) use validity::{not_after, subject_common_name};

/// Waits after something failed or was undone: from this long, doubled each time, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What is wrong with a certificate, or with the way to one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be made.
    #[error(
        "failed to issue a certificate: {0}; check that WEBHOOK_HOST, SERVICE_NAME and --proxy-serving-names (CTRLMESH_PROXY_SERVING_NAMES) are valid names"
    )]
    Issue(#[from] rcgen::Error),
    /// It was made, and nobody would accept it.
    #[error(
        "clients would reject a certificate for {0}; correct WEBHOOK_HOST, SERVICE_NAME or --proxy-serving-names \
         (CTRLMESH_PROXY_SERVING_NAMES)"
    )]
    Names(String),
    /// A file or a key of the Secret.
    #[error("the {0} is missing or not PEM")]
    NotPem(&'static str),
    /// They don't belong together, or rustls can't use them.
    #[error("the certificate and its key are unusable: {0}")]
    Pair(#[source] rustls::Error),
    #[error("{path}: {source}")]
    File {
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The API server, or the way to it.
    #[error("the API server: {}", error_text(.0))]
    Api(#[from] kube::Error),
    /// The same, about an object that somebody waits for.
    #[error("failed to write {kind} {name}: {}", error_text(.source))]
    Refused {
        kind: String,
        name: &'static str,
        /// What the API server said.
        source: kube::Error,
    },
}

impl From<Error> for crate::cluster::Error {
    fn from(error: Error) -> Self {
        Self::Certificate(error.into())
    }
}

/// Who trusts a CA, and who serves what it signed.
pub(crate) trait TrustDomain: Send {
    /// What a watch says.
    type Seen: Send + 'static;

    /// Takes note; says whether there may be something to do.
    fn observe(&mut self, seen: Self::Seen) -> bool;

    /// Names that servers are called by; `None`: not known yet.
    fn names(&self) -> Option<Vec<String>>;

    /// Every bundle that somebody trusts, PEM; `None`: not known yet.
    fn bundles_in_force(&self) -> Option<Vec<String>>;

    /// Makes this every bundle.
    fn set_bundles(&mut self, bundle: &str) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives what there is to whoever needs it and has it not.
    fn distribute(&mut self, stored: &Stored) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Where it is kept, and how long things last.
#[derive(Clone, Debug)]
pub(crate) struct CaSecret {
    /// What it is for, in logs.
    pub(crate) what: String,
    /// The Secret's name, and what it has when it is made. It lies in the manager's namespace.
    pub(crate) secret: ObjectMeta,
    pub(crate) schedule: Schedule,
}

/// Keeps the certificate, until it shall stop. What fails is logged and done again. `secrets` says what the Secret is, `others`
/// everything else that must be known.
pub(crate) async fn maintain<T: TrustDomain>(
    context: Context,
    ca_secret: CaSecret,
    secrets: BoxStream<'static, Option<Secret>>,
    others: SelectAll<BoxStream<'static, T::Seen>>,
    domain: T,
) {
    let secrets = secrets.map(|secret| Seen::Secret(Box::new(secret))).boxed();
    let mut seen = futures_util::stream::select_all([secrets, others.map(Seen::Other).boxed()]);
    let what = ca_secret.what.clone();
    let mut keeper = Keeper::new(context, ca_secret, domain);
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        let (rest, is_firm) = match keeper.step(SystemTime::now()).await {
            Ok(Step::Rest(rest)) => (rest, false),
            Ok(step) => {
                tracing::info!(?step, what, "certificate step done");
                if last.replace(step) != Some(step) {
                    continue;
                }
                // Somebody undoes it each time.
                (pause, true)
            }
            Err(error) => {
                tracing::warn!(%error, what, "failed to maintain the certificate; retrying");
                (pause, true)
            }
        };
        match keeper.wait(&mut seen, rest, is_firm).await {
            Waited::Stopped => return,
            Waited::Changed => {}
            Waited::All if is_firm => pause = (pause * 2).min(MAX_PAUSE),
            Waited::All => (pause, last) = (FIRST_PAUSE, None),
        }
    }
}

/// How a wait ended.
enum Waited {
    All,
    Changed,
    Stopped,
}

/// What a watch says.
enum Seen<S> {
    Secret(Box<Option<Secret>>),
    Other(S),
}

/// Errors of a watch are logged; it goes on by itself.
pub(crate) fn log_watch_errors<T: Send + 'static>(
    stream: impl Stream<Item = watcher::Result<T>> + Send + 'static,
) -> BoxStream<'static, T> {
    let stream = stream.default_backoff().filter_map(|seen| async move {
        seen.inspect_err(|error| tracing::warn!(error = error_text(error), "watch for certificates failed; retrying"))
            .ok()
    });
    stream.boxed()
}

struct Keeper<T> {
    context: Context,
    ca_secret: CaSecret,
    domain: T,
    /// `None`: not seen yet.
    secret: Option<Option<Secret>>,
    trusted_since: Option<SystemTime>,
}

impl<T: TrustDomain> Keeper<T> {
    fn new(context: Context, ca_secret: CaSecret, domain: T) -> Self {
        Self {
            context,
            ca_secret,
            domain,
            secret: None,
            trusted_since: None,
        }
    }

    /// Whether there may be something to do.
    fn observe(&mut self, seen: Seen<T::Seen>) -> bool {
        match seen {
            Seen::Secret(secret) => {
                self.secret = Some(*secret);
                true
            }
            Seen::Other(seen) => self.domain.observe(seen),
        }
    }

    /// Waits for a time or, unless it is firm, until something has changed.
    async fn wait(
        &mut self,
        seen: &mut SelectAll<BoxStream<'static, Seen<T::Seen>>>,
        time: Duration,
        is_firm: bool,
    ) -> Waited {
        let mut time = std::pin::pin!(tokio::time::sleep(time));
        loop {
            tokio::select! {
                () = self.context.stop.cancelled() => return Waited::Stopped,
                () = time.as_mut() => return Waited::All,
                Some(seen) = seen.next() => {
                    if self.observe(seen) && !is_firm {
                        return Waited::Changed;
                    }
                }
            }
        }
    }

    /// Does the next thing, and says which.
    async fn step(&mut self, now: SystemTime) -> Result<Step, Error> {
        let schedule = self.ca_secret.schedule;
        let known = (&self.secret, self.domain.names(), self.domain.bundles_in_force());
        let (Some(secret), Some(names), Some(bundles)) = known else {
            return Ok(Step::Rest(schedule.rest));
        };
        let stored = secret.as_ref().map(Stored::of).unwrap_or_default();
        let facts = Facts {
            now,
            stored: &stored,
            names: &names,
            bundles: &bundles,
            trusted_since: self.trusted_since,
        };
        let step = plan(&facts, &schedule);
        match step {
            Step::Rest(_) => {}
            Step::Settle => self.trusted_since = Some(now),
            Step::Trust => {
                self.trusted_since = None;
                self.domain.set_bundles(&stored.bundle()).await?;
            }
            Step::Issue | Step::Sign | Step::Prepare | Step::Promote | Step::Forget => {
                // A certificate of the same CA changes nothing about whom to trust.
                if step != Step::Sign {
                    self.trusted_since = None;
                }
                let stored = stored.after(step, &names, now, &schedule)?;
                let written = self.write(&stored).await?;
                self.secret = Some(Some(written));
                return Ok(step);
            }
        }
        self.domain.distribute(&stored).await?;
        Ok(step)
    }

    /// With the version that was read: two leaders don't undo each other's work.
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
