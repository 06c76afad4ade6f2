//! Requests to the API server, and the time that it has for a response.

use std::time::Duration;

use ctrlmesh_manager_api::ShardingConfig;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, timeout_at};

use crate::error::{Error, RESPONSE_DEADLINE};

/// Pause before a request is repeated that an API server was not ready for.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Objects of a kind; none if its definition is gone.
pub(crate) async fn list_objects(client: &Client, kind: &ApiResource) -> Result<Vec<DynamicObject>, Error> {
    Ok(list_defined(client, kind).await?.unwrap_or_default())
}

/// Objects of a kind. `None`: there is no definition of it.
pub(crate) async fn list_defined(client: &Client, kind: &ApiResource) -> Result<Option<Vec<DynamicObject>>, Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
    match response_of(async || api.list(&ListParams::default()).await).await {
        Ok(list) => Ok(Some(list.items)),
        Err(Error::Api(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

pub(crate) async fn delete_config(client: &Client, config: &DynamicObject) -> Result<(), Error> {
    let namespace = config.namespace().unwrap_or_default();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &sharding_config_resource());
    match response_of(async || api.delete(&config.name_any(), &DeleteParams::default()).await).await {
        Err(Error::Api(kube::Error::Api(status))) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    }
}

pub(crate) fn sharding_config_resource() -> ApiResource {
    ApiResource::erase::<ShardingConfig>(&())
}

/// The response to a request, or an error after [`RESPONSE_DEADLINE`]. An API server that is not ready is asked again until then: it answers
/// so after definitions have changed, for example.
pub(crate) async fn response_of<T>(request: impl AsyncFn() -> Result<T, kube::Error>) -> Result<T, Error> {
    let started_at = Instant::now();
    loop {
        let response = timeout_at(started_at + RESPONSE_DEADLINE, request()).await;
        match response.map_err(|_| Error::NoResponse)? {
            Err(kube::Error::Api(status))
                if matches!(status.code, 429 | 503 | 504) && started_at.elapsed() + RETRY_PAUSE < RESPONSE_DEADLINE =>
            {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            response => return Ok(response?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kube::core::Status;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn request_is_repeated_while_api_server_is_not_ready() {
        let requests = Cell::new(0);
        let not_ready = |code| {
            let status = Status::failure("storage is (re)initializing", "TooManyRequests").with_code(code);
            kube::Error::Api(Box::new(status))
        };
        let ready_at_third = async || {
            requests.set(requests.get() + 1);
            if requests.get() < 3 {
                Err(not_ready(429))
            } else {
                Ok(())
            }
        };
        response_of(ready_at_third).await.unwrap();
        let error = response_of(async || Err::<(), _>(not_ready(503))).await.unwrap_err();
        assert!(matches!(error, Error::Api(_)), "the last response counts: {error}");
        requests.set(0);
        let forbidden = async || {
            requests.set(requests.get() + 1);
            Err::<(), _>(not_ready(403))
        };
        assert!(response_of(forbidden).await.is_err());
        assert_eq!(requests.get(), 1);
    }
}
