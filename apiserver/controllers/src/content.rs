//! Removing all objects of a namespace or of a logical cluster.

use apiserver_api::Status;
use apiserver_machinery::{
    Resource,
    options::{DeleteOptions, ListOptions},
};
use apiserver_server::{
    Registry,
    registry::{Collection, Deleted, ObjectKey},
};
use futures_util::{StreamExt, TryStreamExt};

use crate::unless_gone;

/// Objects that are deleted concurrently, so that their writes share commits.
const CONCURRENCY: usize = 64;
/// Objects that are listed at once.
const PAGE: usize = 500;

/// Deletes every object of `resource` in `of` and returns how many are left: those that finalizers hold.
///
/// # Errors
/// Those of list and delete; what was deleted before stays deleted.
pub(crate) async fn remove(registry: &Registry, resource: &'static Resource, of: &Collection) -> Result<usize, Status> {
    let mut options = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
    let mut left = 0;
    loop {
        let page = registry.list(resource, of, &options).await?;
        let deletions: Vec<_> = page.items.iter().map(|object| remove_one(registry, resource, object.key())).collect();
        left += futures_util::stream::iter(deletions)
            .buffer_unordered(CONCURRENCY)
            .try_fold(0, |sum, held| async move { Ok(sum + held) })
            .await?;
        match page.continue_token {
            Some(token) => options.continue_token = token,
            None => return Ok(left),
        }
    }
}

/// 1 when finalizers hold the object, 0 when it is gone.
async fn remove_one(registry: &Registry, resource: &'static Resource, key: ObjectKey) -> Result<usize, Status> {
    let deleted = registry.delete(resource, &key, &DeleteOptions::default()).await;
    let held = matches!(deleted, Ok(Deleted::Terminating(_)));
    unless_gone(deleted).map(|()| usize::from(held))
}
