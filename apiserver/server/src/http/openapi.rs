//! temporary
use super::body::Body;
use crate::server::Call;
use apiserver_api::Status;
use http::Response;
pub(crate) fn answer(_: &Call<'_>) -> Result<Option<Response<Body>>, Status> {
    Ok(None)
}
