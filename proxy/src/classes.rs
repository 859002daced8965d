//! What the operator's workspace classes give to a workspace.

use std::sync::Arc;

use config::{FairnessConfig, Weight, WorkspaceClass};
use fairness::{GatePolicy, scheduler};

use crate::index::Index;

/// The gates' policy: the first class that matches a workspace's path and labels counts.
pub(crate) fn policy(config: &FairnessConfig, index: &Arc<Index>) -> GatePolicy {
    if config.classes.is_empty() {
        return GatePolicy::default();
    }
    let (classes, index) = (config.classes.clone(), index.clone());
    let lookup = move |name: &apiserver_api::ClusterName| {
        let (path, labels) = index.describe(name);
        let class = classes.iter().find(|class| class.matches(&path, &labels));
        class.map_or_else(scheduler::WorkspaceClass::default, given)
    };
    GatePolicy { classes: Arc::new(lookup), ..GatePolicy::default() }
}

fn given(class: &WorkspaceClass) -> scheduler::WorkspaceClass {
    let borrowing_limit_percent = class.borrowing_limit_percent;
    match class.weight {
        // The scheduler knows no weight of nothing; one share beside the usual thirty comes near it.
        Weight::Shares(shares) => scheduler::WorkspaceClass::Shares { shares: shares.max(1), borrowing_limit_percent },
        Weight::Seats(seats) => scheduler::WorkspaceClass::Seats {
            seats,
            lendable_percent: class.lendable_percent,
            borrowing_limit_percent,
        },
    }
}
