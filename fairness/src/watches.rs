//! Which open watches a write wakes up, per workspace (apf.md 6.5 and 9, row 16).
//!
//! A watch is registered when it is admitted and forgotten when its [`WatchGuard`] is dropped. It is filed
//! under what it watches: resource, namespace if any, name if any. Watches of `/clusters/*` see the writes
//! of all workspaces and are filed apart. The books of a workspace go when its last watch or the workspace
//! itself goes, so idle workspaces cost nothing; a bound on open watches bounds the books.
//!
//! Under [`Compat::Upstream`] watches of pods on a given node are not counted, nor are those of one name in
//! all namespaces for a write in a namespace. Ours counts the latter, and the former as one watch: a pod is
//! on one node, so a write of it reaches the watch of that node only.
//!
//! [`WatchTracker::interested`] allocates nothing; it takes the lock of one of the map's shards and that of
//! the workspace for a few look-ups.

use std::{
    hash::Hash,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use apiserver_api::{ClusterName, ListOptions, RequestInfo, Verb};
use dashmap::DashMap;
use hashbrown::{Equivalent, HashMap};

use crate::Compat;

/// Settings of a [`WatchTracker`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Whose rules are in force.
    pub compat: Compat,
    /// Open watches that one workspace may have (and all of `/clusters/*` together).
    pub per_workspace_max: u32,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { compat: Compat::Fairgate, per_workspace_max: 20_000 }
    }
}

/// The workspace has as many open watches as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many open watches: the limit is {limit} for a workspace")]
pub struct TooManyWatches {
    /// How many it may have.
    pub limit: u32,
}

/// The open watches of all workspaces behind one gateway.
#[derive(Debug)]
pub struct WatchTracker {
    options: WatchOptions,
    workspaces: DashMap<ClusterName, Arc<Books>>,
    wildcard: Arc<Books>,
}

/// One open watch; it is forgotten when this is dropped.
#[must_use = "a watch is forgotten as soon as its guard is dropped"]
#[derive(Debug)]
pub struct WatchGuard(Option<Registered>);

#[derive(Debug)]
struct Registered {
    tracker: Arc<WatchTracker>,
    /// `None` for a watch of all workspaces.
    workspace: Option<ClusterName>,
    /// Held here and not looked up again: a workspace that was dropped and made anew has other books.
    books: Arc<Books>,
    key: Key,
}

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    scope: Scope,
    group: Box<str>,
    resource: Box<str>,
    namespace: Box<str>,
    name: Box<str>,
}

/// Watches of pods by node are filed apart from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Scope {
    Objects,
    PodsOfANode,
}

/// A [`Key`] that borrows. Hashes as one: same fields in the same order.
#[derive(Clone, Copy, Hash)]
struct KeyRef<'a> {
    scope: Scope,
    group: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
}

impl Equivalent<Key> for KeyRef<'_> {
    fn equivalent(&self, key: &Key) -> bool {
        self.scope == key.scope
            && self.name == &*key.name
            && self.namespace == &*key.namespace
            && self.resource == &*key.resource
            && self.group == &*key.group
    }
}

/// Open watches of one workspace. A std mutex: sections are a few look-ups, and never held over an await.
#[derive(Debug, Default)]
struct Books {
    counts: Mutex<HashMap<Key, u32>>,
    /// Sum of the counts; changes only under the lock, read without it.
    total: AtomicU32,
}

impl Books {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, u32>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, key: Key, limit: u32) -> Result<(), TooManyWatches> {
        let mut counts = self.lock();
        if self.total.load(Ordering::Relaxed) >= limit {
            return Err(TooManyWatches { limit });
        }
        self.total.fetch_add(1, Ordering::Relaxed);
        *counts.entry(key).or_default() += 1;
        Ok(())
    }

    fn remove(&self, key: &Key) {
        let mut counts = self.lock();
        let Some(count) = counts.get_mut(key) else { return };
        self.total.fetch_sub(1, Ordering::Relaxed);
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }

    fn is_empty(&self) -> bool {
        self.total.load(Ordering::Relaxed) == 0
    }

    fn interested(&self, info: &RequestInfo<'_>, compat: Compat) -> u32 {
        let counts = self.lock();
        let count = |scope, namespace, name| {
            let key = KeyRef { scope, group: &info.api_group, resource: &info.resource, namespace, name };
            counts.get(&key).copied().unwrap_or(0)
        };
        let (namespace, name) = (&*info.namespace, &*info.name);
        let mut sum = count(Scope::Objects, "", "");
        if !namespace.is_empty() {
            sum += count(Scope::Objects, namespace, "");
        }
        if !name.is_empty() {
            sum += count(Scope::Objects, namespace, name);
        }
        if compat == Compat::Upstream {
            return sum;
        }
        if !name.is_empty() && !namespace.is_empty() {
            sum += count(Scope::Objects, "", name);
        }
        if info.resource == "pods" {
            let of_nodes = count(Scope::PodsOfANode, "", "") + count(Scope::PodsOfANode, namespace, "");
            sum += of_nodes.min(1);
        }
        sum
    }
}

impl WatchTracker {
    /// A tracker without watches.
    pub fn new(options: WatchOptions) -> Arc<Self> {
        Arc::new(Self { options, workspaces: DashMap::new(), wildcard: Arc::default() })
    }

    /// Registers a watch of `workspace`, or of all workspaces if there is none (`/clusters/*`). For a
    /// request that is no watch the guard holds nothing. Not for workspaces that are not known to exist: a
    /// registered watch is state of its workspace.
    ///
    /// # Errors
    /// The workspace (or the wildcard) has as many open watches as it may have.
    pub fn register(
        self: &Arc<Self>,
        workspace: Option<&ClusterName>,
        info: &RequestInfo<'_>,
    ) -> Result<WatchGuard, TooManyWatches> {
        let Some(key) = self.key(info) else { return Ok(WatchGuard(None)) };
        let limit = self.options.per_workspace_max;
        if limit == 0 {
            // Nobody may watch: no books for a workspace that could never empty them.
            return Err(TooManyWatches { limit });
        }
        let books = match workspace {
            None => {
                self.wildcard.add(key.clone(), limit)?;
                self.wildcard.clone()
            }
            Some(name) => {
                // The entry keeps its shard of the map locked, so that nobody drops the books as empty
                // between their being found and the watch being filed.
                let books = self.workspaces.entry(name.clone()).or_default();
                books.add(key.clone(), limit)?;
                books.clone()
            }
        };
        Ok(WatchGuard(Some(Registered { tracker: self.clone(), workspace: workspace.cloned(), books, key })))
    }

    /// How many open watches a write in `workspace` wakes up: those of the workspace and those of all
    /// workspaces. Reads wake up none.
    pub fn interested(&self, workspace: &ClusterName, info: &RequestInfo<'_>) -> u32 {
        if !info.is_resource || matches!(info.verb, Verb::Get | Verb::List | Verb::Watch | Verb::Proxy) {
            return 0;
        }
        let compat = self.options.compat;
        let own = self.workspaces.get(workspace.as_str()).map_or(0, |books| books.interested(info, compat));
        let everywhere = if self.wildcard.is_empty() { 0 } else { self.wildcard.interested(info, compat) };
        own + everywhere
    }

    /// The workspace is gone. Guards that are still held change nothing any more.
    pub fn forget_workspace(&self, workspace: &ClusterName) {
        self.workspaces.remove(workspace);
    }

    /// Where a watch is filed; `None` if it is none, or not counted.
    fn key(&self, info: &RequestInfo<'_>) -> Option<Key> {
        if !info.is_resource || info.verb != Verb::Watch {
            return None;
        }
        let of_a_node = info.resource == "pods" && selects_a_node(info.query);
        if of_a_node && self.options.compat == Compat::Upstream {
            return None;
        }
        let (scope, name) = if of_a_node { (Scope::PodsOfANode, "") } else { (Scope::Objects, &*info.name) };
        Some(Key {
            scope,
            group: (*info.api_group).into(),
            resource: (*info.resource).into(),
            namespace: (*info.namespace).into(),
            name: name.into(),
        })
    }
}

/// Whether a field selector asks for the pods of one node. Options that do not parse select nothing.
fn selects_a_node(query: &str) -> bool {
    let Ok(options) = ListOptions::parse(query) else { return false };
    options.field_selector.split(',').any(|term| {
        let value = term.strip_prefix("spec.nodeName=").map(|value| value.strip_prefix('=').unwrap_or(value));
        value.is_some_and(|value| !value.is_empty())
    })
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        let Some(Registered { tracker, workspace, books, key }) = self.0.take() else { return };
        books.remove(&key);
        if let Some(name) = workspace.filter(|_| books.is_empty()) {
            tracker.workspaces.remove_if(&name, |_, current| Arc::ptr_eq(current, &books) && current.is_empty());
        }
    }
}

#[cfg(test)]
mod tests;
