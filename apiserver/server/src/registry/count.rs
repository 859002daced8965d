//! How many objects there are, from the store's own counters.

use apiserver_api::Status;
use apiserver_machinery::Resource;

use super::{Collection, Registry};

impl Registry {
    /// The exact number of objects of a collection, in O(log n). A namespace over all clusters, whose objects do not lie
    /// side by side, has no counter.
    ///
    /// # Errors
    /// 400 for a place that no object can have, 500 for a collection without a counter.
    pub fn count(&self, resource: &Resource, of: &Collection) -> Result<u64, Status> {
        let span = self.span(resource, of)?;
        if span.scattered {
            return Err(crate::errors::internal("invariant violation: scattered objects have no counter"));
        }
        Ok(self.store.count(&span.prefix))
    }
}
