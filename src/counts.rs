//! Object counts of the bundled API server: its store keeps them exactly, here they become the observers' stream.

use std::sync::Arc;

use apiserver_api::ClusterName;
use apiserver_storage::{Event, Store, keys::REGISTRY};
use futures_util::{StreamExt, stream};
use observers::{Change, CountEvent, CountSource, CountStream, SourceError};

/// Counts of everything a store holds.
pub(crate) struct StoreCounts(pub(crate) Arc<dyn Store>);

impl CountSource for StoreCounts {
    async fn open(&mut self) -> Result<CountStream, SourceError> {
        let (revision, directories) = self.0.counts(REGISTRY);
        let changes = self.0.watch(REGISTRY, revision).await?;
        let snapshot = directories.into_iter().filter_map(|d| {
            let (objects, bytes) = (i64::try_from(d.keys).ok()?, i64::try_from(d.bytes).ok()?);
            Some(CountEvent::Change(change(&d.directory, objects, bytes)?))
        });
        let changes = changes.filter_map(|event| async {
            match event {
                Ok(event) => Some(Ok(count_event(&event)?)),
                Err(error) => Some(Err(SourceError::from(error))),
            }
        });
        Ok(stream::iter(snapshot.chain([CountEvent::Synced]).map(Ok)).chain(changes).boxed())
    }
}

/// `None` for keys that are no objects.
fn count_event(event: &Event) -> Option<CountEvent> {
    let size = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
    let (key, objects, bytes) = match event {
        Event::Progress(_) => return Some(CountEvent::Heartbeat),
        Event::Put { kv, prev: None } => (&kv.key, 1, size(kv.value.len())),
        Event::Put { kv, prev: Some(prev) } => (&kv.key, 0, size(kv.value.len()) - size(prev.value.len())),
        Event::Delete { prev, .. } => (&prev.key, -1, -size(prev.value.len())),
    };
    let (directory, _name) = key.rsplit_once('/')?;
    Some(CountEvent::Change(change(directory, objects, bytes)?))
}

/// Reads `/registry/<group>/<resource>/<cluster>[/<namespace>]`, with or without a slash at the end. All resources
/// of the bundled server are built in, so there is no further segment.
fn change(directory: &str, objects: i64, bytes: i64) -> Option<Change> {
    let mut parts = directory.strip_prefix(REGISTRY)?.trim_end_matches('/').split('/');
    let (group, resource) = (parts.next()?, parts.next()?);
    let cluster: ClusterName = parts.next()?.parse().ok()?;
    let group = if group == "core" { "" } else { group };
    let namespace = parts.next().unwrap_or_default();
    Some(Change {
        cluster,
        group: group.into(),
        resource: resource.into(),
        namespace: namespace.into(),
        objects,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_read_back() {
        let found = change("/registry/core/configmaps/2x8k/shop/", 3, 100).unwrap();
        let expected = Change {
            cluster: "2x8k".parse().unwrap(),
            group: "".into(),
            resource: "configmaps".into(),
            namespace: "shop".into(),
            objects: 3,
            bytes: 100,
        };
        assert_eq!(found, expected);
        let found = change("/registry/tenancy.kcp.io/workspaces/root", -1, -9).unwrap();
        assert_eq!((&*found.group, &*found.namespace, found.objects), ("tenancy.kcp.io", "", -1));
        assert_eq!(change("/cache/x/y/z/", 1, 1), None);
    }
}
