//! Where a request and a queue stand, for operators.

use super::{
    node::{NONE, NodeId, Owner, SCALE},
    requests::{RequestId, State},
    tree::Scheduler,
};

impl Scheduler {
    /// The queue of a request, and its position there if it waits. O(queue length).
    pub(crate) fn locate(&self, id: RequestId) -> Option<(Owner, Option<u32>)> {
        let request = self.requests.get(id)?;
        let leaf = self.nodes.get(request.leaf as usize)?;
        if request.state != State::Waiting {
            return Some((leaf.owner, None));
        }
        let (mut position, mut at) = (0, leaf.head);
        while at != NONE && at != id.index {
            position += 1;
            at = self.requests.at(at).next;
        }
        Some((leaf.owner, Some(position)))
    }

    /// A node's service tag: seat-time used over weight, in seat-nanoseconds since some fixed moment.
    pub(crate) fn tag(&self, node: NodeId) -> i64 {
        self.nodes.get(node.0 as usize).map_or(0, |node| node.f / SCALE as i64)
    }
}
