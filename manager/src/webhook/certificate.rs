//! The webhook server's certificate: the leader makes it, replaces it before it ends, and tells API servers whom to trust.
//!
//! Leaves serving it to [`super::served`], which every replica does. With `--webhook-cert-dir` somebody else makes it, and
//! nothing is done here.

pub(crate) mod bundles;
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
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watch_object};

use crate::context::{Context, post_params};
use bundles::Bundles;
pub(crate) use credential::Credential;
pub use plan::Schedule;
use plan::{Facts, Step, plan};
pub(crate) use stored::Stored;
pub(crate) use validity::not_after;

/// Waits after something failed or was undone: from this long, doubled each time, up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// What is wrong with a certificate, or with the way to one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It can't be made.
    #[error("no certificate can be made: {0}; is WEBHOOK_HOST or SERVICE_NAME a valid name?")]
    Issue(#[from] rcgen::Error),
    /// It was made, and nobody would accept it.
    #[error("a certificate for {0} would be accepted by nobody; correct WEBHOOK_HOST or SERVICE_NAME")]
    Names(String),
    /// A file or a key of the Secret.
    #[error("the {0} is missing or no PEM")]
    NotPem(&'static str),
    /// They don't belong together, or rustls can't use them.
    #[error("the certificate and its key can't be used: {0}")]
    Pair(#[source] rustls::Error),
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The API server, or the way to it.
    #[error("the API server: {}", crate::plain::plain(.0))]
    Api(#[from] kube::Error),
}

/// Keeps the certificate and the bundles, until it shall stop.
///
/// # Errors
/// None: what fails is logged and done again.
pub async fn run(context: Context) -> Result<(), crate::Error> {
    keep(context, Schedule::default()).await;
    Ok(())
}

pub(super) async fn keep(context: Context, schedule: Schedule) {
    if context.args.webhook_cert_dir.is_some() {
        context.stop.cancelled().await;
        return;
    }
    let mut seen = watched(&context);
    let mut keeper = Keeper::new(context, schedule);
    let mut pause = FIRST_PAUSE;
    let mut last = None;
    loop {
        let (rest, is_firm) = match keeper.step(SystemTime::now()).await {
            Ok(Step::Rest(rest)) => (rest, false),
            Ok(step) => {
                tracing::info!(?step, "webhook certificate");
                if last.replace(step) != Some(step) {
                    continue;
                }
                // Somebody undoes it each time.
                (pause, true)
            }
            Err(error) => {
                tracing::warn!(%error, "the webhook certificate can't be kept; it is tried again");
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
enum Seen {
    Secret(Option<Secret>),
    Configuration(usize, Option<DynamicObject>),
}

fn watched(context: &Context) -> SelectAll<BoxStream<'static, Seen>> {
    let client = &context.client;
    let secrets = Api::namespaced(client.clone(), &context.args.namespace);
    let secret = watch_object(secrets, &context.args.webhook_secret_name);
    let mut all = SelectAll::new();
    all.push(told(secret.map(|seen| seen.map(Seen::Secret))));
    for (index, (api, name)) in bundles::apis(client).into_iter().enumerate() {
        let configuration = watch_object(api, name);
        all.push(told(
            configuration.map(move |seen| seen.map(|it| Seen::Configuration(index, it))),
        ));
    }
    all
}

/// Errors of a watch are logged; it goes on by itself.
fn told<T: Send + 'static>(stream: impl Stream<Item = watcher::Result<T>> + Send + 'static) -> BoxStream<'static, T> {
    let stream = stream.default_backoff().filter_map(|seen| async move {
        seen.inspect_err(
            |error| tracing::warn!(%error, "a watch for the webhook certificate failed; it is tried again"),
        )
        .ok()
    });
    stream.boxed()
}

struct Keeper {
    context: Context,
    schedule: Schedule,
    names: Vec<String>,
    /// `None`: not seen yet.
    secret: Option<Option<Secret>>,
    bundles: Bundles,
    trusted_since: Option<SystemTime>,
}

impl Keeper {
    fn new(context: Context, schedule: Schedule) -> Self {
        Self {
            names: context.args.webhook_names(),
            bundles: Bundles::new(&context.client),
            context,
            schedule,
            secret: None,
            trusted_since: None,
        }
    }

    fn see(&mut self, seen: Seen) {
        match seen {
            Seen::Secret(secret) => self.secret = Some(secret),
            Seen::Configuration(index, configuration) => self.bundles.see(index, configuration),
        }
    }

    /// Waits for a time or, unless it is firm, until something has changed.
    async fn wait(&mut self, seen: &mut SelectAll<BoxStream<'static, Seen>>, time: Duration, is_firm: bool) -> Waited {
        let mut time = std::pin::pin!(tokio::time::sleep(time));
        loop {
            tokio::select! {
                () = self.context.stop.cancelled() => return Waited::Stopped,
                () = time.as_mut() => return Waited::All,
                Some(seen) = seen.next() => {
                    self.see(seen);
                    if !is_firm {
                        return Waited::Changed;
                    }
                }
            }
        }
    }

    /// Does the next thing, and says which.
    async fn step(&mut self, now: SystemTime) -> Result<Step, Error> {
        let (Some(secret), Some(bundles)) = (&self.secret, self.bundles.in_force()) else {
            return Ok(Step::Rest(self.schedule.rest));
        };
        let stored = secret.as_ref().map(Stored::of).unwrap_or_default();
        let facts = Facts {
            now,
            stored: &stored,
            names: &self.names,
            bundles: &bundles,
            trusted_since: self.trusted_since,
        };
        let step = plan(&facts, &self.schedule);
        match step {
            Step::Rest(_) => {}
            Step::Settle => self.trusted_since = Some(now),
            Step::Trust => {
                self.trusted_since = None;
                self.bundles.write(&stored.bundle()).await?;
            }
            Step::Issue | Step::Prepare | Step::Promote | Step::Forget => {
                self.trusted_since = None;
                let stored = stored.after(step, &self.names, now, &self.schedule)?;
                let written = self.write(&stored).await?;
                self.secret = Some(Some(written));
            }
        }
        Ok(step)
    }

    /// With the version that was read: two leaders don't undo each other's work.
    async fn write(&self, stored: &Stored) -> Result<Secret, Error> {
        let name = &self.context.args.webhook_secret_name;
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
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..Secret::default()
        };
        Ok(secrets.create(&options, &secret).await?)
    }
}
