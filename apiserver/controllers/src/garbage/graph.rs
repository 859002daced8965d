//! Who owns whom, over all clusters, in memory.
//!
//! Only objects that have owners, and objects that wait for the collector, are in it: about 300 bytes each, and about 60
//! for each reference beyond the first. A cluster without such objects costs nothing. It says where to look; whether an
//! owner lives is always asked of the store.
//!
//! uids are unique over all clusters, since the server makes them; a reference to the uid of an object of another cluster
//! makes an edge that leads nowhere, which [`Graph::dependents`] leaves out.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Bound,
};

use apiserver_api::ClusterName;
use apiserver_machinery::Resource;
use apiserver_server::registry::ObjectKey;

/// See [`super::facts::uid`].
pub(super) type Uid = u128;

/// One object.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) resource: &'static Resource,
    pub(super) key: ObjectKey,
}

impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.resource, other.resource) && self.key == other.key
    }
}

impl Eq for Node {}

impl std::hash::Hash for Node {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.resource, state);
        self.key.hash(state);
    }
}

/// What an object waits for before it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Its dependents name it no more.
    Orphan,
    /// Its dependents that block it are gone.
    Foreground,
}

/// What matters of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    uid: Uid,
    /// Its owners, sorted, each once, and whether it blocks their deletion.
    owners: Box<[(Uid, bool)]>,
    wait: Option<Wait>,
}

impl Facts {
    pub(super) fn new(uid: Uid, owners: impl Iterator<Item = (Uid, bool)>, wait: Option<Wait>) -> Self {
        let mut owners: Vec<(Uid, bool)> = owners.collect();
        // Of two references to one owner the one that blocks comes first and stays.
        owners.sort_unstable_by_key(|(owner, blocks)| (*owner, !blocks));
        owners.dedup_by_key(|(owner, _)| *owner);
        Self { uid, owners: owners.into(), wait }
    }
}

/// What a change gives reason to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// One object.
    At(Node),
    /// All dependents of this owner.
    Dependents(Uid),
}

#[derive(Debug)]
struct Dependent {
    node: Node,
    owners: Box<[(Uid, bool)]>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Graph {
    /// The objects that have owners.
    dependents: BTreeMap<Uid, Dependent>,
    /// From owner to dependent, and whether the latter blocks.
    edges: BTreeMap<(Uid, Uid), bool>,
    waiting: HashMap<Uid, (Node, Wait)>,
}

impl Graph {
    /// Takes note of an object as it is now.
    pub(super) fn changed(&mut self, node: Node, facts: Facts) -> Vec<Look> {
        let Facts { uid, owners, wait } = facts;
        let mut look = Vec::new();
        let before = self.dependents.get(&uid).map(|d| &*d.owners).unwrap_or_default();
        if *before != *owners {
            look = self.disconnect(uid);
            self.edges.extend(owners.iter().map(|(owner, blocks)| ((*owner, uid), *blocks)));
            if !owners.is_empty() {
                look.push(Look::At(node.clone()));
                self.dependents.insert(uid, Dependent { node: node.clone(), owners });
            }
        }
        match wait {
            None => drop(self.waiting.remove(&uid)),
            Some(wait) => {
                let known = self.waiting.insert(uid, (node.clone(), wait));
                if known.is_none_or(|(_, before)| before != wait) {
                    look.extend([Look::At(node), Look::Dependents(uid)]);
                }
            }
        }
        look
    }

    /// Takes note that an object is gone.
    pub(super) fn removed(&mut self, uid: Uid) -> Vec<Look> {
        self.waiting.remove(&uid);
        let mut look = self.disconnect(uid);
        look.push(Look::Dependents(uid));
        look
    }

    /// Forgets the owners of an object. Those among them that wait may wait for this.
    fn disconnect(&mut self, uid: Uid) -> Vec<Look> {
        let owners = self.dependents.remove(&uid).map(|d| d.owners).unwrap_or_default();
        for (owner, _) in &owners {
            self.edges.remove(&(*owner, uid));
        }
        let waiting = owners.iter().filter_map(|(owner, _)| self.waiting.get(owner));
        waiting.map(|(node, _)| Look::At(node.clone())).collect()
    }

    /// At most `limit` objects that name this owner and lie in this cluster (`None`: in any), behind the object `after`;
    /// each with its uid. Reads no more than `limit` edges beyond those that lead nowhere.
    pub(super) fn dependents(
        &self,
        owner: Uid,
        cluster: Option<&ClusterName>,
        after: Option<Uid>,
        limit: usize,
    ) -> Vec<(Uid, Node)> {
        self.edges_of(owner, after)
            .filter_map(|(uid, _)| Some((uid, &self.dependents.get(&uid)?.node)))
            .filter(|(_, node)| cluster.is_none_or(|cluster| node.key.cluster == *cluster))
            .take(limit)
            .map(|(uid, node)| (uid, node.clone()))
            .collect()
    }

    /// At most `limit` objects that have owners, behind the object `after`; each with its uid.
    pub(super) fn all(&self, after: Option<Uid>, limit: usize) -> Vec<(Uid, Node)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let some = self.dependents.range((from, Bound::Unbounded)).take(limit);
        some.map(|(uid, dependent)| (*uid, dependent.node.clone())).collect()
    }

    /// Whether it is known that this object waits for this. Then all dependents are known that were made before it
    /// began to wait: their changes came first.
    pub(super) fn is_waiting(&self, uid: Uid, wait: Wait) -> bool {
        self.waiting.get(&uid).is_some_and(|(_, known)| *known == wait)
    }

    /// The objects that wait for the collector.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Node> {
        self.waiting.values().map(|(node, _)| node)
    }

    /// Whether something else in the cluster stands in the way of this owner's deletion in the foreground.
    pub(super) fn is_blocked(&self, owner: Uid, cluster: &ClusterName) -> bool {
        self.edges_of(owner, None).any(|(uid, blocks)| {
            blocks && uid != owner && self.dependents.get(&uid).is_some_and(|d| d.node.key.cluster == *cluster)
        })
    }

    /// Whether an object of the cluster that this one owns is being deleted in the foreground: perhaps it waits for this
    /// one in turn.
    pub(super) fn owns_waiting(&self, owner: Uid, cluster: &ClusterName) -> bool {
        self.edges_of(owner, None).any(|(uid, _)| {
            self.waiting.get(&uid).is_some_and(|(node, wait)| *wait == Wait::Foreground && node.key.cluster == *cluster)
        })
    }

    fn edges_of(&self, owner: Uid, after: Option<Uid>) -> impl Iterator<Item = (Uid, bool)> {
        let from = after.map_or(Bound::Included((owner, Uid::MIN)), |after| Bound::Excluded((owner, after)));
        let edges = self.edges.range((from, Bound::Included((owner, Uid::MAX))));
        edges.map(|((_, dependent), blocks)| (*dependent, *blocks))
    }
}

#[cfg(test)]
mod tests {
    use apiserver_machinery::builtin;

    use super::*;

    fn node(cluster: &str, name: &str) -> Node {
        let resource = builtin::find("", "v1", "configmaps").unwrap();
        Node { resource, key: ObjectKey::new(&cluster.parse().unwrap(), "default", name) }
    }

    fn facts(uid: Uid, owners: &[(Uid, bool)], wait: Option<Wait>) -> Facts {
        Facts::new(uid, owners.iter().copied(), wait)
    }

    #[test]
    fn an_owner_that_goes_is_reason_to_look_at_its_dependents() {
        let mut graph = Graph::default();
        assert_eq!(graph.changed(node("a", "owner"), facts(1, &[], None)), []);
        let child = node("a", "child");
        assert_eq!(graph.changed(child.clone(), facts(2, &[(1, true)], None)), [Look::At(child.clone())]);
        // What changes nothing about owners is no reason.
        assert_eq!(graph.changed(child.clone(), facts(2, &[(1, true)], None)), []);
        assert_eq!(graph.removed(1), [Look::Dependents(1)]);
        assert_eq!(graph.dependents(1, None, None, 9), [(2, child)]);
        assert_eq!(graph.dependents(1, None, Some(2), 9), []);
        graph.removed(2);
        assert!(graph.dependents.is_empty() && graph.edges.is_empty() && graph.waiting.is_empty());
    }

    #[test]
    fn an_owner_that_waits_is_looked_at_when_a_dependent_goes() {
        let mut graph = Graph::default();
        let (owner, child) = (node("a", "owner"), node("a", "child"));
        graph.changed(child.clone(), facts(2, &[(1, true)], None));
        let waits = facts(1, &[], Some(Wait::Foreground));
        assert_eq!(graph.changed(owner.clone(), waits.clone()), [Look::At(owner.clone()), Look::Dependents(1)]);
        assert_eq!(graph.changed(owner.clone(), waits), []);
        let cluster = "a".parse().unwrap();
        assert!(graph.is_blocked(1, &cluster) && !graph.is_blocked(1, &"b".parse().unwrap()));
        // The child lets go, and comes back without blocking.
        assert_eq!(graph.changed(child.clone(), facts(2, &[], None)), [Look::At(owner.clone())]);
        assert_eq!(graph.changed(child.clone(), facts(2, &[(1, false)], None)), [Look::At(child)]);
        assert!(!graph.is_blocked(1, &cluster));
        assert_eq!(graph.removed(2), [Look::At(owner), Look::Dependents(2)]);
    }

    #[test]
    fn an_object_does_not_block_itself_and_a_stranger_is_no_dependent() {
        let mut graph = Graph::default();
        graph.changed(node("a", "self"), facts(1, &[(1, true)], Some(Wait::Foreground)));
        graph.changed(node("b", "stranger"), facts(2, &[(1, true), (3, true)], Some(Wait::Foreground)));
        let cluster: ClusterName = "a".parse().unwrap();
        assert!(!graph.is_blocked(1, &cluster) && graph.owns_waiting(1, &cluster));
        assert!(!graph.owns_waiting(3, &cluster), "a stranger that waits makes no circle");
        assert_eq!(graph.dependents(1, Some(&cluster), None, 9), [(1, node("a", "self"))]);
        assert_eq!((graph.all(None, 9).len(), graph.all(Some(1), 9).len()), (2, 1));
    }

    #[test]
    fn what_it_costs() {
        const OBJECTS: u32 = 10_000;
        let mut graph = Graph::default();
        let used = allocation_counter::measure(|| {
            for n in 0..u128::from(OBJECTS) {
                graph.changed(node("2xk7qfv0z3mpl9ba", &format!("child-{n:06}")), facts(n + 2, &[(1, true)], None));
            }
        });
        let each = used.bytes_current / i64::from(OBJECTS);
        assert!((100..400).contains(&each), "{each} bytes for each dependent");
        assert_eq!(graph.all(None, usize::MAX).len(), OBJECTS as usize);
    }

    #[test]
    fn of_two_references_to_one_owner_the_blocking_one_counts() {
        assert_eq!(facts(2, &[(1, false), (1, true)], None), facts(2, &[(1, true)], None));
    }
}
