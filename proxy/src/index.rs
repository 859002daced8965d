//! Which shard holds a workspace: logical clusters by name, and the tree of workspaces by path (kcp.md 3.3).
//!
//! Filled by [`feed`], one task per shard and kind of object, or static. A lookup of three segments takes three reads
//! of a sharded map; updates lock one part of it for the time of an insert. A lost watch keeps all entries: only the
//! shard's own word that an object is gone removes it.
//!
//! While a cluster moves two shards hold it. Each holder is noted; the one whose LogicalCluster names it as its shard
//! wins, otherwise the older one.
//!
//! Shards come and go; their numbers are never given twice.

pub(crate) mod feed;
mod objects;
mod trust;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU8, AtomicU32, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use apiserver_api::ClusterName;
use dashmap::DashMap;
use tokio::sync::watch;

use crate::Directory;

/// Bits of [`Shard::synced`].
const CLUSTERS: u8 = 1;
const WORKSPACES: u8 = 2;

/// The directory of workspaces.
pub(crate) struct Index {
    is_static: AtomicBool,
    /// The shard of every path when it is.
    only: AtomicUsize,
    clusters: DashMap<ClusterName, Vec<Claim>>,
    /// Labels that workspaces carry in their parents, by the cluster behind them. A tenant cannot write there.
    labels: DashMap<ClusterName, Arc<Labels>>,
    /// Those labels, each once: most workspaces have the same.
    kinds: Mutex<LabelSets>,
    shards: boxcar::Vec<Shard>,
    /// Counts changes, for those who wait for one.
    moves: watch::Sender<u64>,
}

/// A shard says that it holds a cluster.
#[derive(Clone, Debug)]
struct Claim {
    shard: usize,
    cluster: Cluster,
}

/// A logical cluster as its shard tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// It names this shard as its own.
    pub(crate) confirmed: bool,
    /// Its canonical path; empty when unknown.
    pub(crate) path: Box<str>,
}

/// Labels of a workspace.
pub(crate) type Labels = BTreeMap<String, String>;

/// Different labels, each once.
#[derive(Default)]
struct LabelSets {
    sets: HashSet<Arc<Labels>>,
    /// With so many it is looked which of them are still in use.
    full: usize,
}

impl LabelSets {
    fn one(&mut self, labels: Labels) -> Arc<Labels> {
        if let Some(known) = self.sets.get(&labels) {
            return known.clone();
        }
        if self.sets.len() >= self.full {
            self.sets.retain(|labels| Arc::strong_count(labels) > 1);
            self.full = 2 * self.sets.len() + 64;
        }
        let labels = Arc::new(labels);
        self.sets.insert(labels.clone());
        labels
    }
}

/// What a message about a cluster changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The shard did not hold it before.
    Appeared,
    /// Something about it is different.
    Changed,
    Nothing,
}

#[derive(Default)]
struct Shard {
    synced: AtomicU8,
    is_gone: AtomicBool,
    /// Clusters it holds.
    clusters: AtomicU32,
    /// Workspaces by the cluster they are in, then by name.
    children: DashMap<ClusterName, HashMap<Box<str>, Workspace>>,
}

/// One workspace as its parent tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Workspace {
    /// The logical cluster behind it, once there is one.
    pub(crate) cluster: Option<ClusterName>,
    /// Where a mounted workspace is served.
    pub(crate) mount: Option<Arc<str>>,
    pub(crate) is_unavailable: bool,
    /// It is still being placed.
    pub(crate) is_pending: bool,
    pub(crate) labels: Labels,
}

/// What the index says about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// It is served by a shard.
    Found {
        /// The logical cluster.
        name: ClusterName,
        /// Number of the shard.
        shard: usize,
    },
    /// The workspace is served elsewhere.
    Mount {
        /// Base URL of the other server.
        url: Arc<str>,
    },
    /// A workspace on the way is not available just now.
    Unavailable,
    /// It was created just now and is still being placed (kcp issue 3811).
    Pending,
    /// Nobody knows it. `certain` when all shards have been heard.
    Unknown {
        /// Whether every shard has told all it holds.
        certain: bool,
    },
}

impl Index {
    pub(crate) fn new(directory: Directory, shards: usize) -> Self {
        Self {
            is_static: AtomicBool::new(directory == Directory::Static),
            only: AtomicUsize::new(0),
            clusters: DashMap::new(),
            labels: DashMap::new(),
            kinds: Mutex::default(),
            shards: (0..shards).map(|_| Shard::default()).collect(),
            moves: watch::channel(0).0,
        }
    }

    /// Another shard: its number.
    pub(crate) fn add_shard(&self) -> usize {
        self.shards.push(Shard::default())
    }

    /// A shard is about to go: what it may hold besides is not waited for.
    pub(crate) fn leave(&self, shard: usize) {
        if let Some(shard) = self.shards.get(shard) {
            shard.is_gone.store(true, Relaxed);
        }
        self.moved();
    }

    /// Those that are not about to go.
    fn staying(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().map(|(_, shard)| shard).filter(|shard| !shard.is_gone.load(Relaxed))
    }

    /// Whether every path belongs to one shard.
    pub(crate) fn is_static(&self) -> bool {
        self.is_static.load(Acquire)
    }

    /// From now on every path belongs to this shard.
    pub(crate) fn become_static(&self, shard: usize) {
        self.only.store(shard, Relaxed);
        self.is_static.store(true, Release);
        self.moved();
    }

    /// Whether at least one shard's workspaces are known.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_static() || self.staying().any(Shard::is_synced)
    }

    /// Whether a shard has told all it holds.
    pub(crate) fn is_synced(&self, shard: usize) -> bool {
        self.is_static() || self.shards.get(shard).is_some_and(Shard::is_synced)
    }

    /// Whether a shard has told its logical clusters: it has such.
    pub(crate) fn has_clusters(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(|shard| shard.synced.load(Relaxed) & CLUSTERS != 0)
    }

    /// How many shards have not told all they hold.
    pub(crate) fn unheard(&self) -> usize {
        self.staying().filter(|shard| !shard.is_synced()).count()
    }

    /// Changes from now on.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    /// Number of known logical clusters.
    pub(crate) fn len(&self) -> usize {
        self.clusters.len()
    }

    fn moved(&self) {
        self.moves.send_modify(|n| *n = n.wrapping_add(1));
    }

    /// Finds the shard of a well-formed path.
    pub(crate) fn lookup(&self, path: &str) -> Lookup {
        if self.is_static() {
            return Lookup::Found { name: ClusterName::standing_for(path), shard: self.only.load(Relaxed) };
        }
        self.walk(path).unwrap_or_else(|| Lookup::Unknown { certain: self.staying().all(Shard::is_synced) })
    }

    fn walk(&self, path: &str) -> Option<Lookup> {
        let (first, mut rest) = match path.split_once(':') {
            Some((first, rest)) if first != "system" => (first, Some(rest)),
            _ => (path, None),
        };
        let (mut name, mut shard) = self.holder(first)?;
        let mut is_unavailable = false;
        while let Some(path) = rest {
            let (segment, below) = path.split_once(':').map_or((path, None), |(s, b)| (s, Some(b)));
            // A copy, so that no two parts of the maps are ever locked together.
            let child = self.shards.get(shard)?.children.get(&name)?.get(segment)?.clone();
            is_unavailable |= child.is_unavailable;
            let holder = child.cluster.as_ref().and_then(|c| self.holder(c.as_str()));
            match (holder, child.mount) {
                (Some(found), _) => (name, shard) = found,
                (None, Some(_)) if is_unavailable => return Some(Lookup::Unavailable),
                (None, _) if child.is_pending => return Some(Lookup::Pending),
                (None, Some(url)) if below.is_none() => return Some(Lookup::Mount { url }),
                _ => return None,
            }
            rest = below;
        }
        Some(if is_unavailable { Lookup::Unavailable } else { Lookup::Found { name, shard } })
    }

    fn holder(&self, name: &str) -> Option<(ClusterName, usize)> {
        let entry = self.clusters.get(name)?;
        let claim = owner(&entry)?;
        Some((entry.key().clone(), claim.shard))
    }

    /// The canonical path and labels of a cluster, as far as they are known.
    pub(crate) fn describe(&self, name: &ClusterName) -> (Box<str>, Arc<Labels>) {
        if self.is_static() {
            return (name.as_str().into(), Arc::default());
        }
        let path = self.clusters.get(name).and_then(|claims| Some(owner(&claims)?.cluster.path.clone()));
        let labels = self.labels.get(name).map(|l| l.clone()).unwrap_or_default();
        (path.filter(|p| !p.is_empty()).unwrap_or_else(|| name.as_str().into()), labels)
    }

    /// Whether a shard says that it holds a cluster.
    pub(crate) fn holds(&self, shard: usize, name: &ClusterName) -> bool {
        self.clusters.get(name).is_some_and(|claims| claims.iter().any(|claim| claim.shard == shard))
    }

    /// Number of clusters that a shard holds.
    pub(crate) fn held_by(&self, shard: usize) -> u32 {
        self.shards.get(shard).map_or(0, |s| s.clusters.load(Relaxed))
    }

    /// The clusters that a shard holds.
    pub(crate) fn names_on(&self, shard: usize) -> Vec<ClusterName> {
        let held = |claims: &[Claim]| claims.iter().any(|c| c.shard == shard);
        self.clusters.iter().filter(|e| held(e)).map(|e| e.key().clone()).collect()
    }

    /// A shard holds a cluster.
    pub(crate) fn put_cluster(&self, shard: usize, name: &ClusterName, cluster: Cluster) -> News {
        // Hardly any has two.
        let mut claims = self.clusters.entry(name.clone()).or_insert_with(|| Vec::with_capacity(1));
        let news = match claims.iter_mut().find(|c| c.shard == shard) {
            Some(claim) if claim.cluster == cluster => News::Nothing,
            Some(claim) => {
                claim.cluster = cluster;
                News::Changed
            }
            None => {
                claims.push(Claim { shard, cluster });
                News::Appeared
            }
        };
        drop(claims);
        if let (News::Appeared, Some(shard)) = (news, self.shards.get(shard)) {
            shard.clusters.fetch_add(1, Relaxed);
        }
        if news != News::Nothing {
            self.moved();
        }
        news
    }

    /// A shard no longer holds a cluster, nor the workspaces in it. True if that is news.
    pub(crate) fn remove_cluster(&self, shard: usize, name: &ClusterName) -> bool {
        if let Some(shard) = self.shards.get(shard) {
            shard.children.remove(name);
        }
        let Some(mut claims) = self.clusters.get_mut(name) else { return false };
        let before = claims.len();
        claims.retain(|c| c.shard != shard);
        let is_news = claims.len() < before;
        drop(claims);
        self.clusters.remove_if(name, |_, claims| claims.is_empty());
        if is_news {
            if let Some(shard) = self.shards.get(shard) {
                shard.clusters.fetch_sub(1, Relaxed);
            }
            self.moved();
        }
        is_news
    }

    /// Whether any shard holds the cluster.
    pub(crate) fn knows(&self, name: &ClusterName) -> bool {
        self.clusters.contains_key(name)
    }

    /// A shard has told all its clusters: what it holds otherwise is gone. Returns the names that went.
    pub(crate) fn sync_clusters(&self, shard: usize, all: &HashSet<ClusterName>) -> Vec<ClusterName> {
        let gone = self.keep_clusters(shard, all);
        self.mark_synced(shard, CLUSTERS);
        gone
    }

    /// A shard is gone, with all it holds. Returns the names of its clusters.
    pub(crate) fn forget_shard(&self, shard: usize) -> Vec<ClusterName> {
        self.keep_workspaces(shard, &HashSet::new());
        self.keep_clusters(shard, &HashSet::new())
    }

    fn keep_clusters(&self, shard: usize, all: &HashSet<ClusterName>) -> Vec<ClusterName> {
        let mine = |claims: &[Claim]| claims.iter().any(|c| c.shard == shard);
        let gone: Vec<_> =
            self.clusters.iter().filter(|e| mine(e) && !all.contains(e.key())).map(|e| e.key().clone()).collect();
        gone.iter().for_each(|name| {
            self.remove_cluster(shard, name);
        });
        gone
    }

    /// What a cluster on a shard says about one of its workspaces. Returns the cluster behind it if its labels changed.
    pub(crate) fn put_workspace(
        &self,
        shard: usize,
        parent: &ClusterName,
        name: &str,
        mut workspace: Workspace,
    ) -> Option<ClusterName> {
        let shard = self.shards.get(shard)?;
        let labels = std::mem::take(&mut workspace.labels);
        // One text for all who speak of the cluster.
        let known = |cluster: ClusterName| self.clusters.get(&cluster).map_or(cluster, |entry| entry.key().clone());
        workspace.cluster = workspace.cluster.map(known);
        let cluster = workspace.cluster.clone();
        shard.children.entry(parent.clone()).or_default().insert(name.into(), workspace);
        self.moved();
        cluster.filter(|cluster| match labels.is_empty() {
            true => self.labels.remove(cluster).is_some(),
            false => {
                let labels = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).one(labels);
                self.labels.insert(cluster.clone(), labels.clone()) != Some(labels)
            }
        })
    }

    /// A workspace is gone.
    pub(crate) fn remove_workspace(&self, shard: usize, parent: &ClusterName, name: &str) {
        let Some(shard) = self.shards.get(shard) else { return };
        let removed = shard.children.get_mut(parent).and_then(|mut children| children.remove(name));
        shard.children.remove_if(parent, |_, children| children.is_empty());
        if let Some(cluster) = removed.and_then(|workspace| workspace.cluster) {
            self.drop_labels(parent, name, &cluster);
        }
        self.moved();
    }

    /// A shard has told all its workspaces: what it holds otherwise is gone.
    pub(crate) fn sync_workspaces(&self, shard: usize, all: &HashSet<(ClusterName, Box<str>)>) {
        self.keep_workspaces(shard, all);
        self.mark_synced(shard, WORKSPACES);
    }

    fn keep_workspaces(&self, shard: usize, all: &HashSet<(ClusterName, Box<str>)>) {
        let Some(entry) = self.shards.get(shard) else { return };
        let told = |parent: &ClusterName, name: &str| all.contains(&(parent.clone(), name.into()));
        let mut gone = Vec::new();
        entry.children.retain(|parent, children| {
            let went = children.extract_if(|name, _| !told(parent, name));
            gone.extend(went.filter_map(|(name, workspace)| Some((parent.clone(), name, workspace.cluster?))));
            !children.is_empty()
        });
        gone.iter().for_each(|(parent, name, cluster)| self.drop_labels(parent, name, cluster));
    }

    /// Forgets the labels of the cluster behind a workspace, unless another shard, to which its parent is moving, has told
    /// them too.
    fn drop_labels(&self, parent: &ClusterName, name: &str, cluster: &ClusterName) {
        let tells = |shard: &Shard| {
            let children = shard.children.get(parent);
            children.is_some_and(|c| c.get(name).is_some_and(|workspace| workspace.cluster.as_ref() == Some(cluster)))
        };
        if !self.shards.iter().any(|(_, shard)| tells(shard)) {
            self.labels.remove(cluster);
        }
    }

    fn mark_synced(&self, shard: usize, part: u8) {
        if let Some(shard) = self.shards.get(shard) {
            shard.synced.fetch_or(part, Relaxed);
        }
        self.moved();
    }
}

fn owner(claims: &[Claim]) -> Option<&Claim> {
    claims.iter().find(|c| c.cluster.confirmed).or(claims.first())
}

impl Shard {
    fn is_synced(&self) -> bool {
        self.synced.load(Relaxed) == CLUSTERS | WORKSPACES
    }
}

#[cfg(test)]
mod tests;
