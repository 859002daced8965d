//! Recomputation of everything that is kept incrementally, from the requests up (law 6). O(nodes + requests).

#![allow(clippy::indexing_slicing, reason = "indices come from the tables themselves; for tests and simulators")]

use super::{
    node::NONE,
    requests::State,
    tree::{ROOT, Scheduler},
};

impl Scheduler {
    /// Compares every sum with its recomputation from the leaves.
    ///
    /// # Errors
    /// Says which sum of which node is wrong, and how.
    pub fn verify(&self) -> Result<(), String> {
        let count = self.nodes.len();
        let (mut used, mut waiting) = (vec![0_u64; count], vec![(0_u64, 0_u64); count]);
        let mut charged = vec![0_u64; count];
        for (_, request) in self.requests.iter() {
            let mut at = request.leaf;
            loop {
                match request.state {
                    State::Running => {
                        used[at as usize] += u64::from(request.width);
                        charged[at as usize] += u64::from(request.width) * request.horizon;
                    }
                    State::Waiting | State::Free => {
                        waiting[at as usize].0 += 1;
                        waiting[at as usize].1 += u64::from(request.width);
                    }
                }
                if at == ROOT {
                    break;
                }
                at = self.nodes[at as usize].parent;
            }
        }
        for (n, node) in self.nodes.iter().enumerate().filter(|(_, node)| node.live) {
            same("use", n, node.u.into(), used[n])?;
            same("waiting", n, node.waiting.into(), waiting[n].0)?;
            same("waiting seats", n, node.waiting_seats, waiting[n].1)?;
            same("charge", n, node.c, charged[n])?;
            if node.inner != NONE {
                self.verify_inner(n as u32)?;
            }
            self.verify_place(n as u32)?;
        }
        Ok(())
    }

    fn verify_inner(&self, n: u32) -> Result<(), String> {
        let p = &self.inners[self.inner_of(n)];
        let children = || self.nodes.iter().filter(|c| c.live && c.parent == n);
        let placed =
            (self.nodes.iter().zip(&self.positions)).filter(|(c, pos)| c.live && c.parent == n && **pos != NONE);
        let members = || children().filter(|c| c.member);
        let held = |c: &super::node::Node| u64::from(c.u) + u64::from(c.hold);
        let at = n as usize;
        let absent = p.absent_reserve;
        same("children", at, p.children.into(), children().count() as u64)?;
        same("committed", at, p.committed, absent + children().map(|c| u64::from(c.u.max(c.r))).sum::<u64>())?;
        same("reserved", at, p.reserved, absent + children().map(|c| u64::from(c.r)).sum::<u64>())?;
        same("active", at, p.active.into(), children().filter(|c| c.active()).count() as u64)?;
        let weight = children().filter(|c| c.active()).map(|c| u64::from(c.weight)).sum();
        same("active weight", at, p.active_weight, weight)?;
        same("members", at, p.members.into(), members().count() as u64)?;
        same("heaps", at, (p.r.as_ref().map_or(0, |r| r.len()) + p.g.len()) as u64, placed.count() as u64)?;
        same("W", at, p.w, members().map(|c| u64::from(c.weight)).sum())?;
        same("U", at, p.used, members().map(held).sum())?;
        let wf: i128 = members().map(|c| i128::from(c.weight) * i128::from(c.f.wrapping_sub(p.v0))).sum();
        same("M", at, p.wf, wf)?;
        same("J", at, p.used_mark, members().map(|c| i128::from(held(c)) * i128::from(c.mark)).sum())
    }

    fn verify_place(&self, n: u32) -> Result<(), String> {
        let node = &self.nodes[n as usize];
        if n == ROOT {
            return Ok(());
        }
        if self.positions[n as usize] != NONE {
            let p = &self.inners[self.inner_of(node.parent)];
            let heap = if node.in_r { p.r.as_deref() } else { Some(&p.g) };
            let there =
                heap.map_or(&[][..], |heap| heap.entries()).get(self.positions[n as usize] as usize).map(|e| e.node);
            if there != Some(n) || node.in_r != (node.u < node.r) {
                return Err(format!("node {n} is in the wrong heap or place: {node:?}"));
            }
        }
        // A node that uses all it may is a member or not, by what its parent could use when it was last
        // touched; it cannot be served either way.
        let must = node.waiting > 0 && !node.blocked && node.u < self.maximum(n);
        let may = node.waiting > 0 && !node.blocked;
        let right = if node.member { may && self.positions[n as usize] != NONE } else { !must };
        if !right {
            return Err(format!("node {n} should{} be backlogged: {node:?}", if must { "" } else { " not" }));
        }
        Ok(())
    }
}

fn same<T: PartialEq + std::fmt::Display>(what: &str, node: usize, kept: T, recomputed: T) -> Result<(), String> {
    if kept == recomputed { Ok(()) } else { Err(format!("{what} of node {node} is {kept}, should be {recomputed}")) }
}
