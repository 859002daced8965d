//! Removing all objects of a namespace or of a logical cluster.

use apiserver_api::Status;
use apiserver_machinery::{
    Resource,
    options::{DeleteOptions, ListOptions},
};
use apiserver_server::{Registry, registry::Collection};

/// Objects that are listed at once.
const PAGE: usize = 500;

/// Deletes every object of `resource` in `of` and returns how many are left: those that finalizers hold.
///
/// # Errors
/// Those of list and delete; what was deleted before stays deleted.
pub(crate) async fn remove(registry: &Registry, resource: &'static Resource, of: &Collection) -> Result<usize, Status> {
    let mut list = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
    let mut left = 0;
    loop {
        let (page, held) =
            registry.delete_collection(resource, of, &list, &DeleteOptions::default(), |_| Ok(())).await?;
        left += held;
        match page.continue_token {
            Some(token) => list.continue_token = token,
            None => return Ok(left),
        }
    }
}
