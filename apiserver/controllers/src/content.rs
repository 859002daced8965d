//! Removing all objects of a namespace or of a logical cluster.

use std::collections::BTreeMap;

use apiserver_api::Status;
use apiserver_machinery::{
    Resource,
    options::{DeleteOptions, ListOptions},
};
use apiserver_server::{Registry, registry::Collection};
use serde::Deserialize;

/// Objects that are listed at once.
const PAGE: usize = 500;

/// What could not be removed yet.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Objects that finalizers hold.
    pub(crate) objects: usize,
    /// How many of them each finalizer holds.
    pub(crate) finalizers: BTreeMap<String, usize>,
}

/// What is left of the content of a namespace or of a cluster.
#[derive(Debug, Default)]
pub(crate) struct Remaining {
    /// Objects by resource.
    objects: BTreeMap<String, usize>,
    /// Objects by finalizer.
    finalizers: BTreeMap<String, usize>,
}

impl Remaining {
    /// These objects of the resource are left.
    pub(crate) fn add(&mut self, resource: &Resource, left: Left) {
        if left.objects > 0 {
            // The dot is there for the core group too.
            self.objects.insert(format!("{}.{}", resource.plural, resource.group), left.objects);
        }
        for (finalizer, objects) in left.finalizers {
            *self.finalizers.entry(finalizer).or_default() += objects;
        }
    }

    /// Whether nothing is.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Upstream's sentence about the objects, if any are left.
    pub(crate) fn resources(&self) -> Option<String> {
        let list = counted(&self.objects, "has");
        (!self.objects.is_empty()).then(|| format!("Some resources are remaining: {list}"))
    }

    /// The same about what holds those `of`: `the namespace`.
    pub(crate) fn finalizers(&self, of: &str) -> Option<String> {
        let list = counted(&self.finalizers, "in");
        (!self.finalizers.is_empty()).then(|| format!("Some content in {of} has finalizers remaining: {list}"))
    }
}

fn counted(map: &BTreeMap<String, usize>, unit: &str) -> String {
    map.iter().map(|(name, n)| format!("{name} {unit} {n} resource instances")).collect::<Vec<_>>().join(", ")
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Stored {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    finalizers: Option<Vec<String>>,
}

/// Deletes every object of `resource` in `of` and says what is left. Where the store counts none it is not asked.
///
/// # Errors
/// Those of list and delete; what was deleted before stays deleted.
pub(crate) async fn remove(registry: &Registry, resource: &'static Resource, of: &Collection) -> Result<Left, Status> {
    let mut left = Left::default();
    if registry.count(resource, of)? == 0 {
        return Ok(left);
    }
    let mut list = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
    loop {
        let (page, held) =
            registry.delete_collection(resource, of, &list, &DeleteOptions::default(), |_| Ok(())).await?;
        left.objects += held;
        // Those that went have none.
        for object in page.items.iter().filter(|_| held > 0) {
            for finalizer in object.parse::<Stored>()?.metadata.finalizers.unwrap_or_default() {
                *left.finalizers.entry(finalizer).or_default() += 1;
            }
        }
        match page.continue_token {
            Some(token) => list.continue_token = token,
            None => return Ok(left),
        }
    }
}
